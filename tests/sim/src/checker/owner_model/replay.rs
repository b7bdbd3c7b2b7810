//! Checks the requests of an owner to the replay sources: the number of replay rounds for a missing event has a limit.

use std::ops::RangeInclusive;

use ordain_core::{ExhaustedPolicy, Key, LetterId};

use super::super::{Checker, at};
use super::OwnerModel;

impl OwnerModel {
    /// Returns the maximum number of requests that only search the store for the dead letter of the first missing
    /// event. Such a request is not a part of a round: the owner need not wait for the clock of the gap, and does not
    /// query the other sources. An owner makes at most one such request when it finds the gap, and one after each load
    /// of the key record. The later requests are necessary because another owner may have written the dead letter. The
    /// record shows whether dead letters wait. The owner makes another request when the dead letter of this event
    /// becomes durable.
    fn allowed_letter_searches(&self, key: &Key, first: u64) -> u32 {
        let loads = self.ahead_loads.get(key).copied().unwrap_or(0);
        let letters = self.early_letters.get(&(key.clone(), first)).copied().unwrap_or(0);
        1 + loads + letters
    }

    /// The event of the durable letter waits for earlier events.
    pub(in super::super) fn early_letter_added(&mut self, id: &LetterId) {
        *self.early_letters.entry((id.key.clone(), id.sequence)).or_default() += 1;
    }
}

impl Checker {
    /// The answer covers only the sequences below `until`.
    pub(crate) fn replay_cut_short(&mut self, owner: u64, key: &Key, until: u64) {
        self.attempts.shorten_round(owner, key, until);
    }

    /// The source did not search from `first` on. A round without a search does not count.
    pub(crate) fn replay_not_searched(&mut self, owner: u64, key: &Key, first: u64) {
        self.attempts.shorten_round(owner, key, first);
        for ((other, at, _), requests) in &mut self.owner_model(owner).requests {
            if (other, *at) == (key, first) {
                *requests = requests.saturating_sub(1);
            }
        }
    }

    /// A round begins with a request to the store, which is the first source.
    pub(super) fn requested(
        &mut self,
        owner: u64,
        key: &Key,
        source: usize,
        missing: &[RangeInclusive<u64>],
    ) {
        if source == 0 {
            self.attempts.add_round(owner, key, missing);
        }
        let Some(first) = missing.first().map(|range| *range.start()) else {
            return self.broke("gap", format!("{key:?}: a replay round requests no event"));
        };
        // The owner may request a missing event before its key reaches that event. Only rounds for the next sequence of
        // the key count.
        if first != self.next(key) {
            return;
        }
        let mut allowed = self.allowed_rounds(key, first);
        let owner_model = self.owner_model(owner);
        if source == 0 {
            allowed += owner_model.allowed_letter_searches(key, first);
        }
        let requests = owner_model.requests.entry((key.clone(), first, source)).or_default();
        *requests += 1;
        let requests = *requests;
        if requests > allowed {
            let label = at(key, first);
            let detail = format!("{label}: {requests} requests to source {source} are too many");
            self.broke("gap", detail);
        }
    }

    /// Returns the number of replay rounds that an owner may make for the first missing event of a key.
    fn allowed_rounds(&self, key: &Key, first: u64) -> u32 {
        let gap = &self.plan.settings.gap;
        // A lane repeats a round if another partition took the key over, or if the store lost the count of rounds.
        let disturbed = self.plan.partitions > 1 || self.rollback_count > 0;
        let starts = if disturbed { 4 } else { 1 };
        // While the nearest later event is too far ahead for a skip, the key is parked after its rounds. When a nearer
        // event arrives, the key resumes, and requests the missing events anew before it skips them.
        let reachable = first.saturating_add(gap.reachable_width());
        let may_resume =
            gap.on_exhausted == ExhaustedPolicy::Skip && self.was_received_beyond(key, reachable);
        let resumes = if may_resume { gap.attempts } else { 0 };
        // The limit allows two rounds more than the setting, for the tail of a key (events after the last event that
        // arrived). The owner may request the tail while a commit is under way, and again after no event of the key has
        // arrived for some time.
        (gap.attempts + 2) * starts + resumes
    }
}
