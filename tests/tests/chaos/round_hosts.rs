//! The common parts of the rounds in which a store loses its newest writes: the hosts, the route on which events reach
//! them, and the requirements on the events.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ordain_servers::wait_for_command;
use ordain_tests::rig::Rig;
use ordain_tests::service::wait_until;
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

use super::effects::{
    Counts, Demands, EffectCounts, Effects, EffectsWait, RECOUNT_INTERVAL, effects_of, taken,
};
use super::event_target::EventTarget;
use super::events::{Producer, RunningProducer, SentEvents, unsafe_events};
use super::fleet::Fleet;
use super::losses::{ExactReports, KeyFate, KeyFates, ReportedLosses, stored_fates};
use super::receiver::{Backlog, Kind, redis};
use super::routes::Route;

/// Settings of a `sequenced` stream with a short gap timeout. When the timeout is over, the host soon moves the later
/// events of the key into the store.
pub(crate) const SHORT_GAPS: &str =
    "spill_after = \"1s\"\ngap = { timeout = \"500ms\", attempts = 2, backoff = \"20ms..100ms\" }";

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
    pub(crate) fn draw(hosts: usize, is_killed: bool, random: &mut ChaCha8Rng) -> Self {
        let mut route = Route::draw(random);
        // Two kinds of rounds need a `sequenced` stream. In a round with a file, the store numbers the events of the
        // stream. In a round with RabbitMQ and several hosts, RabbitMQ may change the order of the unacknowledged
        // events that the hosts return, and only a `sequenced` stream restores the order.
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

pub(crate) struct RoundHosts {
    pub(crate) setup: Setup,
    pub(crate) fleet: Fleet,
    /// True if the lease is longer than the longest time that a host can be without its store. Each partition then
    /// keeps its owner if no host ends.
    has_fixed_owners: bool,
    /// The broker, if the events pass through one.
    _rig: Option<Arc<Rig>>,
}

/// Waits for a random time between 100 and `most` milliseconds.
pub(crate) fn pause(random: &mut ChaCha8Rng, most: u64) {
    sleep(Duration::from_millis(random.random_range(100..most)));
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
        let rig = route.start_broker()?;
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
        let has_fixed_owners = lease.is_some();
        Ok((Self { setup, fleet, has_fixed_owners, _rig: rig }, producer))
    }

    /// Prepares a period whose writes the servers may lose. If this method returns a guard, the producer waits as long
    /// as the guard exists.
    pub(crate) fn before_loss<'a>(
        &mut self,
        producer: &Producer,
        producing: &RunningProducer<'a>,
    ) -> Result<Option<MutexGuard<'a, SentEvents>>> {
        // A host that is not ready yet could write its claim in this period. The host would end if the store lost the
        // claim.
        self.fleet.until_ready()?;
        let Setup { route, .. } = self.setup;
        if !route.uses_broker() && !route.is_file() {
            return Ok(None);
        }
        let gate = producing.stop(|| self.fleet.restart_ended())?;
        if route.uses_broker() && self.setup.may_end() {
            // The broker does not deliver an acknowledged event again. If the store loses the effects of acknowledged
            // events and the host ends, the events are lost. The test expects an effect of every event from before the
            // loss, so it waits here until all these events have taken effect.
            self.resend_and_wait(&producer.target, &unsafe_events(&gate), &gate)?;
        }
        Ok(Some(gate))
    }

    pub(crate) fn waiting(&self, producer: &Producer) -> Result<usize> {
        let effects = effects_of(&self.fleet.hosts)?;
        let done: usize = effects.values().flat_map(BTreeMap::values).map(Vec::len).sum();
        Ok(producer.accepted().saturating_sub(done))
    }

    /// If the stream is `sequenced`, sends the events `again` once more. Then waits until every event of `sent` that
    /// must take effect has taken effect.
    fn resend_and_wait(
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

    /// Waits until every accepted event has taken effect or is lost. Returns how many events were accepted, how many of
    /// them are safe (accepted while the servers could not lose writes), and how many are lost.
    pub(crate) fn check(&mut self, target: &EventTarget, sent: &SentEvents) -> Result<Counts> {
        let Setup { route, is_fifo, .. } = self.setup;
        if !is_fifo {
            self.until_explained(sent)?;
        }
        if !is_fifo && !route.is_file() {
            sleep(RECOUNT_INTERVAL);
            self.until_explained(sent)?;
        }
        self.resend_and_wait(target, sent, sent)?;
        let taken = self.until_quiet(sent)?;
        if route.is_file() {
            self.until_published(sent)?;
        }
        self.fleet.check_counters()?;
        Ok(Counts::of(sent, &taken))
    }

    /// Waits until no more events take effect, because an event that still waits must not count as lost. For a `fifo`
    /// stream, also checks the balances. Returns how many events of each key took effect.
    fn until_quiet(&mut self, sent: &SentEvents) -> Result<EffectCounts> {
        let mut wait = EffectsWait::start();
        loop {
            let count = taken(&self.fleet.hosts, sent, self.setup.demands())?;
            let check_counts = || {
                self.check_newest(&count)?;
                if self.setup.is_fifo {
                    self.check_balances(sent, &fates_of(&count))
                } else {
                    Ok(())
                }
            };
            if wait.is_over(&count, check_counts)? {
                return Ok(count);
            }
            sleep(RECOUNT_INTERVAL);
            self.fleet.restart_ended()?;
        }
    }

    /// Checks that no event took effect a second time, in a round in which no host ends. The store then has every
    /// effect whose message was published, including the effects in the second stream of a chain. The highest count in
    /// the messages of a key is therefore the number of the key's effects, and must equal the number of its events that
    /// took effect. `taken` contains this number for each key.
    fn check_newest(&self, taken: &EffectCounts) -> Result<()> {
        if self.setup.may_end() {
            return Ok(());
        }
        let effects = effects_of(&self.fleet.hosts)?;
        for (key, taken) in taken {
            let newest = newest_count(&effects, key);
            ensure!(
                newest == *taken as u64,
                "key {key}: {taken} events took effect, but the newest message counts {newest}"
            );
        }
        Ok(())
    }

    /// Waits until each event of the file has taken effect once, and checks that no host reports a lost event. The
    /// hosts accept no events in such a round, and `ordain publish` publishes lost events again.
    fn until_published(&mut self, sent: &SentEvents) -> Result<()> {
        let mut last = None;
        let settled = wait_for_command("one effect of each event of the file", || {
            self.fleet.restart_ended()?;
            let fates = stored_fates(&self.fleet.hosts[0].home)?;
            last = Some(check_all_taken(sent, &fates));
            Ok(matches!(last, Some(Ok(()))))
        });
        settled.with_context(|| format!("{last:?}"))?;
        let reported = ReportedLosses::of(&self.fleet.hosts)?.total();
        ensure!(reported == 0, "the hosts reported {reported} lost events of a file");
        Ok(())
    }

    /// Waits until each accepted event of a `sequenced` stream is explained: the event has taken effect, waits in the
    /// store for a missing event of its key, or is reported as lost. Events that were sent before a host ended need no
    /// report.
    fn until_explained(&mut self, sent: &SentEvents) -> Result<()> {
        let mut last = None;
        let explained = wait_for_command("events with an effect, lost or held", || {
            self.fleet.restart_ended()?;
            let fates = stored_fates(&self.fleet.hosts[0].home)?;
            last = Some(self.check_stored(sent, &fates));
            Ok(matches!(last, Some(Ok(()))))
        });
        explained.with_context(|| format!("{last:?}"))
    }

    fn check_stored(&self, sent: &SentEvents, fates: &KeyFates) -> Result<()> {
        let Setup { route, .. } = self.setup;
        // If no host ends, the store has every effect whose message was published. The highest count in the messages of
        // a key is therefore the number of the key's effects.
        let has_counts = !self.setup.may_end() && !route.is_file();
        let effects = if has_counts { Some(effects_of(&self.fleet.hosts)?) } else { None };
        for (key, events) in sent {
            let KeyFate { taken, held } = fates.get(key).copied().unwrap_or_default();
            let safe = events.iter().filter(|event| event.is_safe).count() as u64;
            ensure!(
                taken + held >= safe,
                "key {key}: {safe} events are safe, but {taken} took effect and {held} wait"
            );
            let Some(effects) = &effects else { continue };
            let published = newest_count(effects, key);
            ensure!(
                published == taken,
                "key {key}: {taken} events took effect, but {published} are in the output"
            );
        }
        if route.is_file() {
            // The next run of `ordain publish` publishes the lost events of an earlier run. No process reports them.
            return Ok(());
        }
        self.check_balances(sent, fates)
    }

    fn check_balances(&self, sent: &SentEvents, fates: &KeyFates) -> Result<()> {
        let losses = ReportedLosses::of(&self.fleet.hosts)?;
        losses.check_times(sent)?;
        let balances = losses.balances(sent, fates, self.fleet.ended_at)?;
        balances.iter().try_for_each(|balance| balance.check(self.exact_reports()))
    }

    /// Returns which reports must not count an event that has an effect or waits. With several hosts, a host also
    /// reports a lost event that another host had read before the loss. This other host may execute the event.
    fn exact_reports(&self) -> ExactReports {
        let Setup { route, is_fifo, .. } = self.setup;
        if route == Route::Inbox && !is_fifo {
            // A host may report an event as lost because the store lost the event's entry in the inbox, and then fetch
            // the same event by replay.
            ExactReports::None
        } else if self.fleet.hosts.len() == 1 {
            ExactReports::All
        } else if self.has_fixed_owners && !self.fleet.has_ended() {
            ExactReports::OfReaders
        } else {
            ExactReports::None
        }
    }
}

/// Returns the highest count in the messages of a key; 0 if there is no message.
fn newest_count(effects: &Effects, key: &str) -> u64 {
    let newest = effects.get(key).and_then(|of_key| of_key.keys().next_back());
    newest.copied().unwrap_or_default()
}

/// Checks that each event of the file has taken effect once. The store numbers these events, so an event that took
/// effect twice would have two numbers.
fn check_all_taken(sent: &SentEvents, fates: &KeyFates) -> Result<()> {
    for (key, events) in sent {
        let fate = fates.get(key).copied().unwrap_or_default();
        let right = KeyFate { taken: events.len() as u64, held: 0 };
        ensure!(fate == right, "key {key} has {} events, but {fate:?} in the store", events.len());
    }
    Ok(())
}

/// Returns the fates of the events of a `fifo` stream. Such a stream does not wait for a lost event.
fn fates_of(taken: &EffectCounts) -> KeyFates {
    let fate =
        |(key, taken): (&String, &usize)| (key.clone(), KeyFate { taken: *taken as u64, held: 0 });
    taken.iter().map(fate).collect()
}
