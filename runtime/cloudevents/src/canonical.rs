//! The canonical form of JSON. With the setting `id = "content"`, Ordain computes the id of an event from this form.

use super::compact::string_end;
use super::decode::json_text;
use super::encode::compact_json;

/// Returns the canonical form of JSON. In this form, no white space separates the parts of the JSON, the members of
/// each object are sorted by their names, and strings contain only the escapes that JSON needs. Numbers remain as they
/// are. Members with the same name keep their order. Returns `None` if the data is not JSON, contains half of a
/// surrogate pair, or is nested deeper than `NESTING_LIMIT`.
pub(super) fn canonical_json(data: &[u8]) -> Option<Vec<u8>> {
    let json = compact_json(data)?;
    let mut out = Vec::with_capacity(json.len());
    write_value(&json, 0, &mut out)?;
    Some(out)
}

/// Appends the value at the position `at` of compact JSON. Returns the position after the value.
fn write_value(json: &str, at: usize, out: &mut Vec<u8>) -> Option<usize> {
    match json.as_bytes().get(at)? {
        b'{' => write_object(json, at, out),
        b'[' => write_array(json, at, out),
        b'"' => write_string(json, at, out),
        _ => {
            let rest = &json[at..];
            let token = &rest[..rest.find([',', ']', '}']).unwrap_or(rest.len())];
            out.extend_from_slice(token.as_bytes());
            Some(at + token.len())
        }
    }
}

fn write_string(json: &str, at: usize, out: &mut Vec<u8>) -> Option<usize> {
    let end = string_end(json.as_bytes(), at + 1);
    let text = json_text(json.get(at..end)?)?;
    serde_json::to_writer(out, &*text).ok()?;
    Some(end)
}

fn write_array(json: &str, mut at: usize, out: &mut Vec<u8>) -> Option<usize> {
    let bytes = json.as_bytes();
    out.push(b'[');
    at += 1;
    while *bytes.get(at)? != b']' {
        at = write_value(json, at, out)?;
        if *bytes.get(at)? == b',' {
            out.push(b',');
            at += 1;
        }
    }
    out.push(b']');
    Some(at + 1)
}

fn write_object(json: &str, mut at: usize, out: &mut Vec<u8>) -> Option<usize> {
    let bytes = json.as_bytes();
    let mut members: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    at += 1;
    while *bytes.get(at)? != b'}' {
        let mut name = Vec::new();
        let mut value = Vec::new();
        // A colon follows the name.
        at = write_string(json, at, &mut name)? + 1;
        at = write_value(json, at, &mut value)?;
        members.push((name, value));
        at += usize::from(*bytes.get(at)? == b',');
    }
    members.sort_by(|(one, _), (other, _)| one.cmp(other));
    out.push(b'{');
    for (position, (name, value)) in members.iter().enumerate() {
        if position > 0 {
            out.push(b',');
        }
        out.extend_from_slice(name);
        out.push(b':');
        out.extend_from_slice(value);
    }
    out.push(b'}');
    Some(at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_the_same_json_have_one_canonical_form() {
        for (json, canonical) in [
            (" null\n", "null"),
            ("[ 1.0 , -2e+3, true ]", "[1.0,-2e+3,true]"),
            (r#""\u00fc\/\u000a\"""#, r#""ü/\n\"""#),
            ("[[ ], { }, \"a, ]\"]", "[[],{},\"a, ]\"]"),
            (r#"{"b":{"d":[2,1],"c":"}"},"\u0061":1}"#, r#"{"a":1,"b":{"c":"}","d":[2,1]}}"#),
            (r#"{"b":0,"a":2,"a":1}"#, r#"{"a":2,"a":1,"b":0}"#),
        ] {
            let found = canonical_json(json.as_bytes()).expect(json);
            assert_eq!(String::from_utf8_lossy(&found), canonical, "{json}");
            assert_eq!(canonical_json(&found), Some(found.clone()), "{json}");
        }
        let deep = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        assert!(canonical_json(deep(127).as_bytes()).is_some());
        for data in
            [&b""[..], b"{", b"x", b"1 2", b"\"\xff\"", br#""\ud800""#, deep(128).as_bytes()]
        {
            assert_eq!(canonical_json(data), None, "{data:?}");
        }
    }
}
