//! The content of the store: leases, fences, outboxes, and key records with their spilled events and due entries.

use crate::property::{Findings, Violation};
use crate::set::Set;
use crate::{Fault, Scope, StorePart};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Claim {
    /// The epoch of the owner's lease.
    pub(crate) epoch: u8,
    /// The owner's number, because no two owners have the same random part.
    pub(crate) random: u8,
}

/// No two commits have the same claim and number. Only the checks of the properties use this identity; the store does
/// not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct CommitId {
    pub(crate) claim: Claim,
    pub(crate) number: u8,
}

/// For each partition in a shard: the claim of the owner, and the last commit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Fence {
    pub(crate) claim: Claim,
    pub(crate) number: u8,
    /// The store refused the writes of these keys of the last commit.
    pub(crate) refused: Set,
    /// Only the checks of the properties read this field.
    pub(crate) last: CommitId,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct KeyRecord {
    pub(crate) next: u8,
    pub(crate) partition: u8,
    /// Counts the take-overs by another partition.
    pub(crate) take_overs: u8,
    pub(crate) spilled: Set,
    /// The due index of this partition contains the key.
    pub(crate) due: Option<u8>,
    /// Only the checks of the properties read this field.
    pub(crate) written_by: CommitId,
}

impl KeyRecord {
    pub(crate) fn revision(&self) -> StoredRevision {
        StoredRevision { next: self.next, take_overs: self.take_overs, written_by: self.written_by }
    }

    /// Returns whether the key's next event waits in the store.
    pub(crate) fn is_runnable(&self) -> bool {
        self.spilled.has(self.next)
    }
}

/// A lane's copy of some fields of its key record. The copy is the condition of the lane's next write: the store
/// refuses the write if the fields have changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct StoredRevision {
    pub(crate) next: u8,
    pub(crate) take_overs: u8,
    /// Not part of the condition: only the checks of the properties read it.
    pub(crate) written_by: CommitId,
}

/// The write of a commit for one key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Write {
    pub(crate) key: u8,
    /// `None` if no key record may exist.
    pub(crate) condition: Option<StoredRevision>,
    /// All earlier events of the key were executed.
    pub(crate) next: u8,
    /// The events of the key that are spilled after the write.
    pub(crate) spilled: Set,
}

impl Write {
    /// Returns the first sequence that the write settles, if it settles any.
    pub(crate) fn first(&self) -> u8 {
        self.condition.map_or(1, |condition| condition.next)
    }

    /// `None` if the write settles no event.
    pub(crate) fn entry(&self, number: u8) -> Option<Entry> {
        let events = Set::range(self.first(), self.next);
        (!events.is_empty()).then_some(Entry { number, key: self.key, events })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Batch {
    pub(crate) claim: Claim,
    /// One more than the number of the last commit. With [`Fault::SpillWithoutFence`], 0 for a commit without a number.
    pub(crate) number: u8,
    pub(crate) writes: Vec<Write>,
    /// The last commit that the owner knew before. Only the checks of the properties read this field.
    pub(crate) previous: CommitId,
}

impl Batch {
    pub(crate) fn commit_id(&self) -> CommitId {
        CommitId { claim: self.claim, number: self.number }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Reply<T> {
    /// The claim or commit has taken effect, either now or when it first arrived.
    Done(T),
    /// A newer owner exists.
    Fenced,
    /// The store has gone back: it has lost the claim or commits of this owner, or has given the owner's epoch to
    /// another owner as well.
    RolledBack,
}

/// Contains the messages of the events of one key that a commit settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Entry {
    pub(crate) number: u8,
    pub(crate) key: u8,
    pub(crate) events: Set,
}

/// One atomic write can change this part of the store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Shard {
    pub(crate) fences: Vec<Fence>,
    /// `None` for a key of another shard.
    pub(crate) records: Vec<Option<KeyRecord>>,
    pub(crate) outbox: Vec<Vec<Entry>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Store {
    leases: Vec<u8>,
    pub(crate) shards: Vec<Shard>,
}

impl Store {
    pub(crate) fn new(scope: &Scope) -> Self {
        let partitions = usize::from(scope.partitions());
        let shard = Shard {
            fences: vec![Fence::default(); partitions],
            records: vec![None; usize::from(scope.keys)],
            outbox: vec![Vec::new(); partitions],
        };
        Self { leases: vec![0; partitions], shards: vec![shard; usize::from(scope.shards)] }
    }

    pub(crate) fn record(&self, scope: &Scope, key: u8) -> Option<&KeyRecord> {
        self.shards[scope.shard_of(key)].records[usize::from(key)].as_ref()
    }

    /// The returned epoch is higher than the epochs of the last lease and of all fences of the partition.
    pub(crate) fn lease(&mut self, scope: &Scope, partition: usize, findings: &mut Findings) -> u8 {
        let fences = self.shards.iter().map(|shard| shard.fences[partition].claim.epoch);
        let highest = fences.max().unwrap_or(0);
        let fence_epoch = if scope.is(Fault::EpochFromLease) { 0 } else { highest };
        let epoch = self.leases[partition].max(fence_epoch) + 1;
        if epoch <= highest {
            findings.report(Violation::LeaseBelowClaim);
        }
        self.leases[partition] = epoch;
        epoch
    }

    /// Restores the whole store, or one part of it.
    pub(crate) fn go_back(&mut self, part: StorePart, earlier: Self) {
        match part {
            StorePart::All => *self = earlier,
            StorePart::Leases => self.leases = earlier.leases,
            StorePart::Shard(shard) => {
                let shard = usize::from(shard);
                self.shards[shard].clone_from(&earlier.shards[shard]);
            }
        }
    }
}
