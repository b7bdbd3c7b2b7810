//! The metrics of a partition, for `GET /metrics` and status reports.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ordain_core::{Key, KeySnapshot, Stats};

use super::DriverError;
use crate::incident::LossCounts;
use ordain_store::{KeyResult, Partition};
use ordain_util::gauge::BacklogGauge;
use ordain_util::histogram::{BATCH_EVENTS, COMMIT_SECONDS, Histogram, PUBLISH_TO_COMMIT_SECONDS};
use ordain_util::log_throttle::LogThrottle;
use ordain_util::source_health::{SourceHealth, SourceState};

/// Maximum age of an event. [`CommitHistograms::publish_to_commit`] leaves older events out. The age counts from the
/// time that the producer set in the event. If the age exceeds this limit, the time is wrong, or the source repeats an
/// old event. In the sum of all delays, the delay of one such event could exceed the delays of a million other events
/// together.
const EVENT_AGE_LIMIT: Duration = Duration::from_hours(30 * 24);
/// Maximum time by which a producer's clock may be ahead of the clock of this process. Up to this limit, a producer's
/// time in the future counts as the present time. Beyond the limit, [`CommitHistograms::publish_to_commit`] leaves the
/// event out.
const CLOCK_SKEW_LIMIT: Duration = Duration::from_mins(1);

/// Minimum time between two warnings about keys that have moved to this partition from another partition.
const MOVED_WARN_INTERVAL: Duration = Duration::from_mins(1);

/// The metrics of a partition. The drivers and sources of the partition write the metrics; `GET /metrics` and status
/// reports read the metrics.
#[derive(Debug)]
pub struct PartitionMetrics {
    partition: Partition,
    stats: Mutex<AccumulatedStats>,
    commit_histograms: Mutex<CommitHistograms>,
    /// The number of events that wait for delivery in the broker or in the store.
    pub lag: Arc<BacklogGauge>,
    /// The number of messages in the queue `{queue}.dropped`, to which the broker moves the messages that it drops from
    /// the queues of the stream. Only partition 0 has this number.
    pub dropped: Arc<BacklogGauge>,
    /// The numbers of events that were received over HTTP and are not published to the broker yet. The first number
    /// counts the events of this partition; the second number, which only partition 0 has, counts the events without a
    /// known partition.
    pub inbox: [Arc<BacklogGauge>; 2],
    /// The losses that this process has found in the store's data of the partition.
    pub losses: Arc<LossCounts>,
    /// The number of differences that this process found in the broker while the stream ran. The number counts each
    /// missing or replaced exchange or queue, each missing binding, and each queue that was possibly replaced. The
    /// number also counts each refusal of the broker to declare or bind an exchange or a queue. In addition, each check
    /// through the management API counts:
    /// - the queues and exchanges that take events from a stream with several partitions;
    /// - the second bindings of queues of such a stream;
    /// - the queues of the stream that another program consumes;
    /// - with `declare = false`, the queues without a binding.
    pub topology_changes: Arc<AtomicU64>,
    /// The number of keys that this partition took over from another partition. A driver takes such a key over when it
    /// loads the record of the key.
    pub moved_keys: Arc<AtomicU64>,
    moved_throttle: Mutex<LogThrottle>,
    /// The source of an earlier driver may end after the next driver has started, so the source of each driver has a
    /// state of its own.
    health: Mutex<Arc<SourceHealth>>,
    /// The full key that stops the partition, and the event at which this key stopped; `None` if no key stops the
    /// partition. A key is full when the store holds `spill_limit` events of the key.
    full_key: Mutex<Option<(Key, u64)>>,
    source_ended: AtomicBool,
    is_idle: AtomicBool,
}

/// The statistics of the current driver, and the sums of all earlier drivers.
#[derive(Debug, Default)]
struct AccumulatedStats {
    current: Stats,
    earlier: Stats,
}

/// The durations and sizes of commits, and the delays of the committed events.
#[derive(Debug, Clone)]
pub struct CommitHistograms {
    /// Duration of commits, in seconds.
    pub commit: Histogram,
    /// The number of events that each commit settled.
    pub batch: Histogram,
    /// Delay from the time that the producer set in an event to the commit of the event, in seconds.
    pub publish_to_commit: Histogram,
}

impl Default for CommitHistograms {
    fn default() -> Self {
        Self {
            commit: Histogram::new(&COMMIT_SECONDS),
            batch: Histogram::new(&BATCH_EVENTS),
            publish_to_commit: Histogram::new(&PUBLISH_TO_COMMIT_SECONDS),
        }
    }
}

impl CommitHistograms {
    /// Adds the measurements of another partition.
    pub fn merge(&mut self, other: &Self) {
        self.commit.merge(&other.commit);
        self.batch.merge(&other.batch);
        self.publish_to_commit.merge(&other.publish_to_commit);
    }
}

impl PartitionMetrics {
    /// Creates the metrics of a partition.
    pub fn new(partition: Partition) -> Self {
        Self {
            partition,
            stats: Mutex::default(),
            commit_histograms: Mutex::default(),
            lag: Arc::default(),
            dropped: Arc::default(),
            inbox: Default::default(),
            losses: Arc::default(),
            topology_changes: Arc::default(),
            moved_keys: Arc::default(),
            moved_throttle: Mutex::new(LogThrottle::new(MOVED_WARN_INTERVAL)),
            health: Mutex::default(),
            full_key: Mutex::default(),
            source_ended: AtomicBool::new(false),
            is_idle: AtomicBool::new(false),
        }
    }

    /// Returns the partition that these metrics describe.
    pub fn partition(&self) -> &Partition {
        &self.partition
    }

    pub(crate) fn set_stats(&self, stats: &Stats) {
        self.lock_stats().current = *stats;
    }

    /// Records the number of left-over messages in the outbox. The caller uses this method before the driver starts.
    pub(crate) fn set_backlog(&self, messages: usize) {
        self.set_stats(&Stats { outbox: messages, ..Stats::default() });
    }

    /// Returns the state of the current driver's source.
    pub fn health(&self) -> Arc<SourceHealth> {
        Arc::clone(&self.health.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the state of the source by a new state for the next driver's source, and returns the new state. The new
    /// state is inactive until the source changes it.
    pub fn renew_health(&self) -> Arc<SourceHealth> {
        let renewed = Arc::<SourceHealth>::default();
        let mut health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        *health = Arc::clone(&renewed);
        renewed
    }

    /// Records the full key that stops the partition, and the event at which this key stopped; `None` if no key stops
    /// the partition.
    pub(super) fn set_full_key(&self, full: Option<(&Key, u64)>) {
        *self.lock_full_key() = full.map(|(key, event)| (Key::clone(key), event));
    }

    /// Returns the error about the full key that stops the partition; `None` if no key stops the partition.
    pub fn full_key(&self) -> Option<DriverError> {
        let full = self.lock_full_key().clone();
        full.map(|(key, event)| DriverError::KeyFull {
            stream: Arc::clone(&self.partition.stream),
            key: key.to_string(),
            event,
        })
    }

    fn lock_full_key(&self) -> MutexGuard<'_, Option<(Key, u64)>> {
        self.full_key.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the state of the partition's intake: the state of the source or, if a full key stops the partition,
    /// [`SourceState::Stopped`]. The partition then receives no events, even while its source is connected.
    pub fn intake(&self) -> SourceState {
        match self.full_key() {
            Some(full) => SourceState::Stopped { reason: full.to_string() },
            None => self.health().state(),
        }
    }

    /// Records the end of the driver: keeps the counters and clears the current values.
    pub fn end_driver(&self) {
        let mut stats = self.lock_stats();
        stats.earlier = stats.earlier.plus(&stats.current.counters());
        stats.current = Stats::default();
        drop(stats);
        for waiting in self.inbox.iter().chain([&self.lag, &self.dropped]) {
            waiting.set(None);
        }
        self.renew_health();
        self.set_full_key(None);
        self.source_ended.store(false, Ordering::Relaxed);
        self.is_idle.store(false, Ordering::SeqCst);
    }

    /// Returns the latest statistics, summed over all drivers of the partition.
    pub fn stats(&self) -> Stats {
        let stats = self.lock_stats();
        stats.current.plus(&stats.earlier)
    }

    fn lock_stats(&self) -> MutexGuard<'_, AccumulatedStats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a commit to the histograms. For each settled event, `settled` contains the time that the producer set in
    /// the event, in ms since the Unix epoch; `None` if the producer set no time.
    pub(super) fn record_commit(&self, took: Duration, settled: &[Option<u64>]) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut histograms = self.lock_histograms();
        histograms.commit.add(took.as_secs_f64(), 1);
        histograms.batch.add(settled.len() as f64, 1);
        for at in settled.iter().flatten() {
            let at = Duration::from_millis(*at);
            let since = now.saturating_sub(at);
            if since <= EVENT_AGE_LIMIT && at <= now + CLOCK_SKEW_LIMIT {
                histograms.publish_to_commit.add(since.as_secs_f64(), 1);
            }
        }
    }

    /// Counts the loaded keys that belonged to another partition, and logs a warning at most once every
    /// [`MOVED_WARN_INTERVAL`].
    pub(super) fn record_moved_keys(&self, loaded: &[KeyResult<Option<Box<KeySnapshot>>>]) {
        let moved = loaded.iter().filter_map(|key| {
            let snapshot = key.as_ref().ok()?.as_ref()?;
            snapshot.moved_from
        });
        let mut from = None;
        for partition in moved {
            self.moved_keys.fetch_add(1, Ordering::Relaxed);
            from = Some(partition);
        }
        let mut throttle = self.moved_throttle.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(from) = from
            && throttle.allow()
        {
            tracing::warn!(
                stream = &*self.partition.stream,
                partition = self.partition.number,
                from,
                keys = self.moved_keys.load(Ordering::Relaxed),
                "keys moved here from another partition: their events may be executed out of order. The move of a key \
                 is expected only after a change of the routing keys, or, with an exchange of type x-consistent-hash, \
                 after a restart of the broker. Otherwise, check that no other queue is bound to the exchange of the \
                 stream, and that no queue of the stream was removed"
            );
        }
    }

    /// Returns the measurements of all commits of the partition in this process so far.
    pub fn commit_histograms(&self) -> CommitHistograms {
        self.lock_histograms().clone()
    }

    fn lock_histograms(&self) -> MutexGuard<'_, CommitHistograms> {
        self.commit_histograms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the partition is idle. In a run without `once`, a partition never counts as idle. With `once`, a
    /// partition is idle when four conditions hold:
    /// - The source has ended. If only streams of this configuration fill the queue of the source, the source counts as
    ///   ended from the start.
    /// - All received events are settled or held in the store, and no key waits for a retry or for a round of gap
    ///   replay.
    /// - All committed messages are published.
    /// - The search for parked keys has ended.
    pub fn is_idle(&self) -> bool {
        self.is_idle.load(Ordering::SeqCst)
    }

    pub(super) fn set_idle(&self, is_idle: bool) {
        self.is_idle.store(is_idle, Ordering::SeqCst);
    }

    /// Returns whether the driver has reported the end of the source to the sequencer.
    pub fn source_ended(&self) -> bool {
        self.source_ended.load(Ordering::Relaxed)
    }

    pub(super) fn set_source_ended(&self) {
        self.source_ended.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_times_are_left_out() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
        let day = 24 * 60 * 60 * 1_000;
        let metrics = PartitionMetrics::new(Partition { stream: "s".into(), number: 0 });
        let absurd = [0, 1, now / 1_000, now - 31 * day, now + day, u64::MAX];
        metrics.record_commit(Duration::ZERO, &absurd.map(Some));
        let count = || {
            metrics
                .commit_histograms()
                .publish_to_commit
                .buckets()
                .iter()
                .map(|(_, count)| count)
                .sum::<u64>()
        };
        assert_eq!((count(), metrics.commit_histograms().publish_to_commit.sum()), (0, 0.0));
        metrics.record_commit(Duration::ZERO, &[Some(now - 29 * day), Some(now + 10_000), None]);
        assert_eq!(count(), 2);
        let days = metrics.commit_histograms().publish_to_commit.sum() * 1_000.0 / day as f64;
        assert!((29.0..30.0).contains(&days), "{days}");
    }
}
