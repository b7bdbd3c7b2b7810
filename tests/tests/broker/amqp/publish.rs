//! Tests of messages that the broker refuses, and of brokers and queues that do not accept messages. Such messages,
//! brokers and queues must not delay other messages.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lapin::ExchangeKind;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use ordain_servers::{Rabbit, RabbitOptions, Redis, wait_for_command, wait_until};
use ordain_tests::amqp::{Outgoing, from_line, header};
use ordain_tests::host::Home;
use ordain_tests::http::{get, ready};
use ordain_tests::log::line;
use ordain_tests::rig::Rig;
use ordain_tests::service::{RUN_WITH_SHORT_WAITS, Service};
use serde_json::{Value, json};

fn rig(rabbit: Rabbit, store: &str, stream: &str, sinks: &str) -> Result<Rig> {
    let rig = Rig::on(rabbit, store, stream, "")?;
    let config = rig.home.read("ordain.toml").replace("tally", "faulty");
    rig.home.write("ordain.toml", config + sinks)?;
    Ok(rig)
}

fn event(key: &str, sequence: u64, data: &Value) -> Result<Outgoing> {
    from_line(&line(key, sequence, data))
}

fn with_headers(mut event: Outgoing, headers: &[(&str, &str)]) -> Outgoing {
    let mut table = event.properties.headers().clone().unwrap_or_default();
    for (name, value) in headers {
        table.insert((*name).into(), AMQPValue::LongString((*value).into()));
    }
    event.properties = event.properties.with_headers(table);
    event
}

/// Returns the sequences of the events that caused the messages. The ids of the messages contain the sequences.
fn sequences(taken: &[Delivery]) -> Result<Vec<u64>> {
    let sequence = |message: &Delivery| {
        let id = message.properties.message_id().as_ref().context("an id")?.to_string();
        Ok(id.split('/').nth(3).context("a sequence")?.parse()?)
    };
    taken.iter().map(sequence).collect()
}

/// The host copies headers of an event into the messages. A header of a producer must not make the broker refuse a
/// message, and must not replace the id or the sequence of a message.
#[test]
fn producer_headers_replace_no_reserved_header() -> Result<()> {
    let dead = "[sinks.dead]\nkind = \"amqp\"\nexchange = \"out\"\n";
    let rig = rig(Rabbit::shared()?, "", "dead_letter = \"dead\"", dead)?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let rejected = event("a", 1, &json!({ "do": "reject" }))?;
    let rejected = with_headers(
        rejected,
        &[
            ("cloudEvents:CC", "elsewhere"),
            ("cloudEvents:BCC", "elsewhere"),
            ("cloudEvents:cloudEvents:id", "another"),
            ("cloudEvents_X-Sequence-ID", "17"),
            ("cloudEvents:x-delivery-count", "3"),
            ("deadcause", "none"),
            ("tenant", "blue"),
        ],
    );
    rig.client.publish("cases", &[rejected, event("b", 1, &json!({ "do": "emit" }))?])?;
    let taken = rig.client.take("out", 2)?;
    let letter = taken
        .iter()
        .find(|message| message.routing_key.as_str() == "a")
        .context("no dead letter arrived")?;
    let own_id = letter.properties.message_id().as_ref().map(ShortString::as_str);
    ensure!(own_id.is_some_and(|id| id.starts_with("cases/a/dead/")), "{letter:?}");
    for (name, value) in [
        ("x-original-CC", Some("elsewhere")),
        ("x-original-BCC", Some("elsewhere")),
        ("x-original-cloudEvents:id", Some("another")),
        ("x-original-X-Sequence-ID", Some("17")),
        ("x-original-x-delivery-count", Some("3")),
        ("x-original-deadcause", Some("none")),
        ("tenant", Some("blue")),
        ("deadcause", Some("rejected")),
        ("X-Sequence-ID", Some("1")),
        ("CC", None),
        ("BCC", None),
        ("cloudEvents:id", own_id),
    ] {
        let found = header(letter, name);
        ensure!(found.as_deref() == value, "{name} is {found:?} in {letter:?}");
    }
    rig.until_empty()?;
    service.end()
}

/// The dead letter of an event that is too large must contain only the beginning of the event. A dead letter with the
/// whole event could exceed the broker's size limit for messages.
#[test]
fn dead_letter_of_large_event_is_truncated() -> Result<()> {
    let dead =
        "[sinks.dead]\nkind = \"amqp\"\nexchange = \"out\"\n[runtime]\nevent_size = \"64KiB\"\n";
    let rabbit = Rabbit::with(&RabbitOptions::new().line("max_message_size = 262144"))?;
    let rig = rig(rabbit, "", "dead_letter = \"dead\"", dead)?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let mut large = event("a", 1, &json!({}))?;
    // JSON escapes each quotation mark, so the body needs twice its size in JSON.
    large.body = vec![b'"'; 250_000];
    // A stream that has not read any message yet leaves unreadable messages in the queue.
    rig.client.publish("cases", &[event("b", 1, &json!({ "do": "ok" }))?, large])?;
    let letter = rig.client.take("out", 1)?.pop().context("no dead letter arrived")?;
    let whole: Value = serde_json::from_slice(&letter.data)?;
    ensure!(whole["body"].as_str().map(str::len) == Some(64 << 10), "{}", whole["body"]);
    ensure!(whole["body_size"] == 250_000, "{}", whole["body_size"]);
    ensure!(header(&letter, "deadsequence").as_deref() == Some("1"), "{letter:?}");
    rig.until_empty()?;
    service.end()
}

/// Receives messages until `count` different messages of keys other than `a` have arrived. Returns the messages of `a`.
fn receive_others(rig: &Rig, count: usize) -> Result<Vec<Delivery>> {
    let mut ids = Vec::new();
    let mut of_a = Vec::new();
    while ids.len() < count {
        for message in rig.client.take("out", 1)? {
            let id = message.properties.message_id().clone();
            if message.routing_key.as_str() == "a" {
                of_a.push(message);
            } else if !ids.contains(&id) {
                ids.push(id);
            }
        }
    }
    Ok(of_a)
}

/// Returns events of a key with these sequences. The handler emits one message for each event.
fn emits(key: &str, sequences: std::ops::RangeInclusive<u64>) -> Result<Vec<Outgoing>> {
    sequences.map(|sequence| event(key, sequence, &json!({ "do": "emit" }))).collect()
}

/// Publishes events of a key, from the sequence `from`, until `is_over` returns true. Receives from `queue` the
/// messages that the handler emits for these events. The queue gets no other messages. The messages must arrive in
/// order and exactly once, and each message must arrive within a minute after the previous message.
fn check_prompt_delivery(
    rig: &Rig,
    (key, queue): (&str, &str),
    mut from: u64,
    mut is_over: impl FnMut() -> bool,
) -> Result<()> {
    while !is_over() {
        rig.client.publish("cases", &emits(key, from..=from + 9)?)?;
        let taken = sequences(&rig.client.take(queue, 10)?)?;
        ensure!(taken == (from..from + 10).collect::<Vec<_>>(), "messages from {from}: {taken:?}");
        from += 10;
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// A queue neither accepts nor refuses messages, like a quorum queue without a leader. The host may delay only keys
/// whose messages are routed to this queue. The host must neither delay nor repeat other messages.
#[test]
fn unresponsive_queue_delays_only_its_keys() -> Result<()> {
    let rig = rig(Rabbit::shared()?, "", "", "")?;
    rig.client.delete_queue("out")?;
    for key in ["a", "b"] {
        rig.client.queue(key)?;
        rig.client.bind(key, "out", key)?;
    }
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    rig.until_declared()?;
    rig.client.publish("cases", &emits("a", 1..=1)?)?;
    rig.client.take("a", 1)?;
    rig.rabbit.suspend("a", true)?;
    rig.client.publish("cases", &emits("a", 2..=4)?)?;
    let log = service.stderr_path();
    let mut held_at = None;
    let started = Instant::now();
    check_prompt_delivery(&rig, ("b", "b"), 1, || {
        let log = fs::read_to_string(&log).unwrap_or_default();
        if held_at.is_none() && log.contains("neither accepted nor refused") {
            held_at = Some(Instant::now());
        }
        // The test continues for 8 seconds after this log line. Within this time, the host begins to publish a message
        // for the queue `a` again, over a separate connection.
        held_at.is_some_and(|at| at.elapsed() > Duration::from_secs(8))
            || started.elapsed() > Duration::from_mins(2)
    })?;
    ensure!(held_at.is_some(), "{}", service.stderr());
    rig.rabbit.suspend("a", false)?;
    let mut taken = Vec::new();
    while taken.last() != Some(&4) {
        taken.extend(sequences(&rig.client.take("a", 1)?)?);
    }
    ensure!(without_repeats(&taken) == [2, 3, 4], "{taken:?}");
    rig.until_empty()?;
    service.end()
}

/// A queue does not reply, and has confirmed no message since the host started. The broker blocks the channel when the
/// broker receives the first message for such a queue. The first message, and all messages that the host publishes
/// after it on the channel, therefore wait. The host must publish the waiting messages of other keys again, without
/// waiting for that first message.
#[test]
fn queue_that_never_confirmed_delays_only_its_keys() -> Result<()> {
    let rig = rig(Rabbit::shared()?, "", "", "")?;
    rig.client.delete_queue("out")?;
    for key in ["b", "c"] {
        rig.client.queue(key)?;
        rig.client.bind(key, "out", key)?;
    }
    rig.client.queue("a")?;
    for key in ["a1", "a2", "a3"] {
        rig.client.bind("a", "out", key)?;
    }
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    rig.until_declared()?;
    rig.rabbit.suspend("a", true)?;
    for key in ["a1", "a2", "a3", "b"] {
        rig.client.publish("cases", &emits(key, 1..=20)?)?;
    }
    rig.client.take("b", 20)?;
    // By now, the host has found the message that delayed the other messages.
    let started = Instant::now();
    check_prompt_delivery(&rig, ("c", "c"), 1, || started.elapsed() > Duration::from_secs(10))?;
    rig.rabbit.suspend("a", false)?;
    // 65 seconds after the host closed its first channel, the broker drops the first message of this channel and
    // delivers the messages after it. The host gets no confirms for these messages, and publishes them again. The test
    // therefore ignores messages that are out of order, until all messages of each key have arrived in order.
    let mut missing = BTreeMap::from(["a1", "a2", "a3"].map(|key| (key.to_owned(), 1..=20)));
    while missing.values().any(|of_key| !of_key.is_empty()) {
        let message = rig.client.take("a", 1)?;
        let of_key = missing.get_mut(message[0].routing_key.as_str()).context("another key")?;
        if sequences(&message)? == [*of_key.start()] {
            of_key.next();
        }
    }
    rig.until_empty()?;
    service.end()
}

fn without_repeats(sequences: &[u64]) -> Vec<u64> {
    let mut seen = Vec::new();
    for sequence in sequences {
        if !seen.contains(sequence) {
            seen.push(*sequence);
        }
    }
    seen
}

/// A message that the broker refuses may delay only the later messages of its key. When the broker accepts the message,
/// the later messages of the key must follow in order.
#[test]
fn refused_message_delays_only_its_key() -> Result<()> {
    let rabbit = Rabbit::with(&RabbitOptions::new().line("max_message_size = 65536"))?;
    let rig = rig(rabbit, "", "", "")?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    rig.until_declared()?;
    let emit = |key: &str, sequence, bytes: usize| {
        event(key, sequence, &json!({ "do": "emit", "bytes": bytes }))
    };
    let mut events = Vec::new();
    for sequence in 1..=20 {
        for key in ["a", "b", "c", "d"] {
            let large = key == "a" && sequence == 3;
            events.push(emit(key, sequence, if large { 100_000 } else { 10 })?);
        }
    }
    rig.client.publish("cases", &events)?;
    service.until_says("message refused by the broker")?;
    // All messages of the other keys arrive, and so do the messages of `a` that precede the refused message. Some
    // messages may arrive twice.
    let mut all = receive_others(&rig, 60)?;
    rig.until_empty()?;
    rig.client.publish("cases", &[emit("a", 21, 10)?, emit("b", 21, 10)?])?;
    loop {
        let next = rig.client.take("out", 1)?;
        let is_last = sequences(&next)? == [21];
        all.extend(next.into_iter().filter(|message| message.routing_key.as_str() == "a"));
        if is_last {
            break;
        }
    }
    ensure!(sequences(&all)?.iter().all(|sequence| *sequence < 3), "{all:?}");
    ensure!(service.stderr().contains("id=\"cases/a/"), "{}", service.stderr());
    ensure!(service.stderr().contains("larger than"), "{}", service.stderr());

    // Retries of the refused message must not disturb other messages either.
    rig.client.queue("e")?;
    rig.client.bind("e", "out", "e")?;
    rig.client.delete_queue("out")?;
    let started = Instant::now();
    check_prompt_delivery(&rig, ("e", "e"), 1, || started.elapsed() > Duration::from_secs(35))?;
    rig.client.queue("out")?;
    for key in ["a", "b"] {
        rig.client.bind("out", "out", key)?;
    }

    rig.rabbit.set("max_message_size", "1000000")?;
    service.kill()?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    service.until_says("committed and did not publish")?;
    let mut found = sequences(&all)?;
    rig.client.take_counted("out", 1, |message| {
        if message.routing_key.as_str() == "a" {
            found.extend(sequences(std::slice::from_ref(message))?);
        }
        Ok(found.iter().collect::<BTreeSet<_>>().len() == 21)
    })?;
    let from_third: Vec<_> = found.iter().skip_while(|sequence| **sequence != 3).copied().collect();
    ensure!(from_third == (3..=21).collect::<Vec<_>>(), "{found:?}");
    service.end()
}

/// The queue of a sink is full and rejects new messages (`reject-publish`). The host must keep the rejected message and
/// the later messages of its key, and must not delay other keys. As soon as the queue has room, the host must publish
/// each kept message once, in order.
#[test]
fn message_for_a_full_queue_is_published_once() -> Result<()> {
    let rig = rig(Rabbit::shared()?, "", "", "")?;
    rig.client.delete_queue("out")?;
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(2));
    arguments.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    rig.client.queue_with("a", arguments)?;
    rig.client.queue("b")?;
    for key in ["a", "b"] {
        rig.client.bind(key, "out", key)?;
    }
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    rig.until_declared()?;
    rig.client.publish("cases", &emits("a", 1..=6)?)?;
    rig.client.publish("cases", &emits("b", 1..=6)?)?;
    ensure!(sequences(&rig.client.take("b", 6)?)? == [1, 2, 3, 4, 5, 6]);
    service.until_lines(1, &["messages not published", "held="])?;
    let ready = || Ok::<_, anyhow::Error>(rig.rabbit.queues()?.get("a").copied());
    ensure!(ready()? == Some((2, 0)), "{:?}", ready()?);
    let mut taken = Vec::new();
    while taken.len() < 6 {
        taken.extend(sequences(&rig.client.take("a", 1)?)?);
    }
    ensure!(taken == [1, 2, 3, 4, 5, 6], "{taken:?}");
    rig.until_empty()?;
    service.end()?;
    // Any other message would be a repeat.
    ensure!(rig.client.take_all("a")?.is_empty());
    let listed = rig.home.rows(&["dead", "list", "cases", "--json"])?;
    ensure!(listed.is_empty(), "{listed:?}");
    Ok(())
}

/// The queue of a sink is full and rejects new messages (`reject-publish`). An operator then removes the limit of the
/// queue, and no program reads the queue. RabbitMQ continues to reject the messages of the present channel. The host
/// must nevertheless publish each kept message once, in order.
#[test]
fn message_for_a_queue_whose_limit_is_removed_is_published_once() -> Result<()> {
    let rig = rig(Rabbit::shared()?, "", "", "")?;
    rig.client.delete_queue("out")?;
    rig.client.queue("a")?;
    rig.client.bind("a", "out", "a")?;
    rig.rabbit.set_policy("^a$", r#"{"max-length": 2, "overflow": "reject-publish"}"#)?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    rig.until_declared()?;
    // RabbitMQ informs a channel of the full queue only a moment after it has accepted one message beyond the limit.
    for number in 1..=6 {
        rig.client.publish("cases", &emits("a", number..=number)?)?;
        rig.until_empty()?;
    }
    service.until_lines(1, &["messages not published", "held="])?;
    rig.rabbit.clear_policy()?;
    wait_for_command("all messages in the queue", || {
        Ok(rig.rabbit.queues()?.get("a").copied() == Some((6, 0)))
    })?;
    service.end()?;
    let taken = sequences(&rig.client.take("a", 6)?)?;
    ensure!(taken == [1, 2, 3, 4, 5, 6], "{taken:?}");
    ensure!(rig.client.take_all("a")?.is_empty());
    Ok(())
}

/// Unroutable messages wait in the outboxes of 63 of the 64 shards (the hashes of the keys determine the shards). These
/// messages must not delay the next start.
#[test]
fn start_continues_with_waiting_messages_in_most_shards() -> Result<()> {
    let redis = Redis::start(&[])?;
    let store = format!("[store]\nkind = \"redis\"\nshards = 64\nurl = \"{}\"", redis.url());
    let other = "[sinks.other]\nkind = \"amqp\"\nexchange = \"other\"\n";
    let rig = rig(Rabbit::shared()?, &store, "", other)?;
    rig.client.exchange("other", ExchangeKind::Topic)?;
    rig.client.queue("other")?;
    rig.client.bind("other", "other", "#")?;
    rig.client.delete_queue("out")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let events: Vec<_> = (0..300)
        .map(|key| event(&format!("k{key}"), 1, &json!({ "do": "emit" })))
        .collect::<Result<_>>()?;
    rig.client.publish("cases", &events)?;
    service.until_says("no queue takes messages")?;
    rig.until_empty()?;
    service.kill()?;
    let mut service = Service::start(&rig.home, &["run"])?;
    let events: Vec<_> = (0..300)
        .map(|key| event(&format!("k{key}"), 2, &json!({ "do": "emit", "sink": "other" })))
        .collect::<Result<_>>()?;
    rig.client.publish("cases", &events)?;
    let taken = rig.client.take("other", 300)?;
    ensure!(sequences(&taken)?.iter().all(|sequence| *sequence == 2), "{taken:?}");
    rig.client.queue("out")?;
    rig.client.bind("out", "out", "#")?;
    let mut keys: Vec<_> = rig
        .client
        .take("out", 300)?
        .iter()
        .map(|message| message.routing_key.to_string())
        .collect();
    keys.sort();
    keys.dedup();
    ensure!(keys.len() == 300, "a message was published more than once: {} keys", keys.len());
    service.end()
}

fn effects(address: SocketAddr) -> Result<usize> {
    let metrics = get(address, "/metrics")?.body;
    let of = |line: &&str| line.starts_with("ordain_events_total") && line.contains("\"effect\"");
    // The metric does not exist before the stream runs.
    let Some(line) = metrics.lines().find(of) else { return Ok(0) };
    Ok(line.rsplit(' ').next().context("a number")?.parse()?)
}

/// After restarts, the number of messages that wait for a queue must not exceed the limit of the outbox. A shutdown
/// must not wait for these messages.
#[test]
fn restarts_do_not_fill_outbox() -> Result<()> {
    let rig = rig(Rabbit::shared()?, "[runtime]\nrun_ahead = 10\n", "", "")?;
    rig.client.delete_queue("out")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let events: Vec<_> = (0..3_000)
        .map(|key| event(&format!("k{key}"), 1, &json!({ "do": "emit" })))
        .collect::<Result<_>>()?;
    rig.client.publish("cases", &events)?;
    // The host pauses the execution of events when 16 × `run_ahead` messages are unpublished. Up to ten events that are
    // already in progress may still add a message.
    let most = 16 * 10 + 10;
    let mut settled = 0;
    for start in 0..4 {
        if start > 0 {
            service.kill()?;
            service = Service::start(&rig.home, &["run"])?;
        }
        let address = ready(&mut service)?;
        let before = settled;
        wait_until("settled events up to the limit", || {
            settled = before + effects(address)?;
            Ok(settled >= most - 10)
        })?;
        // A host that ignored the limit would exceed the limit within this time.
        std::thread::sleep(Duration::from_secs(3));
        settled = before + effects(address)?;
        ensure!(
            (most - 10..=most).contains(&settled),
            "{settled} events settled after start {start}"
        );
    }
    service.end()?;
    let log = service.stderr();
    ensure!(log.contains("committed messages left unpublished"), "{log}");
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.client.queue("out")?;
    rig.client.bind("out", "out", "#")?;
    let mut keys: Vec<_> = rig
        .client
        .take("out", 3_000)?
        .iter()
        .map(|message| message.routing_key.to_string())
        .collect();
    keys.sort();
    keys.dedup();
    ensure!(keys.len() == 3_000, "a message was published more than once: {} keys", keys.len());
    rig.until_empty()?;
    service.end()
}

#[test]
fn file_sink_continues_while_broker_blocks() -> Result<()> {
    let rabbit = Rabbit::start()?;
    let client = ordain_tests::amqp::Client::connect(&rabbit.url())?;
    client.exchange("out", ExchangeKind::Topic)?;
    client.queue("out")?;
    client.bind("out", "out", "#")?;
    let config = format!(
        "[broker]\nurl = \"{}\"\n\
         [streams.one]\nhandler = \"faulty\"\nsource = {{ kind = \"file\", path = \"one\" }}\n\
         [streams.two]\nhandler = \"tally\"\nsource = {{ kind = \"file\", path = \"two\" }}\n\
         [sinks.faulty]\nkind = \"amqp\"\nexchange = \"out\"\n\
         [sinks.tally]\nkind = \"file\"\npath = \"out.ndjson\"\n",
        rabbit.url()
    );
    let home = Home::new(&["tally", "faulty"], &config)?;
    home.write("one", "")?;
    home.write("two", "")?;
    let mut service = Service::start(&home, &["run"])?;
    rabbit.limit_memory(0.0)?;
    let emits = |sequence| line("k", sequence, &json!({ "do": "emit", "bytes": 400_000 })) + "\n";
    home.append("one", (1..=50).map(emits).collect::<String>())?;
    service.until_says("publishing blocked by the broker")?;
    home.append(
        "two",
        (1..=50).map(|sequence| line("k", sequence, &json!(sequence)) + "\n").collect::<String>(),
    )?;
    service.until("the lines in the file", || home.lines("out.ndjson") == 50)?;
    rabbit.limit_memory(0.4)?;
    let taken = client.take("out", 50)?;
    ensure!(sequences(&taken)? == (1..=50).collect::<Vec<_>>(), "{taken:?}");
    service.until_says("publishing unblocked by the broker")?;
    service.end()
}

/// An unroutable message may delay only the later messages of its key. When a queue is bound, the host must publish the
/// unroutable message and the later messages of the key in order.
#[test]
fn unroutable_key_keeps_its_order() -> Result<()> {
    let rig = rig(Rabbit::shared()?, "", "", "")?;
    rig.client.delete_queue("out")?;
    rig.client.queue("some")?;
    rig.client.bind("some", "out", "b")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let emit = |key: &str, sequence| event(key, sequence, &json!({ "do": "emit" }));
    // Each message of `b` arrives, although the message of `a` before it is unroutable.
    for sequence in 1..=40 {
        rig.client.publish("cases", &[emit("a", sequence)?, emit("b", sequence)?])?;
        ensure!(sequences(&rig.client.take("some", 1)?)? == [sequence]);
    }
    rig.until_empty()?;
    rig.client.queue("out")?;
    rig.client.bind("out", "out", "a")?;
    let taken = rig.client.take("out", 40)?;
    ensure!(sequences(&taken)? == (1..=40).collect::<Vec<_>>(), "{:?}", sequences(&taken)?);
    service.end()
}
