//! From the body of a request to events, all of which must be right.

use std::sync::Arc;

use axum::http::{HeaderMap, StatusCode};
use bytes::Bytes;
use ordain_core::Event;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::cloudevents::{Decoder, Form, decode_http};
use crate::http::problem::Problem;

/// Events of a request: as many as a producer gathers in a moment, and few enough that one request is
/// done in time.
const EVENTS: usize = 10_000;
/// Wrong ones that are named.
const NAMED: usize = 100;

/// The events of a body. `wrong` says what is wrong with one that could be read.
pub(super) fn events(
    decoder: &Decoder,
    form: Form,
    headers: &HeaderMap,
    body: &Bytes,
    wrong: impl Fn(&Event) -> Option<String>,
) -> Result<Vec<Arc<Event>>, Problem> {
    let mut found = Found { events: Vec::new(), errors: Vec::new(), wrong: 0 };
    match form {
        Form::Binary | Form::Structured => {
            found.add(None, decode_http(decoder, headers, body), &wrong);
        }
        Form::Batch => {
            let all: Vec<&RawValue> = serde_json::from_slice(body).map_err(|error| {
                Problem::bad(format!("the body is no JSON array of CloudEvents: {error}"))
            })?;
            few_enough(all.len())?;
            for (at, one) in all.iter().enumerate() {
                found.add(Some(("index", at)), decoder.decode(one.get().as_bytes()), &wrong);
            }
        }
        Form::Lines => {
            few_enough(memchr::memchr_iter(b'\n', body).count())?;
            for (number, line) in (1..).zip(body.split(|byte| *byte == b'\n')) {
                if !line.trim_ascii().is_empty() {
                    found.add(Some(("line", number)), decoder.decode(line), &wrong);
                }
            }
        }
    }
    let Found { events, errors, wrong } = found;
    if wrong > 0 {
        let of = events.len() + wrong;
        let words = format!("{wrong} of {of} events are wrong, and none is taken");
        return Err(Problem::bad(words).with_errors(errors));
    }
    Ok(events)
}

fn few_enough(count: usize) -> Result<(), Problem> {
    if count <= EVENTS {
        return Ok(());
    }
    let words = format!("{count} events; a request may have {EVENTS}");
    Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, words))
}

struct Found {
    events: Vec<Arc<Event>>,
    errors: Vec<Value>,
    wrong: usize,
}

impl Found {
    fn add(
        &mut self,
        place: Option<(&str, usize)>,
        read: Result<Event, crate::cloudevents::DecodeError>,
        wrong: impl Fn(&Event) -> Option<String>,
    ) {
        let (key, sequence, detail) = match read {
            Ok(event) => match wrong(&event) {
                None => return self.events.push(Arc::new(event)),
                Some(words) => (Some(event.key().to_owned()), event.sequence(), words),
            },
            Err(error) => (error.key, error.sequence, error.message),
        };
        self.wrong += 1;
        if self.errors.len() < NAMED {
            let mut error = json!({ "detail": detail, "key": key, "sequence": sequence });
            if let Some((name, at)) = place {
                error[name] = at.into();
            }
            self.errors.push(error);
        }
    }
}
