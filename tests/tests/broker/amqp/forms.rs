//! Tests of the forms of an event: CloudEvents in binary mode, and keys in a header.

use anyhow::{Context as _, Result, ensure};
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use ordain_servers::wait_until;
use ordain_tests::amqp::{Outgoing, from_line, header, to_line};
use ordain_tests::log::{by_key, in_turn, line, with_unusual_times};
use ordain_tests::printed::run_all;
use ordain_tests::rig::Rig;
use ordain_tests::service::Service;
use ordain_tests::tally;
use serde_json::{Value, json};

/// The time attribute of an event whose line has no time, as text and in milliseconds since 1970.
const TIME: (&str, u64) = ("2026-01-31T12:00:00.125Z", 1_769_860_800_125);

/// Converts a line to a CloudEvent in binary mode: the attributes are in headers whose names begin with `prefix`. The
/// AMQP properties of the message have other values, which the host must ignore.
fn binary(line: &str, prefix: &str) -> Result<Outgoing> {
    let event: Value = serde_json::from_str(line)?;
    let mut headers = FieldTable::default();
    let mut attribute = |name: &str, value: &str| {
        headers.insert(format!("{prefix}{name}").into(), AMQPValue::LongString(value.into()));
    };
    for name in ["specversion", "id", "type", "source"] {
        attribute(name, event[name].as_str().context("a text")?);
    }
    attribute("time", event["time"].as_str().unwrap_or(TIME.0));
    attribute("datacontenttype", "application/json; charset=utf-8");
    attribute("sequence", &event["sequence"].to_string());
    attribute("tenant", "blue");
    if event["endofsequence"] == true {
        attribute("endofsequence", "true");
    }
    let properties = BasicProperties::default()
        .with_message_id("other".into())
        .with_type("other".into())
        .with_content_type("text/plain".into())
        .with_timestamp(1)
        .with_headers(headers);
    let routing_key = event["subject"].as_str().context("a key")?.to_owned();
    Ok(Outgoing { routing_key, properties, body: event["data"].to_string().into_bytes() })
}

/// Converts lines to CloudEvents in binary mode. The names of the headers begin with one of the valid prefixes. The
/// prefix changes from event to event.
fn all_binary(lines: &[String]) -> Result<Vec<Outgoing>> {
    let prefixes = ["cloudEvents:", "cloudEvents_", "ce-"].into_iter().cycle();
    lines.iter().zip(prefixes).map(|(line, prefix)| binary(line, prefix)).collect()
}

#[test]
fn binary_cloud_events_take_effect_in_order() -> Result<()> {
    let rig = Rig::new()?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let end = |line: String| {
        let is_last = line.contains("\"sequence\":21");
        if is_last { line.replacen('{', "{\"endofsequence\":true,", 1) } else { line }
    };
    // The number of keys is no multiple of three, so each key has events with all prefixes.
    let lines: Vec<String> = in_turn(7, 21).into_iter().map(end).collect();
    rig.client.publish("cases", &all_binary(&lines)?)?;
    let taken = rig.client.take("out", lines.len())?;
    let out: Vec<String> = taken.iter().map(to_line).collect::<Result<_>>()?;
    tally::check(&by_key(&lines)?, &out.join("\n"))?;
    let ends =
        taken.iter().filter(|message| header(message, "X-End-Of-Sequence").is_some()).count();
    ensure!(ends == 7, "{ends} messages are marked as the last of their key");
    rig.until_empty()?;
    service.end()
}

/// The clock of the handler shows the time of the event. The dead letter of a rejected event has all attributes of the
/// event.
#[test]
fn cloud_event_attributes_reach_handler_and_dead_letter() -> Result<()> {
    let rig = Rig::new()?;
    rig.home.write("ordain.toml", rig.home.read("ordain.toml").replace("tally", "faulty"))?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let keys = ["a", "b"];
    let events = |sequence, data: Value| keys.map(|key| line(key, sequence, &data));
    let lines = [events(1, json!({ "do": "senses" })), events(2, json!({ "do": "reject" }))];
    rig.client.publish("cases", &all_binary(&lines.concat())?)?;
    for message in rig.client.take("out", keys.len())? {
        let senses: Value = serde_json::from_slice(&message.data)?;
        ensure!(senses["time_ms"] == TIME.1, "{senses}");
    }
    rig.until_empty()?;
    service.end()?;
    for key in keys {
        let letters = rig.home.rows(&["dead", "list", "cases", "--json", "--key", key])?;
        let event = json!({
            "id": format!("{key}-2"), "type": "test", "source": "/tests", "sequence": 2,
            "time": TIME.0, "content_type": "application/json; charset=utf-8",
            "end_of_sequence": false, "headers": [["tenant", "blue"]], "data": { "do": "reject" },
        });
        ensure!(letters.len() == 1 && letters[0]["event"] == event, "{letters:?}");
        ensure!(letters[0]["cause"] == "rejected", "{letters:?}");
    }
    Ok(())
}

/// The time of an event is optional. An event with a valid but unusual time must take effect.
#[test]
fn cloud_events_with_unusual_times_take_effect() -> Result<()> {
    let rig = Rig::new()?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let lines = with_unusual_times()?;
    rig.client.publish("cases", &all_binary(&lines)?)?;
    rig.check(&lines)?;
    rig.until_empty()?;
    service.end()
}

#[test]
fn key_is_read_from_header() -> Result<()> {
    let rig = Rig::with("", "", "key = \"header:case\"")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let lines = in_turn(5, 20);
    let keyed = |line: &String| {
        let mut outgoing = from_line(line)?;
        let key = std::mem::replace(&mut outgoing.routing_key, "one for all".to_owned());
        let mut headers = outgoing.properties.headers().clone().unwrap_or_default();
        headers.insert("case".into(), AMQPValue::LongString(key.into()));
        outgoing.properties = outgoing.properties.with_headers(headers);
        Ok(outgoing)
    };
    let (first, rest) = lines.split_at(50);
    let mut messages = first.iter().map(keyed).collect::<Result<Vec<_>>>()?;
    messages.push(from_line(&line("without", 1, &json!("no header")))?);
    messages.extend(rest.iter().map(keyed).collect::<Result<Vec<_>>>()?);
    rig.client.publish("cases", &messages)?;
    rig.check(&lines)?;
    rig.until_empty()?;
    service.end()?;
    let letters = rig.home.rows(&["dead", "list", "cases", "--json"])?;
    ensure!(letters.len() == 1 && letters[0]["cause"] == "no-key", "{letters:?}");
    let error = letters[0]["error"].as_str().context("an error")?;
    ensure!(error.contains("the header \"case\""), "{error}");
    ensure!(letters[0].to_string().contains("no header"), "{letters:?}");
    Ok(())
}

/// Converts a line to a message that is not a valid event: its key and its sequence are readable, but the header
/// `X-End-Of-Sequence` has an invalid value.
fn unreadable(line: &str) -> Result<Outgoing> {
    let mut message = from_line(line)?;
    let mut headers = message.properties.headers().clone().unwrap_or_default();
    headers.insert("X-End-Of-Sequence".into(), AMQPValue::LongString("maybe".into()));
    message.properties = message.properties.with_headers(headers);
    Ok(message)
}

/// A message that is not a valid event, but has a readable key and sequence, leaves a gap in its key. `ordain keys why`
/// must report that the missing event arrived and is unreadable. `ordain dead show` must show the message.
#[test]
fn unreadable_message_explains_its_gap() -> Result<()> {
    let rig = Rig::with("", "gap = { timeout = \"20ms\", attempts = 1 }", "")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let event = |sequence| line("-a", sequence, &json!({ "n": sequence }));
    let messages = [from_line(&event(1))?, unreadable(&event(2))?, from_line(&event(3))?];
    rig.client.publish("cases", &messages)?;
    service.until_says("key parked: ")?;
    let outputs = run_all(&rig.home, &service.stderr())?;
    let output_of = |verb: &str| {
        let output = outputs.iter().find(|(command, _)| command.starts_with(verb));
        output.map(|(_, output)| output.as_str()).unwrap_or_default()
    };
    let why = output_of("ordain keys why ");
    ensure!(why.starts_with("key -a: parked at event 2\n"), "{outputs:?}");
    ensure!(why.contains("event 2 arrived, but cannot be read: "), "{why}");
    ensure!(output_of("ordain dead show ").contains("maybe"), "{outputs:?}");
    service.end()
}

/// A quorum queue counts the deliveries of a message in a header. Two copies of an invalid message that differ only in
/// this header must result in only one dead letter.
#[test]
fn redelivered_message_has_one_dead_letter() -> Result<()> {
    let rig = Rig::new()?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    // A stream that has never read a message would leave an unreadable message in the queue.
    let lines = in_turn(1, 1);
    rig.publish(&lines)?;
    rig.check(&lines)?;
    rig.until_empty()?;
    service.end()?;
    let unreadable = || unreadable(&line("a", 1, &json!({ "n": 1 })));
    rig.client.publish("cases", &[unreadable()?])?;
    let held = rig.client.hold("cases")?;
    wait_until("a delivery", || Ok(rig.rabbit.queues()?.get("cases") == Some(&(0, 1))))?;
    rig.client.release(held)?;
    rig.client.publish("cases", &[unreadable()?])?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_empty()?;
    service.end()?;
    let letters = rig.home.rows(&["dead", "list", "cases", "--json"])?;
    ensure!(letters.len() == 1, "{letters:?}");
    Ok(())
}
