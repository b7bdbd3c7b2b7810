//! A round in which the servers repeatedly lose their newest writes, while events arrive on one of several routes.
//!
//! Each event that was accepted while the servers could not lose writes (a safe event) must take effect once, and in
//! the order of its key. An event that was accepted while the servers could lose writes may have no effect. If an event
//! that arrived over HTTP is lost, the hosts count the event, and report it in a record in their logs. With a
//! `sequenced` stream, the later events of the key then wait in the store. The test sends all events again at the end
//! of the round, as their producer would, and then all of them must have taken effect.
//!
//! `ordain publish` publishes lost events again: a run from its memory, and the next run by reading the file again. On
//! its two routes, the hosts and the runs of `ordain publish` must therefore report no lost event. The only exception
//! is a file that is too large for the memory of a run. At the end, each event of the file must have exactly one effect
//! in the store.
//!
//! On all other routes, the test compares the reports of all processes of all hosts with the events of each shard
//! (`losses.rs`):
//!
//! - The hosts must report each event that has no effect and does not wait. This rule does not apply to events that
//!   were sent before the last end of a host, because the process that accepted such an event may have ended.
//! - The hosts must not report more events than the servers could lose. The time in each report must be the time of
//!   such an event.
//! - If there is one host, it must not report an event that has an effect or waits. If this host never ends, its
//!   reports are therefore exact.
//! - If there are several hosts, a host may report an event that another host had read before the loss. But in
//!   `split.rs`, and in some of the other rounds with several hosts, no partition can move to another host. In these
//!   rounds, a host must not report such an event of a partition that it reads itself.
//! - The inbox with a `sequenced` stream is an exception: a host may report an event as lost, and then fetch it by
//!   replay.
//! - With a `sequenced` stream, each safe event must have an effect or wait before the test sends the events again.
//!   This rule applies even if hosts end.
//! - The counter of lost events of each host must equal the number of lost events in the records of this host. The
//!   metrics of the host must show each shard that these records name.
//! - If no host can end, the newest message of each key must show that no event took effect twice. With a chain, this
//!   is a message of the second stream.

use std::sync::atomic::Ordering;

use anyhow::{Context as _, Result};
use ordain_servers::Takeover;
use ordain_tests::lossy::LossyServers;
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

use super::events::{Producer, RunningProducer, SentEvents, while_producing};
use super::receiver::explain;
use super::round_hosts::{RoundHosts, Setup, pause};
use super::routes::Route;

/// A lease that is longer than the longest time for which a host can be without its store in a round.
const LONG_LEASE: &str = "30s";

struct Round {
    hosts: RoundHosts,
    servers: LossyServers,
    losses: usize,
    /// The number of accepted events that had no effect yet when the servers lost writes for the first time.
    waiting: Option<usize>,
}

pub(crate) fn play(servers: LossyServers, random: &mut ChaCha8Rng) -> Result<String> {
    let hosts = if random.random() { 1 } else { random.random_range(2..=4) };
    let is_killed = random.random_bool(0.3);
    let setup = Setup::draw(hosts, is_killed, random);
    let losses = random.random_range(1..4);
    // With a long lease, no partition moves to another host, so the reports of the reader of a partition are exact. If
    // the test kills hosts, a long lease would only delay the round.
    let lease = (setup.hosts > 1 && !is_killed && random.random()).then_some(LONG_LEASE);
    let (hosts, producer) = RoundHosts::start(setup, &servers.url(), lease)?;
    let mut round = Round { hosts, servers, losses, waiting: None };
    let seed = random.random();
    let mut sent = SentEvents::new();
    let played = while_producing(&producer, &mut sent, seed, |producing| {
        round.disturb(&producer, producing, random)
    });
    let counted = played.and_then(|()| round.hosts.check(&producer.target, &sent));
    let Round { hosts: RoundHosts { fleet, .. }, waiting, .. } = &mut round;
    let counts = counted.with_context(|| explain(&(setup, lease, losses), &fleet.hosts))?;
    fleet.hosts.iter_mut().try_for_each(|host| host.service.end())?;
    let ends = if fleet.has_ended() { "" } else { "no " };
    let waiting = waiting.unwrap_or_default();
    Ok(format!(
        "{counts}; {setup:?}, lease {lease:?}; {losses} losses, {waiting} events waited at the first loss; \
         {ends}host ended"
    ))
}

impl Round {
    fn disturb(
        &mut self,
        producer: &Producer,
        producing: &RunningProducer<'_>,
        random: &mut ChaCha8Rng,
    ) -> Result<()> {
        for _ in 0..self.losses {
            pause(random, 1_500);
            self.begin_loss(producer, producing, random)?;
            pause(random, 4_000);
            if self.waiting.is_none() {
                self.waiting = Some(self.hosts.waiting(producer)?);
            }
            let RoundHosts { setup, fleet, .. } = &mut self.hosts;
            let victims = if setup.is_killed { fleet.draw(random) } else { Vec::new() };
            // After a loss, a host publishes messages to the second stream again. If the host ends before the store has
            // recorded these messages as published, they may get other numbers (docs/guide/chains.md). So with numbered
            // messages, the test does not kill hosts after the loss.
            let is_late = random.random() && setup.route != Route::Chain { is_numbered: true };
            if !is_late {
                fleet.kill(&victims)?;
            }
            self.servers.lose(|| {
                let is_forced = random.random();
                if is_forced { Takeover::Force } else { Takeover::Takeover }
            })?;
            producer.phase.fetch_add(1, Ordering::SeqCst);
            if is_late {
                pause(random, 300);
                fleet.kill(&victims)?;
            }
            pause(random, 1_000);
            fleet.restart(&victims)?;
        }
        pause(random, 1_000);
        self.hosts.fleet.until_ready()
    }

    fn begin_loss(
        &mut self,
        producer: &Producer,
        producing: &RunningProducer<'_>,
        random: &mut ChaCha8Rng,
    ) -> Result<()> {
        let _gate = self.hosts.before_loss(producer, producing)?;
        producer.phase.fetch_add(1, Ordering::SeqCst);
        self.servers.begin(|| random.random_bool(0.6))
    }
}
