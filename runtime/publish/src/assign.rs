//! A producer's events into the store: numbered, kept and queued, each behind those of its key.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use ordain_core::{Event, shard_of};

use ordain_config::Passage;
use ordain_store::{
    ASSIGN_BYTES, ASSIGN_LIMIT, Assign, AssignReply, Assigned, Item, Lot, LotReply, Part, Place,
    Store, StoreError,
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
        Item { event: Arc::clone(event), partition }
    }

    /// Puts events where their stream finds them, and tells what became of each. They are durable after the
    /// next [`Store::flush`]. With an error it is not done with all of them.
    pub async fn assign(&self, items: &[Item]) -> (Vec<Assigned>, Option<NotAssigned>) {
        let shards = self.store.shards();
        let mut by_shard: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (at, item) in items.iter().enumerate() {
            by_shard.entry(shard_of(item.event.key(), shards)).or_default().push(at);
        }
        let mut all = vec![Assigned::Behind; items.len()];
        let mut failed = None;
        let each = by_shard.into_iter().map(|(shard, places)| self.in_shard(shard, places, items));
        for (done, error) in join_all(each).await {
            for (at, assigned) in done {
                all[at] = assigned;
            }
            failed = failed.or(error);
        }
        (all, failed)
    }

    /// Those of a shard, in order, as many at a time as may be.
    async fn in_shard(
        &self,
        shard: u32,
        places: Vec<usize>,
        items: &[Item],
    ) -> (Vec<(usize, Assigned)>, Option<NotAssigned>) {
        let mut done = Vec::with_capacity(places.len());
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
            let replies = match self.insist(shard, &lots, items).await {
                Ok(replies) => replies,
                Err(error) => return (done, Some(error)),
            };
            for (lot, reply) in lots.into_iter().zip(replies) {
                let LotReply::Done(assigned) = reply else {
                    unreachable!("only those who have an outbox are told anything else")
                };
                if assigned.iter().any(|it| matches!(it, Assigned::Conflict(_))) {
                    in_conflict.insert(items[lot[0]].event.key());
                }
                done.extend(lot.into_iter().zip(assigned));
            }
        }
        (done, None)
    }

    /// Gives lots to the store, again and again while their queue is full.
    async fn insist(
        &self,
        shard: u32,
        lots: &[Vec<usize>],
        items: &[Item],
    ) -> Result<Vec<LotReply>, NotAssigned> {
        let lot = |lot: &Vec<usize>| {
            let items = lot.iter().map(|at| items[*at].clone()).collect();
            Lot { origin: None, parts: vec![Part { place: Place::default(), items }] }
        };
        let Passage { to, rules, .. } = &self.passage;
        let lots = lots.iter().map(lot).collect();
        let assign = Arc::new(Assign { to: to.clone(), shard, rules: *rules, lots });
        let started = Instant::now();
        let mut throttle = LogThrottle::new(WARN_INTERVAL);
        loop {
            let reply = self.store.assign(Arc::clone(&assign)).await;
            if let AssignReply::Lots(replies) = reply.map_err(NotAssigned::Store)? {
                return Ok(replies);
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
