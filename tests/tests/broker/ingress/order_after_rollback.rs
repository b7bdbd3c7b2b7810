//! Tests of the order in a `fifo` stream with several partitions, after the store went back in time. The inbox has read
//! events that the store loses, and cannot publish them yet, because the broker is paused. Later events of the same key
//! must not overtake these events.

use std::thread::{sleep, spawn};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ordain_servers::{Redis, Snapshot};
use ordain_tests::host::Home;
use ordain_tests::log::line;
use ordain_tests::rig::{Rig, config};
use ordain_tests::service::{Service, wait_until};
use serde_json::{Value, json};

use super::support::{SECTIONS, ingress, into_file, post_all};

/// Longer than a reader of the inbox needs to read an event, and to send it to a broker that answers or is paused.
const READ_TIME: Duration = Duration::from_millis(300);

const KEY: &str = "a";
/// The number of other keys. They use all four partitions.
const OTHER_KEYS: usize = 40;

struct PausedBroker {
    redis: Redis,
    rig: Rig,
    service: Service,
    address: std::net::SocketAddr,
    _home: Home,
}

/// Returns an event whose message has the number as its type.
fn event(key: &str, number: u64) -> String {
    line(key, number, &json!({ "do": "emit", "type": number.to_string() }))
}

impl PausedBroker {
    fn start() -> Result<Self> {
        let redis = Redis::start(&[])?;
        let rig = Rig::with_private_broker("", "", "")?;
        let store = format!("[store]\nkind = \"redis\"\nurl = \"{}\"\nshards = 1\n", redis.url());
        let sections = format!("{SECTIONS}[plugins]\ntimeout = \"3s\"\n{store}");
        let stream = "ordering = \"fifo\"\nretry = { attempts = 1, on_exhausted = \"skip\" }";
        let text = config(&rig.rabbit.url(), &sections, stream, "partitions = 4");
        let text = into_file(&text, "-").replace("tally", "faulty");
        let home = Home::new(&["faulty"], &text)?;
        let mut service = Service::start(&home, &["run"])?;
        let address = ingress(&mut service)?;
        rig.until_declared()?;
        let host = Self { redis, rig, service, address, _home: home };
        // The first events of keys are in the unrouted queue, and the second events in the queues of all partitions.
        // The inbox therefore opens all its connections to the broker now, and not while the broker is paused.
        for (number, count) in [(1, OTHER_KEYS), (2, 2 * OTHER_KEYS)] {
            let others = (0..OTHER_KEYS).map(|key| event(&format!("other-{key}"), number));
            post_all(address, &others.collect::<Vec<_>>())?;
            wait_until("the messages of the other keys", || {
                Ok(host.service.stdout().lines().count() == count)
            })?;
        }
        Ok(host)
    }

    /// Returns the types of the messages of [`KEY`].
    fn types(&self) -> Result<Vec<String>> {
        let mut types = Vec::new();
        for line in self.service.stdout().split_inclusive('\n').filter(|line| line.ends_with('\n'))
        {
            let message: Value = serde_json::from_str(line)?;
            if message["subject"] == KEY {
                types.push(message["type"].as_str().context("a type")?.to_owned());
            }
        }
        Ok(types)
    }

    /// Pauses the broker, posts two events, and makes the store lose them. The inbox has sent the first event to the
    /// broker, and waits for its confirmation before it sends the second event.
    fn lose_unpublished_events(&self, early: &Snapshot) -> Result<()> {
        self.rig.rabbit.pause()?;
        for number in [2, 3] {
            post_all(self.address, &[event(KEY, number)])?;
            sleep(READ_TIME);
        }
        self.redis.go_back(early)
    }

    /// Posts a third event, resumes the broker meanwhile, and checks the order of all three events.
    fn check_order(mut self, before: &[&str]) -> Result<()> {
        let address = self.address;
        let posting = spawn(move || post_all(address, &[event(KEY, 4)]));
        sleep(READ_TIME);
        self.rig.rabbit.resume()?;
        posting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let expected = [before, &["2", "3", "4"]].concat();
        wait_until("all messages", || Ok(self.types()?.len() == expected.len()))
            .with_context(|| self.service.stderr())?;
        ensure!(self.types()? == expected, "{:?}: {}", self.types()?, self.service.stderr());
        self.service.end()
    }
}

/// The key has no record when the events 2 and 3 arrive, because the handler still executes event 1. When event 4
/// arrives, the key has a record, which shows its partition.
#[test]
fn later_events_do_not_overtake_unrouted_events() -> Result<()> {
    let mut host = PausedBroker::start()?;
    let early = host.redis.snapshot()?;
    // The host ends the execution of this event at the time limit, and makes the event a dead letter.
    post_all(host.address, &[line(KEY, 1, &json!({ "do": "loop" }))])?;
    sleep(READ_TIME);
    host.lose_unpublished_events(&early)?;
    host.service.until_says("new dead letter")?;
    // The log line may precede the commit, which writes the record of the key.
    sleep(READ_TIME);
    host.check_order(&[])
}

/// The key has a record when the events 2 and 3 arrive. The store loses the record too, and the broker is paused, so no
/// commit makes the host repeat the lost record before event 4 arrives.
#[test]
fn later_events_do_not_overtake_events_of_their_partition() -> Result<()> {
    let host = PausedBroker::start()?;
    let early = host.redis.snapshot()?;
    post_all(host.address, &[event(KEY, 1)])?;
    wait_until("the first message", || Ok(host.types()?.len() == 1))?;
    sleep(READ_TIME);
    host.lose_unpublished_events(&early)?;
    host.check_order(&["1"])
}
