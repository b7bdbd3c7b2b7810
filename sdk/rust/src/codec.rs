//! How bytes become the types of a handler and back: JSON by serde, or as they are.

use std::fmt;
use std::ops::Deref;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// What event data and state can be read as: any deserializable type from JSON, or [`Raw`].
///
/// Another format is a type of your own that implements this instead of serde's traits.
pub trait Decode: Sized {
    /// Reads the bytes, or says in words what is wrong with them.
    fn decode(bytes: Vec<u8>) -> Result<Self, String>;
}

/// What state and message data can be written from: any serializable type as JSON, or [`Raw`].
pub trait Encode: Sized {
    /// Writes the bytes, or says in words why it cannot.
    fn encode(self) -> Result<Vec<u8>, String>;
}

impl<T: DeserializeOwned> Decode for T {
    fn decode(bytes: Vec<u8>) -> Result<Self, String> {
        // No data at all reads as `null`, so that `()` and `Option` take it.
        let json = if bytes.is_empty() { b"null" } else { bytes.as_slice() };
        serde_json::from_slice(json).map_err(|error| error.to_string())
    }
}

impl<T: Serialize> Encode for T {
    fn encode(self) -> Result<Vec<u8>, String> {
        serde_json::to_vec(&self).map_err(|error| error.to_string())
    }
}

/// Bytes as they are.
///
/// As the data of an [`Event`](crate::Event) it suits a handler of many types of event, which
/// chooses by `event.kind` how to read them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Raw(
    /// The bytes.
    pub Vec<u8>,
);

impl Raw {
    /// Reads them as JSON. The result may borrow from them.
    pub fn json<'a, T: Deserialize<'a>>(&'a self) -> serde_json::Result<T> {
        serde_json::from_slice(&self.0)
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
    fn json_and_raw_bytes_come_back_as_they_were() {
        let json = (7u64, "seven").encode().unwrap();
        assert_eq!(json, br#"[7,"seven"]"#);
        assert_eq!(<(u64, String)>::decode(json).unwrap(), (7, "seven".to_string()));

        let raw = Raw::from([0xff, 0x00]);
        assert_eq!(Raw::decode(raw.clone().encode().unwrap()).unwrap(), raw);
    }

    #[test]
    fn no_data_is_null() {
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
