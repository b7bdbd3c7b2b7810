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
    troubles: BTreeMap<Key, BTreeSet<FailedTry>>,
}

/// The try that a trouble is about.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FailedTry {
    incarnation: u64,
    next: u64,
    park_generation: u32,
    attempts: u32,
    error: String,
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
        if let Some(trouble) = &job.trouble {
            let incarnation = self.model(key).incarnation;
            let known = self.alarms.troubles.entry(key.clone()).or_default();
            let is_new = known.insert(FailedTry {
                incarnation,
                next: job.next,
                park_generation: job.generation,
                attempts: job.attempts,
                error: trouble.error.clone(),
            });
            if trouble.since != 0 && is_new && job.status == Status::Parked {
                wrong = Some(format!("no write was the first with {trouble:?}"));
            }
            // Under another version attempts count from 1 again, perhaps with the same error.
            let repeats = self.times_back > 0 || self.plan.disturb.versions > 0;
            if trouble.since == 0 && !is_new && !repeats {
                wrong = Some(format!("a second write begins {trouble:?}"));
            }
        }
        if let Some(words) = wrong {
            self.broke("alarms", format!("{key:?}: {words}"));
        }
    }
}
