//! Missing events: a clock from the arrival of the first later one, rounds of asking every replay
//! source, and what happens when all rounds were in vain. The event itself ends it at any point.

use std::ops::RangeInclusive;
use std::sync::Arc;

use super::Sequencer;
use super::lane::Known;
use super::retry::missing;
use crate::effect::Effect;
use crate::event::Event;
use crate::gaps::{GapEnd, Gaps};
use crate::job::Loaded;
use crate::settings::{Exhausted, Ordering};
use crate::turn::Token;

/// Numbers that are asked for together; further ones in a later round.
const ASKED_TOGETHER: u64 = 4_096;

/// Between two looks, in ms, whether a source that brings nothing is back.
const AWAY_LOOK: u64 = 1_000;

/// The gap that a lane has at its `front`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gap {
    /// The first missing sequence.
    pub(super) at: u64,
    stage: Stage,
    /// Rounds made.
    pub(super) round: u32,
    /// Some source may know more later.
    again: bool,
    /// Some source could not be asked in this round, which does not count then.
    unasked: bool,
    /// Asked because the key has been silent, not because a later event is there.
    pub(super) tail: bool,
    /// When it was first known that the event is missing.
    pub(super) since: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Until the next round.
    Clock(u64),
    /// The job is loaded again: another owner may have gone past the gap.
    Reloading,
    /// This source is asked.
    Asking(usize),
    /// All rounds are over; it acts once everything before the gap has run.
    Exhausted,
    /// It waits for ever.
    Waiting,
}

impl Gap {
    /// When the next round starts, if it is the clock that is waited for.
    pub(super) fn clock(&self) -> Option<u64> {
        match self.stage {
            Stage::Clock(at) => Some(at),
            _ => None,
        }
    }

    /// When its owner must look at it if it leaves memory now.
    pub(super) fn until(&self, now: u64) -> Option<u64> {
        match self.stage {
            Stage::Clock(at) => Some(at),
            Stage::Waiting => None,
            _ => Some(now),
        }
    }

    /// Whether an answer is on its way.
    pub(super) fn asks(&self) -> bool {
        matches!(self.stage, Stage::Reloading | Stage::Asking(_))
    }

    pub(super) fn reloading(&self) -> bool {
        self.stage == Stage::Reloading
    }

    pub(super) fn for_ever(&self) -> bool {
        self.stage == Stage::Waiting
    }
}

/// What is given up, and who could not be asked for it: perhaps they would have had it.
fn never_came(gaps: &Gaps, first: u64, last: u64, rounds: u32) -> String {
    let events =
        if first == last { format!("event {first}") } else { format!("events {first} to {last}") };
    let rounds = if rounds == 1 { "1 round".into() } else { format!("{rounds} rounds") };
    let mut words = format!("{events} never came: asked for in {rounds}");
    let gap = gaps.iter().rfind(|gap| (gap.first..=gap.last).contains(&first));
    for answers in gap.into_iter().flat_map(|gap| &gap.answers) {
        if let Some(error) = &answers.error {
            words += &format!(
                "; {} failed {} of {} times: {error}",
                answers.source, answers.failed, answers.asked
            );
        }
    }
    words
}

impl Sequencer {
    /// Starts, keeps or ends the lane's gap according to what is there now.
    pub(super) fn update_gap(&mut self, index: u32) {
        self.lanes[index].end_listed_gap();
        let (now, ended) = (self.now, self.ended);
        let skip = fault!(self, SkipAGap);
        let lane = &mut self.lanes[index];
        if lane.ended || lane.parked() || !lane.has_gap() {
            // It stands still while what lies before it is in the store only.
            let closed = |gap: &Gap| gap.at < lane.front || lane.highest() <= Some(gap.at);
            let over = |gap: &Gap| {
                if gap.tail {
                    gap.at != lane.front
                } else {
                    lane.ended || lane.parked() || closed(gap)
                }
            };
            if lane.rare.gap.as_ref().is_some_and(over) {
                self.note_recovery(index);
                let rare = self.lanes[index].rare.make();
                rare.forget_gap();
                rare.replay = None;
            }
            return;
        }
        if lane.rare.gap.as_ref().is_none_or(|gap| gap.at != lane.front || gap.tail) {
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
            self.note_recovery(index);
            let lane = &mut self.lanes[index];
            let later = lane.held.iter().filter(|held| held.sequence > front);
            let since = later.map(|held| held.at).min().unwrap_or(now);
            let timeout = if ended { 0 } else { self.settings.gap.timeout };
            let asked = lane.rare.asked.iter().any(|range| range.contains(&front));
            let before = lane.rare.gap.filter(|gap| !gap.tail && asked);
            let (round, wait) = match before {
                // What a source had of it, it may have more of.
                Some(before) if lane.is_replayed(before.at) => (before.round, 0),
                // What has come by itself may not be the last that does.
                Some(before) if before.stage != Stage::Exhausted => {
                    (before.round, self.settings.gap.backoff.min)
                }
                Some(before) => (before.round, 0),
                None if front == lane.done => (lane.job.rounds, 0),
                None => (0, 0),
            };
            let rare = lane.rare.make();
            let until = match rare.gap_due.take() {
                // What the last owner had not acknowledged comes again: it gets the time for that.
                Some(due) if !ended => due.max(self.born.saturating_add(timeout)),
                Some(due) => due,
                None => since.saturating_add(timeout),
            };
            let wait = if ended { 0 } else { wait };
            let until = until.max(now.saturating_add(wait));
            let stage = Stage::Clock(until);
            rare.replay = None;
            if before.is_none() {
                rare.asked.clear();
            }
            let (again, unasked, tail) = (false, false, false);
            rare.gap = Some(Gap { at: front, stage, round, again, unasked, tail, since });
            if ended || until <= now {
                self.gap_round(index);
            }
        } else if lane.rare.gap.as_ref().and_then(Gap::clock).is_some_and(|at| at <= now) {
            // It ran out while the gap stood still.
            self.gap_round(index);
        }
        self.act_on_exhausted(index);
    }

    /// Counts the lane's gap as recovered if what was missing has come.
    fn note_recovery(&mut self, index: u32) {
        let lane = &mut self.lanes[index];
        // One that was skipped has not come.
        let came = |gap: &Gap| !gap.tail && gap.at < lane.front && gap.stage != Stage::Exhausted;
        if let Some(gap) = lane.rare.gap.filter(came) {
            self.stats.recovery.add(self.now.saturating_sub(gap.since));
        }
    }

    /// The clock has run out.
    pub(super) fn gap_round(&mut self, index: u32) {
        self.lanes[index].list_gap(self.now);
        let lane = &mut self.lanes[index];
        let Some(gap) = lane.rare.gap_mut() else { return };
        if gap.round >= self.settings.gap.attempts {
            gap.stage = Stage::Exhausted;
            return;
        }
        (gap.again, gap.unasked) = (false, false);
        gap.stage = Stage::Reloading;
        if let Some(listed) = lane.job.gaps.open_mut() {
            listed.rounds = listed.rounds.saturating_add(1);
        }
        self.stats.gap_rounds += 1;
        let quiet = lane.turn.is_none() && lane.pending.is_empty() && !lane.dirty && !lane.absent;
        if quiet && !lane.writing {
            self.loads.push_back(index);
        } else {
            // A commit of its own will tell whether another owner has been there.
            self.ask_source(index, 0);
        }
    }

    /// The load of a round can begin, unless the lane has begun to write meanwhile.
    pub(super) fn reload_for_gap(&mut self, index: u32, serial: u64) {
        if self.lanes[index].writing {
            self.ask_source(index, 0);
        } else {
            self.ask_for_load(index, serial);
        }
    }

    /// The job again, in the course of a round.
    pub(super) fn reloaded_for_gap(
        &mut self,
        index: u32,
        loaded: &Result<Option<Box<Loaded>>, String>,
    ) {
        let lane = &mut self.lanes[index];
        let moved = match loaded {
            Ok(Some(loaded)) if loaded.job.next < lane.job.next => false,
            Ok(Some(loaded)) => {
                loaded.job.next > lane.job.next || Known::of(&loaded.job) != lane.rare.known
            }
            Ok(None) | Err(_) => !lane.absent,
        };
        if moved {
            self.load_again(index);
            return;
        }
        if let Ok(Some(loaded)) = loaded
            && loaded.job.next == lane.job.next
        {
            // Another partition had it and changed nothing. Beginning anew for that would let two
            // partitions with the same gap take the job from each other without end.
            lane.job.takeovers = loaded.job.takeovers;
        }
        if lane.rare.gap.as_ref().is_some_and(Gap::reloading) {
            self.ask_source(index, 0);
        }
    }

    fn ask_source(&mut self, index: u32, source: usize) {
        if source >= self.settings.gap.sources.len() {
            self.end_round(index);
            return;
        }
        let serial = self.next_serial();
        let missing = self.missing(index);
        let lane = &mut self.lanes[index];
        let Some(gap) = &lane.rare.gap else { return };
        let certain = lane.misses(gap.at);
        let Some(gap) = lane.rare.gap_mut() else { return };
        if !certain || missing.is_empty() {
            // It may be among what only the store has, and then the round is made when that is
            // known; or nothing later is held any more, and then it is no gap.
            gap.stage = Stage::Clock(self.now);
            return;
        }
        gap.stage = Stage::Asking(source);
        let round = gap.round;
        let rare = lane.rare.make();
        match (round, source) {
            (0, 0) => rare.asked.clone_from(&missing),
            _ => rare.asked = both(&rare.asked, &missing),
        }
        rare.replay = Some(serial);
        self.replays.ask(Token { lane: index, serial });
        let token = Token { lane: index, serial };
        let (key, within) = (lane.key.clone(), self.settings.complete_ttl);
        self.effects.push_back(Effect::Replay { token, key, source, missing, within });
    }

    /// What is missing below the highest sequence known, as far as memory tells.
    fn missing(&self, index: u32) -> Vec<RangeInclusive<u64>> {
        let lane = &self.lanes[index];
        let Some(gap) = &lane.rare.gap else { return Vec::new() };
        if gap.tail {
            return vec![gap.at..=gap.at];
        }
        let mut ranges = Vec::new();
        let (mut next, mut room) = (gap.at, ASKED_TOGETHER);
        let mut present = |first: u64, last: u64| {
            if first > next && room > 0 {
                let end = (first - 1).min(next + (room - 1));
                room -= end - next + 1;
                ranges.push(next..=end);
            }
            next = next.max(last.saturating_add(1));
        };
        // Between the bounds of `rest` nothing is known for sure, and what is there is not
        // missing: it is asked for when it comes into memory.
        let mut rest =
            (lane.rare.rest.count > 0).then_some((lane.rare.rest.first, lane.rare.rest.last));
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
        ranges
    }

    pub(super) fn replayed(
        &mut self,
        token: Token,
        found: Vec<(u64, Arc<Event>)>,
        until: u64,
        failed: Option<&str>,
    ) {
        // Also one that nobody waits for any more was under way.
        self.replays.answer(token);
        let Some(index) = self.answered(token, |lane| Some(&mut lane.rare.there()?.replay)) else {
            return;
        };
        let lane = &mut self.lanes[index];
        let Some(gap) = lane.rare.gap_mut() else { return };
        gap.again |= failed.is_some();
        gap.unasked |= until <= gap.at;
        let Gap { at, stage, tail, since, .. } = *gap;
        let Stage::Asking(source) = stage else { return };
        let more = source + 1 < self.settings.gap.sources.len();
        let sequenced = self.settings.ordering == Ordering::Sequenced;
        let fits = |(sequence, event): &(u64, Arc<Event>)| {
            sequenced && event.key() == &*lane.key && event.sequence() == Some(*sequence)
        };
        let found: Vec<_> = found.into_iter().filter(fits).collect();
        self.stats.answered(source, found.len(), failed.is_some());
        let name = &self.settings.gap.sources[source];
        if tail && !found.is_empty() {
            lane.list_tail(at, self.now, since);
        }
        if !tail || !found.is_empty() {
            lane.note_answer(name, &found, failed);
        }
        if tail && (!found.is_empty() || !more) {
            let is_unasked = found.is_empty() && lane.rare.gap.is_some_and(|gap| gap.unasked);
            let again = self.settings.gap.tail.filter(|_| is_unasked);
            let rare = lane.rare.make();
            rare.forget_gap();
            rare.tail_at = again.map(|tail| self.now.saturating_add(tail)).or(rare.tail_at);
        } else if (at + 1..u64::MAX).contains(&until) {
            let rare = lane.rare.make();
            rare.asked = both(&rare.asked, &[0..=until - 1]);
        }
        for (_, event) in found {
            if self.lanes[index].live() {
                self.stats.replayed += 1;
                self.take_found(index, event);
            }
        }
        self.lanes[index].advance_front();
        let lane = &self.lanes[index];
        let open = lane.rare.gap.as_ref().is_some_and(|gap| gap.at == at) && lane.front <= at;
        if open {
            self.ask_source(index, source + 1);
        } else if tail && self.lanes[index].held.is_empty() {
            // Asked once, and there is nothing: the due index need not bring it back.
            self.lanes[index].header = true;
        }
        self.settle(index);
    }

    fn end_round(&mut self, index: u32) {
        let now = self.now;
        let lane = &mut self.lanes[index];
        let Some(gap) = lane.rare.gap_mut() else { return };
        gap.round += u32::from(!gap.unasked);
        // Whoever looks sees that it is open.
        lane.header = true;
        let hopeless = self.ended && !gap.again;
        if gap.round >= self.settings.gap.attempts || hopeless {
            gap.stage = Stage::Exhausted;
        } else {
            let delay = self.jitter.delay(self.settings.gap.backoff, gap.round.saturating_sub(1));
            gap.stage = Stage::Clock(now.saturating_add(delay));
        }
        if gap.at == lane.done {
            lane.job.rounds = gap.round;
        }
    }

    /// All rounds are over, and everything before the gap has run.
    fn act_on_exhausted(&mut self, index: u32) {
        let lose = fault!(self, LoseAGapEnd);
        let lane = &mut self.lanes[index];
        let rest = (lane.rare.rest.count > 0).then_some(lane.rare.rest.first);
        let Some(gap) = lane.rare.gap else { return };
        if gap.stage != Stage::Exhausted || gap.at != lane.done || lane.turn.is_some() {
            return;
        }
        if self.now < self.away_until {
            let look = self.now.saturating_add(AWAY_LOOK).min(self.away_until);
            lane.rare.make().gap = Some(Gap { stage: Stage::Clock(look), ..gap });
            return;
        }
        let (first, rounds) = (gap.at, gap.round);
        let held = lane.held.head().map(|held| held.sequence);
        let next = [held, rest].into_iter().flatten().min().unwrap_or(first + 1);
        // Only what all rounds asked for; what is behind it gets rounds of its own. Where another owner
        // made them, the first is all that is known.
        let asked = if self.settings.gap.attempts > 0 {
            let asked = lane.rare.asked.iter().find(|range| range.contains(&first));
            asked.map_or(first, |range| *range.end())
        } else {
            u64::MAX
        };
        let next = next.min(asked.saturating_add(1));
        let error = never_came(&lane.job.gaps, first, next - 1, rounds);
        match self.settings.gap.on_exhausted {
            Exhausted::Wait => {
                lane.give_up_gap(GapEnd::Waiting, next - 1);
                lane.rare.make().gap = Some(Gap { stage: Stage::Waiting, ..gap });
                // Nothing is due any more.
                lane.header = true;
            }
            Exhausted::Park => {
                lane.give_up_gap(GapEnd::Parked, next - 1);
                self.park(index, missing(error));
            }
            Exhausted::Skip => {
                // A wide gap is skipped in commits like others: the rest when this one is on its
                // way.
                let waiting: usize = lane.pending.iter().map(|chunk| chunk.letters.len()).sum();
                let room = self.settings.batch_events.saturating_sub(waiting) as u64;
                if room == 0 {
                    return;
                }
                let last = (next - 1).min(first + room - 1);
                let at = last + 1;
                if !lose {
                    lane.note_skip(first, last);
                }
                lane.rare.make().gap = Some(Gap { at, ..gap });
                self.skip_unseen(index, last, &format!("{error}; skipped"));
                let lane = &mut self.lanes[index];
                lane.advance_front();
                if last == asked && lane.front == at {
                    lane.rare.make().forget_gap();
                }
                self.update_gap(index);
            }
        }
    }

    /// When a key that is silent from now on is asked for its next event.
    pub(super) fn tail_from_now(&self) -> Option<u64> {
        let wait = |tail| if self.ended { 0 } else { tail };
        self.settings.gap.tail.map(|tail| self.now.saturating_add(wait(tail)))
    }

    /// The key has been silent for `gap.tail`: asks once for the event that would be next.
    pub(super) fn ask_for_tail(&mut self, index: u32) {
        let lane = &mut self.lanes[index];
        if let Some(rare) = lane.rare.there() {
            rare.tail_at = None;
        }
        let busy = lane.turn.is_some() || lane.rare.gap.is_some() || lane.held.to_run() > 0;
        if busy || lane.ended || lane.parked() || !lane.live() || lane.rare.rest.count > 0 {
            return;
        }
        let at = lane.done;
        let stage = Stage::Asking(0);
        let since = self.now;
        let (again, unasked, tail) = (false, false, true);
        let gap = Gap { at, stage, round: 0, again, unasked, tail, since };
        lane.rare.make().gap = Some(gap);
        self.ask_source(index, 0);
    }

    /// Nothing more will come from the source.
    pub(super) fn source_ended(&mut self) {
        self.ended = true;
        self.due.soon(self.now);
        for index in self.lanes.indices() {
            let lane = &mut self.lanes[index];
            if lane.rare.tail_at.is_some_and(|at| at > self.now) {
                lane.rare.make().tail_at = Some(self.now);
            }
            if self.lanes[index].rare.gap.as_ref().is_some_and(|gap| gap.clock().is_some()) {
                self.gap_round(index);
            }
            self.settle(index);
        }
    }

    /// What it had meanwhile comes first, and has the time for that.
    pub(super) fn source_is_back(&mut self) {
        if self.away_until == u64::MAX {
            self.away_until = self.now.saturating_add(self.settings.gap.timeout);
        }
    }

    /// Whether every lane that waits does so without an end.
    pub(super) fn waiting_for_ever(&self) -> bool {
        self.restless == 0
    }
}

/// What is in both of two lists of ranges, each in order.
fn both(one: &[RangeInclusive<u64>], other: &[RangeInclusive<u64>]) -> Vec<RangeInclusive<u64>> {
    let (mut one, mut other) = (one.iter().peekable(), other.iter().peekable());
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
    fn what_two_lists_have_in_common() {
        assert_eq!(both(&[1..=3, 5..=9], &[2..=6, 8..=8, 9..=20]), [2..=3, 5..=6, 8..=8, 9..=9]);
        assert_eq!(both(&[1..=3], &[4..=6]), []);
        assert_eq!(both(&[], &[4..=6]), []);
        assert_eq!(both(&[4..=u64::MAX], &[4..=u64::MAX]), [4..=u64::MAX]);
    }
}
