//! What a lane notes of its gaps in its job: from when their clock runs out.

use std::sync::Arc;

use super::lane::Lane;
use crate::event::Event;
use crate::gaps::{GapEnd, GapEntry};

impl Lane {
    /// The clock of its gap has run out: from now on it stands in the ledger.
    pub(super) fn list_gap(&mut self, now: u64) {
        let Some(gap) = self.rare.gap.filter(|gap| !gap.tail) else { return };
        let (at, missing) = (gap.at, self.last_missing(gap.at));
        let known = self.job.gaps.take_back(at);
        // Of what stood there, a part behind this one may have come.
        let last = known.as_ref().map_or(missing, |it| it.last.max(missing));
        let first = known.as_ref().map_or(at, |it| it.first.min(at));
        let known = known.unwrap_or_else(|| {
            let new = GapEntry::new(at, missing, now.saturating_sub(gap.since));
            GapEntry { rounds: gap.round, known: gap.since, ..new }
        });
        self.job.gaps.push(GapEntry { first, last, end: GapEnd::Open, until: 0, ..known });
    }

    /// A lost last event was found, which was asked for then.
    pub(super) fn list_tail(&mut self, sequence: u64, now: u64, since: u64) {
        let new = GapEntry::new(sequence, sequence, now.saturating_sub(since));
        // What was found before, and lost again, is found anew.
        self.job.gaps.take_back(sequence);
        self.job.gaps.push(GapEntry { rounds: 1, known: since, ..new });
    }

    /// Notes what a source answered: what it had of the gap, or why it failed.
    pub(super) fn note_answer(
        &mut self,
        source: &Arc<str>,
        found: &[(u64, Arc<Event>)],
        error: Option<&str>,
    ) {
        if let Some(listed) = self.job.gaps.open_mut() {
            let range = listed.first..=listed.last;
            let found = found.iter().filter(|(sequence, _)| range.contains(sequence)).count();
            listed.answered(source, found, error);
        }
    }

    /// A part of the gap is skipped, the first or the next one.
    pub(super) fn note_skip(&mut self, first: u64, last: u64) {
        if let Some(listed) = self.job.gaps.open_mut() {
            // It may be wider by now: what was held behind it has become a letter.
            (listed.last, listed.end, listed.until) = (last, GapEnd::Skipped, 0);
        } else if let Some(listed) = self.job.gaps.last_mut()
            && listed.end == GapEnd::Skipped
            && listed.last + 1 == first
        {
            (listed.last, listed.until) = (last, 0);
        }
    }

    /// Whether an event that is held was found by replay.
    pub(super) fn is_replayed(&self, sequence: u64) -> bool {
        let held = self.held.find(sequence).ok().and_then(|at| self.held.get(at));
        held.is_some_and(|held| held.replayed)
    }

    /// Says what becomes of the gap in the ledger that nobody is asked for any more.
    pub(super) fn give_up_gap(&mut self, end: GapEnd, last: u64) {
        if let Some(listed) = self.job.gaps.open_mut() {
            (listed.last, listed.end, listed.until) = (listed.last.max(last), end, 0);
        }
    }

    /// Ends the gap in the ledger up to a sequence; the rest of it is a part of its own, as open as it was.
    fn end_gap(&mut self, end: GapEnd, last: u64) {
        let Some(listed) = self.job.gaps.open_mut() else { return };
        let whole = listed.clone();
        listed.last = listed.last.min(last).max(listed.first);
        (listed.end, listed.until) = (end, 0);
        let first = listed.last + 1;
        self.job.gaps.join_parts();
        if end != GapEnd::Passed && first <= whole.last {
            self.job.gaps.push(GapEntry { first, ..whole });
        }
    }

    /// Ends the gap in the ledger if what was missing has come, or something went past it.
    pub(super) fn end_listed_gap(&mut self) {
        let Some(listed) = self.job.gaps.open() else { return };
        // A part of it may have come before.
        let gap = self.rare.gap.filter(|gap| !gap.tail);
        let at = gap.map_or(self.done, |gap| gap.at).max(listed.first);
        if self.front <= at && !self.ended {
            return;
        }
        let end = if self.is_replayed(at) {
            GapEnd::Replayed
        } else if self.held.find(at).is_ok() || self.rare.rest.spans(at) {
            GapEnd::Arrived
        } else {
            GapEnd::Passed
        };
        // Where the key has ended before it, all of it is passed.
        let last = if self.front > at { self.front - 1 } else { u64::MAX };
        self.end_gap(end, last);
    }

    /// The last of the missing sequences that begin with this one.
    fn last_missing(&self, first: u64) -> u64 {
        let held = self.held.iter().map(|held| held.sequence).find(|it| *it > first);
        let rest = (self.rare.rest.count > 0).then_some(self.rare.rest.first);
        let next = [held, rest.filter(|it| *it > first)].into_iter().flatten().min();
        next.map_or(first, |next| next - 1)
    }
}
