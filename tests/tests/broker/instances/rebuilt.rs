//! Tests of two processes that share the partitions of a stream. Meanwhile, the virtual host of the broker is missing,
//! or is created anew without its content. Or another program removes the exchange, or replaces the queue of one
//! partition.

use std::ops::Range;

use anyhow::{Context as _, Result, ensure};
use lapin::ExchangeKind;
use lapin::types::FieldTable;
use ordain_servers::{wait_for_command, wait_until};
use ordain_tests::http::{admin, get, ready};
use ordain_tests::log::{by_key, in_turn};
use ordain_tests::tally;

use super::support::{Fleet, Host, PARTITIONS};

const FIFO: &str = "ordering = \"fifo\"";

/// Two hosts that share the partitions of a stream, and have executed the first half of the events.
struct Scenario {
    fleet: Fleet,
    hosts: [Host; 2],
    lines: Vec<String>,
    out: Vec<String>,
}

impl Scenario {
    /// Starts the hosts, and executes the first half of the events. `stream` has settings of the stream.
    fn start(stream: &str) -> Result<Self> {
        let fleet = Fleet::new("", stream)?;
        let mut hosts = [fleet.start()?, fleet.start()?];
        fleet.rig.until_declared()?;
        fleet.until_shared(&[&hosts[0], &hosts[1]])?;
        // A start declares a missing exchange without a report, and so does a check before the exchange has its marker.
        for host in &mut hosts {
            ready(&mut host.service)?;
        }
        wait_until("the marker of the exchange", || {
            Ok(!fleet.rig.rabbit.bound_to_exchange("cases")?.is_empty())
        })?;
        let lines = in_turn(20, 6);
        let mut scenario = Self { fleet, hosts, lines, out: Vec::new() };
        scenario.execute(0..scenario.lines.len() / 2)?;
        Ok(scenario)
    }

    /// Publishes a range of the events, and waits until their messages have arrived in the queue of the sink.
    fn execute(&mut self, range: Range<usize>) -> Result<()> {
        let count = range.end;
        self.fleet.rig.publish(&self.lines[range])?;
        self.fleet.rig.take(&mut self.out, count)?;
        self.fleet.rig.until_empty()
    }

    /// Executes the second half of the events, checks the messages for all events, and ends the hosts.
    fn finish(&mut self) -> Result<()> {
        self.execute(self.lines.len() / 2..self.lines.len())?;
        tally::check(&by_key(&self.lines)?, &self.out.join("\n"))?;
        self.hosts.iter_mut().try_for_each(|host| host.service.end())
    }
}

/// Connects to a new virtual host, and declares the exchange and the queue of the sink, which a host never declares.
fn declare_out(fleet: &mut Fleet) -> Result<()> {
    let declare = |fleet: &Fleet| {
        fleet.rig.client.exchange("out", ExchangeKind::Topic)?;
        fleet.rig.client.queue("out")?;
        fleet.rig.client.bind("out", "out", "#")
    };
    // Because of the deletion of the former virtual host, the broker may still close connections.
    wait_until("the queue of the sink", || {
        Ok(fleet.rig.reconnect().is_ok() && declare(fleet).is_ok())
    })
}

/// Waits until the queues of all partitions are bound to the exchange of the stream. Checks that no host has reported a
/// wrong topology. One host declares the exchange, and each host declares its own queues, so a binding may lack its
/// queue or exchange for a moment. While the broker deletes a virtual host, it may refuse the requests of the host's
/// user: the host may report this refusal.
fn until_all_bound(fleet: &Fleet, hosts: &[Host; 2]) -> Result<()> {
    wait_until("the bindings of all queues", || {
        let bound = fleet.rig.rabbit.bound("cases")?;
        Ok((0..PARTITIONS).all(|number| bound.contains(&format!("cases.{number}"))))
    })?;
    for host in hosts {
        let log = host.service.stderr();
        let is_wrong = |line: &str| {
            line.contains("topology not as configured") && !line.contains("ACCESS_REFUSED")
        };
        ensure!(!log.lines().any(is_wrong), "{log}");
    }
    Ok(())
}

fn until_unready(host: &mut Host, reason: &str) -> Result<()> {
    let address = admin(&mut host.service)?;
    host.service.until("a host that is not ready", || {
        get(address, "/readyz").is_ok_and(|page| page.status == 503 && page.body.contains(reason))
    })
}

/// Deletes the virtual host, waits until both hosts report that it is missing, and creates it again.
fn rebuild(fleet: &mut Fleet, hosts: &mut [Host; 2]) -> Result<()> {
    fleet.rig.rabbit.delete_virtual_host()?;
    for host in &mut *hosts {
        host.service.until_says("NOT_ALLOWED")?;
        until_unready(host, "no events have arrived from its source")?;
    }
    fleet.rig.rabbit.create_virtual_host()?;
    declare_out(fleet)
}

/// Resumes all stopped partitions through one of the hosts. Returns the report of the command.
fn resume(fleet: &Fleet, host: &mut Host) -> Result<String> {
    let url = format!("http://{}", admin(&mut host.service)?);
    let output = fleet.rig.home.output(&["streams", "resume", "cases", "--admin", &url])?;
    ensure!(output.status.success(), "{output:?}");
    Ok(String::from_utf8(output.stdout)?)
}

#[test]
fn sequenced_stream_of_a_rebuilt_virtual_host_continues() -> Result<()> {
    let mut scenario = Scenario::start("")?;
    let Scenario { fleet, hosts, .. } = &mut scenario;
    rebuild(fleet, hosts)?;
    for host in &mut *hosts {
        ready(&mut host.service)?;
        host.service.until_says("the events of the old queue are lost")?;
    }
    until_all_bound(fleet, hosts)?;
    fleet.until_shared(&[&hosts[0], &hosts[1]])?;
    scenario.finish()
}

/// Each partition of a `fifo` stream stops, in the host that owns the partition. One command resumes all partitions.
#[test]
fn fifo_stream_of_a_rebuilt_virtual_host_stops_and_resumes() -> Result<()> {
    let mut scenario = Scenario::start(FIFO)?;
    let Scenario { fleet, hosts, .. } = &mut scenario;
    rebuild(fleet, hosts)?;
    for host in &mut *hosts {
        host.service.until_says("stream stopped: the queue \"cases.")?;
        until_unready(host, "stopped until an operator resumes it")?;
    }
    // A partition may stop later than the other partitions of its owner.
    let mut resumed = String::new();
    wait_for_command("the end of all stops", || {
        resumed += &resume(fleet, &mut hosts[0])?;
        Ok((0..PARTITIONS).all(|number| resumed.contains(&format!("partition {number} resumed"))))
    })?;
    for host in &mut *hosts {
        ready(&mut host.service)?;
    }
    until_all_bound(fleet, hosts)?;
    scenario.finish()
}

/// An operator removes the exchange, and both hosts connect again. The owner of partition 0 declares the exchange. The
/// consumers of the other partitions detect the missing exchange at the same time. These consumers must bind their
/// queues when the exchange exists, and must report no wrong topology.
#[test]
fn removed_exchange_is_declared_again_without_an_error() -> Result<()> {
    let mut scenario = Scenario::start("")?;
    let Scenario { fleet, hosts, .. } = &mut scenario;
    fleet.rig.client.delete_exchange("cases")?;
    fleet.rig.rabbit.close_connections()?;
    // If the exchange disappears between the two steps of a host's check, only the missing marker shows the removal.
    let words =
        ["exchange missing: declared again by Ordain", "exchange removed and declared again"];
    wait_until("a host that reports the removed exchange", || {
        let reports = |host: &Host| {
            let log = host.service.stderr();
            words.iter().any(|text| log.contains(text))
        };
        Ok(hosts.iter().any(reports))
    })
    .with_context(|| hosts.each_ref().map(|host| host.service.stderr()).join("\n"))?;
    until_all_bound(fleet, hosts)?;
    fleet.rig.reconnect()?;
    for host in hosts {
        ready(&mut host.service)?;
    }
    scenario.finish()
}

/// Another program deletes the queue of one partition, and declares a classic queue with the same name. Only the owner
/// of the partition reports the loss. A `fifo` stream stops in this partition only.
#[test]
fn replaced_queue_concerns_only_the_owner_of_its_partition() -> Result<()> {
    for stream in ["", FIFO] {
        let mut scenario = Scenario::start(stream)?;
        let Scenario { fleet, hosts, .. } = &mut scenario;
        let owners = fleet.owners()?;
        let is_owner = |host: &Host| {
            owners.get(&host.service.id()).is_some_and(|partitions| partitions.contains(&0))
        };
        if !is_owner(&hosts[0]) {
            hosts.swap(0, 1);
        }
        let [owner, other] = hosts;
        // Otherwise, the owner could declare the queue before the other program does.
        owner.service.pause()?;
        fleet.rig.client.delete_queue("cases.0")?;
        fleet.rig.client.queue_with("cases.0", FieldTable::default())?;
        owner.service.resume()?;
        owner.service.until_says("topology not as configured: the queue \"cases.0\"")?;
        if stream == FIFO {
            owner.service.until_says("stream stopped: the queue \"cases.0\" was removed")?;
            until_unready(owner, "stopped until an operator resumes it")?;
            ready(&mut other.service)?;
            let resumed = resume(fleet, other)?;
            ensure!(resumed.matches(" resumed").count() == 1, "{resumed}");
        } else {
            owner.service.until_says("the events of the old queue are lost")?;
        }
        ready(&mut owner.service)?;
        // The owner has restored the binding of the queue, and reports no failure.
        let log = owner.service.stderr();
        ensure!(!log.contains("topology of the stopped stream not restored"), "{log}");
        fleet.rig.until_bound("cases", &["cases.0"])?;
        scenario.finish()?;
        let [_, other] = &scenario.hosts;
        for words in ["the events of the old queue are lost", "stream stopped"] {
            ensure!(!other.service.stderr().contains(words), "{}", other.service.stderr());
        }
    }
    Ok(())
}
