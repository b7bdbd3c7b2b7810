//! Checks the gap history of each key: the history contains every skipped or parked range, lists no settled range as
//! open, and is in order.

use ordain_core::{Cause, GapEnd, KeyStatus, KeyWrite, LetterContent};

use super::letters::letter_sequences;
use super::{Checker, Settlement};

impl Checker {
    pub(super) fn gap_history(&mut self, write: &KeyWrite) {
        let key = &write.key;
        let key_record = &write.record;
        let gaps: Vec<_> = key_record.gaps.iter().collect();
        let mut wrong = None;
        for pair in gaps.windows(2) {
            if pair[0].last >= pair[1].first || pair[0].end == GapEnd::Open {
                wrong = Some(format!("{:?} must not precede {:?}", pair[0], pair[1]));
            }
        }
        let last = gaps.last();
        if let Some(open) = last.filter(|gap| gap.end.is_open() && gap.last < key_record.next) {
            wrong = Some(format!(
                "{open:?} is listed as open, but the next sequence is {}",
                key_record.next
            ));
        }
        for letter in &write.letters {
            let is_empty_letter =
                letter.cause == Cause::Gap && letter.content == LetterContent::Nothing;
            let sequences = letter_sequences(letter);
            let is_listed = |gap: &&ordain_core::GapEntry| {
                covers(gap, GapEnd::Skipped, *sequences.start())
                    && covers(gap, GapEnd::Skipped, *sequences.end())
            };
            if is_empty_letter && !gaps.iter().any(is_listed) {
                wrong = Some(format!("{sequences:?} is skipped, but not in {gaps:?}"));
            }
        }
        for gap in &gaps {
            let settled = self.model(key).settled.range(gap.first..=gap.last);
            let contradicts = |(_, settled): &(&u64, &Settlement)| match gap.end {
                GapEnd::Skipped => {
                    matches!(settled, Settlement::Effect(_) | Settlement::Without(_))
                }
                GapEnd::Arrived | GapEnd::Replayed => matches!(settled, Settlement::Skipped),
                _ => false,
            };
            if let Some((sequence, _)) = settled.into_iter().find(contradicts) {
                wrong = Some(format!("{sequence} was settled in contradiction to {gap:?}"));
            }
        }
        let parked = key_record.status == KeyStatus::Parked
            && key_record.failure.as_ref().is_some_and(|failure| failure.cause == Cause::Gap);
        if parked && !last.is_some_and(|gap| covers(gap, GapEnd::Parked, key_record.next)) {
            wrong = Some(format!("{} is parked, but not in {gaps:?}", key_record.next));
        }
        if let Some(words) = wrong {
            self.broke("gap history", format!("{key:?}: {words}"));
        }
    }
}

fn covers(gap: &ordain_core::GapEntry, end: GapEnd, sequence: u64) -> bool {
    gap.end == end && (gap.first..=gap.last).contains(&sequence)
}
