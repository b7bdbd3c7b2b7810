//! The figures of a running partition, for metrics and status reports.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ordain_core::Stats;

use ordain_store::Partition;
use ordain_util::gauge::BacklogGauge;
use ordain_util::histogram::{BATCH_EVENTS, COMMIT_SECONDS, Histogram, PUBLISH_TO_COMMIT_SECONDS};

/// Producers' times further in the past are left out of [`CommitHistograms::publish_to_commit`]: they belong to old events that
/// are read again, or are not times at all. One of them would outweigh a million others in the sum.
const EVENT_AGE_LIMIT: Duration = Duration::from_hours(30 * 24);
/// Times further in the future are left out as well; other future times count as now, because clocks differ.
const CLOCK_SKEW_LIMIT: Duration = Duration::from_mins(1);

/// Figures that a driver writes and others read.
#[derive(Debug)]
pub struct PartitionMetrics {
    partition: Partition,
    stats: Mutex<AccumulatedStats>,
    times: Mutex<CommitHistograms>,
    /// Events that wait for delivery in the broker or in the store.
    pub lag: Arc<BacklogGauge>,
    /// Events received over HTTP and not yet published to the broker: those of this partition, and those without a
    /// known partition.
    pub inbox: [Arc<BacklogGauge>; 2],
    /// Number of events that this process put into the store for the partition and that the store lost before they
    /// were read.
    pub lost: Arc<AtomicU64>,
    ended: AtomicBool,
    rests: AtomicBool,
}

/// The figures of the current driver, and the sum of those before it.
#[derive(Debug, Default)]
struct AccumulatedStats {
    now: Stats,
    before: Stats,
}

/// Times and sizes of a driver's commits.
#[derive(Debug, Clone)]
pub struct CommitHistograms {
    /// Duration of commits, in seconds.
    pub commit: Histogram,
    /// Number of events that a commit settled.
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
            times: Mutex::default(),
            lag: Arc::default(),
            inbox: Default::default(),
            lost: Arc::default(),
            ended: AtomicBool::new(false),
            rests: AtomicBool::new(false),
        }
    }

    /// Returns the partition.
    pub fn partition(&self) -> &Partition {
        &self.partition
    }

    pub(super) fn put(&self, stats: &Stats) {
        self.kept().now = *stats;
    }

    /// Records the end of the driver: counters stay, current values are cleared.
    pub fn over(&self) {
        let mut kept = self.kept();
        kept.before = kept.before.and(&kept.now.counters());
        kept.now = Stats::default();
        drop(kept);
        for waiting in self.inbox.iter().chain([&self.lag]) {
            waiting.set(None);
        }
        self.ended.store(false, Ordering::Relaxed);
        self.rests.store(false, Ordering::SeqCst);
    }

    /// Returns the latest figures, as the sum over all drivers.
    pub fn get(&self) -> Stats {
        let kept = self.kept();
        kept.now.and(&kept.before)
    }

    fn kept(&self) -> MutexGuard<'_, AccumulatedStats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an applied commit: its duration, and the producers' times of the events that it settled, in ms since
    /// the Unix epoch.
    pub(super) fn committed(&self, took: Duration, settled: &[Option<u64>]) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut times = self.lock_times();
        times.commit.add(took.as_secs_f64(), 1);
        times.batch.add(settled.len() as f64, 1);
        for at in settled.iter().flatten() {
            let at = Duration::from_millis(*at);
            let since = now.saturating_sub(at);
            if since <= EVENT_AGE_LIMIT && at <= now + CLOCK_SKEW_LIMIT {
                times.publish_to_commit.add(since.as_secs_f64(), 1);
            }
        }
    }

    /// Returns the measurements of the commits so far.
    pub fn times(&self) -> CommitHistograms {
        self.lock_times().clone()
    }

    fn lock_times(&self) -> MutexGuard<'_, CommitHistograms> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the partition rests: its source has ended or is empty, all its events are settled or held, and
    /// all committed messages are published.
    pub fn rests(&self) -> bool {
        self.rests.load(Ordering::SeqCst)
    }

    pub(super) fn set_rests(&self, rests: bool) {
        self.rests.store(rests, Ordering::SeqCst);
    }

    /// Returns whether the sequencer knows that the source has ended.
    pub fn ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    pub(super) fn set_ended(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_times_are_left_out() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
        let day = 24 * 60 * 60 * 1_000;
        let shared = PartitionMetrics::new(Partition { stream: "s".into(), number: 0 });
        let absurd = [0, 1, now / 1_000, now - 31 * day, now + day, u64::MAX];
        shared.committed(Duration::ZERO, &absurd.map(Some));
        let count = || {
            shared.times().publish_to_commit.buckets().iter().map(|(_, count)| count).sum::<u64>()
        };
        assert_eq!((count(), shared.times().publish_to_commit.sum()), (0, 0.0));
        shared.committed(Duration::ZERO, &[Some(now - 29 * day), Some(now + 10_000), None]);
        assert_eq!(count(), 2);
        let days = shared.times().publish_to_commit.sum() * 1_000.0 / day as f64;
        assert!((29.0..30.0).contains(&days), "{days}");
    }
}
