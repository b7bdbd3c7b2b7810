//! The common parts of the rounds in which a store loses its last writes: the hosts, the way of the events, and the
//! demands on the events.

use std::collections::BTreeMap;
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
use super::events::{Accepted, Producer, Sent};
use super::fleet::Fleet;
use super::outlet::Outlet;
use super::receiver::{Backlog, Kind, Receiver, redis};
use super::ways::Way;

/// Settings of a `sequenced` stream with which a key with a missing event soon holds the later events in the store.
const SHORT_GAPS: &str =
    "spill_after = \"1s\"\ngap = { timeout = \"500ms\", attempts = 2, backoff = \"20ms..100ms\" }";

/// The settings of a stage.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) way: Way,
    pub(crate) is_fifo: bool,
    pub(crate) backlog: Backlog,
    /// True if hosts are killed around each loss.
    pub(crate) is_killed: bool,
    pub(crate) hosts: usize,
}

impl Setup {
    /// Draws the settings of a stage with this number of hosts.
    pub(crate) fn draw(hosts: usize, is_killed: bool, random: &mut ChaCha8Rng) -> Self {
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
        Self { way, is_fifo, backlog: Backlog::draw(random), is_killed, hosts }
    }

    /// Returns whether hosts may end during the round. One of several hosts ends if it takes a partition over and the
    /// store then loses its claim (docs/guide/redis.md).
    fn may_end(&self) -> bool {
        self.is_killed || self.hosts > 1
    }

    fn demands(&self) -> Demands {
        Demands { wants_all: !self.is_fifo, way: self.way, ..Demands::default() }
    }
}

/// The hosts of a round.
pub(crate) struct Stage {
    pub(crate) setup: Setup,
    pub(crate) fleet: Fleet,
    /// The broker, if the events pass through one.
    _rig: Option<Arc<Rig>>,
}

/// Waits for a random time between 100 and `most` milliseconds.
pub(crate) fn pause(random: &mut ChaCha8Rng, most: u64) {
    sleep(Duration::from_millis(random.random_range(100..most)));
}

/// Returns the events that were accepted while the servers might lose them.
fn unsafe_events(sent: &Sent) -> Sent {
    let of_key = |(key, events): (&String, &Vec<Accepted>)| {
        let events = events.iter().filter(|event| !event.is_safe).copied();
        (key.clone(), events.collect())
    };
    sent.iter().map(of_key).collect()
}

impl Stage {
    /// Starts hosts over the store at this URL, and creates the producer for their events. Without a lease, the hosts
    /// have the lease of [`Kind::default`].
    pub(crate) fn start(
        setup: Setup,
        url: &str,
        lease: Option<&'static str>,
    ) -> Result<(Self, Producer)> {
        let Setup { way, is_fifo, backlog, .. } = setup;
        let rig = if way.uses_broker() { Some(Arc::new(Rig::new()?)) } else { None };
        let kind = Kind {
            way,
            is_fifo,
            backlog,
            store: redis(url),
            broker: rig.as_ref().map(|rig| rig.rabbit.url()),
            stream: if is_fifo { String::new() } else { SHORT_GAPS.to_owned() },
            lease,
            ..Kind::default()
        };
        let fleet = Fleet::start(&kind, setup.hosts)?;
        if let Some(rig) = &rig {
            rig.until_declared()?;
        }
        let outlet = Outlet::new(&kind, rig.as_ref(), &fleet.hosts)?;
        let producer = Producer { outlet, way, backlog, ..Producer::default() };
        Ok((Self { setup, fleet, _rig: rig }, producer))
    }

    /// Prepares the beginning of a time whose writes the servers may lose. With some ways, the producer waits as long
    /// as the returned guard exists.
    pub(crate) fn before_loss<'a>(
        &mut self,
        producer: &Producer,
        sent: &'a Mutex<Sent>,
    ) -> Result<Option<MutexGuard<'a, Sent>>> {
        // A host that is not ready may write its claim later, and ends if the store loses the claim.
        self.fleet.until_ready()?;
        let Setup { way, .. } = self.setup;
        if !way.uses_broker() && !way.is_file() {
            return Ok(None);
        }
        let gate = self.stop_producer(sent)?;
        if way.uses_broker() && self.setup.may_end() {
            // The broker has no event again that a host has acknowledged. If the store loses the effects of such events
            // and the host ends, the events are lost. So all events up to now must take effect before the loss begins.
            self.settle(&producer.outlet, &unsafe_events(&gate), &gate)?;
        }
        Ok(Some(gate))
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

    /// Returns how many accepted events are without an effect until now.
    pub(crate) fn waiting(&self, producer: &Producer) -> Result<usize> {
        let outputs: Vec<String> = self.fleet.hosts.iter().map(Receiver::output).collect();
        let effects = effects(outputs.iter().map(String::as_str))?;
        let done: usize = effects.values().flat_map(BTreeMap::values).map(Vec::len).sum();
        Ok(producer.accepted().saturating_sub(done))
    }

    /// Sends events of a `sequenced` stream again, and waits until every event that must take effect has done so.
    fn settle(&mut self, outlet: &Outlet, again: &Sent, sent: &Sent) -> Result<()> {
        if !self.setup.is_fifo {
            outlet.send_again(self.setup.way, again)?;
        }
        let demands = self.setup.demands();
        let mut last = None;
        let arrived = wait_until("effects of all safe events", || {
            self.fleet.restart_ended()?;
            last = Some(taken(&self.fleet.hosts, sent, demands));
            Ok(matches!(last, Some(Ok(_))))
        });
        arrived.with_context(|| format!("{last:?}"))
    }

    /// Waits until every accepted event has taken effect or is lost. Returns the counts.
    pub(crate) fn check(&mut self, outlet: &Outlet, sent: &Sent) -> Result<Counts> {
        let Setup { way, is_fifo, .. } = self.setup;
        if !is_fifo && !way.is_file() && !self.setup.may_end() {
            self.until_explained(sent)?;
            sleep(SETTLE_TIME);
            self.until_explained(sent)?;
        }
        self.settle(outlet, sent, sent)?;
        let counts = Counts::of(sent, self.until_quiet(sent)?);
        if is_fifo {
            self.check_lost(counts.lost)?;
        }
        Ok(counts)
    }

    /// Waits until no more events take effect, because waiting events must not count as lost. Returns how many events
    /// took effect.
    fn until_quiet(&mut self, sent: &Sent) -> Result<usize> {
        let mut before = None;
        loop {
            let count = taken(&self.fleet.hosts, sent, self.setup.demands())?;
            if before.replace(count) == Some(count) {
                return Ok(count);
            }
            sleep(SETTLE_TIME);
            self.fleet.restart_ended()?;
        }
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
            Ok(all == accepted || self.setup.way == Way::Inbox && all > accepted)
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
