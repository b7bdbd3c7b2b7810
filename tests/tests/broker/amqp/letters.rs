//! Tests of dead letters that are published to an exchange.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lapin::message::Delivery;
use lapin::types::{FieldTable, ShortString};
use lapin::{BasicProperties, ExchangeKind};
use ordain_tests::amqp::{Outgoing, from_line, header};
use ordain_tests::http::{admin, metric};
use ordain_tests::log::line;
use ordain_tests::rig::Rig;
use ordain_tests::service::{Service, wait_until};
use serde_json::json;

fn ensure_headers(letter: &Delivery, headers: &[(&str, &str)]) -> Result<()> {
    for (name, value) in headers {
        let found = header(letter, name);
        ensure!(found.as_deref() == Some(*value), "{name} is {found:?} in {letter:?}");
    }
    Ok(())
}

#[test]
fn dead_letters_are_published_with_reason() -> Result<()> {
    let rig = Rig::with("", "dead_letter = \"dead\"", "")?;
    rig.client.exchange("letters", ExchangeKind::Topic)?;
    rig.client.queue("letters")?;
    rig.client.bind("letters", "letters", "letter.#")?;
    let sink =
        "[sinks.dead]\nkind = \"amqp\"\nexchange = \"letters\"\nrouting_key = \"letter.{key}\"\n";
    let config = rig.home.read("ordain.toml").replace("\"tally\"", "\"faulty\"");
    rig.home.write("ordain.toml", config + sink)?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;

    let explanation = "no, thank you. ".repeat(30);
    let rejected = from_line(&line("a", 1, &json!({ "do": "reject", "reason": explanation })))?;
    let mut unnumbered = from_line(&line("b", 1, &json!({ "do": "ok" })))?;
    unnumbered.properties = unnumbered.properties.with_headers(FieldTable::default());
    let mut keyless = from_line(&line("", 1, &json!("no key")))?;
    keyless.body = b"\xff\xfe".to_vec();
    rig.client.publish("cases", &[rejected, unnumbered, keyless])?;

    let taken = rig.client.take("letters", 3)?;
    let letter = |cause: &str, routing_key: &str| {
        let found =
            taken.iter().find(|message| header(message, "deadcause").as_deref() == Some(cause));
        let found = found.filter(|message| message.routing_key.as_str() == routing_key);
        found.with_context(|| format!("no dead letter {cause} under {routing_key} in {taken:?}"))
    };
    let rejected = letter("rejected", "letter.a")?;
    ensure_headers(
        rejected,
        &[
            ("deaderror", &explanation),
            ("deadsequence", "1"),
            ("deadid", "a-1"),
            ("X-Sequence-ID", "1"),
            ("X-Key", "a"),
            ("cloudEvents:source", "/ordain/cases"),
        ],
    )?;
    ensure!(header(rejected, "deadversion").is_some_and(|version| version.starts_with("faulty+")));
    let properties = &rejected.properties;
    let text = |text: &Option<ShortString>| text.as_ref().map(ToString::to_string);
    ensure!(text(properties.message_id()).is_some_and(|id| id.starts_with("cases/a/dead/1/")));
    ensure!(text(properties.kind()).as_deref() == Some("test"), "{properties:?}");
    ensure!(text(properties.content_type()).as_deref() == Some("application/json"));
    let data: serde_json::Value = serde_json::from_slice(&rejected.data)?;
    ensure!(data == json!({ "do": "reject", "reason": explanation }), "{data}");

    let unnumbered = letter("no-sequence", "letter.b")?;
    ensure_headers(
        unnumbered,
        &[("x-original-routing-key", "b"), ("x-original-exchange", "cases")],
    )?;
    ensure!(header(unnumbered, "X-Sequence-ID").is_none(), "{unnumbered:?}");
    ensure!(text(unnumbered.properties.message_id()).as_deref() == Some("b-1"), "{unnumbered:?}");
    let keyless = letter("no-key", "letter.")?;
    let original = [("x-original-routing-key", ""), ("x-original-exchange", "cases")];
    ensure_headers(keyless, &[&[("deadorigin", "queue cases")], &original[..]].concat())?;
    ensure!(text(keyless.properties.kind()).as_deref() == Some("test"), "{keyless:?}");
    ensure!(text(keyless.properties.message_id()).as_deref() == Some("-1"), "{keyless:?}");
    ensure!(keyless.data == b"\xff\xfe", "{keyless:?}");

    rig.until_empty()?;
    service.end()?;
    let stored = rig.home.rows(&["dead", "list", "cases", "--json"])?;
    ensure!(stored.len() == 3, "{stored:?}");
    Ok(())
}

/// Two streams write their dead letters to one file. When the process ends, the first stream still has an unroutable
/// message, so the host has not marked the first stream's line in the file as published. The host must also not mark
/// any later line of the file as published, even if the line belongs to the second stream. After the next start, the
/// file must have each line once.
///
/// The host repeatedly publishes the message of the first stream, at intervals of at most 10 seconds. One of these
/// attempts must come after the end of the first stream and before the end of the second stream. A stream that is
/// ending waits 5 seconds for the publication of its messages. A looping event keeps the second stream busy until the
/// time limit `plugins.timeout` (20 seconds) ends the event, so the time between the ends of both streams is longer
/// than the longest interval.
#[test]
fn shared_file_has_each_letter_once_while_one_stream_waits() -> Result<()> {
    let rig = Rig::with("", "dead_letter = \"dead\"", "partitions = 1")?;
    rig.client.delete_queue("out")?;
    let others = "[plugins]\ntimeout = \"20s\"\n\
         [sinks.dead]\nkind = \"file\"\npath = \"dead.ndjson\"\n\
         [streams.others]\nhandler = \"faulty\"\ndead_letter = \"dead\"\n\
         source = { kind = \"amqp\", exchange = \"others\", queue = \"others\", partitions = 1 }\n";
    let config = rig.home.read("ordain.toml").replace("\"tally\"", "\"faulty\"");
    rig.home.write("ordain.toml", config.replace("sinks.tally", "sinks.faulty") + others)?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    rig.until_bound("others", &["others"])?;

    let letters = || rig.home.read("dead.ndjson").lines().count();
    let event = |key: &str, sequence, data| from_line(&line(key, sequence, &data));
    let emit = json!({ "do": "emit" });
    let reject = json!({ "do": "reject" });
    rig.client.publish("cases", &[event("a", 1, emit)?])?;
    service.until_says("no queue takes")?;
    rig.client.publish("cases", &[event("a", 2, reject.clone())?])?;
    service.until("a dead letter of the first stream", || letters() == 1)?;
    rig.client.publish("others", &[event("b", 1, reject)?])?;
    service.until("a dead letter of the second stream", || letters() == 2)?;
    let address = admin(&mut service)?;
    let value = |name: &str| metric(address, name).ok().flatten();
    let unpublished = || value(r#"ordain_outbox_pending{stream="cases",partition="0"}"#);
    let runs =
        || value(r#"ordain_lanes{state="running",stream="others",partition="0"}"#) == Some(1);
    rig.client.publish("others", &[event("c", 1, json!({ "do": "loop" }))?])?;
    service.until("the looping event", &runs)?;
    ensure!(unpublished().is_some_and(|messages| messages > 0), "{}", service.stderr());
    service.signal("TERM")?;
    service.until("the end of the first stream before the second", || {
        unpublished() == Some(0) && runs()
    })?;
    let status = service.wait()?;
    ensure!(status.success(), "{status}: {}", service.stderr());

    // The next start executes the looping event again, and must not wait long for the end of this event.
    let config = rig.home.read("ordain.toml");
    rig.home.write("ordain.toml", config.replace("timeout = \"20s\"", "timeout = \"1s\""))?;
    rig.client.queue("out")?;
    rig.client.bind("out", "out", "#")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    ensure!(header(&rig.client.take("out", 1)?[0], "X-Key").as_deref() == Some("a"));
    service.end()?;
    let letters = rig.home.read("dead.ndjson");
    ensure!(letters.lines().count() == 2, "{letters}");
    Ok(())
}

/// An operator binds the queue of a `fifo` stream to the exchange for the stream's dead letters. This binding is not in
/// the configuration. An operator can send a dead letter again after a correction of the handler. The host must
/// therefore accept a returned dead letter once as an event. If this event fails too, its dead letter must not return
/// again.
#[test]
fn returned_dead_letters_do_not_circulate() -> Result<()> {
    // The dead letter of the rejected event returns as an event, and the handler rejects this event too (`rejected`
    // twice). Two dead letters return and must not circulate (`returned` twice): the second dead letter `rejected`, and
    // the dead letter `no-id`.
    let expected = ["no-id", "rejected", "rejected", "returned", "returned"];
    let without_id = from_line(&line("b", 1, &json!({ "do": "ok" })))?;
    ensure_letters_end("ordering = \"fifo\"", vec![without_properties(without_id)], &expected)
}

/// The dead letters of a `sequenced` stream return to the stream. The event of the dead letter `rejected` has ended, so
/// the stream must treat the returned dead letter as a repeat.
#[test]
fn returned_dead_letters_of_a_sequenced_stream_do_not_circulate() -> Result<()> {
    // Two events have no sequence, and only the second of them has an id. When the dead letters of these two events
    // return, the stream still cannot read their messages. The dead letters must not circulate (`returned` twice).
    let expected = ["no-sequence", "no-sequence", "rejected", "returned", "returned"];
    let without_id = from_line(&line("b", 1, &json!({ "do": "ok" })))?;
    let mut with_id = without_properties(from_line(&line("c", 1, &json!({ "do": "ok" })))?);
    with_id.properties = with_id.properties.with_message_id("c-1".into());
    ensure_letters_end("", vec![without_properties(without_id), with_id], &expected)
}

/// The store numbers an event of `ordain publish`, and the handler rejects the event. The dead letter has an id and a
/// source of its own, and returns to the stream. Its event must nevertheless be a repeat, and not a conflict.
#[test]
fn returned_dead_letter_of_a_store_numbered_event_is_a_repeat() -> Result<()> {
    let admin_section = "[admin]\nlisten = \"127.0.0.1:0\"\n";
    let rig = Rig::with(admin_section, "dead_letter = \"dead\"", "")?;
    rig.client.exchange("letters", ExchangeKind::Fanout)?;
    let sink = "[sinks.dead]\nkind = \"amqp\"\nexchange = \"letters\"\n";
    let config = rig.home.read("ordain.toml").replace("\"tally\"", "\"faulty\"");
    rig.home.write("ordain.toml", config + sink)?;
    // The command declares the queue, because no host of the stream has run yet.
    let data = json!({ "do": "reject" }).to_string();
    let event = ["--key", "a", "--type", "test", "--data", &data, "--id", "one"];
    rig.home.rows(&[&["publish", "cases"], &event[..], &["--json"]].concat())?;
    rig.client.bind("cases", "letters", "")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    let address = admin(&mut service)?;
    let duplicates = r#"ordain_events_total{stream="cases",outcome="duplicate"}"#;
    service.until("the repeat", || metric(address, duplicates).ok().flatten() == Some(1))?;
    rig.until_empty()?;
    service.end()?;
    let stored = rig.home.rows(&["dead", "list", "cases", "--json"])?;
    let causes: Vec<&str> = stored.iter().filter_map(|row| row["cause"].as_str()).collect();
    ensure!(causes == ["rejected"], "{causes:?}");
    Ok(())
}

fn without_properties(message: Outgoing) -> Outgoing {
    Outgoing { properties: BasicProperties::default(), ..message }
}

/// Starts a host whose dead letters return to its stream. Publishes an event that the handler rejects, and `others`.
/// Checks that the stream writes dead letters with exactly these causes.
fn ensure_letters_end(ordering: &str, others: Vec<Outgoing>, expected: &[&str]) -> Result<()> {
    let admin_section = "[admin]\nlisten = \"127.0.0.1:0\"\n";
    let rig = Rig::with(admin_section, &format!("{ordering}\ndead_letter = \"dead\""), "")?;
    rig.client.exchange("letters", ExchangeKind::Fanout)?;
    let sink = "[sinks.dead]\nkind = \"amqp\"\nexchange = \"letters\"\n";
    let config = rig.home.read("ordain.toml").replace("\"tally\"", "\"faulty\"");
    rig.home.write("ordain.toml", config + sink)?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    rig.client.bind("cases", "letters", "")?;
    let url = format!("http://{}", admin(&mut service)?);

    let mut messages = vec![from_line(&line("a", 1, &json!({ "do": "reject" })))?];
    messages.extend(others);
    rig.client.publish("cases", &messages)?;
    let causes = || -> Result<Vec<String>> {
        let rows = rig.home.rows(&["dead", "list", "cases", "--json", "--admin", &url])?;
        let mut causes: Vec<String> =
            rows.iter().filter_map(|row| row["cause"].as_str()).map(str::to_owned).collect();
        causes.sort();
        Ok(causes)
    };
    wait_until("the dead letters", || Ok(causes()? == expected))?;
    std::thread::sleep(Duration::from_secs(2));
    ensure!(causes()? == expected, "{:?}", causes()?);
    service.end()
}
