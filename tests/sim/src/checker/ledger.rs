//! Checks the gap history of each key: the history contains every skipped or parked range, lists no settled range as
//! open, and is in order.

use ordain_core::{Cause, GapEnd, KeyStatus, KeyWrite, LetterContent};

use super::{Checker, Settled};

impl Checker {
    pub(super) fn ledger(&mut self, write: &KeyWrite) {
        let key = &write.key;
        let job = &write.record;
        let gaps: Vec<_> = job.gaps.iter().collect();
        let mut wrong = None;
        for pair in gaps.windows(2) {
            if pair[0].last >= pair[1].first || pair[0].end == GapEnd::Open {
                wrong = Some(format!("{:?} precedes {:?}", pair[0], pair[1]));
            }
        }
        let last = gaps.last();
        if let Some(open) = last.filter(|gap| gap.end.is_open() && gap.last < job.next) {
            wrong = Some(format!("{open:?} is listed as open, but {} is next", job.next));
        }
        for letter in &write.letters {
            let unseen = letter.cause == Cause::Gap && letter.content == LetterContent::Nothing;
            let sequence = letter.id.sequence;
            let stands = |gap: &&&_| is_there(gap, GapEnd::Skipped, sequence);
            if unseen && gaps.iter().find(stands).is_none() {
                wrong = Some(format!("{sequence} is skipped, but not in {gaps:?}"));
            }
        }
        for gap in &gaps {
            let settled = self.model(key).settled.range(gap.first..=gap.last);
            let untrue = |(_, settled): &(&u64, &Settled)| match gap.end {
                GapEnd::Skipped => matches!(settled, Settled::Effect(_) | Settled::Without(_)),
                GapEnd::Arrived | GapEnd::Replayed => matches!(settled, Settled::Hole),
                _ => false,
            };
            if let Some((sequence, _)) = settled.into_iter().find(untrue) {
                wrong = Some(format!("{sequence} was settled in contradiction to {gap:?}"));
            }
        }
        let parked = job.status == KeyStatus::Parked
            && job.failure.as_ref().is_some_and(|trouble| trouble.cause == Cause::Gap);
        if parked && !last.is_some_and(|gap| is_there(gap, GapEnd::Parked, job.next)) {
            wrong = Some(format!("{} never arrived, but is not in {gaps:?}", job.next));
        }
        if let Some(words) = wrong {
            self.broke("ledger", format!("{key:?}: {words}"));
        }
    }
}

fn is_there(gap: &ordain_core::GapEntry, end: GapEnd, sequence: u64) -> bool {
    gap.end == end && (gap.first..=gap.last).contains(&sequence)
}
