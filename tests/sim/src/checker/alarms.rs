//! A driver warns of a gap that nobody is asked about any more, and of a parked key, with the write
//! that has a zero as its time. So each of these must be written once with a zero.

use std::collections::{BTreeMap, BTreeSet};

use ordain_core::{GapEnd, JobWrite, Key, Status};

use super::Checker;

/// What was written with a zero as its time, by key.
#[derive(Debug, Default)]
pub(super) struct Alarms {
    /// The ranges (first, last) that are waited for.
    waiting: BTreeMap<Key, BTreeSet<(u64, u64)>>,
    /// `next` and the reason.
    parked: BTreeMap<Key, BTreeSet<(u64, String)>>,
}

impl Checker {
    pub(super) fn alarms(&mut self, write: &JobWrite) {
        let (key, job) = (&write.key, &write.job);
        let mut wrong = None;
        if let Some(gap) = job.gaps.iter().next_back().filter(|it| it.end == GapEnd::Waiting) {
            let known = self.alarms.waiting.entry(key.clone()).or_default();
            if gap.until == 0 {
                known.insert((gap.first, gap.last));
            } else if !known.iter().any(|(first, last)| *first <= gap.last && gap.first <= *last) {
                wrong = Some(format!("no write was the first with {gap:?}"));
            }
        }
        if let Some(trouble) = job.trouble.as_ref().filter(|_| job.status == Status::Parked) {
            let known = self.alarms.parked.entry(key.clone()).or_default();
            let reason = (job.next, trouble.error.clone());
            if trouble.since == 0 {
                known.insert(reason);
            } else if !known.contains(&reason) {
                wrong = Some(format!("no write was the first with {trouble:?}"));
            }
        }
        if let Some(words) = wrong {
            self.broke("alarms", format!("{key:?}: {words}"));
        }
    }
}
