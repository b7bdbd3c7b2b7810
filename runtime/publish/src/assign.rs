//! A producer's events into the store: numbered, kept and queued, each behind those of its key.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use ordain_core::{Event, QueueRun, shard_of};

use ordain_config::Passage;
use ordain_store::{
    ASSIGN_BYTES, ASSIGN_LIMIT, Assign, AssignReply, Assigned, Destination, Item, Lot, LotReply,
    Part, Partition, Place, Store, StoreError, Witness,
};
use ordain_util::log_throttle::LogThrottle;

/// Before a full queue is tried again.
const FULL: Duration = Duration::from_millis(100);
/// Time between two warnings that a queue is full.
const WARN_INTERVAL: Duration = Duration::from_secs(5);

/// Why not all were taken. Some may be all the same: the next time they are known.
#[derive(Debug)]
pub enum NotAssigned {
    /// As many wait for a partition as may.
    Full,
    /// The store failed.
    Store(StoreError),
    /// A shard lacks an event that it had before. Nothing behind that event was put there.
    WentBack,
}

/// The result of putting events into the store.
#[derive(Debug, Default)]
pub struct Assignment {
    /// Of each event.
    pub assigned: Vec<Assigned>,
    /// The entries that were put into queues.
    pub put: Vec<Put>,
    /// Events that the store had lost again, and that were put once more.
    pub repeated: usize,
    /// The reason why not all events were processed; `None` if all were.
    pub failed: Option<NotAssigned>,
}

/// Entries that were put into a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Put {
    /// The partition of the stream.
    pub partition: u32,
    /// The shard.
    pub shard: u32,
    /// Which entries.
    pub run: QueueRun,
}

/// The result for the events of one shard, by their index among all.
struct InShard {
    done: Vec<(usize, Assigned)>,
    put: Vec<Put>,
    failed: Option<NotAssigned>,
}

/// Puts events into the store.
pub struct Assigner {
    /// Where.
    pub store: Arc<dyn Store>,
    /// How.
    pub passage: Passage,
    /// How long a queue that is full is waited for.
    pub patience: Duration,
}

impl Assigner {
    /// An event, for the partition that its key has where the store spreads keys.
    pub fn item(&self, event: &Arc<Event>) -> Item {
        let partition = shard_of(event.key(), self.passage.partitions);
        Item { event: Arc::clone(event), partition, number: 0 }
    }

    /// Puts events where their stream finds them, and tells what became of each. They are durable after the
    /// next [`Store::flush`].
    ///
    /// If the store may have gone back in time during the call, it may have lost some of the events. The call then
    /// puts them once more; those that are still there do not change.
    pub async fn assign(&self, items: &[Item]) -> Assignment {
        let shards = self.store.shards();
        let of_items: BTreeSet<u32> =
            items.iter().map(|item| shard_of(item.event.key(), shards)).collect();
        let breaks =
            || of_items.iter().map(|shard| self.store.breaks_of(*shard)).collect::<Vec<_>>();
        let before = breaks();
        let first = self.assign_once(items, None).await;
        if first.failed.is_some() || breaks() == before {
            return first;
        }
        self.assign_again(items, first).await
    }

    /// Puts once more what the store may have lost of a first call.
    pub(crate) async fn assign_again(&self, items: &[Item], mut first: Assignment) -> Assignment {
        let mut lost: BTreeSet<(u32, u32)> = BTreeSet::new();
        for put in &first.put {
            match self.has_lost(put).await {
                Ok(true) => drop(lost.insert((put.partition, put.shard))),
                Ok(false) => {}
                Err(error) => {
                    first.failed = Some(NotAssigned::Store(error));
                    return first;
                }
            }
        }
        let shards = self.store.shards();
        let place = |item: &Item| (item.partition, shard_of(item.event.key(), shards));
        // The store knows numbered events by their ids: all are put once more, also those that it knew before.
        let is_numbered = self.passage.rules.numbers.is_some();
        let places: Vec<usize> = (0..items.len())
            .filter(|at| is_numbered || lost.contains(&place(&items[*at])))
            .collect();
        let some: Vec<Item> = places.iter().map(|at| items[*at].clone()).collect();
        let again = self.assign_once(&some, None).await;
        for (at, assigned) in places.into_iter().zip(again.assigned) {
            first.repeated += usize::from(matches!(assigned, Assigned::New(_)));
            first.assigned[at] = match (first.assigned[at], assigned) {
                (Assigned::New(_), Assigned::Known(number)) => Assigned::New(number),
                (_, assigned) => assigned,
            };
        }
        first.put.retain(|put| !lost.contains(&(put.partition, put.shard)));
        first.put.extend(again.put);
        first.failed = again.failed;
        first
    }

    /// Whether the store has lost entries that were put into a queue.
    pub(crate) async fn has_lost(&self, put: &Put) -> Result<bool, StoreError> {
        let Destination::Stream(stream) = &self.passage.to else { return Ok(false) };
        let partition = Partition { stream: Arc::clone(stream), number: put.partition };
        match self.store.queued(&partition, put.shard, put.run.end(), 1, 1).await {
            Err(StoreError::WentBack) => Ok(true),
            page => page.map(|_| false),
        }
    }

    /// Puts events behind those that the shards must have: where a shard lacks its witness, it puts nothing.
    pub(crate) async fn assign_behind(
        &self,
        items: &[Item],
        witnesses: &BTreeMap<u32, Witness>,
    ) -> Assignment {
        self.assign_once(items, Some(witnesses)).await
    }

    /// Returns whether a shard has its witness.
    pub(crate) async fn has(&self, shard: u32, witness: Witness) -> Result<bool, StoreError> {
        let Passage { to, rules, .. } = &self.passage;
        let witness = Some(witness);
        let check = Assign { to: to.clone(), shard, rules: *rules, witness, lots: Vec::new() };
        match self.store.assign(Arc::new(check)).await {
            Err(StoreError::WentBack) => Ok(false),
            reply => reply.map(|_| true),
        }
    }

    /// Returns the newest of these new events in each shard.
    pub(crate) fn witnesses<'a>(
        &self,
        events: impl Iterator<Item = (&'a Item, &'a Assigned)>,
        put: &[Put],
    ) -> BTreeMap<u32, Witness> {
        if self.passage.rules.numbers.is_none() {
            let entry =
                |put: &Put| Witness::Entry { partition: put.partition, place: put.run.end() };
            return put.iter().map(|put| (put.shard, entry(put))).collect();
        }
        let shards = self.store.shards();
        let message = |(item, assigned): (&Item, &Assigned)| {
            let Assigned::New(sequence) = *assigned else { return None };
            let event = &item.event;
            let key = event.key().into();
            let witness = match event.sequence() {
                None => Witness::Numbered { key, id: event.id_digest(), sequence },
                Some(_) => Witness::Counted { key, sequence, content: event.content() },
            };
            Some((shard_of(event.key(), shards), witness))
        };
        events.filter_map(message).collect()
    }

    async fn assign_once(
        &self,
        items: &[Item],
        witnesses: Option<&BTreeMap<u32, Witness>>,
    ) -> Assignment {
        let shards = self.store.shards();
        let mut by_shard: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (at, item) in items.iter().enumerate() {
            by_shard.entry(shard_of(item.event.key(), shards)).or_default().push(at);
        }
        let assigned = vec![Assigned::Behind; items.len()];
        let mut all = Assignment { assigned, ..Assignment::default() };
        let each = by_shard
            .into_iter()
            .map(|(shard, places)| self.in_shard(shard, places, items, witnesses));
        for InShard { done, put, failed } in join_all(each).await {
            for (at, assigned) in done {
                all.assigned[at] = assigned;
            }
            all.put.extend(put);
            all.failed = all.failed.or(failed);
        }
        all
    }

    /// Those of a shard, in order, as many at a time as may be.
    async fn in_shard(
        &self,
        shard: u32,
        places: Vec<usize>,
        items: &[Item],
        witnesses: Option<&BTreeMap<u32, Witness>>,
    ) -> InShard {
        let (mut done, mut put) = (Vec::with_capacity(places.len()), Vec::new());
        let mut witness = witnesses.and_then(|witnesses| witnesses.get(&shard).cloned());
        let mut in_conflict: HashSet<&str> = HashSet::new();
        let mut rest = &places[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = rest.iter().take(ASSIGN_LIMIT).take_while(|at| {
                bytes += items[**at].event.memory();
                bytes <= ASSIGN_BYTES
            });
            let (now, later) = rest.split_at(fits.count().max(1));
            rest = later;
            // A lot for each key: a conflict holds up what stands behind it of its key alone.
            let mut lots: Vec<Vec<usize>> = Vec::new();
            let mut of_key: HashMap<&str, usize> = HashMap::new();
            for at in now {
                let key = items[*at].event.key();
                if !in_conflict.contains(key) {
                    let lot = *of_key.entry(key).or_insert(lots.len());
                    lots.resize(lots.len().max(lot + 1), Vec::new());
                    lots[lot].push(*at);
                }
            }
            let (replies, runs) = match self.insist(shard, &lots, items, witness.clone()).await {
                Ok(replies) => replies,
                Err(error) => return InShard { done, put, failed: Some(error) },
            };
            let done_before = done.len();
            let runs = runs.into_iter().map(|(partition, run)| Put { partition, shard, run });
            let runs: Vec<Put> = runs.collect();
            for (lot, reply) in lots.into_iter().zip(replies) {
                let LotReply::Done(assigned) = reply else {
                    unreachable!("only those who have an outbox are told anything else")
                };
                if assigned.iter().any(|it| matches!(it, Assigned::Conflict(_))) {
                    in_conflict.insert(items[lot[0]].event.key());
                }
                done.extend(lot.into_iter().zip(assigned));
            }
            if witnesses.is_some() {
                let events =
                    done[done_before..].iter().map(|(at, assigned)| (&items[*at], assigned));
                witness = self.witnesses(events, &runs).remove(&shard).or(witness);
            }
            put.extend(runs);
        }
        InShard { done, put, failed: None }
    }

    /// Gives lots to the store, again and again while their queue is full.
    async fn insist(
        &self,
        shard: u32,
        lots: &[Vec<usize>],
        items: &[Item],
        witness: Option<Witness>,
    ) -> Result<(Vec<LotReply>, Vec<(u32, QueueRun)>), NotAssigned> {
        let lot = |lot: &Vec<usize>| {
            let items = lot.iter().map(|at| items[*at].clone()).collect();
            Lot { origin: None, parts: vec![Part { place: Place::default(), items }] }
        };
        let Passage { to, rules, .. } = &self.passage;
        let lots = lots.iter().map(lot).collect();
        let assign = Arc::new(Assign { to: to.clone(), shard, rules: *rules, witness, lots });
        let started = Instant::now();
        let mut throttle = LogThrottle::new(WARN_INTERVAL);
        loop {
            let reply = self.store.assign(Arc::clone(&assign)).await;
            match reply {
                Ok(AssignReply::Lots(replies, runs)) => return Ok((replies, runs)),
                Ok(AssignReply::Full) => {}
                Err(StoreError::WentBack) => return Err(NotAssigned::WentBack),
                Err(error) => return Err(NotAssigned::Store(error)),
            }
            if started.elapsed() >= self.patience {
                return Err(NotAssigned::Full);
            }
            if throttle.allow() {
                tracing::warn!("{to}: as many events wait there as may (`source.queue`)");
            }
            tokio::time::sleep(FULL).await;
        }
    }
}
