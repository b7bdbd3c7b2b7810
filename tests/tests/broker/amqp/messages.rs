//! Tests of received messages that are not valid events, and of published messages that no queue accepts.

use anyhow::{Result, ensure};
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use ordain_tests::amqp::{Outgoing, header};
use ordain_tests::http::{admin, metric};
use ordain_tests::log::in_turn;
use ordain_tests::rig::Rig;
use ordain_tests::service::Service;

fn outgoing(key: &str, sequence: AMQPValue, body: &[u8]) -> Outgoing {
    let mut headers = FieldTable::default();
    headers.insert("X-Sequence-ID".into(), sequence);
    headers.insert("tenant".into(), AMQPValue::LongString("blue".into()));
    let properties = BasicProperties::default().with_headers(headers).with_type("t".into());
    Outgoing { routing_key: key.to_owned(), properties, body: body.to_vec() }
}

/// The dead letter of a message that is not a valid event must contain the whole message: the body, the headers and the
/// exchange.
#[test]
fn unreadable_message_is_kept_whole() -> Result<()> {
    let rig = Rig::new()?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let text = |text: &str| AMQPValue::LongString(text.into());
    rig.client.publish(
        "cases",
        &[
            outgoing("a", text("many"), b"\xff\xfe"),
            outgoing("", text("1"), b"no key"),
            outgoing("b", AMQPValue::Boolean(true), b"{}"),
            outgoing("d", AMQPValue::LongInt(0), b"below the first"),
            outgoing("c", AMQPValue::LongInt(1), b"{\"n\":1}"),
        ],
    )?;
    let taken = rig.client.take("out", 1)?;
    ensure!(header(&taken[0], "X-Key").as_deref() == Some("c"), "{taken:?}");
    rig.until_empty()?;
    service.end()?;
    let letters = rig.home.rows(&["dead", "list", "cases", "--json"])?;
    let mut causes: Vec<_> =
        letters.iter().map(|letter| letter["cause"].as_str().unwrap_or("")).collect();
    causes.sort_unstable();
    ensure!(causes == ["no-key", "no-sequence", "no-sequence", "no-sequence"], "{letters:?}");
    for letter in &letters {
        ensure!(letter.to_string().contains("\"exchange\":\"cases\""), "{letter}");
    }
    let whole = letters.iter().map(ToString::to_string).collect::<String>();
    for part in ["\"tenant\":\"blue\"", "//4=", "many", "no key", "below the first", "queue cases"]
    {
        ensure!(whole.contains(part), "no {part} in {whole}");
    }
    Ok(())
}

/// Unroutable messages must wait until a queue is bound, even after a crash, and must then be published once. While the
/// messages wait, the host must still acknowledge the deliveries of the events.
#[test]
fn unroutable_message_is_kept() -> Result<()> {
    let rig = Rig::new()?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let lines = in_turn(4, 50);
    let (first, rest) = lines.split_at(100);
    rig.publish(first)?;
    rig.check(first)?;
    rig.client.delete_queue("out")?;
    rig.publish(rest)?;
    service.until_says("no queue takes messages of the exchange \"out\"")?;
    rig.until_empty()?;
    service.kill()?;
    let mut service = Service::start(&rig.home, &["run"])?;
    service.until_says("no queue takes")?;
    rig.client.queue("out")?;
    rig.client.bind("out", "out", "#")?;
    let taken = rig.client.take("out", rest.len())?;
    let mut ids: Vec<_> =
        taken.iter().map(|message| message.properties.message_id().clone()).collect();
    ids.sort();
    ids.dedup();
    ensure!(ids.len() == rest.len(), "a message was published more than once: {} ids", ids.len());
    service.end()
}

/// A sink on the default exchange names the queue of all its messages. While the queue does not exist, the messages
/// must wait.
#[test]
fn message_waits_for_the_queue_that_the_sink_names() -> Result<()> {
    let rig = Rig::new()?;
    let config = rig.home.read("ordain.toml");
    let sink = "exchange = \"\"\nrouting_key = \"receipts\"";
    rig.home.write("ordain.toml", config.replace("exchange = \"out\"", sink))?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    rig.publish(&in_turn(1, 3))?;
    service.until_says("the queue \"receipts\" does not exist: declare the queue")?;
    rig.client.queue("receipts")?;
    let taken = rig.client.take("receipts", 3)?;
    ensure!(taken.iter().all(|message| message.exchange.as_str().is_empty()), "{taken:?}");
    service.end()
}

/// With `unroutable = "drop"`, messages that no queue accepts must not delay the other messages of their key.
#[test]
fn unroutable_message_is_dropped_if_the_sink_drops_them() -> Result<()> {
    let rig = Rig::new()?;
    let config = rig.home.read("ordain.toml");
    let sink = "exchange = \"out\"\nunroutable = \"drop\"";
    rig.home.write("ordain.toml", config.replace("exchange = \"out\"", sink))?;
    rig.client.delete_queue("out")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let address = admin(&mut service)?;
    let lines = in_turn(2, 4);
    let (first, rest) = lines.split_at(4);
    rig.publish(first)?;
    let name = "ordain_unroutable_messages_total{sink=\"tally\"}";
    service.until("the dropped messages", || metric(address, name).ok().flatten() == Some(4))?;
    service.until_says("message dropped: no queue takes messages of the exchange \"out\"")?;
    rig.client.queue("out")?;
    rig.client.bind("out", "out", "#")?;
    rig.publish(rest)?;
    let taken = rig.client.take("out", 4)?;
    let mut ids: Vec<_> =
        taken.iter().map(|message| message.properties.message_id().clone()).collect();
    ids.sort();
    ids.dedup();
    ensure!(ids.len() == 4, "{taken:?}");
    service.end()?;
    let further = rig.client.take_all("out")?;
    ensure!(further.is_empty(), "{further:?}");
    Ok(())
}

/// The commits contain both messages for an exchange and dead letters for a file. While the messages wait for a queue,
/// the host writes the dead letters to the file. But the next start publishes the messages of these commits again, so
/// the host must not advance the position to which the next start truncates the file. After a kill, the file must
/// contain each dead letter once.
#[test]
fn file_stays_exact_while_messages_wait_for_queue() -> Result<()> {
    let rig = Rig::with("", "dead_letter = \"dead\"", "")?;
    let config = rig.home.read("ordain.toml");
    let file = "[sinks.dead]\nkind = \"file\"\npath = \"dead.ndjson\"\n";
    rig.home.write("ordain.toml", config + file)?;
    rig.client.delete_queue("out")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let lines = in_turn(4, 50);
    let bad = |number: usize| {
        let text = AMQPValue::LongString("none".into());
        outgoing(&format!("bad-{number}"), text, number.to_string().as_bytes())
    };
    for (part, lines) in lines.chunks(50).enumerate() {
        rig.publish(lines)?;
        let bad: Vec<_> = (0..10).map(|number| bad(10 * part + number)).collect();
        rig.client.publish("cases", &bad)?;
    }
    service.until("the dead letters in the file", || rig.home.lines("dead.ndjson") == 40)?;
    rig.until_empty()?;
    for _ in 0..2 {
        service.kill()?;
        service = Service::start(&rig.home, &["run"])?;
        service
            .until("the dead letters after a restart", || rig.home.lines("dead.ndjson") == 40)?;
    }
    rig.client.queue("out")?;
    rig.client.bind("out", "out", "#")?;
    rig.check(&lines)?;
    service.end()?;
    let mut letters: Vec<String> =
        rig.home.read("dead.ndjson").lines().map(str::to_owned).collect();
    letters.sort();
    letters.dedup();
    assert_eq!((rig.home.lines("dead.ndjson"), letters.len()), (40, 40));
    Ok(())
}

/// An AMQP routing key has at most 255 bytes. If the routing key of a message is longer, the host must park the key of
/// the event. If the routing key of a dead letter is longer, the host must truncate the routing key.
#[test]
fn too_long_routing_key_parks_key_and_is_cut_for_dead_letter() -> Result<()> {
    let rig = Rig::with("", "dead_letter = \"dead\"", "key = \"header:case\"")?;
    let config = rig.home.read("ordain.toml");
    let dead =
        "[sinks.dead]\nkind = \"amqp\"\nexchange = \"out\"\nrouting_key = \"{stream}.{key}\"\n";
    rig.home.write("ordain.toml", config + dead)?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let long = "k".repeat(300);
    let event = |key: &str, sequence: &str| {
        let text = |text: &str| AMQPValue::LongString(text.into());
        let mut message = outgoing("", text(sequence), b"{}");
        let mut headers = message.properties.headers().clone().unwrap_or_default();
        headers.insert("case".into(), text(key));
        message.properties = message.properties.with_headers(headers);
        message
    };
    let sent = [event(&long, "1"), event(&long, "none"), event("short", "1")];
    rig.client.publish("cases", &sent)?;
    let taken = rig.client.take("out", 2)?;
    let mut keys: Vec<_> = taken.iter().map(|message| message.routing_key.to_string()).collect();
    keys.sort();
    ensure!(keys == [&format!("cases.{long}")[..255], "short"], "{keys:?}");
    service.until_says("parked")?;
    service.end()?;
    let why = rig.home.output(&["keys", "why", "cases", &long])?;
    let why = String::from_utf8_lossy(&why.stdout).into_owned();
    ensure!(why.contains("a routing key of 300 bytes; AMQP allows 255"), "{why}");
    Ok(())
}

/// The broker's return of an unroutable message may arrive together with the confirm of another message. The host must
/// keep exactly the unroutable messages.
#[test]
fn only_unroutable_messages_wait() -> Result<()> {
    let rig = Rig::new()?;
    rig.client.delete_queue("out")?;
    for key in ["k1", "k2", "k4"] {
        rig.client.queue("some")?;
        rig.client.bind("some", "out", key)?;
    }
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let lines = in_turn(5, 60);
    rig.publish(&lines)?;
    service.until_says("no queue takes messages of the exchange \"out\"")?;
    rig.until_empty()?;
    rig.client.queue("others")?;
    for key in ["k0", "k3"] {
        rig.client.bind("others", "out", key)?;
    }
    for (queue, count) in [("some", 180), ("others", 120)] {
        let taken = rig.client.take(queue, count)?;
        let mut ids: Vec<_> =
            taken.iter().map(|message| message.properties.message_id().clone()).collect();
        ids.sort();
        ids.dedup();
        ensure!(ids.len() == count, "{} of {count} messages arrived in {queue}", ids.len());
    }
    service.end()
}
