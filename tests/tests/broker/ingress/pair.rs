//! Tests of events that arrive over HTTP for a stream whose source is RabbitMQ, with two processes and four partitions.
//! Each process must accept events of all keys, even if the other process owns the partition of the key.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use ordain_servers::{Redis, wait_until};
use ordain_tests::host::Home;
use ordain_tests::log::{by_key, in_turn};
use ordain_tests::queue::waiting_events;
use ordain_tests::rig::{Rig, config};
use ordain_tests::service::Service;
use ordain_tests::tally;
use serde_json::Value;

use super::support::{EVENT_TYPE, SECTIONS, inbox_events, ingress, into_file, post, post_all};

/// Two hosts that print their messages, and their servers.
struct Pair {
    /// The output of all processes until the last restart of the first process.
    earlier: String,
    rig: Rig,
    homes: [Home; 2],
    services: [Service; 2],
    addresses: [SocketAddr; 2],
    redis: Redis,
}

impl Pair {
    /// Starts the servers and both hosts. `sections` has additional sections of the configuration, and `stream` has
    /// additional settings of the stream.
    fn start(sections: &str, stream: &str) -> Result<Self> {
        let redis = Redis::start(&[])?;
        let store = format!("[store]\nkind = \"redis\"\nurl = \"{}\"\n", redis.url());
        let rig = Rig::with_private_broker(&store, "", "partitions = 4")?;
        let sections = format!("{SECTIONS}{sections}{store}");
        let config_text =
            into_file(&config(&rig.rabbit.url(), &sections, stream, "partitions = 4"), "-");
        let homes = [Home::new(&["tally"], &config_text)?, Home::new(&["tally"], &config_text)?];
        let mut services =
            [Service::start(&homes[0], &["run"])?, Service::start(&homes[1], &["run"])?];
        let [one, other] = &mut services;
        let addresses = [ingress(one)?, ingress(other)?];
        rig.until_declared()?;
        Ok(Self { earlier: String::new(), rig, homes, services, addresses, redis })
    }

    /// Returns the complete lines that all processes have printed since the start. After a restart, some lines may
    /// occur twice.
    fn printed(&self) -> String {
        let whole = |text: String| text[..text.rfind('\n').map_or(0, |at| at + 1)].to_owned();
        let now: String = self.services.iter().map(|service| whole(service.stdout())).collect();
        format!("{}{now}", self.earlier)
    }

    /// Waits until the processes have printed `count` different messages. After a crash, a process may print a message
    /// twice.
    fn until(&self, count: usize) -> Result<()> {
        wait_until(&format!("{count} effects"), || {
            Ok(self.printed().lines().collect::<BTreeSet<_>>().len() >= count)
        })
    }

    /// Waits until the inbox in the store is empty. A host removes an event from the inbox a little after it has
    /// published the event. While the event is in the inbox, it delays the later events of its key.
    fn until_removed(&self) -> Result<()> {
        wait_until("empty queues in the store", || {
            let waiting = (0..16).map(|shard| waiting_events(&self.redis, "cases", shard));
            Ok(waiting.collect::<Result<Vec<u64>>>()?.into_iter().all(|count| count == 0))
        })
    }

    fn kill_first(&mut self) -> Result<()> {
        self.services[0].kill()
    }

    /// Starts the first process again after its end, and keeps the earlier output.
    fn restart_first(&mut self) -> Result<()> {
        self.earlier = self.printed();
        self.services[0] = Service::start(&self.homes[0], &["run"])?;
        self.addresses[0] = ingress(&mut self.services[0])?;
        Ok(())
    }

    /// Waits until no events wait, and stops all processes. Returns the whole output.
    fn end(mut self) -> Result<String> {
        self.rig.until_empty()?;
        for service in &mut self.services {
            wait_until("an empty inbox", || inbox_events(service).map(|count| count == 0))?;
            service.end()?;
        }
        Ok(self.printed())
    }
}

/// Sorts the lines of both processes by sequence, and drops lines that were printed again after a crash. The hash in
/// each message depends on all earlier events of the key, in the order of their execution, so the test can still check
/// this order.
fn sorted_messages(all: &str) -> Result<String> {
    let lines: BTreeSet<&str> = all.split_inclusive('\n').collect();
    let sequence = |line: &str| {
        let message: Value = serde_json::from_str(line)?;
        message["data"]["sequence"].as_u64().context("a sequence")
    };
    let mut lines =
        lines.into_iter().map(|line| Ok((sequence(line)?, line))).collect::<Result<Vec<_>>>()?;
    lines.sort_unstable();
    Ok(lines.into_iter().map(|(_, line)| line).collect())
}

/// While the broker is down, the hosts must process the events of keys that have a key record. The events of new keys
/// wait for the broker, and must not delay the events of other keys.
fn check_both_processes_accept_events(stream: &str) -> Result<()> {
    let pair = Pair::start("", stream)?;
    let known = in_turn(40, 20);
    // Each shard gets several hundred events of new keys.
    let new: Vec<String> =
        in_turn(1_000, 10).into_iter().filter(|line| !known.contains(line)).collect();
    let (first, rest) = known.split_at(100);
    let (second, rest) = rest.split_at(200);
    let (third, fourth) = rest.split_at(200);
    for (at, line) in first.iter().enumerate() {
        ensure!(post(pair.addresses[at % 2], EVENT_TYPE, line)?.status == 202);
    }
    // A `fifo` stream executes events in the order of their arrival. All events must therefore have arrived over HTTP
    // before their copies arrive from the broker.
    pair.until(first.len())?;
    pair.rig.publish(&first[50..])?;
    pair.rig.until_empty()?;
    pair.until_removed()?;
    pair.rig.rabbit.kill()?;
    post_all(pair.addresses[0], second)?;
    post_all(pair.addresses[1], &new)?;
    // The waiting events of new keys must not delay these events of other keys.
    post_all(pair.addresses[1], third)?;
    pair.until(first.len() + second.len() + third.len())?;
    pair.rig.rabbit.restart()?;
    post_all(pair.addresses[0], fourth)?;
    pair.until(known.len() + new.len())?;
    let all: Vec<String> = known.iter().chain(&new).cloned().collect();
    // Both processes may have printed messages of one key, because a partition may have changed its owner: at the
    // start, or while a process did not reach the broker.
    tally::check(&by_key(&all)?, &sorted_messages(&pair.end()?)?)
}

#[test]
fn each_process_accepts_sequenced_events() -> Result<()> {
    check_both_processes_accept_events("")
}

#[test]
fn each_process_accepts_fifo_events() -> Result<()> {
    check_both_processes_accept_events("ordering = \"fifo\"")
}

/// While the broker is down, the owner of half of the partitions dies. The other process must execute the events that
/// the dead owner accepted. A process that starts during the outage must accept events, and must execute the events of
/// its share when the broker is available again.
#[test]
fn other_process_takes_over_while_the_broker_is_down() -> Result<()> {
    let mut pair = Pair::start("[runtime]\nlease = \"2s\"\n", "")?;
    let lines = in_turn(40, 20);
    let (first, rest) = lines.split_at(200);
    let (second, rest) = rest.split_at(200);
    let (third, fourth) = rest.split_at(200);
    post_all(pair.addresses[0], first)?;
    pair.until(first.len())?;
    pair.rig.until_empty()?;
    pair.rig.rabbit.kill()?;
    post_all(pair.addresses[0], second)?;
    // Kills the process while it executes events.
    pair.kill_first()?;
    post_all(pair.addresses[1], third)?;
    pair.until(first.len() + second.len() + third.len())?;
    pair.restart_first()?;
    post_all(pair.addresses[0], fourth)?;
    pair.rig.rabbit.restart()?;
    pair.until(lines.len())?;
    tally::check(&by_key(&lines)?, &sorted_messages(&pair.end()?)?)
}
