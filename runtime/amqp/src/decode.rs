//! Converts a delivery into an event: from AMQP's own properties and headers, or from CloudEvents in binary mode (a
//! header `cloudEvents:NAME` or `cloudEvents_NAME` for each attribute).
//!
//! This module validates a delivery before the delivery becomes an event. If this module rejects a delivery, the error
//! describes the limit or the valid form.

use std::borrow::Cow;

use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use ordain_core::{Cause, Event, EventParts, OrderingMode, SEQUENCE_END};

use super::header::{
    ATTRIBUTE_PREFIXES, CE_END_HEADER, CE_SEQUENCE_HEADER, END_HEADER, KEY_HEADER, QUEUE_HEADERS,
    SEQUENCE_HEADER, TIME_MS_HEADER,
};
use super::value::{as_bool, as_integer, as_text, json, not_utf8};
use ordain_cloudevents::{
    ATTRIBUTE_LIMIT, DecodeError, HEADERS_LIMIT, HEADERS_SIZE_LIMIT, parse_time,
};
use ordain_config::KeyLocation;
use ordain_store::KEY_SIZE_LIMIT;

/// A decoder of a stream's events.
#[derive(Debug, Clone)]
pub struct DeliveryDecoder {
    /// The CloudEvents source of the stream's own dead letters, as [`source_of`](ordain_cloudevents::source_of) returns
    /// it.
    pub letter_source: String,
    /// The stream's ordering. On a `fifo` stream (ordered by arrival), the decoder treats a sequence header as an
    /// ordinary header.
    pub ordering: OrderingMode,
    /// Maximum total size of a message's body and of its headers that have no meaning for Ordain, in bytes.
    pub event_size: usize,
    /// The part of a message that contains the key.
    pub key: KeyLocation,
}

/// The cause and message of a rejection, before the event's key and sequence are added.
struct DeliveryRejection(Cause, String);

type DeliveryResult<T> = Result<T, DeliveryRejection>;

fn reject<T>(cause: Cause, message: impl Into<String>) -> DeliveryResult<T> {
    Err(DeliveryRejection(cause, message.into()))
}

/// The values of the headers that have a meaning for Ordain, and all other headers.
#[derive(Default)]
struct EventHeaders<'a> {
    sequence: Option<&'a AMQPValue>,
    end: Option<&'a AMQPValue>,
    time_ms: Option<&'a AMQPValue>,
    id: Option<&'a AMQPValue>,
    kind: Option<&'a AMQPValue>,
    source: Option<&'a AMQPValue>,
    time: Option<&'a AMQPValue>,
    key: Option<&'a AMQPValue>,
    ce_sequence: Option<&'a AMQPValue>,
    ce_end: Option<&'a AMQPValue>,
    content_type: Option<&'a AMQPValue>,
    others: Vec<(&'a str, &'a AMQPValue)>,
}

impl<'a> EventHeaders<'a> {
    fn of(delivery: &'a Delivery, decoder: &DeliveryDecoder) -> Self {
        let mut headers = Self::default();
        let sequenced = decoder.ordering == OrderingMode::Sequenced;
        let table = delivery.properties.headers().as_ref();
        for (name, value) in table.into_iter().flat_map(FieldTable::inner) {
            let name = name.as_str();
            if QUEUE_HEADERS.contains(&name) {
                continue;
            }
            if matches!(&decoder.key, KeyLocation::Header(key) if key == name) {
                headers.key = Some(value);
                continue;
            }
            let attribute = ATTRIBUTE_PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix));
            let place = match attribute.unwrap_or(name) {
                SEQUENCE_HEADER if attribute.is_none() && sequenced => &mut headers.sequence,
                END_HEADER if attribute.is_none() => &mut headers.end,
                TIME_MS_HEADER if attribute.is_none() => &mut headers.time_ms,
                "id" if attribute.is_some() => &mut headers.id,
                "type" if attribute.is_some() => &mut headers.kind,
                "source" if attribute.is_some() => &mut headers.source,
                "time" if attribute.is_some() => &mut headers.time,
                "datacontenttype" if attribute.is_some() => &mut headers.content_type,
                "sequence" if attribute.is_some() && sequenced => &mut headers.ce_sequence,
                "endofsequence" if attribute.is_some() => &mut headers.ce_end,
                // `specversion` describes the encoding of the event, not the event.
                "specversion" if attribute.is_some() => continue,
                name => {
                    headers.others.push((name, value));
                    continue;
                }
            };
            *place = Some(value);
        }
        headers
    }
}

impl DeliveryDecoder {
    /// Decodes one delivery. An event of a `sequenced` stream (ordered by the producer's numbers) may lack its
    /// sequence; the sequencer decides how to handle such an event.
    pub fn decode(&self, delivery: &Delivery) -> Result<Event, DecodeError> {
        let headers = EventHeaders::of(delivery, self);
        self.event(delivery, &headers).map_err(|DeliveryRejection(cause, message)| DecodeError {
            cause,
            message,
            key: self.key(delivery, &headers).ok().map(Cow::into_owned),
            sequence: Self::sequence(&headers).ok().flatten(),
        })
    }

    fn event(&self, delivery: &Delivery, headers: &EventHeaders<'_>) -> DeliveryResult<Event> {
        let properties = &delivery.properties;
        let key = self.key(delivery, headers)?;
        let others = self.other_headers(delivery, headers, &key)?;
        let others: Vec<(&str, &str)> =
            others.iter().map(|(name, value)| (*name, &**value)).collect();
        let sequence = Self::sequence(headers)?;
        let id = attribute("id", headers.id, properties.message_id().as_ref())?;
        let id = match (id, sequence, self.ordering) {
            (Some(id), ..) => id,
            (None, Some(sequence), _) => Cow::Owned(format!("{key}/{sequence}")),
            (None, None, OrderingMode::Sequenced) => Cow::Borrowed(""),
            (None, None, OrderingMode::Fifo) => {
                let message = "there is no id, and a fifo stream detects repeats by the id: set the property \
                               message_id";
                return reject(Cause::NoId, message);
            }
        };
        let kind = attribute("type", headers.kind, properties.kind().as_ref())?;
        let content_type =
            attribute("datacontenttype", headers.content_type, properties.content_type().as_ref())?;
        let end = match first_present(END_HEADER, headers.end, CE_END_HEADER, headers.ce_end) {
            None => false,
            Some((name, value)) => as_bool(value).map_or_else(
                || {
                    let message = format!("{name} must be true or false, found {}", excerpt(value));
                    reject(Cause::Unreadable, message)
                },
                Ok,
            )?,
        };
        Ok(Event::new(&EventParts {
            key: &key,
            sequence,
            id: &id,
            kind: kind.as_deref().unwrap_or_default(),
            source: attribute("source", headers.source, None)?.as_deref().unwrap_or_default(),
            time_ms: time(headers, properties.timestamp().as_ref().copied())?,
            content_type: content_type.as_deref().unwrap_or_default(),
            headers: &others,
            data: &delivery.data,
            end,
        }))
    }

    fn key<'a>(
        &self,
        delivery: &'a Delivery,
        headers: &EventHeaders<'a>,
    ) -> DeliveryResult<Cow<'a, str>> {
        let (key, place) = match &self.key {
            KeyLocation::RoutingKey => {
                let place = "the routing key".to_owned();
                (Some(utf8(&place, &delivery.routing_key)?), place)
            }
            KeyLocation::Header(name) => {
                (headers.key.and_then(as_text), format!("the header {name:?}"))
            }
        };
        match key {
            Some(key) if key.len() > KEY_SIZE_LIMIT => {
                let size = key.len();
                reject(
                    Cause::Unreadable,
                    format!("the key has {size} bytes; at most {KEY_SIZE_LIMIT} bytes are allowed"),
                )
            }
            Some(key) if !key.is_empty() => Ok(key),
            _ => reject(Cause::NoKey, format!("there is no key: {place} must contain the key")),
        }
    }

    /// Returns the producer's sequence; `None` if there is no header with a sequence.
    fn sequence(headers: &EventHeaders<'_>) -> DeliveryResult<Option<u64>> {
        let found = first_present(
            SEQUENCE_HEADER,
            headers.sequence,
            CE_SEQUENCE_HEADER,
            headers.ce_sequence,
        );
        let Some((name, value)) = found else { return Ok(None) };
        match as_integer(value) {
            Some(number) if number < SEQUENCE_END => Ok(Some(number)),
            _ => {
                let found = excerpt(value);
                let message =
                    format!("{name} must be a whole number below {SEQUENCE_END}, found {found}");
                reject(Cause::NoSequence, message)
            }
        }
    }

    /// Returns all headers without a meaning for Ordain, as texts. A value that is neither a text nor an integer
    /// becomes JSON. Returns an error if the headers exceed the limit on their number or size, if the headers and the
    /// body together exceed the size limit of an event, or if the name of a header is not UTF-8.
    fn other_headers<'a>(
        &self,
        delivery: &Delivery,
        headers: &EventHeaders<'a>,
        key: &str,
    ) -> DeliveryResult<Vec<(&'a str, Cow<'a, str>)>> {
        let mut size = 0;
        let mut others = Vec::with_capacity(headers.others.len());
        for (name, value) in &headers.others {
            let value = as_text(value).unwrap_or_else(|| json(value, usize::MAX).into());
            // Ordain writes the key of each message into this header. The event already contains the key.
            if *name == KEY_HEADER && value == key {
                continue;
            }
            if let Some(bytes) = not_utf8(name) {
                let message =
                    format!("the name of a header must be UTF-8, found the bytes {bytes}");
                return reject(Cause::Unreadable, message);
            }
            size += name.len() + value.len();
            others.push((*name, value));
        }
        if others.len() > HEADERS_LIMIT || size > HEADERS_SIZE_LIMIT {
            let count = others.len();
            return reject(
                Cause::Unreadable,
                format!(
                    "the message has {count} headers with {size} bytes; at most {HEADERS_LIMIT} headers with \
                     {HEADERS_SIZE_LIMIT} bytes are allowed"
                ),
            );
        }
        let whole = delivery.data.len() + size;
        let limit = self.event_size;
        if whole > limit {
            let message =
                format!("the event has {whole} bytes; runtime.event_size allows {limit} bytes");
            return reject(Cause::Unreadable, message);
        }
        Ok(others)
    }
}

/// Returns the beginning of a value, for an error.
fn excerpt(value: &AMQPValue) -> String {
    json(value, 60)
}

/// Returns the name and the value of Ordain's header. If Ordain's header is missing, returns the name and the value of
/// the CloudEvents header.
fn first_present<'a>(
    own: &'static str,
    value: Option<&'a AMQPValue>,
    of_cloudevents: &'static str,
    other: Option<&'a AMQPValue>,
) -> Option<(&'static str, &'a AMQPValue)> {
    value.map(|value| (own, value)).or(other.map(|value| (of_cloudevents, value)))
}

/// Returns a CloudEvents attribute, or the AMQP property if the message lacks the attribute. An empty value counts as
/// missing. If the message has the attribute with an empty value, this function ignores the property, and returns
/// `None`.
fn attribute<'a>(
    name: &str,
    header: Option<&'a AMQPValue>,
    property: Option<&'a ShortString>,
) -> DeliveryResult<Option<Cow<'a, str>>> {
    let text = match (header, property) {
        (Some(value), _) => {
            let Some(text) = as_text(value) else {
                let found = excerpt(value);
                let message = format!("cloudEvents:{name} must be a text, found {found}");
                return reject(Cause::Unreadable, message);
            };
            text
        }
        (None, Some(property)) => utf8(name, property)?,
        (None, None) => return Ok(None),
    };
    if text.len() > ATTRIBUTE_LIMIT {
        let size = text.len();
        return reject(
            Cause::Unreadable,
            format!("the {name} has {size} bytes; at most {ATTRIBUTE_LIMIT} bytes are allowed"),
        );
    }
    Ok((!text.is_empty()).then_some(text))
}

/// Returns the text of a short string. Rejects a text that was not UTF-8 in the message. If the decoder replaced
/// invalid bytes instead, two different texts could become equal.
fn utf8<'a>(place: &str, text: &'a ShortString) -> DeliveryResult<Cow<'a, str>> {
    match not_utf8(text.as_str()) {
        None => Ok(Cow::Borrowed(text.as_str())),
        Some(bytes) => {
            reject(Cause::Unreadable, format!("{place} must be UTF-8, found the bytes {bytes}"))
        }
    }
}

/// Returns the time of the event, in ms since the Unix epoch. The time comes from the CloudEvents attribute `time`,
/// otherwise from the header `timestamp_in_ms`, otherwise from AMQP's own timestamp, which has a resolution of one
/// second. Only the first of these three that is present counts. A header `timestamp_in_ms` counts as missing if its
/// value is negative or is not an integer. An attribute `time` before 1970 counts as no time.
fn time(headers: &EventHeaders<'_>, timestamp: Option<u64>) -> DeliveryResult<Option<u64>> {
    if let Some(value) = headers.time {
        let Some(ms) = as_text(value).and_then(|text| parse_time(&text)) else {
            let found = excerpt(value);
            let message = format!(
                "cloudEvents:time must be as in RFC 3339, such as \"2026-01-31T12:00:00Z\", \
                 found {found}"
            );
            return reject(Cause::Unreadable, message);
        };
        return Ok(u64::try_from(ms).ok());
    }
    // Ordain and a timestamp plugin of RabbitMQ write this header. Other programs may use the name for something else,
    // so a value that is no time in ms is not an error, and does not hide the timestamp.
    let header_ms = headers.time_ms.and_then(as_integer);
    Ok(header_ms.or_else(|| timestamp.map(|seconds| seconds.saturating_mul(1_000))))
}

#[cfg(test)]
mod tests {
    use lapin::BasicProperties;

    use super::*;

    /// Decodes a delivery of a `sequenced` stream.
    fn decode(routing_key: &str, properties: BasicProperties) -> Result<Event, DecodeError> {
        let decoder = DeliveryDecoder {
            letter_source: "/ordain/s".to_owned(),
            ordering: OrderingMode::Sequenced,
            event_size: 1 << 20,
            key: KeyLocation::RoutingKey,
        };
        let mut delivery = Delivery::mock(1, "x".into(), routing_key.into(), false, Vec::new());
        delivery.properties = properties;
        decoder.decode(&delivery)
    }

    #[test]
    fn valid_text_that_begins_with_the_replacement_character_is_decoded() {
        let id = |id: &str| BasicProperties::default().with_message_id(id.into());
        let event = decode("\u{fffd}key", id("\u{fffd}41")).expect("an event");
        assert_eq!((event.key(), event.id()), ("\u{fffd}key", "\u{fffd}41"));
        let mut headers = FieldTable::default();
        headers.insert("cloudEvents:id".into(), AMQPValue::LongString("\u{fffd}ff".into()));
        let event = decode("k", BasicProperties::default().with_headers(headers));
        assert_eq!(event.expect("an event").id(), "\u{fffd}ff");
        // The AMQP parser returns these texts for the bytes 0xc3 and 0xff.
        let error = decode("\u{fffd}c3", id("1")).expect_err("an invalid key");
        assert!(error.message.contains("the routing key must be UTF-8"), "{error}");
        let error = decode("k", id("\u{fffd}ff")).expect_err("an invalid id");
        assert!(error.message.contains("id must be UTF-8, found the bytes ff"), "{error}");
    }

    #[test]
    fn time_header_without_a_number_does_not_hide_the_timestamp() {
        let text = |text: &str| AMQPValue::LongString(text.into());
        for (value, time_ms) in [
            (AMQPValue::LongLongInt(1_234), 1_234),
            (text("1234"), 1_234),
            (text("noon"), 7_000),
            (text(""), 7_000),
            (AMQPValue::Boolean(true), 7_000),
            (AMQPValue::LongLongInt(-1), 7_000),
        ] {
            let mut headers = FieldTable::default();
            headers.insert(TIME_MS_HEADER.into(), value);
            let shown = format!("{headers:?}");
            let properties = BasicProperties::default().with_timestamp(7).with_headers(headers);
            let event = decode("k", properties).expect("an event");
            assert_eq!(event.time_ms(), Some(time_ms), "{shown}");
        }
    }
}
