//! What the store, the remote replay source and the publisher do when it is their turn.

use std::ops::RangeInclusive;
use std::sync::Arc;

use ordain_core::{Batch, CommitReply, Event, Input, Key, Token};

use super::{Reply, What, World};
use crate::store::{Claim, Message};

/// How long nothing is heard before a commit is given up, in ms.
const SILENCE_MS: u64 = 100;

impl World {
    pub(super) fn store_commits(
        &mut self,
        owner: u64,
        claim: Claim,
        batch: &Arc<Batch>,
        reply: Reply,
    ) {
        let (shard, number) = (batch.shard, batch.number);
        if reply == Reply::Ghost {
            // The owner hears nothing and asks again; this one arrives some time later.
            let wait = self.rng.below(3 * SILENCE_MS);
            let batch = batch.clone();
            self.plan_at(wait, What::Commit { owner, claim, batch, reply: Reply::Unheard });
            self.tell_unknown(owner, shard, number);
            return;
        }
        if reply == Reply::LostBefore {
            self.tell_unknown(owner, shard, number);
            return;
        }
        let Some(partition) = self.partitions_of.get(&owner).copied() else { return };
        let (answer, applied) = self.store.commit(partition, claim, batch, self.now);
        self.trace.store(self.now, owner, shard, number, &answer, applied);
        if let (CommitReply::Applied(details), true) = (&answer, applied) {
            self.progress = self.now;
            self.checker.applied(partition, batch, details, &self.store);
        }
        if reply == Reply::Unheard {
            return;
        }
        if reply == Reply::LostAfter {
            self.tell_unknown(owner, shard, number);
            return;
        }
        let wait = self.latency();
        self.plan_at(wait, What::Tell(owner, Input::Committed { shard, number, reply: answer }));
    }

    fn tell_unknown(&mut self, owner: u64, shard: u32, number: u64) {
        let reply = CommitReply::Unknown;
        let input = Input::Committed { shard, number, reply };
        self.plan_at(SILENCE_MS, What::Tell(owner, input));
    }

    pub(super) fn store_loads(&mut self, owner: u64, token: Token, key: &Key) {
        let Some(partition) = self.partitions_of.get(&owner).copied() else { return };
        let loaded = self.store.load(partition, key, self.now);
        let wait = self.latency();
        self.plan_at(wait, What::Tell(owner, Input::Loaded { token, loaded }));
    }

    pub(super) fn publishes(&mut self, owner: u64, shard: u32, number: u64, messages: &[Message]) {
        let Some(partition) = self.partitions_of.get(&owner).copied() else { return };
        for message in messages {
            self.checker.published(message);
        }
        self.store.outbox_done(partition, shard, number);
        // One answer may stand for several publications.
        let more = self.agenda.values().any(|what| {
            matches!(what, What::Publish { owner: other, shard: s, .. } if (*other, *s) == (owner, shard))
        });
        if !(more && self.rng.permille(300)) {
            self.plan_at(0, What::Tell(owner, Input::Published { shard, through: number }));
        }
    }

    /// What a replay source answers, and after how long.
    pub(super) fn look_for(
        &mut self,
        key: &Key,
        source: usize,
        missing: &[RangeInclusive<u64>],
    ) -> (u64, Vec<(u64, Arc<Event>)>, bool) {
        if source == 0 {
            return (self.latency(), self.store.find(key, missing), false);
        }
        let again = self.rng.permille(self.plan.replay.again);
        let wait = self.rng.below(self.plan.replay.latency + 1);
        let mut found = Vec::new();
        for ((other, sequence), event) in &self.remote {
            let asked = other == key && missing.iter().any(|range| range.contains(sequence));
            if asked && !(again && self.rng.permille(500)) {
                found.push((*sequence, event.clone()));
            }
        }
        (wait, found, again)
    }
}
