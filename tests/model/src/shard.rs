//! The rules by which a shard answers claims, loads and commits.

use crate::property::{Broken, Found};
use crate::set::Set;
use crate::store::{Batch, Claim, Fence, Job, Known, Reply, Shard, Write};
use crate::{Fault, Scope};

impl Shard {
    /// Writes a claim into the fence of a partition. Returns the fence, which contains the partition's last commit.
    pub(crate) fn claim(&mut self, scope: &Scope, partition: usize, claim: Claim) -> Reply<Fence> {
        let fence = &mut self.fences[partition];
        if fence.claim.epoch > claim.epoch {
            return Reply::Fenced;
        }
        if fence.claim.epoch == claim.epoch && !same(scope, fence.claim, claim) {
            return Reply::Rewound;
        }
        fence.claim = claim;
        Reply::Done(fence.clone())
    }

    /// Returns a key record. If another partition owned the key, this partition takes the key over.
    pub(crate) fn load(&mut self, scope: &Scope, partition: u8, key: u8) -> Option<Job> {
        let job = self.jobs[usize::from(key)].as_mut()?;
        if job.partition != partition {
            job.partition = partition;
            job.take_overs += 1;
            if job.due.is_some() && !scope.is(Fault::DueStays) {
                job.due = Some(partition);
            }
        }
        Some(job.clone())
    }

    /// Applies the writes of a commit whose condition holds, and refuses the others. Returns the keys of the refused
    /// writes.
    pub(crate) fn commit(
        &mut self,
        scope: &Scope,
        partition: u8,
        batch: &Batch,
        found: &mut Found,
    ) -> Reply<Set> {
        if batch.number == 0 {
            return Reply::Done(self.apply_all(scope, partition, batch, found));
        }
        let fence = &self.fences[usize::from(partition)];
        if !scope.is(Fault::CommitWithoutClaim) {
            if fence.claim.epoch > batch.claim.epoch {
                return Reply::Fenced;
            }
            if !same(scope, fence.claim, batch.claim) {
                return Reply::Rewound;
            }
        }
        let again = batch.number == fence.number;
        let forgotten = scope.is(Fault::AnswerForgotten) || scope.is(Fault::NumberIgnored);
        if again && !forgotten && !scope.is(Fault::RepeatRefused) {
            if fence.last != batch.stamp() {
                found.note(Broken::AnotherAnswered);
            }
            return Reply::Done(fence.refused);
        }
        let follows = batch.number == fence.number + 1 || (again && forgotten);
        if !follows && !scope.is(Fault::NumberIgnored) {
            return Reply::Rewound;
        }
        fence.check(batch, found);
        let refused = self.apply_all(scope, partition, batch, found);
        let fence = &mut self.fences[usize::from(partition)];
        let claim = fence.claim;
        let number = batch.number;
        let last = batch.stamp();
        *fence = Fence { claim, number, refused, last };
        Reply::Done(refused)
    }

    fn apply_all(&mut self, scope: &Scope, partition: u8, batch: &Batch, found: &mut Found) -> Set {
        let mut refused = Set::default();
        for write in &batch.writes {
            let job = &mut self.jobs[usize::from(write.key)];
            if !holds(scope, job.as_ref(), partition, write.known) {
                refused = refused.with(write.key);
                continue;
            }
            if job.as_ref().map_or(1, |job| job.next) != write.first() {
                found.note(Broken::Order);
            } else if job.as_ref().map(|job| job.by) != write.known.map(|known| known.by) {
                found.note(Broken::NotKnown);
            }
            let Write { next, spilled, .. } = *write;
            let take_overs = job.as_ref().map_or(0, |job| job.take_overs);
            let mut new =
                Job { next, partition, take_overs, spilled, due: None, by: batch.stamp() };
            if new.is_runnable() && !scope.is(Fault::SpilledNotDue) {
                new.due = Some(partition);
            }
            *job = Some(new);
            if scope.publishes {
                self.outbox[usize::from(partition)].extend(write.entry(batch.number));
            }
        }
        refused
    }
}

impl Fence {
    /// Checks the properties that every applied commit must have. The checks do not use the store's rules, so that they
    /// also detect a broken rule.
    fn check(&self, batch: &Batch, found: &mut Found) {
        if self.last == batch.stamp() {
            found.note(Broken::AppliedTwice);
        } else if self.last.claim.epoch == batch.claim.epoch && self.last.claim != batch.claim {
            found.note(Broken::TwoOfOneEpoch);
        } else if self.last != batch.after {
            found.note(Broken::NotBuiltOn);
        }
    }
}

fn same(scope: &Scope, one: Claim, other: Claim) -> bool {
    one == other || (scope.is(Fault::ClaimWithoutRandom) && one.epoch == other.epoch)
}

/// Returns whether the condition of a write holds.
fn holds(scope: &Scope, job: Option<&Job>, partition: u8, known: Option<Known>) -> bool {
    if scope.is(Fault::WriteWithoutCondition) {
        return true;
    }
    match (job, known) {
        (None, None) => true,
        (Some(job), Some(known)) => {
            let counted =
                job.take_overs == known.take_overs || scope.is(Fault::TakeOversNotCounted);
            job.partition == partition && job.next == known.next && counted
        }
        _ => false,
    }
}
