//! Forms the write of a lane, and the data that the sequencer keeps until the reply to the write.

use std::sync::Arc;

use smallvec::SmallVec;

use super::super::Sequencer;
use super::super::chunk::ResultChunk;
use super::super::held::SpillCopy;
use super::super::lane::{Lane, SpillCheck, StoredRevision};
use super::InFlightWrite;
use crate::event::Event;
use crate::key_record::{
    AcceptedId, EventDigests, KeyRecord, KeyStatus, KeyWrite, SpillExtent, WriteCondition,
};
use crate::settings::{OrderingMode, SequencerSettings};

impl Sequencer {
    /// Forms the lane's write. `room` limits the events that the write spills: their number and their bytes.
    pub(super) fn form_write(
        &mut self,
        index: u32,
        room: (usize, usize),
    ) -> (KeyWrite, InFlightWrite, WriteCost) {
        let tail = self.tail_from_now();
        let store_time = self.store_time(self.lanes[index].shard);
        let settings = &self.settings;
        let lane = &mut self.lanes[index];
        let expect = if lane.absent {
            WriteCondition::Absent
        } else {
            WriteCondition::Next(lane.record.next)
        };
        let mut ids = SmallVec::new();
        let mut evicted_digests = Vec::new();
        let chunk = if lane.pending.is_empty() {
            Box::new(ResultChunk::new(lane.record.next, None))
        } else {
            let chunk = lane.pending.remove(0);
            if settings.ordering == OrderingMode::Fifo && chunk.next > lane.record.next {
                lane.record.id_times.record_commit(lane.record.next, store_time, settings.id_ttl);
            }
            evicted_digests = advance_record(lane, &chunk, settings, &mut ids);
            chunk
        };
        // The end of the key is written with its last event, even if late originals (events that arrived after their
        // sequences were skipped) are still to be settled.
        let completed = lane.ended && lane.record.next == lane.done;
        let more = !lane.pending.is_empty() && !completed;
        let (mut spill, spilled_bytes) = select_spill(lane, settings, room, &mut ids);
        let checks = take_ready_checks(lane, settings, room.0.saturating_sub(spill.len()).max(1));
        spill.extend(checks.iter().map(|check| (check.sequence, Arc::clone(&check.event))));
        self.stats.spilled += spill.len() as u64;

        lane.record.spilled = spill_extent(lane, &checks);
        if chunk.events > 0 && lane.cold.tail_at != tail {
            lane.cold.get_or_init().tail_at = tail;
        }
        let due = if more { Some(self.now) } else { lane.due(self.now) };
        let due_in = due.map(|at| at.saturating_sub(self.now));
        if completed {
            lane.record.status = KeyStatus::Completed;
        }
        let holds = lane.record.spilled.count > 0 || lane.record.ahead.is_some();
        let quiet = due_in.is_none() && !holds && !lane.parked();
        let ttl = if completed { Some(settings.complete_ttl) } else { settings.key_ttl };
        let expire_in = ttl.filter(|_| quiet);
        lane.expires_at = expire_in.map_or(u64::MAX, |wait| self.now.saturating_add(wait));
        lane.record.gaps.set_waited(self.now);
        let record = record_to_write(lane, more);
        lane.absent = false;
        let revision = StoredRevision::of(&record);
        if lane.cold.revision != revision {
            lane.cold.get_or_init().revision = revision;
        }
        lane.must_write = false;
        lane.writing = true;
        lane.writing_late = !chunk.late_originals.is_empty();

        let cost = WriteCost {
            // Each spilled event, each letter and each removed letter costs the store a write of its own, so it counts
            // like an event.
            events: chunk.events + spill.len() + chunk.letters.len() + chunk.removed_letters.len(),
            bytes: chunk.bytes + spilled_bytes,
            kept_bytes: chunk.bytes,
        };
        let write = KeyWrite {
            key: lane.key.clone(),
            condition: expect,
            record,
            state: chunk.state,
            messages: chunk.messages,
            letters: chunk.letters,
            removed_letters: chunk.removed_letters,
            spill,
            ids,
            due_in,
            expire_in,
        };
        let in_write = InFlightWrite {
            lane: index,
            events: chunk.events,
            effects: chunk.effects,
            other_types: chunk.other_types,
            evicted_digests,
            late_originals: chunk.late_originals,
            checks,
        };
        (write, in_write, cost)
    }
}

/// The cost of a write: the events and bytes that count towards the limits of the batch, and the bytes that the
/// sequencer keeps in memory until the reply.
pub(super) struct WriteCost {
    pub(super) events: usize,
    pub(super) bytes: usize,
    pub(super) kept_bytes: usize,
}

/// Records in the key record that the events of a chunk are settled. The number of events in a chunk may exceed the
/// number of digests in a record. Returns the sequences and digests of the events whose digests do not fit into the
/// record. In a `fifo` stream, adds the ids of the events without a spilled copy to `ids`.
fn advance_record(
    lane: &mut Lane,
    chunk: &ResultChunk,
    settings: &SequencerSettings,
    ids: &mut SmallVec<[AcceptedId; 2]>,
) -> Vec<(u64, u32)> {
    let mut next = lane.record.next;
    let ahead = lane.record.ahead.as_deref().copied();
    let mut evicted_digests = Vec::new();
    let keeps_evicted = settings.digests > 0 && settings.ordering == OrderingMode::Sequenced;
    let kept_from =
        if keeps_evicted { chunk.next.saturating_sub(settings.digests as u64) } else { 0 };
    let unseen = |digests: &mut EventDigests, from: u64, to: u64| {
        for _ in from.max(to.saturating_sub(settings.digests as u64))..to {
            digests.push_unseen(settings.digests);
        }
    };
    for held in lane.held.iter() {
        if held.sequence >= chunk.next {
            break;
        }
        unseen(&mut lane.record.digests, next, held.sequence);
        let digest = held.event.repeat_digest();
        lane.record.digests.push(digest, settings.digests);
        if held.sequence < kept_from {
            evicted_digests.push((held.sequence, EventDigests::short(digest)));
        }
        if ahead.is_some_and(|ahead| ahead.spans(held.sequence)) {
            lane.cold.record_settled_ahead(held.sequence, EventDigests::short(digest));
        }
        next = held.sequence + 1;
        if settings.ordering == OrderingMode::Fifo && held.copy == SpillCopy::None {
            ids.push(AcceptedId::new(held.sequence, &held.event));
        }
    }
    unseen(&mut lane.record.digests, next, chunk.next);
    lane.record.next = chunk.next;
    for &(first, last) in &chunk.skipped {
        lane.record.skipped.push(first, last);
    }
    for (_, late) in &chunk.late_originals {
        if let Some(sequence) = late.sequence() {
            lane.record.skipped.remove(sequence);
            lane.record.digests.set(chunk.next, sequence, late.repeat_digest());
        }
    }
    if chunk.rollout.is_some() {
        lane.record.rollout.clone_from(&chunk.rollout);
    }
    evicted_digests
}

/// Selects the held events that this write spills (moves into the store). The function selects the events in ascending
/// order, so that in a `fifo` stream no number becomes durable before a lower number.
fn select_spill(
    lane: &mut Lane,
    settings: &SequencerSettings,
    (mut events, bytes): (usize, usize),
    ids: &mut SmallVec<[AcceptedId; 2]>,
) -> (Vec<(u64, Arc<Event>)>, usize) {
    let mut spill = Vec::new();
    let mut spilled = 0;
    // Events after the key's end become dead letters and are not spilled.
    lane.spill_all &= !lane.ended;
    if !lane.spill_all {
        return (spill, spilled);
    }
    let limit = settings.spill_limit.saturating_sub(lane.cold.stored_only.count) as usize;
    events = events.max(1).min(limit.saturating_sub(lane.held.copies()));
    let next = lane.record.next;
    let done = lane.done;
    let all = lane.held.write_copies(next, |held| {
        // The event at which the key stopped is spilled even if the batch or `spill_limit` has no room for it, because
        // the other events wait for this event.
        let head = held.sequence == done;
        if !head && (spill.len() >= events || spilled >= bytes.max(1)) {
            return false;
        }
        spilled += held.event.memory();
        if settings.ordering == OrderingMode::Fifo {
            ids.push(AcceptedId::new(held.sequence, &held.event));
        }
        spill.push((held.sequence, Arc::clone(&held.event)));
        true
    });
    lane.spill_all = !all;
    (spill, spilled)
}

/// Removes and returns the checks that this write can make: deliveries to compare with spilled events, at most one for
/// each sequence.
fn take_ready_checks(
    lane: &mut Lane,
    settings: &SequencerSettings,
    room: usize,
) -> Vec<SpillCheck> {
    if lane.cold.checks.is_empty() {
        return Vec::new();
    }
    let room = lane.check_room(settings).min(room);
    let mut now: Vec<SpillCheck> = Vec::new();
    let mut later: Vec<SpillCheck> = Vec::new();
    for check in lane.cold.take_checks() {
        if now.len() >= room || now.iter().any(|other| other.sequence == check.sequence) {
            later.push(check);
        } else {
            now.push(check);
        }
    }
    lane.cold.get_or_init().checks = later;
    now
}

/// Returns the extent of the key's spilled events after the write.
pub(super) fn spill_extent(lane: &Lane, checks: &[SpillCheck]) -> SpillExtent {
    let mut spilled = lane.cold.stored_only;
    if lane.held.copies() > 0 {
        for held in lane.held.iter() {
            if held.copy != SpillCopy::None && held.sequence >= lane.record.next {
                spilled.add(held.sequence);
            }
        }
    }
    if !lane.cold.stored_only.contiguous() {
        for check in checks {
            spilled.add(check.sequence);
        }
    }
    spilled
}

/// Returns the key record that the write contains. If `more` is `true`, later writes follow with results of events
/// before `done`. The record of this write then omits the fields that describe the event at `done` (attempts, rounds,
/// status, failure).
fn record_to_write(lane: &Lane, more: bool) -> KeyRecord {
    let mut record = lane.record.clone();
    if more {
        record.attempts = 0;
        record.rounds = 0;
        record.failure = None;
        record.status = KeyStatus::Active;
    } else if record.status == KeyStatus::Active {
        if lane.cold.retry_at.is_some() {
            record.status = KeyStatus::Retrying;
        } else if lane.cold.gap.as_ref().is_some_and(|gap| gap.at == record.next) {
            record.status = KeyStatus::Waiting;
        }
    }
    if record.status != KeyStatus::Completed {
        record.gaps.reopen_from(record.next);
    }
    record
}
