//! The store goes back in time and loses a few commits, while the owner lives and has these commits in memory.

use ordain_core::Input;

use super::{Reply, What, World};
use crate::store::Which;

/// The longest delay in ms after which the store may go back a second time.
const AGAIN_MS: u64 = 100;

impl World {
    pub(super) fn remember(&mut self, wait: u64) {
        if self.lost.is_empty() {
            self.past = Some((self.store.clone(), self.checker.past()));
            self.plan_at(wait, What::GoBack);
        }
    }

    pub(super) fn go_back(&mut self) {
        let Some((store, past)) = self.past.clone() else { return };
        let Some(id) = self.current[0] else { return };
        let stays = |owner: &super::Owner| owner.dies_after.or(owner.drains_until).is_none();
        if !self.owners.get(&id).is_some_and(stays) {
            return;
        }
        let shards = self.plan.settings.shards;
        let only = self.rng.permille(500).then(|| self.rng.below(u64::from(shards)) as u32);
        let which = Which { shards, only };
        let count = self.lost.len();
        for shard in (0..shards).filter(|shard| which.shard(*shard)) {
            let newest = self.store.last(0, shard);
            if store.last(0, shard) < newest {
                let lost = self.lost.entry(shard).or_default();
                *lost = newest.max(*lost);
            }
        }
        self.trace.line(self.now, &format!("the store goes back ({only:?}): {:?}", self.lost));
        self.store.go_back(&store, which);
        self.checker.went_back(&past, which, &self.lost);
        self.checker.incomplete = !self.lost.is_empty();
        // Commits whose reply no owner awaits were sent over an old connection, which is lost together with them.
        self.agenda.retain(|_, what| !matches!(what, What::Commit { reply: Reply::Unheard, .. }));
        if self.lost.len() > count {
            if self.rng.permille(200) {
                let wait = self.rng.below(AGAIN_MS);
                self.plan_at(wait, What::GoBack);
            }
            // The owner notices the loss when it connects again after some time, unless the answer to a commit shows it
            // earlier.
            let wait = self.rng.pick(&[0, 20, 500, 10_000]);
            self.plan_at(wait, What::Tell(id, Input::StoreMayHaveRolledBack));
        }
    }

    /// Records that the store applied a commit. With the newest lost commit of a shard, the store has all lost commits
    /// of this shard again.
    pub(super) fn came_back(&mut self, shard: u32, number: u64) {
        self.lost.retain(|lost, newest| *lost != shard || number < *newest);
        self.checker.incomplete = !self.lost.is_empty();
    }
}
