//! The figures of a running partition, for metrics and status reports.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ordain_core::Stats;

use ordain_store::Partition;
use ordain_util::gauge::BacklogGauge;
use ordain_util::histogram::{BATCH_EVENTS, COMMIT_SECONDS, Histogram, PUBLISH_TO_COMMIT_SECONDS};

/// Maximum age of a producer's time that [`CommitHistograms::publish_to_commit`] includes. Older times belong to old
/// events that are read again, or are not times at all. A single older time would outweigh a million other times in the
/// sum.
const EVENT_AGE_LIMIT: Duration = Duration::from_hours(30 * 24);
/// The histogram also leaves out times that are further in the future than this limit. Times in the future within the
/// limit count as now, because clocks differ.
const CLOCK_SKEW_LIMIT: Duration = Duration::from_mins(1);

/// Figures that a driver writes, and that metrics and status reports read.
#[derive(Debug)]
pub struct PartitionMetrics {
    partition: Partition,
    stats: Mutex<AccumulatedStats>,
    commit_histograms: Mutex<CommitHistograms>,
    /// The number of events that wait for delivery in the broker or in the store.
    pub lag: Arc<BacklogGauge>,
    /// The numbers of events received over HTTP and not yet published to the broker: first of the events of this
    /// partition, then of the events without a known partition.
    pub inbox: [Arc<BacklogGauge>; 2],
    /// The number of events that this process put into the store for the partition and that the store lost before the
    /// stream read them.
    pub lost_events: Arc<AtomicU64>,
    /// The number of times that an exchange, queue or binding of the stream was missing or different in the broker
    /// while the stream ran.
    pub topology_changes: Arc<AtomicU64>,
    source_ended: AtomicBool,
    is_idle: AtomicBool,
}

/// The figures of the current driver, and the sum over all earlier drivers.
#[derive(Debug, Default)]
struct AccumulatedStats {
    current: Stats,
    earlier: Stats,
}

/// Times and sizes of a driver's commits.
#[derive(Debug, Clone)]
pub struct CommitHistograms {
    /// Duration of commits, in seconds.
    pub commit: Histogram,
    /// The number of events that each commit settled.
    pub batch: Histogram,
    /// Time from the producers' times of events to their commits, in seconds.
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
    /// Adds the measurements of another driver.
    pub fn merge(&mut self, other: &Self) {
        self.commit.merge(&other.commit);
        self.batch.merge(&other.batch);
        self.publish_to_commit.merge(&other.publish_to_commit);
    }
}

impl PartitionMetrics {
    /// Creates the figures of a partition.
    pub fn new(partition: Partition) -> Self {
        Self {
            partition,
            stats: Mutex::default(),
            commit_histograms: Mutex::default(),
            lag: Arc::default(),
            inbox: Default::default(),
            lost_events: Arc::default(),
            topology_changes: Arc::default(),
            source_ended: AtomicBool::new(false),
            is_idle: AtomicBool::new(false),
        }
    }

    /// Returns the partition.
    pub fn partition(&self) -> &Partition {
        &self.partition
    }

    pub(super) fn set_stats(&self, stats: &Stats) {
        self.lock_stats().current = *stats;
    }

    /// Records the end of the driver: keeps the counters and clears the current values.
    pub fn end_driver(&self) {
        let mut stats = self.lock_stats();
        stats.earlier = stats.earlier.plus(&stats.current.counters());
        stats.current = Stats::default();
        drop(stats);
        for waiting in self.inbox.iter().chain([&self.lag]) {
            waiting.set(None);
        }
        self.source_ended.store(false, Ordering::Relaxed);
        self.is_idle.store(false, Ordering::SeqCst);
    }

    /// Returns the latest figures, as the sum over all drivers.
    pub fn stats(&self) -> Stats {
        let stats = self.lock_stats();
        stats.current.plus(&stats.earlier)
    }

    fn lock_stats(&self) -> MutexGuard<'_, AccumulatedStats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an applied commit: its duration, and the producers' times of the events that it settled, in ms since
    /// the Unix epoch.
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

    /// Returns the measurements of the commits so far.
    pub fn commit_histograms(&self) -> CommitHistograms {
        self.lock_histograms().clone()
    }

    fn lock_histograms(&self) -> MutexGuard<'_, CommitHistograms> {
        self.commit_histograms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the partition is idle: its source has ended or is empty, all its events are settled or held in
    /// the store, and all committed messages are published.
    pub fn is_idle(&self) -> bool {
        self.is_idle.load(Ordering::SeqCst)
    }

    pub(super) fn set_idle(&self, is_idle: bool) {
        self.is_idle.store(is_idle, Ordering::SeqCst);
    }

    /// Returns whether the sequencer knows that the source has ended.
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
