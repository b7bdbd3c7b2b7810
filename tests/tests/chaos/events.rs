//! Events that a producer sends, in order within each key.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{ScopedJoinHandle, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use ordain_servers::wait_until;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::event_target::EventTarget;
use super::receiver::Backlog;
use super::routes::Route;

const KEYS: usize = 40;
/// The prefix of the keys whose events the handler `tally` executes slowly.
const SLOW_PREFIX: &str = "slow-";
/// The largest number of new events in a request, besides the events that the producer held back before.
const REQUEST_EVENTS_LIMIT: usize = 60;
/// The largest number of lines that the producer adds to the file for a run of `ordain publish` at a high rate. The run
/// then takes long enough for a loss to interrupt it.
const FILE_LINES_LIMIT: usize = 8_000;
/// The upper limit of the random delay before the run of `ordain publish` that a loss may interrupt, in milliseconds.
const RUN_DELAY_MS: u64 = 1_500;
/// How long a producer repeats its attempts to send the same events.
const SEND_TIMEOUT: Duration = Duration::from_mins(1);
/// The delay between two attempts to send the same events.
const RETRY_DELAY: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AcceptedEvent {
    pub(crate) number: u64,
    /// True if the target accepted the event in an attempt during which the servers could not lose writes. `removed.rs`
    /// sets the value to false if a later fault could lose the event.
    pub(crate) is_safe: bool,
    /// True if the servers could lose writes during at least one attempt to send the event.
    pub(crate) is_at_risk: bool,
    /// The time when the producer first tried to send the event, in ms since 1970.
    pub(crate) sent_at: i64,
    /// The time when the event was accepted, in ms since 1970.
    pub(crate) accepted_at: i64,
}

/// The accepted events of each key, in order.
pub(crate) type SentEvents = BTreeMap<String, Vec<AcceptedEvent>>;

/// Returns the events that were accepted while the servers might lose them.
pub(crate) fn unsafe_events(sent: &SentEvents) -> SentEvents {
    let of_key = |(key, events): (&String, &Vec<AcceptedEvent>)| {
        let events = events.iter().filter(|event| !event.is_safe).copied();
        (key.clone(), events.collect())
    };
    sent.iter().map(of_key).collect()
}

#[derive(Default)]
pub(crate) struct Producer {
    pub(crate) target: EventTarget,
    pub(crate) route: Route,
    /// The number of the current phase. In a phase with an odd number, the servers may lose events.
    pub(crate) phase: AtomicU32,
    pub(crate) is_over: AtomicBool,
    /// The reason why many events wait. With any reason other than [`Backlog::None`], the producer sends at a high rate
    /// while the servers may lose events.
    pub(crate) backlog: Backlog,
    /// True if the producer sends some events only after later events of the same keys.
    pub(crate) has_gaps: bool,
    /// True if the producer sends the events of a key one at a time. If the target accepts only some events of an
    /// attempt, the producer sends all of them again. The events of each key then still arrive in order.
    pub(crate) is_one_by_one: bool,
    pub(crate) accepted_at: Mutex<Option<Instant>>,
    pub(crate) accepted: AtomicUsize,
}

pub(crate) struct RunningProducer<'a> {
    producer: &'a Producer,
    /// The events that the producer has sent until now. The producer holds the lock while it sends events.
    sent: &'a Mutex<SentEvents>,
    thread: ScopedJoinHandle<'a, Result<()>>,
}

impl<'a> RunningProducer<'a> {
    /// Waits until the producer is between two batches, and calls `watch` during the wait. The producer sends the next
    /// batch when the returned guard is dropped.
    pub(crate) fn stop(
        &self,
        mut watch: impl FnMut() -> Result<()>,
    ) -> Result<MutexGuard<'a, SentEvents>> {
        let mut guard = None;
        wait_until("the end of a batch", || {
            watch()?;
            guard = self.sent.try_lock().ok();
            Ok(guard.is_some())
        })?;
        guard.context("the producer holds the lock")
    }

    /// Requests the end of the producer. The producer first completes its current request.
    pub(crate) fn end(&self) {
        self.producer.is_over.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }
}

/// Sends events from another thread while `meanwhile` runs. The seed determines the events.
pub(crate) fn while_producing<T>(
    producer: &Producer,
    sent: &mut SentEvents,
    seed: u64,
    meanwhile: impl FnOnce(&RunningProducer<'_>) -> Result<T>,
) -> Result<T> {
    let shared = Mutex::new(std::mem::take(sent));
    let done = std::thread::scope(|scope| {
        let produce = || producer.run(&shared, &mut ChaCha8Rng::seed_from_u64(seed));
        let producing = RunningProducer { producer, sent: &shared, thread: scope.spawn(produce) };
        let done = meanwhile(&producing);
        producing.end();
        let joined = producing.thread.join();
        let all_sent = joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        done.and_then(|value| all_sent.map(|()| value))
    });
    *sent = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
    done
}

impl Producer {
    pub(crate) fn accepted_at(&self) -> Option<Instant> {
        *self.accepted_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    /// Sends events until `is_over` is set, and adds them to `sent`. If `has_gaps` is false, sends the events of each
    /// key in order. Otherwise holds some events back for a moment, so that later events of their keys can arrive
    /// first.
    fn run(&self, sent: &Mutex<SentEvents>, random: &mut ChaCha8Rng) -> Result<()> {
        let mut held = Vec::new();
        while !self.is_over.load(Ordering::SeqCst) {
            // In a phase in which the servers may lose events, a high rate makes events accumulate, so that many events
            // are lost.
            let is_risky = !is_calm(self.phase.load(Ordering::SeqCst));
            let is_fast = self.backlog != Backlog::None && is_risky;
            if self.route.is_file() && is_risky {
                // Only one run of `ordain publish` begins before the loss. The random delay makes the loss interrupt
                // the run sometimes.
                sleep(Duration::from_millis(random.random_range(0..RUN_DELAY_MS)));
            }
            let most = if is_fast && self.route.is_file() {
                FILE_LINES_LIMIT
            } else {
                REQUEST_EVENTS_LIMIT
            };
            self.send_some(sent, most, &mut held, random)?;
            sleep(Duration::from_millis(random.random_range(0..if is_fast { 2 } else { 60 })));
        }
        self.send(&mut sent.lock().unwrap_or_else(PoisonError::into_inner), held)
    }

    /// Sends at most `most` new events, and the events that the previous call held back.
    fn send_some(
        &self,
        sent: &Mutex<SentEvents>,
        most: usize,
        held: &mut Vec<(String, u64)>,
        random: &mut ChaCha8Rng,
    ) -> Result<()> {
        let mut sent = sent.lock().unwrap_or_else(PoisonError::into_inner);
        let mut batch: Vec<(String, u64)> = Vec::new();
        let prefix = if self.backlog == Backlog::SlowHandler { SLOW_PREFIX } else { "" };
        for _ in 0..random.random_range(1..=most) {
            let key = format!("{prefix}k{}", random.random_range(0..KEYS));
            if self.is_one_by_one && batch.iter().any(|(other, _)| *other == key) {
                continue;
            }
            let events = sent.entry(key.clone()).or_default();
            let number = events.len() as u64 + 1;
            // An event may be added to `sent` before the producer sends it, because `send` repeats the request until
            // the events are accepted.
            events.push(AcceptedEvent { number, ..AcceptedEvent::default() });
            batch.push((key, number));
        }
        let late = if self.has_gaps && random.random_bool(0.2) {
            vec![batch.swap_remove(random.random_range(0..batch.len()))]
        } else {
            Vec::new()
        };
        batch.extend(std::mem::replace(held, late));
        self.send(&mut sent, batch)
    }

    fn send(&self, sent: &mut SentEvents, batch: Vec<(String, u64)>) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let accepted = self.send_until_accepted(&batch)?;
        for (key, number) in batch {
            let event = sent.get_mut(&key).and_then(|events| events.get_mut(number as usize - 1));
            *event.context("the event was not added")? = AcceptedEvent { number, ..accepted };
        }
        Ok(())
    }

    /// Sends events until the target accepts them. Returns the properties that all these events share. The `number` of
    /// the returned event is 0.
    fn send_until_accepted(&self, batch: &[(String, u64)]) -> Result<AcceptedEvent> {
        let lines = batch.iter().map(|(key, number)| self.route.event(key, *number));
        let lines: Vec<String> = lines.collect::<Result<_>>()?;
        let started = Instant::now();
        let mut event = AcceptedEvent { sent_at: now(), ..AcceptedEvent::default() };
        let mut attempt = 0;
        loop {
            let before = self.phase.load(Ordering::SeqCst);
            let is_accepted = self.target.try_send(&lines, attempt)?;
            let after = self.phase.load(Ordering::SeqCst);
            event.accepted_at = now();
            event.is_safe = is_calm(before) && before == after;
            event.is_at_risk |= !event.is_safe;
            if self.route.is_file() {
                self.until_calm(before);
            }
            if is_accepted {
                let mut accepted_at =
                    self.accepted_at.lock().unwrap_or_else(PoisonError::into_inner);
                *accepted_at = Some(Instant::now());
                self.accepted.fetch_add(batch.len(), Ordering::SeqCst);
                return Ok(event);
            }
            ensure!(started.elapsed() < SEND_TIMEOUT, "the events are not accepted");
            attempt += 1;
            sleep(RETRY_DELAY);
        }
    }

    /// If the servers may lose events in this phase, waits until the phase is over. So only one run of `ordain publish`
    /// can lose events. A run keeps only its own events in memory. A second run in the phase could therefore publish
    /// new events before the lost events of the first run, and so break the order within keys.
    fn until_calm(&self, phase: u32) {
        while !is_calm(phase)
            && self.phase.load(Ordering::SeqCst) == phase
            && !self.is_over.load(Ordering::SeqCst)
        {
            sleep(RETRY_DELAY);
        }
    }
}

/// Returns the present time, in ms since 1970.
pub(crate) fn now() -> i64 {
    Timestamp::now().as_millisecond()
}

fn is_calm(phase: u32) -> bool {
    phase.is_multiple_of(2)
}
