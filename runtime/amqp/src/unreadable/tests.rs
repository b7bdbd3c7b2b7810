//! Tests of unreadable messages, of their dead letters, and of dead letters that return to a stream.

use std::collections::BTreeSet;
use std::sync::Arc;

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use ordain_cloudevents::source_of;
use ordain_config::{
    EventLocations, IdLocation, IdPlace, MessageProperty, Place, RoutingKeyTemplate, ValueLocation,
};
use ordain_core::{EventParts, OrderingMode, SEQUENCE_END};

use super::*;
use crate::encode;

/// Delivers a dead letter of the stream `from` to the stream `to`, which rejects the event or cannot read it.
/// Returns the dead letter of the stream `to`.
fn deliver_letter(from: &str, letter: &DeadLetter, to: &str, id: Option<IdLocation>) -> DeadLetter {
    let locations = EventLocations { id, ..EventLocations::DEFAULT };
    let decoder =
        DeliveryDecoder::new(source_of(to), OrderingMode::Fifo, 1 << 20, locations, false);
    let message = encode::letter(from, letter, None, &RoutingKeyTemplate("{key}".to_owned()), 7);
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

/// If a single event of a batch becomes a dead letter, an operator can send this letter back to the stream as a
/// message. The letter contains this event alone, with the content type of an event.
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
    let key = message.ordering_key();
    let id = message.id().to_vec();
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
        id: Some(IdLocation(vec![IdPlace::Place(Place::Property(MessageProperty::CorrelationId))])),
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
    let wrong = DeliveryDecoder::new(source_of("s"), OrderingMode::Fifo, 1 << 20, shared, false);
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
    let locations =
        EventLocations { sequence: Some(ValueLocation(vec![place])), ..EventLocations::DEFAULT };
    let event = decode_or_letter(&sequenced(locations), "q", &moved("s", &letter));
    let event = event.expect("an event");
    assert_eq!((event.key(), event.sequence()), ("k", Some(7)));
}

/// The sequences of a key begin at 0, but the stream expects 1. An operator sets `first = 0` and moves the letter back.
#[test]
fn letter_of_a_sequence_below_the_first_has_the_original_form() {
    let sequenced = |first: u64| {
        let locations = EventLocations::DEFAULT;
        DeliveryDecoder::new(source_of("s"), OrderingMode::Sequenced, 1 << 20, locations, false)
            .with_sequences(first..SEQUENCE_END)
    };
    let mut headers = FieldTable::default();
    headers.insert("X-Sequence-ID".into(), AMQPValue::LongInt(0));
    let original = delivery("k", BasicProperties::default().with_headers(headers));
    let letter = *decode_or_letter(&sequenced(1), "q", &original).expect_err("no sequence");
    assert_eq!((letter.cause, &*letter.id.key), (Cause::NoSequence, "k"));
    assert!(letter.error.contains("must be from 1 to"), "{}", letter.error);
    assert!(matches!(letter.content, LetterContent::Raw(_)), "{letter:?}");
    let moved = moved("s", &letter);
    assert_eq!(moved.data, original.data);
    let event = decode_or_letter(&sequenced(0), "q", &moved).expect("an event");
    assert_eq!((event.key(), event.sequence()), ("k", Some(0)));
}

/// Each time the letter `returned` returns to the stream, it becomes the same letter, even if the broker has changed
/// its headers. An edited message results in another letter.
#[test]
fn returned_letter_depends_on_the_message() {
    let original = delivery("k", BasicProperties::default());
    let first = *decode_or_letter(&decoder("s"), "q", &original).expect_err("no id");
    let moved_first = moved("s", &first);
    let returned =
        |delivery: &Delivery| *decode_or_letter(&decoder("s"), "q", delivery).expect_err("no id");
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

/// Another stream that reads the dead letters needs an id for each letter. It reads the reason from headers.
#[test]
fn letter_without_an_id_has_the_id_of_the_letter_in_another_stream() {
    let original = delivery("k", BasicProperties::default());
    let letter = *decode_or_letter(&decoder("s"), "q", &original).expect_err("no id");
    let event = decode_or_letter(&decoder("t"), "q", &moved("s", &letter)).expect("an event");
    assert!(event.id().starts_with("s/k/dead/0/"), "{}", event.id());
    assert!(event.headers().any(|header| header == ("deadcause", "no-id")));
}
