//! Checks the commits of an owner. Each shard has one commit at a time. Commit numbers have no holes. After a lost
//! answer, the owner repeats the commit unchanged. The size of a commit has a limit.

use std::sync::Arc;

use ordain_core::{Batch, CommitReply, Key, KeyStatus, OrderingMode, WriteRefusal, shard_of};

use super::super::Checker;

impl Checker {
    /// Checks a commit that an owner requests.
    pub(super) fn commits(&mut self, owner: u64, batch: &Arc<Batch>) {
        let shard = batch.shard;
        let label = format!("commit {} of shard {shard}", batch.number);
        let shards = self.plan.settings.shards;
        // The check omits writes with an empty key. Only a void batch (`core`: `sequencer/commit/recovery.rs`) has such
        // a write, and the store always refuses the write.
        let keys = batch.writes.iter().map(|write| &write.key).filter(|key| !key.is_empty());
        let mut keys: Vec<&Key> = keys.collect();
        let writes = keys.len();
        if keys.iter().any(|key| shard_of(key, shards) != shard) || shard >= shards {
            return self.broke("I2", format!("{label} has keys of another shard"));
        }
        keys.sort();
        keys.dedup();
        if keys.len() != writes {
            self.broke("I2", format!("{label} has two writes of a key"));
        }
        self.batch_size(batch, &label);
        let owner_model = self.owner_model(owner);
        let last = owner_model.numbers[shard as usize];
        let unanswered = owner_model.unknown.remove(&shard);
        let busy = owner_model.commits.insert(shard, batch.clone()).is_some();
        owner_model.numbers[shard as usize] = batch.number;
        if busy {
            self.broke("I7", format!("{label} is sent while another commit is under way"));
        } else if let Some(unanswered) = unanswered {
            if unanswered != *batch {
                self.broke("I4", format!("{label} differs from the commit whose answer was lost"));
            }
        } else if batch.number != last + 1 {
            self.broke("I4", format!("{label} follows commit {last}"));
        }
    }

    /// Checks the size of a batch. A batch may exceed `batch_events`, because the owner does not split a turn into two
    /// batches.
    fn batch_size(&mut self, batch: &Batch, label: &str) {
        let settings = &self.plan.settings;
        let written: usize = batch.writes.iter().map(|write| write.spill.len().max(1)).sum();
        let events = written + batch.letters.len();
        let allowed = settings.batch_events + settings.quantum + settings.lane_buffer;
        if events > allowed {
            self.broke("I7", format!("{label} has {events} events, but {allowed} are allowed"));
        }
    }

    /// Records the reply to a commit of an owner, and checks the refused writes.
    pub(super) fn committed(&mut self, owner: u64, shard: u32, reply: &CommitReply) {
        let shards = self.plan.settings.shards;
        let owner_model = self.owner_model(owner);
        let Some(batch) = owner_model.commits.remove(&shard) else { return };
        let applied = match reply {
            CommitReply::Applied(applied) => applied,
            CommitReply::RolledBack { last: Some(last), .. } => {
                owner_model.numbers[shard as usize] = *last;
                // Until the owner's lanes start again, they count the events of this batch as settled.
                owner_model.all_reached(&batch);
                return;
            }
            _ => {
                owner_model.unknown.insert(shard, batch);
                return;
            }
        };
        let mut refused = Vec::new();
        for (index, write) in batch.writes.iter().enumerate() {
            if let Some((_, why)) = applied.refused.iter().find(|(other, _)| *other == index) {
                owner_model.lane_restarted(&write.key);
                refused.push((write.key.clone(), why.clone()));
                continue;
            }
            owner_model.guesses.remove(&write.key);
            if write.record.status == KeyStatus::Parked {
                owner_model.lane_restarted(&write.key);
            }
            owner_model
                .fresh
                .retain(|key, sequence| *key != write.key || *sequence >= write.record.next);
            if let Some(range) = owner_model.ahead.get_mut(&write.key) {
                range.0 = write.record.next.clamp(range.0, range.1);
            }
        }
        if owner_model.lost.get(&shard).is_some_and(|lost| batch.number >= *lost) {
            owner_model.lost.retain(|lost, newest| *lost != shard || batch.number == *newest);
            owner_model.lanes_restarted(|key| shard_of(key, shards) == shard);
        }
        for (key, why) in refused {
            self.attempts.count_refusal(&key);
            self.may_be_refused(&key, &why);
        }
    }

    /// Checks that the refusal of a write has a possible cause. In a run with one partition, no other partition can
    /// take the key over.
    fn may_be_refused(&mut self, key: &Key, why: &WriteRefusal) {
        let alone = self.plan.partitions == 1;
        let unreadable = self.corrupt.contains(key);
        // Between the load of a key record and a commit, the record may expire or the store may go back.
        let back = self.rollback_count > 0;
        if alone && !unreadable && !back && !self.keys_expire() && !self.speculates() {
            self.broke("I2", format!("{key:?}: a write of the only owner is refused: {why:?}"));
        }
    }

    /// Returns whether the first sequence of a key may run before the key record is loaded.
    fn speculates(&self) -> bool {
        self.plan.settings.ordering == OrderingMode::Sequenced
    }
}
