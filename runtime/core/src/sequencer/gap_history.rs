//! Records the gaps of a lane in the key record: each gap when its clock expires, then the answers of the replay
//! sources and the end of the gap.

use std::sync::Arc;

use super::lane::Lane;
use crate::event::Event;
use crate::gaps::{GapEnd, GapEntry};

impl Lane {
    pub(super) fn record_gap(&mut self, now: u64) {
        let Some(gap) = self.cold.gap.filter(|gap| !gap.tail) else { return };
        let at = gap.at;
        let missing = self.last_missing(gap.at);
        let withdrawn = self.record.gaps.withdraw_from(at);
        // Some events of the recorded gap may have arrived; the entry keeps the full extent of the gap.
        let last = withdrawn.as_ref().map_or(missing, |entry| entry.last.max(missing));
        let first = withdrawn.as_ref().map_or(at, |entry| entry.first.min(at));
        let entry = withdrawn.unwrap_or_else(|| {
            let new = GapEntry::new(at, missing, now.saturating_sub(gap.since));
            GapEntry { rounds: gap.round, known_since: gap.since, ..new }
        });
        self.record.gaps.push(GapEntry { first, last, end: GapEnd::Open, until: 0, ..entry });
    }

    /// Records that replay found the lost newest event of a key. The sequencer began to request the event at `since`.
    pub(super) fn record_tail(&mut self, sequence: u64, now: u64, since: u64) {
        let new = GapEntry::new(sequence, sequence, now.saturating_sub(since));
        // The new entry replaces an earlier entry for the same event.
        self.record.gaps.withdraw_from(sequence);
        self.record.gaps.push(GapEntry { rounds: 1, known_since: since, ..new });
    }

    /// Records the number of events of the gap that the source returned, and the reason if the source failed.
    pub(super) fn record_answer(
        &mut self,
        source: &Arc<str>,
        found: &[(u64, Arc<Event>)],
        error: Option<&str>,
    ) {
        if let Some(listed) = self.record.gaps.open_mut() {
            let range = listed.first..=listed.last;
            let found = found.iter().filter(|(sequence, _)| range.contains(sequence)).count();
            listed.record_answer(source, found, error);
        }
    }

    /// Records that the sequencer skips the sequences from `first` to `last`, the next part of the gap.
    pub(super) fn record_skip(&mut self, first: u64, last: u64) {
        if let Some(listed) = self.record.gaps.open_mut() {
            // The gap may be wider by now, because the held event that followed the gap has become a dead letter.
            listed.last = last;
            listed.end = GapEnd::Skipped;
            listed.until = 0;
        } else if let Some(listed) = self.record.gaps.last_mut()
            && listed.end == GapEnd::Skipped
            && listed.last + 1 == first
        {
            listed.last = last;
            listed.until = 0;
        }
    }

    pub(super) fn is_replayed(&self, sequence: u64) -> bool {
        let held = self.held.find(sequence).ok().and_then(|at| self.held.get(at));
        held.is_some_and(|held| held.replayed)
    }

    /// Records the result of a gap after its last replay round: the key waits without a time limit, or is parked.
    /// Extends the recorded gap to `last` if the recorded gap ends earlier.
    pub(super) fn give_up_gap(&mut self, end: GapEnd, last: u64) {
        if let Some(listed) = self.record.gaps.open_mut() {
            listed.last = listed.last.max(last);
            listed.end = end;
            listed.until = 0;
        }
    }

    /// The rest of the gap becomes a separate entry, which stays open; if the key has passed the gap, the rest is
    /// dropped.
    fn end_gap(&mut self, end: GapEnd, last: u64) {
        let Some(listed) = self.record.gaps.open_mut() else { return };
        let gap = listed.clone();
        listed.last = listed.last.min(last).max(listed.first);
        listed.end = end;
        listed.until = 0;
        let first = listed.last + 1;
        self.record.gaps.merge_newest();
        if end != GapEnd::Passed && first <= gap.last {
            self.record.gaps.push(GapEntry { first, ..gap });
        }
    }

    /// Ends the recorded gap if the missing event has arrived, or if the key has settled the missing sequences in
    /// another way.
    pub(super) fn end_recorded_gap(&mut self) {
        let Some(listed) = self.record.gaps.open() else { return };
        // The first events of the gap may already have arrived.
        let gap = self.cold.gap.filter(|gap| !gap.tail);
        let at = gap.map_or(self.done, |gap| gap.at).max(listed.first);
        if self.front <= at && !self.ended {
            return;
        }
        let end = if self.is_replayed(at) {
            GapEnd::Replayed
        } else if self.held.find(at).is_ok() || self.cold.stored_only.spans(at) {
            GapEnd::Arrived
        } else {
            GapEnd::Passed
        };
        // If the key ended before the gap, it has passed the whole gap.
        let last = if self.front > at { self.front - 1 } else { u64::MAX };
        self.end_gap(end, last);
    }

    fn last_missing(&self, first: u64) -> u64 {
        self.next_known(first).map_or(first, |next| next - 1)
    }

    /// Returns the lowest known sequence after `first`. These sequences are known: the sequences of the events in
    /// memory, the lower bound of the spilled events, the two bounds of the range of dead letters (`ahead`), and the
    /// `next_letter` of the gap.
    pub(super) fn next_known(&self, first: u64) -> Option<u64> {
        let held = self.held.iter().map(|held| held.sequence).find(|sequence| *sequence > first);
        let rest = (self.cold.stored_only.count > 0).then_some(self.cold.stored_only.first);
        let ahead =
            self.record.ahead.as_deref().into_iter().flat_map(|ahead| [ahead.first, ahead.last]);
        let found = self.cold.gap.and_then(|gap| gap.next_letter);
        let later = held.into_iter().chain(rest).chain(ahead).chain(found);
        later.filter(|sequence| *sequence > first).min()
    }
}
