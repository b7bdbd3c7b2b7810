//! How instances share partitions: membership, leases and who is to have what, as a model all of whose
//! runs are walked through. What an owner may do with a partition is the other model's; here it is
//! driven or not.
//!
//! An instance that stands still is one that does nothing for as long as it likes. Time is not in it:
//! a lease may run out whenever that is in the scope.

mod action;
mod instance;
mod property;
mod world;

use stateright::{Model, Property};

pub use action::Move;
pub use world::Sharing;

/// What there is, and how often what is rare may happen.
#[derive(Debug, Clone, Default)]
pub struct Fleet {
    /// Instances, each of which may join once, whenever it likes.
    pub instances: u8,
    /// Partitions of the one stream.
    pub partitions: u8,
    /// Times that an instance is not heard of in time, although it lives.
    pub silences: u8,
    /// Instances that are killed.
    pub kills: u8,
    /// Instances that end in order.
    pub leaves: u8,
    /// Instances that do not reach the store any more.
    pub cuts: u8,
    /// Times that the broker takes the channels of an instance back.
    pub disconnects: u8,
    /// A rule that is broken on purpose.
    pub fault: Option<SharingFault>,
}

/// A rule that is broken on purpose, to show that the properties notice it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SharingFault {
    /// A lease is given whoever has it.
    LeaseTaken,
    /// A lease is given to one that is not heard of.
    LeaseToSilent,
    /// A release does not name the epoch of its lease.
    ReleaseWithoutEpoch,
    /// A claim makes its own epoch, above that of the fence.
    ClaimWithoutLease,
    /// Whoever runs out of its lease keeps its channels.
    ChannelsKept,
    /// An instance that is forgotten keeps what it had for ever.
    ForgottenHolds,
    /// A partition is given away without its channel being closed.
    ReleaseWithoutClose,
}

impl Fleet {
    fn is(&self, fault: SharingFault) -> bool {
        self.fault == Some(fault)
    }

    /// Leases that may be given, at most: each partition once, and again for each thing that changes
    /// who is there, with one more for whoever acts on an older table.
    fn most_leases(&self) -> u8 {
        let changes = 2 * (self.instances + self.silences + self.leaves + self.cuts) + self.kills;
        self.partitions * (1 + changes)
    }
}

impl Model for Fleet {
    type State = Sharing;
    type Action = Move;

    fn init_states(&self) -> Vec<Sharing> {
        vec![Sharing::new(self)]
    }

    fn actions(&self, world: &Sharing, moves: &mut Vec<Move>) {
        world.moves(self, moves);
    }

    fn next_state(&self, world: &Sharing, action: Move) -> Option<Sharing> {
        let mut next = world.clone();
        next.step(self, action);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        property::all()
    }
}
