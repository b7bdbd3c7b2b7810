//! An instance: the table that it has read, and the state of its partitions.

use super::{Fleet, SharingFault};

/// The phase in the life of an instance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) enum Life {
    /// The instance has not started yet.
    #[default]
    Waiting,
    Running,
    /// The instance releases its partitions, and accepts no more.
    Leaving,
    /// The instance has ended cleanly, or was killed.
    Gone,
}

/// The state of a partition in an instance, with the epoch of the instance's lease.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) enum Has {
    #[default]
    Nothing,
    Leased(u8),
    /// The instance has claimed the partition, and receives its events.
    Driven(u8),
    /// The instance accepts no more events, and finishes the running ones.
    Leaving(u8),
    /// The instance has finished with the partition, and releases it.
    Over(u8),
}

/// The last lease of a partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Lease {
    pub(super) epoch: u8,
    pub(super) holder: Option<u8>,
}

/// The membership and the leases. In the store, the table is current; an instance has the table that it read last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Table {
    pub(super) heard: Vec<bool>,
    pub(super) leaving: Vec<bool>,
    pub(super) leases: Vec<Lease>,
}

impl Table {
    /// Returns the member that holds the lease of a partition.
    pub(super) fn holder(&self, fleet: &Fleet, partition: usize) -> Option<usize> {
        let holder = usize::from(self.leases[partition].holder?);
        (self.heard[holder] || fleet.is(SharingFault::ForgottenHolds)).then_some(holder)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Instance {
    pub(super) life: Life,
    /// The table that the instance has read last.
    pub(super) table: Table,
    /// True while, by the clock of the instance, its lease has not expired.
    pub(super) is_on: bool,
    /// True if the instance cannot reach the store any more.
    pub(super) is_cut: bool,
    /// The state of each partition.
    pub(super) has: Vec<Has>,
}

impl Instance {
    pub(super) fn lives(&self) -> bool {
        matches!(self.life, Life::Running | Life::Leaving)
    }

    /// Returns whether the instance can send requests to the store.
    pub(super) fn can_ask(&self) -> bool {
        self.lives() && !self.is_cut
    }
}

impl Has {
    pub(super) fn epoch(self) -> Option<u8> {
        match self {
            Self::Nothing => None,
            Self::Leased(epoch)
            | Self::Driven(epoch)
            | Self::Leaving(epoch)
            | Self::Over(epoch) => Some(epoch),
        }
    }

    pub(super) fn is_driven(self) -> bool {
        matches!(self, Self::Driven(_) | Self::Leaving(_))
    }
}
