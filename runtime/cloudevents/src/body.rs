//! Decodes the events in the body of a request. If one event of a body is invalid, this module must reject the whole
//! body.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use ordain_core::Event;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::blank::{is_blank, trim_blanks};
use crate::{ContentMode, DecodeError, EventDecoder, decode_http};

/// Maximum number of invalid events that an error names.
pub const NAMED_EVENTS_LIMIT: usize = 100;

/// The events of a body, each with its place in the body.
#[derive(Debug)]
pub struct BodyEvents {
    /// The events, in the order of the body.
    pub events: Vec<Arc<Event>>,
    /// The meaning of the numbers in `places`: `index` for an array, `line` for a body with one event per line, `None`
    /// for a single event.
    pub place_name: Option<&'static str>,
    /// The place of each event in the body, in the order of `events`.
    pub places: Vec<usize>,
}

/// An invalid event of a body.
#[derive(Debug)]
pub struct InvalidEvent {
    /// Place of the event in the body: an index, or the number of a line; 0 for a single event.
    pub place: usize,
    /// Key of the event, if it could be read.
    pub key: Option<String>,
    /// Sequence of the event, if it could be read.
    pub sequence: Option<u64>,
    /// The description of the fault, and the valid form.
    pub message: String,
}

/// The reason why a body is rejected as a whole.
#[derive(Debug)]
pub enum BodyError {
    /// The body does not contain events in the format that its headers name.
    Unreadable(String),
    /// The body contains more events than the limit.
    TooMany {
        /// The maximum number of events.
        limit: usize,
    },
    /// Some events of the body are invalid.
    InvalidEvents {
        /// The meaning of the numbers in [`InvalidEvent::place`], as in [`BodyEvents::place_name`].
        place_name: Option<&'static str>,
        /// Number of invalid events.
        wrong: usize,
        /// Number of all events.
        total: usize,
        /// The first invalid events, up to [`NAMED_EVENTS_LIMIT`].
        named: Vec<InvalidEvent>,
    },
}

/// Decodes the events of a body. Rejects a body with more than `limit` events. `check` returns the fault of a decoded
/// event, or `None` for an event without a fault.
pub fn decode_body(
    decoder: &EventDecoder,
    form: ContentMode,
    headers: &HeaderMap,
    body: &Bytes,
    limit: usize,
    check: impl Fn(&Event) -> Option<String>,
) -> Result<BodyEvents, BodyError> {
    let place_name = match form {
        ContentMode::Binary | ContentMode::Structured => None,
        ContentMode::Batch => Some("index"),
        ContentMode::Lines => Some("line"),
    };
    let found = BodyEvents { events: Vec::new(), place_name, places: Vec::new() };
    let mut reading = BodyReader { valid: found, invalid: Vec::new(), invalid_count: 0 };
    match form {
        ContentMode::Structured if is_blank(body) => {
            return Err(BodyError::Unreadable(
                "the body is empty: it must be a CloudEvent in JSON".to_owned(),
            ));
        }
        ContentMode::Structured if trim_blanks(body).starts_with(b"[") => {
            return Err(BodyError::Unreadable(
                "the body is an array, but must be a single event: use application/cloudevents-batch+json for an array"
                    .to_owned(),
            ));
        }
        ContentMode::Binary | ContentMode::Structured => {
            reading.add(0, decode_http(decoder, headers, body), &check);
        }
        ContentMode::Batch => {
            let parts = batch_elements(body, limit).map_err(BodyError::Unreadable)?;
            check_count(parts.len(), limit)?;
            for (index, part) in parts.iter().enumerate() {
                reading.add(index, decoder.decode(part.as_bytes()), &check);
            }
        }
        ContentMode::Lines => {
            let lines = (1..).zip(body.split(|byte| *byte == b'\n'));
            let lines = lines.filter(|(_, line)| !is_blank(line));
            check_count(lines.clone().take(limit + 1).count(), limit)?;
            for (number, line) in lines {
                reading.add(number, decoder.decode(line), &check);
            }
        }
    }
    let BodyReader { valid: found, invalid: named, invalid_count: wrong } = reading;
    if wrong > 0 {
        let total = found.events.len() + wrong;
        return Err(BodyError::InvalidEvents { place_name, wrong, total, named });
    }
    Ok(found)
}

/// Returns the JSON of each element of a batch. A batch is a JSON array. If the array has more than `limit` elements,
/// returns the first `limit + 1` elements. Returns a description of the fault if the body is not a JSON array.
pub fn batch_elements(body: &[u8], limit: usize) -> Result<Vec<&str>, String> {
    let body = trim_blanks(body);
    if body.starts_with(b"{") {
        return Err("the body is not a JSON array of CloudEvents, but begins with an object: use \
                    application/cloudevents+json for a single event"
            .to_owned());
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    let parts = BoundedArray { limit }
        .deserialize(&mut json)
        .and_then(|parts| json.end().map(|()| parts))
        .map_err(|error| format!("the body is not a JSON array of CloudEvents: {error}"))?;
    Ok(parts.into_iter().map(RawValue::get).collect())
}

fn check_count(count: usize, limit: usize) -> Result<(), BodyError> {
    if count <= limit { Ok(()) } else { Err(BodyError::TooMany { limit }) }
}

/// A reader of an array's elements. The reader keeps `limit` elements and one more element, which shows that the array
/// exceeds the limit. It skips all later elements to save memory: the reference to a short element takes several times
/// the memory of the element's text.
struct BoundedArray {
    limit: usize,
}

impl<'de> DeserializeSeed<'de> for BoundedArray {
    type Value = Vec<&'de RawValue>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for BoundedArray {
    type Value = Vec<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Self::Value, A::Error> {
        let mut parts = Vec::new();
        while parts.len() <= self.limit {
            let Some(part) = array.next_element()? else { return Ok(parts) };
            parts.push(part);
        }
        while array.next_element::<IgnoredAny>()?.is_some() {}
        Ok(parts)
    }
}

/// The events of a body that have been decoded so far.
struct BodyReader {
    valid: BodyEvents,
    /// The first invalid events, up to [`NAMED_EVENTS_LIMIT`].
    invalid: Vec<InvalidEvent>,
    /// The number of all invalid events.
    invalid_count: usize,
}

impl BodyReader {
    fn add(
        &mut self,
        place: usize,
        read: Result<Event, DecodeError>,
        check: impl Fn(&Event) -> Option<String>,
    ) {
        let wrong = match read {
            Ok(event) => match check(&event) {
                None => {
                    self.valid.places.push(place);
                    return self.valid.events.push(Arc::new(event));
                }
                Some(message) => InvalidEvent {
                    place,
                    key: Some(event.key().to_owned()),
                    sequence: event.sequence(),
                    message,
                },
            },
            Err(DecodeError { key, sequence, message, .. }) => {
                InvalidEvent { place, key, sequence, message }
            }
        };
        self.invalid_count += 1;
        if self.invalid.len() < NAMED_EVENTS_LIMIT {
            self.invalid.push(wrong);
        }
    }
}
