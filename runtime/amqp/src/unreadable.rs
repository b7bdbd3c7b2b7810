//! Converts a message that the stream cannot process as an event into a dead letter. The letter contains the
//! properties, the headers and the body of the message. If the body exceeds the size limit of an event, the letter
//! contains only the beginning of the body.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use lapin::message::Delivery;
use ordain_cloudevents::DecodedDelivery;
use ordain_core::{Cause, DeadLetter, Event, LetterContent, LetterId, digest};
use serde_json::{Value, json};

use super::decode::DeliveryDecoder;
use super::encode::{header, id};
use super::header::{CAUSE_HEADER, ID_HEADER, QUEUE_HEADERS, SOURCE_HEADER};
use super::value::table;

/// Decodes a delivery into an event, or into a dead letter whose origin names the queue.
pub(super) fn decode_or_letter(
    decoder: &DeliveryDecoder,
    queue: &str,
    delivery: &Delivery,
) -> Result<Event, Box<DeadLetter>> {
    let letter = |id, cause, error, raw| {
        Box::new(DeadLetter {
            id,
            cause,
            error,
            origin: Some(format!("queue {queue}")),
            version: None,
            content: LetterContent::Raw(raw),
        })
    };
    // If the body exceeds the size limit of an event, the dead letter keeps only the beginning of the body. A file
    // source treats a long line in the same way.
    let (body, rest) = split_at_limit(&delivery.data, decoder.event_size);
    let raw = || Bytes::from(message_json(delivery, body, *delivery.properties.timestamp()));
    if let Some(tag) = returned_tag(delivery, &decoder.letter_source) {
        let error = "a dead letter of this stream has returned to the stream, which does not process it again. If a \
                     binding leads from the exchange of `dead_letter` to the queue of this stream, remove the binding. \
                     To process the event again, send the event itself";
        let id = LetterId { key: "".into(), sequence: 0, tag };
        return Err(letter(id, Cause::Returned, error.to_owned(), raw()));
    }
    decoder.decode(delivery).map_err(|error| {
        let raw = raw();
        // A dead letter about another stream's dead letter keeps the tag (the last part of the id) of that letter. If
        // two streams feed their dead letters to each other, the ids therefore repeat, and the store forwards each dead
        // letter once.
        let properties = &delivery.properties;
        let is_letter = !header(properties, CAUSE_HEADER).is_empty();
        if let Some(tag) = letter_tag(id(properties)).filter(|_| is_letter) {
            let id = LetterId { key: "".into(), sequence: 0, tag };
            return letter(id, error.cause, error.message, raw);
        }
        let message = identity_bytes(delivery, body, &raw);
        let tag = if rest.is_empty() { digest(&message) } else { digest(&message) ^ digest(rest) };
        let key = error.key.unwrap_or_default().into();
        let id = LetterId { key, sequence: error.sequence.unwrap_or_default(), tag };
        letter(id, error.cause, error.message, raw)
    })
}

/// Returns the cause and the error of a delivery that the stream cannot process as an event; `None` for an event of the
/// stream.
pub(super) fn fault<'a>(
    decoder: &DeliveryDecoder,
    message: &'a DecodedDelivery,
) -> Option<(Cause, &'a str)> {
    match message {
        Err(letter) => Some((letter.cause, &letter.error)),
        Ok(event) if decoder.lacks_sequence(event) => Some((
            Cause::NoSequence,
            "the stream is `sequenced`, but the event has no sequence: let its producer number it, or make the stream \
             `fifo`",
        )),
        Ok(_) => None,
    }
}

/// Returns the tag (the last part of the id) of the new dead letter about a returned delivery. Two kinds of deliveries
/// count as returned. The first kind is a dead letter of this stream that has no event, or whose event is itself a dead
/// letter. The second kind is another stream's dead letter about a dead letter of this stream. Returns `None` for any
/// other delivery. A dead letter of this stream about any other event does not count as returned: the stream can
/// process the event, and an operator who has corrected the handler may send such a dead letter back to the stream.
///
/// A letter gets the same tag each time it returns. The store therefore forwards the letter once, and no letter
/// circulates forever.
fn returned_tag(delivery: &Delivery, letter_source: &str) -> Option<u64> {
    let properties = &delivery.properties;
    let cause = header(properties, CAUSE_HEADER);
    if cause.is_empty() {
        return None;
    }
    let event_id = header(properties, "deadid");
    let wrapped_tag = letter_tag(event_id);
    let own_prefix = letter_source.trim_start_matches("/ordain/");
    let is_own = |id: &[u8]| {
        id.strip_prefix(own_prefix.as_bytes()).is_some_and(|rest| rest.starts_with(b"/"))
    };
    // Another stream has received a dead letter of this stream, and has sent its own dead letter about that letter.
    if wrapped_tag.is_some() && is_own(event_id) {
        return wrapped_tag;
    }
    let is_about_event = !event_id.is_empty() && wrapped_tag.is_none();
    if header(properties, SOURCE_HEADER) != letter_source.as_bytes() || is_about_event {
        return None;
    }
    let id = id(properties);
    let is_returned_again = cause == Cause::Returned.name().as_bytes();
    is_returned_again.then(|| letter_tag(id)).flatten().or_else(|| Some(digest(id)))
}

/// Returns the tag in the id of a dead letter of any stream: `stream/key/dead/sequence/tag`. No part contains a `/`.
/// Returns `None` for any other id.
fn letter_tag(id: &[u8]) -> Option<u64> {
    let parts: Vec<&str> = std::str::from_utf8(id).ok()?.split('/').collect();
    let [_stream, _key, "dead", _sequence, tag] = parts[..] else { return None };
    u64::from_str_radix(tag, 16).ok()
}

/// Splits a body after at most `limit` bytes, at a character boundary if the body is text.
fn split_at_limit(body: &[u8], limit: usize) -> (&[u8], &[u8]) {
    let limit = std::str::from_utf8(body).map_or(limit, |text| text.floor_char_boundary(limit));
    body.split_at(limit.min(body.len()))
}

/// Returns the bytes that identify a message: `raw`, or `raw` without the timestamp if the message has an id of
/// CloudEvents. Ordain writes the time of publishing into the timestamp, so a message that Ordain publishes twice can
/// have two timestamps.
fn identity_bytes(delivery: &Delivery, body: &[u8], raw: &Bytes) -> Bytes {
    let properties = &delivery.properties;
    let has_id = !header(properties, ID_HEADER).is_empty();
    if has_id && properties.timestamp().is_some() {
        message_json(delivery, body, None).into()
    } else {
        raw.clone()
    }
}

/// Encodes a message with its properties, its headers and the kept part of its body as JSON. `timestamp` is the
/// property of this name.
fn message_json(delivery: &Delivery, body: &[u8], timestamp: Option<u64>) -> Vec<u8> {
    let properties = &delivery.properties;
    let text =
        |property: &Option<lapin::types::ShortString>| property.as_ref().map(ToString::to_string);
    let (body, coding) = match std::str::from_utf8(body) {
        Ok(text) => (text.to_owned(), "text"),
        Err(_) => (STANDARD.encode(body), "base64"),
    };
    let mut headers = properties.headers().as_ref().map(table);
    if let Some(headers) = headers.as_mut().and_then(Value::as_object_mut) {
        // A queue adds these headers to a redelivered message. Remove them, because the same message must always
        // produce the same letter.
        headers.retain(|name, _| !QUEUE_HEADERS.contains(&name.as_str()));
    }
    let message = json!({
        "exchange": delivery.exchange.as_str(),
        "routing_key": delivery.routing_key.as_str(),
        "properties": {
            "content_type": text(properties.content_type()),
            "content_encoding": text(properties.content_encoding()),
            "delivery_mode": properties.delivery_mode(),
            "priority": properties.priority(),
            "correlation_id": text(properties.correlation_id()),
            "reply_to": text(properties.reply_to()),
            "expiration": text(properties.expiration()),
            "message_id": text(properties.message_id()),
            "timestamp": timestamp,
            "type": text(properties.kind()),
            "user_id": text(properties.user_id()),
            "app_id": text(properties.app_id()),
        },
        "headers": headers,
        "body": body,
        "body_coding": coding,
        "body_size": delivery.data.len(),
    });
    message.to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use lapin::BasicProperties;
    use lapin::types::{AMQPValue, FieldTable};
    use ordain_cloudevents::source_of;
    use ordain_config::{EventLocations, IdLocation, IdPlace, RoutingKeyTemplate};
    use ordain_core::{EventParts, OrderingMode};

    use super::*;
    use crate::encode;

    /// Delivers a dead letter of the stream `from` to the stream `to`, which rejects the event or cannot read it.
    /// Returns the dead letter of the stream `to`.
    fn deliver_letter(
        from: &str,
        letter: &DeadLetter,
        to: &str,
        id: Option<IdLocation>,
    ) -> DeadLetter {
        let locations = EventLocations { id, ..EventLocations::DEFAULT };
        let decoder =
            DeliveryDecoder::new(source_of(to), OrderingMode::Fifo, 1 << 20, locations, false);
        let message =
            encode::letter(from, letter, None, &RoutingKeyTemplate("{key}".to_owned()), 7);
        let body = message.body.bytes().to_vec();
        let mut delivery = Delivery::mock(1, "x".into(), message.routing_key, false, body);
        delivery.properties = message.properties;
        match decode_or_letter(&decoder, "q", &delivery) {
            Err(letter) => *letter,
            Ok(event) => rejected(event),
        }
    }

    fn rejected(event: Event) -> DeadLetter {
        DeadLetter {
            id: LetterId { key: event.key().into(), sequence: 1, tag: event.id_digest() },
            cause: Cause::Rejected,
            error: "no".to_owned(),
            origin: None,
            version: None,
            content: LetterContent::Event(Arc::new(event)),
        }
    }

    /// Ordain may publish a message twice, with two times of publishing. An unreadable message must nevertheless become
    /// one dead letter, which contains the timestamp. Without an id, the timestamp may distinguish two messages.
    #[test]
    fn timestamp_does_not_identify_a_message_with_an_id() {
        let locations = EventLocations::DEFAULT;
        let decoder =
            DeliveryDecoder::new(source_of("s"), OrderingMode::Fifo, 1 << 20, locations, false);
        let letter = |id: &str, timestamp: u64| {
            let mut headers = FieldTable::default();
            headers.insert(ID_HEADER.into(), AMQPValue::LongString(id.into()));
            // The event has no key.
            let mut delivery = Delivery::mock(1, "x".into(), "".into(), false, b"{}".to_vec());
            delivery.properties = BasicProperties::default()
                .with_headers(if id.is_empty() { FieldTable::default() } else { headers })
                .with_timestamp(timestamp);
            *decode_or_letter(&decoder, "q", &delivery).expect_err("no key")
        };
        assert_eq!(letter("1", 7).id, letter("1", 8).id);
        assert_ne!(letter("1", 7).content, letter("1", 8).content);
        assert_ne!(letter("1", 7).id, letter("2", 7).id);
        assert_ne!(letter("", 7).id, letter("", 8).id);
    }

    /// The store identifies dead letters by their ids, and forwards each letter once. If dead letters circulate between
    /// two streams, their ids must therefore soon repeat. The test does not cover a circle of three streams, because
    /// there each stream may process the dead letters of another stream on purpose.
    #[test]
    fn letters_do_not_circulate_over_one_or_two_streams() {
        let parts = EventParts { key: "k/1", id: "e", ..EventParts::default() };
        let readable = rejected(Event::new(&parts));
        let unreadable = DeadLetter {
            cause: Cause::NoId,
            content: LetterContent::Raw(Bytes::from_static(b"{}")),
            ..readable.clone()
        };
        let check = |streams: &[&'static str], first: &DeadLetter, id: Option<IdLocation>| {
            let mut letter = first.clone();
            let mut known = BTreeSet::new();
            let mut hops = 0;
            while known.insert((streams[hops % streams.len()], letter.id.clone())) {
                let [from, to] = [hops, hops + 1].map(|hop| streams[hop % streams.len()]);
                letter = deliver_letter(from, &letter, to, id.clone());
                hops += 1;
                assert!(hops < 20, "{streams:?}: {letter:?}");
            }
        };
        for streams in [&["a"][..], &["a", "b/b"]] {
            for first in [&readable, &unreadable] {
                check(streams, first, None);
                check(streams, first, Some(IdLocation(vec![IdPlace::Unique])));
            }
        }
    }
}
