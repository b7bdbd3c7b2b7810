//! Messages that the broker refuses, a broker that takes nothing, and what others notice of it.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lapin::ExchangeKind;
use lapin::message::Delivery;
use lapin::types::AMQPValue;
use ordain_servers::{Rabbit, RabbitOptions, Redis, wait_until};
use ordain_tests::amqp::{Outgoing, from_line, header};
use ordain_tests::host::Home;
use ordain_tests::http::{get, ready};
use ordain_tests::log::line;
use ordain_tests::rig::Rig;
use ordain_tests::service::{RUN_WITH_SHORT_WAITS, Service};
use serde_json::{Value, json};

/// A rig whose handler does what its events say, with more sinks.
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

/// Sequences of the events that messages came of, from their ids.
fn sequences(taken: &[Delivery]) -> Result<Vec<u64>> {
    let sequence = |it: &Delivery| {
        let id = it.properties.message_id().as_ref().context("an id")?.to_string();
        Ok(id.split('/').nth(3).context("a sequence")?.parse()?)
    };
    taken.iter().map(sequence).collect()
}

/// What a producer writes into headers neither makes a message that the broker refuses nor one that
/// says another id or sequence than its own.
#[test]
fn headers_that_mean_something() -> Result<()> {
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
            ("deadcause", "none"),
            ("tenant", "blue"),
        ],
    );
    rig.client.publish("cases", &[rejected, event("b", 1, &json!({ "do": "emit" }))?])?;
    let taken = rig.client.take("out", 2)?;
    let letter = taken.iter().find(|it| it.routing_key.as_str() == "a").context("the letter")?;
    for (name, value) in [
        ("x-original-CC", Some("elsewhere")),
        ("x-original-BCC", Some("elsewhere")),
        ("x-original-cloudEvents:id", Some("another")),
        ("x-original-X-Sequence-ID", Some("17")),
        ("x-original-deadcause", Some("none")),
        ("tenant", Some("blue")),
        ("deadcause", Some("rejected")),
        ("X-Sequence-ID", Some("1")),
        ("CC", None),
        ("BCC", None),
        ("cloudEvents:id", None),
    ] {
        let found = header(letter, name);
        ensure!(found.as_deref() == value, "{name} is {found:?} in {letter:?}");
    }
    rig.until_empty()?;
    service.end()
}

/// Of an event that is too large its dead letter has the beginning: it goes where the event did not
/// need to.
#[test]
fn dead_letters_of_large_events() -> Result<()> {
    let dead =
        "[sinks.dead]\nkind = \"amqp\"\nexchange = \"out\"\n[runtime]\nevent_size = \"64KiB\"\n";
    let rabbit = Rabbit::with(&RabbitOptions::new().line("max_message_size = 262144"))?;
    let rig = rig(rabbit, "", "dead_letter = \"dead\"", dead)?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let mut large = event("a", 1, &json!({}))?;
    // Twice as large in JSON.
    large.body = vec![b'"'; 250_000];
    rig.client.publish("cases", &[large])?;
    let letter = rig.client.take("out", 1)?.pop().context("the letter")?;
    let whole: Value = serde_json::from_slice(&letter.data)?;
    ensure!(whole["body"].as_str().map(str::len) == Some(64 << 10), "{}", whole["body"]);
    ensure!(whole["body_size"] == 250_000, "{}", whole["body_size"]);
    ensure!(header(&letter, "deadsequence").as_deref() == Some("1"), "{letter:?}");
    rig.until_empty()?;
    service.end()
}

/// Takes messages until these many different ones of other keys than `a` have come that were not
/// taken before; those of `a`.
fn others(rig: &Rig, count: usize) -> Result<Vec<Delivery>> {
    let (mut ids, mut of_a) = (Vec::new(), Vec::new());
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

fn emits(key: &str, sequences: std::ops::RangeInclusive<u64>) -> Result<Vec<Outgoing>> {
    sequences.map(|sequence| event(key, sequence, &json!({ "do": "emit" }))).collect()
}

/// Publishes events of a key from this one on until it is over, and takes what comes of them from a
/// queue that gets no others: each comes at once, and once.
fn come_once(
    rig: &Rig,
    (key, queue): (&str, &str),
    mut from: u64,
    mut is_over: impl FnMut() -> bool,
) -> Result<()> {
    while !is_over() {
        rig.client.publish("cases", &emits(key, from..=from + 9)?)?;
        let taken = sequences(&rig.client.take(queue, 10)?)?;
        ensure!(taken == (from..from + 10).collect::<Vec<_>>(), "from {from} on: {taken:?}");
        from += 10;
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// A queue that neither takes nor refuses, as one without a leader, holds up the keys whose messages
/// go there. Others neither wait nor come twice.
#[test]
fn a_queue_that_gives_no_answer() -> Result<()> {
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
    let (mut held, started) = (None, Instant::now());
    come_once(&rig, ("b", "b"), 1, || {
        let log = fs::read_to_string(&log).unwrap_or_default();
        if held.is_none() && log.contains("neither accepted nor refused") {
            held = Some(Instant::now());
        }
        // Until the first try alone is under way.
        held.is_some_and(|at| at.elapsed() > Duration::from_secs(8))
            || started.elapsed() > Duration::from_mins(2)
    })?;
    ensure!(held.is_some(), "{}", service.stderr());
    rig.rabbit.suspend("a", false)?;
    let mut taken = Vec::new();
    while taken.last() != Some(&4) {
        taken.extend(sequences(&rig.client.take("a", 1)?)?);
    }
    ensure!(in_order(&taken) == [2, 3, 4], "{taken:?}");
    rig.until_empty()?;
    service.end()
}

/// The same of a queue that has not given an answer since the host came: then the broker holds up all
/// that is behind the first message for it, which may come twice, and before it.
#[test]
fn a_queue_that_never_gave_an_answer() -> Result<()> {
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
    // What held up the others is known by now.
    let started = Instant::now();
    come_once(&rig, ("c", "c"), 1, || started.elapsed() > Duration::from_secs(10))?;
    rig.rabbit.suspend("a", false)?;
    // After 65 seconds the broker gives up the first message of a channel that has gone long ago,
    // and goes on with those behind it. What counts is what it confirms: of each key, all in order.
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

/// The sequences, each where it came first.
fn in_order(sequences: &[u64]) -> Vec<u64> {
    let mut seen = Vec::new();
    for sequence in sequences {
        if !seen.contains(sequence) {
            seen.push(*sequence);
        }
    }
    seen
}

/// A message that the broker refuses holds up those of its key and nobody else; once it is taken
/// they follow in order.
#[test]
fn a_message_that_the_broker_refuses() -> Result<()> {
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
    // All of the others come, perhaps twice, and what of its key was before it.
    let mut all = others(&rig, 60)?;
    rig.until_empty()?;
    rig.client.publish("cases", &[emit("a", 21, 10)?, emit("b", 21, 10)?])?;
    loop {
        let next = rig.client.take("out", 1)?;
        let is_last = sequences(&next)? == [21];
        all.extend(next.into_iter().filter(|it| it.routing_key.as_str() == "a"));
        if is_last {
            break;
        }
    }
    ensure!(sequences(&all)?.iter().all(|it| *it < 3), "{all:?}");
    ensure!(service.stderr().contains("id=\"cases/a/"), "{}", service.stderr());
    ensure!(service.stderr().contains("larger than"), "{}", service.stderr());

    // Nor does trying it again disturb the others.
    rig.client.queue("e")?;
    rig.client.bind("e", "out", "e")?;
    rig.client.delete_queue("out")?;
    let started = Instant::now();
    come_once(&rig, ("e", "e"), 1, || started.elapsed() > Duration::from_secs(35))?;
    rig.client.queue("out")?;
    for key in ["a", "b"] {
        rig.client.bind("out", "out", key)?;
    }

    rig.rabbit.set("max_message_size", "1000000")?;
    service.kill()?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    service.until_says("committed and did not publish")?;
    loop {
        let mut found = sequences(&all)?;
        found.sort_unstable();
        found.dedup();
        if found == (1..=21).collect::<Vec<_>>() {
            break;
        }
        let next = rig.client.take("out", 1)?;
        all.extend(next.into_iter().filter(|it| it.routing_key.as_str() == "a"));
    }
    let found = sequences(&all)?;
    let from_third: Vec<_> = found.iter().skip_while(|it| **it != 3).copied().collect();
    ensure!(from_third == (3..=21).collect::<Vec<_>>(), "{found:?}");
    service.end()
}

/// What waits for a queue in many shards keeps no start from going on.
#[test]
fn a_start_with_messages_that_wait_in_all_shards() -> Result<()> {
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
    ensure!(sequences(&taken)?.iter().all(|it| *it == 2), "{taken:?}");
    rig.client.queue("out")?;
    rig.client.bind("out", "out", "#")?;
    let mut keys: Vec<_> =
        rig.client.take("out", 300)?.iter().map(|it| it.routing_key.to_string()).collect();
    keys.sort();
    keys.dedup();
    ensure!(keys.len() == 300, "each is published once: {}", keys.len());
    service.end()
}

/// How many events have had an effect since the process started.
fn effects(address: SocketAddr) -> Result<usize> {
    let metrics = get(address, "/metrics")?.body;
    let of = |line: &&str| line.starts_with("ordain_events_total") && line.contains("\"effect\"");
    // There is no line before the stream runs.
    let Some(line) = metrics.lines().find(of) else { return Ok(0) };
    Ok(line.rsplit(' ').next().context("a number")?.parse()?)
}

/// What waits for a queue is no more after many starts than after one, and no end waits for it.
#[test]
fn starts_do_not_fill_the_outbox() -> Result<()> {
    let rig = rig(Rabbit::shared()?, "[runtime]\nrun_ahead = 10\n", "", "")?;
    rig.client.delete_queue("out")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let events: Vec<_> = (0..3_000)
        .map(|key| event(&format!("k{key}"), 1, &json!({ "do": "emit" })))
        .collect::<Result<_>>()?;
    rig.client.publish("cases", &events)?;
    // Sixteen messages for each event that may be ahead, and those that were ahead then.
    let most = 16 * 10 + 10;
    let mut settled = 0;
    for start in 0..4 {
        if start > 0 {
            service.kill()?;
            service = Service::start(&rig.home, &["run"])?;
        }
        let address = ready(&mut service)?;
        let before = settled;
        wait_until("as many settled as may be", || {
            settled = before + effects(address)?;
            Ok(settled >= most - 10)
        })?;
        // Time for more, if more may be.
        std::thread::sleep(Duration::from_secs(3));
        settled = before + effects(address)?;
        ensure!((most - 10..=most).contains(&settled), "{settled} after start {start}");
    }
    service.end()?;
    let log = service.stderr();
    ensure!(log.contains("committed messages left unpublished"), "{log}");
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.client.queue("out")?;
    rig.client.bind("out", "out", "#")?;
    let mut keys: Vec<_> =
        rig.client.take("out", 3_000)?.iter().map(|it| it.routing_key.to_string()).collect();
    keys.sort();
    keys.dedup();
    ensure!(keys.len() == 3_000, "each is published once: {}", keys.len());
    rig.until_empty()?;
    service.end()
}

/// A broker that takes no messages keeps no file from being written.
#[test]
fn files_go_on_while_the_broker_blocks() -> Result<()> {
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
    home.append("two", (1..=50).map(|it| line("k", it, &json!(it)) + "\n").collect::<String>())?;
    service.until("the lines of the file", || home.lines("out.ndjson") == 50)?;
    rabbit.limit_memory(0.4)?;
    let taken = client.take("out", 50)?;
    ensure!(sequences(&taken)? == (1..=50).collect::<Vec<_>>(), "{taken:?}");
    service.end()
}

/// A key that no queue takes holds up its own later messages, and no others; they come in order.
#[test]
fn a_key_without_a_queue_keeps_its_order() -> Result<()> {
    let rig = rig(Rabbit::shared()?, "", "", "")?;
    rig.client.delete_queue("out")?;
    rig.client.queue("some")?;
    rig.client.bind("some", "out", "b")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let emit = |key: &str, sequence| event(key, sequence, &json!({ "do": "emit" }));
    // One of the key after the other, and of another one each time: it does not wait for the first.
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
