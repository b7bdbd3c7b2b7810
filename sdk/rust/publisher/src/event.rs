//! An event as a producer has it.

use std::time::{SystemTime, UNIX_EPOCH};

use ordain_core::EventParts;
use serde::Serialize;

use crate::Error;

/// The longest texts of an event: as the host takes them in.
const ATTRIBUTE_LIMIT: usize = ordain::cloudevents::ATTRIBUTE_LIMIT;
const KEY_LIMIT: usize = ordain::store::KEY_SIZE_LIMIT;

/// An event to be published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    key: String,
    kind: String,
    id: Option<String>,
    source: String,
    sequence: Option<u64>,
    content_type: String,
    headers: Vec<(String, String)>,
    data: Vec<u8>,
    end: bool,
}

impl Event {
    /// An event of a key and a type, with data as JSON.
    ///
    /// # Errors
    /// JSON cannot hold the data, for example a map whose keys are no text.
    pub fn json<T: Serialize + ?Sized>(
        key: impl Into<String>,
        kind: impl Into<String>,
        data: &T,
    ) -> Result<Self, Error> {
        let data = serde_json::to_vec(data)
            .map_err(|error| Error::Event { at: 0, words: format!("the data: {error}") })?;
        Ok(Self::bytes(key, kind, "application/json", data))
    }

    /// An event with any data.
    pub fn bytes(
        key: impl Into<String>,
        kind: impl Into<String>,
        content_type: impl Into<String>,
        data: impl Into<Vec<u8>>,
    ) -> Self {
        Self {
            key: key.into(),
            kind: kind.into(),
            id: None,
            source: "/ordain/publisher".to_owned(),
            sequence: None,
            content_type: content_type.into(),
            headers: Vec::new(),
            data: data.into(),
            end: false,
        }
    }

    /// With an id, by which it is known when it is published again. Without one each try to publish it is another
    /// event.
    #[must_use]
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// With a number of the producer's own, where it counts itself.
    #[must_use]
    pub fn sequence(mut self, sequence: u64) -> Self {
        self.sequence = Some(sequence);
        self
    }

    /// As the last one of its key.
    #[must_use]
    pub fn last(mut self) -> Self {
        self.end = true;
        self
    }

    /// Who produced it, as a URI.
    #[must_use]
    pub fn source(mut self, source: impl Into<String>) -> Self {
        self.source = source.into();
        self
    }

    /// With one more header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// As it is published; or what is wrong with it.
    pub(crate) fn pack(&self, event_size: usize) -> Result<ordain_core::Event, String> {
        if self.key.is_empty() {
            return Err("it has no key: each event belongs to one".to_owned());
        }
        if self.kind.is_empty() {
            return Err("it has no type, such as `order.paid`".to_owned());
        }
        if self.id.as_deref() == Some("") {
            return Err("its id is empty: give one, or none for a new one".to_owned());
        }
        let id = self.id.clone().unwrap_or_else(new_id);
        for (what, text, limit) in [
            ("key", &self.key, KEY_LIMIT),
            ("type", &self.kind, ATTRIBUTE_LIMIT),
            ("id", &id, ATTRIBUTE_LIMIT),
            ("source", &self.source, ATTRIBUTE_LIMIT),
            ("content type", &self.content_type, ATTRIBUTE_LIMIT),
        ] {
            if text.len() > limit {
                return Err(format!("its {what} has {} bytes; {limit} are allowed", text.len()));
            }
        }
        let headers: Vec<(&str, &str)> =
            self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let event = ordain_core::Event::new(&EventParts {
            key: &self.key,
            sequence: self.sequence,
            id: &id,
            kind: &self.kind,
            source: &self.source,
            time_ms: u64::try_from(time.as_millis()).ok(),
            content_type: &self.content_type,
            headers: &headers,
            data: &self.data,
            end: self.end,
        });
        let size = event.memory();
        if size > event_size {
            return Err(format!("it has {size} bytes; runtime.event_size allows {event_size}"));
        }
        Ok(event)
    }
}

/// One that no other event has.
fn new_id() -> String {
    ordain::publish::new_id()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_checked_before_it_is_published() {
        let right = Event::bytes("a", "test", "text/plain", "data").id("1").sequence(7).last();
        let packed = right.pack(1_000).expect("a right event");
        assert_eq!((packed.key(), packed.id(), packed.sequence()), ("a", "1", Some(7)));
        assert!(packed.end() && packed.data() == b"data");
        let one = Event::bytes("a", "test", "", "").pack(1_000).expect("a right event");
        let other = Event::bytes("a", "test", "", "").pack(1_000).expect("a right event");
        assert_ne!(one.id(), other.id());
        for (wrong, words) in [
            (Event::bytes("", "test", "", ""), "no key"),
            (Event::bytes("a", "", "", ""), "no type"),
            (Event::bytes("a", "test", "", "").id(""), "id is empty"),
            (Event::bytes("a".repeat(2_000), "test", "", ""), "key has 2000 bytes; 1024"),
            (Event::bytes("a", "test", "", vec![0; 1_000]), "runtime.event_size allows 1000"),
        ] {
            let error = wrong.pack(1_000).expect_err(words);
            assert!(error.contains(words), "{error}");
        }
    }
}
