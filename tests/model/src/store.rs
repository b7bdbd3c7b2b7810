//! What the store has: leases, fences, jobs with their spilled events and due entries, outbox.

use crate::property::{Broken, Found};
use crate::set::Set;
use crate::{Fault, Part, Scope};

/// What an owner writes into a fence.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Claim {
    /// Comes with the lease.
    pub(crate) epoch: u8,
    /// Its random part, for which the owner's number stands: no two owners have the same.
    pub(crate) random: u8,
}

/// For the properties: which commit it is. No two have the same claim and number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Stamp {
    pub(crate) claim: Claim,
    pub(crate) number: u8,
}

/// Who owns a partition's part of a shard, and how far it has come.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Fence {
    pub(crate) claim: Claim,
    /// Of the last commit.
    pub(crate) number: u8,
    /// What that commit answered: the keys whose write was refused.
    pub(crate) refused: Set,
    /// For the properties: that commit.
    pub(crate) last: Stamp,
}

/// The durable record of a key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Job {
    /// The next sequence to settle.
    pub(crate) next: u8,
    pub(crate) partition: u8,
    /// How often it was taken over.
    pub(crate) take_overs: u8,
    /// Events in the store.
    pub(crate) spilled: Set,
    /// The partition in whose due index it is.
    pub(crate) due: Option<u8>,
    /// For the properties: the commit that wrote it last.
    pub(crate) by: Stamp,
}

impl Job {
    pub(crate) fn known(&self) -> Known {
        Known { next: self.next, take_overs: self.take_overs, by: self.by }
    }

    /// Whether its next event waits in the store.
    pub(crate) fn is_runnable(&self) -> bool {
        self.spilled.has(self.next)
    }
}

/// What a lane knows of its job, and what a write is conditional on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Known {
    pub(crate) next: u8,
    pub(crate) take_overs: u8,
    /// For the properties, and no part of the condition: the commit that wrote it last.
    pub(crate) by: Stamp,
}

/// What a commit writes of one key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Write {
    pub(crate) key: u8,
    /// The condition; `None`: there is no job.
    pub(crate) known: Option<Known>,
    /// The new `next`: everything before it was executed.
    pub(crate) next: u8,
    /// What is in the store from now on.
    pub(crate) spilled: Set,
}

impl Write {
    /// The first sequence that it settles, if it settles any.
    pub(crate) fn first(&self) -> u8 {
        self.known.map_or(1, |known| known.next)
    }

    /// What it has to publish, if it settles anything.
    pub(crate) fn entry(&self, number: u8) -> Option<Entry> {
        let events = Set::range(self.first(), self.next);
        (!events.is_empty()).then_some(Entry { number, key: self.key, events })
    }
}

/// A commit of one shard.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Batch {
    pub(crate) claim: Claim,
    /// One more than that of the last; 0: none, with [`Fault::SpillWithoutFence`].
    pub(crate) number: u8,
    pub(crate) writes: Vec<Write>,
    /// For the properties: what its owner knows as the last commit.
    pub(crate) after: Stamp,
}

impl Batch {
    pub(crate) fn stamp(&self) -> Stamp {
        Stamp { claim: self.claim, number: self.number }
    }
}

/// The answer to a claim or a commit.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Reply<T> {
    /// Done, now or before.
    Done(T),
    /// A newer owner is there.
    Fenced,
    /// The store is not where this owner left it.
    Rewound,
}

/// Settled events whose messages are to be published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Entry {
    /// Of the commit.
    pub(crate) number: u8,
    pub(crate) key: u8,
    pub(crate) events: Set,
}

/// What is changed by one atomic write.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Shard {
    /// Of each partition.
    pub(crate) fences: Vec<Fence>,
    /// Of each key, those of other shards left out.
    pub(crate) jobs: Vec<Option<Job>>,
    /// Of each partition.
    pub(crate) outbox: Vec<Vec<Entry>>,
}

/// The store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Store {
    /// Of each partition: the epoch of its last lease.
    leases: Vec<u8>,
    pub(crate) shards: Vec<Shard>,
}

impl Store {
    pub(crate) fn new(scope: &Scope) -> Self {
        let partitions = usize::from(scope.partitions());
        let shard = Shard {
            fences: vec![Fence::default(); partitions],
            jobs: vec![None; usize::from(scope.keys)],
            outbox: vec![Vec::new(); partitions],
        };
        Self { leases: vec![0; partitions], shards: vec![shard; usize::from(scope.shards)] }
    }

    pub(crate) fn job(&self, scope: &Scope, key: u8) -> Option<&Job> {
        self.shards[scope.shard_of(key)].jobs[usize::from(key)].as_ref()
    }

    /// A lease: an epoch above that of the last one and of every fence.
    pub(crate) fn lease(&mut self, scope: &Scope, partition: usize, found: &mut Found) -> u8 {
        let fences = self.shards.iter().map(|shard| shard.fences[partition].claim.epoch);
        let highest = fences.max().unwrap_or(0);
        let seen = if scope.is(Fault::EpochFromLease) { 0 } else { highest };
        let epoch = self.leases[partition].max(seen) + 1;
        if epoch <= highest {
            found.note(Broken::LeaseBelowClaim);
        }
        self.leases[partition] = epoch;
        epoch
    }

    /// Goes back, in part or whole, to what it was.
    pub(crate) fn go_back(&mut self, part: Part, earlier: Self) {
        match part {
            Part::All => *self = earlier,
            Part::Leases => self.leases = earlier.leases,
            Part::Shard(shard) => {
                let shard = usize::from(shard);
                self.shards[shard].clone_from(&earlier.shards[shard]);
            }
        }
    }
}
