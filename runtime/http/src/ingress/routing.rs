//! Chooses the queue of each event in the inbox, for a stream whose broker chooses the partition of each key. Only the
//! record of a key shows the partition of the key. The events of keys without a record wait in a queue of their own, the
//! unrouted queue.
//!
//! In a `fifo` stream, the events of a key must not overtake each other in different queues. Usually, the store shows
//! which queue has the earlier events of a key. A store that went back in time (lost its newest writes) may no longer
//! show these events, although the inbox has read them and still publishes them. Each process therefore also remembers
//! for some time into which queue it put the newest event of each key.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ordain_core::{OrderingMode, QueuePosition, QueueRun, digest, shard_of};
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
    /// The number of decisions about queues that this process has made.
    decisions: u64,
    /// The newest entry of each key.
    newest: RecentKeys<NewestEntry>,
    /// The runs of entries that this process added to the unrouted queue, by their history digests. The value is the
    /// number of decisions that the process had made when it learned that the run was added.
    unrouted_runs: RecentKeys<u64>,
}

/// The newest entry of a key.
#[derive(Debug, Clone, Copy)]
struct NewestEntry {
    /// The number of the decision to put the entry into its queue.
    decision: u64,
    place: Place,
}

#[derive(Debug, Clone, Copy)]
enum Place {
    /// The queue of a partition. `disconnects` is the value of [`Store::disconnects`] when the store last showed the
    /// record of the key.
    Partition { number: u32, disconnects: u64 },
    /// The unrouted queue, with the number of the entry.
    Unrouted { number: u64 },
}

/// A decision about the queues of events.
#[derive(Debug)]
pub(super) struct Decision {
    number: u64,
    /// The value of [`Store::disconnects`] before the process queried the store.
    disconnects: u64,
    /// The keys whose record the store may have lost, and whose partition this process remembers.
    remembered_keys: BTreeSet<String>,
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
        Self { decisions: 0, newest: RecentKeys::new(now), unrouted_runs: RecentKeys::new(now) }
    }

    fn begin_decision(&mut self, disconnects: u64, now: Instant) -> Decision {
        self.newest.expire(now);
        self.unrouted_runs.expire(now);
        self.decisions += 1;
        Decision { number: self.decisions, disconnects, remembered_keys: BTreeSet::new() }
    }

    fn record_run(&mut self, history: u64, now: Instant) {
        self.unrouted_runs.insert(history, self.decisions, now);
    }

    /// Records an entry of a key, unless the recorded entry comes from a later decision. Requests may end in another
    /// order than that of their decisions, so the entry of an earlier decision may arrive later.
    fn record_entry(&mut self, key: &str, entry: NewestEntry, now: Instant) {
        let key = digest(key.as_bytes());
        if self.newest.get(key).is_none_or(|newest| newest.decision <= entry.decision) {
            self.newest.insert(key, entry, now);
        }
    }

    fn place_in(&self, partition: u32, key: &str, decision: &Decision) -> Place {
        let shown_at = match self.newest_of(key).map(|newest| newest.place) {
            Some(Place::Partition { disconnects, .. })
                if decision.remembered_keys.contains(key) =>
            {
                disconnects
            }
            _ => decision.disconnects,
        };
        Place::Partition { number: partition, disconnects: shown_at }
    }

    fn newest_of(&self, key: &str) -> Option<NewestEntry> {
        self.newest.get(digest(key.as_bytes())).copied()
    }

    /// Returns the partition whose queue has the newest entry of a key, if the store may have lost the record of the
    /// key.
    fn partition_without_record(&self, key: &str, disconnects: u64) -> Option<u32> {
        match self.newest_of(key)?.place {
            Place::Partition { number, disconnects: before } if before != disconnects => {
                Some(number)
            }
            Place::Partition { .. } | Place::Unrouted { .. } => None,
        }
    }

    /// Returns whether the next event of a key must go into the unrouted queue, because an earlier event may wait there
    /// or may be unpublished.
    fn must_wait(&self, key: &str, shown: UnroutedEvents, disconnects: u64) -> bool {
        let Some(NewestEntry { decision, place }) = self.newest_of(key) else {
            return shown.newest.is_some();
        };
        match place {
            // The inbox removes the entries in their order, and only after it has published them.
            Place::Unrouted { number } => shown.newest.is_some() || number >= shown.first,
            Place::Partition { disconnects: before, .. } if before == disconnects => {
                shown.newest.is_some()
            }
            // A store that went back in time can show entries again that were removed before the decision.
            Place::Partition { .. } => shown.newest.is_some_and(|position| {
                let known_at = self.unrouted_runs.get(position.history);
                known_at.is_none_or(|known_at| *known_at >= decision)
            }),
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
    /// of this partition. If the key has no record, the event goes into the unrouted queue. In a `fifo` stream, there
    /// are two exceptions. If earlier events of the key still wait in the unrouted queue, the event goes there too. If
    /// the store may have lost the record of the key, the event goes into the queue of the key's newest event that this
    /// process remembers. The caller passes the decision to [`Self::record_entries`].
    pub(super) async fn assign_partitions(
        &self,
        items: &mut [AssignItem],
    ) -> Result<Decision, StoreError> {
        let disconnects = self.store.disconnects();
        let mut decision = self.recent_writes().begin_decision(disconnects, Instant::now());
        let keys: BTreeSet<&str> = items.iter().map(|item| item.event.key()).collect();
        let keys = Vec::from_iter(keys);
        let partitions = match self.ordering {
            OrderingMode::Fifo => self.partitions_in_order(&keys, &mut decision).await?,
            OrderingMode::Sequenced => self.recorded_partitions(&keys).await?,
        };
        for item in items {
            let known = partitions.get(item.event.key());
            item.partition = known.copied().unwrap_or(self.unrouted.number);
        }
        Ok(decision)
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
        decision: &mut Decision,
    ) -> Result<BTreeMap<String, u32>, StoreError> {
        let mut partitions = self.recorded_partitions(keys).await?;
        let disconnects = self.store.disconnects();
        for key in keys {
            if !partitions.contains_key(*key)
                && let Some(partition) =
                    self.recent_writes().partition_without_record(key, disconnects)
            {
                partitions.insert((*key).to_owned(), partition);
                decision.remembered_keys.insert((*key).to_owned());
            }
        }
        let found: Vec<String> = partitions.keys().cloned().collect();
        let unrouted = self.unrouted_events(&found).await?;
        let disconnects = self.store.disconnects();
        let writes = self.recent_writes();
        partitions.retain(|key, _| {
            let shown = unrouted.get(key.as_str());
            !shown.is_some_and(|shown| writes.must_wait(key, *shown, disconnects))
        });
        Ok(partitions)
    }

    /// Remembers the entries that this process added for the items. Each run in `added` contains the entries for the
    /// next items of the same queue and shard, in order.
    pub(super) fn record_entries(
        &self,
        decision: &Decision,
        items: &[AssignItem],
        added: &[QueuedEntries],
    ) {
        if self.ordering != OrderingMode::Fifo || !self.store.may_roll_back() {
            return;
        }
        let mut keys = BTreeMap::<(u32, u32), VecDeque<&str>>::new();
        for item in items {
            let key = item.event.key();
            let shard = shard_of(key, self.store.shards());
            keys.entry((item.partition, shard)).or_default().push_back(key);
        }
        let now = Instant::now();
        let mut writes = self.recent_writes();
        for QueuedEntries { partition, shard, run } in added {
            let is_unrouted = *partition == self.unrouted.number;
            if is_unrouted {
                writes.record_run(run.history, now);
            }
            let Some(keys) = keys.get_mut(&(*partition, *shard)) else { continue };
            for (key, number) in newest_numbers(run, keys) {
                let place = if is_unrouted {
                    Place::Unrouted { number }
                } else {
                    writes.place_in(*partition, key, decision)
                };
                writes.record_entry(key, NewestEntry { decision: decision.number, place }, now);
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

/// Takes the keys of the entries of a run from `keys`, and returns the number of the newest entry of each key. A call of
/// the store adds all events of a key one after the other, at the place of the first of them.
fn newest_numbers<'a>(run: &QueueRun, keys: &mut VecDeque<&'a str>) -> Vec<(&'a str, u64)> {
    let count = (run.last - run.first + 1).min(keys.len() as u64);
    let mut counts = Vec::<(&str, u64)>::new();
    let mut places = BTreeMap::<&str, usize>::new();
    for key in keys.drain(..count as usize) {
        let place = *places.entry(key).or_insert(counts.len());
        if place == counts.len() {
            counts.push((key, 0));
        }
        counts[place].1 += 1;
    }
    let mut next = run.first;
    for (_, number) in &mut counts {
        next += *number;
        *number = next - 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(newest: Option<(u64, u64)>, first: u64) -> UnroutedEvents {
        let newest = newest.map(|(number, history)| QueuePosition { number, history });
        UnroutedEvents { newest, first }
    }

    fn put(writes: &mut RecentWrites, decision: &Decision, place: Place, now: Instant) {
        writes.record_entry("a", NewestEntry { decision: decision.number, place }, now);
    }

    #[test]
    fn next_event_follows_an_unrouted_event() {
        let now = Instant::now();
        let mut writes = RecentWrites::new(now);
        assert!(writes.must_wait("a", shown(Some((8, 80)), 5), 0), "an entry of another process");
        assert!(!writes.must_wait("a", shown(None, 11), 0));

        let decision = writes.begin_decision(0, now);
        writes.record_run(80, now);
        put(&mut writes, &decision, Place::Unrouted { number: 10 }, now);
        assert!(writes.must_wait("a", shown(Some((10, 80)), 5), 0));
        assert!(writes.must_wait("a", shown(None, 5), 1), "the inbox may publish a lost event");
        assert!(!writes.must_wait("a", shown(None, 11), 1), "the inbox has removed the event");
        assert_eq!(writes.partition_without_record("a", 1), None);
    }

    #[test]
    fn next_event_follows_an_event_of_a_partition() {
        let now = Instant::now();
        let mut writes = RecentWrites::new(now);
        writes.record_run(80, now);
        let decision = writes.begin_decision(0, now);
        put(&mut writes, &decision, Place::Partition { number: 2, disconnects: 0 }, now);
        writes.record_run(90, now);
        assert_eq!(writes.partition_without_record("a", 0), None, "the record has expired");
        assert_eq!(writes.partition_without_record("a", 1), Some(2), "the record may be lost");
        assert!(!writes.must_wait("a", shown(None, 5), 1));
        let earlier = shown(Some((8, 80)), 5);
        assert!(writes.must_wait("a", earlier, 0), "the store never lost anything");
        assert!(!writes.must_wait("a", earlier, 1), "the store shows a removed entry again");
        assert!(writes.must_wait("a", shown(Some((9, 90)), 5), 1), "a later entry of this process");
        assert!(writes.must_wait("a", shown(Some((9, 91)), 5), 1), "an entry of another process");

        // The store still has no record of the key when the next event arrives.
        let mut decision = writes.begin_decision(1, now);
        decision.remembered_keys.insert("a".to_owned());
        let place = writes.place_in(2, "a", &decision);
        put(&mut writes, &decision, place, now);
        assert_eq!(writes.partition_without_record("a", 1), Some(2));
    }

    #[test]
    fn events_of_a_key_have_entries_one_after_the_other() {
        let mut keys = VecDeque::from(["a", "b", "a", "c", "a"]);
        let run = |first, last| QueueRun { first, last, history: 1, call: 1 };
        assert_eq!(newest_numbers(&run(7, 10), &mut keys), [("a", 8), ("b", 9), ("c", 10)]);
        assert_eq!(newest_numbers(&run(20, 20), &mut keys), [("a", 20)]);
        assert!(newest_numbers(&run(21, 21), &mut keys).is_empty());
    }

    /// A request makes its decision first, and ends last.
    #[test]
    fn entry_of_an_earlier_decision_replaces_no_newer_entry() {
        let now = Instant::now();
        let mut writes = RecentWrites::new(now);
        let [slow, fast] = [0, 0].map(|disconnects| writes.begin_decision(disconnects, now));
        put(&mut writes, &fast, Place::Partition { number: 2, disconnects: 0 }, now);
        put(&mut writes, &slow, Place::Unrouted { number: 5 }, now);
        assert_eq!(writes.partition_without_record("a", 1), Some(2));
    }
}
