//! A replay round. The sequencer loads the key record again, and then queries one replay source after the other for the
//! missing events.

use std::ops::RangeInclusive;
use std::sync::Arc;

use super::super::Sequencer;
use super::super::lane::{Lane, StoredRevision};
use super::{GapState, LaneGap};
use crate::effect::Effect;
use crate::event::Event;
use crate::key_record::KeySnapshot;
use crate::settings::OrderingMode;
use crate::turn::AttemptToken;

/// The maximum number of sequences in one request to a replay source other than the store. The sequencer requests the
/// other missing sequences in later rounds, when the requested events have arrived or the key has skipped their
/// sequences. The sequencer requests all missing sequences from the store: only the store can find the next sequence
/// that has a dead letter. The cost of the store's search depends on the events in the store, not on the number of
/// missing sequences. If the store is the only replay source, each round therefore requests all missing sequences.
const SEQUENCES_PER_REQUEST_LIMIT: u64 = 4_096;

impl Sequencer {
    /// Starts a round, because the clock of the gap has expired. If the gap has already had `gap.attempts` rounds,
    /// marks the gap as exhausted instead. Does nothing while the sequencer must first query the store for the dead
    /// letters of missing events.
    pub(in super::super) fn start_gap_round(&mut self, index: u32) {
        if self.lanes[index].cold.gap.is_some_and(|gap| gap.clock_after_letters.is_some()) {
            return;
        }
        self.lanes[index].record_gap(self.now);
        let lane = &mut self.lanes[index];
        let Some(gap) = lane.cold.gap_mut() else { return };
        if gap.round >= self.settings.gap.attempts {
            gap.state = GapState::Exhausted;
            return;
        }
        gap.may_find_more = false;
        gap.source_unreachable = false;
        gap.state = GapState::Reloading;
        if let Some(listed) = lane.record.gaps.open_mut() {
            listed.rounds = listed.rounds.saturating_add(1);
        }
        self.stats.gap_rounds += 1;
        let quiet = lane.turn.is_none() && lane.pending.is_empty() && !lane.dirty && !lane.absent;
        if quiet && !lane.writing {
            self.loads.push_back(index);
        } else {
            // The lane does not load the record, because the reply to the lane's next commit will show whether another
            // owner has had the key.
            self.query_source(index, 0);
        }
    }

    /// Starts the load with which a round begins. If a write of the lane is in flight, queries the first replay source
    /// instead.
    pub(in super::super) fn reload_for_gap(&mut self, index: u32, serial: u64) {
        if self.lanes[index].writing {
            self.query_source(index, 0);
        } else {
            self.request_load(index, serial);
        }
    }

    pub(in super::super) fn reloaded_for_gap(
        &mut self,
        index: u32,
        loaded: &Result<Option<Box<KeySnapshot>>, String>,
    ) {
        let lane = &mut self.lanes[index];
        let moved = match loaded {
            Ok(Some(loaded)) if loaded.record.next < lane.record.next => false,
            Ok(Some(loaded)) => {
                loaded.record.next > lane.record.next
                    || StoredRevision::of(&loaded.record) != lane.cold.revision
            }
            Ok(None) | Err(_) => !lane.absent,
        };
        if moved {
            self.restart_lane(index);
            return;
        }
        if let Ok(Some(loaded)) = loaded
            && loaded.record.next == lane.record.next
        {
            // Another partition may have had the key, but has settled nothing. If the lane restarted here, two
            // partitions with the same gap could take the key from each other forever. The lane only adopts the stored
            // range, which may contain early dead letters of the other partition.
            if lane.record.takeovers != loaded.record.takeovers {
                lane.record.takeovers = loaded.record.takeovers;
                lane.record.ahead.clone_from(&loaded.record.ahead);
            }
        }
        if lane.cold.gap.as_ref().is_some_and(LaneGap::reloading) {
            self.query_source(index, 0);
        }
    }

    pub(super) fn query_source(&mut self, index: u32, source: usize) {
        if source >= self.settings.gap.sources.len() {
            self.end_round(index);
            return;
        }
        let serial = self.next_serial();
        let has_servers = self.settings.gap.sources.len() > 1;
        let limit = if has_servers { SEQUENCES_PER_REQUEST_LIMIT } else { u64::MAX };
        let limited = self.missing_ranges(index, limit);
        let missing = match source {
            0 => self.missing_ranges(index, u64::MAX),
            _ => limited.clone(),
        };
        let gap_at = self.lanes[index].cold.gap.map_or(0, |gap| gap.at);
        let arriving = self.arriving_from(index, gap_at);
        let max_letter_age = self.max_letter_age(index);
        let lane = &mut self.lanes[index];
        let Some(gap) = &lane.cold.gap else { return };
        let is_missing = lane.misses(gap.at);
        let Some(gap) = lane.cold.gap_mut() else { return };
        if !is_missing || missing.is_empty() {
            // No round begins, for one of two reasons. First, the missing sequence may be among the spilled events,
            // whose sequences are not in memory: the round follows when the sequencer has read these events. Second,
            // the lane may hold no later event any more: the gap ends.
            gap.state = GapState::Clock(self.now);
            return;
        }
        gap.state = GapState::Querying(source);
        let round = gap.round;
        let cold = lane.cold.get_or_init();
        match (round, source) {
            (0, 0) => cold.requested = limited,
            _ => cold.requested = intersection(&cold.requested, &limited),
        }
        cold.replay = Some(serial);
        if source == 0
            && let Some(gap) = &mut cold.gap
        {
            let end = missing[0].end().saturating_add(1);
            gap.search_end = arriving.map_or(end, |arriving| end.min(arriving));
        }
        if let Some(arriving) = arriving {
            // Event `arriving` is not in the store yet, so the answer may lack this event.
            lane.cut_requested(arriving);
        }
        self.outstanding_replays.insert(AttemptToken { lane: index, serial });
        let token = AttemptToken { lane: index, serial };
        let key = lane.key.clone();
        self.effects.push_back(Effect::Replay { token, key, source, missing, max_letter_age });
    }

    /// Examines the sequences from the gap up to the highest sequence of the lane or of the dead-lettered range, and
    /// returns at most `room` that are certainly missing according to the data in memory. For a tail request
    /// (`LaneGap::tail`), returns only the next sequence.
    fn missing_ranges(&self, index: u32, mut room: u64) -> Vec<RangeInclusive<u64>> {
        let lane = &self.lanes[index];
        let Some(gap) = &lane.cold.gap else { return Vec::new() };
        if gap.tail {
            return vec![gap.at..=gap.at];
        }
        let mut ranges = Vec::new();
        let mut next = gap.at;
        let mut present = |first: u64, last: u64| {
            if first > next && room > 0 {
                let end = (first - 1).min(next.saturating_add(room - 1));
                room -= end - next + 1;
                ranges.push(next..=end);
            }
            next = next.max(last.saturating_add(1));
        };
        // `rest` contains only the bounds of the spilled events that are not in memory. A sequence between these bounds
        // may be spilled, so this round does not request the sequence. When the spilled events are in memory, a later
        // round requests the missing sequences between the bounds.
        let mut rest = (lane.cold.stored_only.count > 0)
            .then_some((lane.cold.stored_only.first, lane.cold.stored_only.last));
        for held in lane.held.iter() {
            if held.sequence < gap.at {
                continue;
            }
            if let Some((first, last)) = rest.filter(|(first, _)| *first < held.sequence) {
                present(first, last);
                rest = None;
            }
            present(held.sequence, held.sequence);
        }
        if let Some((first, last)) = rest {
            present(first, last);
        }
        // All events after the highest held event, up to the end of the dead-lettered range, are missing, because the
        // lane does not have them. Some of these events are in dead letters in the store.
        if let Some(ahead) = &lane.record.ahead {
            present(ahead.last.saturating_add(1), ahead.last);
        }
        ranges
    }

    pub(in super::super) fn replayed(
        &mut self,
        token: AttemptToken,
        found: Vec<(u64, Arc<Event>)>,
        until: u64,
        failed: Option<&str>,
    ) {
        // The request ends even if no lane waits for its answer.
        self.outstanding_replays.remove(token);
        let Some(index) =
            self.match_completion(token, |lane| Some(&mut lane.cold.get_mut()?.replay))
        else {
            return;
        };
        let lane = &mut self.lanes[index];
        let Some(gap) = lane.cold.gap_mut() else { return };
        gap.may_find_more |= failed.is_some();
        gap.source_unreachable |= until <= gap.at;
        let LaneGap { at, state, tail, since, clock_after_letters, .. } = *gap;
        let GapState::Querying(source) = state else { return };
        let more = source + 1 < self.settings.gap.sources.len();
        let sequenced = self.settings.ordering == OrderingMode::Sequenced;
        // The source has searched for the missing events below this sequence, and found none of them.
        let searched_until = found.first().map_or(until, |(sequence, _)| until.min(*sequence));
        let fits = |(sequence, event): &(u64, Arc<Event>)| {
            sequenced && event.key() == &*lane.key && event.sequence() == Some(*sequence)
        };
        let found: Vec<_> = found.into_iter().filter(fits).collect();
        self.stats.count_answer(source, found.len(), failed.is_some());
        let name = &self.settings.gap.sources[source];
        if tail && !found.is_empty() {
            lane.record_tail(at, self.now, since);
        }
        if clock_after_letters.is_none() && (!tail || !found.is_empty()) {
            lane.record_answer(name, &found, failed);
        }
        if tail && (!found.is_empty() || !more) {
            let is_unreachable =
                found.is_empty() && lane.cold.gap.is_some_and(|gap| gap.source_unreachable);
            let retry_tail = self.settings.gap.tail.filter(|_| is_unreachable);
            let cold = lane.cold.get_or_init();
            cold.forget_gap();
            cold.tail_at = retry_tail.map(|tail| self.now.saturating_add(tail)).or(cold.tail_at);
        } else if (at + 1..u64::MAX).contains(&until) {
            let cold = lane.cold.get_or_init();
            cold.requested = intersection(&cold.requested, &[0..=until - 1]);
        }
        let mut refused = None;
        for (sequence, event) in found {
            if self.lanes[index].live() {
                self.stats.replayed += 1;
                self.accept_replayed(index, event);
            }
            let lane = &mut self.lanes[index];
            if sequence >= lane.done && lane.held.find(sequence).is_err() && lane.live() {
                // The lane cannot hold the event, because it is too far ahead or its key is full. A later round must
                // request the event again.
                lane.cut_requested(sequence);
                refused = refused.or(Some(sequence));
            }
        }
        if source == 0
            && let Some(gap) = self.lanes[index].cold.gap_mut()
        {
            gap.next_letter = refused;
        }
        self.lanes[index].advance_front();
        if source == 0 && failed.is_none() {
            self.early_letters_searched(index, searched_until);
        }
        let lane = &self.lanes[index];
        let open = lane.cold.gap.as_ref().is_some_and(|gap| gap.at == at) && lane.front <= at;
        if open && clock_after_letters.is_some() {
            self.end_round(index);
        } else if open {
            self.query_source(index, source + 1);
        } else if tail && self.lanes[index].held.is_empty() {
            // The request for the next event found nothing. The write removes the key's entry in the due index, or sets
            // the entry to the time of the next request.
            self.lanes[index].must_write = true;
        }
        self.reschedule(index);
    }

    fn end_round(&mut self, index: u32) {
        let now = self.now;
        let lane = &mut self.lanes[index];
        let Some(gap) = lane.cold.gap_mut() else { return };
        if let Some(until) = gap.clock_after_letters.take() {
            gap.state = GapState::Clock(until);
            return;
        }
        gap.round += u32::from(!gap.source_unreachable);
        // The write makes the stored record show the open gap.
        lane.must_write = true;
        let hopeless = self.source_has_ended && !gap.may_find_more;
        if gap.round >= self.settings.gap.attempts || hopeless {
            gap.state = GapState::Exhausted;
        } else {
            let delay = self.jitter.delay(self.settings.gap.backoff, gap.round.saturating_sub(1));
            gap.state = GapState::Clock(now.saturating_add(delay));
        }
        if gap.at == lane.done {
            lane.record.rounds = gap.round;
        }
    }
}

impl Lane {
    /// Removes `sequence` and all later sequences from the sequences that every round has requested, because the store
    /// has event `sequence`, or will have it.
    pub(in super::super) fn cut_requested(&mut self, sequence: u64) {
        if let Some(cold) = self.cold.get_mut()
            && let Some(last) = sequence.checked_sub(1)
        {
            cold.requested = intersection(&cold.requested, &[0..=last]);
        }
    }
}

/// Both lists are in ascending order.
fn intersection(
    one: &[RangeInclusive<u64>],
    other: &[RangeInclusive<u64>],
) -> Vec<RangeInclusive<u64>> {
    let mut one = one.iter().peekable();
    let mut other = other.iter().peekable();
    let mut common = Vec::new();
    while let (Some(left), Some(right)) = (one.peek(), other.peek()) {
        let first = *left.start().max(right.start());
        let last = *left.end().min(right.end());
        if first <= last {
            common.push(first..=last);
        }
        if left.end() < right.end() {
            one.next()
        } else {
            other.next()
        };
    }
    common
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intersection_returns_common_ranges() {
        assert_eq!(
            intersection(&[1..=3, 5..=9], &[2..=6, 8..=8, 9..=20]),
            [2..=3, 5..=6, 8..=8, 9..=9]
        );
        assert_eq!(intersection(&[1..=3], &[4..=6]), []);
        assert_eq!(intersection(&[], &[4..=6]), []);
        assert_eq!(intersection(&[4..=u64::MAX], &[4..=u64::MAX]), [4..=u64::MAX]);
    }
}
