//! Counts failed attempts and replay rounds, and checks that their limits hold even across crashes of owners.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use ordain_core::{Key, SequencerSettings};

use super::Checker;
use crate::handler::EventBehavior;

/// Over all owners of a run.
#[derive(Debug, Default)]
pub(super) struct AttemptCounts {
    /// By key and content of an event, the number of failures that workers reported to owners.
    failures: BTreeMap<(Key, u64), u32>,
    /// By key and content of an event, the number of failures that count towards the limit. A guess is a turn that runs
    /// before its key record is loaded. If the key has a record, a failure in a guess does not count, because the store
    /// refuses the results of the guess. A failure also does not count if the lane has started again since the turn
    /// began.
    counted: BTreeMap<(Key, u64), u32>,
    /// By key, the replay rounds, each with its owner and the ranges that the round requested from the sources.
    rounds: BTreeMap<Key, Vec<Round>>,
    /// By key, the number of refused writes. After a refusal, the lane loads the key record again.
    refused: BTreeMap<Key, u32>,
    /// Number of times that an owner lost state that was not durable, because the owner ended or the store went back.
    pub(super) crashes: u32,
    /// Number of owners that continued although a newer owner had claimed their partition.
    pub(super) takeovers: u32,
    pub(super) versions: u32,
}

/// The owner, and the requested ranges.
type Round = (u64, Vec<RangeInclusive<u64>>);

impl AttemptCounts {
    pub(super) fn rounds_for(&self, key: &Key, sequence: u64) -> u32 {
        let rounds = self.rounds.get(key).into_iter().flatten();
        rounds.filter(|(_, ranges)| ranges.iter().any(|range| range.contains(&sequence))).count()
            as u32
    }

    pub(super) fn add_round(&mut self, owner: u64, key: &Key, missing: &[RangeInclusive<u64>]) {
        self.rounds.entry(key.clone()).or_default().push((owner, missing.to_vec()));
    }

    /// The newest round of the owner covered only the sequences below `until`.
    pub(super) fn shorten_round(&mut self, owner: u64, key: &Key, until: u64) {
        let mut rounds = self.rounds.get_mut(key).into_iter().flatten().rev();
        if let Some((_, ranges)) = rounds.find(|(by, _)| *by == owner) {
            ranges.retain(|range| *range.start() < until);
            if let Some(last) = ranges.last_mut() {
                *last = *last.start()..=(*last.end()).min(until - 1);
            }
        }
    }

    pub(super) fn count_refusal(&mut self, key: &Key) {
        *self.refused.entry(key.clone()).or_default() += 1;
    }

    /// Returns whether the failures of an event have reached the limit of its attempts.
    pub(super) fn exhausted(
        &self,
        key: &Key,
        content: u64,
        behavior: EventBehavior,
        settings: &SequencerSettings,
    ) -> bool {
        let failures = self.failures.get(&(key.clone(), content)).copied().unwrap_or(0);
        failures >= attempt_limit(behavior, settings)
    }
}

/// After this number of failed attempts, an event of this behaviour is exhausted.
fn attempt_limit(behavior: EventBehavior, settings: &SequencerSettings) -> u32 {
    match behavior.kind() {
        Some(kind) if kind.may_pass() => settings.retry.attempts,
        _ => 2,
    }
}

impl Checker {
    /// With a finite source, one round without a result exhausts a gap, because no event can arrive after the end of
    /// the source.
    pub(super) fn rounds_due(&self) -> u32 {
        if self.plan.once { 1 } else { self.plan.settings.gap.attempts }
    }

    /// Checks the limit of failed attempts. `counts` is true if the attempt counts towards the limit.
    pub(super) fn failed(
        &mut self,
        key: &Key,
        content: u64,
        behavior: EventBehavior,
        counts: bool,
    ) {
        *self.attempts.failures.entry((key.clone(), content)).or_default() += 1;
        let count = self.attempts.counted.entry((key.clone(), content)).or_default();
        *count += u32::from(counts);
        let count = *count;
        let attempts = &self.attempts;
        let settings = &self.plan.settings;
        let refused = attempts.refused.get(key).copied().unwrap_or(0);
        let versions = if settings.retry.on_new_version { attempts.versions } else { 0 };
        // After a crash, an owner repeats the attempts whose count was not yet in the store.
        let starts = 1 + attempts.takeovers + attempts.crashes + refused + versions;
        // If two partitions receive events of one key, each of them counts the attempts of these events on its own.
        let sides = if self.plan.partitions > 1 { 4 } else { 1 };
        let allowed = attempt_limit(behavior, settings) * starts * sides;
        if count > allowed {
            let detail = format!("{key:?}: {behavior:?} failed {count} times, {allowed} allowed");
            self.broke("retry", detail);
        }
    }
}
