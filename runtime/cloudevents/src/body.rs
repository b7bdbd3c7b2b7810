//! From the body of a request to events, all of which must be right.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use ordain_core::Event;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::{DecodeError, Decoder, Form, decode_http};

/// Wrong events that an error names.
pub const NAMED_LIMIT: usize = 100;

/// The events of a body, and where each stands in it.
#[derive(Debug)]
pub struct BodyEvents {
    /// The events, in the order of the body.
    pub events: Vec<Arc<Event>>,
    /// The name of a place: `index` or `line`; `None` where the body is one event.
    pub place_name: Option<&'static str>,
    /// The place of each event.
    pub places: Vec<usize>,
}

/// One wrong event of a body.
#[derive(Debug)]
pub struct WrongEvent {
    /// Where it stands.
    pub place: usize,
    /// Its key, if it could be read.
    pub key: Option<String>,
    /// Its sequence, if it could be read.
    pub sequence: Option<u64>,
    /// The fault, and a right form.
    pub message: String,
}

/// Why a body is refused as a whole.
#[derive(Debug)]
pub enum BodyError {
    /// It holds no events in the form that its headers name.
    Unreadable(String),
    /// It holds more events than the limit.
    TooMany {
        /// The limit.
        limit: usize,
    },
    /// Some of its events are wrong.
    Wrong {
        /// The name of a place, as in [`BodyEvents::place_name`].
        place_name: Option<&'static str>,
        /// The number of wrong events.
        wrong: usize,
        /// The number of all events.
        total: usize,
        /// The first wrong events, up to [`NAMED_LIMIT`].
        named: Vec<WrongEvent>,
    },
}

/// Reads the events of a body, up to `limit`. `check` returns the fault of an event that could be read.
pub fn decode_body(
    decoder: &Decoder,
    form: Form,
    headers: &HeaderMap,
    body: &Bytes,
    limit: usize,
    check: impl Fn(&Event) -> Option<String>,
) -> Result<BodyEvents, BodyError> {
    let place_name = match form {
        Form::Binary | Form::Structured => None,
        Form::Batch => Some("index"),
        Form::Lines => Some("line"),
    };
    let found = BodyEvents { events: Vec::new(), place_name, places: Vec::new() };
    let mut reading = Reading { found, named: Vec::new(), wrong: 0 };
    match form {
        Form::Structured if body.trim_ascii().is_empty() => {
            return Err(BodyError::Unreadable(
                "the body is empty: a CloudEvent in JSON is right".to_owned(),
            ));
        }
        Form::Structured if body.trim_ascii().starts_with(b"[") => {
            return Err(BodyError::Unreadable(
                "the body is an array, and is to be one event: application/cloudevents-batch+json takes many"
                    .to_owned(),
            ));
        }
        Form::Binary | Form::Structured => {
            reading.add(0, decode_http(decoder, headers, body), &check);
        }
        Form::Batch => {
            let mut json = serde_json::Deserializer::from_slice(body);
            let parts = BoundedArray { limit }
                .deserialize(&mut json)
                .and_then(|parts| json.end().map(|()| parts))
                .map_err(|error| {
                    BodyError::Unreadable(format!(
                        "the body is no JSON array of CloudEvents: {error}"
                    ))
                })?;
            check_count(parts.len(), limit)?;
            for (index, part) in parts.iter().enumerate() {
                reading.add(index, decoder.decode(part.get().as_bytes()), &check);
            }
        }
        Form::Lines => {
            check_count(memchr::memchr_iter(b'\n', body).count(), limit)?;
            for (number, line) in (1..).zip(body.split(|byte| *byte == b'\n')) {
                if !line.trim_ascii().is_empty() {
                    reading.add(number, decoder.decode(line), &check);
                }
            }
        }
    }
    let Reading { found, named, wrong } = reading;
    if wrong > 0 {
        let total = found.events.len() + wrong;
        return Err(BodyError::Wrong { place_name, wrong, total, named });
    }
    Ok(found)
}

fn check_count(count: usize, limit: usize) -> Result<(), BodyError> {
    if count <= limit { Ok(()) } else { Err(BodyError::TooMany { limit }) }
}

/// Reads the parts of an array. Those behind the first one above the limit are skipped: each takes
/// several times its bytes in memory.
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

struct Reading {
    found: BodyEvents,
    named: Vec<WrongEvent>,
    wrong: usize,
}

impl Reading {
    fn add(
        &mut self,
        place: usize,
        read: Result<Event, DecodeError>,
        check: impl Fn(&Event) -> Option<String>,
    ) {
        let wrong = match read {
            Ok(event) => match check(&event) {
                None => {
                    self.found.places.push(place);
                    return self.found.events.push(Arc::new(event));
                }
                Some(message) => WrongEvent {
                    place,
                    key: Some(event.key().to_owned()),
                    sequence: event.sequence(),
                    message,
                },
            },
            Err(DecodeError { key, sequence, message, .. }) => {
                WrongEvent { place, key, sequence, message }
            }
        };
        self.wrong += 1;
        if self.named.len() < NAMED_LIMIT {
            self.named.push(wrong);
        }
    }
}
