//! Commits into the simulated store: the fence, the conditions, and the effects of a write.

use std::collections::BTreeSet;

use ordain_core::{
    AppliedCommit, Batch, CommitReply, DeadLetter, EmittedMessage, ExistingSpill, Key, KeyWrite,
    WriteCondition, WriteRefusal,
};

use crate::StoreFault;

use super::{Claim, Fence, Store, StoredKey};

/// A committed message with the parts of its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) key: Key,
    pub(crate) incarnation: u64,
    pub(crate) emitted: EmittedMessage,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Post {
    Message(Message),
    Letter(DeadLetter),
}

impl Store {
    /// Commits a batch. The second result is true only if this call itself applied the batch.
    pub(crate) fn commit(
        &mut self,
        partition: u32,
        claim: Claim,
        batch: &Batch,
        now: u64,
    ) -> (CommitReply, bool) {
        let any_claim = self.has_fault(StoreFault::StoreIgnoresTheClaim);
        let forgets_reply = self.has_fault(StoreFault::StoreForgetsItsLastReply);
        let Some(fence) = self.fences.get_mut(&(partition, batch.shard)) else {
            return (rolled_back("a shard that no owner has claimed", None), false);
        };
        if any_claim {
            fence.claim = claim;
            fence.last = fence.last.max(batch.number.saturating_sub(1));
        }
        if let Some(refused) = check(fence, claim, batch.number) {
            return (refused, false);
        }
        if fence.last == batch.number && !forgets_reply {
            return (CommitReply::Applied(fence.reply.clone()), false);
        }
        let mut reply = AppliedCommit { time: Self::time(now), ..AppliedCommit::default() };
        reply.existing_letters = self.known(batch);
        let mut messages = Vec::new();
        for (index, write) in batch.writes.iter().enumerate() {
            match self.refusal(partition, write) {
                Some(refusal) => reply.refused.push((index, refusal)),
                None => self.write(index, write, &mut reply, &mut messages),
            }
        }
        for letter in &batch.letters {
            self.letters.insert(letter.id.clone(), letter.clone());
        }
        let letters = batch.forwarded(&reply).cloned().map(Post::Letter);
        let posts: Vec<Post> = messages.into_iter().map(Post::Message).chain(letters).collect();
        if !posts.is_empty() {
            let outbox = self.outbox.entry((partition, batch.shard)).or_default();
            outbox.insert(batch.number, posts);
        }
        let fence =
            self.fences.get_mut(&(partition, batch.shard)).expect("the fence was just read");
        fence.last = batch.number;
        fence.reply = reply.clone();
        (CommitReply::Applied(reply), true)
    }

    /// Returns the indexes of the orphan dead letters that the store already has, or that the batch contains for the
    /// second time. The store does not forward these dead letters again.
    fn known(&self, batch: &Batch) -> Vec<usize> {
        let mut seen = BTreeSet::new();
        let letters = batch.letters.iter().enumerate();
        letters
            .filter(|(_, letter)| !seen.insert(&letter.id) || self.letters.contains_key(&letter.id))
            .map(|(at, _)| at)
            .collect()
    }

    fn refusal(&self, partition: u32, write: &KeyWrite) -> Option<WriteRefusal> {
        let Some(record) = self.records.get(&write.key) else {
            return match write.condition {
                WriteCondition::Absent => None,
                WriteCondition::Next(_) => Some(WriteRefusal::Next(None))
                    .filter(|_| !self.has_fault(StoreFault::StoreIgnoresTheCondition)),
            };
        };
        if record.corrupt {
            return Some(WriteRefusal::Corrupt("simulated: not readable".into()));
        }
        if self.has_fault(StoreFault::StoreIgnoresTheCondition) {
            return None;
        }
        let next = record.key_record.next;
        let is_taken_over = record.key_record.takeovers != write.record.takeovers;
        if record.key_record.partition != partition
            || (is_taken_over && write.condition != WriteCondition::Absent)
        {
            return Some(WriteRefusal::Partition(next));
        }
        if write.condition != WriteCondition::Next(next) {
            return Some(WriteRefusal::Next(Some(next)));
        }
        let is_older = write.record.rollout_number() < record.key_record.rollout_number();
        is_older.then_some(WriteRefusal::Version)
    }

    fn write(
        &mut self,
        index: usize,
        write: &KeyWrite,
        reply: &mut AppliedCommit,
        messages: &mut Vec<Message>,
    ) {
        let mut key_record = write.record.clone();
        key_record.fill_times(reply.time);
        let forgets = self.has_fault(StoreFault::StoreForgetsSpills);
        let record = self
            .records
            .entry(write.key.clone())
            .or_insert_with(|| StoredKey::new(key_record.clone()));
        record.key_record = key_record;
        record.state = crate::handler::changed(record.state.take(), &write.state);
        for (sequence, event) in &write.spill {
            if let Some(held) = record.spill.get(sequence) {
                let same = event.repeats(held);
                reply.existing_spills.push(ExistingSpill {
                    write: index,
                    sequence: *sequence,
                    same,
                });
            } else if !forgets {
                record.spill.insert(*sequence, event.clone());
            }
        }
        record.spill.retain(|sequence, _| *sequence >= write.record.next);
        if write.record.spilled.count == 0 {
            record.spill.clear();
        }
        record.ids.extend(write.ids.iter().map(|taken| (taken.sequence, *taken)));
        let from = write.record.ids_from;
        record.ids.retain(|sequence, _| from != 0 && *sequence >= from);
        record.due_at = write.due_in.map(|wait| reply.time.saturating_add(wait));
        record.expires_at = write.expire_in.map(|wait| reply.time.saturating_add(wait));
        for id in &write.removed_letters {
            self.letters.remove(id);
        }
        for letter in &write.letters {
            self.letters.insert(letter.id.clone(), letter.clone());
        }
        messages.extend(write.messages.iter().map(|emitted| Message {
            key: write.key.clone(),
            incarnation: record.key_record.incarnation,
            emitted: emitted.clone(),
        }));
    }
}

fn check(fence: &Fence, claim: Claim, number: u64) -> Option<CommitReply> {
    if claim.epoch < fence.claim.epoch {
        return Some(CommitReply::Fenced);
    }
    if claim != fence.claim {
        return Some(rolled_back(
            "another claim of this epoch, or a claim of an older epoch",
            None,
        ));
    }
    if number != fence.last && number != fence.last + 1 {
        let found = format!("commit {number} after commit {}", fence.last);
        return Some(rolled_back(&found, Some(fence.last)));
    }
    None
}

fn rolled_back(found: &str, last: Option<u64>) -> CommitReply {
    CommitReply::RolledBack { found: found.to_owned(), last }
}
