//! How the events of one stream are taken in: into the store, where the stream finds them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ordain_core::{Event, Ordering, QueuePlace, shard_of};

use ordain_cloudevents::Decoder;
use ordain_config::Passage;
use ordain_config::{AmqpSource, ConfigError, KeyFrom, Loaded, Name, RoutingKey, Source, Stream};
use ordain_engine::source::{Feeds, unplaced};
use ordain_publish::{Assigner, Assignment, NotAssigned, Put};
use ordain_store::{Assigned, Item, Partition, QueueEnds, Store, StoreError};

/// How long room is looked for before anything is written, after there was none.
const CROWDED: Duration = Duration::from_mins(1);

/// Events that are read at one time to see whose they are, and their bytes.
const PAGE: usize = 1_024;
const PAGE_BYTES: usize = 4 << 20;

/// Takes the events of a stream.
pub(super) struct Intake {
    pub(super) decoder: Decoder,
    /// The setting of the source that says how much may wait.
    pub(super) bound: &'static str,
    stream: Arc<str>,
    first: u64,
    /// The key of an event is to be a routing key.
    is_routed: bool,
    /// Where events are kept for replay, and compared, if that is not with what waits.
    log: Option<Assigner>,
    queue: Assigner,
    /// A key's partition is known by its job alone.
    is_spread_by_broker: bool,
    feeds: Arc<Feeds>,
    /// What waits for its partition, by shard.
    waiting: tokio::sync::Mutex<BTreeMap<u32, Waiting>>,
    /// When there was last no room for something.
    full_at: Mutex<Option<Instant>>,
}

/// Whose events wait in a shard, as far as was looked: each is read once, however many requests come.
#[derive(Default)]
struct Waiting {
    /// The newest of each key.
    keys: BTreeMap<String, u64>,
    /// What is before this waits no more.
    start: u64,
    /// The last place that was read.
    through: QueuePlace,
}

impl Waiting {
    /// Forgets what waits no more.
    fn forget_before(&mut self, first: u64) {
        if self.start < first {
            self.start = first;
            self.keys.retain(|_, number| *number >= first);
        }
    }
}

impl Intake {
    /// Of a stream, if it takes events over HTTP.
    pub(super) fn of(
        loaded: &Loaded,
        name: &Name,
        stream: &Stream,
        store: &Arc<dyn Store>,
        feeds: &Arc<Feeds>,
    ) -> Result<Option<Self>, ConfigError> {
        let is_numbered = stream.ordering == Ordering::Sequenced;
        let exchange = match &stream.source {
            Source::Http(_) => None,
            Source::Amqp(AmqpSource { exchange: Some(exchange), key, .. }) => Some((exchange, key)),
            Source::Amqp(_) | Source::File(_) | Source::Stream(_) => return Ok(None),
        };
        let assigner =
            |passage| Assigner { store: Arc::clone(store), passage, patience: Duration::ZERO };
        let log = match exchange {
            Some((exchange, _)) if is_numbered => {
                Some(assigner(Passage::of_producers(loaded, &exchange.0)?))
            }
            _ => None,
        };
        let in_queue = is_numbered && exchange.is_none();
        let Some(queue) = Passage::to_stream(name, stream, in_queue, store.shards()) else {
            return Ok(None);
        };
        Ok(Some(Self {
            decoder: Decoder {
                ordering: stream.ordering,
                event_size: loaded.config.runtime.event_size.bytes(),
            },
            bound: if exchange.is_some() { "inbox" } else { "queue" },
            stream: name.shared(),
            first: stream.first,
            is_routed: exchange.is_some_and(|(_, key)| *key == KeyFrom::RoutingKey),
            log,
            is_spread_by_broker: exchange.is_some() && queue.partitions > 1,
            queue: assigner(queue),
            feeds: Arc::clone(feeds),
            waiting: tokio::sync::Mutex::default(),
            full_at: Mutex::default(),
        }))
    }

    /// What is wrong with an event, beyond what its reader sees: what would become a dead letter.
    pub(super) fn wrong(&self, event: &Event) -> Option<String> {
        if self.is_routed
            && let Some(words) = RoutingKey::wrong(event.key())
        {
            return Some(words);
        }
        if self.decoder.ordering == Ordering::Fifo {
            return None;
        }
        match event.sequence() {
            Some(sequence) => Passage::wrong(self.first, sequence),
            None => Some(format!(
                "there is no `sequence`, and stream {} is `sequenced`: its producer must number its events",
                self.stream
            )),
        }
    }

    /// Puts events where the stream finds them, each behind those of its key. When it returns they are
    /// durable.
    pub(super) async fn put(&self, events: &[Arc<Event>]) -> Result<Vec<Assigned>, NotAssigned> {
        let mut items: Vec<Item> = events.iter().map(|event| self.queue.item(event)).collect();
        self.place(&mut items).await.map_err(NotAssigned::Store)?;
        self.has_room(&items).await?;
        let kept = match &self.log {
            None => None,
            Some(log) => match log.assign(&items).await {
                Assignment { failed: Some(error), .. } => return Err(error),
                Assignment { assigned, .. } => Some(assigned),
            },
        };
        if let Some(kept) = &kept {
            // A repeat as well: the first time it may have come so far and no further.
            let mut kept = kept.iter();
            let is_right = |it: &Assigned| matches!(it, Assigned::New(_) | Assigned::Known(_));
            items.retain(|_| kept.next().is_some_and(is_right));
        }
        let Assignment { assigned: queued, put, failed, .. } = self.queue.assign(&items).await;
        if let Some(NotAssigned::Full) = failed {
            *self.full_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
        self.queue.store.flush().await.map_err(NotAssigned::Store)?;
        self.tell(&items, &put, failed.is_none());
        failed.map_or_else(|| Ok(kept.unwrap_or(queued)), Err)
    }

    /// Finds the partition of each key, where the broker has given it one.
    async fn place(&self, items: &mut [Item]) -> Result<(), StoreError> {
        if !self.is_spread_by_broker {
            return Ok(());
        }
        let unknown = unplaced(&self.stream, self.queue.passage.partitions);
        let store = &self.queue.store;
        let keys: BTreeSet<&str> = items.iter().map(|item| item.event.key()).collect();
        let keys = Vec::from_iter(keys);
        let found = store.partitions_of(&self.stream, &keys).await?;
        let of_key: BTreeMap<String, u32> = keys
            .into_iter()
            .zip(found)
            .filter_map(|(key, partition)| {
                Some((key.to_owned(), partition.filter(|it| *it < unknown.number)?))
            })
            .collect();
        // In a `fifo` stream nothing goes past what of its key waits there.
        let waiting = match self.decoder.ordering {
            Ordering::Fifo => self.waiting_keys(&unknown, of_key.keys()).await?,
            Ordering::Sequenced => BTreeSet::new(),
        };
        for item in items {
            let key = item.event.key();
            let known = of_key.get(key).filter(|_| !waiting.contains(key));
            item.partition = known.copied().unwrap_or(unknown.number);
        }
        Ok(())
    }

    /// Of these keys, those of which something waits. Mostly nothing does.
    async fn waiting_keys<'a>(
        &self,
        partition: &Partition,
        of: impl Iterator<Item = &'a String>,
    ) -> Result<BTreeSet<&'a str>, StoreError> {
        let store = &self.queue.store;
        let mut by_shard = BTreeMap::<u32, Vec<&str>>::new();
        for key in of {
            by_shard.entry(shard_of(key, store.shards())).or_default().push(key);
        }
        let mut keys = BTreeSet::new();
        if by_shard.is_empty() {
            return Ok(keys);
        }
        for (shard, ends) in (0..).zip(store.waiting_in(partition).await?) {
            let Some(of) = by_shard.get(&shard).filter(|_| !ends.is_empty()) else { continue };
            let mut known = self.waiting.lock().await;
            let known = known.entry(shard).or_default();
            while known.through != ends.last {
                let after = known.through;
                let page = match store.queued(partition, shard, after, PAGE, PAGE_BYTES).await {
                    Err(StoreError::WentBack) => {
                        // The numbers that were read may belong to other entries now.
                        *known = Waiting::default();
                        continue;
                    }
                    page => page?,
                };
                known.forget_before(page.first);
                if page.entries.is_empty() {
                    break;
                }
                for (place, item) in page.entries {
                    known.through = place;
                    if let Ok(event) = item {
                        known.keys.insert(event.key().to_owned(), place.number);
                    }
                }
            }
            known.forget_before(ends.first);
            keys.extend(of.iter().filter(|key| known.keys.contains_key(**key)));
        }
        Ok(keys)
    }

    /// Refuses what has no room before anything is written, where there was none a while ago: who is told to
    /// send the same again must not fill the rest with copies.
    async fn has_room(&self, items: &[Item]) -> Result<(), NotAssigned> {
        let full_at = *self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = self
            .queue
            .passage
            .rules
            .queue
            .filter(|_| full_at.is_some_and(|at| at.elapsed() < CROWDED));
        let Some(limit) = limit else { return Ok(()) };
        let store = &self.queue.store;
        let places =
            items.iter().map(|it| (it.partition, shard_of(it.event.key(), store.shards())));
        let mut shards: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for (partition, shard) in places {
            shards.entry(partition).or_default().insert(shard);
        }
        for (number, shards) in shards {
            let partition = Partition { stream: Arc::clone(&self.stream), number };
            let waiting = store.waiting_in(&partition).await.map_err(NotAssigned::Store)?;
            let is_full = |it: &QueueEnds| it.len() >= limit;
            if shards.iter().any(|shard| waiting.get(*shard as usize).is_some_and(is_full)) {
                return Err(NotAssigned::Full);
            }
        }
        Ok(())
    }

    /// Notifies the readers of the queues in this process. If the request is accepted, they also get the places of its
    /// events, to notice a loss. The producer of a rejected request sends it again anyway.
    fn tell(&self, items: &[Item], put: &[Put], is_accepted: bool) {
        let of = |number| self.feeds.of(&Partition { stream: Arc::clone(&self.stream), number });
        let shards = self.queue.store.shards();
        let places = items.iter().map(|it| (it.partition, shard_of(it.event.key(), shards)));
        let mut known = places.collect::<BTreeSet<_>>();
        for Put { partition, shard, run } in put {
            known.remove(&(*partition, *shard));
            of(*partition).put(*shard, is_accepted.then_some(*run));
        }
        for (number, shard) in known {
            of(number).put(shard, None);
        }
    }
}
