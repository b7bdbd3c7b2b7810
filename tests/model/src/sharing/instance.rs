//! An instance: the table that it has read, and the state of its partitions.

use super::{Fleet, SharingFault};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) enum InstancePhase {
    #[default]
    NotStarted,
    Running,
    /// The instance hands over its partitions, and accepts no other partitions.
    ShuttingDown,
    Ended,
}

/// The state of a partition in an instance, with the epoch of the instance's lease.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) enum PartitionState {
    #[default]
    Unowned,
    /// The instance has a lease, but has not claimed the partition.
    Leased(u8),
    /// The instance has claimed the partition, and accepts its events. The instance receives events only if it has
    /// subscribed to the partition's queue and is the first subscriber.
    Owned(u8),
    /// The instance accepts no more events of the partition, and finishes the running events.
    Draining(u8),
    /// The instance does not use the partition any more, and must release its lease.
    Drained(u8),
}

/// The last lease of a partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Lease {
    pub(super) epoch: u8,
    pub(super) holder: Option<u8>,
}

/// The members and the leases. The table in the store is current. Each instance has the table that it read last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct MembershipTable {
    pub(super) members: Vec<bool>,
    /// True for each member that is shutting down.
    pub(super) leaving: Vec<bool>,
    pub(super) leases: Vec<Lease>,
}

impl MembershipTable {
    pub(super) fn holder(&self, fleet: &Fleet, partition: usize) -> Option<usize> {
        let holder = usize::from(self.leases[partition].holder?);
        (self.members[holder] || fleet.is(SharingFault::NonMemberKeepsLease)).then_some(holder)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Instance {
    pub(super) phase: InstancePhase,
    /// The table that the instance has read last.
    pub(super) table: MembershipTable,
    /// True until the lease of the instance expires by the instance's own clock.
    pub(super) is_lease_valid: bool,
    /// True if the instance cannot reach the store any more.
    pub(super) is_cut_off: bool,
    pub(super) partitions: Vec<PartitionState>,
}

impl Instance {
    pub(super) fn is_alive(&self) -> bool {
        matches!(self.phase, InstancePhase::Running | InstancePhase::ShuttingDown)
    }

    pub(super) fn can_reach_store(&self) -> bool {
        self.is_alive() && !self.is_cut_off
    }
}

impl PartitionState {
    pub(super) fn epoch(self) -> Option<u8> {
        match self {
            Self::Unowned => None,
            Self::Leased(epoch)
            | Self::Owned(epoch)
            | Self::Draining(epoch)
            | Self::Drained(epoch) => Some(epoch),
        }
    }

    /// Returns whether the instance has claimed the partition, and has not finished its work on the partition.
    pub(super) fn is_claimed(self) -> bool {
        matches!(self, Self::Owned(_) | Self::Draining(_))
    }
}
