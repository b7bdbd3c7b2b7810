//! A test of two hosts whose Redis servers run under a Sentinel. For longer than the default lease, a network split
//! separates the master and one of the hosts from the Sentinel, the replica and the other host. The replica becomes the
//! master.
//!
//! During the split, the two hosts use different masters: the separated host uses the old master, and the connected
//! host uses the new master. In its own master, each host takes over the partitions of the other host. When the split
//! ends, the new master lacks the claims that the separated host wrote during the split. The separated host then ends
//! with an error, and its supervisor (here the test) starts the host again.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context as _, Result, ensure};
use ordain_servers::{
    Connection, CutOff, Mode, Port, Proxy, Sentinel, wait_for_command, wait_until,
};
use ordain_tests::host::Home;
use ordain_tests::http::{self, LINES_TYPE};
use ordain_tests::incident::records;
use ordain_tests::log::{by_key, in_turn, line, text};
use ordain_tests::service::Service;
use ordain_tests::tally;
use serde_json::{Value, json};

use super::support::PARTITIONS;

/// The number of keys. All partitions have some of these keys.
const KEYS: usize = 40;
/// The number of events of a key in each part of the test: before, during and after the split.
const EVENTS_IN_PART: u64 = 5;

/// A host with its own proxy to the Sentinel. The host accepts events on the same port after a restart.
struct Host {
    home: Home,
    service: Service,
    to_sentinel: Proxy,
    port: Port,
    /// The complete lines that the ended processes of this host printed.
    earlier: String,
}

/// Returns the configuration of a host. The configuration has no section `[runtime]`, so the host has the default
/// lease.
fn config(sentinel: u16, port: u16) -> String {
    format!(
        "[ingress]\nlisten = \"127.0.0.1:{port}\"\n\
         [store]\nkind = \"redis\"\nurl = \"redis://127.0.0.1:{sentinel}\"\nshards = 4\n\
         [streams.cases]\nhandler = \"tally\"\nordering = \"fifo\"\n\
         source = {{ kind = \"http\", partitions = {PARTITIONS} }}\n\
         [sinks.tally]\nkind = \"file\"\npath = \"-\"\n"
    )
}

impl Host {
    fn start(group: &Sentinel) -> Result<Self> {
        let to_sentinel = Proxy::start(group.sentinel().port())?;
        let port = Port::take()?;
        let home = Home::new(&["tally"], &config(to_sentinel.port(), port.number()))?;
        let mut service = Service::start(&home, &["run"])?;
        http::ready(&mut service)?;
        Ok(Self { home, service, to_sentinel, port, earlier: String::new() })
    }

    fn restart(&mut self) -> Result<()> {
        self.earlier = self.output();
        self.service = Service::start(&self.home, &["run"])?;
        http::ready(&mut self.service).map(drop)
    }

    /// Posts events. The host must accept all of them.
    fn post(&self, lines: &[String]) -> Result<()> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port.number()));
        let answer = http::post(address, LINES_TYPE, &text(lines))?;
        ensure!(answer.status == 202, "{answer:?}: {}", self.service.stderr());
        Ok(())
    }

    /// Returns the complete lines that all processes of this host printed.
    fn output(&self) -> String {
        let printed = self.service.stdout();
        let whole = printed.rfind('\n').map_or(0, |at| at + 1);
        format!("{}{}", self.earlier, &printed[..whole])
    }

    /// Waits until the host has ended because the store lacks one of its claims. Checks the exit code, the error, and
    /// the record of the lost claim in the log.
    fn until_ended_without_claim(&mut self) -> Result<()> {
        let status = self.service.wait()?;
        let log = self.service.stderr();
        ensure!(status.code() == Some(1), "{status}: {log}");
        ensure!(log.contains("the store went back in time in shard"), "{log}");
        let is_lost_claim = |record: &Value| {
            record["type"] == "ordain.commits.lost" && record["data"]["claim_lost"] == true
        };
        ensure!(records(&log)?.iter().any(is_lost_claim), "no record of a lost claim: {log}");
        Ok(())
    }
}

fn clients(connection: &mut Connection) -> Result<BTreeSet<String>> {
    let list = connection.command(&["CLIENT", "LIST", "TYPE", "normal"])?;
    let id = |client: &str| {
        let id = client.split(' ').find_map(|field| field.strip_prefix("id="));
        id.map(str::to_owned)
    };
    Ok(list.text().context("a list of clients")?.lines().filter_map(id).collect())
}

/// Closes connections to the replaced master. Their clients cannot connect to this master again, because the Sentinel
/// names another master.
fn disconnect(cut_off: &mut CutOff, client_ids: &BTreeSet<String>) -> Result<()> {
    let mut closed = 0;
    for id in client_ids {
        let reply = cut_off.connection().command(&["CLIENT", "KILL", "ID", id])?;
        closed += reply.int().unwrap_or(0);
    }
    ensure!(closed > 0, "the host had no connection to the replaced master");
    Ok(())
}

/// Returns how many partitions each process owns according to the store, by process id.
fn shares(home: &Home) -> Result<BTreeMap<u32, usize>> {
    let mut shares = BTreeMap::new();
    for row in home.rows(&["instances", "--json"])? {
        let name = row["name"].as_str().unwrap_or("/0");
        let process = name.rsplit_once('/').context("a name")?.1.parse()?;
        shares.insert(process, row["partitions"].as_array().context("partitions")?.len());
    }
    Ok(shares)
}

fn until_shared(hosts: [&Host; 2]) -> Result<()> {
    let mut owned = BTreeMap::new();
    let shared = wait_for_command("equal shares", || {
        owned = shares(&hosts[0].home)?;
        let has_half =
            |host: &&Host| owned.get(&host.service.id()).is_some_and(|own| 2 * own == PARTITIONS);
        Ok(hosts.iter().all(has_half))
    });
    shared.with_context(|| format!("{owned:?}"))
}

fn post_in_turn(hosts: [&Host; 2], lines: &[String]) -> Result<()> {
    let mut parts = lines.chunks(KEYS).zip(hosts.iter().cycle());
    parts.try_for_each(|(part, host)| host.post(part))
}

/// Returns the different messages, sorted by sequence. A new owner may print a message again that the previous owner
/// has already printed.
fn messages(hosts: [&Host; 2]) -> Result<String> {
    let all = hosts.map(Host::output).concat();
    let lines: BTreeSet<&str> = all.split_inclusive('\n').collect();
    let sequence = |line: &str| -> Result<u64> {
        let message: Value = serde_json::from_str(line)?;
        message["data"]["sequence"].as_u64().context("a sequence")
    };
    let numbered = lines.into_iter().map(|line| Ok((sequence(line)?, line)));
    let mut numbered = numbered.collect::<Result<Vec<_>>>()?;
    numbered.sort_unstable();
    Ok(numbered.into_iter().map(|(_, line)| line).collect())
}

/// Checks that each of these events, and no other event, took effect once and in order.
fn check(hosts: [&Host; 2], lines: &[String]) -> Result<()> {
    tally::check(&by_key(lines)?, &messages(hosts)?)
}

fn until_effects(hosts: [&Host; 2], lines: &[String]) -> Result<()> {
    let mut last = Ok(());
    let arrived = wait_until("the effects of all accepted events", || {
        last = check(hosts, lines);
        Ok(last.is_ok())
    });
    let logs = || hosts.map(|host| host.service.stderr()).join("----\n");
    arrived.with_context(|| format!("{last:?}\n{}", logs()))
}

/// Returns events for the replaced master. The keys of these events differ from the keys of all other events, because
/// the store loses the effects of these events.
fn events_of_old_master() -> Vec<String> {
    let event = |number| {
        (0..KEYS).map(move |key| line(&format!("old{key}"), number, &json!({ "n": number })))
    };
    (1..=EVENTS_IN_PART).flat_map(event).collect()
}

/// During the split, each host accepts events and takes over all partitions in its own master. After the split, the
/// host of the replaced master ends and is started again. All events that the hosts accept before and after the split
/// must take effect once and in the order of their keys. The same applies to the events that the connected host accepts
/// during the split. The events that the separated host accepts during the split must take effect once, but the new
/// master does not contain their effects.
#[test]
fn owners_of_two_masters_lose_no_event_of_the_new_master() -> Result<()> {
    let group = Sentinel::start()?;
    let mut observer = group.master().connect()?;
    let mut separated = Host::start(&group)?;
    let others = clients(&mut observer)?;
    let mut connected = Host::start(&group)?;
    let connections: BTreeSet<String> =
        clients(&mut observer)?.difference(&others).cloned().collect();
    drop(observer);
    until_shared([&connected, &separated])?;
    let lines = in_turn(KEYS, 3 * EVENTS_IN_PART);
    let (first, rest) = lines.split_at(lines.len() / 3);
    let (second, third) = rest.split_at(first.len());
    post_in_turn([&connected, &separated], first)?;
    until_effects([&connected, &separated], first)?;

    let mut cut_off = group.cut_off()?;
    separated.to_sentinel.set(Mode::HalfOpen)?;
    group.until_replaced()?;
    disconnect(&mut cut_off, &connections)?;
    let old = events_of_old_master();
    separated.post(&old)?;
    connected.post(second)?;
    // The keys of these events belong to all partitions. The effects of the events therefore show that each host has
    // taken over all partitions.
    let mut accepted = [first, second, &old[..]].concat();
    until_effects([&connected, &separated], &accepted)?;

    separated.to_sentinel.set(Mode::Pass)?;
    separated.until_ended_without_claim()?;
    group.heal_split()?;
    separated.restart()?;
    until_shared([&connected, &separated])?;
    post_in_turn([&connected, &separated], third)?;
    accepted.extend_from_slice(third);
    until_effects([&connected, &separated], &accepted)?;
    separated.service.end()?;
    connected.service.end()?;
    check([&connected, &separated], &accepted)
}
