//! Tests of the order in a `fifo` stream with several partitions, after the store went back in time. The inbox has read
//! events that the store loses, and cannot publish them yet, because the broker is paused. Later events of the same key
//! must not overtake these events.

use std::net::SocketAddr;
use std::thread::sleep;
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
const READ_TIME: Duration = Duration::from_millis(500);

const KEY: &str = "a";
/// The number of other keys. They use all four partitions.
const OTHER_KEYS: usize = 40;

/// A store that can go back in time, a broker that can be paused, and the hosts that share them.
struct Servers {
    redis: Redis,
    rig: Rig,
    hosts: Vec<Host>,
}

struct Host {
    service: Service,
    address: SocketAddr,
    home: Home,
}

/// Returns an event whose message has the number as its type.
fn event(key: &str, number: u64) -> String {
    line(key, number, &json!({ "do": "emit", "type": number.to_string() }))
}

impl Servers {
    fn with_one_host() -> Result<Self> {
        let redis = Redis::start(&[])?;
        let rig = Rig::with_private_broker("", "", "")?;
        let mut servers = Self { redis, rig, hosts: Vec::new() };
        servers.add_host()?;
        servers.rig.until_declared()?;
        servers.open_connections("first")?;
        Ok(servers)
    }

    fn with_two_hosts() -> Result<Self> {
        let mut servers = Self::with_one_host()?;
        servers.add_host()?;
        wait_until("both hosts have partitions", || {
            let rows = servers.hosts[0].home.rows(&["instances", "--json"])?;
            let has_partitions = |row: &Value| row["partitions"] != json!([]);
            Ok(rows.len() == 2 && rows.iter().all(has_partitions))
        })?;
        servers.open_connections("second")?;
        Ok(servers)
    }

    fn add_host(&mut self) -> Result<()> {
        let url = self.redis.url();
        let store = format!("[store]\nkind = \"redis\"\nurl = \"{url}\"\nshards = 1\n");
        let sections = format!("{SECTIONS}[plugins]\ntimeout = \"3s\"\n{store}");
        let stream = "ordering = \"fifo\"\nretry = { attempts = 1, on_exhausted = \"skip\" }";
        let text = config(&self.rig.rabbit.url(), &sections, stream, "partitions = 4");
        let text = into_file(&text, "-").replace("tally", "faulty");
        let home = Home::new(&["faulty"], &text)?;
        let mut service = Service::start(&home, &["run"])?;
        let address = ingress(&mut service)?;
        self.hosts.push(Host { service, address, home });
        Ok(())
    }

    /// Posts two events of each of the other keys, so that the inbox opens all its connections to the broker now, and
    /// not while the broker is paused. The first events are in the unrouted queue, and the second events in the queues
    /// of all partitions. The names of the keys begin with `name`.
    fn open_connections(&self, name: &str) -> Result<()> {
        let before = self.messages()?.len();
        for number in [1, 2] {
            let events = (0..OTHER_KEYS).map(|key| event(&format!("{name}-{key}"), number));
            let events: Vec<String> = events.collect();
            post_all(self.last_host().address, &events)?;
            wait_until("the messages of the other keys", || {
                Ok(self.messages()?.len() == before + number as usize * OTHER_KEYS)
            })?;
        }
        Ok(())
    }

    fn last_host(&self) -> &Host {
        self.hosts.last().expect("a host")
    }

    /// Returns the messages of all hosts. Each host has the messages of its own partitions, in their order.
    fn messages(&self) -> Result<Vec<Value>> {
        let printed: String = self.hosts.iter().map(|host| host.service.stdout()).collect();
        let complete = printed.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        complete.map(|line| Ok(serde_json::from_str(line)?)).collect()
    }

    /// Returns the types of the messages of [`KEY`].
    fn types(&self) -> Result<Vec<String>> {
        let messages = self.messages()?;
        let of_key = messages.iter().filter(|message| message["subject"] == KEY);
        of_key.map(|message| Ok(message["type"].as_str().context("a type")?.to_owned())).collect()
    }

    fn until_types(&self, types: &[&str]) -> Result<()> {
        wait_until("the messages", || Ok(self.types()?.len() >= types.len()))
            .with_context(|| self.logs())?;
        ensure!(self.types()? == types, "{:?}: {}", self.types()?, self.logs());
        Ok(())
    }

    fn logs(&self) -> String {
        self.hosts.iter().map(|host| host.service.stderr()).collect()
    }

    /// Posts events of [`KEY`] to a host, one after the other. If the broker is paused, the inbox sends the first event
    /// to the broker, and waits for its confirmation before it sends the second event.
    fn post(&self, host: usize, numbers: &[u64]) -> Result<()> {
        for number in numbers {
            post_all(self.hosts[host].address, &[event(KEY, *number)])?;
            sleep(READ_TIME);
        }
        Ok(())
    }

    /// Pauses the broker, posts the events 2 and 3, and makes the store lose them.
    fn lose_unpublished_events(&self, early: &Snapshot) -> Result<()> {
        self.rig.rabbit.pause()?;
        self.post(0, &[2, 3])?;
        self.redis.go_back(early)
    }

    fn end(self) -> Result<()> {
        self.hosts.into_iter().try_for_each(|mut host| host.service.end())
    }
}

/// The key has no record when the events 2 and 3 arrive, because the handler still executes event 1. When event 4
/// arrives, the key has a record, which shows its partition.
#[test]
fn later_events_do_not_overtake_unrouted_events() -> Result<()> {
    let mut servers = Servers::with_one_host()?;
    let early = servers.redis.snapshot()?;
    // The host ends the execution of this event at the time limit, and makes the event a dead letter.
    post_all(servers.hosts[0].address, &[line(KEY, 1, &json!({ "do": "loop" }))])?;
    sleep(READ_TIME);
    servers.lose_unpublished_events(&early)?;
    servers.hosts[0].service.until_says("new dead letter")?;
    // The log line may precede the commit, which writes the record of the key.
    sleep(READ_TIME);
    servers.post(0, &[4])?;
    servers.rig.rabbit.resume()?;
    servers.until_types(&["2", "3", "4"])?;
    servers.end()
}

/// The key has a record when the events 2 and 3 arrive. The store loses the record too, and the broker is paused, so no
/// commit makes the host repeat the lost record before event 4 arrives.
#[test]
fn later_events_do_not_overtake_events_of_their_partition() -> Result<()> {
    let servers = Servers::with_one_host()?;
    let early = servers.redis.snapshot()?;
    servers.post(0, &[1])?;
    servers.until_types(&["1"])?;
    sleep(READ_TIME);
    servers.lose_unpublished_events(&early)?;
    servers.post(0, &[4, 5])?;
    servers.rig.rabbit.resume()?;
    servers.until_types(&["1", "2", "3", "4", "5"])?;
    servers.end()
}

/// The store loses the events 2 and 3, which are in the queue of their partition. It shows event 1 in the unrouted queue
/// again, although the inbox has published this event long ago.
#[test]
fn published_event_that_is_back_in_the_store_does_not_change_the_order() -> Result<()> {
    let servers = Servers::with_one_host()?;
    servers.rig.rabbit.pause()?;
    servers.post(0, &[1])?;
    let early = servers.redis.snapshot()?;
    servers.rig.rabbit.resume()?;
    servers.until_types(&["1"])?;
    sleep(READ_TIME);
    servers.lose_unpublished_events(&early)?;
    servers.post(0, &[4])?;
    servers.rig.rabbit.resume()?;
    servers.until_types(&["1", "2", "3", "4"])?;
    servers.end()
}

/// The store loses the record of the key, so a host that does not know the key puts the events 3 and 4 into the unrouted
/// queue. The other host knows the partition of the key from event 2, but event 5 must not overtake event 4.
#[test]
fn later_events_do_not_overtake_unrouted_events_of_another_host() -> Result<()> {
    let servers = Servers::with_two_hosts()?;
    let early = servers.redis.snapshot()?;
    servers.post(0, &[1])?;
    servers.until_types(&["1"])?;
    sleep(READ_TIME);
    servers.post(0, &[2])?;
    servers.until_types(&["1", "2"])?;
    servers.rig.rabbit.pause()?;
    servers.redis.go_back(&early)?;
    servers.post(1, &[3, 4])?;
    servers.post(0, &[5])?;
    servers.rig.rabbit.resume()?;
    servers.until_types(&["1", "2", "3", "4", "5"])?;
    servers.end()
}
