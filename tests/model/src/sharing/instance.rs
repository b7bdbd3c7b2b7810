//! An instance: what it knows, and what it has.

use super::{Fleet, SharingFault};

/// Where an instance is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) enum Life {
    /// It was not started yet.
    #[default]
    Waiting,
    Running,
    /// It gives back what it has, and takes no more.
    Leaving,
    /// It has ended in order, or was killed.
    Gone,
}

/// What an instance has of a partition, with the epoch of its lease.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) enum Has {
    #[default]
    Nothing,
    Leased(u8),
    /// It has claimed it, and takes its events.
    Driven(u8),
    /// It takes no more, and finishes.
    Leaving(u8),
    /// It has ended with it, and gives it back.
    Over(u8),
}

/// The last lease of a partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Lease {
    pub(super) epoch: u8,
    pub(super) holder: Option<u8>,
}

/// Who is heard of and has what.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Table {
    pub(super) heard: Vec<bool>,
    pub(super) leaving: Vec<bool>,
    pub(super) leases: Vec<Lease>,
}

impl Table {
    /// Who has a partition.
    pub(super) fn holder(&self, fleet: &Fleet, partition: usize) -> Option<usize> {
        let holder = usize::from(self.leases[partition].holder?);
        (self.heard[holder] || fleet.is(SharingFault::ForgottenHolds)).then_some(holder)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Instance {
    pub(super) life: Life,
    /// As it saw it last.
    pub(super) table: Table,
    /// Its lease has not run out, as far as it knows.
    pub(super) is_on: bool,
    /// It does not reach the store any more.
    pub(super) is_cut: bool,
    /// Of each partition.
    pub(super) has: Vec<Has>,
}

impl Instance {
    pub(super) fn lives(&self) -> bool {
        matches!(self.life, Life::Running | Life::Leaving)
    }

    /// Whether it can ask the store.
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
