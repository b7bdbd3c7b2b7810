//! From the configuration to the settings of one partition's sequencer. What all partitions of
//! the process share is divided here.

use std::collections::BTreeMap;
use std::sync::Arc;

use ordain_core::{Decided, GapSettings, RetrySettings, Settings};

use super::{Config, Place, Replay, ReplayServer, Sink, StoreConfig, Stream};

/// Turns at the workers for each worker. They are handed over and come back in bunches, at every
/// look of the sequencer: with a turn of one cheap event, a worker must have enough of them until
/// the next look. `run_ahead` bounds the events in them.
const TURNS_PER_WORKER: usize = 256;

/// Loads under way at one time: two batches' worth, so that one is read while one is asked for.
const LOADS_PER_BATCH: usize = 2;

/// The part of the memory budget for commits that a shared store may lose: at ten thousand small
/// events a second it has the last few seconds, and a server that syncs once a second loses one or
/// two.
const KEPT: usize = 8;

/// Messages committed and not yet published, for each event that may run ahead. Beyond it the
/// stream pauses: a sink that is down must not fill the store.
const OUTBOX_PER_EVENT: usize = 16;

/// Ids of a key that are remembered however old, at least: the default prefetch.
const ID_FLOOR: usize = 4_000;

/// Longest time between two looks at the due index, in ms: a key that another process has entered
/// there waits no longer, and an idle partition costs one read in this time.
const DUE_POLL: u64 = 5_000;

/// What one partition has to itself.
#[derive(Debug, Clone)]
pub struct Share {
    /// Its number.
    pub partition: u32,
    /// Partitions that this process owns of its stream.
    pub of_stream: usize,
    /// Partitions that this process owns of all streams.
    pub of_process: usize,
    /// Threads that execute handlers.
    pub workers: usize,
    /// What executes events at the start, if it is here.
    pub version: Option<Arc<Decided>>,
    /// Seed of the jitter.
    pub seed: u64,
}

impl Config {
    /// Threads that execute handlers: as configured, else one per processor.
    pub fn workers(&self) -> usize {
        let processors = || std::thread::available_parallelism().map_or(1, usize::from);
        self.runtime.workers.unwrap_or_else(processors)
    }

    /// Whether a sink is standard output.
    pub fn writes_standard_output(&self) -> bool {
        let standard = |sink: &Sink| matches!(sink, Sink::File(it) if it.path == Place::Standard);
        self.sinks.values().any(standard)
    }

    /// Slices of the store.
    pub fn shards(&self) -> u32 {
        match &self.store {
            StoreConfig::Embedded(_) => 1,
            StoreConfig::Redis(redis) => redis.shards,
        }
    }

    /// Partitions of all streams together.
    pub fn partitions(&self) -> usize {
        self.streams.values().map(|stream| stream.source.partitions() as usize).sum()
    }

    /// The number of partitions of each stream.
    pub fn partition_counts(&self) -> BTreeMap<String, u32> {
        let streams = self.streams.iter();
        streams.map(|(name, stream)| (name.to_string(), stream.source.partitions())).collect()
    }

    /// The settings of one partition of a stream.
    pub fn settings(&self, stream: &Stream, share: &Share) -> Settings {
        let runtime = &self.runtime;
        let of_process = share.of_process.max(1);
        let repeats = stream.source.repeats(self.ingress.is_some());
        let id_window = stream.id_window.max(repeats);
        let turns = stream.concurrency.unwrap_or(share.workers * TURNS_PER_WORKER);
        Settings {
            ordering: stream.ordering,
            first: stream.first,
            partition: share.partition,
            shards: self.shards(),
            max_lanes: (runtime.max_active_keys / of_process).max(1),
            // However many partitions: two of the largest events, or nothing could be read.
            memory_budget: (runtime.memory_budget.bytes() / of_process)
                .max(2 * runtime.event_size.bytes()),
            run_ahead: runtime.run_ahead,
            max_turns: turns.div_ceil(share.of_stream.max(1)),
            batch_events: runtime.batch,
            batch_bytes: runtime.batch_size.bytes(),
            keep_bytes: match self.store {
                StoreConfig::Embedded(_) => 0,
                StoreConfig::Redis(_) => runtime.memory_budget.bytes() / of_process / KEPT,
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
            retry: stream.retry_settings(),
            id_window,
            id_ttl: stream.id_ttl.0,
            id_floor: if stream.source.has_inbox(self.ingress.is_some()) {
                // While the broker is away, half of what is known by its id may be offered, and all
                // of it comes again.
                id_window
            } else {
                // The last run may have had a larger prefetch window.
                repeats.max(ID_FLOOR).min(id_window)
            },
            digests: stream.digests,
            due_poll: DUE_POLL,
            complete_ttl: stream.complete_ttl.0,
            key_ttl: stream.key_ttl.0.map(|it| it.0),
            version: share.version.clone(),
            seed: share.seed,
        }
    }
}

impl Stream {
    fn gap_settings(&self) -> GapSettings {
        let gap = &self.gap;
        GapSettings {
            timeout: gap.timeout.0,
            attempts: gap.attempts,
            backoff: gap.backoff,
            // The store is always one: what is spilled is found in any case.
            sources: self.replay_names().into_iter().map(Into::into).collect(),
            max_width: gap.max_width,
            on_exhausted: gap.on_exhausted.0,
            tail: gap.tail.0.map(|it| it.0),
        }
    }

    fn retry_settings(&self) -> RetrySettings {
        RetrySettings {
            attempts: self.retry.attempts,
            backoff: self.retry.backoff,
            on_exhausted: self.retry.on_exhausted.0,
            on_new_version: self.retry.on_new_version,
        }
    }

    /// The replay sources from number 1 on; number 0 is the store.
    pub fn replay_servers(&self) -> impl Iterator<Item = &ReplayServer> {
        self.gap.replay.iter().filter_map(|it| match it {
            Replay::Store => None,
            Replay::Http(server) => Some(server),
        })
    }

    /// What the replay sources are called, by their number: a server by its host, with a number of its own where
    /// that has several.
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
