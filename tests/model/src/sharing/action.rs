//! The steps of a run.

use super::instance::{Has, Lease, Life, Table};
use super::world::Sharing;
use super::{Fleet, SharingFault};

/// A step of a run. The first number is the instance, the second the partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Move {
    /// The instance starts, and joins the members.
    Start(usize),
    /// The instance writes its heartbeat and receives the membership.
    Beat(usize),
    /// The instance requests a lease.
    Lease(usize, usize),
    /// The instance writes its claim into the fence of a partition.
    Claim(usize, usize),
    /// The instance commits. The store refuses the commit, because the fence has a newer claim.
    Commit(usize, usize),
    /// The instance begins to hand a partition over: it accepts no more events of the partition.
    HandOver(usize, usize),
    /// The instance has finished the running events of a partition.
    Finish(usize, usize),
    /// The instance releases a lease.
    Release(usize, usize),
    /// The instance subscribes to the queue of a partition.
    Subscribe(usize, usize),
    /// By the clock of the instance, its lease has expired. The instance closes its channels to the broker.
    Suspend(usize),
    /// The store removes the instance from the members because its heartbeat is late.
    Forget(usize),
    /// The instance receives the request to shut down.
    Leave(usize),
    /// The instance has released all partitions, and ends.
    End(usize),
    /// The instance is killed.
    Kill(usize),
    /// The broker notices that the instance has ended, and closes its channels.
    Notice(usize),
    /// The instance loses its connection to the store for good.
    CutOff(usize),
    /// The broker closes the instance's channels.
    Disconnect(usize),
    /// The present leases and members become the state that the store may go back to.
    Keep,
    /// The leases and members in the store go back to the kept state.
    GoBack,
}

impl Sharing {
    pub(super) fn moves(&self, fleet: &Fleet, moves: &mut Vec<Move>) {
        if self.broken.is_some() || self.given > fleet.most_leases() {
            return;
        }
        self.progress(fleet, moves);
        match &self.earlier {
            None if self.left.rewinds > 0 => moves.push(Move::Keep),
            Some(earlier) if *earlier != self.table => moves.push(Move::GoBack),
            _ => {}
        }
        for (id, instance) in self.instances.iter().enumerate() {
            if instance.life == Life::Waiting {
                moves.push(Move::Start(id));
            }
            if instance.life == Life::Running {
                if self.left.leaves > 0 && !instance.is_cut {
                    moves.push(Move::Leave(id));
                }
                if self.left.cuts > 0 && !instance.is_cut {
                    moves.push(Move::CutOff(id));
                }
                if self.left.disconnects > 0 && self.has_channel(id) {
                    moves.push(Move::Disconnect(id));
                }
            }
            if instance.lives() && self.left.kills > 0 {
                moves.push(Move::Kill(id));
            }
            if instance.can_ask() && self.table.heard[id] && self.left.silences > 0 {
                moves.push(Move::Forget(id));
            }
        }
    }

    /// Adds the steps that must happen sooner or later, and that change the state.
    pub(super) fn progress(&self, fleet: &Fleet, moves: &mut Vec<Move>) {
        for (id, instance) in self.instances.iter().enumerate() {
            let is_heard = self.table.heard[id];
            if !instance.can_ask() && is_heard && instance.life != Life::Waiting {
                moves.push(Move::Forget(id));
            }
            if instance.life == Life::Gone && self.has_channel(id) {
                moves.push(Move::Notice(id));
            }
            if !instance.lives() {
                continue;
            }
            let keeps = fleet.is(SharingFault::ChannelsKept);
            if !is_heard && instance.is_on && !keeps {
                moves.push(Move::Suspend(id));
            }
            if instance.is_cut {
                continue;
            }
            let has_lost = self.has_lost(id) && !fleet.is(SharingFault::LostLeaseKept);
            let is_known = is_heard && self.table.leaving[id] == (instance.life == Life::Leaving);
            if !is_known || !instance.is_on || instance.table != self.table || has_lost {
                moves.push(Move::Beat(id));
            }
            let owners = Self::owners(fleet, &instance.table);
            for (partition, owner) in owners.into_iter().enumerate() {
                self.progress_of(fleet, id, partition, owner == Some(id), moves);
            }
            let has_nothing = instance.has.iter().all(|has| *has == Has::Nothing);
            if instance.life == Life::Leaving && has_nothing {
                moves.push(Move::End(id));
            }
        }
    }

    fn progress_of(
        &self,
        fleet: &Fleet,
        id: usize,
        partition: usize,
        is_to_have: bool,
        moves: &mut Vec<Move>,
    ) {
        let instance = &self.instances[id];
        let is_running = instance.life == Life::Running;
        let is_free = |table: &Table| {
            table.holder(fleet, partition).is_none_or(|holder| holder == id)
                || fleet.is(SharingFault::LeaseTaken)
        };
        match instance.has[partition] {
            // The model leaves out requests for a lease that another instance has, because they change nothing.
            Has::Nothing if is_to_have && is_running => {
                let is_heard = self.table.heard[id] || fleet.is(SharingFault::LeaseToSilent);
                if is_heard && is_free(&instance.table) && is_free(&self.table) {
                    moves.push(Move::Lease(id, partition));
                }
            }
            Has::Nothing if is_running && self.has_unknown(id, partition) => {
                if !fleet.is(SharingFault::UnknownLeaseKept) {
                    moves.push(Move::Release(id, partition));
                }
            }
            Has::Nothing => {}
            Has::Leased(_) => moves.push(Move::Claim(id, partition)),
            Has::Driven(epoch) | Has::Leaving(epoch) if epoch < self.fences[partition] => {
                moves.push(Move::Commit(id, partition));
            }
            Has::Driven(_) if !is_to_have || !is_running => {
                moves.push(Move::HandOver(id, partition));
            }
            Has::Driven(_) => {
                let is_there =
                    self.channels[partition].iter().any(|channel| usize::from(*channel) == id);
                if instance.is_on && !is_there {
                    moves.push(Move::Subscribe(id, partition));
                }
            }
            Has::Leaving(_) => moves.push(Move::Finish(id, partition)),
            Has::Over(_) => moves.push(Move::Release(id, partition)),
        }
    }

    /// Returns whether the store lost a lease of an instance.
    fn has_lost(&self, id: usize) -> bool {
        let is_lost = |(has, lease): (&Has, &Lease)| {
            !matches!(has, Has::Over(_)) && has.epoch().is_some_and(|epoch| lease.epoch < epoch)
        };
        self.instances[id].has.iter().zip(&self.table.leases).any(is_lost)
    }

    /// Returns whether the store, because it went back, names the instance as holder of a lease that the instance does
    /// not know.
    fn has_unknown(&self, id: usize, partition: usize) -> bool {
        let lease = self.table.leases[partition];
        lease.holder == Some(id as u8) && self.instances[id].table.leases[partition] == lease
    }

    fn has_channel(&self, id: usize) -> bool {
        self.channels.iter().flatten().any(|channel| usize::from(*channel) == id)
    }
}
