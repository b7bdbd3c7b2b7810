//! Derives the settings of one partition's sequencer from the configuration. This module divides the limits of the
//! process among the partitions of the process.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use ordain_core::{
    GapSettings, HandlerLimit, LimitValues, OrderingMode, RetrySettings, Rollout,
    SequencerSettings, TypeFilter, digest, valid_sequences,
};

use super::{
    Config, FileOrStdio, FirstSequence, MESSAGE_EVENTS_LIMIT, Millis, ReplayServer, ReplaySource,
    ResourceName, SinkConfig, StoreConfig, StreamConfig,
};

/// Maximum number of concurrent turns of a stream, for each worker thread. A turn is a run of events of one key that a
/// worker executes back to back. At each of its steps, the sequencer exchanges a batch of turns with the workers. The
/// limit is high enough that a worker has turns until the next step, even if each turn is a single cheap event.
/// `run_ahead` limits the events in these turns.
const TURNS_PER_WORKER: usize = 256;

/// Maximum number of key records that a partition loads at one time, as a multiple of `runtime.batch`. With two
/// batches, the store reads one batch of records while the sequencer requests the next batch.
const LOADS_PER_BATCH: usize = 2;

/// The memory budget of a partition divided by this number is the room for copies of the partition's newest commits. A
/// Redis store may lose its newest commits. The owner then repeats these commits from the copies. At ten thousand small
/// events per second, the copies cover the commits of the last few seconds. A Redis that syncs its file once per second
/// loses the commits of at most one or two seconds.
const KEPT_COMMITS_DIVISOR: usize = 8;

/// The maximum number of committed and unpublished messages of a partition, as a multiple of `run_ahead`. At this
/// limit, the partition starts no further turns, so that an unavailable sink does not fill the store.
const OUTBOX_PER_EVENT: usize = 16;

/// A key remembers at least this number of its newest ids, regardless of their age. If `id_window` is lower, the key
/// remembers only `id_window` ids. The number equals the default prefetch.
pub const MIN_REMEMBERED_IDS: usize = 4_000;

/// Longest interval between reads of the due index (the keys that their owner must handle at a certain time), in ms.
/// After another process has added a key to the index, the owner finds the key within this interval. An idle partition
/// costs one read per interval.
const DUE_POLL_INTERVAL_MS: u64 = 5_000;

/// The data that, together with the configuration, determine the settings of one partition's sequencer.
#[derive(Debug, Clone)]
pub struct PartitionParams {
    /// The partition's number.
    pub partition: u32,
    /// Number of configured partitions of the partition's stream, including those that other processes own.
    pub stream_partitions: usize,
    /// Number of configured partitions of all streams, including those that other processes own.
    pub process_partitions: usize,
    /// Number of threads that execute handlers.
    pub workers: usize,
    /// The rollout under which the sequencer executes events at the start. The rollout names the handler version.
    /// `None` if that version is not available in this process.
    pub version: Option<Arc<Rollout>>,
    /// Seed of the random part of delays (jitter).
    pub seed: u64,
}

impl Config {
    /// Returns the longest time for which a delivery of a stream can stay unacknowledged while the store answers: the
    /// sum of `spill_after` and `plugins.timeout`.
    pub fn longest_unacknowledged(&self, stream: &StreamConfig) -> Millis {
        Millis(stream.spill_after.0.saturating_add(self.plugins.timeout.0))
    }

    /// Returns the number of threads that execute handlers: as configured, or one per processor.
    pub fn workers(&self) -> usize {
        let processors = || std::thread::available_parallelism().map_or(1, usize::from);
        self.runtime.workers.unwrap_or_else(processors)
    }

    /// Returns whether a sink writes to standard output.
    pub fn writes_standard_output(&self) -> bool {
        let standard = |sink: &SinkConfig| matches!(sink, SinkConfig::File(file) if file.path == FileOrStdio::Stdio);
        self.sinks.values().any(standard)
    }

    /// Returns the number of shards of the store; 1 for the embedded store.
    pub fn shards(&self) -> u32 {
        match &self.store {
            StoreConfig::Embedded(_) => 1,
            StoreConfig::Redis(redis) => redis.shards,
        }
    }

    /// Returns the number of partitions of all streams together.
    pub fn partitions(&self) -> usize {
        self.streams.values().map(|stream| stream.source.partitions() as usize).sum()
    }

    /// Returns the number of partitions of each stream.
    pub fn partition_counts(&self) -> BTreeMap<String, u32> {
        let streams = self.streams.iter();
        streams.map(|(name, stream)| (name.to_string(), stream.source.partitions())).collect()
    }

    /// Returns the values of the limits of handlers.
    fn limit_values(&self) -> LimitValues {
        let plugins = &self.plugins;
        let outcome = [plugins.state_size.bytes(), plugins.messages_size.bytes(), plugins.messages];
        // Names of sinks contain no line end.
        let sinks = self.sinks.keys().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        LimitValues::new(|limit| match limit {
            HandlerLimit::Timeout => plugins.timeout.0,
            HandlerLimit::Memory => plugins.memory.bytes() as u64,
            HandlerLimit::StateSize => plugins.state_size.bytes() as u64,
            HandlerLimit::Messages => plugins.messages as u64,
            HandlerLimit::MessagesSize => plugins.messages_size.bytes() as u64,
            HandlerLimit::OutcomeSize => outcome.iter().sum::<usize>() as u64,
            HandlerLimit::EventSize => self.runtime.event_size.bytes() as u64,
            HandlerLimit::Sinks => digest(sinks.as_bytes()),
        })
    }

    /// Returns the settings of the sequencer of one partition of a stream.
    pub fn sequencer_settings(
        &self,
        stream: &StreamConfig,
        share: &PartitionParams,
    ) -> SequencerSettings {
        let runtime = &self.runtime;
        let of_process = share.process_partitions.max(1);
        let repeats = stream.source.redelivery_limit(self.ingress.is_some());
        let id_window = stream.id_window.max(repeats);
        let turns = stream.concurrency.unwrap_or(share.workers * TURNS_PER_WORKER);
        SequencerSettings {
            ordering: stream.ordering,
            first: stream.first.lowest(),
            begins_anywhere: stream.first == FirstSequence::Any,
            types: stream.type_filter().map(Arc::new),
            partition: share.partition,
            shards: self.shards(),
            max_lanes: (runtime.max_active_keys / of_process).max(1),
            // The budget always has room for two of the largest events. Otherwise a partition with a small share could
            // not read any event.
            memory_budget: (runtime.memory_budget.bytes() / of_process)
                .max(2 * runtime.event_size.bytes()),
            run_ahead: runtime.run_ahead,
            max_turns: turns.div_ceil(share.stream_partitions.max(1)),
            batch_events: runtime.batch,
            batch_bytes: runtime.batch_size.bytes(),
            commit_history_bytes: match self.store {
                StoreConfig::Embedded(_) => 0,
                StoreConfig::Redis(_) => {
                    runtime.memory_budget.bytes() / of_process / KEPT_COMMITS_DIVISOR
                }
            },
            prefetch: stream.source.prefetch(),
            quantum: stream.quantum,
            max_loads: LOADS_PER_BATCH * runtime.batch,
            max_outbox: OUTBOX_PER_EVENT * runtime.run_ahead,
            forward_letters: stream.dead_letter.is_some(),
            lane_buffer: stream.lane_buffer,
            spill_after: stream.spill_after.0,
            spill_limit: stream.spill_limit,
            overflow: stream.overflow,
            gap: stream.gap_settings(),
            retry: stream.retry_settings(self.limit_values()),
            id_window,
            id_ttl: stream.id_ttl.0,
            id_floor: if stream.source.has_inbox(self.ingress.is_some()) {
                // While the broker is unavailable, the inbox passes at most half of `id_window` events directly to the
                // sequencer. The broker may deliver the copies of these events much later, so no id in the window
                // expires.
                id_window
            } else {
                // Remember at least as many ids as the default prefetch, because the previous process may have had a
                // larger prefetch than this process.
                repeats.max(MIN_REMEMBERED_IDS).min(id_window)
            },
            digests: stream.digests,
            due_poll: DUE_POLL_INTERVAL_MS,
            complete_ttl: stream.complete_ttl.0,
            key_ttl: stream.key_ttl.0.map(|ttl| ttl.0),
            rollout: share.version.clone(),
            seed: share.seed,
        }
    }
}

impl StreamConfig {
    /// Returns the valid sequences of events if the stream is `sequenced`.
    pub fn sequences(&self) -> Range<u64> {
        valid_sequences(self.first.lowest(), self.first == FirstSequence::Any)
    }

    /// Returns the maximum number of events in a message of the broker. After a crash, the broker can deliver
    /// `prefetch` messages again. A `fifo` stream must recognise all events of these messages by ids that do not
    /// expire. A `sequenced` stream recognises any number of repeats by their sequences.
    pub fn message_events_limit(&self) -> usize {
        match self.ordering {
            OrderingMode::Sequenced => MESSAGE_EVENTS_LIMIT,
            OrderingMode::Fifo => {
                let prefetch = self.source.prefetch().max(1);
                let ids = self.id_window.max(prefetch).min(MIN_REMEMBERED_IDS);
                (ids / prefetch).clamp(1, MESSAGE_EVENTS_LIMIT)
            }
        }
    }

    pub(super) fn gap_settings(&self) -> GapSettings {
        let gap = &self.gap;
        GapSettings {
            timeout: gap.timeout.0,
            attempts: gap.attempts,
            backoff: gap.backoff,
            // The store is always a source: it holds the spilled events.
            sources: self.replay_names().into_iter().map(Into::into).collect(),
            max_width: gap.max_width,
            on_exhausted: gap.on_exhausted.0,
            tail: gap.tail.0.map(|tail| tail.0),
        }
    }

    /// Returns the highest sequence with which an event of a key without earlier events can take effect. Returns `None`
    /// if there is no such limit: in a `fifo` stream, with `first = "any"`, and if a replay server may have the earlier
    /// events.
    pub fn new_key_limit(&self) -> Option<u64> {
        let FirstSequence::Number(first) = self.first else { return None };
        let is_limited =
            self.ordering == OrderingMode::Sequenced && self.replay_servers().next().is_none();
        is_limited.then(|| first.saturating_add(self.gap_settings().reachable_width()))
    }

    /// Returns the types of events that the handler executes, and the sink for other events; `None` if the handler
    /// executes all events.
    fn type_filter(&self) -> Option<TypeFilter> {
        let patterns = self.types.clone()?;
        Some(TypeFilter { patterns, sink: self.other_types.as_ref().map(ResourceName::shared) })
    }

    fn retry_settings(&self, limits: LimitValues) -> RetrySettings {
        RetrySettings {
            attempts: self.retry.attempts,
            backoff: self.retry.backoff,
            on_exhausted: self.retry.on_exhausted.0,
            on_new_version: self.retry.on_new_version,
            limits,
        }
    }

    /// Returns the replay sources from number 1 on. The store is source number 0, and is not in the result.
    pub fn replay_servers(&self) -> impl Iterator<Item = &ReplayServer> {
        self.gap.replay.iter().filter_map(|replay| match replay {
            ReplaySource::Store => None,
            ReplaySource::Http(server) => Some(server),
        })
    }

    /// Returns the names of the replay sources, in the order of their numbers. The name of a server is its scheme, host
    /// and port. If several servers have the same scheme, host and port, the names of the second and later servers end
    /// with a number.
    pub fn replay_names(&self) -> Vec<String> {
        let mut names = vec!["store".to_owned()];
        for server in self.replay_servers() {
            let host = server.url.host();
            let numbered = (2..).map(|number| format!("{host} #{number}"));
            let mut all = std::iter::once(host.to_owned()).chain(numbered);
            names.extend(all.find(|name| !names.contains(name)));
        }
        names
    }
}
