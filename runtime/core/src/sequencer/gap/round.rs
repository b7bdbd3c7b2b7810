//! A round: the job is loaded again, and every replay source is asked in turn for what is missing.

use std::ops::RangeInclusive;
use std::sync::Arc;

use super::super::Sequencer;
use super::super::lane::Known;
use super::{Gap, Stage};
use crate::effect::Effect;
use crate::event::Event;
use crate::job::Loaded;
use crate::settings::Ordering;
use crate::turn::Token;

/// Numbers that are asked for together; further ones in a later round.
const ASKED_TOGETHER: u64 = 4_096;

impl Sequencer {
    /// The clock has run out.
    pub(in super::super) fn gap_round(&mut self, index: u32) {
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
    pub(in super::super) fn reload_for_gap(&mut self, index: u32, serial: u64) {
        if self.lanes[index].writing {
            self.ask_source(index, 0);
        } else {
            self.ask_for_load(index, serial);
        }
    }

    /// The job again, in the course of a round.
    pub(in super::super) fn reloaded_for_gap(
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

    pub(super) fn ask_source(&mut self, index: u32, source: usize) {
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

    pub(in super::super) fn replayed(
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
