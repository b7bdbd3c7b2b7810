//! The settings of a sequencer. Defaults and their reasons are in the host's configuration; here
//! are only the meanings.

use std::sync::Arc;

use crate::version::Decided;

/// Settings of one sequencer. Durations are in ms, sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Who numbers the events of a key.
    pub ordering: Ordering,
    /// Sequence of a key's first event: 0 or 1, and 1 where Ordain numbers.
    pub first: u64,
    /// The partition it owns.
    pub partition: u32,
    /// Shards of the store.
    pub shards: u32,
    /// Lanes in memory.
    pub max_lanes: usize,
    /// Bytes for events, states, outcomes and what is unpublished. At three quarters waiting events
    /// are spilled and intake stops; at all of it nothing is loaded or executed until something is
    /// written.
    pub memory_budget: usize,
    /// Events dispatched or executed and not yet committed.
    pub run_ahead: usize,
    /// Turns with the workers at one time.
    pub max_turns: usize,
    /// Events in a commit.
    pub batch_events: usize,
    /// Bytes in a commit, except that one turn's outcome always fits.
    pub batch_bytes: usize,
    /// Bytes of commits of all shards that stay in memory, to be made again should the store go back
    /// in time; a part of `memory_budget`. 0 for one that cannot.
    pub keep_bytes: usize,
    /// Deliveries taken and not yet acknowledged.
    pub prefetch: usize,
    /// Events of a key in one turn.
    pub quantum: usize,
    /// Loads under way at one time.
    pub max_loads: usize,
    /// Messages and forwarded dead letters committed and not yet published.
    pub max_outbox: usize,
    /// Whether dead letters are published as well.
    pub forward_letters: bool,
    /// Events of a blocked key in memory; beyond, it spills.
    pub lane_buffer: usize,
    /// How long an event may wait in memory before its key spills.
    pub spill_after: u64,
    /// Events of one key in the store's spill area.
    pub spill_limit: u64,
    /// What happens beyond `spill_limit`.
    pub overflow: Overflow,
    /// Gaps.
    pub gap: GapSettings,
    /// Failures.
    pub retry: RetrySettings,
    /// Ids remembered for a key of a `fifo` stream.
    pub id_window: usize,
    /// How long an id is remembered at least, in ms from the commit that settled its event.
    pub id_ttl: u64,
    /// Ids of a key that are remembered however old: as many as a crash or a lost answer can bring
    /// again.
    pub id_floor: usize,
    /// Content digests remembered for a key.
    pub digests: usize,
    /// Longest time between two looks at the due index: others write into it as well, and nobody
    /// tells.
    pub due_poll: u64,
    /// How long a completed key is remembered.
    pub complete_ttl: u64,
    /// How long a key that is not written to is remembered; `None`: for ever.
    pub key_ttl: Option<u64>,
    /// What executes events at the start; `None`: what was decided on is not here, and nothing is
    /// executed until it is.
    pub version: Option<Arc<Decided>>,
    /// Seed of the jitter.
    pub seed: u64,
}

/// Who numbers the events of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ordering {
    /// The producer.
    Sequenced,
    /// Ordain, in the order of delivery.
    Fifo,
}

/// What happens to an event that would exceed `spill_limit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overflow {
    /// It stays unacknowledged, which in the end stops intake.
    Pause,
    /// It is dead-lettered.
    DeadLetter,
}

/// What happens when all attempts are used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exhausted {
    /// The key stops.
    Park,
    /// The event is dead-lettered and the key goes on.
    Skip,
    /// The key goes on waiting for the event (gaps only).
    Wait,
}

/// Bounds of an exponential backoff, in ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// Upper bound of the first delay, and the lower bound of all.
    pub min: u64,
    /// Upper bound of all.
    pub max: u64,
}

/// Replay sources of a stream, at most: the store and eight others.
pub const SOURCES_LIMIT: usize = 9;

/// How a gap is treated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GapSettings {
    /// From the arrival of the first later event to the first round.
    pub timeout: u64,
    /// Rounds.
    pub attempts: u32,
    /// Between rounds.
    pub backoff: Backoff,
    /// The names of the replay sources, which are asked in this order; the store itself is the first. No
    /// more than [`SOURCES_LIMIT`].
    pub sources: Vec<Arc<str>>,
    /// How far beyond the first missing number an event may be.
    pub max_width: u64,
    /// After the last round.
    pub on_exhausted: Exhausted,
    /// Ask once for the next event of a key not heard of for this long.
    pub tail: Option<u64>,
}

/// How failures are treated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetrySettings {
    /// Tries of one event that may pass with time, the first included.
    pub attempts: u32,
    /// Between tries.
    pub backoff: Backoff,
    /// After the last try.
    pub on_exhausted: Exhausted,
    /// Whether a key parked by a failure tries again under another handler version.
    pub on_new_version: bool,
}
