//! The settings of a sequencer. This module defines only their meanings; the defaults and their
//! reasons are in the host's configuration.

use std::sync::Arc;

use crate::version::Rollout;

/// The settings of one sequencer. Durations are in ms, sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SequencerSettings {
    /// The party that numbers the events of a key: the producer or Ordain.
    pub ordering: OrderingMode,
    /// The sequence of a key's first event: 0 or 1; always 1 if Ordain numbers the events.
    pub first: u64,
    /// The partition that the sequencer owns.
    pub partition: u32,
    /// The number of shards of the store.
    pub shards: u32,
    /// The maximum number of lanes in memory.
    pub max_lanes: usize,
    /// The limit for events, states, outcomes and unpublished messages. At three quarters of the
    /// limit, the sequencer spills waiting events and stops the intake. At the limit, it neither
    /// loads nor executes anything until a commit frees memory.
    pub memory_budget: usize,
    /// The maximum number of events dispatched or executed but not committed.
    pub run_ahead: usize,
    /// The maximum number of concurrent turns.
    pub max_turns: usize,
    /// The maximum number of events in a commit.
    pub batch_events: usize,
    /// The maximum size of a commit; the outcome of one turn always fits.
    pub batch_bytes: usize,
    /// The limit for commits of all shards that stay in memory, so that the sequencer can make them
    /// again if the store goes back in time. It is a part of `memory_budget`. 0 for a store that
    /// cannot go back.
    pub commit_history_bytes: usize,
    /// The maximum number of unacknowledged deliveries.
    pub prefetch: usize,
    /// The maximum number of events of a key in one turn.
    pub quantum: usize,
    /// The maximum number of concurrent loads.
    pub max_loads: usize,
    /// The maximum number of messages, and dead letters to be forwarded, that are committed but not yet published.
    pub max_outbox: usize,
    /// `true` if dead letters are also published.
    pub forward_letters: bool,
    /// The maximum number of events of a blocked key in memory; the key spills further events.
    pub lane_buffer: usize,
    /// The time that an event may wait in memory before its key spills.
    pub spill_after: u64,
    /// The maximum number of events of one key in the store's spill area.
    pub spill_limit: u64,
    /// The handling of events beyond `spill_limit`.
    pub overflow: OverflowPolicy,
    /// The handling of gaps.
    pub gap: GapSettings,
    /// The handling of failures.
    pub retry: RetrySettings,
    /// The number of ids remembered for a key of a `fifo` stream.
    pub id_window: usize,
    /// The minimum time to remember an id, from the commit that settled its event.
    pub id_ttl: u64,
    /// The number of ids of a key to remember regardless of age: those that a crash or a lost
    /// answer can bring again.
    pub id_floor: usize,
    /// The number of content digests remembered for a key.
    pub digests: usize,
    /// The maximum time between two reads of the due index. Other processes write to the index as
    /// well and send no notification.
    pub due_poll: u64,
    /// The time to remember a completed key.
    pub complete_ttl: u64,
    /// The time to remember a key without writes; `None` for ever.
    pub key_ttl: Option<u64>,
    /// The handler version that executes events at the start. `None` if the version of the rollout
    /// is not available here; the sequencer executes nothing until it is.
    pub rollout: Option<Arc<Rollout>>,
    /// The seed of the jitter.
    pub seed: u64,
}

/// The party that numbers the events of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderingMode {
    /// The producer.
    Sequenced,
    /// Ordain, in the order of delivery.
    Fifo,
}

/// The handling of an event that would exceed `spill_limit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OverflowPolicy {
    /// The event stays unacknowledged, which eventually stops the intake.
    Pause,
    /// The event is dead-lettered.
    DeadLetter,
}

/// The handling of a failure or gap after the last attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExhaustedPolicy {
    /// The key stops.
    Park,
    /// The event is dead-lettered and the key continues.
    Skip,
    /// The key continues to wait for the event (gaps only).
    Wait,
}

/// The bounds of an exponential backoff, in ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackoffBounds {
    /// The upper bound of the first delay, and the lower bound of all delays.
    pub min: u64,
    /// The upper bound of all delays.
    pub max: u64,
}

/// The maximum number of replay sources of a stream: the store and eight others.
pub const SOURCES_LIMIT: usize = 9;

/// The handling of gaps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GapSettings {
    /// The time from the arrival of the first later event to the first round.
    pub timeout: u64,
    /// The maximum number of rounds.
    pub attempts: u32,
    /// The delay between rounds.
    pub backoff: BackoffBounds,
    /// The names of the replay sources, in the order in which they are queried. The first is the
    /// store itself. At most [`SOURCES_LIMIT`].
    pub sources: Vec<Arc<str>>,
    /// The maximum distance of an event from the first missing number.
    pub max_width: u64,
    /// The action after the last round.
    pub on_exhausted: ExhaustedPolicy,
    /// The idle time of a key after which the sequencer requests its next event once.
    pub tail: Option<u64>,
}

/// The handling of failures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetrySettings {
    /// The maximum number of tries of one event whose failure may pass with time, including the
    /// first.
    pub attempts: u32,
    /// The delay between tries.
    pub backoff: BackoffBounds,
    /// The action after the last try.
    pub on_exhausted: ExhaustedPolicy,
    /// `true` if a key that a failure parked is retried under another handler version.
    pub on_new_version: bool,
}
