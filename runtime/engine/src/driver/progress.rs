//! The figures of a running partition, for whoever shows them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ordain_core::Stats;

use ordain_store::Partition;
use ordain_util::gauge::Waiting;
use ordain_util::histogram::{BATCH_EVENTS, COMMIT_SECONDS, Histogram, PUBLISH_TO_COMMIT_SECONDS};

/// Events whose producers' times are further back are left out of
/// [`Times::publish_to_commit`]: they are old ones that are read again, or no times at all. One of
/// them would outweigh a million others in the sum.
const OLDEST: Duration = Duration::from_hours(30 * 24);
/// Times further ahead are left out as well; others ahead count as now, since clocks differ.
const AHEAD: Duration = Duration::from_mins(1);

/// Figures that a driver puts and others read.
#[derive(Debug)]
pub struct Progress {
    partition: Partition,
    stats: Mutex<Kept>,
    times: Mutex<Times>,
    /// Events that wait in the broker or in the store and were not delivered.
    pub lag: Arc<Waiting>,
    /// Events that came over HTTP and are not published to the broker, of this partition and of none.
    pub inbox: [Arc<Waiting>; 2],
    /// Events that this process had put into the store for the partition, and that the store has lost before
    /// they were read.
    pub lost: Arc<AtomicU64>,
    ended: AtomicBool,
    rests: AtomicBool,
}

/// The figures of the driver that there is, and of those before it.
#[derive(Debug, Default)]
struct Kept {
    now: Stats,
    before: Stats,
}

/// What a driver measures of its commits.
#[derive(Debug, Clone)]
pub struct Times {
    /// How long commits took, in seconds.
    pub commit: Histogram,
    /// Events that commits settled.
    pub batch: Histogram,
    /// How long after their producers' time events were committed, in seconds.
    pub publish_to_commit: Histogram,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            commit: Histogram::new(&COMMIT_SECONDS),
            batch: Histogram::new(&BATCH_EVENTS),
            publish_to_commit: Histogram::new(&PUBLISH_TO_COMMIT_SECONDS),
        }
    }
}

impl Times {
    /// Adds what another driver has measured.
    pub fn merge(&mut self, other: &Self) {
        self.commit.merge(&other.commit);
        self.batch.merge(&other.batch);
        self.publish_to_commit.merge(&other.publish_to_commit);
    }
}

impl Progress {
    /// Of a partition that is about to be driven for the first time.
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

    /// Which partition it is.
    pub fn partition(&self) -> &Partition {
        &self.partition
    }

    pub(super) fn put(&self, stats: &Stats) {
        self.kept().now = *stats;
    }

    /// Notes that the driver has ended: what it counted stays, what it had is gone.
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

    /// The last figures, of all drivers together.
    pub fn get(&self) -> Stats {
        let kept = self.kept();
        kept.now.and(&kept.before)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a commit that was applied: how long it took, and the producers' times of the events
    /// that it settled.
    pub(super) fn committed(&self, took: Duration, settled: &[Option<u64>]) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut times = self.lock_times();
        times.commit.add(took.as_secs_f64(), 1);
        times.batch.add(settled.len() as f64, 1);
        for at in settled.iter().flatten() {
            let at = Duration::from_millis(*at);
            let since = now.saturating_sub(at);
            if since <= OLDEST && at <= now + AHEAD {
                times.publish_to_commit.add(since.as_secs_f64(), 1);
            }
        }
    }

    /// What was measured of the commits so far.
    pub fn times(&self) -> Times {
        self.lock_times().clone()
    }

    fn lock_times(&self) -> MutexGuard<'_, Times> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether its source is at its end, or empty for now, all of that is settled or held, and all
    /// that is committed is published.
    pub fn rests(&self) -> bool {
        self.rests.load(Ordering::SeqCst)
    }

    pub(super) fn set_rests(&self, rests: bool) {
        self.rests.store(rests, Ordering::SeqCst);
    }

    /// Whether the sequencer has been told that the source is at its end.
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
    fn times_that_cannot_be_are_left_out() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
        let day = 24 * 60 * 60 * 1_000;
        let shared = Progress::new(Partition { stream: "s".into(), number: 0 });
        let absurd = [0, 1, now / 1_000, now - 31 * day, now + day, u64::MAX];
        shared.committed(Duration::ZERO, &absurd.map(Some));
        let count =
            || shared.times().publish_to_commit.buckets().iter().map(|it| it.1).sum::<u64>();
        assert_eq!((count(), shared.times().publish_to_commit.sum()), (0, 0.0));
        shared.committed(Duration::ZERO, &[Some(now - 29 * day), Some(now + 10_000), None]);
        assert_eq!(count(), 2);
        let days = shared.times().publish_to_commit.sum() * 1_000.0 / day as f64;
        assert!((29.0..30.0).contains(&days), "{days}");
    }
}
