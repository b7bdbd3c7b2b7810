//! A round in which the servers lose their last seconds repeatedly, while events arrive on one of several ways.
//!
//! Each event that was accepted while no writes were lost must take effect once, and in the order of its key. Other
//! accepted events may be without effect. With a `fifo` stream and one host that does not end, the host must have
//! counted exactly these events as lost. Several hosts that do not end may have counted more. The events of a
//! `sequenced` stream are sent once more at the end, as their producer would, and then all must have taken effect.

use std::sync::atomic::Ordering;

use anyhow::{Context as _, Result};
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

use super::events::{Producer, Producing, Sent, while_producing};
use super::lossy::Servers;
use super::receiver::explain;
use super::stage::{Setup, Stage, pause};
use super::ways::Way;

struct Round {
    stage: Stage,
    servers: Servers,
    losses: usize,
    /// The number of accepted events without an effect at the first loss.
    waiting: Option<usize>,
}

/// Plays a round.
pub(crate) fn play(servers: Servers, random: &mut ChaCha8Rng) -> Result<String> {
    let hosts = if random.random() { 1 } else { random.random_range(2..=4) };
    let is_killed = random.random_bool(0.3);
    let setup = Setup::draw(hosts, is_killed, random);
    let losses = random.random_range(1..4);
    let (stage, producer) = Stage::start(setup, &servers.url(), None)?;
    let mut round = Round { stage, servers, losses, waiting: None };
    let seed = random.random();
    let mut sent = Sent::new();
    let played = while_producing(&producer, &mut sent, seed, |producing| {
        round.disturb(&producer, producing, random)
    });
    let counted = played.and_then(|()| round.stage.check(&producer.outlet, &sent));
    let Round { stage: Stage { fleet, .. }, waiting, .. } = &mut round;
    let counts = counted.with_context(|| explain(&(setup, losses), &fleet.hosts))?;
    fleet.hosts.iter_mut().try_for_each(|host| host.service.end())?;
    let ends = if fleet.has_ended { "" } else { "no " };
    let waiting = waiting.unwrap_or_default();
    Ok(format!(
        "{counts}; {setup:?}; {losses} losses, {waiting} events waited at the first; {ends}host ended"
    ))
}

impl Round {
    /// Makes the servers lose writes repeatedly.
    fn disturb(
        &mut self,
        producer: &Producer,
        producing: &Producing<'_>,
        random: &mut ChaCha8Rng,
    ) -> Result<()> {
        for _ in 0..self.losses {
            pause(random, 1_500);
            self.begin_loss(producer, producing, random)?;
            pause(random, 2_000);
            if self.waiting.is_none() {
                self.waiting = Some(self.stage.waiting(producer)?);
            }
            let Stage { setup, fleet, .. } = &mut self.stage;
            let victims = if setup.is_killed { fleet.draw(random) } else { Vec::new() };
            // If a host ends before it has marked repeated messages as published, they may get second numbers
            // (docs/guide/chains.md).
            let is_late = random.random() && setup.way != Way::Chain { is_numbered: true };
            if !is_late {
                fleet.kill(&victims)?;
            }
            self.servers.lose(random)?;
            producer.phase.fetch_add(1, Ordering::SeqCst);
            if is_late {
                pause(random, 300);
                fleet.kill(&victims)?;
            }
            pause(random, 1_000);
            fleet.restart(&victims)?;
        }
        pause(random, 1_000);
        self.stage.fleet.until_ready()
    }

    /// Begins a time whose writes the servers may lose.
    fn begin_loss(
        &mut self,
        producer: &Producer,
        producing: &Producing<'_>,
        random: &mut ChaCha8Rng,
    ) -> Result<()> {
        let _gate = self.stage.before_loss(producer, producing.sent)?;
        producer.phase.fetch_add(1, Ordering::SeqCst);
        self.servers.begin(random)
    }
}
