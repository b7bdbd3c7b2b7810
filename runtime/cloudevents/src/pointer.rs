//! Finds the value at a JSON Pointer in one pass over the JSON. This module keeps no other value of the JSON, and must
//! not change the value that it finds.

use std::borrow::Cow;
use std::fmt;

use ordain_config::JsonPointer;
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::value::RawValue;

use super::blank::trim_blanks;
use super::decode::json_text;

/// The error of data that is not JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotJsonError;

/// Returns the JSON text of the value at a pointer; `None` if the JSON has no such value. Skips blanks around the JSON,
/// such as the byte order mark that some producers write before a body. If an object on the path to the value has
/// several members of the same name, the search uses the final one of these members, as most JSON parsers do.
pub fn find_value<'a>(
    json: &'a [u8],
    pointer: &JsonPointer,
) -> Result<Option<&'a str>, NotJsonError> {
    let mut parser = serde_json::Deserializer::from_slice(trim_blanks(json));
    let found = PointerWalk { tokens: pointer.tokens() }.deserialize(&mut parser);
    let found = found.and_then(|found| parser.end().map(|()| found));
    found.map(|found| found.map(RawValue::get)).map_err(|_| NotJsonError)
}

/// Returns the text of a JSON string, the text of a number as written, or `true` or `false`. Returns `None` for other
/// JSON, and for a string that contains half of a surrogate pair.
pub fn scalar_text(json: &str) -> Option<Cow<'_, str>> {
    match json.as_bytes().first()? {
        b'"' => json_text(json),
        b'{' | b'[' | b'n' => None,
        _ => Some(Cow::Borrowed(json)),
    }
}

/// The tokens of a pointer that the search has not followed yet.
#[derive(Clone, Copy)]
struct PointerWalk<'p> {
    tokens: &'p [String],
}

impl<'de> DeserializeSeed<'de> for PointerWalk<'_> {
    type Value = Option<&'de RawValue>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        if self.tokens.is_empty() {
            return <&RawValue>::deserialize(from).map(Some);
        }
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for PointerWalk<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (name, rest) = self.tokens.split_first().ok_or_else(|| A::Error::custom("no name"))?;
        let mut found = None;
        while let Some(is_wanted) = map.next_key_seed(MemberMatch { name })? {
            if is_wanted {
                found = map.next_value_seed(PointerWalk { tokens: rest })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Self::Value, A::Error> {
        let (name, rest) = self.tokens.split_first().ok_or_else(|| A::Error::custom("no index"))?;
        let wanted = array_index(name);
        let mut found = None;
        for index in 0_usize.. {
            let is_present = if wanted == Some(index) {
                let value = array.next_element_seed(PointerWalk { tokens: rest })?;
                found = value.flatten();
                value.is_some()
            } else {
                array.next_element::<IgnoredAny>()?.is_some()
            };
            if !is_present {
                break;
            }
        }
        Ok(found)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
}

/// Returns the index of an array's element; `None` if the text is not an index, for example because of a leading zero.
fn array_index(text: &str) -> Option<usize> {
    let is_index =
        text == "0" || (!text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit()));
    if is_index { text.parse().ok() } else { None }
}

/// A comparison of `name` with the name of a member.
struct MemberMatch<'p> {
    name: &'p str,
}

impl<'de> DeserializeSeed<'de> for MemberMatch<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<bool, D::Error> {
        from.deserialize_str(self)
    }
}

impl Visitor<'_> for MemberMatch<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<bool, E> {
        Ok(text == self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find<'a>(json: &'a str, pointer: &str) -> Result<Option<&'a str>, NotJsonError> {
        find_value(json.as_bytes(), &JsonPointer::parse(pointer).expect("a pointer"))
    }

    #[test]
    fn value_at_a_pointer_is_found() {
        let json = r#" {"a": {"b" : [ 10, {"c": "x\ty"}, [] ], "": 7, "01": true, "x/y": 1.50, "m~n": null},
                        "caf\u00e9": "é", "long": {"skipped": [[{"a": 1e400}]]}, "n": -0, "o": {"p": [1, 2]}} "#;
        for (pointer, expected) in [
            ("/a/b/0", Some("10")),
            ("/a/b/1/c", Some(r#""x\ty""#)),
            ("/a/b/2", Some("[]")),
            ("/a/b/3", None),
            ("/a/b/-", None),
            ("/a/b/00", None),
            ("/a/b/+0", None),
            ("/a/b/99999999999999999999", None),
            ("/a/", Some("7")),
            ("/a/01", Some("true")),
            ("/a/x~1y", Some("1.50")),
            ("/a/m~0n", Some("null")),
            ("/a/m~0n/z", None),
            ("/café", Some("\"é\"")),
            ("/café/0", None),
            ("/n", Some("-0")),
            ("/n/0", None),
            ("/o/p", Some("[1, 2]")),
            ("/o", Some("{\"p\": [1, 2]}")),
            ("/A", None),
            ("/", None),
        ] {
            assert_eq!(find(json, pointer), Ok(expected), "{pointer}");
        }
        assert_eq!(find("[[1],[2,3]]", "/1/1"), Ok(Some("3")));
        assert_eq!(find("\"text\"", "/a"), Ok(None));
        assert_eq!(find("\u{feff}{\"a\":1}\r\n", "/a"), Ok(Some("1")));
        // The search uses the final one of several members with the same name, even if its value has another JSON type.
        assert_eq!(find(r#"{"a":1,"a":2}"#, "/a"), Ok(Some("2")));
        assert_eq!(find(r#"{"a":{"b":1},"a":2}"#, "/a/b"), Ok(None));
    }

    #[test]
    fn data_that_is_not_json_is_an_error() {
        for json in ["", "{", "{\"a\":1", "{\"a\":1} x", "a=1", "{'a':1}", "<a/>", "{\"b\":tru}"] {
            assert_eq!(find(json, "/a"), Err(NotJsonError), "{json}");
        }
        let pointer = JsonPointer::parse("/a").expect("a pointer");
        assert_eq!(find_value(b"{\"a\":\"\xff\"}", &pointer), Err(NotJsonError));
    }

    #[test]
    fn deep_nesting_is_skipped_without_recursion() {
        let deep = format!("{{\"x\":{}{},\"a\":1}}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(find(&deep, "/a"), Ok(Some("1")));
    }

    #[test]
    fn strings_numbers_and_booleans_are_scalars() {
        for (json, expected) in [
            ("\"a\\u0062\"", Some("ab")),
            ("\"\"", Some("")),
            ("17", Some("17")),
            ("1.50", Some("1.50")),
            ("1e3", Some("1e3")),
            ("true", Some("true")),
            ("false", Some("false")),
            ("null", None),
            ("{}", None),
            ("[1]", None),
            ("\"\\ud800\"", None),
        ] {
            assert_eq!(scalar_text(json).as_deref(), expected, "{json}");
        }
    }
}
