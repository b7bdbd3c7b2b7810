//! A model of instances that share partitions: membership, leases and the assignment of partitions. A checker explores
//! all runs of the model. An instance either drives a partition (has claimed the partition and processes its events) or
//! does not. The steps of an owner within a partition are in the model of [`Scope`](crate::Scope).
//!
//! A paused instance takes no steps, for any length of time. The model has no clock: a lease may expire at any moment
//! that the limits of the [`Fleet`] allow.

mod instance;
mod property;
mod step;
mod world;

use stateright::{Model, Property};

pub use step::SharingStep;
pub use world::SharingWorld;

/// The number of instances and partitions in a run, and the limits of the rare steps.
#[derive(Debug, Clone, Default)]
pub struct Fleet {
    /// Number of instances. Each instance may start once, at any time.
    pub instances: u8,
    /// Number of partitions of the only stream.
    pub partitions: u8,
    /// Maximum number of times that the heartbeat of a live instance is so late that the store removes the instance
    /// from the members.
    pub late_heartbeats: u8,
    /// Maximum number of instances that are killed.
    pub kills: u8,
    /// Maximum number of instances that shut down cleanly.
    pub shutdowns: u8,
    /// Maximum number of instances that lose their connection to the store for good.
    pub cut_offs: u8,
    /// Maximum number of times that the broker closes the channels of an instance.
    pub disconnects: u8,
    /// Maximum number of times that the leases and the members go back to an earlier state. The fences do not go back.
    pub rollbacks: u8,
    /// The rule that is broken on purpose; `None` in a correct model.
    pub fault: Option<SharingFault>,
}

/// A rule that is broken on purpose, to prove that the properties detect the broken rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SharingFault {
    /// The store gives an instance a lease of a partition although another member has a lease of this partition.
    LeaseTaken,
    /// The store gives a lease to an instance that is not a member.
    LeaseToNonMember,
    /// A release does not name the epoch of its lease, so an instance may release the lease of another instance.
    ReleaseWithoutEpoch,
    /// A claim uses the epoch of the fence plus one, instead of the epoch of its lease.
    ClaimWithoutLease,
    /// A claim takes effect although the fence already has the epoch of the claim's lease.
    EpochClaimedTwice,
    /// An instance whose lease has expired keeps its channels to the broker open.
    ChannelsKept,
    /// The leases of an instance that is no longer a member stay valid for ever.
    NonMemberKeepsLease,
    /// An instance releases a partition, but does not close its channel to the partition's queue.
    ReleaseWithoutClose,
    /// An instance keeps a partition although the store has lost the instance's lease of this partition.
    LostLeaseKept,
    /// The store went back, and now names an instance as the holder of a lease that this instance does not know. The
    /// instance does not release this lease.
    UnknownLeaseKept,
}

impl SharingFault {
    /// All faults.
    pub const ALL: [Self; 10] = [
        Self::LeaseTaken,
        Self::LeaseToNonMember,
        Self::ReleaseWithoutEpoch,
        Self::ClaimWithoutLease,
        Self::EpochClaimedTwice,
        Self::ChannelsKept,
        Self::NonMemberKeepsLease,
        Self::ReleaseWithoutClose,
        Self::LostLeaseKept,
        Self::UnknownLeaseKept,
    ];
}

impl Fleet {
    fn is(&self, fault: SharingFault) -> bool {
        self.fault == Some(fault)
    }

    /// Returns the maximum number of leases that the store may give in a run without a fault. Each partition needs one
    /// lease at first. After each change of the membership, a partition needs at most two more leases: one for its new
    /// owner, and one for an instance that acts on an older table. After a kill, one more lease is enough. After each
    /// rollback of the members, each instance may have to join again.
    fn most_leases(&self) -> u8 {
        let joins = self.instances * (1 + self.rollbacks);
        let changes =
            2 * (joins + self.late_heartbeats + self.shutdowns + self.cut_offs) + self.kills;
        self.partitions * (1 + changes)
    }
}

impl Model for Fleet {
    type State = SharingWorld;
    type Action = SharingStep;

    fn init_states(&self) -> Vec<SharingWorld> {
        vec![SharingWorld::new(self)]
    }

    fn actions(&self, world: &SharingWorld, steps: &mut Vec<SharingStep>) {
        world.steps(self, steps);
    }

    fn next_state(&self, world: &SharingWorld, step: SharingStep) -> Option<SharingWorld> {
        let mut next = world.clone();
        next.step(self, step);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        property::all()
    }
}
