//! From the body of a request to events, all of which must be right.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use axum::http::{HeaderMap, StatusCode};
use bytes::Bytes;
use ordain_core::Event;
use serde::de::{Deserialize, Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::cloudevents::{DecodeError, Decoder, Form, decode_http};
use crate::config::REQUEST_EVENTS as EVENTS;
use crate::http::problem::Problem;

/// Wrong ones that are named.
pub(super) const NAMED: usize = 100;

/// The events of a body, and where each stands in it.
pub(crate) struct Found {
    pub(crate) events: Vec<Arc<Event>>,
    /// What a place is called; `None` where there is but one.
    place: Option<&'static str>,
    /// Of each event.
    places: Vec<usize>,
}

impl Found {
    /// What is wrong with one of the events, for who has sent it.
    pub(super) fn error(
        &self,
        at: usize,
        key: Option<&str>,
        sequence: Option<u64>,
        detail: &str,
    ) -> Value {
        error(self.place, self.places[at], key, sequence, detail)
    }
}

fn error(
    name: Option<&str>,
    place: usize,
    key: Option<&str>,
    sequence: Option<u64>,
    detail: &str,
) -> Value {
    let mut error = json!({ "detail": detail, "key": key, "sequence": sequence });
    if let Some(name) = name {
        error[name] = place.into();
    }
    error
}

/// The events of a body. `wrong` says what is wrong with one that could be read.
pub(crate) fn events(
    decoder: &Decoder,
    form: Form,
    headers: &HeaderMap,
    body: &Bytes,
    wrong: impl Fn(&Event) -> Option<String>,
) -> Result<Found, Problem> {
    let place = match form {
        Form::Binary | Form::Structured => None,
        Form::Batch => Some("index"),
        Form::Lines => Some("line"),
    };
    let found = Found { events: Vec::new(), place, places: Vec::new() };
    let mut reading = Reading { found, errors: Vec::new(), wrong: 0 };
    match form {
        Form::Structured if body.trim_ascii().is_empty() => {
            return Err(Problem::bad("the body is empty: a CloudEvent in JSON is right"));
        }
        Form::Structured if body.trim_ascii().starts_with(b"[") => {
            return Err(Problem::bad(
                "the body is an array, and is to be one event: application/cloudevents-batch+json takes many",
            ));
        }
        Form::Binary | Form::Structured => {
            reading.add(0, decode_http(decoder, headers, body), &wrong);
        }
        Form::Batch => {
            let few: Few<'_> = serde_json::from_slice(body).map_err(|error| {
                Problem::bad(format!("the body is no JSON array of CloudEvents: {error}"))
            })?;
            few_enough(few.0.len())?;
            for (at, one) in few.0.iter().enumerate() {
                reading.add(at, decoder.decode(one.get().as_bytes()), &wrong);
            }
        }
        Form::Lines => {
            few_enough(memchr::memchr_iter(b'\n', body).count())?;
            for (number, line) in (1..).zip(body.split(|byte| *byte == b'\n')) {
                if !line.trim_ascii().is_empty() {
                    reading.add(number, decoder.decode(line), &wrong);
                }
            }
        }
    }
    let Reading { found, errors, wrong } = reading;
    if wrong > 0 {
        let of = found.events.len() + wrong;
        let words = format!("{wrong} of {of} events are wrong, and none is taken");
        return Err(Problem::bad(words).with_errors(errors));
    }
    Ok(found)
}

fn few_enough(count: usize) -> Result<(), Problem> {
    if count <= EVENTS {
        return Ok(());
    }
    let words = format!("more than {EVENTS} events: a request may have so many");
    Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, words))
}

/// The parts of an array, which are passed over after one too many: each takes several times its bytes.
struct Few<'a>(Vec<&'a RawValue>);

impl<'de: 'a, 'a> Deserialize<'de> for Few<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_seq(FewOf(PhantomData))
    }
}

struct FewOf<'a>(PhantomData<&'a RawValue>);

impl<'de: 'a, 'a> Visitor<'de> for FewOf<'a> {
    type Value = Few<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Few<'a>, A::Error> {
        let mut few = Vec::new();
        while few.len() <= EVENTS {
            let Some(one) = all.next_element()? else { return Ok(Few(few)) };
            few.push(one);
        }
        while all.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Few(few))
    }
}

struct Reading {
    found: Found,
    errors: Vec<Value>,
    wrong: usize,
}

impl Reading {
    fn add(
        &mut self,
        place: usize,
        read: Result<Event, DecodeError>,
        wrong: impl Fn(&Event) -> Option<String>,
    ) {
        let (key, sequence, detail) = match read {
            Ok(event) => match wrong(&event) {
                None => {
                    self.found.places.push(place);
                    return self.found.events.push(Arc::new(event));
                }
                Some(words) => (Some(event.key().to_owned()), event.sequence(), words),
            },
            Err(error) => (error.key, error.sequence, error.message),
        };
        self.wrong += 1;
        if self.errors.len() < NAMED {
            self.errors.push(error(self.found.place, place, key.as_deref(), sequence, &detail));
        }
    }
}
