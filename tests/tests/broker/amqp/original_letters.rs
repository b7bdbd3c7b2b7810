//! Tests of dead letters of messages that are not events. The exchange receives these dead letters in their original
//! form, and the stream reads them after a correction of its settings.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use lapin::message::Delivery;
use lapin::types::{AMQPValue, DecimalValue, FieldTable};
use lapin::{BasicProperties, ExchangeKind};
use ordain_tests::amqp::{Outgoing, from_line, header};
use ordain_tests::log::{Line, line};
use ordain_tests::rig::Rig;
use ordain_tests::service::{RUN_WITH_SHORT_WAITS, Service, wait_until};
use ordain_tests::tally;
use serde_json::{Value, json};

/// The JSON `{"n":1}`, compressed with gzip.
const GZIP: &[u8] = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff\xab\x56\xca\x53\xb2\x32\xac\x05\
    \x00\x7e\x3b\x4b\xd4\x07\x00\x00\x00";
/// The headers that Ordain adds to a dead letter of a message that is not an event.
const ADDED_HEADERS: [&str; 6] = [
    "X-Ordain-Letter",
    "deadcause",
    "deaderror",
    "deadorigin",
    "x-original-exchange",
    "x-original-routing-key",
];

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

fn table(headers: &[(&str, AMQPValue)]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in headers {
        table.insert((*name).into(), value.clone());
    }
    table
}

fn headers_of_all_types() -> FieldTable {
    let nested = table(&[("a", text("b")), ("n", AMQPValue::ShortInt(-7))]);
    table(&[
        ("text", text("Köln")),
        ("latin1", AMQPValue::LongString(b"K\xf6ln".to_vec().into())),
        ("bytes", AMQPValue::ByteArray(b"\xff\x00".to_vec().into())),
        ("true", AMQPValue::Boolean(true)),
        ("tiny", AMQPValue::ShortShortInt(-1)),
        ("int", AMQPValue::LongInt(17)),
        ("long", AMQPValue::LongLongInt(17)),
        ("double", AMQPValue::Double(0.1 + 0.2)),
        ("float", AMQPValue::Float(0.1)),
        ("decimal", AMQPValue::DecimalValue(DecimalValue { scale: 2, value: 150 })),
        ("time", AMQPValue::Timestamp(1_764_072_000)),
        ("void", AMQPValue::Void),
        ("list", AMQPValue::FieldArray(vec![text("x"), AMQPValue::LongLongInt(1)].into())),
        ("table", AMQPValue::FieldTable(nested)),
    ])
}

/// Returns messages that a stream with default settings cannot read, each with the properties that its dead letter must
/// have. RabbitMQ interprets some values, so the dead letter must contain these values in other headers.
fn messages() -> Vec<(Outgoing, BasicProperties)> {
    let base = BasicProperties::default()
        .with_content_type("application/json".into())
        .with_content_encoding("utf-8".into())
        .with_correlation_id("c-1".into())
        .with_reply_to("replies".into())
        .with_timestamp(1_764_072_000)
        .with_type("paid".into())
        .with_app_id("shop".into());
    let list = AMQPValue::FieldArray(vec![text("elsewhere")].into());
    let mut sent = headers_of_all_types();
    sent.insert("CC".into(), list.clone());
    sent.insert("deadid".into(), text("of the producer"));
    let mut expected = headers_of_all_types();
    for (name, value) in [
        ("x-original-CC", list),
        ("x-original-deadid", text("of the producer")),
        ("x-original-property:user_id", text("guest")),
        ("x-original-property:expiration", text("3600000")),
    ] {
        expected.insert(name.into(), value);
    }
    let full = base
        .clone()
        .with_user_id("guest".into())
        .with_expiration("3600000".into())
        .with_headers(sent);
    let gzip = BasicProperties::default().with_content_encoding("gzip".into());
    let structured =
        BasicProperties::default().with_content_type("application/cloudevents+json".into());
    let keyless = BasicProperties::default().with_message_id("m-1".into());
    let cases: [(&str, BasicProperties, BasicProperties, &[u8]); 5] = [
        ("order.paid", full, base.with_headers(expected), "{\"stadt\":\"Köln\"}".as_bytes()),
        ("bytes", BasicProperties::default(), BasicProperties::default(), b"\xff\xfe"),
        ("packed", gzip.clone(), gzip, GZIP),
        ("broken", structured.clone(), structured, b"{"),
        ("", keyless.clone(), keyless, b""),
    ];
    let message = |(routing_key, properties, expected, body): (&str, _, BasicProperties, &[u8])| {
        let routing_key = routing_key.to_owned();
        (Outgoing { routing_key, properties, body: body.to_vec() }, expected.with_delivery_mode(2))
    };
    cases.into_iter().map(message).collect()
}

fn without_added(letter: &Delivery) -> BasicProperties {
    let headers = letter.properties.headers().clone().unwrap_or_default();
    let mut kept = FieldTable::default();
    for (name, value) in headers.inner() {
        if !ADDED_HEADERS.contains(&name.as_str()) {
            kept.insert(name.clone(), value.clone());
        }
    }
    letter.properties.clone().with_headers(kept)
}

/// Returns for each key the number of its messages, and the data of one of them.
fn reports(messages: &[Delivery]) -> Result<BTreeMap<String, (usize, Value)>> {
    let mut reports: BTreeMap<String, (usize, Value)> = BTreeMap::new();
    for message in messages {
        let data: Value = serde_json::from_slice(&message.data)?;
        let key = data["key"].as_str().context("a key")?.to_owned();
        let (count, last) = reports.entry(key).or_default();
        *count += 1;
        *last = data;
    }
    Ok(reports)
}

/// Starts a host with a `fifo` stream whose dead letters reach the queue `letters`. The stream has read one event.
fn start_with_letters() -> Result<(Rig, Service)> {
    start_with_letters_and(&["run"])
}

/// Starts a host as [`start_with_letters`] does, with other arguments.
fn start_with_letters_and(arguments: &[&str]) -> Result<(Rig, Service)> {
    let rig = Rig::with("", "ordering = \"fifo\"\ndead_letter = \"dead\"", "")?;
    rig.client.exchange("letters", ExchangeKind::Fanout)?;
    rig.client.queue("letters")?;
    rig.client.bind("letters", "letters", "")?;
    let sink = "[sinks.dead]\nkind = \"amqp\"\nexchange = \"letters\"\n";
    rig.home.write("ordain.toml", rig.home.read("ordain.toml") + sink)?;
    let service = Service::start(&rig.home, arguments)?;
    rig.until_declared()?;
    rig.client.publish("cases", &[from_line(&line("readable", 1, &json!({})))?])?;
    rig.client.take("out", 1)?;
    Ok((rig, service))
}

/// The operator finds the letters in the queue, corrects the settings of the stream, and moves the letters back through
/// the default exchange, as RabbitMQ's management page and shovels do. One letter stays unreadable.
#[test]
fn letters_as_messages_came_take_effect_when_moved_back() -> Result<()> {
    let (rig, mut service) = start_with_letters()?;
    let (sent, expected): (Vec<Outgoing>, Vec<BasicProperties>) = messages().into_iter().unzip();
    rig.client.publish("cases", &sent)?;
    let letters = rig.client.take("letters", sent.len())?;
    rig.until_empty()?;
    service.end()?;
    for (message, expected) in sent.iter().zip(&expected) {
        let key = &message.routing_key;
        let letter = letters.iter().find(|letter| letter.routing_key.as_str() == key);
        let letter = letter.with_context(|| format!("no dead letter of {key:?} in {letters:?}"))?;
        ensure!(letter.data == message.body, "{key:?}: {:?}", letter.data);
        let properties = without_added(letter);
        let headers = expected.headers().clone().unwrap_or_default();
        let expected = expected.clone().with_headers(headers);
        ensure!(properties == expected, "{key:?}:\n{properties:?}\n{expected:?}");
        ensure!(header(letter, "x-original-routing-key").as_ref() == Some(key), "{letter:?}");
        ensure!(header(letter, "x-original-exchange").as_deref() == Some("cases"), "{letter:?}");
        let id = header(letter, "X-Ordain-Letter").context("the id of the letter")?;
        ensure!(id.starts_with("cases/") && id.contains("/dead/0/"), "{id}");
        ensure!(header(letter, "deadorigin").as_deref() == Some("queue cases"), "{letter:?}");
    }

    // The operator corrects the settings. Each letter arrives twice, as after an interrupted move.
    let places = "key = [\"routing-key\", \"*\"], \
                  id = [\"property:message_id\", \"property:correlation_id\", \"content\"]";
    let source = "queue = \"cases\", ";
    let config = rig.home.read("ordain.toml");
    ensure!(config.contains(source), "{config}");
    rig.home.write("ordain.toml", config.replace(source, &format!("{source}{places}, ")))?;
    let moved = |letter: &Delivery| Outgoing {
        routing_key: "cases".to_owned(),
        properties: letter.properties.clone(),
        body: letter.data.clone(),
    };
    let copies: Vec<_> = letters.iter().chain(&letters).map(moved).collect();
    rig.client.publish("", &copies)?;
    let mut service = Service::start(&rig.home, &["run"])?;
    let returned = rig.client.take("letters", 1)?;
    rig.until_empty()?;
    let mut taken = rig.client.take("out", 4)?;
    service.end()?;
    taken.extend(rig.client.take_all("out")?);

    let [returned] = &returned[..] else { unreachable!("`take` returns one message") };
    ensure!(header(returned, "deadcause").as_deref() == Some("returned"), "{returned:?}");
    ensure!(returned.routing_key.as_str() == "broken", "{returned:?}");
    ensure!(returned.data == b"{", "{returned:?}");
    let reports = reports(&taken)?;
    let keys: Vec<&str> = reports.keys().map(String::as_str).collect();
    ensure!(keys == ["*", "bytes", "order.paid", "packed"], "{keys:?}");
    for (key, kind, data) in
        [("order.paid", "paid", "{\"stadt\":\"Köln\"}"), ("packed", "", "{\"n\":1}"), ("*", "", "")]
    {
        let event = Line {
            key: key.to_owned(),
            sequence: 1,
            kind: kind.to_owned(),
            data: data.to_owned(),
            end: false,
        };
        let hash = format!("{:016x}", tally::hash(tally::FIRST_HASH, &event));
        let (count, report) = &reports[key];
        ensure!(*count == 1 && report["count"] == 1, "{key}: {report}");
        ensure!(report["hash"] == hash, "{key}: {report}");
    }
    ensure!(rig.client.take_all("letters")?.is_empty(), "a letter was published twice");
    Ok(())
}

/// If the original form of a dead letter is impossible, the host publishes a JSON document instead.
#[test]
fn large_headers_are_published_as_a_document() -> Result<()> {
    let (rig, mut service) = start_with_letters()?;
    let large = "x".repeat(70 << 10);
    let properties = BasicProperties::default().with_headers(table(&[("large", text(&large))]));
    let message = Outgoing { routing_key: "k".to_owned(), properties, body: b"{}".to_vec() };
    rig.client.publish("cases", &[message])?;
    let letters = rig.client.take("letters", 1)?;
    service.end()?;
    let [letter] = &letters[..] else { unreachable!("`take` returns one message") };
    let document: Value = serde_json::from_slice(&letter.data)?;
    ensure!(document["headers"]["large"] == large && document["body"] == "{}", "{document}");
    ensure!(document["routing_key"] == "k", "{document}");
    Ok(())
}

/// A queue of type stream cannot store a header with a decimal number: RabbitMQ closes the channel. The host must
/// publish the letter as a JSON document, and must then publish the later letter.
#[test]
fn letter_that_a_stream_queue_cannot_store_is_published_as_a_document() -> Result<()> {
    let (rig, mut service) = start_with_letters_and(&RUN_WITH_SHORT_WAITS)?;
    let arguments = table(&[("x-queue-type", text("stream"))]);
    rig.client.queue_with("archive", arguments)?;
    rig.client.bind("archive", "letters", "")?;
    let message = |headers: FieldTable, body: &[u8]| Outgoing {
        routing_key: "k".to_owned(),
        properties: BasicProperties::default().with_headers(headers),
        body: body.to_vec(),
    };
    let decimal = AMQPValue::DecimalValue(DecimalValue { scale: 2, value: 150 });
    let sent = [message(table(&[("price", decimal)]), b"1"), message(FieldTable::default(), b"2")];
    rig.client.publish("cases", &sent)?;
    service.until_says("dead letter in its original form refused by the broker")?;
    // The other queue may receive a copy of the letter at each attempt of the host to publish it.
    let mut letters = Vec::new();
    wait_until("both letters", || {
        letters.extend(rig.client.take_all("letters")?);
        let has_document = letters.iter().any(|letter| {
            letter
                .properties
                .kind()
                .as_ref()
                .is_some_and(|kind| kind.as_str() == "ordain.dead-letter")
        });
        Ok(has_document && letters.iter().any(|letter| letter.data == b"2"))
    })?;
    service.end()
}
