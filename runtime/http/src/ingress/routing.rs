//! Chooses the queue of each event in the inbox, for a stream whose broker chooses the partition of each key. Only the
//! record of a key shows the partition of the key. The events of keys without a record wait in a queue of their own, the
//! unrouted queue.
//!
//! In a `fifo` stream, the events of a key must not overtake each other in different queues. Usually, the store shows
//! which queue has the earlier events of a key. A store that went back in time (lost its newest writes) may no longer
//! show these events, although the inbox has read them and still publishes them. Each process therefore also remembers
//! for some time into which queue it put the newest event of each key.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ordain_core::{OrderingMode, QueuePosition, digest, shard_of};
use ordain_publish::QueuedEntries;
use ordain_store::{AssignItem, Partition, Store, StoreError};

use super::recent_keys::RecentKeys;

/// Maximum number of queue entries that one call of the store reads, to find keys with waiting events.
const PAGE_ENTRIES: usize = 1_024;
/// Approximate maximum size, in bytes, of the queue entries that one call of the store reads.
const PAGE_BYTES: usize = 4 << 20;

pub(super) struct Routing {
    store: Arc<dyn Store>,
    unrouted: Partition,
    ordering: OrderingMode,
    /// The keys of the events in the unrouted queue, by shard (slice of the store).
    waiting: tokio::sync::Mutex<BTreeMap<u32, WaitingKeys>>,
    /// Empty if the stream is not `fifo`, or if the store cannot go back in time.
    recent_writes: Mutex<RecentWrites>,
}

/// The keys, in one shard, of the events in the unrouted queue. Each entry of this queue is read once, and the keys of
/// the entries are kept for later requests.
#[derive(Default)]
struct WaitingKeys {
    /// The position of the newest entry of each key.
    keys: BTreeMap<String, QueuePosition>,
    /// The number of the first entry that may still be in the queue.
    start: u64,
    /// The queue position of the last entry that was read.
    through: QueuePosition,
}

impl WaitingKeys {
    /// Removes the keys whose newest entry has a lower number than `first`, because these entries are no longer in the
    /// queue.
    fn forget_before(&mut self, first: u64) {
        if self.start < first {
            self.start = first;
            self.keys.retain(|_, newest| newest.number >= first);
        }
    }
}

/// The queue entries that this process added recently.
struct RecentWrites {
    /// The newest entry of each key.
    newest: RecentKeys<NewestEntry>,
    /// The history digests of the entries in the unrouted queue.
    unrouted: RecentKeys<()>,
}

#[derive(Debug, Clone, Copy)]
struct NewestEntry {
    /// The number of a partition, or of the unrouted queue.
    queue: u32,
    /// The number of the entry, or of a later entry that the same call added.
    number: u64,
}

/// The events of a key in the unrouted queue, as the store shows them.
#[derive(Debug, Clone, Copy)]
struct UnroutedEvents {
    /// The newest entry of the key.
    newest: Option<QueuePosition>,
    /// The number of the first entry of the queue. If no entry waits, the number that the next entry will get.
    first: u64,
}

impl RecentWrites {
    fn new(now: Instant) -> Self {
        Self { newest: RecentKeys::new(now), unrouted: RecentKeys::new(now) }
    }

    fn expire(&mut self, now: Instant) {
        self.newest.expire(now);
        self.unrouted.expire(now);
    }

    fn newest_of(&self, key: &str) -> Option<NewestEntry> {
        self.newest.get(digest(key.as_bytes())).copied()
    }

    /// Returns whether the newest event of a key is in the unrouted queue, or was there and may be unpublished.
    fn is_unrouted(&self, key: &str, shown: UnroutedEvents, unrouted: u32) -> bool {
        match self.newest_of(key) {
            None => shown.newest.is_some(),
            // The inbox removes the entries in their order, and only after it has published them.
            Some(newest) if newest.queue == unrouted => {
                shown.newest.is_some() || newest.number >= shown.first
            }
            // A store that went back in time can show older entries of this process again. Only an entry of another
            // process can be newer than the entry in the queue of the partition.
            Some(_) => shown.newest.is_some_and(|shown| self.unrouted.get(shown.history).is_none()),
        }
    }
}

impl Routing {
    pub(super) fn new(store: Arc<dyn Store>, unrouted: Partition, ordering: OrderingMode) -> Self {
        Self {
            store,
            unrouted,
            ordering,
            waiting: tokio::sync::Mutex::default(),
            recent_writes: Mutex::new(RecentWrites::new(Instant::now())),
        }
    }

    /// Sets the partition of each event to the partition in the record of the event's key. The event waits in the queue
    /// of this partition. If the key has no record, the event goes into the unrouted queue. In a `fifo` stream, an event
    /// goes into the unrouted queue if earlier events of its key still wait there. If the record is missing, an event of
    /// a `fifo` stream follows the event of its key that this process put into a queue recently.
    pub(super) async fn assign_partitions(
        &self,
        items: &mut [AssignItem],
    ) -> Result<(), StoreError> {
        let keys: BTreeSet<&str> = items.iter().map(|item| item.event.key()).collect();
        let keys = Vec::from_iter(keys);
        let partitions = match self.ordering {
            OrderingMode::Fifo => self.partitions_in_order(&keys).await?,
            OrderingMode::Sequenced => self.recorded_partitions(&keys).await?,
        };
        for item in items {
            let known = partitions.get(item.event.key());
            item.partition = known.copied().unwrap_or(self.unrouted.number);
        }
        Ok(())
    }

    /// Returns the partitions of the keys with a record.
    async fn recorded_partitions(
        &self,
        keys: &[&str],
    ) -> Result<BTreeMap<String, u32>, StoreError> {
        let found = self.store.partitions_of(&self.unrouted.stream, keys).await?;
        let of_keys = keys.iter().zip(found).filter_map(|(key, partition)| {
            let partition = partition.filter(|number| *number < self.unrouted.number)?;
            Some(((*key).to_owned(), partition))
        });
        Ok(of_keys.collect())
    }

    /// Returns the partitions of the keys whose next event overtakes no earlier event in the queue of its partition.
    async fn partitions_in_order(
        &self,
        keys: &[&str],
    ) -> Result<BTreeMap<String, u32>, StoreError> {
        let mut partitions = self.recorded_partitions(keys).await?;
        {
            let mut writes = self.recent_writes();
            writes.expire(Instant::now());
            for key in keys {
                if let Some(newest) =
                    writes.newest_of(key).filter(|newest| newest.queue < self.unrouted.number)
                {
                    partitions.entry((*key).to_owned()).or_insert(newest.queue);
                }
            }
        }
        let found: Vec<String> = partitions.keys().cloned().collect();
        let unrouted = self.unrouted_events(&found).await?;
        let writes = self.recent_writes();
        partitions.retain(|key, _| {
            let shown = unrouted.get(key.as_str());
            !shown.is_some_and(|shown| writes.is_unrouted(key, *shown, self.unrouted.number))
        });
        Ok(partitions)
    }

    /// Remembers the entries that this process added for the items.
    pub(super) fn record_entries(&self, items: &[AssignItem], added: &[QueuedEntries]) {
        if self.ordering != OrderingMode::Fifo || !self.store.may_roll_back() {
            return;
        }
        let now = Instant::now();
        let mut writes = self.recent_writes();
        for QueuedEntries { partition, shard, run } in added {
            if *partition == self.unrouted.number {
                writes.unrouted.insert(run.history, (), now);
            }
            let newest = NewestEntry { queue: *partition, number: run.last };
            for key in items
                .iter()
                .filter(|item| item.partition == *partition)
                .map(|item| item.event.key())
            {
                if shard_of(key, self.store.shards()) == *shard {
                    writes.newest.insert(digest(key.as_bytes()), newest, now);
                }
            }
        }
    }

    /// Returns the events of the keys in the unrouted queue. Usually, no key has such events.
    async fn unrouted_events<'a>(
        &self,
        keys: &'a [String],
    ) -> Result<BTreeMap<&'a str, UnroutedEvents>, StoreError> {
        let Self { store, unrouted, .. } = self;
        let mut by_shard = BTreeMap::<u32, Vec<&str>>::new();
        for key in keys {
            by_shard.entry(shard_of(key, store.shards())).or_default().push(key);
        }
        let mut events = BTreeMap::new();
        if by_shard.is_empty() {
            return Ok(events);
        }
        for (shard, ends) in (0..).zip(store.queue_ends(unrouted).await?) {
            let Some(keys) = by_shard.get(&shard) else { continue };
            if ends.is_empty() {
                let of_none = UnroutedEvents { newest: None, first: ends.first };
                events.extend(keys.iter().map(|key| (*key, of_none)));
                continue;
            }
            let mut known = self.waiting.lock().await;
            let known = known.entry(shard).or_default();
            while known.through != ends.last {
                let after = known.through;
                let page = match store
                    .read_queue(unrouted, shard, after, PAGE_ENTRIES, PAGE_BYTES)
                    .await
                {
                    Err(StoreError::RolledBack) => {
                        // The store went back in time, and may have given the numbers of lost entries to other
                        // entries. The queue is therefore read from its beginning.
                        *known = WaitingKeys::default();
                        continue;
                    }
                    page => page?,
                };
                known.forget_before(page.first);
                if page.entries.is_empty() {
                    break;
                }
                for (position, item) in page.entries {
                    known.through = position;
                    if let Ok(event) = item {
                        known.keys.insert(event.key().to_owned(), position);
                    }
                }
            }
            known.forget_before(ends.first);
            events.extend(keys.iter().map(|key| {
                let newest = known.keys.get(*key).copied();
                (*key, UnroutedEvents { newest, first: ends.first })
            }));
        }
        Ok(events)
    }

    fn recent_writes(&self) -> MutexGuard<'_, RecentWrites> {
        self.recent_writes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNROUTED: u32 = 4;

    #[test]
    fn next_event_follows_the_newest_one() {
        let now = Instant::now();
        let mut writes = RecentWrites::new(now);
        let shown = |newest: Option<(u64, u64)>, first| UnroutedEvents {
            newest: newest.map(|(number, history)| QueuePosition { number, history }),
            first,
        };
        let waiting = shown(Some((8, 80)), 5);
        let published = shown(None, 11);
        let lost = shown(None, 5);
        assert!(writes.is_unrouted("a", waiting, UNROUTED), "another process added the entry");
        assert!(!writes.is_unrouted("a", published, UNROUTED));

        let newest = NewestEntry { queue: UNROUTED, number: 10 };
        writes.newest.insert(digest(b"a"), newest, now);
        writes.unrouted.insert(80, (), now);
        assert!(writes.is_unrouted("a", waiting, UNROUTED));
        assert!(writes.is_unrouted("a", lost, UNROUTED), "the inbox may publish the lost event");
        assert!(!writes.is_unrouted("a", published, UNROUTED));

        let newest = NewestEntry { queue: 2, number: 3 };
        writes.newest.insert(digest(b"a"), newest, now);
        assert!(!writes.is_unrouted("a", waiting, UNROUTED), "an older entry is back");
        assert!(writes.is_unrouted("a", shown(Some((8, 81)), 5), UNROUTED), "of another process");
        assert!(!writes.is_unrouted("a", lost, UNROUTED));
    }
}
