//! What a lane notes of its gaps in its job: from when their clock runs out.

use std::sync::Arc;

use super::lane::Lane;
use crate::gaps::{GapEnd, GapEntry};

impl Lane {
    /// The clock of its gap has run out: from now on it stands in the ledger.
    pub(super) fn list_gap(&mut self, now: u64) {
        let Some(gap) = self.rare.gap.filter(|gap| !gap.tail) else { return };
        let (first, last) = (gap.at, self.last_missing(gap.at));
        let known = self.job.gaps.take_back(first);
        let known =
            known.unwrap_or_else(|| GapEntry::new(first, last, now.saturating_sub(gap.since)));
        self.job.gaps.push(GapEntry { first, last, end: GapEnd::Open, until: 0, ..known });
    }

    /// A lost last event was found; it was asked for so many ms ago.
    pub(super) fn list_tail(&mut self, sequence: u64, waited: u64) {
        let rounds = 1;
        // What was found before, and lost again, is found anew.
        self.job.gaps.take_back(sequence);
        self.job.gaps.push(GapEntry { rounds, ..GapEntry::new(sequence, sequence, waited) });
    }

    /// Notes what a source answered.
    pub(super) fn note_answer(&mut self, source: &Arc<str>, found: usize, error: Option<&str>) {
        if let Some(listed) = self.job.gaps.open_mut() {
            listed.answered(source, found, error);
        }
    }

    /// Ends the gap in the ledger, up to a sequence, or says what is waited for.
    pub(super) fn end_gap(&mut self, end: GapEnd, last: u64) {
        if let Some(listed) = self.job.gaps.open_mut() {
            listed.last = listed.last.min(last).max(listed.first);
            (listed.end, listed.until) = (end, 0);
        }
    }

    /// Ends the gap in the ledger if what was missing has come, or something went past it.
    pub(super) fn end_listed_gap(&mut self) {
        let Some(listed) = self.job.gaps.open() else { return };
        let first = listed.first;
        if self.front <= first && !self.ended {
            return;
        }
        let end = match self.held.find(first).ok().and_then(|at| self.held.get(at)) {
            Some(held) if held.replayed => GapEnd::Replayed,
            Some(_) => GapEnd::Arrived,
            None if self.rare.rest.spans(first) => GapEnd::Arrived,
            None => GapEnd::Passed,
        };
        // Where the key has ended before it, all of it is passed.
        let last = if self.front > first { self.front - 1 } else { u64::MAX };
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
