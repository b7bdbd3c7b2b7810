//! Decodes a line or an HTTP request into an event.

mod attribute;
mod data;
mod http;
mod names;
mod place;

use std::borrow::Cow;
use std::sync::Arc;

use ordain_config::{EventLocations, Place, ValueLocation};
use ordain_core::{Cause, Event, EventParts, OrderingMode};
use serde::de::IgnoredAny;

use super::blank::trim_blanks;
use super::envelope::{EnvelopeMember, EventEnvelope};
use super::id::{content_id, unique_id};
use super::located::{
    LocatedId, LocationFault, PlaceReader, describe_missing_id, located_id, located_key,
    located_sequence, located_text, located_time,
};
use super::{
    ATTRIBUTE_LIMIT, HEADERS_ATTRIBUTE, HEADERS_LIMIT, HEADERS_SIZE_LIMIT, JSON_MEDIA_TYPE,
};
pub(super) use attribute::json_text;
use attribute::{EXCERPT_LIMIT, attribute, end, excerpt, key, lenient_time, time};
use data::{data, value};
pub use http::{ContentMode, cloudevents_mode, content_mode, decode_http};
use place::EnvelopeReader;

use ordain_util::text::truncated;

/// The reason why a line, an HTTP request or a delivery of the broker is not a valid event of its stream. A source
/// turns such data into a dead letter. The listener for HTTP and `ordain publish` reject such data.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct DecodeError {
    /// The cause in the dead letter.
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
const NOT_UTF8_ERROR: &str = "the event is not UTF-8: it must be a CloudEvent in JSON";
/// The fault of an event that contains NULs.
const UTF16_ERROR: &str =
    "the event contains NULs, as text in UTF-16 does: it must be a CloudEvent in JSON, in UTF-8";

/// A decoder of a stream's events.
#[derive(Debug, Clone)]
pub struct EventDecoder {
    /// The ordering of the stream's events. In a `fifo` stream, the decoder treats the producer's sequence as an
    /// ordinary header.
    pub ordering: OrderingMode,
    /// Maximum size of an event, in bytes: the size of its JSON, or in binary mode the size of its body and attributes
    /// together.
    pub event_size: usize,
    /// The places of the key, id, sequence, type and time; `None` if all of them are in the attributes that CloudEvents
    /// and Ordain define for them.
    pub locations: Option<Arc<EventLocations>>,
}

/// A message whose body is an event in structured mode.
#[derive(Clone, Copy)]
pub struct EventCarrier<'a> {
    /// The reader of the routing key, the headers and the properties of the message.
    pub places: &'a dyn PlaceReader,
    /// Headers of the message, with their values. The event gets these headers, except the header that contains the
    /// whole key. If a property contains the whole key, the event does not get the header with the name
    /// [`MessageProperty::header_name`](ordain_config::MessageProperty::header_name).
    pub headers: &'a [(&'a str, &'a str)],
}

/// A fault without the key and sequence of the event. The caller adds the key and the sequence if they can be read.
#[derive(Clone)]
struct EventRejection(Cause, String);

impl EventRejection {
    fn of(LocationFault { cause, message }: LocationFault) -> Self {
        Self(cause, message)
    }

    /// Returns the error of an event whose key and sequence cannot be read.
    fn anonymous(self) -> DecodeError {
        let Self(cause, message) = self;
        DecodeError { cause, message, key: None, sequence: None }
    }
}

type DecodeResult<T> = Result<T, EventRejection>;

fn unreadable<T>(message: impl Into<String>) -> DecodeResult<T> {
    Err(EventRejection(Cause::Unreadable, message.into()))
}

/// The key of an event, and the place that contains the whole key, if this place is an attribute, a header or a
/// property.
struct EventKey<'a> {
    text: Cow<'a, str>,
    /// The name of the attribute that contains the whole key.
    attribute: Option<&'a str>,
    /// The name of the header, or the header name of the property, that contains the whole key. The header or property
    /// belongs to the message around the event.
    outer_header: Option<&'a str>,
}

/// The media type and the data of an event.
struct Payload<'a> {
    content_type: Cow<'a, str>,
    data: Cow<'a, [u8]>,
}

impl EventDecoder {
    /// Creates a decoder of events whose key, id, sequence, type and time are in the attributes that CloudEvents and
    /// Ordain define for them.
    pub const fn new(ordering: OrderingMode, event_size: usize) -> Self {
        Self { ordering, event_size, locations: None }
    }

    /// Sets the places of the key, id, sequence, type and time.
    #[must_use]
    pub fn with_locations(mut self, locations: EventLocations) -> Self {
        self.locations = (!locations.is_default()).then(|| Arc::new(locations));
        self
    }

    fn locations(&self) -> &EventLocations {
        static DEFAULT: EventLocations = EventLocations::DEFAULT;
        self.locations.as_deref().unwrap_or(&DEFAULT)
    }

    /// Decodes a line, and ignores the blanks before and after the event. The sequence of an event in a `sequenced`
    /// stream may be missing: the sequencer decides how to treat such an event.
    pub fn decode(&self, line: &[u8]) -> Result<Event, DecodeError> {
        let envelope = self.envelope(trim_blanks(line)).map_err(EventRejection::anonymous)?;
        self.decode_envelope(&envelope, None, None)
    }

    /// Decodes the body of a message. The body is an event in structured mode. The producer of a message receives no
    /// answer, so a time that cannot be read counts as missing.
    pub fn decode_carried(
        &self,
        body: &[u8],
        carrier: EventCarrier<'_>,
    ) -> Result<Event, DecodeError> {
        let envelope = self.envelope(trim_blanks(body)).map_err(EventRejection::anonymous)?;
        self.decode_envelope(&envelope, None, Some(carrier))
    }

    /// Returns the event of an envelope. `body` is the data of an event in binary mode. In the other modes, `body` is
    /// `None`, and the envelope contains the data. `carrier` is the message that contains the envelope, if there is
    /// one.
    fn decode_envelope(
        &self,
        envelope: &EventEnvelope<'_>,
        body: Option<&[u8]>,
        carrier: Option<EventCarrier<'_>>,
    ) -> Result<Event, DecodeError> {
        self.event(envelope, body, carrier).map_err(|EventRejection(cause, message)| {
            // The places of the key and the sequence can be in the data.
            let is_lenient = carrier.is_some();
            let payload =
                self.locations.as_ref().and_then(|_| payload(envelope, body, is_lenient).ok());
            let data = payload.as_ref().map_or::<&[u8], _>(&[], |payload| &payload.data);
            let outside = carrier.map(|carrier| carrier.places);
            let reader = EnvelopeReader { envelope, data, outside };
            DecodeError {
                cause,
                message,
                key: self.key(&reader).ok().map(|key| key.text.into_owned()),
                sequence: self.sequence(&reader).ok().flatten(),
            }
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
            return unreadable(if is_utf16() { UTF16_ERROR } else { NOT_UTF8_ERROR });
        };
        serde_json::from_str(text).or_else(|error| {
            if is_utf16() {
                return unreadable(UTF16_ERROR);
            }
            // For an event on one line, the parser always reports line 1. Remove that number, because the dead letter
            // states the number of the line in the file.
            let error = error.to_string().replace(" at line 1 column ", " at byte ");
            let error = truncated(format!("not a CloudEvent in JSON: {error}"), ERROR_LIMIT);
            unreadable(error + hint_of_form(text))
        })
    }

    fn event(
        &self,
        envelope: &EventEnvelope<'_>,
        body: Option<&[u8]>,
        carrier: Option<EventCarrier<'_>>,
    ) -> DecodeResult<Event> {
        if let Some(name) = &envelope.duplicate_name {
            let name = truncated(name.to_string(), EXCERPT_LIMIT);
            return unreadable(format!("`{name}` occurs twice: it must occur once"));
        }
        self.check_names(envelope)?;
        match envelope.raw(EnvelopeMember::SpecVersion) {
            Some("\"1.0\"") => {}
            Some(other) => {
                let other = excerpt(other);
                return unreadable(format!("`specversion` must be \"1.0\", found {other}"));
            }
            None => return unreadable("`specversion` is missing: it must be \"1.0\""),
        }
        let payload = payload(envelope, body, carrier.is_some());
        if let (Some(_), Err(rejection)) = (&self.locations, &payload) {
            // A location can name a place in the data, so the data must be readable.
            return Err(rejection.clone());
        }
        let data = payload.as_ref().map_or::<&[u8], _>(&[], |payload| &payload.data);
        let reader =
            EnvelopeReader { envelope, data, outside: carrier.map(|carrier| carrier.places) };
        let key = self.key(&reader)?;
        let id = self.id(&reader, &key.text)?;
        let source = attribute(envelope, EnvelopeMember::Source, "source")?;
        let kind = self.kind(&reader)?;
        let Payload { content_type, data } = payload.as_ref().map_err(Clone::clone)?;
        let outer_headers = carrier.map_or(&[][..], |carrier| carrier.headers);
        let headers = self.headers(envelope, &key, outer_headers)?;
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (&**name, &**value)).collect();
        Ok(Event::new(&EventParts {
            key: &key.text,
            sequence: self.sequence(&reader)?,
            id: &id,
            kind: &kind,
            source: &source,
            time_us: match &self.locations().time {
                Some(location) => located_time(&reader, location),
                None if carrier.is_some() => lenient_time(envelope),
                None => time(envelope)?,
            },
            content_type,
            headers: &headers,
            data,
            end: end(envelope)?,
        }))
    }

    fn key<'r>(&'r self, reader: &'r EnvelopeReader<'_>) -> DecodeResult<EventKey<'r>> {
        let Some(location) = &self.locations().key else {
            let (text, attribute) = key(reader.envelope)?;
            return Ok(EventKey { text, attribute: Some(attribute), outer_header: None });
        };
        let key = located_key(reader, location).map_err(EventRejection::of)?;
        let (attribute, outer_header) = match key.place {
            Some(Place::Attribute(name)) => (Some(name.as_str()), None),
            Some(Place::Header(name)) => (None, Some(name.as_str())),
            Some(Place::Property(property)) => (None, Some(property.header_name())),
            _ => (None, None),
        };
        Ok(EventKey { text: key.text, attribute, outer_header })
    }

    /// Returns the id of the event.
    fn id<'r>(&self, reader: &'r EnvelopeReader<'_>, key: &str) -> DecodeResult<Cow<'r, str>> {
        let Some(location) = &self.locations().id else {
            return self.default_id(reader.envelope);
        };
        match located_id(reader, location) {
            LocatedId::Text(id) => within_limit("id", id),
            LocatedId::Content => {
                let kind = self.kind(reader)?;
                Ok(Cow::Owned(content_id(key, &kind, reader.data)))
            }
            LocatedId::Unique => Ok(Cow::Owned(unique_id())),
            LocatedId::Missing => {
                let message = describe_missing_id(reader, location, self.ordering);
                Err(EventRejection(Cause::NoId, message))
            }
        }
    }

    fn default_id<'a>(&self, envelope: &EventEnvelope<'a>) -> DecodeResult<Cow<'a, str>> {
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

    /// Returns the type of the event. If the setting `type` names places, an event without a type has an empty type.
    fn kind<'r>(&self, reader: &'r EnvelopeReader<'_>) -> DecodeResult<Cow<'r, str>> {
        match &self.locations().kind {
            None => attribute(reader.envelope, EnvelopeMember::Type, "type"),
            Some(location) => {
                within_limit("type", located_text(reader, location).unwrap_or_default())
            }
        }
    }

    fn sequence(&self, reader: &EnvelopeReader<'_>) -> DecodeResult<Option<u64>> {
        match &self.locations().sequence {
            _ if self.ordering == OrderingMode::Fifo => Ok(None),
            None => attribute::sequence(reader.envelope),
            Some(location) => located_sequence(reader, location).map_err(EventRejection::of),
        }
    }

    /// Returns the headers of the event: all attributes that [`Self::event`] does not interpret and that are not
    /// `null`, the headers in [`HEADERS_ATTRIBUTE`], and `outer_headers`. `outer_headers` are the headers of the
    /// message around the event. The attributes `subject` and `partitionkey` are no headers if they contain the key. If
    /// an attribute with another name contains the key, this attribute remains a header. A dead letter contains the
    /// headers of its event. If an operator sends the dead letter back to the stream, the stream can therefore read the
    /// key from the header. Returns an error if the headers exceed the limit on their number or size.
    fn headers<'a>(
        &self,
        envelope: &EventEnvelope<'a>,
        key: &EventKey<'_>,
        outer_headers: &'a [(&'a str, &'a str)],
    ) -> DecodeResult<Vec<HeaderPair<'a>>> {
        let locations = self.locations();
        let mut headers = Vec::new();
        let mut push = |name: Cow<'a, str>, raw: Option<&'a str>| {
            if let Some(raw) = raw.filter(|raw| *raw != "null") {
                headers.push((name, value(raw)?));
            }
            Ok(())
        };
        let is_key = |name| key.attribute == Some(name);
        for (name, member, is_interpreted) in [
            ("subject", EnvelopeMember::Subject, is_key("subject")),
            ("partitionkey", EnvelopeMember::PartitionKey, is_key("partitionkey")),
            ("sequence", EnvelopeMember::Sequence, self.is_numbered()),
            ("id", EnvelopeMember::Id, self.is_default_id()),
            ("type", EnvelopeMember::Type, is_default_place(locations.kind.as_ref(), "type")),
            ("time", EnvelopeMember::Time, is_default_place(locations.time.as_ref(), "time")),
        ] {
            if !is_interpreted {
                push(name.into(), envelope.raw(member))?;
            }
        }
        for (name, raw) in &envelope.extensions {
            if name != HEADERS_ATTRIBUTE {
                push(name.clone(), Some(raw))?;
            }
        }
        let more = envelope.extensions.iter().find(|(name, _)| name == HEADERS_ATTRIBUTE);
        if let Some((_, raw)) = more.filter(|(_, raw)| *raw != "null") {
            headers.extend(more_headers(raw)?);
        }
        let outer = outer_headers.iter().filter(|(name, _)| key.outer_header != Some(name));
        headers.extend(outer.map(|(name, value)| ((*name).into(), (*value).into())));
        let size: usize = headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        if headers.len() > HEADERS_LIMIT || size > HEADERS_SIZE_LIMIT {
            return unreadable(format!(
                "the event has {} extensions, {size} bytes in total; at most {HEADERS_LIMIT} extensions and \
                 {HEADERS_SIZE_LIMIT} bytes in total are allowed",
                headers.len()
            ));
        }
        Ok(headers)
    }
}

/// Returns a hint if the text shows a usual fault in the form of the events; otherwise an empty text.
fn hint_of_form(text: &str) -> &'static str {
    match text {
        "{" => {
            ". The line has only the beginning of an event: write each event on one line, for example with `jq -c .`"
        }
        array if array.starts_with('[') => {
            ". An array is not an event: write each event on a line of its own, for example with `jq -c '.[]'`"
        }
        _ => hint_of_second_event(text),
    }
}

/// Returns a hint if the text contains a whole JSON object and then the beginning of another object; otherwise an empty
/// text. `curl -d @FILE` removes the line ends of a file, so that all its events are on one line.
fn hint_of_second_event(text: &str) -> &'static str {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
    if !text.starts_with('{') || !matches!(values.next(), Some(Ok(_))) {
        return "";
    }
    let rest = &text[values.byte_offset()..];
    let second = rest.trim_ascii_start();
    if !second.starts_with('{') {
        return "";
    }
    if rest[..rest.len() - second.len()].contains('\n') {
        return ". A second event follows: to send several events, one per line, use the content type \
                application/x-ndjson";
    }
    ". A second event follows on the same line: write each event on a line of its own. `curl -d` removes the line ends \
     of a file: use `curl --data-binary`"
}

/// Returns whether the decoder reads a value first from the attribute `name`, its default place.
fn is_default_place(location: Option<&ValueLocation>, name: &str) -> bool {
    location.is_none_or(
        |places| matches!(places.0.first(), Some(Place::Attribute(first)) if first == name),
    )
}

/// Returns the media type and the data of an event. `body` is the data of an event in binary mode. If `is_lenient` is
/// true, a media type that cannot be read counts as missing.
fn payload<'a>(
    envelope: &EventEnvelope<'a>,
    body: Option<&'a [u8]>,
    is_lenient: bool,
) -> DecodeResult<Payload<'a>> {
    let named = envelope
        .raw(EnvelopeMember::DataContentType)
        .map(|_| attribute(envelope, EnvelopeMember::DataContentType, "datacontenttype"))
        .filter(|content_type| !is_lenient || content_type.is_ok());
    let content_type = match named {
        Some(content_type) => content_type?,
        None if body.is_some() => Cow::Borrowed(""),
        None => Cow::Borrowed(JSON_MEDIA_TYPE),
    };
    let data = match body {
        Some(body) => Cow::Borrowed(body),
        None => data(envelope, &content_type)?,
    };
    Ok(Payload { content_type, data })
}

/// Returns `text`, the value in a place. Fails if the value is longer than [`ATTRIBUTE_LIMIT`].
fn within_limit<'a>(name: &str, text: Cow<'a, str>) -> DecodeResult<Cow<'a, str>> {
    if text.len() > ATTRIBUTE_LIMIT {
        let size = text.len();
        return unreadable(format!(
            "the {name} has {size} bytes; at most {ATTRIBUTE_LIMIT} bytes are allowed"
        ));
    }
    Ok(text)
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
