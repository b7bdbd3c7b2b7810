//! The state of the model, and the effect of each step.

use std::collections::BTreeMap;

use ordain_core::distribution::{OwnerCandidate, owners};

use super::instance::{Has, Instance, Life, Table};
use super::property::Broken;
use super::{Fleet, Move, SharingFault};

/// The name of the stream.
const STREAM: &str = "s";

/// The state of the model at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Sharing {
    pub(super) table: Table,
    /// The leases and members that the store may go back to.
    pub(super) earlier: Option<Table>,
    /// The epoch in the fence of each partition.
    pub(super) fences: Vec<u8>,
    /// For each partition, the instances that have subscribed to its queue, in the order of subscription. The first
    /// instance receives the events.
    pub(super) channels: Vec<Vec<u8>>,
    pub(super) instances: Vec<Instance>,
    pub(super) left: Left,
    pub(super) given: u8,
    pub(super) broken: Option<Broken>,
}

/// The numbers of rare steps that may still happen.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Left {
    pub(super) silences: u8,
    pub(super) kills: u8,
    pub(super) leaves: u8,
    pub(super) cuts: u8,
    pub(super) disconnects: u8,
    pub(super) rewinds: u8,
}

impl Sharing {
    pub(super) fn new(fleet: &Fleet) -> Self {
        let instances = usize::from(fleet.instances);
        let partitions = usize::from(fleet.partitions);
        let table = Table {
            heard: vec![false; instances],
            leaving: vec![false; instances],
            leases: vec![super::instance::Lease::default(); partitions],
        };
        let instance = Instance { has: vec![Has::Nothing; partitions], ..Instance::default() };
        Self {
            table,
            earlier: None,
            fences: vec![0; partitions],
            channels: vec![Vec::new(); partitions],
            instances: vec![instance; instances],
            left: Left {
                silences: fleet.silences,
                kills: fleet.kills,
                leaves: fleet.leaves,
                cuts: fleet.cuts,
                disconnects: fleet.disconnects,
                rewinds: fleet.rewinds,
            },
            given: 0,
            broken: None,
        }
    }

    /// Returns the owner that a table assigns to each partition.
    pub(super) fn owners(fleet: &Fleet, table: &Table) -> Vec<Option<usize>> {
        let streams = BTreeMap::from([(STREAM, u32::from(fleet.partitions))]);
        let there = (0..table.heard.len()).filter(|id| table.heard[*id] && !table.leaving[*id]);
        let candidates: Vec<OwnerCandidate<'_>> =
            there.map(|id| OwnerCandidate { id: id as u64, streams: streams.clone() }).collect();
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

    pub(super) fn step(&mut self, fleet: &Fleet, action: Move) {
        match action {
            Move::Start(id) => {
                self.instances[id].life = Life::Running;
                self.table.heard[id] = true;
                self.see(fleet, id);
            }
            Move::Beat(id) => {
                self.table.heard[id] = true;
                self.table.leaving[id] = self.instances[id].life == Life::Leaving;
                self.see(fleet, id);
            }
            Move::Lease(id, partition) => self.lease(fleet, id, partition),
            Move::Claim(id, partition) => self.claim(fleet, id, partition),
            Move::Commit(id, partition) => self.end(id, partition),
            Move::HandOver(id, partition) => {
                let has = &mut self.instances[id].has[partition];
                if let Some(epoch) = has.epoch() {
                    *has = Has::Leaving(epoch);
                }
            }
            Move::Finish(id, partition) => {
                if fleet.is(SharingFault::ReleaseWithoutClose) {
                    self.over(id, partition);
                } else {
                    self.end(id, partition);
                }
            }
            Move::Release(id, partition) => self.release(fleet, id, partition),
            Move::Subscribe(id, partition) => self.channels[partition].push(id as u8),
            Move::Suspend(id) => {
                self.instances[id].is_on = false;
                self.close_all(id);
            }
            Move::Forget(id) => {
                self.left.silences -= u8::from(self.instances[id].can_ask());
                self.table.heard[id] = false;
            }
            Move::Leave(id) => {
                self.left.leaves -= 1;
                self.instances[id].life = Life::Leaving;
                self.table.leaving[id] = true;
            }
            Move::End(id) => {
                self.instances[id].life = Life::Gone;
                self.table.heard[id] = false;
                self.close_all(id);
            }
            Move::Kill(id) => {
                self.left.kills -= 1;
                let partitions = self.fences.len();
                let instance = &mut self.instances[id];
                *instance = Instance { life: Life::Gone, ..Instance::default() };
                instance.has = vec![Has::Nothing; partitions];
            }
            Move::Notice(id) => self.close_all(id),
            Move::CutOff(id) => {
                self.left.cuts -= 1;
                self.instances[id].is_cut = true;
            }
            Move::Disconnect(id) => {
                self.left.disconnects -= 1;
                self.close_all(id);
            }
            Move::Keep => self.earlier = Some(self.table.clone()),
            Move::GoBack => {
                self.left.rewinds -= 1;
                self.table = self.earlier.take().unwrap_or_default();
            }
        }
    }

    /// Lets an instance read the present table. The instance drops or hands over the partitions that it has lost.
    fn see(&mut self, fleet: &Fleet, id: usize) {
        let instance = &mut self.instances[id];
        instance.is_on = true;
        instance.table = self.table.clone();
        self.drop_lost(id);
        if !fleet.is(SharingFault::LostLeaseKept) {
            self.hand_over_lost(id);
        }
    }

    /// Hands over the partitions whose lease the store has lost.
    fn hand_over_lost(&mut self, id: usize) {
        let Instance { has, table, .. } = &mut self.instances[id];
        for (has, lease) in has.iter_mut().zip(&table.leases) {
            match *has {
                Has::Leased(epoch) if lease.epoch < epoch => *has = Has::Over(epoch),
                Has::Driven(epoch) if lease.epoch < epoch => *has = Has::Leaving(epoch),
                _ => {}
            }
        }
    }

    /// Drops the partitions whose lease, in the table that this instance has read, belongs to another instance or is
    /// newer.
    fn drop_lost(&mut self, id: usize) {
        for partition in 0..self.fences.len() {
            let lease = self.instances[id].table.leases[partition];
            let has = self.instances[id].has[partition];
            let is_lost = |epoch| {
                lease.epoch > epoch || lease.epoch == epoch && lease.holder != Some(id as u8)
            };
            if has.is_driven() && has.epoch().is_some_and(is_lost) {
                self.end(id, partition);
            }
        }
    }

    fn lease(&mut self, fleet: &Fleet, id: usize, partition: usize) {
        if !self.table.heard[id] && !fleet.is(SharingFault::LeaseToSilent) {
            return;
        }
        let held = self.table.holder(fleet, partition).filter(|holder| *holder != id);
        if held.is_some() && !fleet.is(SharingFault::LeaseTaken) {
            return;
        }
        if held.is_some() {
            self.broken.get_or_insert(Broken::TakenFromOneHeardOf);
        }
        let lease = &mut self.table.leases[partition];
        lease.epoch = lease.epoch.max(self.fences[partition]) + 1;
        lease.holder = Some(id as u8);
        self.given = self.given.saturating_add(1);
        self.instances[id].has[partition] = Has::Leased(lease.epoch);
    }

    fn claim(&mut self, fleet: &Fleet, id: usize, partition: usize) {
        let Some(mut epoch) = self.instances[id].has[partition].epoch() else { return };
        let fence = &mut self.fences[partition];
        if fleet.is(SharingFault::ClaimWithoutLease) {
            epoch = *fence + 1;
        }
        if epoch <= *fence {
            return self.over(id, partition);
        }
        let holder = self.table.holder(fleet, partition).filter(|holder| *holder != id);
        let is_driven = |holder: usize| {
            let has = self.instances[holder].has[partition];
            has.is_driven() && has.epoch() == Some(*fence)
        };
        // After the store went back, an instance may use a lease that the store has lost, without breaking a rule.
        if holder.is_some_and(is_driven) && self.left.rewinds == fleet.rewinds {
            self.broken.get_or_insert(Broken::FencedWithoutLease);
        }
        *fence = epoch;
        self.instances[id].has[partition] = Has::Driven(epoch);
        self.drop_lost(id);
    }

    fn release(&mut self, fleet: &Fleet, id: usize, partition: usize) {
        let instance = &self.instances[id];
        let epoch = instance.has[partition].epoch();
        let epoch = epoch.unwrap_or(instance.table.leases[partition].epoch);
        let lease = &mut self.table.leases[partition];
        let is_ours = lease.holder == Some(id as u8) && lease.epoch == epoch;
        if is_ours || fleet.is(SharingFault::ReleaseWithoutEpoch) {
            if !is_ours && lease.holder.is_some() {
                self.broken.get_or_insert(Broken::AnothersReleased);
            }
            lease.holder = None;
        }
        self.instances[id].has[partition] = Has::Nothing;
    }

    /// Ends an instance's use of a partition.
    fn end(&mut self, id: usize, partition: usize) {
        self.over(id, partition);
        self.channels[partition].retain(|channel| usize::from(*channel) != id);
    }

    fn over(&mut self, id: usize, partition: usize) {
        let has = &mut self.instances[id].has[partition];
        if let Some(epoch) = has.epoch() {
            *has = Has::Over(epoch);
        }
    }

    fn close_all(&mut self, id: usize) {
        for channels in &mut self.channels {
            channels.retain(|channel| usize::from(*channel) != id);
        }
    }
}
