//! Tests of a Redis that numbers events, and goes back in time while a host runs. The host repeats its lost commits.
//! But no process repeats the lost events, because their publisher has ended. The store may then give the numbers of
//! the lost events to other events. Each of these other events must take effect or become a dead letter.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use ordain_core::shard_of;
use ordain_servers::Redis;
use ordain_tests::host::Home;
use ordain_tests::log::{in_turn, line, text, unnumbered};
use ordain_tests::service::{Service, wait_until};
use serde_json::{Value, json};

const SHARDS: u32 = 4;
/// The number of events that are published before the snapshot, and also the number of events that Redis loses. A key
/// record does not have the digests of this many events.
const EVENTS: usize = 100;
/// The number of events that are published after the loss.
const NEW_EVENTS: usize = 50;

/// Redis, a running host, and events of one key.
struct LossRig {
    redis: Redis,
    home: Home,
    service: Service,
    /// The events that are not published yet.
    lines: Vec<String>,
    key: String,
}

impl LossRig {
    /// Starts Redis and a host that executes events by the handler `tally`, and publishes events. Redis still has all
    /// these events after the loss.
    fn start() -> Result<Self> {
        let mut rig = Self::with("handler = \"tally\"", &in_turn(1, 1_000))?;
        rig.publish(EVENTS)?;
        rig.until_settled(EVENTS)?;
        Ok(rig)
    }

    /// Starts Redis and a host. `stream` holds the settings of the stream, and `lines` holds the events.
    fn with(stream: &str, lines: &[String]) -> Result<Self> {
        let redis = Redis::start(&[])?;
        let config = format!(
            "[store]\nkind = \"redis\"\nurl = \"{}\"\nshards = {SHARDS}\n\
             [streams.cases]\n{stream}\nsource = {{ kind = \"stream\" }}\n\
             [sinks.tally]\nkind = \"file\"\npath = \"-\"\n",
            redis.url()
        );
        let home = Home::new(&["tally", "faulty"], &config)?;
        let first: Value = serde_json::from_str(&lines[0])?;
        let key = first["subject"].as_str().context("a key")?.to_owned();
        let service = Service::start(&home, &["run"])?;
        Ok(Self { redis, home, service, lines: unnumbered(lines)?, key })
    }

    /// Publishes the next events. The publisher ends when the store has them.
    fn publish(&mut self, count: usize) -> Result<()> {
        let rest = self.lines.split_off(count);
        let events = std::mem::replace(&mut self.lines, rest);
        let file = format!("events-{}.ndjson", self.lines.len());
        self.home.write(&file, text(&events))?;
        let rows = self.home.rows(&["publish", "cases", &file, "--json"])?;
        ensure!(rows.iter().any(|row| row["published"] == count), "{rows:?}");
        Ok(())
    }

    /// Waits until the first `count` sequences of the key are settled.
    fn until_settled(&self, count: usize) -> Result<()> {
        self.until_key(|row| row["next"] == count + 1)
    }

    /// Waits until the key is parked at its first event, and the store holds `count` events of the key.
    fn until_held(&self, count: usize) -> Result<()> {
        self.until_key(|row| row["status"] == "parked" && row["held"]["count"] == count)
    }

    /// Waits until the row of the key fulfils a condition.
    fn until_key(&self, is_so: impl Fn(&Value) -> bool) -> Result<()> {
        let mut last = Vec::new();
        let found = wait_until("a state of the key", || {
            last = self.home.rows(&["keys", "list", "cases", "--json"])?;
            Ok(last.iter().any(&is_so))
        });
        found.with_context(|| format!("{last:?}\n{}", self.service.stderr()))
    }

    /// Returns the number that the store will give to the next event of the key.
    fn next_number(&self) -> Result<u64> {
        let log = format!("ordain:{{{}}}:log:stream/cases", shard_of(&self.key, SHARDS));
        let read =
            "return tostring((struct.unpack('<I8', redis.call('HGET', KEYS[1], ARGV[1]), 2)))";
        let field = format!("c{}", self.key);
        let reply = self.redis.command(&["EVAL", read, "1", &log, &field])?;
        Ok(reply.text().context("a number")?.parse()?)
    }

    /// Waits until the store gives only numbers that no executed event has.
    fn until_raised(&self) -> Result<()> {
        let raised = wait_until("a raised counter", || Ok(self.next_number()? > 2 * EVENTS as u64));
        raised.with_context(|| self.service.stderr())
    }

    /// Returns the causes of the dead letters.
    fn letters(&self) -> Result<Vec<String>> {
        let rows = self.home.rows(&["dead", "list", "cases", "--json", "--limit", "1000"])?;
        let cause = |row: &Value| Some(row["cause"].as_str()?.to_owned());
        Ok(rows.iter().filter_map(cause).collect())
    }

    /// Ends the host, and checks that it has published one message for each of the first `count` sequences.
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

/// The host repeats its lost commits before other events are published. The other events must get new numbers, and
/// take effect.
#[test]
fn events_after_repeated_commits_get_new_numbers() -> Result<()> {
    let mut rig = LossRig::start()?;
    let early = rig.redis.snapshot()?;
    rig.publish(EVENTS)?;
    rig.until_settled(2 * EVENTS)?;
    rig.redis.go_back(&early)?;
    rig.until_raised()?;
    rig.publish(NEW_EVENTS)?;
    rig.until_settled(2 * EVENTS + NEW_EVENTS)?;
    ensure!(rig.letters()?.is_empty(), "{:?}", rig.letters()?);
    rig.check_messages(2 * EVENTS + NEW_EVENTS)
}

/// Other events are published before the host notices the loss, and get the numbers of executed events. Each of these
/// events must become a dead letter; none may count as a repeat of an executed event. Later events get new numbers.
#[test]
fn events_with_numbers_of_executed_events_become_dead_letters() -> Result<()> {
    let mut rig = LossRig::start()?;
    let early = rig.redis.snapshot()?;
    rig.publish(EVENTS)?;
    rig.until_settled(2 * EVENTS)?;
    rig.service.pause()?;
    rig.redis.go_back(&early)?;
    rig.publish(NEW_EVENTS)?;
    ensure!(rig.next_number()? == (EVENTS + NEW_EVENTS) as u64 + 1, "{}", rig.next_number()?);
    rig.service.resume()?;
    let mut letters = Vec::new();
    let all = wait_until("dead letters", || {
        letters = rig.letters()?;
        Ok(letters.len() >= NEW_EVENTS)
    });
    all.with_context(|| format!("{letters:?}\n{}", rig.service.stderr()))?;
    ensure!(letters == vec!["conflict"; NEW_EVENTS], "{letters:?}");
    rig.until_raised()?;
    rig.publish(NEW_EVENTS)?;
    rig.until_settled(2 * EVENTS + NEW_EVENTS)?;
    ensure!(rig.letters()?.len() == NEW_EVENTS, "{:?}", rig.letters()?);
    rig.check_messages(2 * EVENTS + NEW_EVENTS)
}

/// A key is parked, and the store holds its later events. Redis loses some of these events with their numbers. The host
/// repeats the commits that hold the events, and the numbers of these events must not be given again.
#[test]
fn events_of_a_parked_key_keep_their_numbers() -> Result<()> {
    let event = |number: u64| {
        let command = if number == 1 { "trap" } else { "ok" };
        line("a", number, &json!({ "do": command }))
    };
    let lines: Vec<String> = (1..=1_000).map(event).collect();
    let stream = "handler = \"faulty\"\nspill_after = \"1ms\"\nretry = { attempts = 1 }";
    let mut rig = LossRig::with(stream, &lines)?;
    rig.publish(EVENTS)?;
    rig.until_held(EVENTS)?;
    let early = rig.redis.snapshot()?;
    rig.publish(EVENTS)?;
    rig.until_held(2 * EVENTS)?;
    rig.redis.go_back(&early)?;
    rig.until_raised()?;
    rig.publish(NEW_EVENTS)?;
    rig.until_held(2 * EVENTS + NEW_EVENTS)?;
    ensure!(rig.letters()?.is_empty(), "{:?}", rig.letters()?);
    rig.service.end()
}
