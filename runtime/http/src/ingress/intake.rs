//! Accepts the events of one stream over HTTP, and writes them to queues in the store. A stream with a source of kind
//! `http` reads its events from these queues. If the source is of kind `amqp`, the queues are the inbox: the process
//! reads the events from the inbox, and publishes them to the exchange of the stream. This module must never return
//! success before the events are durable.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ordain_core::{Event, ExhaustedPolicy, OrderingMode, digest, shard_of};

use ordain_cloudevents::EventDecoder;
use ordain_config::NumberingPolicy;
use ordain_config::{
    AmqpSourceConfig, ConfigError, LoadedConfig, ResourceName, RoutingKeyTemplate, SourceConfig,
    StreamConfig,
};
use ordain_engine::source::{QueueNotifiers, unrouted_queue};
use ordain_publish::{AssignError, AssignResult, EventAssigner, QueuedEntries};
use ordain_store::{AssignItem, AssignItemReply, Partition, QueueEnds, Store, StoreError};

use super::recent_keys::RecentKeys;
use super::routing::Routing;

/// The time after a full queue in which the intake requires room in all queues before it writes any event of a request.
const ROOM_CHECK_INTERVAL: Duration = Duration::from_mins(1);

pub(super) struct Intake {
    pub(super) decoder: EventDecoder,
    /// The name of the source's setting that limits the queue: `inbox` or `queue`.
    pub(super) limit_setting: &'static str,
    stream: Arc<str>,
    first: u64,
    /// The highest sequence with which an event of a key without earlier events can take effect. `None` if there is no
    /// such limit, or if events of the stream may arrive in another way than through the store: the store then does not
    /// show whether a key has earlier events.
    new_key_limit: Option<u64>,
    /// True if `new_key_limit` permits a multiple of `gap.max_width`, because the keys of the stream skip missing
    /// events.
    skips: bool,
    /// If an event has a sequence above `new_key_limit`, the intake queries the store about the key of the event,
    /// unless this set has the key.
    begun_keys: Mutex<RecentKeys<()>>,
    /// True if the key of an event must be a valid routing key.
    is_routed: bool,
    /// Retains events for replay and detects conflicts: two events with the same key and sequence, but different
    /// content. `None` if `queue` retains the events and detects conflicts, or if the stream needs neither of the two.
    replay_log: Option<EventAssigner>,
    queue: EventAssigner,
    /// Chooses the queue of each event; `None` unless the broker chooses the partition of each key.
    routing: Option<Routing>,
    notifiers: Arc<QueueNotifiers>,
    /// The last time when a write found a full queue; `None` if no write has found one.
    full_at: Mutex<Option<Instant>>,
}

/// Writes the events to `log`, which retains them for replay, and does not change events that it already contains.
async fn retain(
    log: &EventAssigner,
    items: &[AssignItem],
) -> Result<Vec<AssignItemReply>, AssignError> {
    match log.assign(items).await {
        AssignResult { error: Some(error), .. } => Err(error),
        AssignResult { assigned, .. } => Ok(assigned),
    }
}

impl Intake {
    /// Creates the intake of a stream; `None` if the stream does not accept events over HTTP.
    pub(super) fn of(
        loaded: &LoadedConfig,
        name: &ResourceName,
        stream: &StreamConfig,
        store: &Arc<dyn Store>,
        notifiers: &Arc<QueueNotifiers>,
    ) -> Result<Option<Self>, ConfigError> {
        let is_numbered = stream.ordering == OrderingMode::Sequenced;
        let exchange = match &stream.source {
            SourceConfig::Http(_) => None,
            SourceConfig::Amqp(AmqpSourceConfig { exchange: Some(exchange), key, .. }) => {
                Some((exchange, key))
            }
            SourceConfig::Amqp(_) | SourceConfig::File(_) | SourceConfig::Stream(_) => {
                return Ok(None);
            }
        };
        let assigner = |policy, writer| EventAssigner {
            store: Arc::clone(store),
            policy,
            writer,
            full_timeout: Duration::ZERO,
            reuses_lost_numbers: false,
        };
        let stream_writer = notifiers.writer(&name.shared(), store.shards());
        let log = match exchange {
            Some((exchange, _)) if is_numbered => {
                // The destination is an exchange, which has no queue in the store, so this assigner adds no queue
                // entries.
                let policy = NumberingPolicy::for_producers(loaded, &exchange.0)?;
                Some(assigner(policy, Arc::clone(&stream_writer)))
            }
            _ => None,
        };
        let in_queue = is_numbered && exchange.is_none();
        let Some(queue) = NumberingPolicy::to_stream(name, stream, in_queue, store.shards()) else {
            return Ok(None);
        };
        let routing = (exchange.is_some() && queue.partitions > 1).then(|| {
            let unrouted = unrouted_queue(&name.shared(), queue.partitions);
            Routing::new(Arc::clone(store), unrouted, stream.ordering)
        });
        Ok(Some(Self {
            decoder: EventDecoder::new(stream.ordering, loaded.config.runtime.event_size.bytes())
                .with_locations(stream.source.cloudevent_locations()),
            limit_setting: if exchange.is_some() { "inbox" } else { "queue" },
            stream: name.shared(),
            first: stream.first.lowest(),
            new_key_limit: stream.new_key_limit().filter(|_| exchange.is_none()),
            skips: stream.gap.on_exhausted.0 == ExhaustedPolicy::Skip,
            begun_keys: Mutex::new(RecentKeys::new(Instant::now())),
            is_routed: exchange.is_some_and(|(_, key)| key.is_routing_key()),
            replay_log: log,
            routing,
            queue: assigner(queue, stream_writer),
            notifiers: Arc::clone(notifiers),
            full_at: Mutex::default(),
        }))
    }

    /// Returns the reason why requests to the store fail now; `None` if the reason is unknown.
    pub(super) fn store_failure(&self) -> Option<String> {
        self.queue.store.retry_reason()
    }

    /// Returns the reason why the stream could not process an event that the decoder accepts. Returns `None` if the
    /// event has no such fault.
    pub(super) fn fault(&self, event: &Event) -> Option<String> {
        if self.is_routed
            && let Some(words) = RoutingKeyTemplate::length_error(event.key())
        {
            return Some(words);
        }
        if self.decoder.ordering == OrderingMode::Fifo {
            return None;
        }
        match event.sequence() {
            Some(sequence) => NumberingPolicy::sequence_error(self.first, sequence),
            None => Some(format!(
                "the event has no `sequence`, but stream {} is `sequenced`: the producer must number the events",
                self.stream
            )),
        }
    }

    /// Returns the positions of the events whose sequences cannot be right: the key of such an event has no earlier
    /// events, and could never reach the sequence. Reads the store only if an event has a sequence above
    /// `new_key_limit`, and `begun_keys` does not contain its key.
    pub(super) async fn unreachable_events(
        &self,
        events: &[Arc<Event>],
    ) -> Result<Vec<usize>, StoreError> {
        let Some(limit) = self.new_key_limit else { return Ok(Vec::new()) };
        let is_far = |event: &Event| event.sequence().is_some_and(|sequence| sequence > limit);
        if !events.iter().any(|event| is_far(event)) {
            return Ok(Vec::new());
        }
        let near = events.iter().filter(|event| !is_far(event)).map(|event| event.key());
        let near: BTreeSet<&str> = near.collect();
        let far = events.iter().filter(|event| is_far(event)).map(|event| event.key());
        let new = self.new_keys(far.filter(|key| !near.contains(key)).collect()).await?;
        let is_unreachable = |event: &Event| is_far(event) && new.contains(event.key());
        let all = events.iter().enumerate();
        Ok(all.filter(|(_, event)| is_unreachable(event)).map(|(at, _)| at).collect())
    }

    /// Returns the keys that have no earlier events: the store has neither a key record nor a counter of the key.
    async fn new_keys<'a>(
        &self,
        mut keys: BTreeSet<&'a str>,
    ) -> Result<BTreeSet<&'a str>, StoreError> {
        let digest_of = |key: &str| digest(key.as_bytes());
        {
            let mut begun_keys = self.begun_keys();
            begun_keys.expire(Instant::now());
            keys.retain(|key| begun_keys.get(digest_of(key)).is_none());
        }
        let looked_up: Vec<&str> = keys.iter().copied().collect();
        if looked_up.is_empty() {
            return Ok(keys);
        }
        let store = &self.queue.store;
        let has_counters = store.has_counters(&self.queue.policy.destination, &looked_up).await?;
        let records = store.partitions_of(&self.stream, &looked_up).await?;
        let mut begun_keys = self.begun_keys();
        for ((key, has_counter), record) in looked_up.iter().zip(has_counters).zip(records) {
            if has_counter || record.is_some() {
                keys.remove(key);
                begun_keys.insert(digest_of(key), (), Instant::now());
            }
        }
        Ok(keys)
    }

    fn begun_keys(&self) -> MutexGuard<'_, RecentKeys<()>> {
        self.begun_keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn unreachable_error(&self, event: &Event) -> String {
        let sequence = event.sequence().unwrap_or_default();
        let limit = self.new_key_limit.unwrap_or_default();
        let width = if self.skips { "100 times `gap.max_width`" } else { "`gap.max_width`" };
        format!(
            "sequence {sequence} cannot be right: the key has no events yet, so its sequences begin at {} (`first`), \
             and {width} allows at most {limit}. Number the events of each key without gaps, let each key begin at the \
             sequence of its first event (`first = \"any\"`), or make the stream `fifo`",
            self.first
        )
    }

    /// Writes each event after the earlier events of its key. When the call returns successfully, all accepted events
    /// are durable.
    pub(super) async fn accept(
        &self,
        events: &[Arc<Event>],
    ) -> Result<Vec<AssignItemReply>, AssignError> {
        let mut items: Vec<AssignItem> =
            events.iter().map(|event| self.queue.item(event)).collect();
        let mut routing = None;
        if let Some(of_stream) = &self.routing {
            let decision =
                of_stream.assign_partitions(&mut items).await.map_err(AssignError::Store)?;
            routing = Some((of_stream, decision));
        }
        self.check_room(&items).await?;
        let log = self.replay_log.as_ref().map(|log| (log, log.disconnects(&items)));
        let mut log_replies = None;
        if let Some((log, _)) = &log {
            log_replies = Some(retain(log, &items).await?);
        }
        if let Some(log_replies) = &log_replies {
            // Events that the log already has are queued too: an earlier request may have failed before it queued them.
            let mut log_replies = log_replies.iter();
            let is_right = |result: &AssignItemReply| {
                matches!(result, AssignItemReply::New(_) | AssignItemReply::Known(_))
            };
            items.retain(|_| log_replies.next().is_some_and(is_right));
        }
        let AssignResult { assigned: queued, entries: put, error: failed, .. } =
            self.queue.assign(&items).await;
        if let Some((routing, decision)) = &routing {
            routing.record_entries(decision, &items, &put);
        }
        if let Some(AssignError::Full) = failed {
            *self.full_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
        if let Some((log, before)) = &log
            && log.disconnects(&items).iter().any(|(shard, now)| before.get(shard) != Some(now))
        {
            // Retains the events a second time: the store may have lost the retained copies while this call wrote the
            // queue.
            retain(log, &items).await?;
        }
        self.queue.store.flush().await.map_err(AssignError::Store)?;
        self.notify_readers(&items, &put, failed.is_none());
        failed.map_or_else(|| Ok(log_replies.unwrap_or(queued)), Err)
    }

    /// Rejects a request for which a queue lacks room, before the intake writes any event. Checks the room only if a
    /// queue was full within the last minute. Without this check, each retry of a rejected request would write copies
    /// of its events to the queues that still have room.
    async fn check_room(&self, items: &[AssignItem]) -> Result<(), AssignError> {
        let full_at = *self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = self
            .queue
            .policy
            .rules
            .queue_limit
            .filter(|_| full_at.is_some_and(|at| at.elapsed() < ROOM_CHECK_INTERVAL));
        let Some(limit) = limit else { return Ok(()) };
        let store = &self.queue.store;
        let places =
            items.iter().map(|item| (item.partition, shard_of(item.event.key(), store.shards())));
        let mut shards: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for (partition, shard) in places {
            shards.entry(partition).or_default().insert(shard);
        }
        for (number, shards) in shards {
            let partition = Partition { stream: Arc::clone(&self.stream), number };
            let waiting = store.queue_ends(&partition).await.map_err(AssignError::Store)?;
            let is_full = |ends: &QueueEnds| ends.len() >= limit;
            if shards.iter().any(|shard| waiting.get(*shard as usize).is_some_and(is_full)) {
                return Err(AssignError::Full);
            }
        }
        Ok(())
    }

    /// Notifies the queue readers of this process. Usually, the readers also get the queue positions of the new
    /// entries, so that the readers detect if the store loses these entries.
    ///
    /// The readers get no positions if the request is rejected and the queue has no numbering rules. The producer then
    /// sends the request again, and the store writes all events of the request again. With numbering rules, the store
    /// recognises the repeated events, and does not write them again. The readers must then detect a loss of the
    /// entries, even after a rejected request.
    fn notify_readers(&self, items: &[AssignItem], put: &[QueuedEntries], is_accepted: bool) {
        let of =
            |number| self.notifiers.of(&Partition { stream: Arc::clone(&self.stream), number });
        let shards = self.queue.store.shards();
        let places = items.iter().map(|item| (item.partition, shard_of(item.event.key(), shards)));
        let mut known = places.collect::<BTreeSet<_>>();
        let is_expected = is_accepted || self.queue.policy.rules.numbering.is_some();
        for QueuedEntries { partition, shard, run } in put {
            known.remove(&(*partition, *shard));
            of(*partition).record_write(*shard, is_expected.then_some(*run));
        }
        for (number, shard) in known {
            of(number).record_write(shard, None);
        }
    }
}
