//! Data of events and states of keys, as part of a JSON text. A page may contain much data. This module must never
//! parse the data into a tree, because a tree takes up to a hundred times the memory of its text. This module adds
//! escapes only while it writes the data, because escaped data takes up to six times the memory of the unescaped data.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use ordain_cloudevents::compact;

/// The maximum nesting of data in a row. JSON readers accept at least 100 levels, and the row around the data adds a
/// few levels.
const NESTING_LIMIT: usize = 90;

/// The data of an event, the state of a key, or the bytes of an unreadable delivery, as a part of a JSON text.
#[derive(Debug, Clone, Serialize)]
#[serde(transparent)]
pub struct JsonData(DataForm);

#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
enum DataForm {
    /// Data that is JSON. The data of a row that was read from JSON always has this variant, because [`JsonData::of`]
    /// writes each of its four forms as JSON.
    Json(Box<RawValue>),
    /// A text that is not JSON.
    Text(String),
    /// JSON that some readers do not accept.
    Odd { text: String },
    /// Bytes that are not UTF-8.
    Binary { base64: String },
}

impl Default for JsonData {
    fn default() -> Self {
        Self(DataForm::Json(RawValue::NULL.to_owned()))
    }
}

impl<'de> Deserialize<'de> for JsonData {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Box::deserialize(from).map(|json| Self(DataForm::Json(json)))
    }
}

impl JsonData {
    /// Converts bytes to one of four forms:
    ///
    /// - JSON without white space, if the bytes are JSON that every reader accepts;
    /// - `{"text": …}`, if the bytes are JSON that some readers do not accept. Such JSON has deep nesting, numbers
    ///   beyond the range of a 64-bit float, or an escaped half of a surrogate pair;
    /// - a text, if the bytes are UTF-8, but not JSON;
    /// - `{"base64": …}`, if the bytes are not UTF-8.
    pub fn of(bytes: &[u8]) -> Self {
        let Ok(text) = std::str::from_utf8(bytes) else {
            return Self(DataForm::Binary { base64: STANDARD.encode(bytes) });
        };
        if serde_json::from_str::<IgnoredAny>(text).is_err() {
            return Self(DataForm::Text(text.to_owned()));
        }
        let json = if is_portable(text) { compact(text).ok() } else { None };
        let json = json.and_then(|json| RawValue::from_string(json.into_owned()).ok());
        Self(json.map_or_else(|| DataForm::Odd { text: text.to_owned() }, DataForm::Json))
    }
}

/// Returns whether every reader accepts a JSON text: the text has no deep nesting, no number beyond the range of a
/// 64-bit float, and no escaped half of a surrogate pair.
fn is_portable(json: &str) -> bool {
    let mut reader = serde_json::Deserializer::from_str(json);
    NestingCheck { levels: NESTING_LIMIT }.deserialize(&mut reader).is_ok()
}

/// A check that fails if arrays and objects are nested more than `levels` deep.
#[derive(Clone, Copy)]
struct NestingCheck {
    levels: usize,
}

impl NestingCheck {
    fn deeper<E: Error>(self) -> Result<Self, E> {
        let levels = self.levels.checked_sub(1).ok_or_else(|| E::custom("nested too deeply"))?;
        Ok(Self { levels })
    }
}

impl<'de> DeserializeSeed<'de> for NestingCheck {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for NestingCheck {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let inner = self.deeper()?;
        while list.next_element_seed(inner)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<(), A::Error> {
        let inner = self.deeper()?;
        while object.next_key_seed(self)?.is_some() {
            object.next_value_seed(inner)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json_text(bytes: &[u8]) -> String {
        serde_json::to_string(&JsonData::of(bytes)).unwrap()
    }

    #[test]
    fn each_form_is_distinguishable() {
        for (bytes, right) in [
            (&b"null"[..], "null"),
            (
                b" {\n \"a\": [1.0, 12345678901234567890123, \"x y\"] } ",
                r#"{"a":[1.0,12345678901234567890123,"x y"]}"#,
            ),
            (b"{\"b\":1,\"a\":2,\"b\":3}", r#"{"b":1,"a":2,"b":3}"#),
            (b"no JSON \x07", r#""no JSON \u0007""#),
            (b"[1] [2]", r#""[1] [2]""#),
            (b"", r#""""#),
            (b"[1e999]", r#"{"text":"[1e999]"}"#),
            (br#"{"\ud800":1}"#, r#"{"text":"{\"\\ud800\":1}"}"#),
            (b"\xff", r#"{"base64":"/w=="}"#),
        ] {
            assert_eq!(json_text(bytes), right);
        }
    }

    #[test]
    fn deeply_nested_json_is_text() {
        let nested = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        assert_eq!(json_text(nested(NESTING_LIMIT).as_bytes()), nested(NESTING_LIMIT));
        for levels in [NESTING_LIMIT + 1, 100_000] {
            assert_eq!(
                json_text(nested(levels).as_bytes()),
                format!("{{\"text\":\"{}\"}}", nested(levels))
            );
        }
        let objects = "{\"a\":".repeat(200) + "1" + &"}".repeat(200);
        assert!(json_text(objects.as_bytes()).starts_with("{\"text\":"));
    }
}
