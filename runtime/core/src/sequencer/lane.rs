//! The lane of one active key: its held events and its progress. This module must never access other lanes.
//!
//! ```text
//!       record.next        done            front
//! settled   | executed, not |  to run, known | first missing     held beyond the gap
//! durably   | yet durable   |  (or running)  |
//! ```
//!
//! `held` contains all events in memory from `record.next` on, durable or not. An executed event stays in `held` until
//! its results are durable, because the sequencer executes the event again if the store refuses the commit.
//! `cold.stored_only` is the extent of the events that are only in the spill area: the part of the store that holds
//! events before they can run.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

use super::chunk::ResultChunk;
use super::cold_state::ColdState;
use super::held::{HeldQueue, SpillCopy};
use super::ids::IdWindow;
use crate::event::{DeliveryNumber, Event, Key};
use crate::key_record::{AheadRange, FailureInfo, KeyRecord, KeyStatus, SpillExtent};
use crate::letter::LetterId;
use crate::settings::{OrderingMode, SequencerSettings};
use crate::stats::LaneState;

/// A lane must be small, because the sequencer reads the whole lane several times for each event, and most lanes are
/// not in a processor cache. Fields that few lanes need belong in [`ColdState`].
const _: () = assert!(size_of::<Lane>() <= 400);

/// The approximate time until this instance learns of a rollout under which another instance has executed an event of a
/// key.
const ROLLOUT_PROPAGATION_DELAY_MS: u64 = 1_000;

#[derive(Debug)]
pub(super) struct DeferredEvent {
    /// 0 if the source has not delivered the event.
    pub(super) delivery: DeliveryNumber,
    pub(super) event: Arc<Event>,
    /// `true` if replay found the event.
    pub(super) replayed: bool,
}

impl DeferredEvent {
    pub(super) fn new(delivery: DeliveryNumber, event: Arc<Event>) -> Self {
        Self { delivery, event, replayed: false }
    }
}

#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "independent flags, not one state")]
pub(super) struct Lane {
    pub(super) key: Key,
    pub(super) shard: u32,
    /// A number that no other lane ever gets. The index of a lane, in contrast, is reused.
    pub(super) serial: u64,
    pub(super) mode: LaneMode,
    /// The record as it will be after the commit in flight. Exception: the fields that describe the event at `done`
    /// (attempts, rounds, status, failure) may be newer.
    pub(super) record: KeyRecord,
    /// `true` if the store has no record, as far as this owner knows.
    pub(super) absent: bool,
    /// `true` if the sequencer only assumes that the store has no record, and no commit has confirmed this assumption
    /// yet. Until a commit confirms this assumption, the assumption must not be the reason for any dead letter.
    pub(super) absence_assumed: bool,
    /// The handler's state after all events below `done`.
    pub(super) state: Option<Bytes>,
    /// The next sequence to execute. All lower sequences are executed, skipped or settled.
    pub(super) done: u64,
    /// The first sequence from `done` on that may be neither in memory nor in the spill area.
    pub(super) front: u64,
    pub(super) held: HeldQueue,
    /// The events that wait until the lane can decide what happens to them, in order of arrival.
    pub(super) deferred: Vec<DeferredEvent>,
    /// The results of executed, skipped or late events that are not yet in a commit.
    pub(super) pending: SmallVec<[Box<ResultChunk>; 2]>,
    pub(super) cold: ColdState,
    pub(super) turn: Option<RunningTurn>,
    pub(super) load: Option<u64>,
    /// A commit with a write of this lane is in flight.
    pub(super) writing: bool,
    /// `true` if the commit in flight settles a late original: an event that arrived after its sequence had been
    /// skipped.
    pub(super) writing_late: bool,
    /// The lane is in its shard's queue of lanes to write.
    pub(super) dirty: bool,
    pub(super) ready: bool,
    /// The record must be written although no result is pending.
    pub(super) must_write: bool,
    pub(super) spill_all: bool,
    /// `true` if the event before `done` ended the key.
    pub(super) ended: bool,
    /// The time when the store removes the key record if no write follows; `u64::MAX` if the store keeps the record.
    pub(super) expires_at: u64,
    pub(super) ids: Option<Box<IdWindow>>,
    pub(super) counted_state: LaneState,
    /// `changing_lanes` of the sequencer counts the lane.
    pub(super) will_change: bool,
    /// The sequencer's `memory` counts these bytes, which exclude the events.
    pub(super) counted_memory: usize,
}

/// Besides `next`, these fields of a stored record reveal another owner's write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StoredRevision {
    park_count: u32,
    attempts: u32,
    rounds: u32,
    spilled: SpillExtent,
    pub(super) ahead: Option<AheadRange>,
}

impl StoredRevision {
    pub(super) const NEW: Self = Self {
        park_count: 0,
        attempts: 0,
        rounds: 0,
        spilled: SpillExtent { count: 0, first: 0, last: 0 },
        ahead: None,
    };

    pub(super) fn of(record: &KeyRecord) -> Self {
        let KeyRecord { park_count, attempts, rounds, spilled, .. } = *record;
        let ahead = record.ahead.as_deref().copied();
        Self { park_count, attempts, rounds, spilled, ahead }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LaneMode {
    /// The lane waits for its key record.
    Loading,
    /// The lane knows its key record, or assumes that the store has none.
    Live,
    /// Another partition has taken the key over. The value is the stored `next` of the key at the time when this owner
    /// learned of the take-over.
    Foreign(u64),
    /// The lane's key record or its spilled events cannot be read.
    Broken(String),
}

/// A delivery that may repeat a spilled event. The store compares the two events.
#[derive(Debug)]
pub(super) struct SpillCheck {
    pub(super) sequence: u64,
    pub(super) event: Arc<Event>,
    pub(super) delivery: DeliveryNumber,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct RunningTurn {
    pub(super) serial: u64,
    pub(super) events: u32,
    /// `true` if the lane has restarted since the turn began. The sequencer drops the result of this turn when the
    /// result arrives. Until then, the sequencer starts no other turn of the lane.
    pub(super) stale: bool,
}

impl Lane {
    pub(super) fn new(key: Key, shard: u32, serial: u64, settings: &SequencerSettings) -> Self {
        let mut record = KeyRecord::new(settings.first, settings.partition);
        if settings.ordering == OrderingMode::Fifo {
            record.ids_from = settings.first;
        }
        Self {
            key,
            shard,
            serial,
            mode: LaneMode::Loading,
            absent: false,
            absence_assumed: false,
            state: None,
            done: record.next,
            front: record.next,
            record,
            held: HeldQueue::default(),
            deferred: Vec::new(),
            pending: SmallVec::new(),
            cold: ColdState::default(),
            turn: None,
            load: None,
            writing: false,
            writing_late: false,
            dirty: false,
            ready: false,
            must_write: false,
            spill_all: false,
            ended: false,
            expires_at: u64::MAX,
            ids: None,
            counted_state: LaneState::Loading,
            will_change: false,
            counted_memory: 0,
        }
    }

    /// Makes a sequence the first sequence of a key without a record. All lower sequences count as skipped, so that
    /// their events become dead letters if they arrive later.
    pub(super) fn begin_at(&mut self, sequence: u64) {
        self.record.next = sequence;
        self.done = sequence;
        self.front = sequence;
        let before = sequence.checked_sub(1).map(|last| (0, last));
        self.record.skipped = before.into_iter().collect();
    }

    pub(super) fn live(&self) -> bool {
        self.mode == LaneMode::Live
    }

    /// Returns whether a late original is settled but not yet durable. Until the late original is durable, its repeats
    /// must wait.
    pub(super) fn has_unwritten_late(&self) -> bool {
        self.writing_late || self.pending.iter().any(|chunk| !chunk.late_originals.is_empty())
    }

    /// Returns whether the key has skipped the sequence because its event had not arrived. The skip need not be durable
    /// yet.
    pub(super) fn skipped(&self, sequence: u64) -> bool {
        let within = |&(first, last): &(u64, u64)| (first..=last).contains(&sequence);
        self.record.skipped.contains(sequence)
            || self.pending.iter().any(|chunk| chunk.skipped.iter().any(within))
    }

    pub(super) fn end_is_durable(&self) -> bool {
        self.record.status == KeyStatus::Completed && !self.writing && self.pending.is_empty()
    }

    pub(super) fn wants_load(&self) -> bool {
        self.load.is_none() && (self.mode == LaneMode::Loading || self.reloads_for_gap())
    }

    /// Returns whether a round of replay has begun and must first load the key record again.
    pub(super) fn reloads_for_gap(&self) -> bool {
        self.live() && self.cold.gap.as_ref().is_some_and(super::gap::LaneGap::reloading)
    }

    /// Returns the number of events that a worker executes now and whose results the sequencer will use.
    pub(super) fn running_events(&self) -> usize {
        self.turn.filter(|turn| !turn.stale).map_or(0, |turn| turn.events as usize)
    }

    pub(super) fn parked(&self) -> bool {
        self.record.status == KeyStatus::Parked
    }

    /// Returns the higher of two sequences: the highest sequence of the events in memory, and the upper bound of the
    /// events that are only in the spill area. Returns `None` if the lane has no events.
    pub(super) fn highest(&self) -> Option<u64> {
        let held = self.held.highest();
        let rest = (self.cold.stored_only.count > 0).then_some(self.cold.stored_only.last);
        held.max(rest)
    }

    /// Removes and returns the deliveries that repeat the event with this sequence. Each of these deliveries ends like
    /// the delivery of the event. If the event is settled or spilled, the repeated delivery counts as a duplicate. If
    /// the event becomes a dead letter, the repeated delivery becomes a dead letter too. In both cases, the sequencer
    /// acknowledges the repeated delivery.
    pub(super) fn take_repeats(&mut self, sequence: u64) -> Vec<DeliveryNumber> {
        let Some(cold) = self.cold.get_mut() else { return Vec::new() };
        let same = cold.repeats.extract_if(.., |repeat| repeat.0 == sequence);
        same.map(|(_, delivery)| delivery).collect()
    }

    pub(super) fn advance_front(&mut self) {
        self.front = self.front.max(self.done);
        if self.highest() < Some(self.front) {
            return;
        }
        loop {
            if self.cold.stored_only.spans(self.front) {
                if !self.cold.stored_only.contiguous() {
                    return;
                }
                self.front = self.cold.stored_only.last + 1;
            } else if let Ok(mut index) = self.held.find(self.front) {
                while self.held.get(index).is_some_and(|held| held.sequence == self.front) {
                    self.front += 1;
                    index += 1;
                }
            } else {
                return;
            }
        }
    }

    /// Returns whether the lane has a gap. The lane has a gap if event `front` is certainly missing, and the lane holds
    /// a later event. The lane also has a gap if event `front` is certainly missing, and the range of dead-lettered
    /// events ends at `front` or later.
    pub(super) fn has_gap(&self) -> bool {
        self.misses(self.front) && self.waits_beyond(self.front)
    }

    /// Returns whether the lane has a gap, or may find a gap when its spilled events are in memory.
    pub(super) fn may_have_gap(&self) -> bool {
        !self.misses(self.front) || self.waits_beyond(self.front)
    }

    /// Returns whether the lane holds an event after `sequence`, in memory or in the spill area, or the range of
    /// dead-lettered events ends at `sequence` or later.
    pub(super) fn waits_beyond(&self, sequence: u64) -> bool {
        self.highest() > Some(sequence)
            || self.record.ahead.as_ref().is_some_and(|ahead| ahead.last >= sequence)
    }

    /// True if `sequence` is the first missing sequence, and is certainly not among the spilled events.
    pub(super) fn misses(&self, sequence: u64) -> bool {
        sequence == self.front && !self.cold.stored_only.spans(sequence)
    }

    /// `None` if the clock does not run.
    pub(super) fn gap_clock(&self) -> Option<u64> {
        self.cold.gap.as_ref().filter(|gap| self.misses(gap.at))?.clock()
    }

    /// Returns whether events of the key may be unable to run now. This is so if the key is parked, waits for a retry
    /// or a rollout, has a gap, or has events that are only in the spill area.
    pub(super) fn blocked(&self) -> bool {
        self.live()
            && (self.parked()
                || self.cold.retry_at.is_some()
                || self.cold.newer_rollout.is_some()
                || self.cold.gap.is_some()
                || self.cold.stored_only.count > 0)
    }

    /// Records whether an event of the key was executed under a rollout that this instance does not know yet. Returns
    /// the number of the rollout that the instance needs; 0 if it needs no other rollout.
    pub(super) fn compare_versions(&mut self, settings: &SequencerSettings) -> u64 {
        let missing = self.record.missing_rollout(settings.rollout.as_deref());
        if missing.is_some() || self.cold.newer_rollout.is_some() {
            self.cold.get_or_init().newer_rollout = missing;
        }
        missing.unwrap_or(0)
    }

    /// Returns whether this process lacks a handler version that may execute the lane's events.
    pub(super) fn lacks_version(&self, settings: &SequencerSettings) -> bool {
        settings.rollout.is_none() || self.cold.newer_rollout.is_some()
    }

    pub(super) fn runnable(&self, settings: &SequencerSettings) -> bool {
        self.turn.is_none()
            && self.live()
            && !self.ended
            && !self.parked()
            && self.cold.retry_at.is_none()
            && !self.lacks_version(settings)
            && self.held.head().is_some_and(|held| held.sequence == self.done)
            && match self.pending.last() {
                None => true,
                Some(chunk) => {
                    self.pending.len() == 1
                        && chunk.events < settings.batch_events
                        && chunk.bytes < settings.batch_bytes
                }
            }
    }

    /// Returns whether the lane has events to spill, and `spill_limit` leaves room for them. The event at which a key
    /// stopped is spilled even if there is no room, because the other events wait for this event.
    pub(super) fn can_spill(&self, settings: &SequencerSettings) -> bool {
        let head = || {
            let head = self.held.head();
            head.is_some_and(|held| held.sequence == self.done && held.copy == SpillCopy::None)
        };
        self.held.not_durable() > 0 && (self.record.spilled.count < settings.spill_limit || head())
    }

    /// Returns the number of deliveries that the next write can compare with spilled events. During a read of spilled
    /// events, the number is 0, because a compared event that is new would become a spilled event that the read may
    /// miss. If every compared event is certainly a repeat, the number has no limit. In all other cases, a compared
    /// event may be new and then needs room in the spill area, so the number is the room that `spill_limit` leaves.
    pub(super) fn check_room(&self, settings: &SequencerSettings) -> usize {
        if self.cold.page.is_some() {
            0
        } else if self.cold.stored_only.contiguous() {
            // Every sequence from the first to the last spilled event is spilled, so every compared event is a repeat.
            usize::MAX
        } else {
            settings.spill_limit.saturating_sub(self.record.spilled.count) as usize
        }
    }

    /// Returns whether the next write of the lane removes one of these dead letters.
    pub(super) fn removes_letter_of(&self, letters: &BTreeSet<LetterId>) -> bool {
        let removed = self.pending.first().map(|chunk| &chunk.removed_letters);
        !letters.is_empty() && removed.is_some_and(|ids| ids.iter().any(|id| letters.contains(id)))
    }

    /// Returns whether the lane has something to write. A lane writes nothing during a load of its key record. Such a
    /// write would lack the changes that another partition made before the load. The store would accept the write
    /// nevertheless, because the load takes the key over for this partition.
    pub(super) fn wants_write(&self, settings: &SequencerSettings) -> bool {
        self.live()
            && self.load.is_none()
            && (!self.pending.is_empty()
                || self.must_write
                || (!self.cold.checks.is_empty() && self.check_room(settings) > 0)
                || (self.spill_all && self.can_spill(settings)))
    }

    /// If the lane must be marked as broken now, removes and returns the reason why its spilled events cannot be read.
    /// Returns `None` if the spilled events can be read, or if the lane still has results to commit.
    pub(super) fn take_break_reason(&mut self) -> Option<String> {
        let written = self.pending.is_empty() && !self.must_write && !self.writing;
        self.cold.get_mut()?.unreadable.take_if(|_| written)
    }

    /// Returns whether the lane has events that are not durable: held events without a confirmed copy in the spill
    /// area, or events that the store must first compare with spilled events.
    pub(super) fn has_undurable_events(&self) -> bool {
        self.held.not_durable() > 0 || !self.cold.checks.is_empty()
    }

    /// Returns whether nothing of the lane is in progress, and the lane has events that cannot become durable, because
    /// `spill_limit` leaves no room for them.
    pub(super) fn durable_but_full(&self, settings: &SequencerSettings) -> bool {
        self.has_undurable_events()
            && self.turn.is_none()
            && self.cold.page.is_none()
            && self.load.is_none()
            && !self.writing
            && !self.wants_write(settings)
            && !self.can_spill(settings)
    }

    /// Returns whether everything in the lane is durable and no request is outstanding.
    pub(super) fn durable(&self) -> bool {
        self.held.not_durable() == 0
            && self.mode != LaneMode::Loading
            && self.turn.is_none()
            && self.load.is_none()
            && self.cold.page.is_none()
            && self.cold.letter_read.is_none()
            && !self.ready
            && !self.writing
            && !self.dirty
            && self.deferred.is_empty()
            && self.cold.checks.is_empty()
            && self.pending.is_empty()
            && !self.must_write
            && self.cold.gap.as_ref().is_none_or(|gap| !gap.has_outstanding_request())
    }

    /// Returns its sequence and content.
    pub(super) fn next_event(&self) -> Option<(u64, u64)> {
        let held = self.held.head().filter(|held| held.sequence == self.done)?;
        Some((held.sequence, held.event.content()))
    }

    /// Returns whether the next event is held, or may be among the spilled events.
    pub(super) fn has_next(&self) -> bool {
        self.next_event().is_some() || self.cold.stored_only.spans(self.done)
    }

    /// Returns whether the next event has had one failure of a kind that does not pass with time, such as a trap (a
    /// fault of the WebAssembly code). Compares the content as well, because another event may have taken the sequence
    /// since the failure.
    pub(super) fn has_trapped(&self) -> bool {
        self.cold.trapped.is_some() && self.cold.trapped == self.next_event()
    }

    /// Returns the time at which the owner must handle the key, for the due index in the store. Returns `None` if
    /// nothing of the key depends on time: for example, the key waits for its next event, or is parked.
    pub(super) fn due(&self, now: u64) -> Option<u64> {
        if self.parked() || self.ended {
            let has_spilled = self.ended && self.record.spilled.count > 0;
            return (has_spilled || self.passed_letters().is_some()).then_some(now);
        }
        if let Some(at) = self.cold.retry_at {
            return Some(at);
        }
        if self.record.spilled.count > 0 || self.record.ahead.is_some() {
            return match &self.cold.gap {
                Some(gap) if gap.at == self.done => gap.until(now),
                // Without the delay, the owner would load and evict a lane with an unknown rollout in a busy loop over
                // the due index.
                _ if self.cold.newer_rollout.is_some() => {
                    Some(now.saturating_add(ROLLOUT_PROPAGATION_DELAY_MS))
                }
                _ => Some(now),
            };
        }
        self.cold.tail_at
    }

    /// Returns whether the lane has nothing due. If its key then has a due entry in the store, another owner wrote that
    /// entry.
    pub(super) fn knows_nothing_due(&self, now: u64) -> bool {
        self.live() && self.due(now).is_none()
    }

    /// Returns the memory cost without the events, in bytes.
    pub(super) fn own_memory(&self) -> usize {
        size_of::<Self>()
            + self.key.len()
            + self.state.as_ref().map_or(0, Bytes::len)
            + self.ids.as_ref().map_or(0, |ids| ids.memory())
            + self.record.failure.as_deref().map_or(0, FailureInfo::memory)
            + self.record.gaps.memory()
            + self.record.id_times.memory()
            + self.cold.memory()
    }
}
