//! A round in which the servers lose their last seconds repeatedly, while events arrive on one of several ways.
//!
//! Each event that was accepted while no writes were lost must take effect once, and in the order of its key. Other
//! accepted events may be without effect. With a `fifo` stream and one host that does not end, the host must have
//! counted exactly these events as lost. Several hosts that do not end may have counted more. The events of a
//! `sequenced` stream are sent once more at the end, as their producer would, and then all must have taken effect.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ordain_servers::wait_for_command;
use ordain_tests::rig::Rig;
use ordain_tests::service::wait_until;
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

use super::effects::{Counts, Demands, SETTLE_TIME, effects, taken};
use super::events::{Accepted, Producer, Producing, Sent, while_producing};
use super::fleet::Fleet;
use super::lossy::Servers;
use super::outlet::Outlet;
use super::receiver::{Kind, Receiver, explain, redis};
use super::ways::Way;

/// Settings of a `sequenced` stream with which a key with a missing event soon holds the later events in the store.
const SHORT_GAPS: &str =
    "spill_after = \"1s\"\ngap = { timeout = \"500ms\", attempts = 2, backoff = \"20ms..100ms\" }";

/// The settings of a round.
#[derive(Debug, Clone, Copy)]
struct Settings {
    way: Way,
    is_fifo: bool,
    /// True if the host is slow and the producer sends at a high rate until a loss, so that many events wait in the
    /// store.
    has_backlog: bool,
    /// True if hosts are killed around each loss.
    is_killed: bool,
    hosts: usize,
    losses: usize,
}

impl Settings {
    fn draw(random: &mut ChaCha8Rng) -> Self {
        let hosts = if random.random() { 1 } else { random.random_range(2..=4) };
        let is_killed = random.random_bool(0.3);
        let mut way = Way::draw(random);
        // The store numbers the lines of a file. RabbitMQ may change the order of events that several hosts return, and
        // only a `sequenced` stream restores the order.
        let may_be_fifo = !way.is_file() && (hosts == 1 || !way.uses_broker());
        let is_fifo = random.random_bool(0.7) && may_be_fifo;
        if let Way::Chain { is_numbered } = &mut way {
            // If a host ends, the store may number the events of a `fifo` stream anew, and their messages too
            // (docs/guide/chains.md).
            *is_numbered &= !is_fifo || hosts == 1 && !is_killed;
        }
        let has_backlog = random.random_bool(0.4);
        Self { way, is_fifo, has_backlog, is_killed, hosts, losses: random.random_range(1..4) }
    }

    /// Returns whether hosts may end during the round. One of several hosts ends if it takes a partition over and the
    /// store then loses its claim (docs/guide/redis.md).
    fn may_end(&self) -> bool {
        self.is_killed || self.hosts > 1
    }
}

struct Round {
    settings: Settings,
    fleet: Fleet,
    servers: Servers,
}

/// Plays a round.
pub(crate) fn play(servers: Servers, random: &mut ChaCha8Rng) -> Result<String> {
    let settings = Settings::draw(random);
    let way = settings.way;
    let rig = if way.uses_broker() { Some(Arc::new(Rig::new()?)) } else { None };
    let kind = Kind {
        way,
        is_fifo: settings.is_fifo,
        has_backlog: settings.has_backlog,
        store: redis(&servers.url()),
        broker: rig.as_ref().map(|rig| rig.rabbit.url()),
        stream: if settings.is_fifo { String::new() } else { SHORT_GAPS.to_owned() },
        ..Kind::default()
    };
    let fleet = Fleet::start(&kind, settings.hosts)?;
    let mut round = Round { settings, fleet, servers };
    if let Some(rig) = &rig {
        rig.until_declared()?;
    }
    let outlet = match &rig {
        _ if way.is_file() => Outlet::file(&kind.config(0))?,
        Some(rig) if way == Way::Exchange => Outlet::Exchange(Arc::clone(rig)),
        _ => Outlet::Hosts(round.fleet.hosts.iter().map(|host| host.address).collect()),
    };
    let has_bursts = settings.has_backlog;
    let producer = Producer { outlet, way, has_bursts, ..Producer::default() };
    let seed = random.random();
    let mut sent = Sent::new();
    let played = while_producing(&producer, &mut sent, seed, |producing| {
        round.disturb(&producer, producing, random)
    });
    let counted = played.and_then(|()| round.check(&producer.outlet, &sent));
    let counts = counted.with_context(|| explain(&settings, &round.fleet.hosts))?;
    round.fleet.hosts.iter_mut().try_for_each(|host| host.service.end())?;
    let ends = if round.fleet.has_ended { "" } else { "no " };
    Ok(format!("{counts}; {settings:?}; {ends}host ended"))
}

/// Returns the events that were accepted while the servers might lose them.
fn unsafe_events(sent: &Sent) -> Sent {
    let of_key = |(key, events): (&String, &Vec<Accepted>)| {
        let events = events.iter().filter(|event| !event.is_safe).copied();
        (key.clone(), events.collect())
    };
    sent.iter().map(of_key).collect()
}

fn pause(random: &mut ChaCha8Rng, most: u64) {
    sleep(Duration::from_millis(random.random_range(100..most)));
}

impl Round {
    /// Makes the servers lose writes repeatedly.
    fn disturb(
        &mut self,
        producer: &Producer,
        producing: &Producing<'_>,
        random: &mut ChaCha8Rng,
    ) -> Result<()> {
        for _ in 0..self.settings.losses {
            pause(random, 1_500);
            self.begin_loss(producer, producing, random)?;
            pause(random, 2_000);
            let victims =
                if self.settings.is_killed { self.fleet.draw(random) } else { Vec::new() };
            // If a host ends before it has marked repeated messages as published, they may get second numbers
            // (docs/guide/chains.md).
            let is_late = random.random() && self.settings.way != Way::Chain { is_numbered: true };
            if !is_late {
                self.fleet.kill(&victims)?;
            }
            self.servers.lose(random)?;
            producer.phase.fetch_add(1, Ordering::SeqCst);
            if is_late {
                pause(random, 300);
                self.fleet.kill(&victims)?;
            }
            pause(random, 1_000);
            self.fleet.restart(&victims)?;
        }
        pause(random, 1_000);
        self.fleet.until_ready()
    }

    /// Begins a time whose writes the servers may lose.
    fn begin_loss(
        &mut self,
        producer: &Producer,
        producing: &Producing<'_>,
        random: &mut ChaCha8Rng,
    ) -> Result<()> {
        // A host that is not ready may write its claim later, and ends if the store loses the claim.
        self.fleet.until_ready()?;
        let Settings { way, .. } = self.settings;
        let gate = if way.uses_broker() || way.is_file() {
            Some(self.stop_producer(producing.sent)?)
        } else {
            None
        };
        if let Some(sent) = &gate
            && way.uses_broker()
            && self.settings.may_end()
        {
            // The broker has no event again that a host has acknowledged. If the store loses the effects of such events
            // and the host ends, the events are lost. So all events up to now must take effect before the loss begins.
            self.settle(&producer.outlet, &unsafe_events(sent), sent)?;
        }
        producer.phase.fetch_add(1, Ordering::SeqCst);
        self.servers.begin(random)
    }

    /// Waits until the producer is between two batches. The producer waits as long as the guard exists.
    fn stop_producer<'a>(&mut self, sent: &'a Mutex<Sent>) -> Result<MutexGuard<'a, Sent>> {
        let mut guard = None;
        wait_until("the end of a batch", || {
            self.fleet.restart_ended()?;
            guard = sent.try_lock().ok();
            Ok(guard.is_some())
        })?;
        guard.context("the producer holds the lock")
    }

    fn demands(&self) -> Demands {
        let Settings { way, is_fifo, .. } = self.settings;
        Demands { wants_all: !is_fifo, way, ..Demands::default() }
    }

    /// Sends events of a `sequenced` stream again, and waits until every event that must take effect has done so.
    fn settle(&mut self, outlet: &Outlet, again: &Sent, sent: &Sent) -> Result<()> {
        if !self.settings.is_fifo {
            outlet.send_again(self.settings.way, again)?;
        }
        let demands = self.demands();
        let mut last = None;
        let arrived = wait_until("effects of all safe events", || {
            self.fleet.restart_ended()?;
            last = Some(taken(&self.fleet.hosts, sent, demands));
            Ok(matches!(last, Some(Ok(_))))
        });
        arrived.with_context(|| format!("{last:?}"))
    }

    /// Waits until every accepted event has taken effect or is lost. Returns the counts.
    fn check(&mut self, outlet: &Outlet, sent: &Sent) -> Result<Counts> {
        let Settings { way, is_fifo, .. } = self.settings;
        if !is_fifo && !way.is_file() && !self.settings.may_end() {
            self.until_explained(sent)?;
            sleep(SETTLE_TIME);
            self.until_explained(sent)?;
        }
        self.settle(outlet, sent, sent)?;
        sleep(SETTLE_TIME);
        self.fleet.restart_ended()?;
        let counts = Counts::of(sent, taken(&self.fleet.hosts, sent, self.demands())?);
        if is_fifo {
            self.check_lost(counts.lost)?;
        }
        Ok(counts)
    }

    /// Waits until each accepted event of a `sequenced` stream has taken effect, is counted as lost, or is held behind a
    /// lost one.
    fn until_explained(&mut self, sent: &Sent) -> Result<()> {
        let accepted = sent.values().map(Vec::len).sum::<usize>() as u64;
        let mut balance = String::new();
        let explained = wait_for_command("events with an effect, lost or held", || {
            let outputs: Vec<String> = self.fleet.hosts.iter().map(Receiver::output).collect();
            let effects = effects(outputs.iter().map(String::as_str))?;
            // No host ends, so the store has each effect that was published.
            let counts = effects.values().filter_map(|of_key| of_key.keys().next_back());
            let taken: u64 = counts.sum();
            let lost = self.fleet.counted()?;
            let listed = ["keys", "list", "cases", "--json", "--limit", "1000000"];
            let rows = self.fleet.hosts[0].home.rows(&listed)?;
            let held: u64 = rows.iter().filter_map(|row| row["held"]["count"].as_u64()).sum();
            balance = format!("{accepted} accepted, {taken} with effect, {lost} lost, {held} held");
            let all = taken + lost + held;
            // Replay may find an event whose entry in the inbox is lost and counted.
            Ok(all == accepted || self.settings.way == Way::Inbox && all > accepted)
        });
        explained.context(balance)
    }

    /// Compares the number of lost events with the hosts' counters and with the records in their logs.
    fn check_lost(&mut self, lost: usize) -> Result<()> {
        let counted = self.fleet.counted_and_logged()?;
        // A host that has ended has forgotten what it counted, and which events it accepted. Several hosts may also count
        // events that another host had read before the store lost them.
        let is_right = match (self.fleet.has_ended, self.fleet.hosts.len()) {
            (false, 1) => counted == lost as u64,
            (false, _) => counted >= lost as u64,
            (true, 1) => counted <= lost as u64,
            (true, _) => true,
        };
        ensure!(is_right, "{lost} events are lost, but the hosts counted {counted}");
        Ok(())
    }
}
