//! The protocol between owners of partitions and a store that they share, as a model of a few
//! owners, keys and events, all of whose runs are walked through. `docs/internals/protocol.md` has the rules,
//! and says what is covered and what not.
//!
//! A process that is killed is an owner that does nothing any more. Any owner may do nothing for
//! as long as it likes, and what it asked for may arrive while it does: so killing, pausing and
//! slow networks need no steps of their own.

mod action;
mod chain;
mod lane;
mod owner;
mod property;
mod queue;
mod scopes;
mod set;
mod shard;
mod sharing;
mod store;
mod walk;
mod world;

use stateright::{Model, Property};

pub use action::Action;
pub use chain::{
    ChainBroken, ChainFault, ChainPlaces, ChainScope, ChainSeen, ChainStep, ChainWorld, GIVEN_AGAIN,
};
pub use queue::{Broken, LOST, QueueFault, QueueScope, QueueSeen, QueueStep, QueueWorld};
pub use sharing::{Fleet, Move, Sharing, SharingFault};
pub use walk::{breaks, walk};
pub use world::World;

/// An event as the broker has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Its key.
    pub key: u8,
    /// Its number in the key, from 1.
    pub sequence: u8,
    /// The partition whose queue it is in.
    pub partition: u8,
}

/// What may go back to an earlier state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// The leases and every shard.
    All,
    /// The leases, which may lie on another server than the shards.
    Leases,
    /// One shard.
    Shard(u8),
}

/// What there is, what may happen, and how often what is rare.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    /// Keys; each is in the shard that is its number, modulo their number.
    pub keys: u8,
    /// Shards.
    pub shards: u8,
    /// Leases in the order in which those of one partition are given: the partition of each. Every
    /// lease makes another owner, and all but the first of a partition may be taken from one that
    /// lives on.
    pub leases: Vec<u8>,
    /// What comes from the broker, in this order.
    pub queue: Vec<Event>,
    /// Events of a key executed ahead of what is durable.
    pub run_ahead: u8,
    /// Times that a job may be taken over.
    pub take_overs: u8,
    /// Requests to load that arrive once more, when nobody waits for them.
    pub late_loads: u8,
    /// Commits that arrive once more, when nobody waits for them.
    pub late_commits: u8,
    /// What may go back, each once in a run.
    pub goes_back: Vec<Part>,
    /// Whether events are spilled.
    pub spills: bool,
    /// Whether lanes leave.
    pub leaves: bool,
    /// Whether settled events have messages to publish.
    pub publishes: bool,
    /// A rule that is broken on purpose.
    pub fault: Option<Fault>,
}

/// A rule that is broken on purpose, to show that the properties notice it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The store does not compare the claims of commits.
    CommitWithoutClaim,
    /// A claim has nothing but its epoch.
    ClaimWithoutRandom,
    /// The epoch is made of the fence when the claim is written, not with the lease.
    EpochFromFence,
    /// The epoch is above that of the last lease, and nobody looks at the fences.
    EpochFromLease,
    /// What only spills is not compared with the fence, and has no number.
    SpillWithoutFence,
    /// A delivery is finished when its event was executed.
    AcknowledgeBeforeCommit,
    /// Everything before the last finished delivery is acknowledged with it.
    AcknowledgeBeyondPrefix,
    /// A write is applied whatever its job looks like.
    WriteWithoutCondition,
    /// The last number again is applied again.
    AnswerForgotten,
    /// The last number again is refused as any other.
    RepeatRefused,
    /// Any number is applied.
    NumberIgnored,
    /// A spilled event that can run is not due.
    SpilledNotDue,
    /// A due entry stays where it is when its job is taken over.
    DueStays,
    /// What is due is not looked at where the key has a lane in memory.
    DueLeftToLane,
    /// A lane may leave with what only it has.
    LeaveTooEarly,
    /// A write is not conditional on the number of take-overs.
    TakeOversNotCounted,
    /// Messages are published when their event was executed.
    PublishBeforeCommit,
    /// An entry leaves the outbox whether it is published or not.
    RemoveUnpublished,
    /// What removes entries from the outbox does not name its owner's claim.
    RemoveWithoutClaim,
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

    pub(crate) fn event(&self, place: u8) -> Event {
        self.queue[usize::from(place)]
    }

    /// Whether another lease of its partition follows.
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
