//! Converts a message that the stream cannot process as an event into a dead letter. The letter contains the
//! properties, the headers and the body of the message. If the body exceeds the size limit of an event, the letter
//! contains only the beginning of the body. An event of a batch becomes a dead letter as if the message contained only
//! this event. If an operator moves a dead letter back to the stream, this module decodes its message again.

use bytes::Bytes;
use lapin::message::Delivery;
use ordain_cloudevents::{DecodeError, DecodedDelivery};
use ordain_core::{Cause, DeadLetter, Event, LetterContent, LetterId, digest};
use serde_json::Value;

use super::decode::{BatchEvent, DeliveryDecoder};
use super::encode::{header, id};
use super::header::{CAUSE_HEADER, ID_HEADER, SOURCE_HEADER};
use super::original_letter::{original_delivery, original_letter_id};
use super::raw_message::{RawBody, add_typed_headers, message_json};

/// The first word of the origin of a dead letter from a queue. Origins of other letters do not begin with this word.
const QUEUE_ORIGIN: &str = "queue ";
/// The beginning of the names of headers that a broker adds or changes.
const BROKER_HEADER_PREFIX: &str = "x-";

/// Decodes each event of a batch into an event, or into a dead letter that contains this event alone. If the delivery
/// is a dead letter in its original form, decodes the batch that first arrived. Returns `None` for a message that is
/// not a batch, and for a batch whose events cannot be separated.
pub(super) fn decode_batch(
    decoder: &DeliveryDecoder,
    queue: &str,
    delivery: &Delivery,
) -> Option<Vec<DecodedDelivery>> {
    let first = first_delivery(decoder, delivery);
    let delivery = first.as_ref().unwrap_or(delivery);
    let mut number = 0;
    decoder.decode_batch(delivery, |element, event| {
        number += 1;
        let BatchEvent { body, content_type, content_encoding, kind } = element;
        with_sequence(decoder, event).map_err(|error| {
            let body = RawBody {
                bytes: body.as_bytes(),
                size: body.len(),
                content_type: Some(content_type),
                content_encoding,
                kind,
            };
            let raw = RawDelivery { delivery, document: message_json(delivery, &body), rest: &[] };
            let key = error.key.unwrap_or_default().into();
            let sequence = error.sequence.unwrap_or_default();
            let id = LetterId { key, sequence, tag: raw.digest() };
            let message = format!("event {number} of the batch: {}", error.message);
            letter(queue, id, error.cause, message, &raw)
        })
    })
}

/// Decodes a delivery into an event, or into a dead letter whose origin names the queue. If the delivery is a dead
/// letter in its original form, decodes the message that first arrived.
pub(super) fn decode_or_letter(
    decoder: &DeliveryDecoder,
    queue: &str,
    delivery: &Delivery,
) -> DecodedDelivery {
    let Some(letter_id) = original_letter_id(&delivery.properties) else {
        return decode_other(decoder, queue, delivery);
    };
    let original = original_delivery(delivery);
    let raw = || RawDelivery::of(decoder, &original);
    let dead_letter = |tag, cause, error| {
        let id = LetterId { key: "".into(), sequence: 0, tag };
        letter(queue, id, cause, error, &raw())
    };
    if !is_own(letter_id.as_bytes(), &decoder.letter_source) {
        // A letter of another stream is a message like any other message, with headers that describe the reason.
        let tag = letter_tag(letter_id.as_bytes()).unwrap_or_else(|| digest(letter_id.as_bytes()));
        return decode(decoder, delivery)
            .map_err(|error| dead_letter(tag, error.cause, error.message));
    }
    decode(decoder, &original).map_err(|error| {
        // The tag depends on the message, not on the header with the id of the letter. An operator may have edited the
        // message, and a program may have copied the header from another letter. Each time the letter returns, its
        // message is the same, so the store forwards the letter once.
        let tag = raw().returned_tag();
        let error = format!(
            "a dead letter of this stream has returned to the stream, which still cannot read the message: {}. First \
             correct the settings of the stream's source, then move the letter back. If a binding leads from the \
             exchange of `dead_letter` to the queue of this stream, remove the binding",
            error.message
        );
        dead_letter(tag, Cause::Returned, error)
    })
}

/// Decodes a delivery that is not a dead letter in its original form.
fn decode_other(decoder: &DeliveryDecoder, queue: &str, delivery: &Delivery) -> DecodedDelivery {
    if let Some(tag) = returned_tag(delivery, &decoder.letter_source) {
        let error = "a dead letter of this stream has returned to the stream, which does not process it again. If a \
                     binding leads from the exchange of `dead_letter` to the queue of this stream, remove the binding. \
                     To process the event again, send the event itself";
        let id = LetterId { key: "".into(), sequence: 0, tag };
        let raw = RawDelivery::of(decoder, delivery);
        return Err(letter(queue, id, Cause::Returned, error.to_owned(), &raw));
    }
    decode(decoder, delivery).map_err(|error| {
        let raw = RawDelivery::of(decoder, delivery);
        // A dead letter about another stream's dead letter keeps the tag (the last part of the id) of that letter. If
        // two streams feed their dead letters to each other, the ids therefore repeat, and the store forwards each dead
        // letter once.
        let properties = &delivery.properties;
        let is_letter = !header(properties, CAUSE_HEADER).is_empty();
        if let Some(tag) = letter_tag(id(properties)).filter(|_| is_letter) {
            let id = LetterId { key: "".into(), sequence: 0, tag };
            return letter(queue, id, error.cause, error.message, &raw);
        }
        let key = error.key.unwrap_or_default().into();
        let sequence = error.sequence.unwrap_or_default();
        let id = LetterId { key, sequence, tag: raw.digest() };
        letter(queue, id, error.cause, error.message, &raw)
    })
}

/// Decodes a delivery into an event. Also rejects an event that lacks the sequence that the stream needs, so that its
/// dead letter has the original form.
fn decode(decoder: &DeliveryDecoder, delivery: &Delivery) -> Result<Event, DecodeError> {
    with_sequence(decoder, decoder.decode(delivery))
}

/// Returns an error instead of an event that lacks the sequence that the stream needs.
fn with_sequence(
    decoder: &DeliveryDecoder,
    event: Result<Event, DecodeError>,
) -> Result<Event, DecodeError> {
    let event = event?;
    if !decoder.lacks_sequence(&event) {
        return Ok(event);
    }
    Err(DecodeError {
        cause: Cause::NoSequence,
        message: "the stream is `sequenced`, but the event has no sequence: let its producer number it, or make the \
                  stream `fifo`"
            .to_owned(),
        key: Some(event.key().to_owned()),
        sequence: None,
    })
}

/// Creates a dead letter about a message.
fn letter(
    queue: &str,
    id: LetterId,
    cause: Cause,
    error: String,
    raw: &RawDelivery<'_>,
) -> Box<DeadLetter> {
    Box::new(DeadLetter {
        id,
        cause,
        error,
        origin: Some(format!("{QUEUE_ORIGIN}{queue}")),
        version: None,
        content: LetterContent::Raw(raw.document()),
    })
}

/// Returns whether a dead letter is about a message of a queue.
pub(super) fn is_queue_origin(letter: &DeadLetter) -> bool {
    letter.origin.as_deref().is_some_and(|origin| origin.starts_with(QUEUE_ORIGIN))
}

/// A message that is not an event.
struct RawDelivery<'a> {
    delivery: &'a Delivery,
    /// The document of the message, without the types of its headers.
    document: Value,
    /// The part of the body that the document does not contain. If the body exceeds the size limit of an event, the
    /// dead letter keeps only the beginning of the body. A file source treats a long line in the same way.
    rest: &'a [u8],
}

impl<'a> RawDelivery<'a> {
    fn of(decoder: &DeliveryDecoder, delivery: &'a Delivery) -> Self {
        let (bytes, rest) = split_at_limit(&delivery.data, decoder.event_size);
        let body = RawBody::of(delivery, bytes);
        Self { delivery, document: message_json(delivery, &body), rest }
    }

    fn document(&self) -> Bytes {
        let mut document = self.document.clone();
        add_typed_headers(&mut document, self.delivery);
        document.to_string().into()
    }

    /// Returns a digest that identifies the message. If the message has an id of CloudEvents, the digest does not cover
    /// the timestamp. Ordain writes the time of publishing into the timestamp, so two copies of a message can have two
    /// timestamps. The digest does not cover the types of the headers either, because the digests of earlier versions
    /// did not.
    fn digest(&self) -> u64 {
        let mut document = self.document.clone();
        if !header(&self.delivery.properties, ID_HEADER).is_empty() {
            document["properties"]["timestamp"] = Value::Null;
        }
        let document = digest(document.to_string().as_bytes());
        if self.rest.is_empty() { document } else { document ^ digest(self.rest) }
    }

    /// Returns the tag of the dead letter `returned` about the message. The tag differs from the tag of the first dead
    /// letter about the message. The tag does not depend on headers that the broker may change on the way back to the
    /// stream, such as `x-death`.
    fn returned_tag(mut self) -> u64 {
        if let Some(headers) = self.document["headers"].as_object_mut() {
            headers.retain(|name, _| !name.starts_with(BROKER_HEADER_PREFIX));
        }
        digest(format!("returned {:016x}", self.digest()).as_bytes())
    }
}

/// Returns why the stream cannot process a message, or an event of a batch: the cause and the error. Returns `None` for
/// an event of the stream.
pub(super) fn fault(message: &DecodedDelivery) -> Option<(Cause, &str)> {
    message.as_ref().err().map(|letter| (letter.cause, &*letter.error))
}

/// Returns the fault of the first event of a batch if the stream can process no event of the batch. Returns `None` if
/// the stream can process an event, and for a batch without events.
pub(super) fn batch_fault(events: &[DecodedDelivery]) -> Option<(Cause, &str)> {
    let first = fault(events.first()?)?;
    events.iter().all(Result::is_err).then_some(first)
}

/// Returns the message that first arrived if `delivery` is a dead letter of this stream in its original form. Returns
/// `None` for any other message.
pub(super) fn first_delivery(decoder: &DeliveryDecoder, delivery: &Delivery) -> Option<Delivery> {
    let letter_id = original_letter_id(&delivery.properties)?;
    is_own(letter_id.as_bytes(), &decoder.letter_source).then(|| original_delivery(delivery))
}

/// Returns the tag (the last part of the id) of the new dead letter about a returned delivery. Two kinds of deliveries
/// count as returned. The first kind is a dead letter of this stream that has no event, or whose event is itself a dead
/// letter. The second kind is another stream's dead letter about a dead letter of this stream. Returns `None` for any
/// other delivery. A dead letter of this stream about any other event does not count as returned. The stream can
/// process such an event, and an operator who has corrected the handler may send the dead letter back to the stream.
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
    // Another stream has received a dead letter of this stream, and has sent its own dead letter about that letter.
    if wrapped_tag.is_some() && is_own(event_id, letter_source) {
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

/// Returns whether the id of a dead letter is that of a letter of this stream.
fn is_own(id: &[u8], letter_source: &str) -> bool {
    let stream = letter_source.trim_start_matches("/ordain/");
    id.strip_prefix(stream.as_bytes()).is_some_and(|rest| rest.starts_with(b"/"))
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use lapin::BasicProperties;
    use lapin::types::{AMQPValue, FieldTable, ShortString};
    use ordain_cloudevents::source_of;
    use ordain_config::{
        EventLocations, IdLocation, IdPlace, MessageProperty, Place, RoutingKeyTemplate,
        ValueLocation,
    };
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

    /// An operator can send the letter of a single event of a batch back as a message. The letter contains this event
    /// alone, with the content type of an event.
    #[test]
    fn unreadable_event_of_a_batch_becomes_a_letter_of_its_own() {
        let locations = EventLocations::DEFAULT;
        let decoder =
            DeliveryDecoder::new(source_of("s"), OrderingMode::Fifo, 1 << 20, locations, false);
        let body =
            br#"[{"specversion":"1.0","id":"1","source":"/s","type":"t"},{"id":"2"},{"id":"3"}]"#;
        let mut delivery = Delivery::mock(1, "x".into(), "k".into(), false, body.to_vec());
        delivery.properties = BasicProperties::default()
            .with_content_type("application/cloudevents-batch+json".into())
            .with_correlation_id("c".into());
        let events = decode_batch(&decoder, "q", &delivery).expect("a batch");
        let [Ok(event), Err(second), Err(third)] = &events[..] else { panic!("{events:?}") };
        assert_eq!((event.id(), event.key()), ("1", "k"));
        assert_ne!(second.id, third.id);
        assert!(second.error.starts_with("event 2 of the batch: "), "{second:?}");
        assert_eq!(second.origin.as_deref(), Some("queue q"));
        let LetterContent::Raw(raw) = &second.content else { panic!("{second:?}") };
        let raw: Value = serde_json::from_slice(raw).expect("JSON");
        assert_eq!(raw["body"], r#"{"id":"2"}"#);
        assert_eq!(raw["body_size"], 10);
        assert_eq!(raw["properties"]["content_type"], "application/cloudevents+json");
        assert_eq!(raw["properties"]["correlation_id"], "c");
        assert_eq!(decode_batch(&decoder, "q", &delivery).expect("a batch"), events);
    }

    /// The property `type` of the batch names the encoding of the whole body. The letter contains only a part of the
    /// body, so the letter must not have this property.
    #[test]
    fn event_of_an_encoded_batch_has_no_encoded_type() {
        let body = br#"[{"id":"2"}]"#;
        let size = u8::try_from(body.len()).expect("a short body");
        let encoded = [&[0x00, 0x53, 0x77, 0xa0, size][..], body].concat();
        for (kind, body, expected) in
            [("amqp-1.0", encoded, Value::Null), ("paid", body.to_vec(), Value::from("paid"))]
        {
            let mut batch = Delivery::mock(1, "x".into(), "k".into(), false, body);
            batch.properties = BasicProperties::default()
                .with_content_type("application/cloudevents-batch+json".into())
                .with_type(kind.into());
            let events = decode_batch(&decoder("s"), "q", &batch).expect("a batch");
            let [Err(letter)] = &events[..] else { panic!("{events:?}") };
            let LetterContent::Raw(raw) = &letter.content else { panic!("{letter:?}") };
            let raw: Value = serde_json::from_slice(raw).expect("JSON");
            assert_eq!(raw["properties"]["type"], expected, "{kind}");
            assert_eq!(raw["body"], r#"{"id":"2"}"#);
        }
    }

    /// The broker refuses the original form of a letter. The second form must keep the order of the letter's key.
    #[test]
    fn refused_letter_becomes_a_document_with_the_same_ordering_key() {
        let original = delivery("k", BasicProperties::default());
        let letter = *decode_or_letter(&decoder("s"), "q", &original).expect_err("no id");
        let template = RoutingKeyTemplate("{key}".to_owned());
        let mut message = encode::letter("s", &letter, None, &template, 7);
        let (key, id) = (message.ordering_key(), message.id().to_vec());
        assert_eq!(message.body.bytes(), b"{}");
        assert!(message.use_fallback());
        assert_eq!((message.ordering_key(), message.id()), (key, &id[..]));
        let kind = message.properties.kind().as_ref().map(ShortString::as_str);
        assert_eq!(kind, Some("ordain.dead-letter"));
        let LetterContent::Raw(document) = &letter.content else { unreachable!() };
        assert_eq!(message.body.bytes(), &document[..]);
        assert!(!message.use_fallback());
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
        let decoder = decoder("a");
        let original = |routing_key: &str, properties| {
            let message = delivery(routing_key, properties);
            *decode_or_letter(&decoder, "q", &message).expect_err("no key or no id")
        };
        let without_id = original("k/1", BasicProperties::default());
        let without_key = original("", BasicProperties::default().with_message_id("1".into()));
        for streams in [&["a"][..], &["a", "b/b"]] {
            for first in [&readable, &unreadable, &without_id, &without_key] {
                check(streams, first, None);
                check(streams, first, Some(IdLocation(vec![IdPlace::Unique])));
            }
        }
    }

    fn decoder(stream: &str) -> DeliveryDecoder {
        let locations = EventLocations::DEFAULT;
        DeliveryDecoder::new(source_of(stream), OrderingMode::Fifo, 1 << 20, locations, false)
    }

    fn delivery(routing_key: &str, properties: BasicProperties) -> Delivery {
        let mut delivery = Delivery::mock(1, "x".into(), routing_key.into(), false, b"{}".to_vec());
        delivery.properties = properties;
        delivery
    }

    /// Encodes a dead letter of the stream `from`, and delivers it through another exchange with another routing key.
    fn moved(from: &str, letter: &DeadLetter) -> Delivery {
        let template = RoutingKeyTemplate("letters.{key}".to_owned());
        let message = encode::letter(from, letter, None, &template, 7);
        let mut moved =
            Delivery::mock(1, "".into(), "queue".into(), false, message.body.bytes().to_vec());
        moved.properties = message.properties;
        moved
    }

    /// An operator corrects the settings of the stream and moves the dead letter back. The stream must read the event
    /// that the producer sent. A second copy of the letter must be the same event.
    #[test]
    fn moved_letter_is_the_original_event() {
        let mut headers = FieldTable::default();
        headers.insert("order".into(), AMQPValue::ShortInt(7));
        headers.insert("deadid".into(), AMQPValue::LongString("of the producer".into()));
        let properties = BasicProperties::default()
            .with_headers(headers)
            .with_correlation_id("c-1".into())
            .with_timestamp(7);
        let original = delivery("order.paid", properties);
        let letter = *decode_or_letter(&decoder("s"), "q", &original).expect_err("no id");
        let moved = moved("s", &letter);
        let locations = EventLocations {
            id: Some(IdLocation(vec![IdPlace::Place(Place::Property(
                MessageProperty::CorrelationId,
            ))])),
            ..EventLocations::DEFAULT
        };
        let corrected =
            DeliveryDecoder::new(source_of("s"), OrderingMode::Fifo, 1 << 20, locations, false);
        let event = decode_or_letter(&corrected, "q", &moved).expect("an event");
        assert_eq!((event.key(), event.id()), ("order.paid", "c-1"));
        assert_eq!((event.time_ms(), event.data()), (Some(7_000), &b"{}"[..]));
        let found: Vec<_> = event.headers().collect();
        let expected = [
            ("order", "7"),
            ("x-original-deadid", "of the producer"),
            ("property:correlation_id", "c-1"),
        ];
        assert_eq!(found, expected);
        // Without a correction, the letter names the fault, and contains the original message.
        let returned = *decode_or_letter(&decoder("s"), "q", &moved).expect_err("no id");
        assert_eq!(returned.cause, Cause::Returned);
        assert!(returned.error.contains("set the property message_id"), "{}", returned.error);
        let LetterContent::Raw(document) = &returned.content else { unreachable!() };
        let document: Value = serde_json::from_slice(document).expect("JSON");
        assert_eq!(document["routing_key"], "order.paid");
        assert_eq!(document["exchange"], "x");
        assert_eq!(document["headers"].as_object().map(serde_json::Map::len), Some(2));
    }

    /// The broker would interpret these properties and headers of a dead letter, so they are in other headers.
    #[test]
    fn moved_letter_has_the_properties_of_the_message() {
        let text = |text: &str| AMQPValue::LongString(text.into());
        let mut headers = FieldTable::default();
        headers.insert("CC".into(), text("first"));
        headers.insert("x-original-CC".into(), text("second"));
        let properties = BasicProperties::default()
            .with_headers(headers)
            .with_expiration("60000".into())
            .with_reply_to("amq.rabbitmq.reply-to".into())
            .with_user_id("guest".into());
        let message = delivery("k", properties.clone());
        let letter = *decode_or_letter(&decoder("s"), "q", &message).expect_err("no id");
        let moved = moved("s", &letter);
        assert_eq!((moved.properties.expiration(), moved.properties.reply_to()), (&None, &None));
        let original = original_delivery(&moved).properties;
        assert_eq!(original.expiration(), properties.expiration());
        assert_eq!(original.reply_to(), properties.reply_to());
        assert_eq!(original.user_id(), &None);
        for (name, value) in [
            ("x-original-x-original-CC", "first"),
            ("x-original-CC", "second"),
            ("x-original-property:user_id", "guest"),
        ] {
            assert_eq!(header(&original, name), value.as_bytes(), "{name}");
        }
        assert_eq!(original.headers().as_ref().map(|headers| headers.inner().len()), Some(3));
    }

    /// An operator moves the letter of a whole batch back. The events must have the routing key of the batch as their
    /// key, and no headers of Ordain. If an event is still unreadable, its letter can be moved back too.
    #[test]
    fn moved_batch_is_the_original_batch() {
        let body = br#"[{"specversion":"1.0","id":"1","source":"/s","type":"t"},{"id":"2"}]"#;
        let mut batch = Delivery::mock(1, "x".into(), "k".into(), false, body.to_vec());
        batch.properties = BasicProperties::default()
            .with_content_type("application/cloudevents-batch+json".into())
            .with_message_id("m".into());
        let shared = EventLocations {
            id: Some(IdLocation(vec![IdPlace::Place(Place::Property(MessageProperty::MessageId))])),
            ..EventLocations::DEFAULT
        };
        let wrong =
            DeliveryDecoder::new(source_of("s"), OrderingMode::Fifo, 1 << 20, shared, false);
        assert!(decode_batch(&wrong, "q", &batch).is_none());
        let letter = *decode_or_letter(&wrong, "q", &batch).expect_err("a shared id");
        let moved_batch = moved("s", &letter);
        let events = decode_batch(&decoder("s"), "q", &moved_batch).expect("a batch");
        let [Ok(event), Err(broken)] = &events[..] else { panic!("{events:?}") };
        assert_eq!((event.key(), event.id(), event.headers().count()), ("k", "1", 0));
        let moved_event = moved("s", broken);
        assert_eq!(moved_event.data, br#"{"id":"2"}"#);
        assert!(original_letter_id(&moved_event.properties).is_some());
    }

    /// An operator corrects the place of the sequence and moves the letter of an event back.
    #[test]
    fn moved_letter_gets_its_sequence() {
        let sequenced = |locations| {
            DeliveryDecoder::new(source_of("s"), OrderingMode::Sequenced, 1 << 20, locations, false)
        };
        let properties = BasicProperties::default().with_correlation_id("7".into());
        let original = delivery("k", properties);
        let letter = decode_or_letter(&sequenced(EventLocations::DEFAULT), "q", &original);
        let letter = *letter.expect_err("no sequence");
        assert_eq!((letter.cause, &*letter.id.key), (Cause::NoSequence, "k"));
        let place = Place::Property(MessageProperty::CorrelationId);
        let locations = EventLocations {
            sequence: Some(ValueLocation(vec![place])),
            ..EventLocations::DEFAULT
        };
        let event = decode_or_letter(&sequenced(locations), "q", &moved("s", &letter));
        let event = event.expect("an event");
        assert_eq!((event.key(), event.sequence()), ("k", Some(7)));
    }

    /// When the letter `returned` returns again, it is the same letter, even if the broker has changed its headers. An
    /// edited message results in another letter.
    #[test]
    fn returned_letter_depends_on_the_message() {
        let original = delivery("k", BasicProperties::default());
        let first = *decode_or_letter(&decoder("s"), "q", &original).expect_err("no id");
        let moved_first = moved("s", &first);
        let returned = |delivery: &Delivery| {
            *decode_or_letter(&decoder("s"), "q", delivery).expect_err("no id")
        };
        let second = returned(&moved_first);
        assert_ne!(first.id.tag, second.id.tag);
        let mut again = moved("s", &second);
        assert_eq!(returned(&again).id, second.id);
        let mut headers = again.properties.headers().clone().unwrap_or_default();
        headers.insert("x-death".into(), AMQPValue::LongInt(1));
        again.properties = again.properties.with_headers(headers);
        assert_eq!(returned(&again).id, second.id);
        let mut edited = moved_first;
        edited.data = b"[]".to_vec();
        let edited = returned(&edited);
        assert_eq!(edited.cause, Cause::Returned);
        assert_ne!(edited.id, second.id);
    }

    /// Another stream that reads the dead letters needs an id of each letter, and sees the reason.
    #[test]
    fn letter_without_an_id_has_the_id_of_the_letter_in_another_stream() {
        let original = delivery("k", BasicProperties::default());
        let letter = *decode_or_letter(&decoder("s"), "q", &original).expect_err("no id");
        let event = decode_or_letter(&decoder("t"), "q", &moved("s", &letter)).expect("an event");
        assert!(event.id().starts_with("s/k/dead/0/"), "{}", event.id());
        assert!(event.headers().any(|header| header == ("deadcause", "no-id")));
    }
}
