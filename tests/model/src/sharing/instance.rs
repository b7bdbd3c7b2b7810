//! An instance: its knowledge, and its partitions.

use super::{Fleet, SharingFault};

/// The life of an instance.
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

/// An instance's state for a partition, with the epoch of its lease.
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

/// The live instances and the holders of the partitions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Table {
    pub(super) heard: Vec<bool>,
    pub(super) leaving: Vec<bool>,
    pub(super) leases: Vec<Lease>,
}

impl Table {
    /// Returns the holder of a partition.
    pub(super) fn holder(&self, fleet: &Fleet, partition: usize) -> Option<usize> {
        let holder = usize::from(self.leases[partition].holder?);
        (self.heard[holder] || fleet.is(SharingFault::ForgottenHolds)).then_some(holder)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Instance {
    pub(super) life: Life,
    /// The table that the instance saw last.
    pub(super) table: Table,
    /// True while the instance's lease has not expired, as far as it knows.
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
