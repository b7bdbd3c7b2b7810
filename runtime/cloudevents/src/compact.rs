//! Removes the white space between the tokens of JSON. This module must change nothing else: numbers, escapes, the
//! order of members and repeated members stay byte for byte the same.

use std::borrow::Cow;

/// Maximum nesting of arrays and objects. The parser serde_json has the same limit, so handlers that use serde_json can
/// read every accepted event. The limit also keeps recursive parsers from overflowing their stacks.
pub const NESTING_LIMIT: usize = 127;

/// The error of JSON that is nested deeper than [`NESTING_LIMIT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NestingError;

/// Returns valid JSON in compact form. Returns the text itself, without a copy, if the text is already compact. Fails
/// if the JSON is nested deeper than [`NESTING_LIMIT`]. For text that is not JSON, the result is unspecified.
pub fn compact(json: &str) -> Result<Cow<'_, str>, NestingError> {
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
                    return Err(NestingError);
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

/// Returns the position after a string's closing quote; `at` is the position after its opening quote.
pub(super) fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while let Some(found) = bytes.get(at..).and_then(|rest| memchr::memchr2(b'"', b'\\', rest)) {
        at += found + 1;
        if bytes[at - 1] == b'"' {
            return at;
        }
        // Skip the escaped character, which may be a quote or another backslash.
        at += 1;
    }
    bytes.len()
}
