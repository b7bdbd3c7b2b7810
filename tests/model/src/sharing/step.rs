//! The steps of a run.

use super::instance::{InstancePhase, Lease, MembershipTable, PartitionState};
use super::world::SharingWorld;
use super::{Fleet, SharingFault};

/// A step of a run. The first number identifies the instance, and the second number identifies the partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SharingStep {
    /// The instance starts, and becomes a member.
    Start(usize),
    /// The instance writes its heartbeat, becomes a member if it is not a member, and receives the table of members and
    /// leases.
    Heartbeat(usize),
    /// The instance requests the lease of a partition.
    Lease(usize, usize),
    /// The instance writes its claim into the fence of a partition.
    Claim(usize, usize),
    /// The instance commits. The store refuses the commit, because the fence has a newer claim.
    Commit(usize, usize),
    /// The instance begins to hand a partition over: it accepts no more events of the partition.
    HandOver(usize, usize),
    /// The instance has finished the running events of a partition.
    Finish(usize, usize),
    /// The instance releases the lease of a partition.
    Release(usize, usize),
    /// The instance subscribes to the queue of a partition.
    Subscribe(usize, usize),
    /// The lease of the instance has expired by the instance's own clock. The instance closes its channels to the
    /// broker.
    Suspend(usize),
    /// The store removes the instance from the members, because its heartbeat is late or missing.
    RemoveMember(usize),
    /// The instance begins to shut down, and marks itself in the store as leaving.
    ShutDown(usize),
    /// The instance has released all partitions, and ends.
    End(usize),
    /// The instance is killed. The broker has not closed its channels yet.
    Kill(usize),
    /// The broker notices that the instance has ended, and closes the instance's channels.
    CloseChannels(usize),
    /// The instance loses its connection to the store for good.
    CutOff(usize),
    /// The broker closes the instance's channels.
    Disconnect(usize),
    /// The present leases and members become the state that the store may go back to.
    Remember,
    /// The leases and members in the store go back to the remembered state.
    GoBack,
}

impl SharingWorld {
    /// Adds all possible steps. After a broken rule, or after too many leases, no step is possible.
    pub(super) fn steps(&self, fleet: &Fleet, steps: &mut Vec<SharingStep>) {
        if self.broken.is_some() || self.lease_count > fleet.most_leases() {
            return;
        }
        self.progress(fleet, steps);
        match &self.earlier {
            None if self.remaining.rollbacks > 0 => steps.push(SharingStep::Remember),
            Some(earlier) if *earlier != self.table => steps.push(SharingStep::GoBack),
            _ => {}
        }
        for (id, instance) in self.instances.iter().enumerate() {
            if instance.phase == InstancePhase::NotStarted {
                steps.push(SharingStep::Start(id));
            }
            if instance.phase == InstancePhase::Running {
                if self.remaining.shutdowns > 0 && !instance.is_cut_off {
                    steps.push(SharingStep::ShutDown(id));
                }
                if self.remaining.cut_offs > 0 && !instance.is_cut_off {
                    steps.push(SharingStep::CutOff(id));
                }
                if self.remaining.disconnects > 0 && self.has_channel(id) {
                    steps.push(SharingStep::Disconnect(id));
                }
            }
            if instance.is_alive() && self.remaining.kills > 0 {
                steps.push(SharingStep::Kill(id));
            }
            if instance.can_reach_store()
                && self.table.members[id]
                && self.remaining.late_heartbeats > 0
            {
                steps.push(SharingStep::RemoveMember(id));
            }
        }
    }

    /// Adds the steps that must happen sooner or later, and that change the state.
    pub(super) fn progress(&self, fleet: &Fleet, steps: &mut Vec<SharingStep>) {
        for (id, instance) in self.instances.iter().enumerate() {
            let is_member = self.table.members[id];
            if !instance.can_reach_store()
                && is_member
                && instance.phase != InstancePhase::NotStarted
            {
                steps.push(SharingStep::RemoveMember(id));
            }
            if instance.phase == InstancePhase::Ended && self.has_channel(id) {
                steps.push(SharingStep::CloseChannels(id));
            }
            if !instance.is_alive() {
                continue;
            }
            let keeps = fleet.is(SharingFault::ChannelsKept);
            if !is_member && instance.is_lease_valid && !keeps {
                steps.push(SharingStep::Suspend(id));
            }
            if instance.is_cut_off {
                continue;
            }
            let has_lost_lease = self.has_lost_lease(id) && !fleet.is(SharingFault::LostLeaseKept);
            let is_known = is_member
                && self.table.leaving[id] == (instance.phase == InstancePhase::ShuttingDown);
            if !is_known
                || !instance.is_lease_valid
                || instance.table != self.table
                || has_lost_lease
            {
                steps.push(SharingStep::Heartbeat(id));
            }
            let owners = Self::owners(fleet, &instance.table);
            for (partition, owner) in owners.into_iter().enumerate() {
                self.partition_progress(fleet, id, partition, owner == Some(id), steps);
            }
            let has_nothing =
                instance.partitions.iter().all(|state| *state == PartitionState::Unowned);
            if instance.phase == InstancePhase::ShuttingDown && has_nothing {
                steps.push(SharingStep::End(id));
            }
        }
    }

    fn partition_progress(
        &self,
        fleet: &Fleet,
        id: usize,
        partition: usize,
        is_assigned: bool,
        steps: &mut Vec<SharingStep>,
    ) {
        let instance = &self.instances[id];
        let is_running = instance.phase == InstancePhase::Running;
        let is_free = |table: &MembershipTable| {
            table.holder(fleet, partition).is_none_or(|holder| holder == id)
                || fleet.is(SharingFault::LeaseTaken)
        };
        match instance.partitions[partition] {
            // The model leaves out requests for a lease that another instance has, because such requests change
            // nothing.
            PartitionState::Unowned if is_assigned && is_running => {
                let is_member = self.table.members[id] || fleet.is(SharingFault::LeaseToNonMember);
                if is_member && is_free(&instance.table) && is_free(&self.table) {
                    steps.push(SharingStep::Lease(id, partition));
                }
            }
            PartitionState::Unowned if is_running && self.has_unknown_lease(id, partition) => {
                if !fleet.is(SharingFault::UnknownLeaseKept) {
                    steps.push(SharingStep::Release(id, partition));
                }
            }
            PartitionState::Unowned => {}
            PartitionState::Leased(_) => steps.push(SharingStep::Claim(id, partition)),
            PartitionState::Owned(epoch) | PartitionState::Draining(epoch)
                if epoch < self.fences[partition] =>
            {
                steps.push(SharingStep::Commit(id, partition));
            }
            PartitionState::Owned(_) if !is_assigned || !is_running => {
                steps.push(SharingStep::HandOver(id, partition));
            }
            PartitionState::Owned(_) => {
                let is_subscribed =
                    self.channels[partition].iter().any(|channel| usize::from(*channel) == id);
                if instance.is_lease_valid && !is_subscribed {
                    steps.push(SharingStep::Subscribe(id, partition));
                }
            }
            PartitionState::Draining(_) => steps.push(SharingStep::Finish(id, partition)),
            PartitionState::Drained(_) => steps.push(SharingStep::Release(id, partition)),
        }
    }

    fn has_lost_lease(&self, id: usize) -> bool {
        let is_lost = |(state, lease): (&PartitionState, &Lease)| {
            !matches!(state, PartitionState::Drained(_))
                && state.epoch().is_some_and(|epoch| lease.epoch < epoch)
        };
        self.instances[id].partitions.iter().zip(&self.table.leases).any(is_lost)
    }

    /// Returns whether both the store and the table that the instance has read name the instance as the holder of the
    /// partition's lease. If the instance does not have this lease, the store went back.
    fn has_unknown_lease(&self, id: usize, partition: usize) -> bool {
        let lease = self.table.leases[partition];
        lease.holder == Some(id as u8) && self.instances[id].table.leases[partition] == lease
    }

    fn has_channel(&self, id: usize) -> bool {
        self.channels.iter().flatten().any(|channel| usize::from(*channel) == id)
    }
}
