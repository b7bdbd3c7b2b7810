//! Tests of streams that cannot read the messages of their queue. The messages must remain in the queue instead of
//! becoming dead letters, and the log must propose settings.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use ordain_servers::{Redis, wait_until};
use ordain_tests::amqp::{Outgoing, from_line};
use ordain_tests::http::{admin, get, metric, ready};
use ordain_tests::log::in_turn;
use ordain_tests::printed::{run_all, run_first};
use ordain_tests::rig::{Rig, config};
use ordain_tests::service::Service;
use serde_json::{Value, json};

use super::support::{ADMIN, FIFO};

/// The number of messages of foreign producers. It is far above the default of `unreadable_limit` (100).
const FOREIGN_COUNT: usize = 10_000;

/// The beginning of the log line of a stream that stops because of its default limit.
const STOPPED_WORDS: &str =
    "stream stopped: 100 consecutive messages of the queue \"cases\" cannot be read";

fn with_headers(headers: &[(&str, &str)]) -> BasicProperties {
    let mut table = FieldTable::default();
    for (name, value) in headers {
        table.insert((*name).into(), AMQPValue::LongString((*value).into()));
    }
    BasicProperties::default().with_headers(table)
}

/// Returns a message of one of five kinds of producers. None of them sets `message_id`. A task queue writes the id into
/// a header, a service bus into the body, and another bus into another header. A plain client and a client without a
/// routing key write no id.
fn foreign(number: usize) -> Outgoing {
    let id = format!("id-{number}");
    let key = format!("k{}", number % 10);
    let body = json!({ "n": number });
    let (routing_key, properties, body) = match number % 5 {
        0 => {
            let properties = with_headers(&[("id", &id), ("task", "orders.pay")]);
            (key, properties.with_correlation_id(id.into()), json!([[number], {}, {}]))
        }
        1 => (key, with_headers(&[]), json!({ "messageId": id, "message": body })),
        2 => (key, with_headers(&[("rbs2-msg-id", &id)]), body),
        3 => (key, BasicProperties::default(), body),
        _ => (String::new(), BasicProperties::default(), body),
    };
    Outgoing { routing_key, properties, body: body.to_string().into_bytes() }
}

/// Waits until a queue has exactly these numbers of ready and of unacknowledged messages.
fn until_queue(rig: &Rig, queue: &str, ready: u64, unacknowledged: u64) -> Result<()> {
    wait_until(&format!("{ready} and {unacknowledged} messages in the queue {queue}"), || {
        Ok(rig.rabbit.queues()?.get(queue) == Some(&(ready, unacknowledged)))
    })
}

/// Returns the dead letters of the stream. No process may have the store open.
fn letters(rig: &Rig) -> Result<Vec<Value>> {
    rig.home.rows(&["dead", "list", "cases", "--json", "--limit", "1000"])
}

fn reports(service: &Service) -> usize {
    service.stderr().lines().filter(|line| line.contains("cannot be read (")).count()
}

/// Starts a host, which must execute events, and then ends the host. The store then has data of the stream.
fn establish(rig: &Rig) -> Result<()> {
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    publish_readable(rig)?;
    service.end()
}

/// Publishes readable events of two keys, and waits until they have taken effect.
fn publish_readable(rig: &Rig) -> Result<()> {
    let lines = in_turn(2, 5);
    rig.publish(&lines)?;
    rig.take(&mut Vec::new(), lines.len())?;
    rig.until_empty()
}

/// Waits until the stream has stopped because of the foreign messages, which must all remain in the queue. The log line
/// about the stop must contain all of `parts` and the commands of the next step. Returns this line.
fn until_stopped(rig: &Rig, service: &mut Service, parts: &[&str]) -> Result<String> {
    service.until_says(STOPPED_WORDS)?;
    until_queue(rig, "cases", FOREIGN_COUNT as u64, 0)?;
    let log = service.stderr();
    let line = log.lines().find(|line| line.contains(STOPPED_WORDS)).context("the stop")?;
    let commands = ["`ordain check --connect --sample=20`", "`ordain streams resume cases`"];
    for part in parts.iter().chain(&commands) {
        ensure!(line.contains(part), "no {part:?} in {line}");
    }
    Ok(line.to_owned())
}

/// By mistake, a stream with default settings reads a queue of foreign producers. The operator then makes the stream a
/// `fifo` stream, which is not sufficient. Each time, no message may be lost, and exactly one log line must contain the
/// next step. The other stream of the process must continue. After a second correction of the settings, each message
/// takes effect once.
#[test]
fn foreign_messages_stay_in_the_queue_until_the_settings_fit() -> Result<()> {
    let rig = Rig::with(ADMIN, "", "")?;
    let other = "[streams.other]\nhandler = \"tally\"\nordering = \"fifo\"\n\
                 source = { kind = \"amqp\", exchange = \"other\", queue = \"other\" }\n";
    let configure = |ordering: &str, source: &str| {
        let text = config(&rig.rabbit.url(), ADMIN, ordering, source);
        rig.home.write("ordain.toml", text + other)
    };
    configure("", "")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    rig.until_bound("other", &["other"])?;
    service.end()?;
    let messages: Vec<Outgoing> = (0..FOREIGN_COUNT).map(foreign).collect();
    rig.client.publish("cases", &messages)?;
    let mut service = Service::start(&rig.home, &["run"])?;
    let format = "`source = { …, format = \"celery\", key = \"routing-key\" }`";
    let step = format!("With `ordering = \"fifo\"` and {format}");
    let parts = ["(no-key: 20, no-sequence: 80)", "the headers id, task", step.as_str()];
    until_stopped(&rig, &mut service, &parts)?;
    service.end()?;
    ensure!(reports(&service) == 1, "{}", service.stderr());
    ensure!(letters(&rig)?.is_empty());

    configure(FIFO, "")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    let address = admin(&mut service)?;
    let step = format!("With {format}");
    let parts = ["(no-id: 80, no-key: 20)", "the headers id, task", step.as_str()];
    let line = until_stopped(&rig, &mut service, &parts)?;
    let page = get(address, "/readyz")?;
    let reason = page.problem()?;
    ensure!(page.status == 503 && reason.contains("stream cases: its messages cannot be read"));
    let consuming = |stream: &str| {
        let name = format!("ordain_stream_consuming{{stream=\"{stream}\",partition=\"0\"}}");
        metric(address, &name).ok().flatten()
    };
    service.until("the other stream", || consuming("other") == Some(1))?;
    ensure!(consuming("cases") == Some(0), "the stream consumes");
    let url = format!("http://{address}");
    let listed = rig.home.printed(&["streams", "list", "--json", "--admin", &url])?;
    ensure!(listed.contains("cannot be read") && listed.contains("celery"), "{listed}");
    let lines = in_turn(3, 10);
    let events: Vec<Outgoing> = lines.iter().map(|line| from_line(line)).collect::<Result<_>>()?;
    rig.client.publish("other", &events)?;
    rig.client.take("out", lines.len())?;
    until_queue(&rig, "cases", FOREIGN_COUNT as u64, 0)?;
    ensure!(reports(&service) == 1, "{}", service.stderr());
    service.end()?;
    ensure!(letters(&rig)?.is_empty());

    let places = "key = [\"routing-key\", \"*\"], \
                  id = [\"header:id\", \"header:rbs2-msg-id\", \"data:/messageId\", \"content\"]";
    configure(FIFO, places)?;
    // With the corrected settings, all commands in the log line succeed.
    let outputs = run_all(&rig.home, &line)?;
    let sampled = outputs
        .iter()
        .find(|(command, _)| command.starts_with("ordain check "))
        .context("a check")?;
    ensure!(outputs.len() == 2 && sampled.1.contains("message 20: key "), "{outputs:?}");
    let mut service = Service::start(&rig.home, &["run"])?;
    let taken = rig.client.take("out", FOREIGN_COUNT)?;
    let ids: BTreeSet<Option<String>> = taken
        .iter()
        .map(|message| message.properties.message_id().as_ref().map(ToString::to_string))
        .collect();
    ensure!(ids.len() == FOREIGN_COUNT, "{} different messages", ids.len());
    rig.until_empty()?;
    let address = admin(&mut service)?;
    for (outcome, count) in [("effect", FOREIGN_COUNT as u64), ("duplicate", 0)] {
        let name = format!("ordain_events_total{{stream=\"cases\",outcome=\"{outcome}\"}}");
        ensure!(metric(address, &name)?.unwrap_or_default() == count, "{outcome}");
    }
    ensure!(rig.client.take_all("out")?.is_empty(), "further messages");
    service.end()?;
    ensure!(letters(&rig)?.is_empty());
    Ok(())
}

/// A new stream receives a few unreadable messages and nothing else. The stream must report these messages without
/// waiting for more messages, and must hold them until it has read a message. The held messages then become dead
/// letters. From then on, also after a restart, such messages become dead letters immediately.
#[test]
fn first_messages_are_held_until_a_message_is_read() -> Result<()> {
    let rig = Rig::with(ADMIN, "", "")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let address = ready(&mut service)?;
    let bad: Vec<Outgoing> = (0..5).map(foreign).collect();
    rig.client.publish("cases", &bad[..3])?;
    service.until_says("stream waits: ")?;
    until_queue(&rig, "cases", 0, 3)?;
    service.until("the state of the stream", || {
        get(address, "/readyz").is_ok_and(|page| page.status == 503)
    })?;
    ensure!(service.stderr().contains("`ordering = \"fifo\"`"), "{}", service.stderr());

    publish_readable(&rig)?;
    ready(&mut service)?;
    ensure!(reports(&service) == 1, "{}", service.stderr());
    service.end()?;
    ensure!(letters(&rig)?.len() == 3);

    let mut service = Service::start(&rig.home, &["run"])?;
    rig.client.publish("cases", &bad[3..])?;
    rig.until_empty()?;
    ensure!(reports(&service) == 0, "{}", service.stderr());
    service.end()?;
    ensure!(letters(&rig)?.len() == 5);
    Ok(())
}

/// A stream has read messages, and then its producers change their format. The stream stops at the limit, and leaves
/// the messages in the queue. With `unreadable_limit = 0`, an operator can turn the messages into dead letters.
#[test]
fn run_of_unreadable_messages_stops_a_stream_with_data() -> Result<()> {
    for ordering in ["", FIFO] {
        let rig = Rig::with("", ordering, "")?;
        establish(&rig)?;
        let bad: Vec<Outgoing> = (0..150).map(foreign).collect();
        rig.client.publish("cases", &bad)?;
        for _ in 0..2 {
            let mut service = Service::start(&rig.home, &["run"])?;
            service.until_says(STOPPED_WORDS)?;
            until_queue(&rig, "cases", 150, 0)?;
            ensure!(reports(&service) == 1, "{}", service.stderr());
            service.end()?;
            ensure!(letters(&rig)?.is_empty());
        }
        let without_limit = config(&rig.rabbit.url(), "", ordering, "unreadable_limit = 0");
        rig.home.write("ordain.toml", without_limit)?;
        let mut service = Service::start(&rig.home, &["run"])?;
        rig.until_empty()?;
        service.end()?;
        let letters = letters(&rig)?;
        ensure!(letters.len() == 150, "{} letters", letters.len());
    }
    Ok(())
}

/// If readable messages arrive between unreadable messages, the unreadable messages never reach the limit, even if
/// their total number is above the limit. Each unreadable message becomes a dead letter, and no event is lost. With a
/// prefetch of 1, the consumer cannot hold a message back while it receives the next message.
#[test]
fn unreadable_messages_among_readable_ones_become_letters() -> Result<()> {
    for source in ["unreadable_limit = 5", "unreadable_limit = 5, prefetch = 1"] {
        let rig = Rig::with("", FIFO, source)?;
        let mut service = Service::start(&rig.home, &["run"])?;
        rig.until_declared()?;
        let lines = in_turn(2, 20);
        let mut messages = Vec::new();
        for (index, line) in lines.iter().enumerate() {
            messages.push(from_line(line)?);
            messages.extend((0..index % 4).map(|number| foreign(10 * index + number)));
        }
        let bad = messages.len() - lines.len();
        rig.client.publish("cases", &messages)?;
        rig.take(&mut Vec::new(), lines.len())?;
        rig.until_empty()?;
        ensure!(reports(&service) == 0, "{}", service.stderr());
        service.end()?;
        let letters = letters(&rig)?;
        ensure!(letters.len() == bad, "{} letters of {bad}", letters.len());
    }
    Ok(())
}

/// Each partition counts its own unreadable messages. If one partition stops, the other partitions continue.
#[test]
fn partition_with_unreadable_messages_stops_alone() -> Result<()> {
    let rig = Rig::with("", "", "partitions = 4, unreadable_limit = 10")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let keys = 12;
    let lines = in_turn(keys, 6);
    let (first, rest) = lines.split_at(5 * keys);
    rig.publish(first)?;
    rig.take(&mut Vec::new(), first.len())?;
    rig.until_empty()?;
    let bad: Vec<Outgoing> = (0..30)
        .map(|number| Outgoing { routing_key: "k0".to_owned(), ..foreign(number) })
        .collect();
    rig.client.publish("cases", &bad)?;
    service.until_says("stream stopped: 10 consecutive messages of the queue \"cases.")?;
    rig.publish(rest)?;
    // The events of the stopped partition wait in its queue. All other events take effect.
    let mut waiting = 0;
    wait_until("the events of the other partitions", || {
        let queues = rig.rabbit.queues()?;
        let left: Vec<(u64, u64)> = queues
            .iter()
            .filter(|(name, left)| name.starts_with("cases.") && **left != (0, 0))
            .map(|(_, left)| *left)
            .collect();
        let [(ready, 0)] = left[..] else { return Ok(false) };
        waiting = ready;
        Ok(true)
    })?;
    ensure!(waiting > 20, "{waiting} messages wait");
    let letters_and_waiting = 30 + rest.len() as u64;
    ensure!(waiting < letters_and_waiting, "no event of another partition took effect");
    ensure!(reports(&service) == 1, "{}", service.stderr());
    service.end()
}

fn batch(events: &[Value]) -> Outgoing {
    let content_type = "application/cloudevents-batch+json";
    Outgoing {
        routing_key: "events".to_owned(),
        properties: BasicProperties::default().with_content_type(content_type.into()),
        body: json!(events).to_string().into_bytes(),
    }
}

fn unreadable_batch(number: usize, size: usize) -> Outgoing {
    let events: Vec<Value> =
        (0..size).map(|event| json!({ "id": format!("{number}-{event}") })).collect();
    batch(&events)
}

/// A batch without a readable event counts as one unreadable message, and the stream must hold back all events of this
/// batch. A single readable event makes the batch readable. When the stream stops, the events before the unreadable
/// batches must be settled.
#[test]
fn batch_without_a_readable_event_counts_as_one_message() -> Result<()> {
    // With this low `prefetch`, a `fifo` stream accepts a batch of several events.
    let rig = Rig::with(ADMIN, FIFO, "prefetch = 40, unreadable_limit = 4")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let events: Vec<Value> = in_turn(2, 3)
        .iter()
        .map(|line| serde_json::from_str(line))
        .collect::<serde_json::Result<_>>()?;
    let bad = [unreadable_batch(0, 3), foreign(3), unreadable_batch(1, 3), batch(&[])];
    rig.client.publish("cases", &bad)?;
    service.until_says("stream waits: ")?;
    until_queue(&rig, "cases", 0, 4)?;
    let mixed = [json!({ "id": "mixed" }), events[0].clone()];
    rig.client.publish("cases", &[batch(&mixed)])?;
    rig.take(&mut Vec::new(), 1)?;
    rig.until_empty()?;
    ensure!(reports(&service) == 1, "{}", service.stderr());
    service.end()?;
    ensure!(letters(&rig)?.len() == 8);

    let mut messages = vec![batch(&events[1..4]), batch(&events[4..])];
    messages.extend((2..6).map(|number| unreadable_batch(number, 3)));
    rig.client.publish("cases", &messages)?;
    let mut service = Service::start(&rig.home, &["run"])?;
    service.until_says("stream stopped: 4 consecutive messages of the queue \"cases\"")?;
    rig.take(&mut Vec::new(), events.len() - 1)?;
    until_queue(&rig, "cases", 4, 0)?;
    service.end()?;
    ensure!(letters(&rig)?.len() == 8);
    Ok(())
}

/// An operator resumes the stream in the running process, with the command in the log. While the messages are in the
/// queue, the stream stops again and reports the reason again. After the operator has removed the messages, the stream
/// continues.
#[test]
fn resumed_stream_continues_without_the_unreadable_messages() -> Result<()> {
    let redis = Redis::start(&[])?;
    let in_redis = format!("[store]\nkind = \"redis\"\nurl = \"{}\"\n", redis.url());
    for store in ["", &in_redis] {
        resume_with_printed_command(store)?;
    }
    Ok(())
}

/// Checks the stop and the resumption of a stream with a store that `store` configures; an empty text selects the
/// embedded store.
fn resume_with_printed_command(store: &str) -> Result<()> {
    const CONFIG_FILE: &str = "an operator's.toml";
    let rig = Rig::with(&format!("{ADMIN}{store}"), FIFO, "unreadable_limit = 5")?;
    // A command that does not name the configuration file fails.
    std::fs::rename(rig.home.path("ordain.toml"), rig.home.path(CONFIG_FILE))?;
    let mut service = Service::start(&rig.home, &["run", CONFIG_FILE])?;
    rig.until_declared()?;
    let address = ready(&mut service)?;
    let lines = in_turn(2, 10);
    let (first, rest) = lines.split_at(10);
    rig.publish(first)?;
    rig.take(&mut Vec::new(), first.len())?;
    rig.until_empty()?;
    let bad: Vec<Outgoing> = (0..5).map(foreign).collect();
    rig.client.publish("cases", &bad)?;
    let stopped = "stream stopped: 5 consecutive messages";
    service.until_says(stopped)?;
    until_queue(&rig, "cases", 5, 0)?;
    let log = service.stderr();
    let line = log.lines().find(|line| line.contains(stopped)).context("the stop")?;
    let place = match store {
        // The command finds the process through the folder of the store.
        "" => r"--config 'an operator'\''s.toml'".to_owned(),
        _ => format!("--admin http://{address}"),
    };
    ensure!(line.contains(&format!("`ordain streams resume cases {place}`")), "{line}");
    let resume = || run_first(&rig.home, line, "ordain streams resume ");
    let printed = resume()?;
    ensure!(printed.contains("partition 0 resumed"), "{printed}");
    ensure!(printed.contains("5 consecutive messages"), "{printed}");
    service.until_says("stream resumed by an operator")?;
    wait_until("the second stop", || Ok(reports(&service) == 2))?;
    until_queue(&rig, "cases", 5, 0)?;
    rig.client.purge_queue("cases")?;
    ensure!(resume()?.contains("partition 0 resumed"), "{}", service.stderr());
    rig.publish(rest)?;
    rig.take(&mut Vec::new(), rest.len())?;
    rig.until_empty()?;
    let printed = resume()?;
    ensure!(printed.contains("nothing to resume"), "{printed}");
    // The process consumes the queue, so the check receives no message.
    run_first(&rig.home, line, "ordain check --connect ")?;
    service.end()?;
    let list = ["dead", "list", "cases", "--json", "--config", CONFIG_FILE];
    ensure!(rig.home.rows(&list)?.is_empty());
    Ok(())
}

/// `ordain check --connect --sample` shows how each message would be read, and leaves the messages in the queue.
#[test]
fn check_samples_messages_without_taking_them() -> Result<()> {
    let rig = Rig::with("", FIFO, "")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let check = |code: i32| -> Result<Value> {
        let output = rig.home.output(&["check", "--connect", "--sample", "5", "--json"])?;
        ensure!(output.status.code() == Some(code), "{output:?}");
        Ok(serde_json::from_slice(&output.stdout)?)
    };
    let report = check(0)?;
    ensure!(report["samples"] == json!([]), "{report}");
    ensure!(report.to_string().contains("stop the consumers"), "{report}");
    service.end()?;

    rig.client.publish("cases", &[from_line(&in_turn(1, 1)[0])?, foreign(0)])?;
    let mut report = Value::Null;
    // For a moment after the end of the host, the broker may still count its consumer.
    wait_until("the samples", || {
        report = check(0)?;
        Ok(report["samples"] != json!([]))
    })?;
    let samples = &report["samples"];
    ensure!(samples.as_array().map(Vec::len) == Some(2), "{report}");
    ensure!(samples[0]["queue"] == "cases" && samples[0]["cause"].is_null(), "{samples}");
    ensure!(samples[0]["key"].is_string() && samples[0]["id"].is_string(), "{samples}");
    ensure!(samples[0]["content_type"] == "application/json", "{samples}");
    ensure!(samples[1]["cause"] == "no-id" && samples[1]["key"].is_null(), "{samples}");
    let proposal = "`source = { …, format = \"celery\", key = \"routing-key\" }`";
    ensure!(samples[1]["proposal"] == proposal, "{samples}");
    until_queue(&rig, "cases", 2, 0)?;
    let printed = rig.home.printed(&["check", "--connect", "--sample", "5"])?;
    ensure!(printed.contains("message 2: no-id: there is no id"), "{printed}");

    rig.client.purge_queue("cases")?;
    rig.client.publish("cases", &[foreign(0), foreign(3)])?;
    let report = check(78)?;
    ensure!(report["samples"].as_array().map(Vec::len) == Some(2), "{report}");
    until_queue(&rig, "cases", 2, 0)
}
