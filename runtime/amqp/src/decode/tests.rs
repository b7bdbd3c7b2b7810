//! Tests of the decoder: the default places of an event's values, and the places that the settings of a source name.

mod structured;

use std::path::Path;
use std::sync::Arc;

use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, DecimalValue, FieldTable, ShortString};
use ordain_cloudevents::{DecodeError, content_id};
use ordain_config::{EventLocations, LoadedConfig, RoutingKeyTemplate, SourceConfig};
use ordain_core::{
    Cause, DeadLetter, Event, EventParts, LetterContent, LetterId, OrderingMode, SEQUENCE_END,
};
use serde_json::json;

use super::DeliveryDecoder;
use crate::encode::{self, EventForm};
use crate::header::TIME_MS_HEADER;

fn decode(routing_key: &str, properties: BasicProperties) -> Result<Event, DecodeError> {
    let decoder = decoder(OrderingMode::Sequenced, EventLocations::DEFAULT);
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
fn time_header_without_a_possible_time_does_not_hide_the_timestamp() {
    let text = |text: &str| AMQPValue::LongString(text.into());
    for (value, time_ms) in [
        (AMQPValue::LongLongInt(1_234), 1_234),
        (text("1234"), 1_234),
        (text("noon"), 7_000),
        (text(""), 7_000),
        (AMQPValue::Boolean(true), 7_000),
        (AMQPValue::LongLongInt(-1), 7_000),
        // In ms, this number of µs is a time in the year 57,870.
        (AMQPValue::LongLongInt(1_764_072_000_000_000), 7_000),
    ] {
        let mut headers = FieldTable::default();
        headers.insert(TIME_MS_HEADER.into(), value);
        let shown = format!("{headers:?}");
        let properties = BasicProperties::default().with_timestamp(7).with_headers(headers);
        let event = decode("k", properties).expect("an event");
        assert_eq!(event.time_ms(), Some(time_ms), "{shown}");
    }
}

/// Returns the configuration of a stream `s` whose source has `settings`.
fn loaded(ordering: OrderingMode, settings: &str) -> LoadedConfig {
    let name = if ordering == OrderingMode::Fifo { "fifo" } else { "sequenced" };
    let text = format!(
        "[broker]\nurl = \"amqp://h\"\n[streams.s]\nhandler = \"h\"\nordering = \"{name}\"\n[streams.s.source]\n\
         kind = \"amqp\"\nexchange = \"x\"\nqueue = \"q\"\n{settings}\n"
    );
    let loaded = LoadedConfig::parse(Path::new("ordain.toml"), &text, &|_| None);
    loaded.unwrap_or_else(|error| panic!("{settings}: {error}"))
}

/// Returns a decoder of a stream whose source has `settings`.
fn located(ordering: OrderingMode, settings: &str) -> DeliveryDecoder {
    let loaded = loaded(ordering, settings);
    let SourceConfig::Amqp(source) = &loaded.config.streams["s"].source else { unreachable!() };
    decoder(ordering, source.locations())
}

fn decoder(ordering: OrderingMode, locations: EventLocations) -> DeliveryDecoder {
    DeliveryDecoder::new("/ordain/s".to_owned(), ordering, 1 << 20, locations, false)
}

fn message(properties: BasicProperties, body: &[u8]) -> Delivery {
    let mut delivery = Delivery::mock(1, "x".into(), "order.paid".into(), false, body.to_vec());
    delivery.properties = properties;
    delivery
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

fn with_headers(headers: &[(&str, AMQPValue)]) -> BasicProperties {
    let mut table = FieldTable::default();
    for (name, value) in headers {
        table.insert((*name).into(), value.clone());
    }
    BasicProperties::default().with_headers(table)
}

fn list() -> AMQPValue {
    AMQPValue::FieldArray(Vec::<AMQPValue>::new().into())
}

fn decimal(value: i32, scale: u8) -> AMQPValue {
    AMQPValue::DecimalValue(DecimalValue { scale, value: value.cast_unsigned() })
}

/// Checks the event of a message. `expected` contains its key, id, type and time.
#[track_caller]
fn check_message(
    settings: &str,
    properties: BasicProperties,
    body: &str,
    expected: (&str, &str, &str, Option<u64>),
) {
    let decoder = located(OrderingMode::Fifo, settings);
    let event = decoder.decode(&message(properties, body.as_bytes()));
    let event = event.unwrap_or_else(|error| panic!("{settings}: {error}"));
    let found = (event.key(), event.id(), event.kind(), event.time_ms());
    assert_eq!(found, expected, "{settings}");
}

/// With default settings, usual producers write the values into headers and properties, or do not write them.
#[test]
fn values_are_read_from_headers_and_properties() {
    // pika: no properties.
    let id = content_id("order.paid", "", b"{}");
    let settings = "id = \"content\"";
    check_message(settings, BasicProperties::default(), "{}", ("order.paid", &id, "", None));
    // Celery: the id of the task twice, and no message_id.
    let celery = with_headers(&[("id", text("task-1")), ("task", text("orders.pay"))])
        .with_correlation_id("task-1".into());
    let settings = "key = \"*\"\nid = \"property:correlation_id\"\ntype = \"header:task\"";
    check_message(settings, celery.clone(), "[[17], {}, {}]", ("*", "task-1", "orders.pay", None));
    let settings = "key = \"data:/0/0\"\nid = \"header:id\"";
    check_message(settings, celery, "[[17], {}, {}]", ("17", "task-1", "", None));
    // NServiceBus: headers of its own, and an empty routing key.
    let service_bus = with_headers(&[
        ("NServiceBus.MessageId", text("nsb-1")),
        ("NServiceBus.ConversationId", text("c-1")),
        ("NServiceBus.EnclosedMessageTypes", text("Shop.OrderPaid")),
    ]);
    let settings = "key = \"header:NServiceBus.ConversationId\"\nid = \"header:NServiceBus.MessageId\"\n\
                    type = \"header:NServiceBus.EnclosedMessageTypes\"";
    check_message(settings, service_bus, "", ("c-1", "nsb-1", "Shop.OrderPaid", None));
    // Spring: the class in a header, and no message_id.
    let spring = with_headers(&[("__TypeId__", text("shop.OrderPaid"))]);
    let id = content_id("order.paid", "shop.OrderPaid", b"{\"a\":1}");
    let settings = "id = \"content\"\ntype = \"header:__TypeId__\"";
    check_message(settings, spring, "{\"a\":1}", ("order.paid", &id, "shop.OrderPaid", None));
    // Knative and the CloudEvents SDK for RabbitMQ: headers `ce-`.
    let knative = with_headers(&[
        ("ce-specversion", text("1.0")),
        ("ce-id", text("kn-1")),
        ("ce-type", text("t")),
        ("ce-subject", text("s")),
        ("ce-time", text("2026-11-25T12:00:00Z")),
    ]);
    let expected = ("s", "kn-1", "t", Some(1_795_608_000_000));
    check_message("key = \"header:ce-subject\"", knative, "", expected);
    // amqplib: `timestamp: Date.now()`, which is in ms.
    let amqplib =
        BasicProperties::default().with_message_id("1".into()).with_timestamp(1_764_072_000_123);
    let expected = ("order.paid", "1", "", Some(1_764_072_000_123));
    check_message("time = \"property:timestamp\"", amqplib.clone(), "", expected);
    check_message("", amqplib, "", expected);
}

#[test]
fn values_are_read_from_json_data() {
    let plain = BasicProperties::default;
    // MassTransit: an envelope, with message_id and an empty routing key.
    let body = json!({"messageType": ["urn:message:OrderPaid"], "message": {"orderId": 17}});
    let settings = "key = \"data:/message/orderId\"\ntype = \"data:/messageType/0\"";
    let properties = plain().with_message_id("mt-1".into());
    let expected = ("17", "mt-1", "urn:message:OrderPaid", None);
    check_message(settings, properties, &body.to_string(), expected);
    // NestJS: the pattern in the body, and no id.
    let body = json!({"pattern": "order.paid", "data": {"order": "o-1"}});
    let settings = "key = \"{data:/pattern}/{data:/data/order}\"\ntype = \"data:/pattern\"\n\
                    id = [\"property:message_id\", \"data:/data/order\"]";
    let expected = ("order.paid/o-1", "o-1", "order.paid", None);
    check_message(settings, plain(), &body.to_string(), expected);
    // dramatiq: the id and the time in the body.
    let body = json!({"actor_name": "pay", "message_id": "dq-1", "message_timestamp": 1_764_072_000_123_u64});
    let settings = "id = \"data:/message_id\"\ntype = \"data:/actor_name\"\ntime = \"data:/message_timestamp\"";
    let expected = ("order.paid", "dq-1", "pay", Some(1_764_072_000_123));
    check_message(settings, plain(), &body.to_string(), expected);
}

/// If the first place of a format is empty, the decoder uses the second place. Dapr can also publish CloudEvents in
/// structured mode.
#[test]
fn formats_read_the_other_forms_of_their_libraries() {
    let time = Some(1_764_072_000_125);
    let envelope = r#"{"messageId":"m-1","messageType":["urn:message:Shop:Paid"],"message":{"orderId":17},
                       "sentTime":"2025-11-25T12:00:00.125Z"}"#;
    let settings = "format = \"masstransit\"\nkey = \"data:/message/orderId\"";
    let expected = ("17", "m-1", "urn:message:Shop:Paid", time);
    check_message(settings, BasicProperties::default(), envelope, expected);
    let service_bus = with_headers(&[
        ("NServiceBus.MessageId", text("m-1")),
        ("NServiceBus.EnclosedMessageTypes", text("Shop.Paid, Shop")),
    ]);
    let settings = "format = \"nservicebus\"\nkey = \"data:/OrderId\"";
    let expected = ("17", "m-1", "Shop.Paid, Shop", Some(7_000));
    check_message(settings, service_bus.with_timestamp(7), r#"{"OrderId":17}"#, expected);
    let spring = with_headers(&[("spring_returned_message_correlation", text("c-1"))])
        .with_type("paid".into());
    let settings = "format = \"spring\"\nkey = \"routing-key\"";
    check_message(settings, spring, "{}", ("order.paid", "c-1", "paid", None));
    let celery = BasicProperties::default().with_correlation_id("task-1".into());
    let settings = "format = \"celery\"\nkey = \"*\"";
    check_message(settings, celery, "[]", ("*", "task-1", "", None));
    let event = r#"{"specversion":"1.0","id":"e-1","source":"checkout","type":"com.dapr.event.sent",
                    "time":"2025-11-25T12:00:00.125Z","data":{"orderId":17,"id":"o","type":"x","time":1}}"#;
    let structured = BasicProperties::default()
        .with_content_type("application/cloudevents+json".into())
        .with_message_id("m-1".into());
    let settings = "format = \"dapr\"\nkey = \"data:/orderId\"";
    check_message(settings, structured, event, ("17", "e-1", "com.dapr.event.sent", time));
}

#[test]
fn values_of_every_type_are_keys() {
    let decoder = located(OrderingMode::Fifo, "key = \"header:k\"\nid = \"none\"");
    for (value, key) in [
        (text("a"), "a"),
        (decimal(1, 0), "1"),
        (decimal(100, 2), "1"),
        (decimal(150, 2), "1.50"),
        (AMQPValue::Boolean(true), "true"),
        (AMQPValue::Boolean(false), "false"),
        (AMQPValue::LongLongInt(-7), "-7"),
        (AMQPValue::Double(1.5), "1.5"),
        (AMQPValue::ByteArray(b"b".to_vec().into()), "b"),
        (AMQPValue::Timestamp(9), "9"),
    ] {
        let delivery = message(with_headers(&[("k", value), ("other", text("x"))]), b"");
        let event = decoder.decode(&delivery).expect(key);
        assert_eq!(event.key(), key);
        assert_eq!(event.headers().collect::<Vec<_>>(), [("other", "x")], "{key}");
        assert_ne!(event.id(), decoder.decode(&delivery).expect(key).id());
    }
    let decoder = located(OrderingMode::Fifo, "key = \"data:/k\"\nid = \"none\"");
    for (body, key) in [
        (r#"{"k":"a"}"#, "a"),
        (r#"{"k":17}"#, "17"),
        (r#"{"k":1.50}"#, "1.50"),
        (r#"{"k":true}"#, "true"),
    ] {
        let delivery = message(BasicProperties::default(), body.as_bytes());
        assert_eq!(decoder.decode(&delivery).expect(body).key(), key);
    }
}

#[test]
fn missing_values_are_described_with_every_place() {
    for (settings, headers, body, cause, message_text) in [
        (
            "key = \"header:order-id\"",
            vec![],
            "",
            Cause::NoKey,
            "there is no key: the header \"order-id\" must contain the key",
        ),
        (
            "key = \"header:order-id\"",
            vec![("order-id", list())],
            "",
            Cause::NoKey,
            "there is no key: the header \"order-id\" must contain the key; the header \"order-id\" must be a text, a \
             number or a Boolean, found []",
        ),
        (
            "key = \"header:order-id\"",
            vec![("order-id", AMQPValue::Void)],
            "",
            Cause::NoKey,
            "there is no key: the header \"order-id\" must contain the key",
        ),
        (
            "key = [\"header:a\", \"property:correlation_id\", \"data:/b\"]",
            vec![("a", text(""))],
            "{\"b\":[1]}",
            Cause::NoKey,
            "there is no key: the header \"a\", the property correlation_id or the data at \"/b\" must contain the key",
        ),
        (
            "key = \"data:/b\"",
            vec![],
            "plain",
            Cause::NoKey,
            "there is no key: the data at \"/b\" must contain the key; the data is not JSON",
        ),
        (
            "key = \"{header:tenant}/{data:/order}\"",
            vec![("tenant", text("t"))],
            "{\"order\":null}",
            Cause::NoKey,
            "there is no key: the data at \"/order\" must contain a part of the key",
        ),
        (
            "",
            vec![("cloudEvents:id", text(""))],
            "{}",
            Cause::NoId,
            "there is no id, and a fifo stream detects repeats by the id: the header with the attribute `id` of the \
             CloudEvent is empty",
        ),
        (
            "id = [\"header:id\", \"data:/id\"]",
            vec![],
            "{}",
            Cause::NoId,
            "there is no id, and a fifo stream detects repeats by the id: the header \"id\" or the data at \"/id\" \
             must contain the id",
        ),
    ] {
        let decoder = located(OrderingMode::Fifo, settings);
        let error = decoder.decode(&message(with_headers(&headers), body.as_bytes()));
        let error = error.expect_err(settings);
        assert_eq!((error.cause, &*error.message), (cause, message_text), "{settings}");
    }
}

#[test]
fn sequences_are_whole_numbers() {
    let decoder = located(OrderingMode::Sequenced, "sequence = [\"header:version\", \"data:/n\"]");
    let decode = |headers: &[(&str, AMQPValue)], body: &str| {
        decoder.decode(&message(with_headers(headers), body.as_bytes()))
    };
    for (value, sequence) in [
        (text("0007"), 7),
        (AMQPValue::LongInt(7), 7),
        (decimal(700, 2), 7),
        (AMQPValue::ByteArray(b"7".to_vec().into()), 7),
    ] {
        let event = decode(&[("version", value)], "").expect("an event");
        assert_eq!((event.sequence(), event.id()), (Some(sequence), "order.paid/7"));
        // The header is visible to the handler.
        assert_eq!(event.headers().count(), 1);
    }
    assert_eq!(decode(&[], "{\"n\":\"9\"}").expect("an event").sequence(), Some(9));
    // The default header of the sequence has no meaning.
    for body in ["{}", "no JSON"] {
        let event = decode(&[("X-Sequence-ID", text("1"))], body).expect("an event");
        assert_eq!((event.sequence(), event.id()), (None, ""));
    }
    let fifo = located(OrderingMode::Fifo, "id = \"none\"");
    let numbered = message(with_headers(&[("X-Sequence-ID", text("1"))]), b"");
    let event = fifo.decode(&numbered).expect("an event");
    assert_eq!(event.headers().collect::<Vec<_>>(), [("X-Sequence-ID", "1")]);
    for (value, found) in [
        (AMQPValue::Double(1.5), "1.5"),
        (decimal(150, 2), "1.50"),
        (AMQPValue::LongInt(-1), "-1"),
        (text("x"), "\"x\""),
        (AMQPValue::Boolean(true), "true"),
        (list(), "[]"),
    ] {
        let error = decode(&[("version", value)], "").expect_err(found);
        let expected = format!(
            "the header \"version\" must be a whole number below {SEQUENCE_END}, found {found}"
        );
        assert_eq!((error.cause, error.message), (Cause::NoSequence, expected));
        assert_eq!((error.key.as_deref(), error.sequence), (Some("order.paid"), None));
    }
    let error = decode(&[], "{\"n\":1.5}").expect_err("no sequence");
    assert!(error.message.ends_with("found 1.5"), "{error}");
}

/// The dead letter of an invalid message names the key and the sequence that the locations find.
#[test]
fn error_contains_located_key_and_sequence() {
    let settings = "key = \"data:/k\"\nsequence = \"data:/n\"";
    let decoder = located(OrderingMode::Sequenced, settings);
    let properties = with_headers(&[("X-End-Of-Sequence", text("maybe"))]);
    let error =
        decoder.decode(&message(properties, b"{\"k\":\"a\",\"n\":3}")).expect_err("invalid");
    assert_eq!((error.key.as_deref(), error.sequence), (Some("a"), Some(3)));
}

/// The SDK for Python writes a Boolean in the text form of Python.
#[test]
fn end_of_a_key_is_read_in_upper_and_lower_case() {
    for name in ["X-End-Of-Sequence", "cloudEvents:endofsequence", "cloudEvents_endofsequence"] {
        for (value, end) in [
            (AMQPValue::Boolean(true), true),
            (text("true"), true),
            (text("True"), true),
            (text("TRUE"), true),
            (text("1"), true),
            (AMQPValue::LongInt(1), true),
            (AMQPValue::Boolean(false), false),
            (text("False"), false),
            (text("0"), false),
        ] {
            let shown = format!("{name}: {value:?}");
            let event = decode("k", with_headers(&[(name, value)]));
            assert_eq!(event.expect(&shown).end(), end, "{shown}");
        }
    }
    let error = decode("k", with_headers(&[("cloudEvents:endofsequence", text("yes"))]));
    let error = error.expect_err("no Boolean");
    assert_eq!(error.cause, Cause::Unreadable);
    let words = "endofsequence must be true or false, found \"yes\"";
    assert!(error.message.contains(words), "{error}");
}

/// The error of a too long content type names the attribute, its size and the limit.
#[test]
fn too_long_content_type_is_rejected() {
    let long = "x".repeat(4_097);
    let error = decode("k", with_headers(&[("cloudEvents:datacontenttype", text(&long))]));
    let error = error.expect_err("a long content type");
    assert_eq!((error.cause, error.key.as_deref()), (Cause::Unreadable, Some("k")));
    let expected = "the datacontenttype has 4097 bytes; at most 4096 bytes are allowed";
    assert_eq!(error.message, expected);
}

/// The decoder accepts an event whose time or type cannot be read.
#[test]
fn unreadable_time_or_type_counts_as_missing() {
    let read = |value: AMQPValue| {
        let properties = with_headers(&[("cloudEvents:time", value)]);
        decode("k", properties.with_message_id("1".into())).expect("an event").time_us()
    };
    for (value, time_us) in [
        (text("2026-11-25T14:00:00.123456+02:00"), Some(1_795_608_000_123_456)),
        (AMQPValue::Timestamp(1_764_072_000), Some(1_764_072_000_000_000)),
        (AMQPValue::LongLongInt(1_764_072_000_123), Some(1_764_072_000_123_000)),
        (text("1764072000123456"), Some(1_764_072_000_123_456)),
        (AMQPValue::Double(1_764_072_000.123), Some(1_764_072_000_123_000)),
        (AMQPValue::Double(1_764_072_000.0), Some(1_764_072_000_000_000)),
        (AMQPValue::Double(1_764_072_000_123.0), Some(1_764_072_000_123_000)),
        (AMQPValue::Double(1_764_072_000_123_456.0), Some(1_764_072_000_123_456)),
        (AMQPValue::Double(1e300), None),
        (AMQPValue::LongLongInt(1_764_072_000_123_456), Some(1_764_072_000_123_456)),
        (AMQPValue::Void, None),
        (decimal(1_764_072_000, 3), Some(1_764_072_000_000)),
        (text("yesterday"), None),
        (text("10000-01-01T00:00:00Z"), None),
        (text("1969-12-31T23:59:59Z"), None),
        (AMQPValue::LongLongInt(-1), None),
        (AMQPValue::Boolean(true), None),
        (AMQPValue::FieldTable(FieldTable::default()), None),
    ] {
        let shown = format!("{value:?}");
        assert_eq!(read(value), time_us, "{shown}");
    }
    let timestamp = BasicProperties::default().with_timestamp(1_764_072_000_123);
    assert_eq!(decode("k", timestamp).expect("an event").time_ms(), Some(1_764_072_000_123));
    // If the time in the header cannot be read, the decoder uses the property.
    let both = with_headers(&[("cloudEvents:time", text("yesterday"))]).with_timestamp(7);
    assert_eq!(decode("k", both).expect("an event").time_ms(), Some(7_000));
    let list = list();
    let kind = decode("k", with_headers(&[("cloudEvents:type", list)])).expect("an event");
    assert_eq!(kind.kind(), "");
    // An attribute of the type void counts as missing, so the decoder uses the property.
    let void = with_headers(&[
        ("cloudEvents:type", AMQPValue::Void),
        ("cloudEvents:source", AMQPValue::Void),
        ("cloudEvents:tenant", AMQPValue::Void),
    ]);
    let event = decode("k", void.with_type("t".into())).expect("an event");
    assert_eq!((event.kind(), event.source(), event.headers().count()), ("t", "", 0));
    let decoder =
        located(OrderingMode::Sequenced, "type = \"data:/t\"\ntime = [\"header:t\", \"data:/at\"]");
    let event = decoder.decode(&message(BasicProperties::default(), b"{\"t\":{},\"at\":\"noon\"}"));
    let event = event.expect("an event");
    assert_eq!((event.kind(), event.time_ms()), ("", None));
    let later = message(with_headers(&[("t", text("noon"))]), b"{\"at\":1764072000.123}");
    let event = decoder.decode(&later).expect("an event");
    assert_eq!(event.time_ms(), Some(1_764_072_000_123));
}

/// Celery and other clients write headers of the type void. Such a header counts as missing, even if its name has a
/// meaning for Ordain.
#[test]
fn void_header_counts_as_missing() {
    let void = [
        ("eta", AMQPValue::Void),
        ("X-Sequence-ID", AMQPValue::Void),
        ("X-End-Of-Sequence", AMQPValue::Void),
        ("cloudEvents:sequence", AMQPValue::LongInt(7)),
        ("retries", AMQPValue::LongInt(0)),
        ("timelimit", AMQPValue::FieldArray(vec![AMQPValue::Void, AMQPValue::Void].into())),
        ("limits", AMQPValue::FieldArray(vec![AMQPValue::LongInt(30), AMQPValue::Void].into())),
        ("list", list()),
    ];
    let event = decode("k", with_headers(&void)).expect("an event");
    assert_eq!((event.sequence(), event.end()), (Some(7), false));
    let mut headers: Vec<(&str, &str)> = event.headers().collect();
    headers.sort_unstable();
    assert_eq!(headers, [("limits", "[30,null]"), ("list", "[]"), ("retries", "0")]);

    let structured = with_headers(&[("eta", AMQPValue::Void), ("tenant", text("blue"))])
        .with_content_type("application/cloudevents+json".into());
    let body =
        br#"{"specversion":"1.0","id":"1","source":"/s","type":"t","subject":"k","sequence":"1"}"#;
    let decoder = decoder(OrderingMode::Sequenced, EventLocations::DEFAULT);
    let event = decoder.decode(&message(structured, body)).expect("an event");
    assert_eq!(event.headers().collect::<Vec<_>>(), [("tenant", "blue")]);
}

/// An event that arrives over HTTP passes through the exchange. The stream must read the same event, whatever its
/// locations are.
#[test]
fn published_event_is_read_from_the_default_places() {
    let parts = EventParts {
        key: "k/1",
        id: "id-1",
        kind: "t",
        source: "/s",
        time_us: Some(1_764_072_000_000_005),
        headers: &[("id", "other"), ("version", "9")],
        data: b"{\"k\":\"other\"}",
        ..EventParts::default()
    };
    let event = Arc::new(Event::new(&parts));
    for settings in [
        "",
        "key = \"header:order\"",
        "key = \"header:order\"\nid = \"data:/id\"",
        "key = \"property:message_id\"",
        "key = \"property:correlation_id\"",
        "key = \"property:timestamp\"",
        "key = \"data:/k\"\nid = \"header:id\"\ntype = \"header:version\"\ntime = \"header:version\"",
        "key = [\"header:order\", \"routing-key\"]",
        "key = \"*\"\nid = \"none\"",
        "id = \"content\"",
    ] {
        let decoder = located(OrderingMode::Fifo, settings);
        let sent = encode::event(&event, None, &EventForm::new("s", &decoder.locations));
        let mut delivery =
            Delivery::mock(1, "x".into(), sent.routing_key.clone(), false, event.data().to_vec());
        delivery.properties = sent.properties.clone();
        let received =
            decoder.decode(&delivery).unwrap_or_else(|error| panic!("{settings}: {error}"));
        assert_eq!(
            (received.key(), received.id(), received.kind()),
            ("k/1", "id-1", "t"),
            "{settings}"
        );
        assert_eq!((received.source(), received.time_us()), ("/s", event.time_us()), "{settings}");
        let mut headers: Vec<_> = received.headers().collect();
        headers.sort_unstable();
        assert_eq!(headers, [("id", "other"), ("version", "9")], "{settings}");
        assert_eq!(sent.id(), b"id-1", "{settings}");
    }
    // The exchange chooses the partition by the part of the message that contains the key.
    let sent = |settings: &str| {
        let decoder = located(OrderingMode::Fifo, settings);
        encode::event(&event, None, &EventForm::new("s", &decoder.locations)).properties
    };
    let by_header = sent("key = \"header:order\"");
    assert_eq!(encode::header(&by_header, "order"), b"k/1");
    let by_id = sent("key = \"property:message_id\"");
    assert_eq!(by_id.message_id().as_ref().map(ShortString::as_str), Some("k/1"));
    let by_property = sent("key = \"property:correlation_id\"");
    assert_eq!(by_property.correlation_id().as_ref().map(ShortString::as_str), Some("k/1"));
}

/// Other streams on the same exchange receive the events that Ordain publishes to a stream. These streams, and streams
/// that need no header [`DEFAULT_PLACES_HEADER`], read their own places.
#[test]
fn header_of_published_events_applies_to_its_stream_only() {
    let read = |settings: &str, headers: &[(&str, AMQPValue)]| {
        let decoder = located(OrderingMode::Fifo, settings);
        let event = decoder.decode(&message(with_headers(headers), b"{\"k\":\"placed\"}"));
        event.map_or_else(|error| error.message, |event| event.key().to_owned())
    };
    let by_data = "key = \"data:/k\"\nid = \"none\"";
    let marked = |source: AMQPValue| {
        [("X-Ordain-Event", source), ("X-Key", text("own")), ("cloudEvents:id", text("1"))]
    };
    assert_eq!(read(by_data, &marked(text("/ordain/s"))), "own");
    assert_eq!(read(by_data, &marked(text("/ordain/other"))), "placed");
    assert_eq!(read(by_data, &marked(AMQPValue::Boolean(true))), "placed");
    assert_eq!(read(by_data, &marked(text("/ordain/s"))[..1]), "placed");
    let mut by_header = marked(text("/ordain/s")).to_vec();
    by_header.push(("order", text("o-1")));
    assert_eq!(read("key = \"header:order\"", &by_header), "o-1");
    assert_eq!(read("", &by_header), "order.paid");
}

/// If an event has a header with the name of the header that contains the key, the encoder renames the event's header.
#[test]
fn header_with_the_key_replaces_no_header_of_the_event() {
    let parts =
        EventParts { key: "k", id: "1", headers: &[("order", "first")], ..EventParts::default() };
    let decoder = located(OrderingMode::Fifo, "key = \"header:order\"");
    let form = EventForm::new("s", &decoder.locations);
    let sent = encode::event(&Arc::new(Event::new(&parts)), None, &form);
    let received = decoder.decode(&message(sent.properties, b"")).expect("an event");
    assert_eq!(received.key(), "k");
    assert_eq!(received.headers().collect::<Vec<_>>(), [("x-original-order", "first")]);
}

/// Without the header `ce-specversion`, headers with the prefix `ce-` have no meaning.
#[test]
fn headers_of_the_http_binding_are_attributes() {
    let headers = [
        ("ce-id", text("1")),
        ("ce-source", text("/shop")),
        ("ce-subject", text("s")),
        ("ce-sequence", text("3")),
        ("ce-tenant", text("t")),
    ];
    let event = decode("k", with_headers(&headers)).expect("an event");
    assert_eq!((event.id(), event.source(), event.sequence()), ("", "", None));
    assert_eq!(event.headers().count(), 5);
    let mut binding = headers.to_vec();
    binding.push(("ce-specversion", text("1.0")));
    let event = decode("k", with_headers(&binding)).expect("an event");
    assert_eq!((event.id(), event.source(), event.sequence()), ("1", "/shop", Some(3)));
    let mut others: Vec<_> = event.headers().collect();
    others.sort_unstable();
    assert_eq!(others, [("subject", "s"), ("tenant", "t")]);
}

/// A stream recognises a store-numbered event, unless a setting names the place of the sequence or of the id. If an
/// event itself has a header with the name `X-Ordain-Numbered`, this header has no effect.
#[test]
fn store_numbered_event_is_recognised() {
    let headers = [("X-Ordain-Numbered", "true"), ("other", "2")];
    let parts = EventParts { key: "k", id: "1", headers: &headers, ..EventParts::default() };
    let plain = Event::new(&parts);
    let marked = plain.numbered_by_store();
    let is_marked = |event: &Event, ordering, settings: &str| {
        let decoder = located(ordering, settings);
        let form = EventForm::new("s", &EventLocations::DEFAULT);
        let sent = encode::event(&Arc::new(event.clone()), Some(7), &form);
        let mut delivery = message(sent.properties, b"");
        delivery.routing_key = sent.routing_key;
        let received = decoder.decode(&delivery).expect("an event");
        assert!(received.headers().all(|(name, _)| name != "X-Ordain-Numbered"));
        received.is_store_numbered()
    };
    assert!(is_marked(&marked, OrderingMode::Sequenced, ""));
    assert!(!is_marked(&plain, OrderingMode::Sequenced, ""));
    assert!(!is_marked(&marked, OrderingMode::Fifo, ""));
    assert!(!is_marked(&marked, OrderingMode::Sequenced, "id = \"header:other\""));
    assert!(!is_marked(&marked, OrderingMode::Sequenced, "sequence = \"header:other\""));
}

/// The event in a returned dead letter of a `sequenced` stream is a repeat of the event that became the letter, even if
/// the store numbered the event. If a letter has another sequence than its event, the letter itself is a new event.
#[test]
fn returned_letter_contains_a_repeat() {
    let parts = EventParts {
        key: "k",
        sequence: Some(5),
        id: "1",
        source: "/shop",
        kind: "t",
        data: b"x",
        ..EventParts::default()
    };
    let event = Event::new(&parts).with_store_numbered(true);
    let letter = DeadLetter {
        id: LetterId { key: "k".into(), sequence: 5, tag: 1 },
        cause: Cause::Rejected,
        error: "no".to_owned(),
        origin: None,
        version: None,
        content: LetterContent::Event(Arc::new(event.clone())),
    };
    let template = RoutingKeyTemplate("{key}".to_owned());
    for settings in ["", "key = \"header:other\""] {
        for (stream, number, is_repeat) in
            [("s", None, true), ("s", Some(9), false), ("other", None, false)]
        {
            // If a setting names the place of the key, the stream cannot read the key of another stream's letter.
            if stream != "s" && !settings.is_empty() {
                continue;
            }
            let sent = encode::letter(stream, &letter, number, &template, 7);
            let mut delivery = message(sent.properties, sent.body.bytes());
            delivery.routing_key = sent.routing_key;
            let received = located(OrderingMode::Sequenced, settings).decode(&delivery);
            let received = received.unwrap_or_else(|error| panic!("{settings} {stream}: {error}"));
            assert_eq!(received.sequence(), number.or(Some(5)));
            assert_eq!(received.repeats(&event), is_repeat, "{settings} {stream} {number:?}");
            let source = if is_repeat { "/shop".to_owned() } else { format!("/ordain/{stream}") };
            assert_eq!(received.source(), source);
        }
    }
}

/// The handler reads properties as headers, unless they are parts of the event. A header of the message with the name
/// of a property gets another name.
#[test]
fn properties_are_headers() {
    let properties = with_headers(&[("property:user_id", text("forged"))])
        .with_content_encoding("utf-8".into())
        .with_correlation_id("c-1".into())
        .with_reply_to("replies".into())
        .with_app_id("shop".into())
        .with_user_id("guest".into())
        .with_priority(0)
        .with_expiration("60000".into());
    let expected = [
        ("property:app_id", "shop"),
        ("property:content_encoding", "utf-8"),
        ("property:correlation_id", "c-1"),
        ("property:expiration", "60000"),
        ("property:priority", "0"),
        ("property:reply_to", "replies"),
        ("property:user_id", "guest"),
        ("x-original-property:user_id", "forged"),
    ];
    let headers = |event: &Event| {
        let mut headers: Vec<(String, String)> =
            event.headers().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        headers.sort_unstable();
        headers
    };
    let event = decode("k", properties.clone()).expect("an event");
    assert_eq!(headers(&event), expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    // A property that contains the key is no header.
    let decoder = located(OrderingMode::Sequenced, "key = \"property:correlation_id\"");
    let event = decoder.decode(&message(properties, b"")).expect("an event");
    assert_eq!((event.key(), event.headers().count()), ("c-1", expected.len() - 1));
    let event = decoder.decode(&message(
        BasicProperties::default()
            .with_correlation_id("c".into())
            .with_content_encoding("gzip".into()),
        b"no gzip",
    ));
    let error = event.expect_err("no gzip");
    assert_eq!((error.cause, error.key.as_deref()), (Cause::Unreadable, Some("c")));
}
