//! How often what was tried: retries and replay rounds have a limit that survives crashes.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use ordain_core::{Key, Settings};

use super::Checker;
use crate::handler::Nature;

/// Counts over all owners.
#[derive(Debug, Default)]
pub(super) struct Tries {
    /// Failures that an owner was told of, by key and content.
    failures: BTreeMap<(Key, u64), u32>,
    /// Those of them that are bounded: not those on a guess, whose outcome is refused.
    counted: BTreeMap<(Key, u64), u32>,
    /// What sources were asked to look for in each round, and by which owner.
    asked: BTreeMap<Key, Vec<Round>>,
    /// Writes refused, by key: the lane starts again from what is durable.
    refused: BTreeMap<Key, u32>,
    /// Owners that lost what was not durable.
    pub(super) crashes: u32,
    /// Owners that went on beside a newer one.
    pub(super) doubles: u32,
    pub(super) versions: u32,
}

/// Who asked for what.
type Round = (u64, Vec<RangeInclusive<u64>>);

impl Tries {
    /// Rounds in which a sequence was asked for.
    pub(super) fn asked_for(&self, key: &Key, sequence: u64) -> u32 {
        let rounds = self.asked.get(key).into_iter().flatten();
        rounds.filter(|(_, ranges)| ranges.iter().any(|range| range.contains(&sequence))).count()
            as u32
    }

    pub(super) fn ask(&mut self, owner: u64, key: &Key, missing: &[RangeInclusive<u64>]) {
        self.asked.entry(key.clone()).or_default().push((owner, missing.to_vec()));
    }

    /// The newest round of an owner went so far.
    pub(super) fn cut(&mut self, owner: u64, key: &Key, until: u64) {
        let mut rounds = self.asked.get_mut(key).into_iter().flatten().rev();
        if let Some((_, ranges)) = rounds.find(|(by, _)| *by == owner) {
            ranges.retain(|range| *range.start() < until);
            if let Some(last) = ranges.last_mut() {
                *last = *last.start()..=(*last.end()).min(until - 1);
            }
        }
    }

    pub(super) fn refuse(&mut self, key: &Key) {
        *self.refused.entry(key.clone()).or_default() += 1;
    }

    /// Whether an event has used up its tries.
    pub(super) fn exhausted(
        &self,
        key: &Key,
        content: u64,
        nature: Nature,
        settings: &Settings,
    ) -> bool {
        let failures = self.failures.get(&(key.clone(), content)).copied().unwrap_or(0);
        failures >= needed(nature, settings)
    }
}

/// Failed tries that exhaust an event of this nature.
fn needed(nature: Nature, settings: &Settings) -> u32 {
    match nature.kind() {
        Some(kind) if kind.may_pass() => settings.retry.attempts,
        _ => 2,
    }
}

impl Checker {
    /// Rounds after which a gap is exhausted: where the source has ended, nothing can come, and
    /// one that found nothing says all.
    pub(super) fn rounds_due(&self) -> u32 {
        if self.plan.once { 1 } else { self.plan.settings.gap.attempts }
    }

    /// An owner was told of a failed try.
    pub(super) fn failed(&mut self, key: &Key, content: u64, nature: Nature, counts: bool) {
        *self.tries.failures.entry((key.clone(), content)).or_default() += 1;
        let count = self.tries.counted.entry((key.clone(), content)).or_default();
        *count += u32::from(counts);
        let (count, tries) = (*count, &self.tries);
        let settings = &self.plan.settings;
        let refused = tries.refused.get(key).copied().unwrap_or(0);
        let versions = if settings.retry.on_new_version { tries.versions } else { 0 };
        // A crash loses the tries whose count was still on its way to the store.
        let starts = 1 + tries.doubles + tries.crashes + refused + versions;
        // Two partitions that have events of one key try them without knowing of each other.
        let sides = if self.plan.partitions > 1 { 4 } else { 1 };
        let allowed = needed(nature, settings) * starts * sides;
        if count > allowed {
            let detail = format!("{key:?}: {nature:?} failed {count} times, {allowed} allowed");
            self.broke("retry", detail);
        }
    }
}
