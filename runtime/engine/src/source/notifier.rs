//! The link between the writers and the reader of a queue in this process: it wakes the reader when entries are added,
//! and a writer when entries are removed.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use ordain_core::QueueRun;
use ordain_store::Partition;

/// Maximum number of runs (consecutive new entries) of a shard that wait for a reader. Above the limit, the oldest runs
/// are dropped. The limit is needed because no reader takes the runs while another process reads the partition.
const RUNS_LIMIT: usize = 1_024;

/// The notifiers of all partitions that this process adds events to.
#[derive(Debug, Default)]
pub struct QueueNotifiers(Mutex<HashMap<Partition, Arc<QueueNotifier>>>);

impl QueueNotifiers {
    /// Returns the notifier of a partition.
    pub fn of(&self, partition: &Partition) -> Arc<QueueNotifier> {
        let mut notifiers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(notifiers.entry(partition.clone()).or_default())
    }

    /// Returns the number of writes to all partitions, and whether all written events have been read and acknowledged.
    pub fn writes(&self) -> (u64, bool) {
        let notifiers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let writes = notifiers.values().map(|notifier| notifier.writes()).sum();
        (writes, notifiers.values().all(|notifier| notifier.is_empty()))
    }
}

/// Runs of entries that were added to a shard, each with the time of its write, in ms since the Unix epoch.
pub(super) type NewQueueRuns = VecDeque<(QueueRun, u64)>;

/// The notifier of one partition.
#[derive(Debug, Default)]
pub struct QueueNotifier {
    writes: AtomicU64,
    /// The number of writes when the reader last found the queue empty, plus one; 0 if the reader has never found the
    /// queue empty.
    emptied_at: AtomicU64,
    /// Shards with new entries, and the positions of the entries that this process added.
    new_runs: Mutex<BTreeMap<u32, NewQueueRuns>>,
    entries_added: Notify,
    entries_removed: Notify,
}

impl QueueNotifier {
    /// Notifies the reader of a write to the queue of a shard (slice of the store). `added` has the new entries that
    /// the reader must expect, and whose loss it must report; `None` if the writer itself repeats lost entries.
    pub fn record_write(&self, shard: u32, added: Option<QueueRun>) {
        // Add the shard before the write is counted: a reader that sees the new count must find the shard.
        let mut new_runs = self.new_runs.lock().unwrap_or_else(PoisonError::into_inner);
        let runs = new_runs.entry(shard).or_default();
        if added.is_some() && runs.len() >= RUNS_LIMIT {
            runs.pop_front();
        }
        let now = jiff::Timestamp::now().as_millisecond().cast_unsigned();
        runs.extend(added.map(|run| (run, now)));
        drop(new_runs);
        self.writes.fetch_add(1, Ordering::SeqCst);
        self.entries_added.notify_one();
    }

    /// Returns the number of writes.
    pub(super) fn writes(&self) -> u64 {
        self.writes.load(Ordering::SeqCst)
    }

    /// Waits until entries are added.
    pub(super) async fn wait_for_entries(&self) {
        self.entries_added.notified().await;
    }

    /// Takes the shards to whose queues this process wrote since the last call, with the added entries.
    pub(super) fn take_new_runs(&self) -> BTreeMap<u32, NewQueueRuns> {
        std::mem::take(&mut self.new_runs.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts back the entries of a shard that a reader expected and did not read. The entries return to their place
    /// before newer entries, and the next reader expects them.
    pub(super) fn put_back(&self, shard: u32, unread: impl Iterator<Item = (QueueRun, u64)>) {
        let mut new_runs = self.new_runs.lock().unwrap_or_else(PoisonError::into_inner);
        let runs = new_runs.entry(shard).or_default();
        let newer = std::mem::take(runs);
        runs.extend(unread.chain(newer));
        let excess = runs.len().saturating_sub(RUNS_LIMIT);
        runs.drain(..excess);
    }

    /// Records that the queue was empty after this number of writes.
    pub(super) fn record_empty(&self, writes: u64) {
        self.emptied_at.store(writes + 1, Ordering::SeqCst);
    }

    fn is_empty(&self) -> bool {
        self.emptied_at.load(Ordering::SeqCst) == self.writes() + 1
    }

    /// Notifies a waiting writer that entries were removed.
    pub(super) fn notify_removed(&self) {
        self.entries_removed.notify_one();
    }

    /// Waits until entries are removed.
    pub async fn wait_for_room(&self) {
        self.entries_removed.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(first: u64, last: u64) -> QueueRun {
        QueueRun { first, last, history: first }
    }

    #[test]
    fn unread_entries_are_in_front_of_newer_ones() {
        let notifier = QueueNotifier::default();
        notifier.record_write(3, Some(run(8, 9)));
        notifier.put_back(3, [(run(2, 5), 10), (run(6, 7), 20)].into_iter());
        let fresh = notifier.take_new_runs().remove(&3).expect("the shard");
        let runs: Vec<QueueRun> = fresh.into_iter().map(|(run, _)| run).collect();
        assert_eq!(runs, [run(2, 5), run(6, 7), run(8, 9)]);
    }

    #[test]
    fn oldest_entries_are_dropped_beyond_the_limit() {
        let notifier = QueueNotifier::default();
        notifier.record_write(0, Some(run(9_999, 9_999)));
        notifier.put_back(0, (0..RUNS_LIMIT as u64).map(|number| (run(number, number), 0)));
        let fresh = notifier.take_new_runs().remove(&0).expect("the shard");
        assert_eq!(fresh.len(), RUNS_LIMIT);
        assert_eq!(fresh.front().map(|(run, _)| run.first), Some(1));
        assert_eq!(fresh.back().map(|(run, _)| run.first), Some(9_999));
    }
}
