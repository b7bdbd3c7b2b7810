//! Converts bytes to the types of a handler and back: as JSON with serde, or unchanged.

use std::fmt;
use std::ops::Deref;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::call::read_state;

/// A type that can be decoded from the data of an event or from a state: any type that serde can read from JSON, or
/// [`Raw`].
///
/// To read another format, implement this trait for a type of your own. This type must not implement serde's
/// `Deserialize`.
pub trait Decode: Sized {
    /// Decodes the bytes. The error describes the fault in words.
    fn decode(bytes: Vec<u8>) -> Result<Self, String>;
}

/// A type whose values can be encoded as a state, or as the data of an event in a test: any type that serde can write
/// as JSON, or [`Raw`].
pub trait Encode: Sized {
    /// Encodes the value. The error describes the fault in words.
    fn encode(self) -> Result<Vec<u8>, String>;
}

impl<T: DeserializeOwned> Decode for T {
    fn decode(bytes: Vec<u8>) -> Result<Self, String> {
        // Empty data is decoded as `null`, which `()` and `Option` accept.
        let json = if bytes.is_empty() { b"null" } else { bytes.as_slice() };
        serde_json::from_slice(json).map_err(|error| error.to_string())
    }
}

impl<T: Serialize> Encode for T {
    fn encode(self) -> Result<Vec<u8>, String> {
        serde_json::to_vec(&self).map_err(|error| error.to_string())
    }
}

/// Bytes without conversion.
///
/// Use this type for the data of an [`Event`](crate::Event) if a handler has many event types with different formats:
/// the handler then selects the format by `event.kind`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Raw(
    /// The bytes.
    pub Vec<u8>,
);

impl Raw {
    /// Decodes the bytes as JSON. The result may borrow from the bytes.
    pub fn json<'a, T: Deserialize<'a>>(&'a self) -> serde_json::Result<T> {
        serde_json::from_slice(&self.0)
    }

    /// Decodes the bytes as a state, for a handler that receives its state as bytes.
    ///
    /// # Panics
    /// Panics if the state cannot be decoded, with the same message as for a handler that receives only this type of
    /// state.
    pub fn decode_state<S: Decode>(self) -> S {
        read_state(self.0)
    }
}

impl Decode for Raw {
    fn decode(bytes: Vec<u8>) -> Result<Self, String> {
        Ok(Self(bytes))
    }
}

impl Encode for Raw {
    fn encode(self) -> Result<Vec<u8>, String> {
        Ok(self.0)
    }
}

impl Deref for Raw {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl<T: Into<Vec<u8>>> From<T> for Raw {
    fn from(bytes: T) -> Self {
        Self(bytes.into())
    }
}

impl fmt::Debug for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Raw({:?})", String::from_utf8_lossy(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding_reverses_encoding() {
        let json = (7u64, "seven").encode().unwrap();
        assert_eq!(json, br#"[7,"seven"]"#);
        assert_eq!(<(u64, String)>::decode(json).unwrap(), (7, "seven".to_string()));

        let raw = Raw::from([0xff, 0x00]);
        assert_eq!(Raw::decode(raw.clone().encode().unwrap()).unwrap(), raw);
    }

    #[test]
    fn empty_data_is_null() {
        assert_eq!(<()>::decode(vec![]), Ok(()));
        assert_eq!(Option::<u64>::decode(vec![]), Ok(None));
        assert!(u64::decode(vec![]).unwrap_err().contains("null"));
    }

    #[test]
    fn raw_json_can_borrow() {
        let raw = Raw::from(r#"{"name":"x"}"#);
        let map: std::collections::BTreeMap<&str, &str> = raw.json().unwrap();
        assert_eq!(map["name"], "x");
    }
}
