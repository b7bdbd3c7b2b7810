//! Writes a producer's events to the store, which numbers, retains and queues the events as the rules of the
//! destination require. The events of a key keep their order: this module must never write an event before an earlier
//! event of the same key.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use ordain_core::{Event, QueueRun, shard_of};

use crate::writer::QueueWriter;
use ordain_config::NumberingPolicy;
use ordain_store::{
    ASSIGN_BYTES, ASSIGN_LIMIT, AssignGroup, AssignGroupReply, AssignItem, AssignItemReply,
    AssignReply, AssignRequest, Destination, OutboxChunk, OutboxPosition, Partition, Store,
    StoreError, Witness, WriterCall,
};
use ordain_util::log_throttle::LogThrottle;

/// Delay before a write to a full queue is retried.
const FULL_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Maximum number of times that one call writes events again because the store went back in time (lost its newest
/// writes).
pub(crate) const ROLLBACK_RETRY_LIMIT: usize = 5;
/// Minimum time between two warnings that a queue is full.
const WARN_INTERVAL: Duration = Duration::from_secs(5);

/// The reason why the store did not accept all events. The store may have some of the events nevertheless. If the
/// caller sends these events again, a store that numbers the events recognises them. A store that does not number the
/// events queues them a second time.
#[derive(Debug)]
pub enum AssignError {
    /// The queue of a partition is full.
    Full,
    /// The store failed.
    Store(StoreError),
    /// The store lost events that the publisher had written. The publisher repeated these events, and the store refused
    /// to number one of them. The text names the event, the reason and the next step.
    Refused(String),
    /// A shard (slice of the store) lacks an event that it had earlier. After the store had detected the loss, the call
    /// wrote nothing more to the shard.
    RolledBack,
}

/// The result of a call that writes events to the store.
#[derive(Debug, Default)]
pub struct AssignResult {
    /// The result for each event, in the order of the events.
    pub assigned: Vec<AssignItemReply>,
    /// The entries that the call added to queues.
    pub entries: Vec<QueuedEntries>,
    /// Number of events that a repeated write of this call added to the store: events that the store had lost, and
    /// events that the earlier writes had not added.
    pub rewritten: usize,
    /// The reason why the call did not process all events; `None` if the call processed all events.
    pub error: Option<AssignError>,
}

/// Entries that a call added to a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuedEntries {
    /// The partition of the stream whose queue has the entries.
    pub partition: u32,
    /// The shard (slice of the store) that has the entries.
    pub shard: u32,
    /// The numbers of the entries, their history digest, and the number of the call. A store that went back in time
    /// gives the numbers of lost entries to new entries. The history digest, a digest of all writes to the queue so
    /// far, distinguishes the new entries from the lost entries. The number of the call shows whether the store has
    /// lost the entries, because the store records the number of each call together with the entries of the call
    /// ([`ordain_store::MessageLog::writer_calls`]).
    pub run: QueueRun,
}

/// The result for the events of one shard. In `results`, the number before each reply is the index of the event among
/// the events of the call.
struct ShardResult {
    results: Vec<(usize, AssignItemReply)>,
    entries: Vec<QueuedEntries>,
    error: Option<AssignError>,
}

/// An assigner: it writes the events of a publisher, or events that arrive over HTTP, to the store.
pub struct EventAssigner {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The destination, and the rules for its numbers and queues.
    pub policy: NumberingPolicy,
    /// The writer under whose id the assigner adds queue entries.
    pub writer: Arc<QueueWriter>,
    /// The time for which the assigner waits for room in a full queue.
    pub full_timeout: Duration,
    /// True if the events of the caller are repeats of events whose numbers the store lost
    /// ([`AssignRequest::reuses_lost_numbers`]).
    pub reuses_lost_numbers: bool,
}

impl EventAssigner {
    /// Creates the item that represents an event in a call. The hash of the key determines the partition. If the broker
    /// chooses the partitions of the keys, the caller replaces this partition.
    pub fn item(&self, event: &Arc<Event>) -> AssignItem {
        let partition = shard_of(event.key(), self.policy.partitions);
        AssignItem { event: Arc::clone(event), partition, number: 0 }
    }

    /// Writes events to the queues of their stream, and returns the result for each event. The events are durable after
    /// the next [`Store::flush`].
    ///
    /// If the store was unreachable during the call, the store may have gone back in time and lost some of the events.
    /// The call then writes the lost events again until the store has all events, at most `ROLLBACK_RETRY_LIMIT` times.
    /// The call does not change events that the store still has.
    pub async fn assign(&self, items: &[AssignItem]) -> AssignResult {
        let nothing = BTreeMap::new();
        let mut before = self.disconnects(items);
        let mut result = self.assign_behind(items, &nothing, self.reuses_lost_numbers).await;
        for attempt in 0.. {
            let may_lack = match result.error {
                None => {
                    let shards = before.keys().copied().collect();
                    self.store.update_shard_disconnects(&shards).await;
                    self.disconnects(items) != before
                }
                Some(AssignError::RolledBack) => true,
                Some(_) => false,
            };
            if !may_lack {
                break;
            }
            if attempt == ROLLBACK_RETRY_LIMIT {
                result.error = Some(AssignError::RolledBack);
                break;
            }
            before = self.disconnects(items);
            result.error = None;
            result = self.reassign_lost(items, result, None, &nothing).await;
        }
        result
    }

    /// Returns, for each shard to which the events belong, the number of connections to the shard that have broken so
    /// far. If this count of a shard changes, the shard may have lost events.
    pub fn disconnects(&self, items: &[AssignItem]) -> BTreeMap<u32, u64> {
        let shards = self.store.shards();
        let shard_of_item = |item: &AssignItem| shard_of(item.event.key(), shards);
        let item_shards: BTreeSet<u32> = items.iter().map(shard_of_item).collect();
        item_shards.into_iter().map(|shard| (shard, self.store.shard_disconnects(shard))).collect()
    }

    /// Repeats the writes of events that the store may have lost. `first` is the result of the call that wrote `items`.
    /// `only` is `None` if `items` are the events of the present call. If `items` are the events of an earlier call,
    /// `only` contains the shards to which this method may write. Writes nothing to a shard that lacks its witness, an
    /// earlier event that the shard must have.
    ///
    /// The store numbered the events of an earlier call, and has lost these numbers. But the readers may have received
    /// the events with these numbers, from the broker or from the queue of the stream. For such events, this method
    /// therefore requests the lost numbers ([`AssignRequest::reuses_lost_numbers`]), by which the readers recognise the
    /// repeated events.
    pub(crate) async fn reassign_lost(
        &self,
        items: &[AssignItem],
        mut first: AssignResult,
        only: Option<&BTreeSet<u32>>,
        witnesses: &BTreeMap<u32, Witness>,
    ) -> AssignResult {
        let is_in = |shard: u32| only.is_none_or(|only| only.contains(&shard));
        let mut lost: BTreeSet<(u32, u32)> = BTreeSet::new();
        let mut lost_calls: BTreeSet<(u32, u64)> = BTreeSet::new();
        for put in first.entries.iter().filter(|put| is_in(put.shard)) {
            match self.has_lost(put).await {
                Ok(true) => {
                    lost.insert((put.partition, put.shard));
                    lost_calls.insert((put.shard, put.run.call));
                }
                Ok(false) => {}
                Err(error) => {
                    first.error = Some(AssignError::Store(error));
                    return first;
                }
            }
        }
        let shards = self.store.shards();
        let queue_of = |item: &AssignItem| (item.partition, shard_of(item.event.key(), shards));
        // A store that numbers the events recognises the events that it has. This method can then write every event
        // once more.
        let is_numbered = self.policy.rules.numbering.is_some();
        let indexes: Vec<usize> = (0..items.len())
            .filter(|at| {
                let queue = queue_of(&items[*at]);
                let is_open = first.assigned[*at] == AssignItemReply::AfterConflict || is_numbered;
                lost.contains(&queue) || (is_open && is_in(queue.1))
            })
            .collect();
        let selected: Vec<AssignItem> = indexes.iter().map(|at| items[*at].clone()).collect();
        let reuses = only.is_some() || self.reuses_lost_numbers;
        let second = self.assign_behind(&selected, witnesses, reuses).await;
        for (at, assigned) in indexes.into_iter().zip(second.assigned) {
            first.rewritten += usize::from(matches!(assigned, AssignItemReply::New(_)));
            first.assigned[at] = match (first.assigned[at], assigned) {
                (AssignItemReply::New(_), AssignItemReply::Known(number)) => {
                    AssignItemReply::New(number)
                }
                // The second call did not write the event, so the first result is still valid.
                (before, AssignItemReply::AfterConflict) => before,
                (_, assigned) => assigned,
            };
        }
        // `first.entries` keeps the entries that the store still has. If the second call failed, `first.entries` also
        // keeps the lost entries of the queues to which the second call wrote nothing.
        let replaced: BTreeSet<(u32, u32)> =
            second.entries.iter().map(|put| (put.partition, put.shard)).collect();
        first.entries.retain(|put| {
            !replaced.contains(&(put.partition, put.shard))
                || !lost_calls.contains(&(put.shard, put.run.call))
        });
        first.entries.extend(second.entries);
        first.error = second.error;
        first
    }

    /// Returns whether the store has lost these entries.
    async fn has_lost(&self, put: &QueuedEntries) -> Result<bool, StoreError> {
        let Destination::Stream(stream) = &self.policy.destination else { return Ok(false) };
        let partition = Partition { stream: Arc::clone(stream), number: put.partition };
        let (calls, _) = self.store.writer_calls(&partition, put.shard, self.writer.id()).await?;
        Ok(!calls.contains(put.run.call))
    }

    /// Returns whether a shard has its witness, an earlier event that the shard must have.
    pub(crate) async fn has_witness(
        &self,
        shard: u32,
        witness: Witness,
    ) -> Result<bool, StoreError> {
        let NumberingPolicy { destination, rules, .. } = &self.policy;
        let witness = Some(witness);
        let check = AssignRequest {
            destination: destination.clone(),
            shard,
            rules: *rules,
            witness,
            call: None,
            readers: Vec::new(),
            reuses_lost_numbers: false,
            groups: Vec::new(),
        };
        match self.store.assign(Arc::new(check)).await {
            Err(StoreError::RolledBack) => Ok(false),
            reply => reply.map(|_| true),
        }
    }

    /// Returns, for each shard, the witness that the next call must name: the last of `events` that the store accepted
    /// as new. If the store does not number the events, the witness of a shard is instead a call: the call of the last
    /// entries in `put` that belong to the shard.
    pub(crate) fn witnesses<'a>(
        &self,
        events: impl Iterator<Item = (&'a AssignItem, &'a AssignItemReply)>,
        put: &[QueuedEntries],
    ) -> BTreeMap<u32, Witness> {
        let Some(numbering) = self.policy.rules.numbering else {
            let writer = self.writer.id();
            let call = |put: &QueuedEntries| WriterCall { writer, call: put.run.call };
            return put.iter().map(|put| (put.shard, Witness::Call(call(put)))).collect();
        };
        let shards = self.store.shards();
        let new = events.filter_map(|(item, assigned)| match *assigned {
            AssignItemReply::New(sequence) => {
                Some((shard_of(item.event.key(), shards), (&item.event, sequence)))
            }
            _ => None,
        });
        // A witness needs a copy of its event's key. To copy few keys, this function creates a witness only for the
        // last event of each shard.
        let newest: BTreeMap<u32, (&Arc<Event>, u64)> = new.collect();
        let witness = |(event, sequence): (&Arc<Event>, u64)| {
            let key = event.key().into();
            match event.sequence() {
                None => Witness::StoreNumbered { key, id: event.identity_digest(), sequence },
                Some(_) => Witness::ProducerNumbered {
                    key,
                    sequence,
                    content: event.content(),
                    evicted_by: sequence.saturating_add(numbering.retain_events),
                },
            }
        };
        newest.into_iter().map(|(shard, event)| (shard, witness(event))).collect()
    }

    /// Writes the events to their shards. `witnesses` contains, for some shards, an earlier event that the shard must
    /// have. Writes nothing to a shard that lacks its witness; the error is then [`AssignError::RolledBack`]. `reuses`
    /// is the field [`AssignRequest::reuses_lost_numbers`] of the calls.
    pub(crate) async fn assign_behind(
        &self,
        items: &[AssignItem],
        witnesses: &BTreeMap<u32, Witness>,
        reuses: bool,
    ) -> AssignResult {
        let shards = self.store.shards();
        let mut by_shard: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (at, item) in items.iter().enumerate() {
            by_shard.entry(shard_of(item.event.key(), shards)).or_default().push(at);
        }
        let assigned = vec![AssignItemReply::AfterConflict; items.len()];
        let mut all = AssignResult { assigned, ..AssignResult::default() };
        let each = by_shard.into_iter().map(|(shard, places)| {
            self.assign_in_shard(shard, places, items, witnesses.get(&shard).cloned(), reuses)
        });
        for ShardResult { results: done, entries: put, error: failed } in join_all(each).await {
            for (at, assigned) in done {
                all.assigned[at] = assigned;
            }
            all.entries.extend(put);
            all.error = all.error.or(failed);
        }
        all
    }

    /// Writes the events of a shard in order, in calls of at most [`ASSIGN_LIMIT`] events and about [`ASSIGN_BYTES`]
    /// bytes.
    async fn assign_in_shard(
        &self,
        shard: u32,
        indexes: Vec<usize>,
        items: &[AssignItem],
        mut witness: Option<Witness>,
        reuses: bool,
    ) -> ShardResult {
        let mut results = Vec::with_capacity(indexes.len());
        let mut entries = Vec::new();
        let mut in_conflict: HashSet<&str> = HashSet::new();
        let mut rest = &indexes[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = rest.iter().take(ASSIGN_LIMIT).take_while(|at| {
                bytes += items[**at].event.memory();
                bytes <= ASSIGN_BYTES
            });
            let (now, later) = rest.split_at(fits.count().max(1));
            rest = later;
            // Each key has a group of its own, so that a conflict blocks only the later events of its key.
            let mut index_groups: Vec<Vec<usize>> = Vec::new();
            let mut group_of_key: HashMap<&str, usize> = HashMap::new();
            for at in now {
                let key = items[*at].event.key();
                if !in_conflict.contains(key) {
                    let group_index = *group_of_key.entry(key).or_insert(index_groups.len());
                    index_groups.resize(index_groups.len().max(group_index + 1), Vec::new());
                    index_groups[group_index].push(*at);
                }
            }
            let groups = index_groups.iter().map(|group| producer_group(group, items)).collect();
            let request = self.request(shard, groups, witness.clone(), reuses);
            let (replies, runs) = match self.retry_while_full(request).await {
                Ok(replies) => replies,
                Err(error) => {
                    return ShardResult { results, entries, error: Some(error) };
                }
            };
            let done_before = results.len();
            let runs =
                runs.into_iter().map(|(partition, run)| QueuedEntries { partition, shard, run });
            let runs: Vec<QueuedEntries> = runs.collect();
            for (group, reply) in index_groups.into_iter().zip(replies) {
                let AssignGroupReply::Done(assigned) = reply else {
                    unreachable!("the store gives other replies only to groups of an outbox")
                };
                if assigned.iter().any(|result| result.is_refused()) {
                    in_conflict.insert(items[group[0]].event.key());
                }
                results.extend(group.into_iter().zip(assigned));
            }
            // The next call names a witness: the last new event of this call or, if the store does not number the
            // events, this call itself.
            let events =
                results[done_before..].iter().map(|(at, assigned)| (&items[*at], assigned));
            witness = self.witnesses(events, &runs).remove(&shard).or(witness);
            entries.extend(runs);
        }
        ShardResult { results, entries, error: None }
    }

    /// Returns the request of a call that writes groups of events to a shard.
    fn request(
        &self,
        shard: u32,
        groups: Vec<AssignGroup>,
        witness: Option<Witness>,
        reuses: bool,
    ) -> Arc<AssignRequest> {
        let NumberingPolicy { destination: to, rules, readers, .. } = &self.policy;
        let has_queues = matches!(to, Destination::Stream(_));
        Arc::new(AssignRequest {
            destination: to.clone(),
            shard,
            rules: *rules,
            witness,
            call: has_queues.then(|| self.writer.next_call(shard)),
            readers: readers.clone(),
            reuses_lost_numbers: reuses,
            groups,
        })
    }

    /// Sends a request to the store. If a queue is full, retries for up to [`Self::full_timeout`]. All attempts have
    /// the same call number. The store therefore recognises an attempt that arrives late as a repeat.
    async fn retry_while_full(
        &self,
        request: Arc<AssignRequest>,
    ) -> Result<(Vec<AssignGroupReply>, Vec<(u32, QueueRun)>), AssignError> {
        let started = Instant::now();
        let mut throttle = LogThrottle::new(WARN_INTERVAL);
        loop {
            match self.store.assign(Arc::clone(&request)).await {
                Ok(AssignReply::Groups(replies, runs)) => return Ok((replies, runs)),
                Ok(AssignReply::Full) => {}
                Err(StoreError::RolledBack) => return Err(AssignError::RolledBack),
                Err(error) => return Err(AssignError::Store(error)),
            }
            if started.elapsed() >= self.full_timeout {
                if let Some(call) = request.call {
                    self.writer.take_back(request.shard, call);
                }
                return Err(AssignError::Full);
            }
            if throttle.allow() {
                tracing::warn!(
                    "the queue of {} has reached its limit (the setting `source.queue`); waiting until events are \
                     consumed",
                    request.destination
                );
            }
            tokio::time::sleep(FULL_RETRY_DELAY).await;
        }
    }
}

/// Returns a group of a producer with the items at these indexes.
fn producer_group(indexes: &[usize], items: &[AssignItem]) -> AssignGroup {
    let items = indexes.iter().map(|at| items[*at].clone()).collect();
    let chunks = vec![OutboxChunk { position: OutboxPosition::default(), items }];
    AssignGroup { origin: None, chunks }
}
