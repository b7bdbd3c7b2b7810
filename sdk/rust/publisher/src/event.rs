//! An event to publish.

use std::time::{SystemTime, UNIX_EPOCH};

use ordain_cloudevents::{ATTRIBUTE_LIMIT, HEADERS_LIMIT, HEADERS_SIZE_LIMIT};
use ordain_core::EventParts;
use ordain_store::KEY_SIZE_LIMIT;
use serde::Serialize;

use crate::Error;

/// An event to publish.
///
/// The key may have up to 1,024 bytes; type, id, source and content type may have up to 4 KiB each. An event may have
/// up to 128 headers, whose names and values have up to 64 KiB in total. The setting `runtime.event_size` limits the
/// size of the whole event.
///
/// An event gets its time and a random id when it is created. If a program publishes the same `Event`, or a clone of
/// it, a second time, Ordain therefore recognises the repeat. A program may also create the event anew, for example
/// after a crash. Ordain then recognises the repeat only if the program sets the same id and the same source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    key: String,
    kind: String,
    id: String,
    source: String,
    sequence: Option<u64>,
    content_type: String,
    headers: Vec<(String, String)>,
    data: Vec<u8>,
    end: bool,
    time_us: Option<u64>,
}

impl Event {
    /// Creates an event with this key and this type, and with data as JSON.
    ///
    /// # Errors
    /// Fails if the data cannot be written as JSON, for example because it contains a map whose keys are not text.
    pub fn json<T: Serialize + ?Sized>(
        key: impl Into<String>,
        kind: impl Into<String>,
        data: &T,
    ) -> Result<Self, Error> {
        let data = serde_json::to_vec(data).map_err(|error| Error::Data(error.to_string()))?;
        Ok(Self::bytes(key, kind, "application/json", data))
    }

    /// Creates an event with data in any format.
    pub fn bytes(
        key: impl Into<String>,
        kind: impl Into<String>,
        content_type: impl Into<String>,
        data: impl Into<Vec<u8>>,
    ) -> Self {
        Self {
            key: key.into(),
            kind: kind.into(),
            id: ordain_publish::new_id(),
            source: "/ordain/publisher".to_owned(),
            sequence: None,
            content_type: content_type.into(),
            headers: Vec::new(),
            data: data.into(),
            end: false,
            time_us: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .ok()
                .and_then(|time| u64::try_from(time.as_micros()).ok()),
        }
    }

    /// Replaces the random id by the producer's own id. Ordain recognises a repeat of the event by its id and its
    /// source. The id should come from the business, such as the number of a payment.
    #[must_use]
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = id.into();
        self
    }

    /// Sets the sequence of the event. Only a producer that numbers its events itself needs this method.
    #[must_use]
    pub fn sequence(mut self, sequence: u64) -> Self {
        self.sequence = Some(sequence);
        self
    }

    /// Marks the event as the last event of its key.
    #[must_use]
    pub fn last(mut self) -> Self {
        self.end = true;
        self
    }

    /// Sets the name of the producer, a URI. Without this call, the name is `/ordain/publisher`.
    #[must_use]
    pub fn source(mut self, source: impl Into<String>) -> Self {
        self.source = source.into();
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Checks the event, and converts it into an event of the core, which the publisher sends. The error describes the
    /// fault of an invalid event. `event_size` limits the size of the whole event, in bytes.
    pub(crate) fn pack(&self, event_size: usize) -> Result<ordain_core::Event, String> {
        if self.key.is_empty() {
            return Err("the event has no key: each event must have a key".to_owned());
        }
        if self.kind.is_empty() {
            return Err("the event has no type, such as `order.paid`".to_owned());
        }
        if self.id.is_empty() {
            return Err("the id is empty: set an id, or omit `.id()` for a random id".to_owned());
        }
        for (name, text, limit) in [
            ("key", &self.key, KEY_SIZE_LIMIT),
            ("type", &self.kind, ATTRIBUTE_LIMIT),
            ("id", &self.id, ATTRIBUTE_LIMIT),
            ("source", &self.source, ATTRIBUTE_LIMIT),
            ("content type", &self.content_type, ATTRIBUTE_LIMIT),
        ] {
            if text.len() > limit {
                return Err(format!(
                    "the {name} has {} bytes; at most {limit} bytes are allowed",
                    text.len()
                ));
            }
        }
        let size: usize = self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        if self.headers.len() > HEADERS_LIMIT || size > HEADERS_SIZE_LIMIT {
            return Err(format!(
                "the event has {} headers, {size} bytes in total; at most {HEADERS_LIMIT} headers and \
                 {HEADERS_SIZE_LIMIT} bytes in total are allowed",
                self.headers.len()
            ));
        }
        let headers: Vec<(&str, &str)> =
            self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let event = ordain_core::Event::new(&EventParts {
            key: &self.key,
            sequence: self.sequence,
            id: &self.id,
            kind: &self.kind,
            source: &self.source,
            time_us: self.time_us,
            content_type: &self.content_type,
            headers: &headers,
            data: &self.data,
            end: self.end,
        });
        let size = event.memory();
        if size > event_size {
            return Err(format!(
                "the event has {size} bytes; runtime.event_size allows {event_size} bytes"
            ));
        }
        Ok(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_is_checked_before_it_is_published() {
        let right = Event::bytes("a", "test", "text/plain", "data").id("1").sequence(7).last();
        let packed = right.pack(1_000).expect("a valid event");
        assert_eq!((packed.key(), packed.id(), packed.sequence()), ("a", "1", Some(7)));
        assert!(packed.end() && packed.data() == b"data");
        let one = Event::bytes("a", "test", "", "").pack(1_000).expect("a valid event");
        let other = Event::bytes("a", "test", "", "").pack(1_000).expect("a valid event");
        assert_ne!(one.id(), other.id());
        let event = Event::bytes("a", "test", "", "");
        let [first, again] =
            [&event, &event.clone()].map(|event| event.pack(1_000).expect("a valid event"));
        assert_eq!(first.id(), again.id(), "a clone repeats the same event");
        let many = (0..129)
            .fold(Event::bytes("a", "test", "", ""), |event, at| event.header(at.to_string(), ""));
        for (wrong, words) in [
            (Event::bytes("", "test", "", ""), "no key"),
            (Event::bytes("a", "", "", ""), "no type"),
            (Event::bytes("a", "test", "", "").id(""), "id is empty"),
            (many, "129 headers, "),
            (Event::bytes("a", "test", "", "").header("a", "b".repeat(70_000)), "1 headers, 70001"),
            (Event::bytes("a".repeat(2_000), "test", "", ""), "key has 2000 bytes; at most 1024"),
            (Event::bytes("a", "test", "", vec![0; 1_000]), "runtime.event_size allows 1000"),
        ] {
            let error = wrong.pack(1_000).expect_err(words);
            assert!(error.contains(words), "{error}");
        }
    }
}
