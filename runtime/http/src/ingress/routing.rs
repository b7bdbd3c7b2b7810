//! Chooses the queue of each event in the inbox, for a stream whose broker chooses the partition of each key. Only the
//! record of a key shows the partition of the key. The events of keys without a record wait in a queue of their own, the
//! unrouted queue.
//!
//! In a `fifo` stream, the events of a key must not overtake each other in different queues. Usually, the store shows
//! which queue has the earlier events of a key. If the store goes back in time (loses its newest writes), it may lose
//! entries that the inbox of this process has read and not published yet, and also the record of a key. Two rules keep
//! the order then:
//!
//! - After a connection to the store broke, the process first publishes the unrouted events that it has read.
//! - For some time, a key keeps the partition in which this process put its earlier events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ordain_core::{OrderingMode, QueuePosition, digest, shard_of};
use ordain_engine::source::QueueNotifier;
use ordain_store::{AssignItem, Partition, Store, StoreError};

use super::recent_keys::RecentKeys;

/// Maximum number of queue entries that one call of the store reads, to find keys with waiting events.
const PAGE_ENTRIES: usize = 1_024;
/// Approximate maximum size, in bytes, of the queue entries that one call of the store reads.
const PAGE_BYTES: usize = 4 << 20;

/// How long a request waits until the inbox has published the events that it has read from the unrouted queue. The
/// broker may refuse these events for an unlimited time, and the request must be answered.
const READ_EVENTS_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a key keeps its partition after a connection to the store broke. In this time, the owner of the partition
/// repeats the commits that the store lost, and so restores the record of the key.
const KEPT_PARTITIONS_TIME: Duration = Duration::from_mins(1);

pub(super) struct Routing {
    store: Arc<dyn Store>,
    unrouted: Partition,
    /// The notifier of the unrouted queue.
    notifier: Arc<QueueNotifier>,
    ordering: OrderingMode,
    /// The keys of the events in the unrouted queue, by shard (slice of the store).
    waiting: tokio::sync::Mutex<BTreeMap<u32, WaitingKeys>>,
    routes: Mutex<RecentRoutes>,
}

/// The keys, in one shard, of the events in the unrouted queue. Each entry of this queue is read once, and the keys of
/// the entries are kept for later requests.
#[derive(Default)]
struct WaitingKeys {
    keys: BTreeMap<String, u64>,
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
            self.keys.retain(|_, number| *number >= first);
        }
    }
}

/// The partitions in which this process recently put events.
struct RecentRoutes {
    partitions: RecentKeys<u32>,
    /// The value of [`Store::disconnects`] at the newest check.
    disconnects: u64,
    /// The time of the newest check that found a new disconnect.
    disconnected_at: Option<Instant>,
}

impl RecentRoutes {
    fn new(now: Instant) -> Self {
        Self { partitions: RecentKeys::new(now), disconnects: 0, disconnected_at: None }
    }

    fn record_disconnects(&mut self, disconnects: u64, now: Instant) {
        if self.disconnects != disconnects {
            self.disconnects = disconnects;
            self.disconnected_at = Some(now);
        }
    }

    /// Completes `found`, the partitions that the store shows for some of the keys. A recent key keeps its partition
    /// for some time after a disconnect.
    fn complete(&mut self, keys: &[&str], found: &mut BTreeMap<String, u32>, now: Instant) {
        self.partitions.expire(now);
        let keeps = self
            .disconnected_at
            .is_some_and(|at| now.saturating_duration_since(at) < KEPT_PARTITIONS_TIME);
        for key in keys {
            let digest = digest(key.as_bytes());
            let kept = self.partitions.get(digest).copied().filter(|_| keeps);
            if let Some(partition) = kept {
                found.insert((*key).to_owned(), partition);
            } else if let Some(partition) = found.get(*key) {
                self.partitions.insert(digest, *partition, now);
            }
        }
    }
}

impl Routing {
    pub(super) fn new(
        store: Arc<dyn Store>,
        unrouted: Partition,
        notifier: Arc<QueueNotifier>,
        ordering: OrderingMode,
    ) -> Self {
        Self {
            store,
            unrouted,
            notifier,
            ordering,
            waiting: tokio::sync::Mutex::default(),
            routes: Mutex::new(RecentRoutes::new(Instant::now())),
        }
    }

    /// Sets the partition of each event to the partition in the record of the event's key. The event waits in the queue
    /// of this partition. If the key has no record, the event goes into the unrouted queue. In a `fifo` stream, an event
    /// whose key has a record goes into the unrouted queue if earlier events of its key still wait there.
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
        loop {
            let disconnects = self.store.disconnects();
            self.publish_read_events(disconnects).await;
            let mut partitions = self.recorded_partitions(keys).await?;
            let recorded: Vec<String> = partitions.keys().cloned().collect();
            let waiting = self.waiting_keys(&recorded).await?;
            partitions.retain(|key, _| !waiting.contains(key.as_str()));
            // If a connection broke meanwhile, the answers may show two different states of the store.
            if self.store.disconnects() == disconnects {
                self.routes().complete(keys, &mut partitions, Instant::now());
                return Ok(partitions);
            }
        }
    }

    /// After a disconnect, waits until the inbox of this process has published the events that it has read from the
    /// unrouted queue. The store may have lost these events, so that it no longer shows them.
    async fn publish_read_events(&self, disconnects: u64) {
        if self.routes().disconnects != disconnects {
            let published = self.notifier.wait_for_read_entries();
            // The order of the events is lost if the wait ends too early.
            let _ = tokio::time::timeout(READ_EVENTS_TIMEOUT, published).await;
            self.routes().record_disconnects(disconnects, Instant::now());
        }
    }

    /// Returns the given keys that have events in the unrouted queue. Usually, the result is empty.
    async fn waiting_keys<'a>(&self, of: &'a [String]) -> Result<BTreeSet<&'a str>, StoreError> {
        let Self { store, unrouted, .. } = self;
        let mut by_shard = BTreeMap::<u32, Vec<&str>>::new();
        for key in of {
            by_shard.entry(shard_of(key, store.shards())).or_default().push(key);
        }
        let mut keys = BTreeSet::new();
        if by_shard.is_empty() {
            return Ok(keys);
        }
        for (shard, ends) in (0..).zip(store.queue_ends(unrouted).await?) {
            let Some(of) = by_shard.get(&shard).filter(|_| !ends.is_empty()) else { continue };
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
                        known.keys.insert(event.key().to_owned(), position.number);
                    }
                }
            }
            known.forget_before(ends.first);
            keys.extend(of.iter().filter(|key| known.keys.contains_key(**key)));
        }
        Ok(keys)
    }

    fn routes(&self) -> MutexGuard<'_, RecentRoutes> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_keeps_its_partition_after_a_disconnect() {
        let start = Instant::now();
        let mut routes = RecentRoutes::new(start);
        let mut complete = |disconnects, recorded: Option<u32>, at| {
            let mut found: BTreeMap<String, u32> =
                recorded.into_iter().map(|partition| ("a".to_owned(), partition)).collect();
            routes.record_disconnects(disconnects, at);
            routes.complete(&["a", "b"], &mut found, at);
            assert_eq!(found.get("b"), None);
            found.get("a").copied()
        };
        assert_eq!(complete(0, Some(2), start), Some(2));
        assert_eq!(complete(0, None, start), None, "the record expired");
        assert_eq!(complete(1, None, start), Some(2), "the store may have lost the record");
        let late = start + KEPT_PARTITIONS_TIME;
        assert_eq!(complete(1, None, late), None);
        assert_eq!(complete(1, Some(3), late), Some(3));
    }
}
