//! The common parts of the rounds in which a store loses its last writes: the hosts, the route on which events reach
//! them, and the requirements on the events.

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
use super::event_target::EventTarget;
use super::events::{AcceptedEvent, Producer, SentEvents};
use super::fleet::Fleet;
use super::receiver::{Backlog, Kind, Receiver, redis};
use super::routes::Route;

/// Settings of a `sequenced` stream with a short gap timeout. When the timeout is over, the store soon holds the later
/// events of the key.
const SHORT_GAPS: &str =
    "spill_after = \"1s\"\ngap = { timeout = \"500ms\", attempts = 2, backoff = \"20ms..100ms\" }";

/// The settings of the hosts of a round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) route: Route,
    pub(crate) is_fifo: bool,
    pub(crate) backlog: Backlog,
    /// True if the test kills hosts shortly before or after each loss of writes.
    pub(crate) is_killed: bool,
    pub(crate) hosts: usize,
}

impl Setup {
    /// Draws the settings of a round with this number of hosts.
    pub(crate) fn draw(hosts: usize, is_killed: bool, random: &mut ChaCha8Rng) -> Self {
        let mut route = Route::draw(random);
        // Two kinds of rounds need a `sequenced` stream. The events of a file get their numbers from the store. And
        // RabbitMQ may change the order of unacknowledged events that several hosts return to it; only a `sequenced`
        // stream restores the order.
        let may_be_fifo = !route.is_file() && (hosts == 1 || !route.uses_broker());
        let is_fifo = random.random_bool(0.7) && may_be_fifo;
        if let Route::Chain { is_numbered } = &mut route {
            // If a host ends, the events of a `fifo` stream may get new numbers, and then their messages may get new
            // numbers as well (docs/guide/chains.md).
            *is_numbered &= !is_fifo || hosts == 1 && !is_killed;
        }
        Self { route, is_fifo, backlog: Backlog::draw(random), is_killed, hosts }
    }

    /// Returns whether hosts may end during the round. With several hosts, a host ends if it takes over a partition and
    /// the store then loses the host's new claim (docs/guide/redis.md).
    fn may_end(&self) -> bool {
        self.is_killed || self.hosts > 1
    }

    fn demands(&self) -> Demands {
        Demands { wants_all: !self.is_fifo, route: self.route, ..Demands::default() }
    }
}

/// The hosts of a round.
pub(crate) struct RoundHosts {
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
fn unsafe_events(sent: &SentEvents) -> SentEvents {
    let of_key = |(key, events): (&String, &Vec<AcceptedEvent>)| {
        let events = events.iter().filter(|event| !event.is_safe).copied();
        (key.clone(), events.collect())
    };
    sent.iter().map(of_key).collect()
}

impl RoundHosts {
    /// Starts hosts that use the store at `url`, and creates the producer of their events. If `lease` is `None`, the
    /// hosts have the lease of [`Kind::default`].
    pub(crate) fn start(
        setup: Setup,
        url: &str,
        lease: Option<&'static str>,
    ) -> Result<(Self, Producer)> {
        let Setup { route, is_fifo, backlog, .. } = setup;
        let rig = if route.uses_broker() { Some(Arc::new(Rig::new()?)) } else { None };
        let kind = Kind {
            route,
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
        let target = EventTarget::new(&kind, rig.as_ref(), &fleet.hosts)?;
        let producer = Producer { target, route, backlog, ..Producer::default() };
        Ok((Self { setup, fleet, _rig: rig }, producer))
    }

    /// Prepares a period whose writes the servers may lose. If this method returns a guard, the producer waits as long
    /// as the guard exists.
    pub(crate) fn before_loss<'a>(
        &mut self,
        producer: &Producer,
        sent: &'a Mutex<SentEvents>,
    ) -> Result<Option<MutexGuard<'a, SentEvents>>> {
        // A host that is not ready yet could write its claim in this period. The host would end if the store lost the
        // claim.
        self.fleet.until_ready()?;
        let Setup { route, .. } = self.setup;
        if !route.uses_broker() && !route.is_file() {
            return Ok(None);
        }
        let gate = self.stop_producer(sent)?;
        if route.uses_broker() && self.setup.may_end() {
            // The broker does not deliver an acknowledged event again. If the store loses the effects of acknowledged
            // events and the host ends, the events are lost. The test expects an effect of every event from before the
            // loss, so it waits here until all these events have taken effect.
            self.settle(&producer.target, &unsafe_events(&gate), &gate)?;
        }
        Ok(Some(gate))
    }

    /// Waits until the producer is between two batches. The producer sends the next batch when the returned guard is
    /// dropped.
    fn stop_producer<'a>(
        &mut self,
        sent: &'a Mutex<SentEvents>,
    ) -> Result<MutexGuard<'a, SentEvents>> {
        let mut guard = None;
        wait_until("the end of a batch", || {
            self.fleet.restart_ended()?;
            guard = sent.try_lock().ok();
            Ok(guard.is_some())
        })?;
        guard.context("the producer holds the lock")
    }

    /// Returns how many accepted events have had no effect yet.
    pub(crate) fn waiting(&self, producer: &Producer) -> Result<usize> {
        let outputs: Vec<String> = self.fleet.hosts.iter().map(Receiver::output).collect();
        let effects = effects(outputs.iter().map(String::as_str))?;
        let done: usize = effects.values().flat_map(BTreeMap::values).map(Vec::len).sum();
        Ok(producer.accepted().saturating_sub(done))
    }

    /// If the stream is `sequenced`, sends the events `again` once more. Then waits until every event of `sent` that
    /// must take effect has taken effect.
    fn settle(
        &mut self,
        target: &EventTarget,
        again: &SentEvents,
        sent: &SentEvents,
    ) -> Result<()> {
        if !self.setup.is_fifo {
            target.send_again(self.setup.route, again)?;
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
    pub(crate) fn check(&mut self, target: &EventTarget, sent: &SentEvents) -> Result<Counts> {
        let Setup { route, is_fifo, .. } = self.setup;
        if !is_fifo && !route.is_file() && !self.setup.may_end() {
            self.until_explained(sent)?;
            sleep(SETTLE_TIME);
            self.until_explained(sent)?;
        }
        self.settle(target, sent, sent)?;
        let counts = Counts::of(sent, self.until_quiet(sent)?);
        if is_fifo {
            self.check_lost(counts.lost)?;
        }
        Ok(counts)
    }

    /// Waits until no more events take effect, because an event that still waits must not count as lost. Returns how
    /// many events took effect.
    fn until_quiet(&mut self, sent: &SentEvents) -> Result<usize> {
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

    /// Waits until each accepted event of a `sequenced` stream has taken effect, is counted as lost, or is held in the
    /// store because an earlier event of its key is missing.
    fn until_explained(&mut self, sent: &SentEvents) -> Result<()> {
        let accepted = sent.values().map(Vec::len).sum::<usize>() as u64;
        let mut balance = String::new();
        let explained = wait_for_command("events with an effect, lost or held", || {
            let outputs: Vec<String> = self.fleet.hosts.iter().map(Receiver::output).collect();
            let effects = effects(outputs.iter().map(String::as_str))?;
            // No host ends in this round, so the store has every effect whose message was published. The highest count
            // in the messages of a key is therefore the number of the key's effects.
            let counts = effects.values().filter_map(|of_key| of_key.keys().next_back());
            let taken: u64 = counts.sum();
            let lost = self.fleet.counted()?;
            let listed = ["keys", "list", "cases", "--json", "--limit", "1000000"];
            let rows = self.fleet.hosts[0].home.rows(&listed)?;
            let held: u64 = rows.iter().filter_map(|row| row["held"]["count"].as_u64()).sum();
            balance = format!("{accepted} accepted, {taken} with effect, {lost} lost, {held} held");
            let all = taken + lost + held;
            // With the inbox, a host may count an event as lost because the store lost its entry in the inbox, and then
            // fetch the same event by replay. The sum then counts this event twice.
            Ok(all == accepted || self.setup.route == Route::Inbox && all > accepted)
        });
        explained.context(balance)
    }

    /// Compares `lost`, the number of lost events, with the counters of the hosts and with the records in their logs.
    fn check_lost(&mut self, lost: usize) -> Result<()> {
        let counted = self.fleet.counted_and_logged()?;
        // The counters of a host that has ended are gone, and so is its memory of the events that it accepted. So the
        // sum of the counters may be too low. With several hosts, the sum may be too high: a host also counts a lost
        // event that another host had read before the loss.
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
