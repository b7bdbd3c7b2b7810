//! Tests of CloudEvents in structured mode, of the times and texts that clients write, and of AMQP properties.

use anyhow::{Context as _, Result, bail, ensure};
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use ordain_tests::amqp::{Outgoing, header};
use ordain_tests::log::{by_key, in_turn};
use ordain_tests::rig::Rig;
use ordain_tests::service::Service;
use ordain_tests::tally;
use serde_json::{Value, json};

/// The JSON `{"do":"reject"}`, compressed with gzip.
const GZIP: &[u8] = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xab\x56\x4a\xc9\x57\xb2\x52\
    \x2a\x4a\xcd\x4a\x4d\x2e\x51\xaa\x05\x00\xdd\xfc\xf0\x86\x0f\x00\x00\x00";

/// Returns a message with an event in structured mode. The message has the body `body` and no `message_id`. All such
/// messages have the same routing key.
fn structured(body: &str) -> Outgoing {
    Outgoing {
        routing_key: "events".to_owned(),
        properties: BasicProperties::default()
            .with_content_type("application/cloudevents+json; charset=utf-8".into()),
        body: body.as_bytes().to_vec(),
    }
}

/// Starts a rig with a `fifo` stream whose handler rejects each event with the data `{"do":"reject"}`. The dead letters
/// show the events.
fn rejecting() -> Result<Rig> {
    let rig = Rig::with("", "ordering = \"fifo\"", "")?;
    rig.home.write("ordain.toml", rig.home.read("ordain.toml").replace("tally", "faulty"))?;
    Ok(rig)
}

/// Publishes messages, waits until the stream has processed them, and returns the dead letters.
fn letters(rig: &Rig, messages: &[Outgoing]) -> Result<Vec<Value>> {
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    rig.client.publish("cases", messages)?;
    rig.until_empty()?;
    service.end()?;
    rig.home.rows(&["dead", "list", "cases", "--json"])
}

fn event_of<'a>(letters: &'a [Value], key: &str) -> Result<&'a Value> {
    let letter = letters.iter().find(|letter| letter["key"] == key);
    let letter = letter.with_context(|| format!("no dead letter of {key}: {letters:?}"))?;
    ensure!(letter["cause"] == "rejected", "{letter}");
    Ok(&letter["event"])
}

/// The key, the id and the sequence of each event are in the body.
#[test]
fn structured_cloud_events_take_effect_in_order() -> Result<()> {
    let rig = Rig::new()?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let lines = in_turn(5, 20);
    let messages: Vec<_> = lines.iter().map(|line| structured(line)).collect();
    rig.client.publish("cases", &messages)?;
    rig.check(&lines)?;
    rig.until_empty()?;
    service.end()
}

/// A published message must have the headers and properties that CloudEvents libraries read.
#[test]
fn published_message_is_a_cloud_event_in_binary_mode() -> Result<()> {
    let rig = Rig::new()?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    rig.publish(&in_turn(1, 1))?;
    let taken = rig.client.take("out", 1)?;
    service.end()?;
    let [message] = &taken[..] else { bail!("{taken:?}") };
    let properties = &message.properties;
    let id = properties.message_id().as_ref().context("an id")?.to_string();
    let kind = properties.kind().as_ref().context("a type")?.to_string();
    let key = header(message, "X-Key").context("a key")?;
    for (name, value) in [
        ("specversion", "1.0"),
        ("id", id.as_str()),
        ("type", kind.as_str()),
        ("source", "/ordain/cases"),
        ("subject", key.as_str()),
    ] {
        let found = header(message, &format!("cloudEvents:{name}"));
        ensure!(found.as_deref() == Some(value), "{name}: {found:?}");
    }
    ensure!(
        properties.timestamp().is_some_and(|seconds| seconds > 1_764_072_000),
        "{properties:?}"
    );
    Ok(())
}

fn batch(events: &[String]) -> Outgoing {
    let mut message = structured(&format!("[{}]", events.join(",")));
    let kind = "application/cloudevents-batch+json";
    message.properties = message.properties.with_content_type(kind.into());
    message
}

/// A batch can be empty.
#[test]
fn events_of_batches_take_effect_in_order() -> Result<()> {
    let rig = Rig::new()?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let lines = in_turn(5, 200);
    let mut messages = vec![batch(&[])];
    let (first, rest) = lines.split_at(400);
    messages.extend(first.chunks(300).map(batch));
    messages.extend(rest.chunks(7).map(batch));
    messages.push(batch(&[]));
    rig.client.publish("cases", &messages)?;
    rig.check(&lines)?;
    rig.until_empty()?;
    service.end()
}

/// The host acknowledges a batch only after each event of the batch is settled or spilled. After a crash, the broker
/// delivers the whole batch again, and the stream recognises the events that have taken effect.
#[test]
fn partly_finished_batch_is_delivered_again() -> Result<()> {
    let stream = "spill_after = \"10m\"\ngap = { timeout = \"10m\" }";
    let rig = Rig::with("", stream, "")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let events = in_turn(2, 2);
    let [first, other, second, last] = &events[..] else { bail!("{events:?}") };
    // Event 1 of the other key is missing.
    rig.client.publish("cases", &[batch(&[first.clone(), last.clone(), second.clone()])])?;
    let mut out = Vec::new();
    rig.take(&mut out, 2)?;
    ensure!(rig.rabbit.queues()?.get("cases") == Some(&(0, 1)), "{:?}", rig.rabbit.queues()?);
    service.kill()?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.client.publish("cases", &[structured(other)])?;
    rig.take(&mut out, events.len())?;
    rig.until_empty()?;
    service.end()?;
    tally::check(&by_key(&events)?, &out.join("\n"))
}

/// If an event of a batch cannot be read, the other events of the batch must take effect. A `fifo` stream must remember
/// the ids of the events of `prefetch` messages, so the host refuses a batch with too many events.
#[test]
fn unreadable_event_of_a_batch_becomes_a_dead_letter() -> Result<()> {
    let rig = Rig::with("", "ordering = \"fifo\"", "prefetch = 2000")?;
    rig.home.write("ordain.toml", rig.home.read("ordain.toml").replace("tally", "faulty"))?;
    let event = |id: &str| {
        json!({
            "specversion": "1.0", "id": id, "source": "/shop", "type": "t", "subject": id,
            "data": { "do": "reject" },
        })
        .to_string()
    };
    let without_source = json!({ "specversion": "1.0", "id": "e", "type": "t" }).to_string();
    let messages = [
        batch(&[event("a"), without_source.clone()]),
        batch(&[event("b"), event("c"), event("d")]),
    ];
    let letters = letters(&rig, &messages)?;
    ensure!(letters.len() == 3, "{letters:?}");
    ensure!(event_of(&letters, "a")?["id"] == "a", "{letters:?}");
    let errors: Vec<&str> = letters.iter().filter_map(|letter| letter["error"].as_str()).collect();
    let has = |words: &str| errors.iter().any(|error| error.contains(words));
    ensure!(has("event 2 of the batch: "), "{errors:?}");
    ensure!(has("the batch has more than 2 events") && has("lower `prefetch`"), "{errors:?}");
    let of_event = letters.iter().find(|letter| letter["raw"]["body"] == without_source.as_str());
    let of_event = of_event.with_context(|| format!("{letters:?}"))?;
    let content_type = &of_event["raw"]["properties"]["content_type"];
    ensure!(content_type == "application/cloudevents+json", "{of_event}");
    Ok(())
}

/// A message in structured mode can also have the headers of binary mode, with values that differ from the values in
/// the body.
#[test]
fn structured_event_keeps_its_attributes_and_headers() -> Result<()> {
    let rig = rejecting()?;
    let event = json!({
        "specversion": "1.0", "id": "e1", "source": "/shop", "type": "order.paid",
        "partitionkey": "p", "time": "yesterday", "tenant": "blue", "data": { "do": "reject" },
    });
    let mut full = structured(&event.to_string());
    let mut headers = FieldTable::default();
    headers.insert("cloudEvents:id".into(), AMQPValue::LongString("other".into()));
    headers.insert("trace".into(), AMQPValue::LongString("t-1".into()));
    full.properties = full.properties.with_headers(headers).with_message_id("other".into());
    let letters = letters(&rig, &[full])?;
    ensure!(letters.len() == 1, "{letters:?}");
    let found = event_of(&letters, "p")?;
    ensure!(found["id"] == "e1" && found["type"] == "order.paid", "{found}");
    ensure!(found["source"] == "/shop" && found["data"] == event["data"], "{found}");
    ensure!(found["time"].is_null(), "{found}");
    ensure!(found["headers"] == json!([["tenant", "blue"], ["trace", "t-1"]]), "{found}");
    Ok(())
}

/// Clients write the time of an event as a text, as an AMQP timestamp, or as a number.
#[test]
fn times_of_all_types_are_read() -> Result<()> {
    let rig = rejecting()?;
    let text = |text: &str| AMQPValue::LongString(text.into());
    let cases = [
        ("text", text("2025-11-25T12:00:00.125Z"), Some("2025-11-25T12:00:00.125Z")),
        ("offset", text("2025-11-25T14:00:00.123456+02:00"), Some("2025-11-25T12:00:00.123456Z")),
        ("timestamp", AMQPValue::Timestamp(1_764_072_000), Some("2025-11-25T12:00:00.000Z")),
        ("ms", AMQPValue::LongLongInt(1_764_072_000_125), Some("2025-11-25T12:00:00.125Z")),
        ("double", AMQPValue::Double(1_764_072_000_125.0), Some("2025-11-25T12:00:00.125Z")),
        ("us", AMQPValue::LongLongInt(1_764_072_000_125_250), Some("2025-11-25T12:00:00.125250Z")),
        ("far", text("10000-01-01T00:00:00Z"), None),
        ("table", AMQPValue::FieldTable(FieldTable::default()), None),
        ("void", AMQPValue::Void, None),
    ];
    let messages = cases.clone().map(|(key, value, _)| {
        let mut headers = FieldTable::default();
        headers.insert("cloudEvents:specversion".into(), text("1.0"));
        headers.insert("cloudEvents:id".into(), text(key));
        headers.insert("cloudEvents:time".into(), value);
        // Latin-1
        headers
            .insert("cloudEvents:city".into(), AMQPValue::LongString(b"K\xf6ln".to_vec().into()));
        Outgoing {
            routing_key: key.to_owned(),
            properties: BasicProperties::default().with_headers(headers),
            body: b"{\"do\":\"reject\"}".to_vec(),
        }
    });
    let letters = letters(&rig, &messages)?;
    for (key, _, time) in cases {
        let event = event_of(&letters, key)?;
        ensure!(event["time"].as_str() == time, "{key}: {event}");
        ensure!(event["headers"] == json!([["city", "Köln"]]), "{key}: {event}");
    }
    Ok(())
}

/// A compressed body becomes plain data. The properties become headers of the event. If the host publishes a dead
/// letter to an exchange, the message of the dead letter has these properties.
#[test]
fn properties_reach_the_handler_and_the_dead_letter() -> Result<()> {
    let rig = Rig::with("", "ordering = \"fifo\"\ndead_letter = \"dead\"", "")?;
    let config = rig.home.read("ordain.toml").replace("tally", "faulty");
    let dead = "[sinks.dead]\nkind = \"amqp\"\nexchange = \"out\"\n";
    rig.home.write("ordain.toml", config + dead)?;
    let properties = BasicProperties::default()
        .with_message_id("1".into())
        .with_content_type("application/json".into())
        .with_content_encoding("gzip".into())
        .with_correlation_id("c-1".into())
        .with_reply_to("replies".into())
        .with_app_id("shop".into())
        .with_user_id("guest".into())
        .with_expiration("3600000".into());
    let message = |key: &str, body: &[u8]| Outgoing {
        routing_key: key.to_owned(),
        properties: properties.clone(),
        body: body.to_vec(),
    };
    let sent = [message("packed", GZIP), message("broken", b"{\"do\":\"reject\"}")];
    let letters = letters(&rig, &sent)?;
    let event = event_of(&letters, "packed")?;
    ensure!(event["data"] == json!({ "do": "reject" }), "{event}");
    let headers = json!([
        ["property:correlation_id", "c-1"],
        ["property:reply_to", "replies"],
        ["property:app_id", "shop"],
        ["property:user_id", "guest"],
        ["property:expiration", "3600000"],
    ]);
    ensure!(event["headers"] == headers, "{event}");
    let broken = letters.iter().find(|letter| letter["key"] == "broken").context("a letter")?;
    ensure!(broken["cause"] == "unreadable", "{broken}");
    let taken = rig.client.take("out", 2)?;
    let packed = taken.iter().find(|message| message.routing_key.as_str() == "packed");
    let packed = packed.context("a published letter")?;
    let properties = &packed.properties;
    ensure!(packed.data == b"{\"do\":\"reject\"}", "{packed:?}");
    ensure!(properties.content_encoding().is_none(), "{properties:?}");
    let correlation_id = properties.correlation_id().as_ref().map(ToString::to_string);
    ensure!(correlation_id.as_deref() == Some("c-1"), "{properties:?}");
    ensure!(properties.expiration().is_none(), "{properties:?}");
    let original = header(packed, "x-original-property:user_id");
    ensure!(original.as_deref() == Some("guest"), "{packed:?}");
    Ok(())
}
