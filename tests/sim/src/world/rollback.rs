//! Sets the store back in time: the store loses a few commits, while the owner lives and has these commits in memory.

use ordain_core::Input;

use super::{Action, Reply, World};
use crate::store::RolledBackPart;

/// The longest delay in ms after which the store may go back a second time.
const SECOND_ROLLBACK_DELAY_MS: u64 = 100;

impl World {
    /// Saves the state of the store, and schedules the rollback to this state. Does nothing while the store lacks
    /// commits.
    pub(super) fn remember(&mut self, wait: u64) {
        if self.lost.is_empty() {
            self.snapshot = Some((self.store.clone(), self.checker.snapshot()));
            self.schedule(wait, Action::GoBack);
        }
    }

    /// Sets the store, or one of its shards, back to the saved state. Does nothing if there is no saved state, or if
    /// the owner is about to end.
    pub(super) fn go_back(&mut self) {
        let Some((store, snapshot)) = self.snapshot.clone() else { return };
        let Some(id) = self.current[0] else { return };
        let stays = |owner: &super::Owner| owner.dies_after.or(owner.drains_until).is_none();
        if !self.owners.get(&id).is_some_and(stays) {
            return;
        }
        let shards = self.plan.settings.shards;
        let only = self.rng.permille(500).then(|| self.rng.below(u64::from(shards)) as u32);
        let part = RolledBackPart { shards, only };
        let shards_before = self.lost.len();
        for shard in (0..shards).filter(|shard| part.shard(*shard)) {
            let newest = self.store.last(0, shard);
            if store.last(0, shard) < newest {
                let lost = self.lost.entry(shard).or_default();
                *lost = newest.max(*lost);
            }
        }
        self.trace.line(self.now, &format!("the store goes back ({only:?}): {:?}", self.lost));
        self.store.go_back(&store, part);
        self.checker.went_back(&snapshot, part, &self.lost);
        self.checker.lacks_commits = !self.lost.is_empty();
        // Commits whose reply no owner awaits were sent over an old connection. This connection breaks, and these
        // commits are lost with it.
        self.agenda
            .retain(|_, action| !matches!(action, Action::Commit { reply: Reply::Unawaited, .. }));
        if self.lost.len() > shards_before {
            if self.rng.permille(200) {
                let wait = self.rng.below(SECOND_ROLLBACK_DELAY_MS);
                self.schedule(wait, Action::GoBack);
            }
            // After some time, the owner connects again, and then notices the loss. The answer to a commit may show the
            // loss earlier.
            let wait = self.rng.pick(&[0, 20, 500, 10_000]);
            self.schedule(wait, Action::Input(id, Input::StoreMayHaveRolledBack));
        }
    }

    /// Records that the store applied a commit. As soon as the store has applied the newest lost commit of a shard
    /// again, it has all lost commits of this shard again.
    pub(super) fn record_recommit(&mut self, shard: u32, number: u64) {
        self.lost.retain(|lost, newest| *lost != shard || number < *newest);
        self.checker.lacks_commits = !self.lost.is_empty();
    }
}
