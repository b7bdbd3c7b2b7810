//! JSON without the white space between its parts. Nothing else changes: numbers, escapes, the
//! order of members and members that stand twice stay byte for byte as they were.

use std::borrow::Cow;

/// How deep arrays and objects may lie in each other. It is what serde_json reads, so that a
/// handler can read whatever is let in, and no reader's stack is at risk.
pub const NESTING_LIMIT: usize = 127;

/// Deeper than [`NESTING_LIMIT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooDeep;

/// Makes valid JSON compact; borrows where it is so already. Text that is no JSON gives some text.
pub fn compact(json: &str) -> Result<Cow<'_, str>, TooDeep> {
    let bytes = json.as_bytes();
    let mut out = String::new();
    let mut copied = 0;
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => {
                at = string_end(bytes, at + 1);
                continue;
            }
            b' ' | b'\t' | b'\n' | b'\r' => {
                out.push_str(&json[copied..at]);
                copied = at + 1;
            }
            b'{' | b'[' => {
                depth += 1;
                if depth > NESTING_LIMIT {
                    return Err(TooDeep);
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
    }
    if copied == 0 {
        return Ok(Cow::Borrowed(json));
    }
    out.push_str(&json[copied..]);
    Ok(Cow::Owned(out))
}

/// The place after a string's closing quote; `at` is after its opening one.
fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while let Some(found) = bytes.get(at..).and_then(|rest| memchr::memchr2(b'"', b'\\', rest)) {
        at += found + 1;
        if bytes[at - 1] == b'"' {
            return at;
        }
        // The escaped character may be a quote or another backslash.
        at += 1;
    }
    bytes.len()
}
