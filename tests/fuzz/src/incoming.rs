//! Fuzz targets for the bytes that producers, servers, people and other processes send.

use std::path::Path;

use amq_protocol::frame::parsing;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use lapin::message::Delivery;
use ordain_cloudevents::{
    DecodeError, EventDecoder, TextForm, compact, content_mode, decode_body, decode_http, encode,
};
use ordain_config::numbering::StreamNumbering;
use ordain_config::{
    BrokerAddress, EventLocations, IdLocation, IdPlace, JsonPointer, LoadedConfig, Place,
    ValueLocation,
};
use ordain_core::{
    EmittedMessage, Event, KeyStatus, LetterId, Message, MessageParts, OrderingMode, split_version,
};
use ordain_store::checkpoint::Checkpoint;
use ordain_store::published_file::PublishedFile;
use ordain_store::{
    InstanceId, InstanceInfo, InstanceReport, OutboxMessage, RedisAddress, versions,
};
use ordain_store_embedded as embedded;
use ordain_store_redis as redis;

use super::check_event;

/// Maximum number of events in a request body.
const BODY_EVENTS_LIMIT: usize = 10_000;
/// The usual size limit of an event, in bytes.
const EVENT_SIZE_LIMIT: usize = 1 << 20;
/// Two size limits of an event, in bytes: the usual limit, and a limit so low that the fuzzer's events can exceed it.
const SIZE_LIMITS: [usize; 2] = [EVENT_SIZE_LIMIT, 256];
const ORDERINGS: [OrderingMode; 2] = [OrderingMode::Sequenced, OrderingMode::Fifo];

/// Maximum size of an error message, in bytes, including the part of the input that the message quotes.
const ERROR_LIMIT_BYTES: usize = 8 << 10;

/// Checks that the data of an event does not exceed the size limit of an event.
fn check_size(event: &Event, limit: usize) {
    assert!(event.data().len() <= limit, "the data exceeds the size limit");
}

/// Checks that an error has a message, and that the message does not exceed its size limit.
fn check_error(error: &DecodeError) {
    assert!(
        (1..=ERROR_LIMIT_BYTES).contains(&error.message.len()),
        "the message of the error has {} bytes",
        error.message.len()
    );
}

/// Decodes the bytes as the JSON of an event, as in a line of a file or in a request body. Encodes the event as a
/// message, and decodes the message.
pub fn line(bytes: &[u8]) {
    let small = EventDecoder::new(OrderingMode::Sequenced, SIZE_LIMITS[1]);
    match small.decode(bytes) {
        Ok(event) => check_size(&event, SIZE_LIMITS[1]),
        Err(error) => check_error(&error),
    }
    for ordering in ORDERINGS {
        match EventDecoder::new(ordering, EVENT_SIZE_LIMIT).decode(bytes) {
            Err(error) => check_error(&error),
            Ok(event) => {
                check_event(&event);
                check_message_round_trip(&event, TextForm::Text);
                check_message_round_trip(&event, TextForm::Base64);
            }
        }
    }
}

/// Encodes an event as a message, and checks that the decoder reads the same event from the message.
fn check_message_round_trip(event: &Event, text_form: TextForm) {
    let headers: Vec<(&str, &str)> = event.headers().collect();
    let parts = MessageParts {
        sink: "out",
        key: Some(event.key()),
        kind: event.kind(),
        content_type: event.content_type(),
        headers: &headers,
        data: event.data(),
        delay_ms: None,
        end: event.end(),
    };
    let emitted =
        EmittedMessage { sequence: 1, index: 0, event_digest: 0, message: Message::new(&parts) };
    let message = OutboxMessage { key: "k".into(), incarnation: 1, emitted };
    let mut line = Vec::new();
    encode("orders", &message, event.sequence(), text_form, &mut line);
    // The encoded line may be longer than the input, because the encoder writes data that is not JSON as base64.
    let decoder = EventDecoder::new(OrderingMode::Sequenced, 8 * EVENT_SIZE_LIMIT);
    let again = decoder.decode(&line).expect("the encoded line can be decoded");
    assert_eq!(
        (again.key(), again.kind(), again.content_type(), again.sequence(), again.end()),
        (event.key(), event.kind(), event.content_type(), event.sequence(), event.end())
    );
    let sorted = |event: &Event| {
        let headers = event.headers().map(|(name, value)| (name.to_owned(), value.to_owned()));
        let mut headers: Vec<(String, String)> = headers.collect();
        headers.sort();
        headers
    };
    assert_eq!(sorted(&again), sorted(event));
    // If the input contained JSON as base64, the encoder wrote the JSON itself, without its white space.
    let tight = std::str::from_utf8(event.data()).ok().and_then(|text| compact(text).ok());
    let tight = tight.as_ref().map(|text| text.as_bytes());
    assert!(again.data() == event.data() || Some(again.data()) == tight, "the data differs");
}

/// Decodes the bytes as the answer of a replay source with an event, and as a request with events. The bytes contain
/// lines of headers, an empty line, and the body.
pub fn request(bytes: &[u8]) {
    let end = bytes.windows(2).position(|pair| pair == b"\n\n");
    let (head, body) = end.map_or((bytes, &[][..]), |end| (&bytes[..end], &bytes[end + 2..]));
    let mut headers = HeaderMap::new();
    for line in head.split(|byte| *byte == b'\n') {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let name = HeaderName::from_bytes(&line[..colon]);
        let value = HeaderValue::from_bytes(line[colon + 1..].trim_ascii());
        // The HTTP server would reject invalid headers, so no decoder ever receives them.
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    let body = Bytes::copy_from_slice(body);
    for (ordering, event_size) in ORDERINGS.into_iter().zip(SIZE_LIMITS) {
        let decoder = EventDecoder::new(ordering, event_size);
        match decode_http(&decoder, &headers, &body) {
            Ok(event) => {
                check_event(&event);
                check_size(&event, event_size);
            }
            Err(error) => check_error(&error),
        }
        if let Some(form) = content_mode(&headers) {
            let found = decode_body(&decoder, form, &headers, &body, BODY_EVENTS_LIMIT, |_| None);
            found.iter().flat_map(|batch| &batch.events).for_each(|event| check_event(event));
        }
    }
}

/// Decodes a message of a broker. The bytes contain the routing key, the frame of the properties, and the body.
pub fn delivery(bytes: &[u8]) {
    let Ok((rest, key)) = lapin::types::parsing::parse_short_string(bytes) else { return };
    let Ok((body, header)) = parsing::parse_content_header(rest) else { return };
    let mut delivery = Delivery::mock(1, "orders".into(), key, false, body.to_vec());
    delivery.properties = header.properties;
    for ordering in ORDERINGS {
        for locations in locations() {
            let source = "/ordain/orders".to_owned();
            let decoder = ordain_amqp::DeliveryDecoder::new(
                source,
                ordering,
                EVENT_SIZE_LIMIT,
                locations,
                false,
            );
            match decoder.decode(&delivery) {
                Ok(event) => check_event(&event),
                Err(error) => check_error(&error),
            }
        }
    }
}

/// Returns the default places of an event's values, a header with the key, and places in the data.
fn locations() -> [EventLocations; 3] {
    let data = |path| Place::Data(JsonPointer::parse(path).expect("a pointer"));
    [
        EventLocations::DEFAULT,
        EventLocations {
            key: Some(Place::Header("key".to_owned()).into()),
            ..EventLocations::DEFAULT
        },
        EventLocations {
            key: Some(data("/key/0").into()),
            id: Some(IdLocation(vec![IdPlace::Place(data("/id")), IdPlace::Content])),
            sequence: Some(ValueLocation(vec![data("/sequence")])),
            kind: Some(ValueLocation(vec![data("/type")])),
            time: Some(ValueLocation(vec![data("/time"), Place::Header("time".to_owned())])),
        },
    ]
}

/// Parses a configuration. Checks that every reported problem names an existing line, and has a message.
pub fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let env = |name: &str| (name != "NONE").then(|| format!("[{name}]"));
    match LoadedConfig::parse(Path::new("folder/ordain.toml"), text, &env) {
        Ok(loaded) => drop(loaded.check_supported()),
        Err(error) => {
            assert!(!error.problems.is_empty(), "the error names no problem");
            for problem in &error.problems {
                // If a field is missing at the end of the file, the problem may name the empty line after the last line
                // break.
                assert!(problem.line <= text.split('\n').count(), "{problem:?}");
                assert!(!problem.message.is_empty(), "{problem:?}");
            }
        }
    }
}

/// Decodes short values of many kinds: cursors, keys of tables, marks, descriptions of instances, leases, rollouts,
/// addresses, names and ids.
pub fn text(bytes: &[u8]) {
    drop(Checkpoint::decode(bytes));
    drop(StreamNumbering::decode("mark", bytes));
    let _ = PublishedFile::decode(bytes);
    table_keys(bytes);
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let info = InstanceInfo::decode(text);
    assert_eq!(InstanceInfo::decode(&info.encode()), info);
    let report = InstanceReport::decode(text);
    assert_eq!(InstanceReport::decode(&report.encode()), report);
    if let Some(id) = LetterId::parse("k", text) {
        assert_eq!(LetterId::parse("k", &id.text()), Some(id));
    }
    if let Some(status) = KeyStatus::parse(text) {
        assert_eq!(status.name(), text);
    }
    drop(text.parse::<InstanceId>());
    cursors(text);
    let (field, row) = text.split_once('\n').unwrap_or((text, ""));
    drop(redis::leases::read_lease(field, row));
    if let Some(rollout) = versions::decode(text) {
        assert!(versions::is_version(&rollout.build.version));
        assert!(rollout.number < ordain_core::Rollout::NUMBER_END);
    }
    drop(RedisAddress::parse(text));
    drop(BrokerAddress::parse(text));
    drop(split_version(text));
}

/// Decodes keys of the tables of an embedded store, and the record of a queue.
fn table_keys(key: &[u8]) {
    use embedded::keys::{
        split_due, split_fence, split_key_record, split_letter, split_stream, split_timed,
    };
    drop((split_stream(key), split_key_record(key), split_letter(key), split_fence(key)));
    drop((split_due(&key[..key.len().min(4)], key), split_timed(key)));
    if let Ok(queue) = embedded::queue::QueueEndsRecord::decode(Some(key)) {
        drop(queue.encode());
    }
}

/// Decodes cursors of listings, which a caller sends back to continue a listing. Checks that each valid cursor stays
/// the same when it is encoded and decoded again.
fn cursors(text: &str) {
    use redis::list::keys::KeyCursor;
    use redis::list::letters;
    if let Some(id) = embedded::list::letters::read_cursor(text) {
        assert_eq!(
            embedded::list::letters::read_cursor(&embedded::list::letters::write_cursor(&id)),
            Some(id)
        );
    }
    if let Some(cursor) = letters::read_cursor(text) {
        assert_eq!(letters::read_cursor(&letters::write_cursor(&cursor)), Some(cursor));
    }
    if let Some(cursor) = KeyCursor::parse(text, 16) {
        assert_eq!(KeyCursor::parse(&cursor.text(), 16), Some(cursor));
    }
}
