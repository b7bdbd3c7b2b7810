//! Checks the warnings of gaps and parked keys. A driver logs such a warning when it commits a write in which the time
//! of the gap or of the failure is 0. Therefore, for each gap that waits and for each failure, exactly one write must
//! have the time 0.

use std::collections::{BTreeMap, BTreeSet};

use ordain_core::{GapEnd, Key, KeyStatus, KeyWrite};

use super::Checker;

#[derive(Debug, Default)]
pub(super) struct Warnings {
    /// Ranges (first, last) of the gaps that wait without a further replay round.
    waiting: BTreeMap<Key, BTreeSet<(u64, u64)>>,
    failures: BTreeMap<Key, BTreeSet<FailureId>>,
}

/// The identity of a failed attempt. At most one write may contain the failed attempt with the time 0.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FailureId {
    incarnation: u64,
    next: u64,
    park_count: u32,
    attempts: u32,
    error: String,
}

impl Checker {
    pub(super) fn warnings(&mut self, write: &KeyWrite) {
        let key = &write.key;
        let key_record = &write.record;
        let mut wrong = None;
        if let Some(gap) =
            key_record.gaps.iter().next_back().filter(|gap| gap.end == GapEnd::Waiting)
        {
            let known = self.warnings.waiting.entry(key.clone()).or_default();
            if gap.until == 0 {
                known.insert((gap.first, gap.last));
            } else if !known.iter().any(|(first, last)| *first <= gap.last && gap.first <= *last) {
                wrong = Some(format!("{gap:?} has a time, but was never written with the time 0"));
            }
        }
        if let Some(failure) = &key_record.failure {
            let incarnation = self.model(key).incarnation;
            let known = self.warnings.failures.entry(key.clone()).or_default();
            let is_new = known.insert(FailureId {
                incarnation,
                next: key_record.next,
                park_count: key_record.park_count,
                attempts: key_record.attempts,
                error: failure.error.clone(),
            });
            if failure.since != 0 && is_new && key_record.status == KeyStatus::Parked {
                wrong =
                    Some(format!("{failure:?} has a time, but was never written with the time 0"));
            }
            // After a change of the version, or after the store went back, the count of attempts starts again, and an
            // attempt may fail with the same error as before.
            let repeats = self.rollback_count > 0 || self.plan.disturb.versions > 0;
            if failure.since == 0 && !is_new && !repeats {
                wrong = Some(format!("{failure:?} was written with the time 0 twice"));
            }
        }
        if let Some(words) = wrong {
            self.broke("warnings", format!("{key:?}: {words}"));
        }
    }
}
