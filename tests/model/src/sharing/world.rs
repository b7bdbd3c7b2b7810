//! The state of the model, and the effect of each step.

use std::collections::BTreeMap;

use ordain_core::distribution::{OwnerCandidate, owners};

use super::instance::{Instance, InstancePhase, MembershipTable, PartitionState};
use super::property::Violation;
use super::{Fleet, SharingFault, SharingStep};

const STREAM: &str = "s";

/// The state of the model at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SharingWorld {
    pub(super) table: MembershipTable,
    /// The leases and members that the store may go back to.
    pub(super) earlier: Option<MembershipTable>,
    pub(super) fences: Vec<u8>,
    /// For each partition, the instances that have subscribed to its queue, in the order of subscription. The first
    /// instance receives the events.
    pub(super) channels: Vec<Vec<u8>>,
    pub(super) instances: Vec<Instance>,
    pub(super) remaining: RemainingSteps,
    pub(super) lease_count: u8,
    pub(super) broken: Option<Violation>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct RemainingSteps {
    pub(super) late_heartbeats: u8,
    pub(super) kills: u8,
    pub(super) shutdowns: u8,
    pub(super) cut_offs: u8,
    pub(super) disconnects: u8,
    pub(super) rollbacks: u8,
}

impl SharingWorld {
    pub(super) fn new(fleet: &Fleet) -> Self {
        let instances = usize::from(fleet.instances);
        let partitions = usize::from(fleet.partitions);
        let table = MembershipTable {
            members: vec![false; instances],
            leaving: vec![false; instances],
            leases: vec![super::instance::Lease::default(); partitions],
        };
        let instance = Instance {
            partitions: vec![PartitionState::Unowned; partitions],
            ..Instance::default()
        };
        Self {
            table,
            earlier: None,
            fences: vec![0; partitions],
            channels: vec![Vec::new(); partitions],
            instances: vec![instance; instances],
            remaining: RemainingSteps {
                late_heartbeats: fleet.late_heartbeats,
                kills: fleet.kills,
                shutdowns: fleet.shutdowns,
                cut_offs: fleet.cut_offs,
                disconnects: fleet.disconnects,
                rollbacks: fleet.rollbacks,
            },
            lease_count: 0,
            broken: None,
        }
    }

    pub(super) fn owners(fleet: &Fleet, table: &MembershipTable) -> Vec<Option<usize>> {
        let streams = BTreeMap::from([(STREAM, u32::from(fleet.partitions))]);
        let active =
            (0..table.members.len()).filter(|id| table.members[*id] && !table.leaving[*id]);
        let candidates: Vec<OwnerCandidate<'_>> =
            active.map(|id| OwnerCandidate { id: id as u64, streams: streams.clone() }).collect();
        let mut held = BTreeMap::new();
        for (partition, lease) in (0..).zip(&table.leases) {
            if let Some(holder) = lease.holder {
                held.insert((STREAM, partition), u64::from(holder));
            }
        }
        let owners = owners(&candidates, &held);
        let owner = |partition| owners.get(&(STREAM, partition)).map(|id| *id as usize);
        (0..u32::from(fleet.partitions)).map(owner).collect()
    }

    pub(super) fn step(&mut self, fleet: &Fleet, step: SharingStep) {
        match step {
            SharingStep::Start(id) => {
                self.instances[id].phase = InstancePhase::Running;
                self.table.members[id] = true;
                self.read_table(fleet, id);
            }
            SharingStep::Heartbeat(id) => {
                self.table.members[id] = true;
                self.table.leaving[id] = self.instances[id].phase == InstancePhase::ShuttingDown;
                self.read_table(fleet, id);
            }
            SharingStep::Lease(id, partition) => self.lease(fleet, id, partition),
            SharingStep::Claim(id, partition) => self.claim(fleet, id, partition),
            SharingStep::Commit(id, partition) => self.end(id, partition),
            SharingStep::HandOver(id, partition) => {
                let state = &mut self.instances[id].partitions[partition];
                if let Some(epoch) = state.epoch() {
                    *state = PartitionState::Draining(epoch);
                }
            }
            SharingStep::Finish(id, partition) => {
                if fleet.is(SharingFault::ReleaseWithoutClose) {
                    self.mark_drained(id, partition);
                } else {
                    self.end(id, partition);
                }
            }
            SharingStep::Release(id, partition) => self.release(fleet, id, partition),
            SharingStep::Subscribe(id, partition) => self.channels[partition].push(id as u8),
            SharingStep::Suspend(id) => {
                self.instances[id].is_lease_valid = false;
                self.close_all(id);
            }
            SharingStep::RemoveMember(id) => {
                self.remaining.late_heartbeats -= u8::from(self.instances[id].can_reach_store());
                self.table.members[id] = false;
            }
            SharingStep::ShutDown(id) => {
                self.remaining.shutdowns -= 1;
                self.instances[id].phase = InstancePhase::ShuttingDown;
                self.table.leaving[id] = true;
            }
            SharingStep::End(id) => {
                self.instances[id].phase = InstancePhase::Ended;
                self.table.members[id] = false;
                self.close_all(id);
            }
            SharingStep::Kill(id) => {
                self.remaining.kills -= 1;
                let partitions = self.fences.len();
                let instance = &mut self.instances[id];
                *instance = Instance { phase: InstancePhase::Ended, ..Instance::default() };
                instance.partitions = vec![PartitionState::Unowned; partitions];
            }
            SharingStep::CloseChannels(id) => self.close_all(id),
            SharingStep::CutOff(id) => {
                self.remaining.cut_offs -= 1;
                self.instances[id].is_cut_off = true;
            }
            SharingStep::Disconnect(id) => {
                self.remaining.disconnects -= 1;
                self.close_all(id);
            }
            SharingStep::Remember => self.earlier = Some(self.table.clone()),
            SharingStep::GoBack => {
                self.remaining.rollbacks -= 1;
                self.table = self.earlier.take().unwrap_or_default();
            }
        }
    }

    /// Lets an instance read the present table, and extends its lease. The instance drops the partitions that it has
    /// lost, and hands over the partitions whose lease the store has lost.
    fn read_table(&mut self, fleet: &Fleet, id: usize) {
        let instance = &mut self.instances[id];
        instance.is_lease_valid = true;
        instance.table = self.table.clone();
        self.drop_lost(id);
        if !fleet.is(SharingFault::LostLeaseKept) {
            self.hand_over_lost(id);
        }
    }

    fn hand_over_lost(&mut self, id: usize) {
        let Instance { partitions, table, .. } = &mut self.instances[id];
        for (state, lease) in partitions.iter_mut().zip(&table.leases) {
            match *state {
                PartitionState::Leased(epoch) if lease.epoch < epoch => {
                    *state = PartitionState::Drained(epoch);
                }
                PartitionState::Owned(epoch) if lease.epoch < epoch => {
                    *state = PartitionState::Draining(epoch);
                }
                _ => {}
            }
        }
    }

    /// Drops the claimed partitions that the instance has lost according to the table that it has read. A partition is
    /// lost if it has a newer lease, or if the instance no longer holds the lease.
    fn drop_lost(&mut self, id: usize) {
        for partition in 0..self.fences.len() {
            let lease = self.instances[id].table.leases[partition];
            let state = self.instances[id].partitions[partition];
            let is_lost = |epoch| {
                lease.epoch > epoch || lease.epoch == epoch && lease.holder != Some(id as u8)
            };
            if state.is_claimed() && state.epoch().is_some_and(is_lost) {
                self.end(id, partition);
            }
        }
    }

    fn lease(&mut self, fleet: &Fleet, id: usize, partition: usize) {
        if !self.table.members[id] && !fleet.is(SharingFault::LeaseToNonMember) {
            return;
        }
        let held = self.table.holder(fleet, partition).filter(|holder| *holder != id);
        if held.is_some() && !fleet.is(SharingFault::LeaseTaken) {
            return;
        }
        if held.is_some() {
            self.broken.get_or_insert(Violation::TakenFromMember);
        }
        let lease = &mut self.table.leases[partition];
        lease.epoch = lease.epoch.max(self.fences[partition]) + 1;
        lease.holder = Some(id as u8);
        self.lease_count = self.lease_count.saturating_add(1);
        self.instances[id].partitions[partition] = PartitionState::Leased(lease.epoch);
    }

    fn claim(&mut self, fleet: &Fleet, id: usize, partition: usize) {
        let Some(mut epoch) = self.instances[id].partitions[partition].epoch() else { return };
        let fence = &mut self.fences[partition];
        if fleet.is(SharingFault::ClaimWithoutLease) {
            epoch = *fence + 1;
        }
        let is_taken = epoch == *fence && !fleet.is(SharingFault::EpochClaimedTwice);
        if epoch < *fence || is_taken {
            return self.mark_drained(id, partition);
        }
        let holder = self.table.holder(fleet, partition).filter(|holder| *holder != id);
        let is_claimed = |holder: usize| {
            let state = self.instances[holder].partitions[partition];
            state.is_claimed() && state.epoch() == Some(*fence)
        };
        // After the store went back, an instance that uses a lost lease breaks no rule.
        if holder.is_some_and(is_claimed) && self.remaining.rollbacks == fleet.rollbacks {
            self.broken.get_or_insert(Violation::FencedWithoutLease);
        }
        *fence = epoch;
        self.instances[id].partitions[partition] = PartitionState::Owned(epoch);
        self.drop_lost(id);
    }

    fn release(&mut self, fleet: &Fleet, id: usize, partition: usize) {
        let instance = &self.instances[id];
        let epoch = instance.partitions[partition].epoch();
        let epoch = epoch.unwrap_or(instance.table.leases[partition].epoch);
        let lease = &mut self.table.leases[partition];
        let is_ours = lease.holder == Some(id as u8) && lease.epoch == epoch;
        if is_ours || fleet.is(SharingFault::ReleaseWithoutEpoch) {
            if !is_ours && lease.holder.is_some() {
                self.broken.get_or_insert(Violation::ForeignLeaseReleased);
            }
            lease.holder = None;
        }
        self.instances[id].partitions[partition] = PartitionState::Unowned;
    }

    /// Ends an instance's use of a partition, and closes the instance's channel to the queue.
    fn end(&mut self, id: usize, partition: usize) {
        self.mark_drained(id, partition);
        self.channels[partition].retain(|channel| usize::from(*channel) != id);
    }

    fn mark_drained(&mut self, id: usize, partition: usize) {
        let state = &mut self.instances[id].partitions[partition];
        if let Some(epoch) = state.epoch() {
            *state = PartitionState::Drained(epoch);
        }
    }

    fn close_all(&mut self, id: usize) {
        for channels in &mut self.channels {
            channels.retain(|channel| usize::from(*channel) != id);
        }
    }
}
