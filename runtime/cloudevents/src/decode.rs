//! Decodes a line or an HTTP request into an event.

mod attribute;
mod data;
mod http;

use std::borrow::Cow;

use ordain_core::{Cause, Event, EventParts, OrderingMode};

use super::blank::trim_blanks;
use super::envelope::{EnvelopeMember, EventEnvelope};
use super::{HEADERS_ATTRIBUTE, HEADERS_LIMIT, HEADERS_SIZE_LIMIT, JSON_MEDIA_TYPE};
use attribute::{EXCERPT_LIMIT, attribute, end, excerpt, json_text, key, time};
use data::{data, value};
pub use http::{ContentMode, content_mode, decode_http};

use ordain_util::text::truncated;

/// The reason why a line, an HTTP request or a delivery of the broker is not a valid event of its stream. The sources
/// turn such data into a dead letter. HTTP and `ordain publish` reject such data.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct DecodeError {
    /// The cause, which the dead letter contains.
    pub cause: Cause,
    /// The description of the fault, and the valid form.
    pub message: String,
    /// Key of the event, if it could be read.
    pub key: Option<String>,
    /// Sequence of the event, if it could be read.
    pub sequence: Option<u64>,
}

/// Size limit of an error of the JSON parser, in bytes. The error may contain a part of the line, and this part may be
/// long.
const ERROR_LIMIT: usize = 4 << 10;

/// The fault of an event that is not UTF-8.
const NOT_UTF8: &str = "the event is not UTF-8: it must be a CloudEvent in JSON";
/// The fault of an event that contains NULs.
const LIKE_UTF16: &str =
    "the event contains NULs, as text in UTF-16 does: it must be a CloudEvent in JSON, in UTF-8";

/// A decoder of a stream's events.
#[derive(Debug, Clone, Copy)]
pub struct EventDecoder {
    /// The ordering of the stream's events. In a `fifo` stream, the decoder treats the producer's sequence as an
    /// ordinary header.
    pub ordering: OrderingMode,
    /// Maximum size of an event, in bytes: the size of its JSON, or in binary mode the size of its body and attributes
    /// together.
    pub event_size: usize,
}

/// A fault without the key and sequence of the event. The caller adds the key and the sequence if they can be read.
struct EventRejection(Cause, String);

type DecodeResult<T> = Result<T, EventRejection>;

fn unreadable<T>(message: impl Into<String>) -> DecodeResult<T> {
    Err(EventRejection(Cause::Unreadable, message.into()))
}

impl EventDecoder {
    /// Decodes a line, without the blanks before and after the event. The sequence of an event in a `sequenced` stream
    /// may be missing: the sequencer decides how to treat such an event.
    pub fn decode(&self, line: &[u8]) -> Result<Event, DecodeError> {
        let anonymous = |EventRejection(cause, message)| DecodeError {
            cause,
            message,
            key: None,
            sequence: None,
        };
        let envelope = self.envelope(trim_blanks(line)).map_err(anonymous)?;
        self.decode_envelope(&envelope, None)
    }

    /// Returns the event of an envelope. `body` is the data of an event in binary mode. In the other modes, `body` is
    /// `None`, and the envelope contains the data.
    fn decode_envelope(
        &self,
        envelope: &EventEnvelope<'_>,
        body: Option<&[u8]>,
    ) -> Result<Event, DecodeError> {
        self.event(envelope, body).map_err(|EventRejection(cause, message)| DecodeError {
            cause,
            message,
            key: key(envelope).ok().map(|(key, _)| key.into_owned()),
            sequence: self.sequence(envelope).ok().flatten(),
        })
    }

    fn envelope<'a>(&self, line: &'a [u8]) -> DecodeResult<EventEnvelope<'a>> {
        if line.len() > self.event_size {
            let size = line.len();
            let limit = self.event_size;
            return unreadable(format!(
                "the event has {size} bytes; runtime.event_size allows {limit} bytes"
            ));
        }
        // JSON never contains a NUL. Text in UTF-16 contains a NUL for each ASCII character.
        let is_utf16 = || line.contains(&0);
        let Ok(text) = std::str::from_utf8(line) else {
            return unreadable(if is_utf16() { LIKE_UTF16 } else { NOT_UTF8 });
        };
        serde_json::from_str(text).or_else(|error| {
            if is_utf16() {
                return unreadable(LIKE_UTF16);
            }
            // For an event on one line, the parser always reports line 1. Remove that number, because the dead letter
            // states the number of the line in the file.
            let error = error.to_string().replace(" at line 1 column ", " at byte ");
            unreadable(truncated(format!("not a CloudEvent in JSON: {error}"), ERROR_LIMIT))
        })
    }

    fn event(&self, envelope: &EventEnvelope<'_>, body: Option<&[u8]>) -> DecodeResult<Event> {
        if let Some(name) = &envelope.duplicate_name {
            let name = truncated(name.to_string(), EXCERPT_LIMIT);
            return unreadable(format!("`{name}` occurs twice: it must occur once"));
        }
        match envelope.raw(EnvelopeMember::SpecVersion) {
            Some("\"1.0\"") => {}
            Some(other) => {
                let other = excerpt(other);
                return unreadable(format!("`specversion` must be \"1.0\", found {other}"));
            }
            None => return unreadable("`specversion` is missing: it must be \"1.0\""),
        }
        let (key, key_member) = key(envelope)?;
        let id = self.id(envelope)?;
        let source = attribute(envelope, EnvelopeMember::Source, "source")?;
        let kind = attribute(envelope, EnvelopeMember::Type, "type")?;
        let content_type = match envelope.raw(EnvelopeMember::DataContentType) {
            Some(_) => attribute(envelope, EnvelopeMember::DataContentType, "datacontenttype")?,
            None if body.is_some() => Cow::Borrowed(""),
            None => Cow::Borrowed(JSON_MEDIA_TYPE),
        };
        let data = match body {
            Some(body) => Cow::Borrowed(body),
            None => data(envelope, &content_type)?,
        };
        let headers = self.headers(envelope, key_member)?;
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (&**name, &**value)).collect();
        Ok(Event::new(&EventParts {
            key: &key,
            sequence: self.sequence(envelope)?,
            id: &id,
            kind: &kind,
            source: &source,
            time_ms: time(envelope)?,
            content_type: &content_type,
            headers: &headers,
            data: &data,
            end: end(envelope)?,
        }))
    }

    fn id<'a>(&self, envelope: &EventEnvelope<'a>) -> DecodeResult<Cow<'a, str>> {
        attribute(envelope, EnvelopeMember::Id, "id").map_err(|EventRejection(cause, message)| {
            match self.ordering {
                OrderingMode::Fifo => EventRejection(
                    Cause::NoId,
                    message + "; a fifo stream needs the id to recognise repeated events",
                ),
                OrderingMode::Sequenced => EventRejection(cause, message),
            }
        })
    }

    fn sequence(&self, envelope: &EventEnvelope<'_>) -> DecodeResult<Option<u64>> {
        if self.ordering == OrderingMode::Fifo {
            return Ok(None);
        }
        attribute::sequence(envelope)
    }

    /// Returns the headers of the event: all attributes that [`Self::event`] does not interpret and that are not
    /// `null`, and the headers that [`HEADERS_ATTRIBUTE`] contains. Returns an error if the headers exceed the limit on
    /// their number or size.
    fn headers<'a>(
        &self,
        envelope: &EventEnvelope<'a>,
        key_member: EnvelopeMember,
    ) -> DecodeResult<Vec<HeaderPair<'a>>> {
        let mut headers = Vec::new();
        let mut push = |name: Cow<'a, str>, raw: Option<&'a str>| {
            if let Some(raw) = raw.filter(|raw| *raw != "null") {
                headers.push((name, value(raw)?));
            }
            Ok(())
        };
        if key_member == EnvelopeMember::PartitionKey {
            push("subject".into(), envelope.raw(EnvelopeMember::Subject))?;
        }
        if self.ordering == OrderingMode::Fifo {
            push("sequence".into(), envelope.raw(EnvelopeMember::Sequence))?;
        }
        for (name, raw) in envelope.extensions.iter().filter(|(name, _)| name != HEADERS_ATTRIBUTE)
        {
            push(name.clone(), Some(raw))?;
        }
        let more = envelope.extensions.iter().find(|(name, _)| name == HEADERS_ATTRIBUTE);
        if let Some((_, raw)) = more.filter(|(_, raw)| *raw != "null") {
            headers.extend(more_headers(raw)?);
        }
        let size: usize = headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        if headers.len() > HEADERS_LIMIT || size > HEADERS_SIZE_LIMIT {
            return unreadable(format!(
                "the event has {} extensions with {size} bytes; at most {HEADERS_LIMIT} extensions with \
                 {HEADERS_SIZE_LIMIT} bytes are allowed",
                headers.len()
            ));
        }
        Ok(headers)
    }
}

type HeaderPair<'a> = (Cow<'a, str>, Cow<'a, str>);

/// Returns the headers in `raw`, the value of [`HEADERS_ATTRIBUTE`].
fn more_headers(raw: &str) -> DecodeResult<Vec<HeaderPair<'static>>> {
    let pairs =
        json_text(raw).and_then(|text| serde_json::from_str::<Vec<(String, String)>>(&text).ok());
    let Some(pairs) = pairs else {
        let found = excerpt(raw);
        return unreadable(format!(
            "`{HEADERS_ATTRIBUTE}` must be a text that contains a JSON array of pairs, such as \
             \"[[\\\"name\\\",\\\"value\\\"]]\", found {found}"
        ));
    };
    Ok(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
}
