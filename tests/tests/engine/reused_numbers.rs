//! Tests of events that the store numbers, with a Redis that goes back in time. A running host repeats its lost
//! commits. But no process publishes the lost events again, because their publisher has ended. The store therefore
//! assigns the numbers of the lost events again, to the same events or to other events. If the store knows that the
//! stream has a different event under such a number, it must refuse the other event. If the other event gets the
//! number, it must take effect or become a dead letter.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use ordain_servers::{Redis, Snapshot};
use ordain_tests::host::Home;
use ordain_tests::log::{in_turn, line, text, unnumbered};
use ordain_tests::queue::waiting_events;
use ordain_tests::service::{Service, wait_until};
use serde_json::{Value, json};

/// The number of events that are published before the snapshot, and also the number of events that Redis loses. This
/// number is higher than the number of events whose digests a key record keeps.
const EVENTS: usize = 100;
const NEW_EVENTS: usize = 50;
/// The number of events whose digests a key record keeps: the default of the setting `digests`.
const DIGESTS: usize = 64;

const SHARDS: u32 = 4;

struct LossRig {
    redis: Redis,
    home: Home,
    service: Service,
    lines: Vec<String>,
}

impl LossRig {
    /// Starts Redis, and a host that executes events with the handler `tally`. Publishes the events that Redis does not
    /// lose.
    fn start() -> Result<Self> {
        let mut rig = Self::with("handler = \"tally\"", &in_turn(1, 1_000))?;
        rig.publish(EVENTS)?;
        rig.until_settled(EVENTS)?;
        Ok(rig)
    }

    /// Starts as [`Self::start`] does. The host then executes more events, and Redis loses them as [`Self::lose`]
    /// describes. Also returns the name of the file that contains the lost events.
    fn start_and_lose(is_before_recovery: bool) -> Result<(Self, String)> {
        let mut rig = Self::start()?;
        let early = rig.redis.snapshot()?;
        let lost = rig.publish(EVENTS)?;
        rig.until_settled(2 * EVENTS)?;
        rig.lose(&early, is_before_recovery)?;
        Ok((rig, lost))
    }

    /// Starts Redis and a host. `stream` contains the settings of the stream, and `lines` contains the events.
    fn with(stream: &str, lines: &[String]) -> Result<Self> {
        let redis = Redis::start(&[])?;
        let config = format!(
            "[store]\nkind = \"redis\"\nurl = \"{}\"\nshards = {SHARDS}\n\
             [streams.cases]\n{stream}\nsource = {{ kind = \"stream\" }}\n\
             [sinks.tally]\nkind = \"file\"\npath = \"-\"\n",
            redis.url()
        );
        let home = Home::new(&["tally", "faulty"], &config)?;
        let service = Service::start(&home, &["run"])?;
        Ok(Self { redis, home, service, lines: unnumbered(lines)? })
    }

    /// Publishes the next `count` events. The publisher ends when the store has these events. Returns the name of the
    /// file that contains the events.
    fn publish(&mut self, count: usize) -> Result<String> {
        let file = self.write_next(count)?;
        self.publish_file(&file, count)?;
        Ok(file)
    }

    /// Writes the next `count` events to a file. Returns the name of the file.
    fn write_next(&mut self, count: usize) -> Result<String> {
        let rest = self.lines.split_off(count);
        let events = std::mem::replace(&mut self.lines, rest);
        let file = format!("events-{}.ndjson", self.lines.len());
        self.home.write(&file, text(&events))?;
        Ok(file)
    }

    /// Publishes new events. The store must number the first `given` of these events, and must refuse the next event,
    /// which would get the number of one of the first `2 * EVENTS` events.
    fn check_refused(&mut self, given: usize) -> Result<()> {
        let file = self.write_next(NEW_EVENTS)?;
        let output = self.home.output(&["publish", "cases", &file, "--json"])?;
        let log = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(1), "{}: {log}", output.status);
        for words in [format!("up to sequence {},", 2 * EVENTS), "--reuse-lost-numbers".into()] {
            ensure!(log.contains(&words), "{words}: {log}");
        }
        let report: Value = serde_json::from_slice(&output.stdout)?;
        ensure!(report["published"] == given, "{report}: {log}");
        Ok(())
    }

    /// Publishes a file with `count` events that the store does not have.
    fn publish_file(&self, file: &str, count: usize) -> Result<()> {
        let rows = self.home.rows(&["publish", "cases", file, "--json"])?;
        ensure!(rows.iter().any(|row| row["published"] == count), "{rows:?}");
        Ok(())
    }

    /// Makes Redis go back to the snapshot. If `is_before_recovery` is true, pauses the host first, so that the host
    /// cannot repeat its lost commits until the test resumes the host. Otherwise waits until the host has repeated its
    /// lost commits.
    fn lose(&mut self, early: &Snapshot, is_before_recovery: bool) -> Result<()> {
        if is_before_recovery {
            self.service.pause()?;
        }
        self.redis.go_back(early)?;
        if !is_before_recovery {
            self.until_repeated()?;
        }
        Ok(())
    }

    fn until_repeated(&mut self) -> Result<()> {
        self.service.until_says("all of them were repeated from memory")
    }

    fn until_empty(&self) -> Result<()> {
        let waiting = |shard| waiting_events(&self.redis, "cases", shard);
        wait_until("empty queues", || {
            let counts: Vec<u64> = (0..SHARDS).map(waiting).collect::<Result<_>>()?;
            Ok(counts.iter().all(|count| *count == 0))
        })
    }

    /// Waits until at least `count` dead letters exist. Checks that exactly `count` exist, all with the cause
    /// `conflict`.
    fn until_conflicts(&self, count: usize) -> Result<()> {
        let mut letters = Vec::new();
        let found = wait_until("dead letters", || {
            letters = self.letters()?;
            Ok(letters.len() >= count)
        });
        found.with_context(|| format!("{letters:?}\n{}", self.service.stderr()))?;
        ensure!(letters == vec!["conflict"; count], "{letters:?}");
        Ok(())
    }

    fn check_no_letters(&self) -> Result<()> {
        let letters = self.letters()?;
        ensure!(letters.is_empty(), "{letters:?}");
        Ok(())
    }

    fn until_settled(&self, count: usize) -> Result<()> {
        self.until_key(|row| row["next"] == count + 1)
    }

    /// Waits until the key is parked at its first event, and the store holds `count` events of the key.
    fn until_held(&self, count: usize) -> Result<()> {
        self.until_key(|row| row["status"] == "parked" && row["held"]["count"] == count)
    }

    fn until_key(&self, is_so: impl Fn(&Value) -> bool) -> Result<()> {
        let mut last = Vec::new();
        let found = wait_until("a state of the key", || {
            last = self.home.rows(&["keys", "list", "cases", "--json"])?;
            Ok(last.iter().any(&is_so))
        });
        found.with_context(|| format!("{last:?}\n{}", self.service.stderr()))
    }

    fn letters(&self) -> Result<Vec<String>> {
        let rows = self.home.rows(&["dead", "list", "cases", "--json", "--limit", "1000"])?;
        let cause = |row: &Value| Some(row["cause"].as_str()?.to_owned());
        Ok(rows.iter().filter_map(cause).collect())
    }

    /// Ends the host, which must have published messages for the first `count` sequences, and for no other sequences.
    fn check_messages(&mut self, count: usize) -> Result<()> {
        self.service.end()?;
        let mut counts = BTreeSet::new();
        for line in self.service.stdout().lines() {
            let message: Value = serde_json::from_str(line)?;
            counts.insert(message["data"]["count"].as_u64().context("a count")?);
        }
        ensure!(counts == (1..=count as u64).collect(), "{counts:?}");
        Ok(())
    }
}

/// The test publishes the lost events again, after or before the host repeats its lost commits. Each of these events
/// must count as a repeat.
#[test]
fn lost_events_are_recognised_when_published_again() -> Result<()> {
    for is_before_recovery in [false, true] {
        let (mut rig, lost) = LossRig::start_and_lose(is_before_recovery)?;
        rig.publish_file(&lost, EVENTS)?;
        rig.service.resume()?;
        rig.until_repeated()?;
        rig.publish(NEW_EVENTS)?;
        rig.until_settled(2 * EVENTS + NEW_EVENTS)?;
        rig.until_empty()?;
        rig.check_no_letters()?;
        rig.check_messages(2 * EVENTS + NEW_EVENTS)?;
    }
    Ok(())
}

/// The test publishes other events after the host has repeated its lost commits. The record of the key lacks the
/// digests of the first lost events, so the store gives their numbers to other events. Each of these other events must
/// become a dead letter; none may count as a repeat of an executed event. If the record has the digest of an executed
/// event, the store must not give the number of this event to another event.
#[test]
fn other_event_gets_no_number_of_a_known_executed_event() -> Result<()> {
    let (mut rig, _) = LossRig::start_and_lose(false)?;
    rig.check_refused(EVENTS - DIGESTS)?;
    rig.until_conflicts(EVENTS - DIGESTS)?;
    rig.check_messages(2 * EVENTS)
}

/// The test publishes other events before the host repeats its lost commits. These events get the numbers of executed
/// events. Each of these events must become a dead letter; none may count as a repeat of an executed event. After the
/// repetition, the store must not give the remaining numbers of executed events to other events.
#[test]
fn other_events_published_before_the_repetition_become_dead_letters() -> Result<()> {
    let (mut rig, _) = LossRig::start_and_lose(true)?;
    rig.publish(NEW_EVENTS)?;
    rig.service.resume()?;
    rig.until_repeated()?;
    rig.until_conflicts(NEW_EVENTS)?;
    rig.check_refused(0)?;
    rig.until_conflicts(NEW_EVENTS)?;
    rig.check_messages(2 * EVENTS)
}

/// A key is parked, and the store holds its later events. Redis loses some of these events with their numbers, and the
/// host repeats the commits that contain the events. The store must not give these numbers to other events.
#[test]
fn other_event_gets_no_number_of_a_held_event() -> Result<()> {
    let trap = json!({ "do": "trap" });
    let event = |number: u64| {
        let command = json!({ "do": "put", "bytes": number });
        line("a", number, if number == 1 { &trap } else { &command })
    };
    let lines: Vec<String> = (1..=1_000).map(event).collect();
    let stream = "handler = \"faulty\"\nspill_after = \"1ms\"\nretry = { attempts = 1 }";
    let mut rig = LossRig::with(stream, &lines)?;
    rig.publish(EVENTS)?;
    rig.until_held(EVENTS)?;
    let early = rig.redis.snapshot()?;
    rig.publish(EVENTS)?;
    rig.until_held(2 * EVENTS)?;
    rig.lose(&early, false)?;
    rig.check_refused(0)?;
    rig.until_held(2 * EVENTS)?;
    rig.check_no_letters()?;
    rig.service.end()
}

/// The host dies after the loss, before it notices the loss. Its lost commits are therefore never repeated, so other
/// events with the lost numbers must take effect after the next start.
#[test]
fn other_events_take_effect_if_the_host_dies_before_it_notices_the_loss() -> Result<()> {
    let (mut rig, _) = LossRig::start_and_lose(true)?;
    rig.publish(NEW_EVENTS)?;
    rig.service.kill()?;
    rig.service = Service::start(&rig.home, &["run"])?;
    rig.until_settled(EVENTS + NEW_EVENTS)?;
    rig.until_empty()?;
    rig.check_no_letters()?;
    rig.service.end()
}
