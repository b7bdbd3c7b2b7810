//! The link between the writers and the reader of a queue in this process. The link wakes the reader when a writer adds
//! entries, and wakes a writer when the reader removes entries. While no reader of this process reads the queue, the
//! link keeps the positions of the added entries.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use ordain_core::{QueueLoss, QueueRun, UnreadRuns, WriterCalls};
use ordain_publish::QueueWriter;
use ordain_store::{Partition, QueueEnds};

/// The notifiers of all partitions whose queues this process reads, or to whose queues this process adds events.
#[derive(Debug, Default)]
pub struct QueueNotifiers {
    notifiers: Mutex<HashMap<Partition, Arc<QueueNotifier>>>,
    /// For each stream, the writer that adds the events that this process accepts over HTTP.
    writers: Mutex<HashMap<Arc<str>, Arc<QueueWriter>>>,
    /// Wakes the task that checks whether the store has lost events. This task is due when a shard of a notifier has
    /// half of the maximum number of runs (ranges of added entries).
    nearly_full: Arc<Notify>,
}

impl QueueNotifiers {
    /// Returns the notifier of a partition, and creates it at the first call.
    pub fn of(&self, partition: &Partition) -> Arc<QueueNotifier> {
        let new = || {
            let nearly_full = Arc::clone(&self.nearly_full);
            Arc::new(QueueNotifier { nearly_full, ..QueueNotifier::default() })
        };
        Arc::clone(self.lock().entry(partition.clone()).or_insert_with(new))
    }

    /// Returns the writer of the events that this process accepts over HTTP for a stream. The notifiers of the stream
    /// keep only positions of entries that this writer added.
    pub fn writer(&self, stream: &Arc<str>, shards: u32) -> Arc<QueueWriter> {
        let mut writers = self.writers.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(QueueWriter::new(shards));
        Arc::clone(writers.entry(Arc::clone(stream)).or_insert_with(new))
    }

    pub(super) fn writers(&self) -> Vec<(Arc<str>, Arc<QueueWriter>)> {
        let writers = self.writers.lock().unwrap_or_else(PoisonError::into_inner);
        writers.iter().map(|(stream, writer)| (Arc::clone(stream), Arc::clone(writer))).collect()
    }

    /// Returns the number of writes of this process to all queues. Also returns whether the readers have read all these
    /// queues to the end, and the drivers have acknowledged all events.
    pub fn writes(&self) -> (u64, bool) {
        let notifiers = self.lock();
        let writes = notifiers.values().map(|notifier| notifier.writes()).sum();
        (writes, notifiers.values().all(|notifier| notifier.is_empty()))
    }

    pub(super) fn all(&self) -> Vec<(Partition, Arc<QueueNotifier>)> {
        let notifiers = self.lock();
        let clones =
            notifiers.iter().map(|(partition, notifier)| (partition.clone(), Arc::clone(notifier)));
        clones.collect()
    }

    /// Waits until a shard of a notifier has half of the maximum number of runs (ranges of added entries).
    pub(super) async fn wait_until_nearly_full(&self) {
        self.nearly_full.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Partition, Arc<QueueNotifier>>> {
        self.notifiers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs of entries that were added to a shard, each with the time of its write, in ms since the Unix epoch.
pub(super) type NewQueueRuns = VecDeque<(QueueRun, u64)>;

/// The notifier of one partition, for the queues of the partition in all shards.
#[derive(Debug, Default)]
pub struct QueueNotifier {
    writes: AtomicU64,
    /// The value is 0 until the reader finds the queue empty for the first time and all read entries are acknowledged.
    /// From then on, the value is one more than the number of writes at the latest such time.
    emptied_at: AtomicU64,
    /// The shards to which this process wrote, with the entries that no reader of this process has taken yet.
    new_runs: Mutex<BTreeMap<u32, UnreadRuns>>,
    /// Counts the readers of this process that read the queue now.
    readers: AtomicUsize,
    entries_added: Notify,
    entries_removed: Notify,
    nearly_full: Arc<Notify>,
}

/// A guard that shows that a reader of this process reads the partition. Until the reader drops the guard, the reader
/// takes the new entries from the notifier, and detects the loss of these entries.
#[derive(Debug)]
pub(super) struct ReadingGuard(Arc<QueueNotifier>);

impl Drop for ReadingGuard {
    fn drop(&mut self) {
        self.0.readers.fetch_sub(1, Ordering::SeqCst);
    }
}

impl QueueNotifier {
    /// Notifies the reader of a write to the queue of a shard (slice of the store). `added` has the new entries whose
    /// loss the reader must detect. `added` is `None` if the write added no entry, or if the sender of the entries
    /// repeats lost entries itself.
    pub fn record_write(&self, shard: u32, added: Option<QueueRun>) {
        // Add the shard before the write is counted: a reader that sees the new count must find the shard.
        let mut new_runs = self.lock_runs();
        let runs = new_runs.entry(shard).or_default();
        if let Some(run) = added {
            runs.add(run, now());
        }
        let is_nearly_full = runs.is_nearly_full();
        drop(new_runs);
        if is_nearly_full {
            self.nearly_full.notify_one();
        }
        self.writes.fetch_add(1, Ordering::SeqCst);
        self.entries_added.notify_one();
    }

    pub(super) fn writes(&self) -> u64 {
        self.writes.load(Ordering::SeqCst)
    }

    pub(super) async fn wait_for_entries(&self) {
        self.entries_added.notified().await;
    }

    /// Returns a guard for a new reader of this process.
    pub(super) fn begin_reading(self: &Arc<Self>) -> ReadingGuard {
        self.readers.fetch_add(1, Ordering::SeqCst);
        ReadingGuard(Arc::clone(self))
    }

    /// Takes the entries that this process added to each shard since the previous call.
    pub(super) fn take_new_runs(&self) -> BTreeMap<u32, NewQueueRuns> {
        let new_runs = std::mem::take(&mut *self.lock_runs());
        new_runs.into_iter().map(|(shard, mut runs)| (shard, runs.take())).collect()
    }

    /// Returns the shards with entries that no reader of this process has taken, and the numbers of the calls that
    /// added them. Empty while a reader of this process reads the partition.
    pub(super) fn unread_calls(&self) -> Vec<(u32, BTreeSet<u64>)> {
        if self.readers.load(Ordering::SeqCst) > 0 {
            return Vec::new();
        }
        let runs = self.lock_runs();
        let calls = runs.iter().map(|(shard, runs)| (*shard, runs.calls()));
        calls.filter(|(_, calls)| !calls.is_empty()).collect()
    }

    /// Compares the unread entries of a shard with the answers of the store. Forgets the entries that a reader of
    /// another process has removed, and the entries that the store has lost. Returns the loss of entries. Returns
    /// `None` if the store has lost no entry, or if the store's record of the writer's calls may have expired. If the
    /// record may have expired, also forgets the compared entries. The caller gets `checked_calls` from
    /// [`Self::unread_calls`] first, and then requests `stored` and `ends` from the store. A reader of this process
    /// that started in between has taken the entries, and detects their loss itself.
    pub(super) fn check_unread(
        &self,
        shard: u32,
        checked_calls: &BTreeSet<u64>,
        stored: &WriterCalls,
        ends: QueueEnds,
    ) -> Option<QueueLoss> {
        self.lock_runs().get_mut(&shard)?.check(checked_calls, stored, ends.first, now())
    }

    /// Puts back the entries of a shard that a reader expected and did not read. The entries return to their position
    /// before newer entries, and the next reader expects them.
    pub(super) fn put_back(&self, shard: u32, unread: impl Iterator<Item = (QueueRun, u64)>) {
        self.lock_runs().entry(shard).or_default().put_back(unread);
    }

    fn lock_runs(&self) -> MutexGuard<'_, BTreeMap<u32, UnreadRuns>> {
        self.new_runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a reader found the queue empty after this number of writes, and that all read entries are
    /// acknowledged.
    pub(super) fn record_empty(&self, writes: u64) {
        self.emptied_at.store(writes + 1, Ordering::SeqCst);
    }

    fn is_empty(&self) -> bool {
        self.emptied_at.load(Ordering::SeqCst) == self.writes() + 1
    }

    pub(super) fn notify_removed(&self) {
        self.entries_removed.notify_one();
    }

    /// Waits until the reader of this process removes entries, so that a full queue has room for new entries.
    pub async fn wait_for_room(&self) {
        self.entries_removed.notified().await;
    }
}

/// Returns the time in ms since the Unix epoch.
fn now() -> u64 {
    jiff::Timestamp::now().as_millisecond().cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: QueueEnds =
        QueueEnds { first: 1, last: ordain_core::QueuePosition { number: 9, history: 1 } };

    fn run(first: u64, last: u64) -> QueueRun {
        QueueRun { first, last, history: first, call: first }
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

    /// While a reader of this process reads the partition, only the reader detects losses. After the reader has ended,
    /// `check_unread` checks the entries that the reader left unread.
    #[test]
    fn entries_are_checked_only_without_a_reader() {
        let notifier = Arc::new(QueueNotifier::default());
        let gone = WriterCalls::default();
        let reading = notifier.begin_reading();
        notifier.record_write(3, Some(run(4, 6)));
        assert!(notifier.unread_calls().is_empty());
        let taken = notifier.take_new_runs().remove(&3).expect("the shard");
        notifier.put_back(3, taken.into_iter());
        drop(reading);
        let unread_calls = notifier.unread_calls();
        assert_eq!(unread_calls, [(3, BTreeSet::from([4]))]);

        // A reader begins before the answer of the store arrives, and takes the entries.
        let reading = notifier.begin_reading();
        let taken = notifier.take_new_runs().remove(&3).expect("the shard");
        assert_eq!(notifier.check_unread(3, &unread_calls[0].1, &gone, END), None);
        notifier.put_back(3, taken.into_iter());
        drop(reading);
        let loss = notifier.check_unread(3, &unread_calls[0].1, &gone, END);
        assert_eq!(loss.map(|loss| loss.entries), Some(3));
        assert!(notifier.unread_calls().is_empty());
    }
}
