//! Tests of a Redis that goes back in time while no host runs. Ordain numbers the events that it publishes to an
//! exchange, and the counters for these numbers are in Redis. After the loss, Ordain therefore assigns the numbers of
//! lost events a second time.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lapin::ExchangeKind;
use ordain_publisher::{Error, Event, Publisher, Receipt};
use ordain_servers::{Redis, Snapshot};
use ordain_tests::http;
use ordain_tests::log::{line, text, unnumbered};
use ordain_tests::rig::Rig;
use ordain_tests::service::{Service, wait_until};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// The events that Redis still has after the loss.
const KEPT_EVENTS: RangeInclusive<u64> = 1..=2;
/// The events that Redis loses. Before the loss, these events have the numbers 3 and 4.
const LOST_EVENTS: RangeInclusive<u64> = 3..=4;
/// Later events, which get the numbers 3 and 4 after the loss.
const OTHER_EVENTS: RangeInclusive<u64> = 5..=6;
const REUSE: &str = "--reuse-lost-numbers";

/// Redis, and a rig whose stream receives events from an exchange. Ordain numbers these events.
struct NumberingRig {
    redis: Redis,
    rig: Rig,
    /// The stream to which the test publishes the events.
    first: &'static str,
}

impl NumberingRig {
    /// Starts the servers. `sections` holds additional sections of the configuration, and `source` holds settings of
    /// the source.
    fn start(first: &'static str, sections: &str, source: &str) -> Result<Self> {
        Self::with(first, sections, "", source)
    }

    fn with(first: &'static str, sections: &str, stream: &str, source: &str) -> Result<Self> {
        let redis = Redis::start(&[])?;
        let sections = format!("[store]\nkind = \"redis\"\nurl = \"{}\"\n{sections}", redis.url());
        let stream = format!("gap = {{ timeout = \"200ms\", backoff = \"10ms..50ms\" }}\n{stream}");
        let rig = Rig::with(&sections, &stream, source)?;
        Ok(Self { redis, rig, first })
    }

    /// Publishes events of one key. Each event has an id and content of its own, but no sequence.
    fn publish(&self, events: RangeInclusive<u64>) -> Result<()> {
        let file = self.write(events)?;
        self.rig.home.rows(&["publish", self.first, &file, "--json"]).map(drop)
    }

    /// Writes the events that [`Self::publish`] publishes to a file. Returns the name of the file.
    fn write(&self, events: RangeInclusive<u64>) -> Result<String> {
        self.write_lines(&lines("a", events))
    }

    /// Writes events without their sequences to a file. Returns the name of the file.
    fn write_lines(&self, lines: &[String]) -> Result<String> {
        let first: Value = serde_json::from_str(&lines[0])?;
        let file = format!("events-{}.ndjson", first["id"].as_str().context("an id")?);
        self.rig.home.write(&file, text(&unnumbered(lines)?))?;
        Ok(file)
    }

    /// Publishes [`KEPT_EVENTS`], and runs the host until it has executed them. Returns their messages, and a snapshot
    /// of Redis.
    fn keep(&self) -> Result<(Vec<String>, Snapshot)> {
        self.publish(KEPT_EVENTS)?;
        let kept = self.run(&[])?;
        Ok((kept, self.redis.snapshot()?))
    }

    /// Publishes more events after [`KEPT_EVENTS`]. Redis then loses the numbers of these events, while the events wait
    /// in the broker. Returns the messages of [`KEPT_EVENTS`].
    fn keep_and_lose(&self, lost: RangeInclusive<u64>) -> Result<Vec<String>> {
        let (kept, early) = self.keep()?;
        self.publish(lost)?;
        self.redis.go_back(&early)?;
        Ok(kept)
    }

    fn open_publisher(&self) -> Result<(Runtime, Publisher)> {
        let runtime = Runtime::new()?;
        let config = self.rig.home.path("ordain.toml");
        let publisher = runtime.block_on(Publisher::open(&config, "cases"))?;
        Ok((runtime, publisher))
    }

    /// Publishes a file with the options. The command must publish `count` events.
    fn check_published(&self, file: &str, options: &[&str], count: u64) -> Result<()> {
        let command = [&["publish", "cases", file, "--json"], options].concat();
        let rows = self.rig.home.rows(&command)?;
        ensure!(rows[0]["published"] == count, "{rows:?}");
        Ok(())
    }

    /// Publishes a file with the options. The command must refuse an event of the file, with these words.
    fn check_refused(&self, file: &str, options: &[&str], words: &str) -> Result<()> {
        let output = self.rig.home.output(&[&["publish", "cases", file], options].concat())?;
        let log = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(1), "{}: {log}", output.status);
        ensure!(log.contains(words) && !log.contains("Correct the line"), "{log}");
        Ok(())
    }

    fn check_state(&self, key: &str, next: u64, causes: &[&str]) -> Result<()> {
        let state = self.state_of(key)?;
        let causes: Vec<String> = causes.iter().map(|cause| (*cause).to_owned()).collect();
        ensure!(state == (Some(next), causes), "{state:?}");
        Ok(())
    }

    fn state_of(&self, key: &str) -> Result<(Option<u64>, Vec<String>)> {
        let rows = self.rig.home.rows(&["keys", "list", "cases", "--json"])?;
        let row = rows.iter().find(|row| row["key"] == key);
        let letters = self.rig.home.rows(&["dead", "list", "cases", "--json"])?;
        let of_key = letters.iter().filter(|letter| letter["key"] == key);
        let causes = of_key.map(|letter| letter["cause"].as_str().unwrap_or_default().to_owned());
        Ok((row.and_then(|row| row["next"].as_u64()), causes.collect()))
    }

    /// Checks that the stream `cases` has settled each of these events once, without a dead letter.
    fn check_settled(&self, events: RangeInclusive<u64>) -> Result<()> {
        let rows = self.rig.home.rows(&["keys", "list", "cases", "--json"])?;
        ensure!(rows.len() == 1 && rows[0]["next"] == events.end() + 1, "{rows:?}");
        let letters = self.rig.home.rows(&["dead", "list", "cases", "--json"])?;
        ensure!(letters.is_empty(), "{letters:?}");
        Ok(())
    }

    /// Runs the host until it has published the messages of two more events, and returns these messages. `known`
    /// contains the messages of earlier events, which the host may publish again.
    fn run(&self, known: &[String]) -> Result<Vec<String>> {
        self.run_events(known, 2)
    }

    fn run_numbered(&self, known: &[String], expected: [u64; 2]) -> Result<Vec<String>> {
        let messages = self.run(known)?;
        ensure!(numbers(&messages)? == expected, "{messages:?}");
        Ok(messages)
    }

    /// Runs the host as [`Self::run`] does, until it has published the messages of `count` more events.
    fn run_events(&self, known: &[String], count: usize) -> Result<Vec<String>> {
        let mut service = Service::start(&self.rig.home, &["run"])?;
        let mut out = known.to_vec();
        self.rig.take(&mut out, known.len() + count).with_context(|| service.stderr())?;
        self.rig.until_empty()?;
        service.end()?;
        Ok(out.split_off(known.len()))
    }

    /// Tests two cases after a loss. In the first case, other events get the numbers of the lost events. The messages
    /// of the other events must have new ids. In the second case, the test publishes the lost events again. Their
    /// messages must be the same as before the loss. In the second case, `disturb` runs after the test has published
    /// the events and before the host starts.
    fn check(&self, disturb: impl FnOnce() -> Result<()>) -> Result<()> {
        let (kept, early) = self.keep()?;
        self.publish(LOST_EVENTS)?;
        let lost = self.run(&kept)?;

        self.redis.go_back(&early)?;
        self.publish(OTHER_EVENTS)?;
        let other = self.run(&kept)?;
        ensure!(numbers(&lost)? == [3, 4] && numbers(&other)? == [3, 4], "{lost:?} {other:?}");
        ensure!(ids(&lost)?.is_disjoint(&ids(&other)?), "equal message ids: {lost:?} {other:?}");

        self.redis.go_back(&early)?;
        self.publish(LOST_EVENTS)?;
        disturb()?;
        let again = self.run(&kept)?;
        ensure!(again == lost, "other messages than the first time: {lost:?} {again:?}");
        Ok(())
    }
}

fn lines(key: &str, events: RangeInclusive<u64>) -> Vec<String> {
    events.map(|number| line(key, number, &event_data(number))).collect()
}

fn event_data(number: u64) -> Value {
    json!({ "do": "emit", "sink": "between", "bytes": number })
}

/// Returns events of one key, as a program publishes them.
fn program_events(numbers: RangeInclusive<u64>) -> Result<Vec<Event>> {
    let event = |n: u64| Ok(Event::json("a", "test", &event_data(n))?.id(format!("a-{n}")));
    numbers.map(event).collect()
}

fn numbers(messages: &[String]) -> Result<Vec<u64>> {
    let number = |encoded: &String| -> Result<u64> {
        let message: Value = serde_json::from_str(encoded)?;
        message["data"]["sequence"].as_u64().context("a sequence")
    };
    messages.iter().map(number).collect()
}

fn ids(messages: &[String]) -> Result<BTreeSet<String>> {
    let id = |encoded: &String| -> Result<String> {
        let message: Value = serde_json::from_str(encoded)?;
        Ok(message["id"].as_str().context("an id")?.to_owned())
    };
    messages.iter().map(id).collect()
}

/// `ordain publish` numbers the events. If another event gets the number of a lost event, the messages of the other
/// event must have new ids. If the lost event itself is published again, its messages must have the same ids as before.
/// This is also true if the broker loses this event, and the host finds it by replay in the store.
#[test]
fn published_events_with_reused_numbers_have_new_message_ids() -> Result<()> {
    let numbering = NumberingRig::start("cases", "", "")?;
    numbering.check(|| {
        let lost = numbering.rig.client.lose("cases", "cases", 2, |at| at == 0)?;
        ensure!(lost == 1, "the broker lost {lost} events");
        Ok(())
    })
}

/// A sink with `sequenced = true` numbers the events of the second stream. If another event gets the number of a lost
/// event, the messages of the other event must have new ids. If the first stream executes the lost event again, the
/// messages of the second stream must have the same ids as before.
#[test]
fn sink_events_with_reused_numbers_have_new_message_ids() -> Result<()> {
    let sections = "[streams.first]\nhandler = \"faulty\"\nsource = { kind = \"stream\" }\n\
                    [sinks.between]\nkind = \"amqp\"\nexchange = \"between\"\nsequenced = true\n";
    let numbering = NumberingRig::start("first", sections, "bind = [{ exchange = \"between\" }]")?;
    numbering.rig.client.exchange("between", ExchangeKind::Topic)?;
    numbering.check(|| Ok(()))
}

/// Redis loses the numbers of events that wait in the broker, and the host then executes these events. The next run of
/// `ordain publish` must refuse the lost events, because it cannot know whether the store gave their numbers. With the
/// option that the refusal names, the lost events must get their numbers again, and take effect once.
#[test]
fn lost_numbers_of_executed_events_are_given_again_on_request() -> Result<()> {
    let numbering = NumberingRig::start("cases", "", "")?;
    let kept = numbering.keep_and_lose(LOST_EVENTS)?;
    let lost = numbering.run_numbered(&kept, [3, 4])?;

    let file = numbering.write(LOST_EVENTS)?;
    numbering.check_refused(&file, &[], "did not give")?;
    numbering.check_refused(&file, &[], REUSE)?;
    numbering.check_published(&file, &[REUSE], 2)?;
    numbering.publish(OTHER_EVENTS)?;
    numbering.run_numbered(&[kept, lost].concat(), [5, 6])?;
    numbering.check_settled(1..=6)
}

/// Redis loses the numbers of events that wait in the broker. Before the host executes these events, another event is
/// published, and gets the number of a lost event. With the option, `ordain publish` must then refuse the lost events,
/// because they could only get the numbers of other events, and would take effect twice.
#[test]
fn lost_events_are_refused_after_another_event_took_a_lost_number() -> Result<()> {
    let numbering = NumberingRig::start("cases", "", "")?;
    let kept = numbering.keep_and_lose(LOST_EVENTS)?;
    numbering.publish(5..=5)?;
    numbering.run_numbered(&kept, [3, 4])?;

    let file = numbering.write(LOST_EVENTS)?;
    for _ in 0..2 {
        numbering.check_refused(&file, &[REUSE], "another event as sequence 4")?;
    }
    numbering.check_state("a", 5, &["conflict"])?;
    numbering.rig.until_empty()
}

/// Redis loses the numbers of events that wait in the broker, and another event gets the number of one of these events.
/// The two events have the same type and data, but different ids. The other event must become a dead letter: it must
/// not count as a repeat of the lost event.
#[test]
fn equal_event_with_a_lost_number_becomes_a_dead_letter() -> Result<()> {
    let numbering = NumberingRig::start("cases", "", "")?;
    let kept = numbering.keep_and_lose(LOST_EVENTS)?;
    let file = numbering.write_lines(&[line("a", 9, &event_data(3))])?;
    numbering.check_published(&file, &[], 1)?;
    numbering.run_numbered(&kept, [3, 4])?;
    numbering.check_state("a", 5, &["conflict"])?;
    numbering.rig.until_empty()
}

/// Redis loses the numbers of events that wait in the broker, and another event gets the number of one of these events.
/// The stream keeps no digests, so it cannot compare the other event, and counts it as a repeat. A metric must count
/// the other event, and the log must name its key, its sequence and its id.
#[test]
fn event_counted_as_a_repeat_without_a_comparison_is_named() -> Result<()> {
    let admin = "[admin]\nlisten = \"127.0.0.1:0\"\n";
    // With `prefetch = 1`, the other event arrives only after the lost events are settled.
    let numbering = NumberingRig::with("cases", admin, "digests = 0", "prefetch = 1")?;
    let kept = numbering.keep_and_lose(LOST_EVENTS)?;
    numbering.publish(5..=5)?;

    let mut service = Service::start(&numbering.rig.home, &["run"])?;
    let address = http::ready(&mut service)?;
    let mut out = kept.clone();
    numbering.rig.take(&mut out, kept.len() + 2).with_context(|| service.stderr())?;
    numbering.rig.until_empty()?;
    ensure!(numbers(&out[kept.len()..])? == [3, 4], "{out:?}");
    let name = "ordain_unverified_duplicates_total{stream=\"cases\"}";
    wait_until("a count of the event", || Ok(http::metric(address, name)? == Some(1)))?;
    service.until_says("event counted as a repeat without a comparison")?;
    let log = service.stderr();
    ensure!(log.contains("key=a event=3 id=a-5 source=/tests"), "{log}");
    service.end()?;
    numbering.check_state("a", 5, &[])
}

/// The stream has executed more lost events of a key than its record of the key has digests. The lost events cannot be
/// published again. `ordain publish` must accept the first new event with the sequence that the stream expects next,
/// and the later events without a sequence.
#[test]
fn new_events_follow_more_lost_events_than_the_stream_has_digests() -> Result<()> {
    const LOST_SEQUENCES: RangeInclusive<u64> = 3..=102;
    let numbering = NumberingRig::start("cases", "", "")?;
    let kept = numbering.keep_and_lose(LOST_SEQUENCES)?;
    let lost = numbering.run_events(&kept, 100)?;
    numbering.check_refused(&numbering.write(LOST_SEQUENCES)?, &[REUSE], "`digests`")?;
    numbering.check_refused(&numbering.write(103..=104)?, &[], "did not give")?;

    let (next, _) = numbering.state_of("a")?;
    ensure!(next == Some(103), "{next:?}");
    let mut events = lines("a", 103..=103);
    events.extend(unnumbered(&lines("a", 104..=104))?);
    numbering.rig.home.write("rest.ndjson", text(&events))?;
    numbering.check_published("rest.ndjson", &[], 2)?;
    numbering.run_numbered(&[kept, lost].concat(), [103, 104])?;
    numbering.check_settled(1..=104)
}

/// Another producer numbers the events of a key itself. With the option, `ordain publish` must refuse an event of this
/// key without a number, because the event would get the number of another event.
#[test]
fn number_of_another_producer_is_not_reused() -> Result<()> {
    let numbering = NumberingRig::start("cases", "", "")?;
    numbering.publish(KEPT_EVENTS)?;
    let kept = numbering.run(&[])?;
    numbering.rig.publish(&lines("b", 1..=2))?;
    numbering.run(&kept)?;
    let file = numbering.write_lines(&lines("b", 7..=7))?;
    numbering.check_refused(&file, &[REUSE], "another event as sequence 1")?;
    numbering.check_refused(&file, &[], "did not give")?;
    numbering.check_state("b", 3, &[])?;
    numbering.rig.until_empty()
}

/// Redis loses the numbers of the last events of a key, and the host then executes these events. With the option,
/// `ordain publish` must count the lost events as known up to the end of the file, but the ended key must not start
/// again.
#[test]
fn ended_key_does_not_start_again_after_lost_numbers() -> Result<()> {
    let numbering = NumberingRig::start("cases", "", "")?;
    let NumberingRig { redis, rig, .. } = &numbering;
    let (kept, early) = numbering.keep()?;
    let mut events = lines("a", LOST_EVENTS);
    let mut last: Value = serde_json::from_str(&events[1])?;
    last["endofsequence"] = true.into();
    events[1] = last.to_string();
    let file = numbering.write_lines(&events)?;
    rig.home.rows(&["publish", "cases", &file, "--json"])?;
    redis.go_back(&early)?;
    numbering.run(&kept)?;

    numbering.check_refused(&file, &[], "has ended")?;
    let rows = rig.home.rows(&["publish", "cases", &file, REUSE, "--json"])?;
    ensure!(rows[0]["published"] == 0 && rows[0]["known"] == 2, "{rows:?}");
    for options in [&[][..], &[REUSE]] {
        numbering.check_refused(&numbering.write(OTHER_EVENTS)?, options, "has ended")?;
    }
    let (_, causes) = numbering.state_of("a")?;
    ensure!(causes.is_empty(), "{causes:?}");
    rig.until_empty()
}

/// Redis loses the numbers of events of a running publisher, and a host then executes these events. The publisher
/// detects the loss and writes the lost events again. They must get their numbers again, so that the publisher can
/// publish later events.
#[test]
fn running_publisher_gets_lost_numbers_of_executed_events_again() -> Result<()> {
    let numbering = NumberingRig::start("cases", "", "")?;
    let NumberingRig { redis, rig, .. } = &numbering;
    let (runtime, mut publisher) = numbering.open_publisher()?;
    runtime.block_on(publisher.publish(&program_events(KEPT_EVENTS)?))?;
    let early = redis.snapshot()?;
    runtime.block_on(publisher.publish(&program_events(LOST_EVENTS)?))?;
    redis.go_back(&early)?;
    let mut service = Service::start(&rig.home, &["run"])?;
    let mut first = Vec::new();
    rig.take(&mut first, 4).with_context(|| service.stderr())?;
    rig.until_empty()?;
    service.end()?;

    let receipts = runtime.block_on(publisher.publish(&program_events(OTHER_EVENTS)?))?;
    let new = |sequence| Receipt { sequence: Some(sequence), is_new: true };
    ensure!(receipts == [new(5), new(6)], "{receipts:?}");
    runtime.block_on(publisher.close())?;
    numbering.run_numbered(&first, [5, 6])?;
    numbering.check_settled(1..=6)
}

/// Redis loses the events of two running publishers, which publish events of the same key in turn. The publisher of the
/// later event detects the loss first. This publisher waits until the other publisher has written the earlier event
/// again, so that each event gets its earlier number.
#[test]
fn publishers_of_a_key_get_their_lost_numbers_again() -> Result<()> {
    let numbering = NumberingRig::start("cases", "", "")?;
    let NumberingRig { redis, rig, .. } = &numbering;
    let (runtime, mut earlier) = numbering.open_publisher()?;
    let config = rig.home.path("ordain.toml");
    let mut later = runtime.block_on(Publisher::open(&config, "cases"))?;
    runtime.block_on(earlier.publish(&program_events(KEPT_EVENTS)?))?;
    let snapshot = redis.snapshot()?;
    runtime.block_on(earlier.publish(&program_events(3..=3)?))?;
    runtime.block_on(later.publish(&program_events(4..=4)?))?;
    redis.go_back(&snapshot)?;

    let receipts = runtime.block_on(async {
        let new = program_events(5..=5)?;
        let lost = program_events(3..=3)?;
        let publish_later = later.publish(&new);
        let publish_earlier = async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            earlier.publish(&lost).await
        };
        let (later, earlier) = tokio::join!(publish_later, publish_earlier);
        anyhow::Ok([earlier?, later?].concat())
    })?;
    let receipt = |sequence, is_new| Receipt { sequence: Some(sequence), is_new };
    ensure!(receipts == [receipt(3, false), receipt(5, true)], "{receipts:?}");
    runtime.block_on(earlier.close())?;
    runtime.block_on(later.close())?;
    let executed = numbers(&numbering.run_events(&[], 5)?)?;
    ensure!(executed == [1, 2, 3, 4, 5], "{executed:?}");
    numbering.check_settled(1..=5)
}

/// Redis loses the numbers of events of a running publisher, and the events still wait in the broker. Another event
/// gets one of these numbers before the publisher notices the loss. The publisher must fail: under other numbers, its
/// lost events would take effect twice.
#[test]
fn running_publisher_fails_after_another_event_took_a_lost_number() -> Result<()> {
    let numbering = NumberingRig::start("cases", "", "")?;
    let NumberingRig { redis, rig, .. } = &numbering;
    let (runtime, mut publisher) = numbering.open_publisher()?;
    runtime.block_on(publisher.publish(&program_events(KEPT_EVENTS)?))?;
    let kept = numbering.run(&[])?;
    let early = redis.snapshot()?;
    runtime.block_on(publisher.publish(&program_events(LOST_EVENTS)?))?;
    redis.go_back(&early)?;
    numbering.publish(5..=5)?;

    let fails = |publisher: &mut Publisher| -> Result<()> {
        let failed = runtime.block_on(publisher.publish(&program_events(6..=6)?));
        let Err(Error::Failed(words)) = &failed else { bail!("{failed:?}") };
        ensure!(words.contains("the sequence 3 of key \"a\""), "{words}");
        ensure!(words.contains("another event has taken"), "{words}");
        Ok(())
    };
    fails(&mut publisher)?;
    fails(&mut publisher)?;
    numbering.run_numbered(&kept, [3, 4])?;
    numbering.check_state("a", 5, &["conflict"])?;
    rig.until_empty()
}
