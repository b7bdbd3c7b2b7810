//! Checks the warnings of gaps and parked keys. A driver logs such a warning when it commits a write in which the time
//! of the gap or of the failure is 0. Therefore, for each gap and for each failure, exactly one write must have the
//! time 0.

use std::collections::{BTreeMap, BTreeSet};

use ordain_core::{GapEnd, Key, KeyStatus, KeyWrite};

use super::Checker;

/// The warnings of the run so far, by key.
#[derive(Debug, Default)]
pub(super) struct Alarms {
    /// Ranges (first, last) of the gaps that wait without a further replay round.
    waiting: BTreeMap<Key, BTreeSet<(u64, u64)>>,
    troubles: BTreeMap<Key, BTreeSet<FailedTry>>,
}

/// The identity of a failed attempt. The key record must get each failed attempt only once.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FailedTry {
    incarnation: u64,
    next: u64,
    park_generation: u32,
    attempts: u32,
    error: String,
}

impl Checker {
    pub(super) fn alarms(&mut self, write: &KeyWrite) {
        let key = &write.key;
        let job = &write.record;
        let mut wrong = None;
        if let Some(gap) = job.gaps.iter().next_back().filter(|gap| gap.end == GapEnd::Waiting) {
            let known = self.alarms.waiting.entry(key.clone()).or_default();
            if gap.until == 0 {
                known.insert((gap.first, gap.last));
            } else if !known.iter().any(|(first, last)| *first <= gap.last && gap.first <= *last) {
                wrong = Some(format!("{gap:?} was never written with the time 0"));
            }
        }
        if let Some(trouble) = &job.failure {
            let incarnation = self.model(key).incarnation;
            let known = self.alarms.troubles.entry(key.clone()).or_default();
            let is_new = known.insert(FailedTry {
                incarnation,
                next: job.next,
                park_generation: job.park_count,
                attempts: job.attempts,
                error: trouble.error.clone(),
            });
            if trouble.since != 0 && is_new && job.status == KeyStatus::Parked {
                wrong = Some(format!("{trouble:?} was never written with the time 0"));
            }
            // After a new version, or after the store went back, the attempts are counted from the start again, and may
            // fail with the same error.
            let repeats = self.times_back > 0 || self.plan.disturb.versions > 0;
            if trouble.since == 0 && !is_new && !repeats {
                wrong = Some(format!("{trouble:?} was written with the time 0 twice"));
            }
        }
        if let Some(words) = wrong {
            self.broke("alarms", format!("{key:?}: {words}"));
        }
    }
}
