//! A model of the protocol between the owners of partitions and their common store, with a few owners, keys and events.
//! A checker explores all runs of the model. `docs/internals/protocol.md` states the rules of the protocol, and lists
//! the behaviour that the model leaves out. Separate models, such as [`ChainScope`], cover other parts of the protocol.
//!
//! A killed process is an owner that takes no more steps. An owner may pause for any length of time, and its requests
//! may arrive at the store during the pause. Therefore killed processes, paused processes and slow networks need no
//! steps of their own.

mod action;
mod chain;
mod checkpoint;
mod lane;
mod owner;
mod producer;
mod property;
mod queue;
mod rollout;
mod scopes;
mod set;
mod shard;
mod sharing;
mod sink_file;
mod store;
mod walk;
mod world;

use stateright::{Model, Property};

pub use action::Action;
pub use chain::{
    ChainCounts, ChainFault, ChainScope, ChainShards, ChainStep, ChainViolation, ChainWorld, RESENT,
};
pub use checkpoint::{
    CheckpointCounts, CheckpointFault, CheckpointScope, CheckpointStep, CheckpointViolation,
    CheckpointWorld, READ_AGAIN,
};
pub use producer::{
    ProducerCounts, ProducerFault, ProducerScope, ProducerStep, ProducerViolation, ProducerWorld,
    RENUMBERED, WRITTEN_AGAIN,
};
pub use queue::{
    CALL_REPEATED, COUNTED_WITHOUT_READER, ENTRY_LOST, PART_WRITTEN_AGAIN, PUBLISHED_AND_LOST,
    QueueCounts, QueueFault, QueueScope, QueueStep, QueueViolation, QueueWorld,
};
pub use rollout::{
    NUMBER_REPEATED, RolloutCounts, RolloutFault, RolloutScope, RolloutStep, RolloutViolation,
    RolloutWorld,
};
pub use sharing::{Fleet, SharingFault, SharingStep, SharingWorld};
pub use sink_file::{
    LINE_LOST, MESSAGE_SKIPPED, SinkFileFault, SinkFileScope, SinkFileStep, SinkFileViolation,
    SinkFileWorld,
};
pub use walk::{PlayedRun, check_faults, play, walk};
pub use world::World;

/// An event in a queue of the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// The event's key.
    pub key: u8,
    /// The event's number in the key, from 1.
    pub sequence: u8,
    /// The partition whose queue contains the event.
    pub partition: u8,
}

/// A part of the store that may go back to an earlier state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StorePart {
    /// The leases and every shard.
    All,
    /// The leases, which may be on another server than the shards.
    Leases,
    /// One shard.
    Shard(u8),
}

/// The size of a model, the possible steps, and the limits of the rare steps.
#[derive(Debug, Clone, Default)]
#[allow(clippy::struct_excessive_bools, reason = "the flags are independent of each other")]
pub struct Scope {
    /// Number of keys. A key is in the shard whose number is the key modulo the number of shards.
    pub keys: u8,
    /// Number of shards.
    pub shards: u8,
    /// The partition of each lease. The store gives the leases of one partition in this order. Each lease creates a
    /// new owner. The store may give a lease while the previous owner of the partition is alive.
    pub leases: Vec<u8>,
    /// The events in the queues of the broker. The broker delivers the events of one partition in this order.
    pub queue: Vec<Event>,
    /// Maximum number of events of a key that an owner may have executed, but not committed.
    pub run_ahead: u8,
    /// For each key, the maximum number of times that a partition may take the key over from another partition.
    pub take_overs: u8,
    /// Maximum number of load requests that arrive a second time, so late that no owner waits for the answer.
    pub late_loads: u8,
    /// Maximum number of commits that owners send twice. One of the two copies may arrive so late that no owner waits
    /// for the answer.
    pub late_commits: u8,
    /// Parts of the store that may go back to an earlier state. A part that the list contains twice may go back twice.
    pub goes_back: Vec<StorePart>,
    /// True if owners may spill events.
    pub spills: bool,
    /// True if owners may remove lanes from memory.
    pub evicts_lanes: bool,
    /// True if settled events have messages to publish.
    pub publishes: bool,
    /// True if an owner repeats its lost commits from memory. If a shard has lost the owner's claim, the owner ends
    /// nevertheless. Each partition then has one lease, because a later owner would not know the lost commits of the
    /// earlier owner.
    pub repeats_commits: bool,
    /// The rule that is broken on purpose; `None` in a correct model.
    pub fault: Option<Fault>,
}

/// A rule that is broken on purpose, to prove that the properties detect broken rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The store does not compare the claim of a commit with the fence.
    CommitWithoutClaim,
    /// A claim consists of its epoch alone.
    ClaimWithoutRandom,
    /// The claim of an owner has the epoch of the fence plus one, instead of the epoch of the owner's lease.
    EpochFromFence,
    /// The epoch of a new lease is the epoch of the last lease plus one, even if a fence has a higher epoch.
    EpochFromLease,
    /// A commit that only spills events has no number, and the store does not compare the commit with the fence.
    SpillWithoutFence,
    /// A delivery counts as finished as soon as its event is executed.
    AcknowledgeBeforeCommit,
    /// An owner acknowledges all deliveries up to the last finished delivery, even the unfinished deliveries before it.
    AcknowledgeBeyondPrefix,
    /// The store applies a write without checking its condition against the key record.
    WriteWithoutCondition,
    /// The store applies a repeated commit a second time.
    AnswerForgotten,
    /// The store refuses a repeated commit as if its number were wrong.
    RepeatRefused,
    /// The store applies a commit even if its number is not the next number.
    NumberIgnored,
    /// The due index lacks a key whose next event is spilled.
    SpilledNotDue,
    /// When another partition takes a key over, the key stays in the due index of the previous partition.
    DueStays,
    /// An owner ignores a due key if the key has a lane in memory.
    DueIgnoredByLane,
    /// An owner may remove a lane from memory although the store lacks some of the lane's state.
    EvictTooEarly,
    /// The condition of a write does not contain the number of take-overs of the key.
    TakeOversNotCounted,
    /// An owner publishes messages as soon as their event is executed, before the commit.
    PublishBeforeCommit,
    /// An owner publishes the newest entry of its outbox first.
    PublishNewestFirst,
    /// An owner also removes unpublished entries from the outbox.
    RemoveUnpublished,
    /// The store removes entries from the outbox at the request of any owner, even if the owner's claim is outdated.
    RemoveWithoutClaim,
    /// A repeated commit has its number, but does not write the key records.
    RecordNotRepeated,
    /// A repeated commit writes the key records without their spilled events.
    SpilledNotRepeated,
    /// A repeated commit adds no key to the due index.
    DueNotRepeated,
    /// When an owner has repeated lost commits, its lanes keep the data that they had read before the repetition.
    OldReadsKept,
    /// When an owner finds lost commits, it discards its reads immediately. A correct owner first repeats the commits.
    ReadsDiscardedEarly,
    /// When an owner has repeated lost commits, it sends its unanswered commit again without a change.
    OldCommitKept,
}

impl Fault {
    /// All faults.
    pub const ALL: [Self; 26] = [
        Self::CommitWithoutClaim,
        Self::ClaimWithoutRandom,
        Self::EpochFromFence,
        Self::EpochFromLease,
        Self::SpillWithoutFence,
        Self::AcknowledgeBeforeCommit,
        Self::AcknowledgeBeyondPrefix,
        Self::WriteWithoutCondition,
        Self::AnswerForgotten,
        Self::RepeatRefused,
        Self::NumberIgnored,
        Self::SpilledNotDue,
        Self::DueStays,
        Self::DueIgnoredByLane,
        Self::EvictTooEarly,
        Self::TakeOversNotCounted,
        Self::PublishBeforeCommit,
        Self::PublishNewestFirst,
        Self::RemoveUnpublished,
        Self::RemoveWithoutClaim,
        Self::RecordNotRepeated,
        Self::SpilledNotRepeated,
        Self::DueNotRepeated,
        Self::OldReadsKept,
        Self::ReadsDiscardedEarly,
        Self::OldCommitKept,
    ];

    /// Returns whether the fault breaks a rule of the repetition of lost commits. Only an owner that repeats commits
    /// ([`Scope::repeats_commits`]) can break such a rule.
    pub fn is_of_repetition(self) -> bool {
        matches!(
            self,
            Self::RecordNotRepeated
                | Self::SpilledNotRepeated
                | Self::DueNotRepeated
                | Self::OldReadsKept
                | Self::ReadsDiscardedEarly
                | Self::OldCommitKept
        )
    }
}

impl Scope {
    pub(crate) fn is(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    pub(crate) fn partitions(&self) -> u8 {
        self.leases.iter().max().map_or(0, |last| last + 1)
    }

    pub(crate) fn shard_of(&self, key: u8) -> usize {
        usize::from(key % self.shards)
    }

    pub(crate) fn event(&self, position: u8) -> Event {
        self.queue[usize::from(position)]
    }

    /// True if the partition has another lease.
    pub(crate) fn has_successor(&self, owner: usize) -> bool {
        self.leases[owner + 1..].contains(&self.leases[owner])
    }
}

impl Model for Scope {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        world.actions(self, actions);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        next.step(self, action);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        property::all()
    }
}
