//! The rules by which a shard answers claims, loads and commits.

use crate::property::{Findings, Violation};
use crate::set::Set;
use crate::store::{Batch, Claim, Fence, KeyRecord, Reply, Shard, StoredRevision, Write};
use crate::{Fault, Scope};

impl Shard {
    /// Returns the fence, which contains the partition's last commit. Refuses the claim if the fence has a higher
    /// epoch, or another claim with the same epoch.
    pub(crate) fn claim(&mut self, scope: &Scope, partition: usize, claim: Claim) -> Reply<Fence> {
        let fence = &mut self.fences[partition];
        if fence.claim.epoch > claim.epoch {
            return Reply::Fenced;
        }
        if fence.claim.epoch == claim.epoch && !is_same_claim(scope, fence.claim, claim) {
            return Reply::RolledBack;
        }
        fence.claim = claim;
        Reply::Done(fence.clone())
    }

    /// Returns a key record. If the record belongs to another partition, this partition takes the key over.
    pub(crate) fn load(&mut self, scope: &Scope, partition: u8, key: u8) -> Option<KeyRecord> {
        let record = self.records[usize::from(key)].as_mut()?;
        if record.partition != partition {
            record.partition = partition;
            record.take_overs += 1;
            if record.due.is_some() && !scope.is(Fault::DueStays) {
                record.due = Some(partition);
            }
        }
        Some(record.clone())
    }

    /// Applies each write of a commit if the condition of the write holds, and refuses the other writes. Returns the
    /// keys of the refused writes. For a repeated commit, returns the first answer again. Refuses a whole commit whose
    /// claim is not in the fence, or whose number is not valid.
    pub(crate) fn commit(
        &mut self,
        scope: &Scope,
        partition: u8,
        batch: &Batch,
        findings: &mut Findings,
    ) -> Reply<Set> {
        if batch.number == 0 {
            return Reply::Done(self.apply_all(scope, partition, batch, findings));
        }
        let fence = &self.fences[usize::from(partition)];
        if !scope.is(Fault::CommitWithoutClaim) {
            if fence.claim.epoch > batch.claim.epoch {
                return Reply::Fenced;
            }
            if !is_same_claim(scope, fence.claim, batch.claim) {
                return Reply::RolledBack;
            }
        }
        let is_repeat = batch.number == fence.number;
        let forgets_answer = scope.is(Fault::AnswerForgotten) || scope.is(Fault::NumberIgnored);
        if is_repeat && !forgets_answer && !scope.is(Fault::RepeatRefused) {
            if fence.last != batch.commit_id() {
                findings.report(Violation::WrongAnswer);
            }
            return Reply::Done(fence.refused);
        }
        let follows = batch.number == fence.number + 1 || (is_repeat && forgets_answer);
        if !follows && !scope.is(Fault::NumberIgnored) {
            return Reply::RolledBack;
        }
        fence.check(batch, findings);
        let refused = self.apply_all(scope, partition, batch, findings);
        let fence = &mut self.fences[usize::from(partition)];
        let claim = fence.claim;
        let number = batch.number;
        let last = batch.commit_id();
        *fence = Fence { claim, number, refused, last };
        Reply::Done(refused)
    }

    pub(crate) fn remove_due(&mut self, batch: &Batch) {
        for write in &batch.writes {
            if let Some(record) = &mut self.records[usize::from(write.key)] {
                record.due = None;
            }
        }
    }

    fn apply_all(
        &mut self,
        scope: &Scope,
        partition: u8,
        batch: &Batch,
        findings: &mut Findings,
    ) -> Set {
        let mut refused = Set::default();
        for write in &batch.writes {
            let record = &mut self.records[usize::from(write.key)];
            if !holds(scope, record.as_ref(), partition, write.condition) {
                refused = refused.with(write.key);
                continue;
            }
            if record.as_ref().map_or(1, |record| record.next) != write.first() {
                findings.report(Violation::SettledOutOfOrder);
            } else if record.as_ref().map(|record| record.written_by)
                != write.condition.map(|condition| condition.written_by)
            {
                findings.report(Violation::StaleWrite);
            }
            let Write { next, spilled, .. } = *write;
            let take_overs = record.as_ref().map_or(0, |record| record.take_overs);
            let mut new = KeyRecord {
                next,
                partition,
                take_overs,
                spilled,
                due: None,
                written_by: batch.commit_id(),
            };
            if new.is_runnable() && !scope.is(Fault::SpilledNotDue) {
                new.due = Some(partition);
            }
            *record = Some(new);
            if scope.publishes {
                self.outbox[usize::from(partition)].extend(write.entry(batch.number));
            }
        }
        refused
    }
}

impl Fence {
    /// Checks the properties of a commit that the store applies. The checks do not use the rules of the store, so they
    /// also detect a broken rule of the store.
    fn check(&self, batch: &Batch, findings: &mut Findings) {
        if self.last == batch.commit_id() {
            findings.report(Violation::AppliedTwice);
        } else if self.last.claim.epoch == batch.claim.epoch && self.last.claim != batch.claim {
            findings.report(Violation::TwoOwnersOfOneEpoch);
        } else if self.last != batch.previous {
            findings.report(Violation::WrongPredecessor);
        }
    }
}

fn is_same_claim(scope: &Scope, one: Claim, other: Claim) -> bool {
    one == other || (scope.is(Fault::ClaimWithoutRandom) && one.epoch == other.epoch)
}

fn holds(
    scope: &Scope,
    record: Option<&KeyRecord>,
    partition: u8,
    condition: Option<StoredRevision>,
) -> bool {
    if scope.is(Fault::WriteWithoutCondition) {
        return true;
    }
    match (record, condition) {
        (None, None) => true,
        (Some(record), Some(condition)) => {
            let counted =
                record.take_overs == condition.take_overs || scope.is(Fault::TakeOversNotCounted);
            record.partition == partition && record.next == condition.next && counted
        }
        _ => false,
    }
}
