//! Tells those who read what waits for a stream, in this process, that more does.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use ordain_core::QueueRun;
use ordain_store::Partition;

/// The limit of runs of a shard that wait for a reader. If another process reads the partition, they are never taken.
const RUNS_LIMIT: usize = 1_024;

/// The feeds of all partitions of streams that are fed from here.
#[derive(Debug, Default)]
pub struct Feeds(Mutex<HashMap<Partition, Arc<Feed>>>);

impl Feeds {
    /// That of a partition.
    pub fn of(&self, partition: &Partition) -> Arc<Feed> {
        let mut feeds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(feeds.entry(partition.clone()).or_default())
    }

    /// How many writes have put something, and whether all of it has been read and acknowledged.
    pub fn puts(&self) -> (u64, bool) {
        let feeds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let puts = feeds.values().map(|feed| feed.puts()).sum();
        (puts, feeds.values().all(|feed| feed.is_empty()))
    }
}

/// Entries that were put into a shard, and when, in ms since 1970.
pub(super) type Fresh = VecDeque<(QueueRun, u64)>;

/// What is told of one partition.
#[derive(Debug, Default)]
pub struct Feed {
    puts: AtomicU64,
    /// The puts after which nothing was left.
    emptied: AtomicU64,
    /// Shards with new entries, and the places of those that this process put there.
    fresh: Mutex<BTreeMap<u32, Fresh>>,
    more: Notify,
    room: Notify,
}

impl Feed {
    /// Notifies the reader of a write to the queue of a shard. `new` has the entries that the reader must expect.
    pub fn put(&self, shard: u32, new: Option<QueueRun>) {
        // A reader that sees the count must find the shard.
        let mut fresh = self.fresh.lock().unwrap_or_else(PoisonError::into_inner);
        let runs = fresh.entry(shard).or_default();
        if new.is_some() && runs.len() >= RUNS_LIMIT {
            runs.pop_front();
        }
        let now = jiff::Timestamp::now().as_millisecond().cast_unsigned();
        runs.extend(new.map(|run| (run, now)));
        drop(fresh);
        self.puts.fetch_add(1, Ordering::SeqCst);
        self.more.notify_one();
    }

    /// How often something was put.
    pub(super) fn puts(&self) -> u64 {
        self.puts.load(Ordering::SeqCst)
    }

    /// Waits until something is put.
    pub(super) async fn more(&self) {
        self.more.notified().await;
    }

    /// Takes the shards that were written since the last call, with the entries that this process put there.
    pub(super) fn take_fresh(&self) -> BTreeMap<u32, Fresh> {
        std::mem::take(&mut self.fresh.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// After so many puts nothing was left.
    pub(super) fn emptied(&self, puts: u64) {
        self.emptied.store(puts + 1, Ordering::SeqCst);
    }

    fn is_empty(&self) -> bool {
        self.emptied.load(Ordering::SeqCst) == self.puts() + 1
    }

    /// Something was removed.
    pub(super) fn removed(&self) {
        self.room.notify_one();
    }

    /// Waits until something is removed.
    pub async fn room(&self) {
        self.room.notified().await;
    }
}
