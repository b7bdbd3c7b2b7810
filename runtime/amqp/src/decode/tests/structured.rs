//! Tests of CloudEvents in structured mode.

use ordain_config::MESSAGE_EVENTS_LIMIT;

use super::*;

fn structured(properties: BasicProperties, members: &str) -> Delivery {
    let body = format!(
        r#"{{"specversion":"1.0","id":"e1","source":"/shop","type":"order.paid",{members}"data":{{"order":17}}}}"#
    );
    let content_type = "application/cloudevents+json; charset=UTF-8".into();
    message(properties.with_content_type(content_type), body.as_bytes())
}

#[test]
fn attributes_are_read_from_the_body() {
    let ignored = with_headers(&[
        ("cloudEvents:id", text("other")),
        ("cloudEvents_type", text("other")),
        ("tenant", text("blue")),
        ("x-delivery-count", AMQPValue::LongInt(3)),
    ]);
    let properties = ignored.with_message_id("other".into()).with_type("other".into());
    let members = r#""subject":"o-1","sequence":"4","time":"2026-11-25T12:00:00Z","flag":true,"#;
    let delivery = structured(properties, members);
    let event = decoder(OrderingMode::Sequenced, EventLocations::DEFAULT).decode(&delivery);
    let event = event.expect("an event");
    assert_eq!((event.key(), event.id(), event.kind()), ("o-1", "e1", "order.paid"));
    assert_eq!((event.source(), event.content_type()), ("/shop", "application/json"));
    assert_eq!((event.sequence(), event.time_ms()), (Some(4), Some(1_795_608_000_000)));
    assert_eq!(event.data(), b"{\"order\":17}");
    assert_eq!(event.headers().collect::<Vec<_>>(), [("flag", "true"), ("tenant", "blue")]);
}

/// Without this check, an attribute whose name has the wrong case would be an extension, and the routing key would
/// become the key.
#[test]
fn wrong_case_of_the_key_is_rejected() {
    for (settings, members, right) in [
        ("", r#""partitionKey":"p","#, Some("partitionkey")),
        ("", r#""subject":"s","partitionKey":"p","#, Some("partitionkey")),
        ("", r#""Subject":"s","#, Some("subject")),
        ("", r#""partitionkey":"p","Subject":"s","#, None),
        ("key = \"header:order\"", r#""Subject":"s","partitionKey":"p","#, None),
    ] {
        let properties = with_headers(&[("order", text("o-9"))]);
        let delivery = structured(properties, members);
        let decoded = located(OrderingMode::Sequenced, settings).decode(&delivery);
        match (decoded, right) {
            (Err(error), Some(right)) => {
                assert_eq!(error.cause, Cause::Unreadable, "{settings} {members}");
                assert!(error.message.contains(&format!("write `{right}`")), "{error}");
            }
            (Ok(_), None) => {}
            (decoded, _) => panic!("{settings} {members}: {decoded:?}"),
        }
    }
}

#[test]
fn key_is_an_attribute_or_the_routing_key_or_in_a_named_place() {
    let properties = || with_headers(&[("order", text("o-9"))]).with_correlation_id("c".into());
    for (settings, members, key, headers) in [
        ("", r#""subject":"s","partitionkey":"p","#, "p", vec!["order", "subject"]),
        ("", r#""subject":"s","#, "s", vec!["order"]),
        ("", r#""subject":"","#, "order.paid", vec!["order", "subject"]),
        ("", "", "order.paid", vec!["order"]),
        ("key = \"header:order\"", r#""subject":"s","#, "o-9", vec!["subject"]),
        ("key = \"data:/order\"", "", "17", vec!["order"]),
        ("key = \"{header:order}/{data:/order}\"", "", "o-9/17", vec!["order"]),
    ] {
        let event =
            located(OrderingMode::Fifo, settings).decode(&structured(properties(), members));
        let event = event.unwrap_or_else(|error| panic!("{settings}: {error}"));
        assert_eq!(event.key(), key, "{settings} {members}");
        let mut found: Vec<_> = event.headers().map(|(name, _)| name).collect();
        found.retain(|name| *name != "property:correlation_id");
        found.sort_unstable();
        assert_eq!(found, headers, "{settings} {members}");
    }
    let settings = "id = [\"property:correlation_id\", \"content\"]\ntime = \"data:/order\"";
    let event = located(OrderingMode::Fifo, settings).decode(&structured(properties(), ""));
    let event = event.expect("an event");
    assert_eq!((event.id(), event.time_ms()), ("c", Some(17_000)));
    // The exchange divides the messages by the routing key, so the subject cannot be the key.
    let source = "/ordain/s".to_owned();
    let locations = EventLocations::DEFAULT;
    let divided = DeliveryDecoder::new(source, OrderingMode::Fifo, 1 << 20, locations, true);
    let event = divided.decode(&structured(properties(), r#""subject":"s","#));
    assert_eq!(event.expect("an event").key(), "order.paid");
}

#[test]
fn optional_attribute_that_cannot_be_read_counts_as_missing() {
    for (members, time_ms) in [
        (r#""time":"yesterday","#, None),
        (r#""time":{},"#, None),
        (r#""time":"10000-01-01T00:00:00Z","#, None),
        (r#""time":1764072000123,"#, Some(1_764_072_000_123)),
        (r#""datacontenttype":7,"subject":{},"dataschema":[],"#, None),
    ] {
        let decoder = decoder(OrderingMode::Fifo, EventLocations::DEFAULT);
        let event = decoder.decode(&structured(BasicProperties::default(), members));
        let event = event.unwrap_or_else(|error| panic!("{members}: {error}"));
        assert_eq!((event.time_ms(), event.content_type()), (time_ms, "application/json"));
    }
}

/// The SDK for Python writes a Boolean in the text form of Python.
#[test]
fn end_of_a_key_is_read_in_upper_and_lower_case() {
    let decoder = decoder(OrderingMode::Fifo, EventLocations::DEFAULT);
    for (value, end) in [("true", true), ("\"True\"", true), ("\"FALSE\"", false), ("null", false)]
    {
        let members = format!("\"endofsequence\":{value},");
        let event = decoder.decode(&structured(BasicProperties::default(), &members));
        assert_eq!(event.expect(value).end(), end, "{value}");
    }
    let wrong = structured(BasicProperties::default(), "\"endofsequence\":\"yes\",");
    let error = decoder.decode(&wrong).expect_err("no Boolean");
    assert_eq!(error.message, "`endofsequence` must be true or false, found \"yes\"");
}

#[test]
fn invalid_body_and_batch_are_rejected() {
    let decode = |kind: &str, body: &str| {
        let properties = BasicProperties::default().with_content_type(kind.into());
        let decoder = decoder(OrderingMode::Fifo, EventLocations::DEFAULT);
        decoder.decode(&message(properties, body.as_bytes()))
    };
    for (kind, body, words) in [
        ("application/cloudevents+json", "{}", "`specversion` is missing"),
        ("Application/CloudEvents+JSON", "no JSON", "not a CloudEvent in JSON"),
        ("application/cloudevents-batch+json", "{}", "application/cloudevents+json for a single"),
        ("application/cloudevents-batch+json", "7", "the body is not a JSON array of CloudEvents"),
    ] {
        let error = decode(kind, body).expect_err(words);
        assert_eq!(error.cause, Cause::Unreadable);
        assert!(error.message.contains(words), "{error}");
    }
    // Another format counts as data, as the AMQP binding allows.
    let error = decode("application/cloudevents+avro", "").expect_err("no id");
    assert_eq!(error.cause, Cause::NoId);
}

/// The data of an event can itself be a CloudEvent. Ordain publishes events in binary mode, and must read the same
/// event.
#[test]
fn published_event_is_never_in_structured_mode() {
    let parts = EventParts {
        key: "k",
        id: "1",
        source: "/s",
        content_type: "application/cloudevents+json",
        data: b"{}",
        ..EventParts::default()
    };
    let event = std::sync::Arc::new(Event::new(&parts));
    let sent = encode::event(&event, None, &EventForm::new("s", &EventLocations::DEFAULT));
    let received = decoder(OrderingMode::Fifo, EventLocations::DEFAULT)
        .decode(&message(sent.properties, event.data()))
        .expect("an event");
    assert_eq!((received.id(), received.data()), ("1", &b"{}"[..]));
}

fn batch(properties: BasicProperties, ids: &[&str]) -> Delivery {
    let event = |id: &&str| {
        format!(
            r#"{{"specversion":"1.0","id":"{id}","source":"/s","type":"t","subject":"k-{id}","data":{{"n":1}}}}"#
        )
    };
    let events: Vec<String> = ids.iter().map(event).collect();
    let content_type = "application/cloudevents-batch+json; charset=utf-8".into();
    message(
        properties.with_content_type(content_type),
        format!("[{}]", events.join(" ,\n")).as_bytes(),
    )
}

fn count(decoder: &DeliveryDecoder, delivery: &Delivery) -> Result<usize, String> {
    match decoder.decode_batch(delivery, |_, event| event) {
        Some(events) => Ok(events.len()),
        None => Err(decoder.decode(delivery).expect_err("no batch").message),
    }
}

#[test]
fn events_of_a_batch_are_decoded_one_by_one() {
    let properties = with_headers(&[("tenant", text("blue"))]).with_message_id("m-1".into());
    let mut delivery = batch(properties, &["1", "2"]);
    let decoder = decoder(OrderingMode::Fifo, EventLocations::DEFAULT);
    let body = String::from_utf8(delivery.data.clone()).expect("a text");
    delivery.data = body.replace(" ,", ",{\"specversion\":\"1.0\",\"id\":\"x\"},").into_bytes();
    let events = decoder.decode_batch(&delivery, |event, decoded| {
        assert_eq!(event.content_type, "application/cloudevents+json");
        assert!(event.body.starts_with("{\"specversion\"") && event.body.ends_with('}'));
        decoded
    });
    let events = events.expect("a batch");
    let [Ok(first), Err(error), Ok(last)] = &events[..] else { panic!("{events:?}") };
    for (event, id, key) in [(first, "1", "k-1"), (last, "2", "k-2")] {
        assert_eq!((event.id(), event.key(), event.kind()), (id, key, "t"));
        assert_eq!(event.headers().collect::<Vec<_>>(), [("tenant", "blue")]);
        assert_eq!(event.data(), b"{\"n\":1}");
    }
    assert_eq!(error.cause, Cause::Unreadable);
    assert!(error.message.contains("source"), "{error}");
    // Any other message is not a batch.
    let single = structured(BasicProperties::default(), "");
    assert!(decoder.decode_batch(&single, |_, event| event).is_none());
}

#[test]
fn batch_beyond_a_limit_is_not_divided() {
    let plain = BasicProperties::default;
    let fifo = || decoder(OrderingMode::Fifo, EventLocations::DEFAULT);
    let sequenced = || decoder(OrderingMode::Sequenced, EventLocations::DEFAULT);
    assert_eq!(count(&fifo(), &batch(plain(), &[])), Ok(0));
    assert_eq!(count(&fifo().with_batch_limit(2), &batch(plain(), &["1", "2"])), Ok(2));
    let three = batch(plain(), &["1", "2", "3"]);
    let error = count(&fifo().with_batch_limit(2), &three).expect_err("three events");
    assert!(error.contains("more than 2 events") && error.contains("lower `prefetch`"), "{error}");
    let error = count(&fifo().with_batch_limit(1), &three).expect_err("three events");
    let expected = "the batch has more than 1 event: send at most 1 event in a message, or lower `prefetch` in the \
                    source of the stream: with `prefetch = 400`, a message can have 10 events. A fifo stream must \
                    remember the ids of all events in `prefetch` messages, but it may remember no more than the last \
                    4000 ids of each key (or the last `id_window` ids, if `id_window` is lower)";
    assert_eq!(error, expected);
    // The error names a value of `prefetch` and a size of batches. With this `prefetch`, a stream reads batches of this
    // size.
    let loaded = loaded(OrderingMode::Fifo, "prefetch = 400");
    assert_eq!(loaded.config.streams["s"].message_events_limit(), 10);
    let error = count(&sequenced().with_batch_limit(2), &three).expect_err("three events");
    assert!(error.contains("more than 2 events") && !error.contains("prefetch"), "{error}");
    let ids: Vec<String> = (0..=MESSAGE_EVENTS_LIMIT).map(|id| id.to_string()).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    assert_eq!(count(&sequenced(), &batch(plain(), &ids[1..])), Ok(MESSAGE_EVENTS_LIMIT));
    let error = count(&sequenced(), &batch(plain(), &ids)).expect_err("too many events");
    assert!(error.contains("more than 1000 events"), "{error}");
    // The copies of the headers are as large as the limit of an event.
    let large = text(&"x".repeat(40_000));
    let error = count(&sequenced(), &batch(with_headers(&[("h", large)]), &ids[..30]));
    assert!(error.expect_err("large headers").contains("gets the headers of the message"));
    let mut huge = batch(plain(), &["1"]);
    huge.data.resize(2 << 20, b' ');
    let error = count(&sequenced(), &huge).expect_err("a large body");
    assert!(error.contains("runtime.event_size allows 1048576 bytes"), "{error}");
}

/// A place outside the events gives all events of a batch the same value. An event that has its own value does not read
/// this place.
#[test]
fn batch_whose_events_share_a_value_is_not_divided() {
    for (ordering, setting, shared) in [
        (OrderingMode::Fifo, r#"id = "property:message_id""#, Some("id")),
        (OrderingMode::Fifo, r#"id = "header:id""#, Some("id")),
        (OrderingMode::Fifo, r#"id = ["data:/id", "property:message_id"]"#, Some("id")),
        (OrderingMode::Fifo, "format = \"dapr\"\nkey = \"routing-key\"", None),
        (OrderingMode::Fifo, "format = \"masstransit\"\nkey = \"routing-key\"", Some("id")),
        (OrderingMode::Fifo, r#"id = "data:/n""#, None),
        (OrderingMode::Fifo, r#"id = "content""#, None),
        (OrderingMode::Fifo, r#"id = "none""#, None),
        (OrderingMode::Sequenced, r#"sequence = "header:number""#, Some("sequence")),
        (OrderingMode::Sequenced, r#"sequence = "property:correlation_id""#, Some("sequence")),
        (OrderingMode::Sequenced, r#"sequence = ["data:/n", "routing-key"]"#, Some("sequence")),
        (OrderingMode::Sequenced, r#"sequence = "data:/n""#, None),
    ] {
        let decoder = located(ordering, setting);
        let delivery = batch(BasicProperties::default().with_message_id("m".into()), &["1", "2"]);
        match (count(&decoder, &delivery), shared) {
            (Ok(2), None) => {}
            (Err(error), Some(shared)) => {
                assert!(
                    error.contains(&format!("would have the same {shared}. Publish")),
                    "{error}"
                );
            }
            (found, _) => panic!("{setting}: {found:?}"),
        }
    }
}
