//! The settings of a sequencer. The configuration of the process defines the default values and their reasons.

use std::ops::Range;
use std::sync::Arc;

use crate::event::SEQUENCE_END;
use crate::key_record::FailureInfo;
use crate::limit::{ExceededLimit, LimitValues};
use crate::type_filter::TypeFilter;
use crate::version::{Rollout, VersionName};

/// The settings of one sequencer. Durations are in ms, sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SequencerSettings {
    /// The ordering of the stream: either the events of a key have numbers before they arrive, or the sequencer numbers
    /// the events.
    pub ordering: OrderingMode,
    /// The sequence of a key's first event: 0 or 1. If the sequencer numbers the events, the value is always 1. With
    /// `begins_anywhere`, the value is 0, the lowest valid sequence.
    pub first: u64,
    /// `true` if a key without a record begins at the sequence of the first event that arrives. All lower sequences
    /// then count as skipped. Always `false` if the sequencer numbers the events.
    pub begins_anywhere: bool,
    /// The types of events that the handler executes. Each event of another type is settled without a call of the
    /// handler. With `None`, the handler executes events of all types.
    pub types: Option<Arc<TypeFilter>>,
    /// The partition that the sequencer owns.
    pub partition: u32,
    /// The number of shards. A shard is one slice of the store, by hash of the key.
    pub shards: u32,
    /// The maximum number of lanes in memory. A lane is the in-memory queue of one active key.
    pub max_lanes: usize,
    /// The memory limit for events, states, outcomes, unpublished messages and kept commits. At three quarters of the
    /// limit, the sequencer spills waiting events (moves them into the store) and accepts no more deliveries. At the
    /// limit, the sequencer waits for the commits and publications in progress before it loads or executes anything.
    pub memory_budget: usize,
    /// The maximum number of events that are dispatched to workers or executed, but not yet committed.
    pub run_ahead: usize,
    /// The maximum number of concurrent turns.
    pub max_turns: usize,
    /// The number of events at which a commit is full. Spilled events, dead letters and removed dead letters also count
    /// as events. The last write of the commit may exceed this number.
    pub batch_events: usize,
    /// The size at which a commit is full, in bytes. The last write of the commit may exceed this size, so that the
    /// outcome of one turn always fits.
    pub batch_bytes: usize,
    /// The memory limit for the latest commits of all shards. The sequencer keeps these commits so that it can send
    /// them again if the store goes back in time (loses its newest commits). Their memory is a part of `memory_budget`.
    /// 0 for a store that cannot go back in time.
    pub commit_history_bytes: usize,
    /// The maximum number of unacknowledged deliveries.
    pub prefetch: usize,
    /// The maximum number of events of a key in one turn. A turn is a run of events that one worker executes back to
    /// back.
    pub quantum: usize,
    /// The maximum number of concurrent loads of key records.
    pub max_loads: usize,
    /// The number of committed but unpublished messages and forwarded dead letters at which the sequencer starts no
    /// more turns. If dead letters are forwarded, the sequencer then also forms no more commits.
    pub max_outbox: usize,
    /// `true` if dead letters are forwarded: published like the messages of handlers.
    pub forward_letters: bool,
    /// The number of waiting events of a blocked key that may stay in memory. A blocked key has events that cannot run
    /// now. If such a key has more waiting events in memory, the sequencer moves its events into the store.
    pub lane_buffer: usize,
    /// The time that the oldest unacknowledged delivery may wait for its acknowledgement. After this time, the
    /// sequencer moves the events of the delivery's key from memory into the store, and can then acknowledge the
    /// delivery.
    pub spill_after: u64,
    /// The maximum number of events of one key in the spill area: the part of the store that holds events before they
    /// can run. Exception: the event at which a key stopped moves into the spill area even if the area already holds
    /// this number of events.
    pub spill_limit: u64,
    /// The handling of events beyond `spill_limit`.
    pub overflow: OverflowPolicy,
    /// The handling of gaps.
    pub gap: GapSettings,
    /// The handling of failures.
    pub retry: RetrySettings,
    /// In a `fifo` stream, the number of newest ids of a key that the sequencer remembers for at least `id_ttl`.
    pub id_window: usize,
    /// The minimum time from the commit that settles an event until the sequencer forgets the id of the event. This
    /// minimum applies only to the newest `id_window` ids of a key; the sequencer may forget earlier ids at any time.
    pub id_ttl: u64,
    /// The number of newest ids of a key that the sequencer remembers regardless of their age. After a crash or a lost
    /// answer, the source may deliver the events with these ids again.
    pub id_floor: usize,
    /// The number of content digests in a key record: one digest for each of the newest settled events.
    pub digests: usize,
    /// The maximum time between two reads of the due index. The index contains keys, each with the time at which the
    /// owner must handle the key. Other processes also write to the index, and do not notify this sequencer.
    pub due_poll: u64,
    /// The time, after the end of a key, for which the store keeps the record of the key.
    pub complete_ttl: u64,
    /// The time for which the store keeps the record of an idle key after the newest write of this record. A key is
    /// idle if it has not ended, is not parked, has no spilled or dead-lettered event that may still take effect, and
    /// has no entry in the due index. With `None`, the store never removes the record of a key that has not ended.
    pub key_ttl: Option<u64>,
    /// The rollout under which the sequencer executes events at the start. The rollout names the handler version.
    /// `None` if that version is not available in this process. The sequencer then executes nothing until that version
    /// becomes available.
    pub rollout: Option<Arc<Rollout>>,
    /// The seed of the jitter: the random part of the delays between tries of an event, between rounds, and before a
    /// commit is sent again.
    pub seed: u64,
}

/// The exclusive upper bound of sequences if keys may begin at any sequence. Every store represents integers exactly up
/// to values far above this bound. If keys begin at `first`, no key reaches this bound, and [`SEQUENCE_END`] applies
/// instead.
const ANY_SEQUENCE_END: u64 = 1 << 51;

impl SequencerSettings {
    /// Returns the valid sequences of events in a `sequenced` stream.
    pub fn sequences(&self) -> Range<u64> {
        valid_sequences(self.first, self.begins_anywhere)
    }
}

/// Returns the valid sequences of events in a `sequenced` stream. The arguments are the fields of
/// [`SequencerSettings`].
pub fn valid_sequences(first: u64, begins_anywhere: bool) -> Range<u64> {
    let end = if begins_anywhere { ANY_SEQUENCE_END } else { SEQUENCE_END };
    first..end
}

/// Returns why the sequence of an event is not one of the `valid` sequences of its `sequenced` stream; `None` if the
/// sequence is valid.
pub fn sequence_fault(valid: &Range<u64>, sequence: Option<u64>) -> Option<String> {
    match sequence {
        Some(sequence) if valid.contains(&sequence) => None,
        Some(sequence) => Some(format!(
            "sequence {sequence} is out of range: it must be from {} to {} (see the setting `first`)",
            valid.start,
            valid.end - 1
        )),
        None => Some(
            "the stream is `sequenced`, but the event has no sequence: let its producer number it, or make the stream \
             `fifo`"
                .to_owned(),
        ),
    }
}

/// The ordering of a stream: the way in which the events of a key get their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderingMode {
    /// The events have numbers before they arrive: their producer or the store has numbered them.
    Sequenced,
    /// The sequencer numbers the events, in the order of delivery.
    Fifo,
}

/// The handling of an event that would exceed `spill_limit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OverflowPolicy {
    /// The event stays unacknowledged. When the limit of unacknowledged deliveries is reached, the partition accepts no
    /// more deliveries.
    Pause,
    /// The event is dead-lettered.
    DeadLetter,
}

/// The handling of a failed event after its last try, or of a missing event after the last round of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExhaustedPolicy {
    /// The key stops at the event.
    Park,
    /// The event is dead-lettered and the key continues.
    Skip,
    /// The key continues to wait for the event (gaps only).
    Wait,
}

/// The bounds of an exponential backoff, in ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackoffBounds {
    /// The first delay, and the lower bound of all later delays.
    pub min: u64,
    /// The upper bound of all delays.
    pub max: u64,
}

impl BackoffBounds {
    /// Returns the longest delay after `tries` earlier delays: the lower bound, doubled `tries` times, and at most the
    /// upper bound.
    pub fn longest_delay(self, tries: u32) -> u64 {
        let doubled = self.min.max(1).checked_shl(tries.min(62)).unwrap_or(u64::MAX);
        doubled.min(self.max).max(self.min)
    }
}

/// The maximum number of replay sources of a stream: the store and eight other sources.
pub const SOURCES_LIMIT: usize = 9;

/// The handling of gaps: missing events of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GapSettings {
    /// The time from the arrival of the first event after the gap to the first round. A round requests the missing
    /// events from the replay sources, one after the other.
    pub timeout: u64,
    /// The maximum number of rounds for one gap. A round in which a source could not be queried does not count.
    pub attempts: u32,
    /// The bounds of the delay between two rounds.
    pub backoff: BackoffBounds,
    /// The names of the replay sources, in the order in which they are queried. The first source is the store itself.
    /// The list has at most [`SOURCES_LIMIT`] names.
    pub sources: Vec<Arc<str>>,
    /// The maximum distance between the sequence of an arriving event and the first missing sequence. A delivered event
    /// beyond this distance becomes a `far-ahead` dead letter.
    pub max_width: u64,
    /// The action after the last round if the event is still missing.
    pub on_exhausted: ExhaustedPolicy,
    /// If a key receives no event for this time, its newest event may be lost. The sequencer then requests the next
    /// event of the key from the replay sources. The sequencer repeats this request only if no source found the event
    /// and at least one source could not be queried. With `None`, the sequencer never makes this request.
    pub tail: Option<u64>,
}

impl GapSettings {
    /// The maximum width of a gap that a key skips, as a multiple of `max_width`. After the skip, all events before the
    /// end of the gap are late. Without this limit, a single event with a wrong, huge sequence would therefore make all
    /// right events of the key late. A key with a wider gap is parked.
    pub const SKIP_LIMIT: u64 = 100;

    /// Returns a limit of the distance between the first missing sequence and an event that has arrived. With `Skip`,
    /// the key skips the missing events before the event only if the distance does not exceed this limit. With `Park`
    /// and `Wait`, the key holds the event, until the missing events arrive, only if the distance does not exceed this
    /// limit.
    pub fn reachable_width(&self) -> u64 {
        match self.on_exhausted {
            ExhaustedPolicy::Skip => self.max_width.saturating_mul(Self::SKIP_LIMIT),
            ExhaustedPolicy::Park | ExhaustedPolicy::Wait => self.max_width,
        }
    }

    /// Returns whether a key may skip the missing events from `first` on, if `next` is the next event that has arrived.
    pub(crate) fn may_skip(&self, first: u64, next: u64) -> bool {
        self.on_exhausted == ExhaustedPolicy::Skip
            && next.saturating_sub(first) <= self.reachable_width()
    }

    /// Returns the longest time from the arrival of the first event after a gap to the start of the last round. This
    /// time includes neither the time that the requests take nor the rounds that do not count towards `attempts`.
    pub fn longest_wait(&self) -> u64 {
        let delays =
            (0..self.attempts.saturating_sub(1)).map(|tries| self.backoff.longest_delay(tries));
        delays.fold(self.timeout, u64::saturating_add)
    }
}

/// The handling of failures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetrySettings {
    /// The maximum number of tries of one event, including the first, for failures that may pass with time.
    pub attempts: u32,
    /// The bounds of the delay between two tries.
    pub backoff: BackoffBounds,
    /// The action after the last failed try.
    pub on_exhausted: ExhaustedPolicy,
    /// `true` if, under another handler version, the sequencer retries a key that a failure of the handler parked.
    pub on_new_version: bool,
    /// The values of the handler's limits. If a key is parked because the handler exceeded a limit, the sequencer
    /// retries the key as soon as the limit has another value.
    pub limits: LimitValues,
}

impl RetrySettings {
    /// Returns whether the reason why a key is parked no longer applies: `version` is another handler version than the
    /// version that failed, or the exceeded limit has another value now. For a failure without a handler version, such
    /// as a gap, always returns `false`.
    pub fn is_outdated(&self, failure: &FailureInfo, version: &VersionName) -> bool {
        let Some(failed) = &failure.version else { return false };
        let is_changed =
            |exceeded: ExceededLimit| exceeded.value != Some(self.limits.get(exceeded.limit));
        (self.on_new_version && failed != version) || failure.exceeded().is_some_and(is_changed)
    }
}
