//! Handles early dead letters whose sequences the key has passed. An early dead letter (`far-ahead` or `overflow`)
//! contains an event that its key could not hold when the event arrived. If the key settles the event, the same commit
//! removes the letter. But the key may settle the sequence with another event, skip the sequence, or end before the
//! sequence. The event of the letter can then no longer take effect, so the cause of the letter is no longer true. The
//! sequencer therefore reads the remaining letters of all passed sequences, and decides about their events as if these
//! events arrived now.
//!
//! The range of the early letters in the key record ([`crate::KeyRecord::ahead`]) shows the sequences whose letters the
//! sequencer has not handled yet. One write removes the letters and advances the range. The new letters are durable no
//! later than this write. If the owner ends before this write, the next owner makes the same decisions and writes the
//! same letters.
//!
//! Not every sequence of the range has a letter, and a letter may expire. If a search of the store for missing events
//! shows that the range begins with sequences without a letter, the sequencer shortens the range. Otherwise one letter
//! with a wrong sequence far ahead would keep the range, and therefore the gap of the key, for ever. The letter would
//! also cause a search and a read of letters for each event before this sequence.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::Sequencer;
use super::lane::Lane;
use super::letters::orphan_letter;
use super::repeat::conflict_error;
use crate::effect::Effect;
use crate::event::Event;
use crate::key_record::EventDigests;
use crate::letter::{Cause, DeadLetter, LetterContent, LetterId};
use crate::turn::AttemptToken;

impl Lane {
    /// Returns the range of the early dead letters that the key has passed and that the sequencer has not handled yet.
    /// An ended key has passed all its early dead letters.
    pub(super) fn passed_letters(&self) -> Option<RangeInclusive<u64>> {
        let ahead = self.record.ahead.as_deref()?;
        let last = if self.ended && self.record.next == self.done {
            ahead.last
        } else {
            ahead.last.min(self.record.next.checked_sub(1)?)
        };
        (ahead.first <= last).then_some(ahead.first..=last)
    }

    /// Records that the event with this sequence may soon have an early dead letter.
    pub(super) fn expect_early_letter(&mut self, sequence: u64) {
        let Some(cold) = self.cold.get_mut() else { return };
        cold.letter_free.end = cold.letter_free.end.min(sequence);
        if let Some(gap) = &mut cold.gap {
            gap.search_end = gap.search_end.min(sequence);
        }
    }

    /// Returns the first sequence, from `from` on, that may have an early dead letter.
    fn next_possible_letter(&self, from: u64) -> u64 {
        let free = &self.cold.letter_free;
        // If the key has moved between partitions, the owner of the other partition may still write such a letter.
        let has_moved = self.record.takeovers > 0;
        if free.contains(&from) && !has_moved { free.end } else { from }
    }
}

impl Sequencer {
    /// Does nothing while a write of the lane is in flight, because the letters that it removes are still in the store.
    pub(super) fn read_passed_letters(&mut self, index: u32) {
        let lane = &self.lanes[index];
        let Some(sequences) = lane.passed_letters() else { return };
        if !lane.live()
            || lane.writing
            || lane.load.is_some()
            || lane.cold.letter_read.is_some()
            || lane.pending.iter().any(|chunk| chunk.removes_passed)
        {
            return;
        }
        if fault!(self, KeepPassedLetters) {
            self.advance_passed(index, sequences.end().saturating_add(1));
            return;
        }
        let serial = self.next_serial();
        let max_letter_age = self.max_letter_age(index);
        let lane = &mut self.lanes[index];
        lane.cold.get_or_init().letter_read = Some(serial);
        let token = AttemptToken { lane: index, serial };
        let key = lane.key.clone();
        self.outstanding_letter_reads.insert(token);
        self.effects.push_back(Effect::ReadEarlyLetters { token, key, sequences, max_letter_age });
    }

    pub(super) fn early_letters_read(
        &mut self,
        token: AttemptToken,
        letters: Vec<DeadLetter>,
        until: u64,
    ) {
        // The request ends even if no lane waits for its answer.
        self.outstanding_letter_reads.remove(token);
        let Some(index) =
            self.match_completion(token, |lane| Some(&mut lane.cold.get_mut()?.letter_read))
        else {
            return;
        };
        if let Some(passed) = self.lanes[index].passed_letters() {
            let mut removed = Vec::new();
            // An event that has a letter `far-ahead` and a letter `overflow` gets only one new letter.
            let mut written = BTreeSet::new();
            for letter in letters {
                // A letter `corrupt` keeps its cause: its event was not too early, but its key was unreadable.
                let is_early = matches!(letter.cause, Cause::FarAhead | Cause::Overflow)
                    && letter.id.key == self.lanes[index].key
                    && passed.contains(&letter.id.sequence);
                if is_early && let LetterContent::Event(event) = &letter.content {
                    if let Some(new) = self.decide_passed_event(index, letter.id.sequence, event)
                        && written.insert(new.id.clone())
                    {
                        self.queue_orphan_letter(new, 0);
                    }
                    removed.push(letter.id);
                }
            }
            // The letters `corrupt` of the first requested sequence may fill the whole answer, so `until` may be this
            // sequence. The next read must nevertheless begin at a later sequence.
            let least = passed.start().saturating_add(u64::from(removed.is_empty()));
            self.remove_passed(index, removed);
            self.advance_passed(index, until.max(least));
        }
        self.reschedule(index);
    }

    /// Removes letters in the next write of the lane. This write also contains the advanced range.
    fn remove_passed(&mut self, index: u32, removed: Vec<LetterId>) {
        if removed.is_empty() {
            return;
        }
        let lane = &mut self.lanes[index];
        if lane.pending.is_empty() {
            lane.chunk(None, &self.settings);
        }
        let next_results = &mut lane.pending[0];
        next_results.removed_letters.extend(removed);
        next_results.removes_passed = true;
    }

    /// Decides as if the event arrived now. If it is no repeat of the settled event, returns a dead letter with the
    /// present cause: an orphan dead letter, which is durable no later than the next write of the lane.
    fn decide_passed_event(
        &mut self,
        index: u32,
        sequence: u64,
        event: &Arc<Event>,
    ) -> Option<DeadLetter> {
        let lane = &self.lanes[index];
        Some(if sequence >= lane.done {
            self.after_end_letter(index, sequence, event)
        } else if lane.skipped(sequence) {
            self.late_letter(index, sequence, event)
        } else {
            let error = match self.differs_from_settled(index, sequence, event) {
                Some(false) => return None,
                Some(true) => conflict_error(sequence, event, None),
                // If the sequencer treated the event as a repeat, the event would be lost without a trace.
                None => format!(
                    "event {sequence} of the key was already settled; its digest is no longer stored, so Ordain cannot \
                     compare this event with it"
                ),
            };
            orphan_letter(&self.lanes[index].key, sequence, event, Cause::Conflict, error)
        })
    }

    /// `None` if the digest of the settled event is neither in memory nor in the key record.
    fn differs_from_settled(&mut self, index: u32, sequence: u64, event: &Event) -> Option<bool> {
        let lane = &self.lanes[index];
        let settled = &lane.cold.settled_ahead;
        if let Ok(at) = settled.binary_search_by_key(&sequence, |settled| settled.0) {
            return Some(!EventDigests::matches(settled[at].1, event.repeat_digests()));
        }
        let record = &lane.record;
        let differs = record.digests.differs(record.next, sequence, event.repeat_digests());
        differs.or_else(|| self.differs_in_history(index, sequence, event.repeat_digests()))
    }

    /// The search of the store for the missing events of the lane's gap found none below `until`. Shortens the range of
    /// the early dead letters by the sequences that certainly have no letter. Ends the gap if nothing waits for the
    /// missing events any more.
    pub(super) fn early_letters_searched(&mut self, index: u32, until: u64) {
        let lane = &mut self.lanes[index];
        let Some(gap) = lane.cold.gap.filter(|gap| !gap.tail) else { return };
        let end = until.min(gap.search_end);
        let free = &mut lane.cold.get_or_init().letter_free;
        if (free.start..=free.end).contains(&gap.at) {
            free.end = free.end.max(end);
        } else {
            *free = gap.at..end;
        }
        let Some(first) = lane.record.ahead.as_deref().map(|ahead| ahead.first) else { return };
        self.advance_passed(index, first);
        let lane = &mut self.lanes[index];
        if lane.record.ahead.is_some() || lane.front != gap.at || lane.may_have_gap() {
            return;
        }
        // No later event waits, so the recorded events of the gap are no longer known to be missing.
        lane.cold.get_or_init().forget_gap();
        lane.record.gaps.withdraw_from(gap.at);
        if gap.at == lane.done {
            lane.record.rounds = 0;
        }
    }

    /// Advances the range of the early dead letters to `until`, because the sequencer has decided about all letters
    /// below `until`. If the sequences from `until` on certainly have no letter, also advances the range past these
    /// sequences. Removes the range if the end of the range is before the new beginning.
    fn advance_passed(&mut self, index: u32, until: u64) {
        let tail = self.tail_from_now();
        let lane = &mut self.lanes[index];
        let until = lane.next_possible_letter(until);
        let Some(ahead) = &mut lane.record.ahead else { return };
        let is_over = until > ahead.last;
        if is_over {
            lane.record.ahead = None;
        } else {
            ahead.first = ahead.first.max(until);
        }
        // If the range has ended, or if the key is parked, the key may no longer need its entry in the due index. Only
        // a write removes the entry.
        lane.must_write |= is_over || lane.parked();
        if is_over && tail.is_some() && !lane.ended && !lane.parked() && lane.cold.tail_at.is_none()
        {
            // While the record had the range, the due index did not contain the time of the next request for
            // `gap.tail`, so the load did not set this time.
            lane.cold.get_or_init().tail_at = tail;
        }
        if let Some(cold) = lane.cold.get_mut() {
            cold.settled_ahead.retain(|(sequence, _)| *sequence >= until);
            if cold.settled_ahead.is_empty() {
                cold.settled_ahead = Vec::new();
            }
        }
    }
}
