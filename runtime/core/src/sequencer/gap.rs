//! Handles gaps: missing events of a key. A clock of `gap.timeout` starts at the arrival of the first later event. When
//! the clock expires, rounds query the replay sources, one after the other ([`round`]). If no round finds the missing
//! event, [`exhausted`] applies `gap.on_exhausted`. The arrival of the missing event ends the gap at any time.
//!
//! A later event may also be in a dead letter, because it arrived too far ahead, or because its key was full. The key
//! record has the range of these letters ([`crate::KeyRecord::ahead`]). If a gap begins within this range, its first
//! event may be in such a letter. The sequencer then first queries the store alone, without waiting for the clock.

mod exhausted;
mod round;

use super::Sequencer;
use crate::letter::LetterId;

/// The gap that begins at the `front` of a lane: at its first missing sequence.
#[derive(Debug, Clone, Copy)]
pub(super) struct LaneGap {
    pub(super) at: u64,
    state: GapState,
    /// The number of finished rounds that count towards `gap.attempts`.
    pub(super) round: u32,
    /// `true` if a source reported in this round that it may find more events later.
    may_find_more: bool,
    /// `true` if a source could not be queried in this round. The round then does not count towards `gap.attempts`.
    source_unreachable: bool,
    /// The time at which the clock expires, if the sequencer must first query the store for the dead letters of missing
    /// events. `None` if no such query is necessary, or after the query.
    clock_after_letters: Option<u64>,
    /// The lowest sequence of the events that are in dead letters in the store and that the lane cannot hold yet. The
    /// sequencer knows these letters from the newest query to the store, and from its own commits.
    pub(super) next_letter: Option<u64>,
    /// The exclusive end of the sequences, from `at` on, for which the newest search of the store can show that they
    /// have no early dead letter. The search may be outstanding. 0 if no search has begun.
    pub(super) search_end: u64,
    /// `true` if no later event has arrived. The sequencer then requests the next event only because the key has
    /// received no event for `gap.tail`.
    pub(super) tail: bool,
    /// The time when the sequencer found that the event is missing.
    pub(super) since: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GapState {
    /// The lane waits until this time for the next round.
    Clock(u64),
    /// The key record is being loaded again, because another owner may have settled the missing events.
    Reloading,
    /// The lane waits for the answer of the replay source with this number.
    Querying(usize),
    /// All rounds are over, and the event is still missing. The sequencer applies `gap.on_exhausted` when all events
    /// before the gap have been executed.
    Exhausted,
    /// The lane waits for the event without a time limit.
    Waiting,
}

impl LaneGap {
    /// `None` if the gap does not wait for its clock, or needs an earlier query for dead letters.
    pub(super) fn clock(&self) -> Option<u64> {
        match self.state {
            GapState::Clock(at) if self.clock_after_letters.is_none() => Some(at),
            _ => None,
        }
    }

    /// Returns the time for the due index if the lane leaves memory now; `None` if the gap waits without a time limit.
    pub(super) fn until(&self, now: u64) -> Option<u64> {
        match self.state {
            GapState::Clock(at) => Some(at),
            GapState::Waiting => None,
            _ => Some(now),
        }
    }

    /// Returns whether the answer to a load or to a replay request is outstanding.
    pub(super) fn has_outstanding_request(&self) -> bool {
        matches!(self.state, GapState::Reloading | GapState::Querying(_))
    }

    pub(super) fn reloading(&self) -> bool {
        self.state == GapState::Reloading
    }

    pub(super) fn waits_forever(&self) -> bool {
        self.state == GapState::Waiting
    }
}

impl Sequencer {
    /// Starts, keeps or ends the gap of the lane, according to the events that the lane holds now.
    pub(super) fn update_gap(&mut self, index: u32) {
        self.lanes[index].end_recorded_gap();
        let now = self.now;
        let ended = self.source_has_ended;
        let skip = fault!(self, SkipAGap);
        let lane = &mut self.lanes[index];
        if lane.ended || lane.parked() || !lane.has_gap() {
            self.close_gap(index);
            return;
        }
        if lane.cold.gap.as_ref().is_none_or(|gap| gap.at != lane.front || gap.tail) {
            let front = lane.front;
            if skip
                && front == lane.done
                && lane.turn.is_none()
                && lane.held.find(front + 1).is_ok()
            {
                lane.done += 1;
                lane.front += 1;
                return;
            }
            self.count_recovery(index);
            let lane = &mut self.lanes[index];
            let later = lane.held.iter().filter(|held| held.sequence > front);
            let since = later.map(|held| held.at).min().unwrap_or(now);
            let timeout = if ended { 0 } else { self.settings.gap.timeout };
            let was_requested = lane.cold.requested.iter().any(|range| range.contains(&front));
            let before = lane.cold.gap.filter(|gap| !gap.tail && was_requested);
            let (round, wait) = match before {
                // A replay source that returned a part of the gap may have more events of the gap, so the next round
                // needs no extra delay.
                Some(before) if lane.is_replayed(before.at) => (before.round, 0),
                // If a missing event arrived without replay, more missing events may follow, so the next round waits.
                Some(before) if before.state != GapState::Exhausted => {
                    (before.round, self.settings.gap.backoff.min)
                }
                Some(before) => (before.round, 0),
                None if front == lane.done => (lane.record.rounds, 0),
                None => (0, 0),
            };
            let cold = lane.cold.get_or_init();
            let until = match cold.gap_due.take() {
                // The clock runs for at least `gap.timeout` after this owner claimed the partition. In this time, the
                // source delivers again the events that the previous owner did not acknowledge.
                Some(due) if !ended => due.max(self.claimed_at.saturating_add(timeout)),
                Some(due) => due,
                None => since.saturating_add(timeout),
            };
            let wait = if ended { 0 } else { wait };
            let until = until.max(now.saturating_add(wait));
            let is_lettered = lane.record.ahead.as_ref().is_some_and(|ahead| ahead.spans(front));
            let clock_after_letters = is_lettered.then_some(until);
            let state = GapState::Clock(until);
            cold.replay = None;
            if before.is_none() {
                cold.requested.clear();
            }
            let may_find_more = false;
            let source_unreachable = false;
            let tail = false;
            cold.gap = Some(LaneGap {
                at: front,
                state,
                round,
                may_find_more,
                source_unreachable,
                clock_after_letters,
                next_letter: before.and_then(|gap| gap.next_letter),
                search_end: 0,
                tail,
                since,
            });
            if self.may_query_letters(index) {
                self.query_source(index, 0);
            } else if ended || until <= now {
                self.start_gap_round(index);
            }
        } else if self.may_query_letters(index) {
            self.query_source(index, 0);
        } else if self.lanes[index].cold.gap.and_then(|gap| gap.clock()).is_some_and(|at| at <= now)
        {
            // The clock expired while the missing event could still be among the spilled events, so no round began at
            // that time.
            self.start_gap_round(index);
        }
        self.act_on_exhausted(index);
    }

    /// Does nothing while the gap may continue.
    fn close_gap(&mut self, index: u32) {
        let lane = &mut self.lanes[index];
        if !lane.may_have_gap()
            && let Some(cold) = lane.cold.get_mut()
        {
            // The next gap is not the gap of the loaded record, so the clock of the next gap runs for the whole
            // `gap.timeout`.
            cold.gap_due = None;
        }
        // A gap also stays open while events before the gap are only in the store.
        let closed = |gap: &LaneGap| gap.at < lane.front || !lane.waits_beyond(gap.at);
        let over = |gap: &LaneGap| {
            if gap.tail { gap.at != lane.front } else { lane.ended || lane.parked() || closed(gap) }
        };
        if lane.cold.gap.as_ref().is_some_and(over) {
            self.count_recovery(index);
            let cold = self.lanes[index].cold.get_or_init();
            cold.forget_gap();
            cold.replay = None;
        }
    }

    /// Returns whether the lane can soon execute the missing events that are in dead letters, and has not queried the
    /// store for them yet. The lane takes few of these events into memory at a time, and none while it cannot execute
    /// events.
    fn may_query_letters(&self, index: u32) -> bool {
        let lane = &self.lanes[index];
        let spilled = lane.cold.stored_only;
        let waits = |gap: &LaneGap| {
            matches!(gap.state, GapState::Clock(_))
                && gap.clock_after_letters.is_some()
                && (spilled.count == 0 || spilled.first > gap.at)
                && gap.at.saturating_sub(lane.done) < self.settings.lane_buffer.max(1) as u64
        };
        lane.cold.gap.as_ref().is_some_and(waits)
            && lane.cold.retry_at.is_none()
            && !lane.lacks_version(&self.settings)
    }

    /// Handles the durable dead letter of an event that arrived, but that its key could not hold. If the event is the
    /// first missing event, queries the store for dead letters again.
    pub(super) fn early_letter_stored(&mut self, id: &LetterId) {
        let Some(index) = self.lanes.find(&id.key) else { return };
        let now = self.now;
        let Some(gap) = self.lanes[index].cold.gap_mut() else { return };
        if gap.tail || gap.at > id.sequence {
            return;
        }
        if gap.at < id.sequence {
            gap.next_letter =
                Some(gap.next_letter.map_or(id.sequence, |next| next.min(id.sequence)));
            return;
        }
        let until = gap.clock().or(gap.clock_after_letters).unwrap_or(now);
        gap.clock_after_letters = Some(until);
        if !gap.has_outstanding_request() {
            gap.state = GapState::Clock(until);
        }
        self.reschedule(index);
    }

    fn count_recovery(&mut self, index: u32) {
        let lane = &mut self.lanes[index];
        // A skipped event has not arrived.
        let has_arrived =
            |gap: &LaneGap| !gap.tail && gap.at < lane.front && gap.state != GapState::Exhausted;
        if let Some(gap) = lane.cold.gap.filter(has_arrived) {
            self.stats.recovery_times.add(self.now.saturating_sub(gap.since));
            if gap.waits_forever() {
                self.record_resumed_key(index, gap.at);
            }
        }
    }

    /// Returns the time at which the sequencer requests the next event of a key, if the key receives no event until
    /// then. Returns `None` if `gap.tail` is not set.
    pub(super) fn tail_from_now(&self) -> Option<u64> {
        let wait = |tail| if self.source_has_ended { 0 } else { tail };
        self.settings.gap.tail.map(|tail| self.now.saturating_add(wait(tail)))
    }

    /// Requests the next event from the replay sources once, because the key has received no event for `gap.tail`. Does
    /// nothing if the lane has work, or if its key has stopped or ended.
    pub(super) fn request_tail(&mut self, index: u32) {
        let lane = &mut self.lanes[index];
        if let Some(cold) = lane.cold.get_mut() {
            cold.tail_at = None;
        }
        let busy = lane.turn.is_some() || lane.cold.gap.is_some() || lane.held.to_run() > 0;
        if busy || lane.ended || lane.parked() || !lane.live() || lane.cold.stored_only.count > 0 {
            return;
        }
        let at = lane.done;
        let state = GapState::Querying(0);
        let since = self.now;
        let may_find_more = false;
        let source_unreachable = false;
        let tail = true;
        let gap = LaneGap {
            at,
            state,
            round: 0,
            may_find_more,
            source_unreachable,
            clock_after_letters: None,
            next_letter: None,
            search_end: 0,
            tail,
            since,
        };
        lane.cold.get_or_init().gap = Some(gap);
        self.query_source(index, 0);
    }

    /// Handles the end of the source: no more events will arrive.
    pub(super) fn source_ended(&mut self) {
        self.source_has_ended = true;
        self.due.schedule(self.now);
        for index in self.lanes.indices() {
            let lane = &mut self.lanes[index];
            if lane.cold.tail_at.is_some_and(|at| at > self.now) {
                lane.cold.get_or_init().tail_at = Some(self.now);
            }
            if self.lanes[index].cold.gap.as_ref().is_some_and(|gap| gap.clock().is_some()) {
                self.start_gap_round(index);
            }
            self.reschedule(index);
        }
    }

    /// Records that the source is available again. The source has the time `gap.timeout` to deliver the events that it
    /// held while it was unavailable.
    pub(super) fn source_available(&mut self) {
        if self.gaps_held_until == u64::MAX {
            self.gaps_held_until = self.now.saturating_add(self.settings.gap.timeout);
        }
    }

    /// Returns whether every lane stays unchanged until an event arrives: no lane has a scheduled load or a gap with a
    /// time limit.
    pub(super) fn all_wait_forever(&self) -> bool {
        self.changing_lanes == 0
    }
}
