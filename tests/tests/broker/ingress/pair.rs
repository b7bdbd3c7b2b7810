//! Events over HTTP for a stream of the broker, in two processes with four partitions. Each process accepts events of
//! all keys, whichever process owns the key.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use ordain_servers::{Redis, wait_until};
use ordain_tests::host::Home;
use ordain_tests::log::{by_key, in_turn};
use ordain_tests::rig::{Rig, config};
use ordain_tests::service::Service;
use ordain_tests::tally;
use serde_json::Value;

use super::support::{ONE, SECTIONS, ingress, into_file, post, post_all, waits};

/// Servers, and two hosts that print their messages.
struct Pair {
    /// The output of processes that have ended.
    earlier: String,
    rig: Rig,
    homes: [Home; 2],
    services: [Service; 2],
    addresses: [SocketAddr; 2],
    redis: Redis,
}

impl Pair {
    /// Starts the pair with additional sections and settings of the stream.
    fn start(sections: &str, stream: &str) -> Result<Self> {
        let redis = Redis::start(&[])?;
        let store = format!("[store]\nkind = \"redis\"\nurl = \"{}\"\n", redis.url());
        let rig = Rig::alone(&store, "", "partitions = 4")?;
        let sections = format!("{SECTIONS}{sections}{store}");
        let text_of =
            into_file(&config(&rig.rabbit.url(), &sections, stream, "partitions = 4"), "-");
        let homes = [Home::new(&["tally"], &text_of)?, Home::new(&["tally"], &text_of)?];
        let mut services =
            [Service::start(&homes[0], &["run"])?, Service::start(&homes[1], &["run"])?];
        let [one, other] = &mut services;
        let addresses = [ingress(one)?, ingress(other)?];
        rig.until_declared()?;
        Ok(Self { earlier: String::new(), rig, homes, services, addresses, redis })
    }

    /// Returns the whole output, in complete lines.
    fn printed(&self) -> String {
        let whole = |text: String| text[..text.rfind('\n').map_or(0, |at| at + 1)].to_owned();
        let now: String = self.services.iter().map(|service| whole(service.stdout())).collect();
        format!("{}{now}", self.earlier)
    }

    /// Waits until `count` different messages were printed: a crash may print messages twice.
    fn until(&self, count: usize) -> Result<()> {
        wait_until(&format!("{count} effects"), || {
            Ok(self.printed().lines().collect::<BTreeSet<_>>().len() >= count)
        })
    }

    /// Waits until the queues in the store are empty. A host removes published events a little later, and until then
    /// the queues delay later events of their keys.
    fn until_removed(&self) -> Result<()> {
        wait_until("empty queues in the store", || {
            let waits = (0..16).map(|shard| {
                let log = format!("ordain:{{{shard}}}:log:stream/cases");
                let waits = self.redis.command(&["HGET", &log, "w"])?;
                Ok(waits.text().is_none_or(|count| count == "0"))
            });
            Ok(waits.collect::<Result<Vec<bool>>>()?.into_iter().all(|is_empty| is_empty))
        })
    }

    fn kill_one(&mut self) -> Result<()> {
        self.services[0].kill()
    }

    /// Restarts the first process.
    fn start_one(&mut self) -> Result<()> {
        self.earlier = self.printed();
        self.services[0] = Service::start(&self.homes[0], &["run"])?;
        self.addresses[0] = ingress(&mut self.services[0])?;
        Ok(())
    }

    /// Stops all processes when no events wait any more. Returns the output.
    fn end(mut self) -> Result<String> {
        self.rig.until_empty()?;
        for service in &mut self.services {
            wait_until("an empty inbox", || waits(service).map(|count| count == 0))?;
            service.end()?;
        }
        Ok(self.printed())
    }
}

/// Sorts each key's messages by sequence, whichever process printed them. Drops equal lines that a crash printed again.
/// The hash in each message shows its predecessors.
fn in_order(all: &str) -> Result<String> {
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

/// Checks that while the broker is down, the pair processes events of keys that have a record, and events of new keys
/// wait.
fn each_process_accepts_events(stream: &str) -> Result<()> {
    let pair = Pair::start("", stream)?;
    let known = in_turn(40, 20);
    // Makes some hundred events for each shard.
    let new: Vec<String> =
        in_turn(1_000, 10).into_iter().filter(|line| !known.contains(line)).collect();
    let (first, rest) = known.split_at(100);
    let (second, rest) = rest.split_at(200);
    let (third, fourth) = rest.split_at(200);
    for (at, line) in first.iter().enumerate() {
        ensure!(post(pair.addresses[at % 2], ONE, line)?.status == 202);
    }
    // In a `fifo` stream the order of arrival counts: the originals must precede their copies.
    pair.until(first.len())?;
    pair.rig.publish(&first[50..])?;
    pair.rig.until_empty()?;
    pair.until_removed()?;
    pair.rig.rabbit.kill()?;
    post_all(pair.addresses[0], second)?;
    post_all(pair.addresses[1], &new)?;
    // Waiting new keys do not delay other keys.
    post_all(pair.addresses[1], third)?;
    pair.until(first.len() + second.len() + third.len())?;
    pair.rig.rabbit.restart()?;
    post_all(pair.addresses[0], fourth)?;
    pair.until(known.len() + new.len())?;
    let all: Vec<String> = known.iter().chain(&new).cloned().collect();
    // A key's messages may come from both processes: partitions move at the start, and if a process does not reach the
    // broker.
    tally::check(&by_key(&all)?, &in_order(&pair.end()?)?)
}

#[test]
fn each_process_accepts_sequenced_events() -> Result<()> {
    each_process_accepts_events("")
}

#[test]
fn each_process_accepts_fifo_events() -> Result<()> {
    each_process_accepts_events("ordering = \"fifo\"")
}

/// The owner of half of the partitions dies while the broker is down: the other process takes over the accepted events
/// of the dead owner's keys. A process that starts during the outage accepts events, and processes its share of them
/// when the broker is up again.
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
    // The process is killed while it processes events.
    pair.kill_one()?;
    post_all(pair.addresses[1], third)?;
    pair.until(first.len() + second.len() + third.len())?;
    pair.start_one()?;
    post_all(pair.addresses[0], fourth)?;
    pair.rig.rabbit.restart()?;
    pair.until(lines.len())?;
    tally::check(&by_key(&lines)?, &in_order(&pair.end()?)?)
}
