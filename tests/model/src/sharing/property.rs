//! The properties that must always hold, and the properties that at least one run must show.

use stateright::Property;

use super::Fleet;
use super::instance::{InstancePhase, PartitionState};
use super::world::SharingWorld;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Violation {
    TakenFromMember,
    FencedWithoutLease,
    ForeignLeaseReleased,
}

pub(super) fn all() -> Vec<Property<Fleet>> {
    macro_rules! never {
        ($name:literal, $broken:ident) => {
            Property::always($name, |_: &Fleet, world: &SharingWorld| {
                world.broken != Some(Violation::$broken)
            })
        };
    }
    vec![
        never!("no member loses a partition", TakenFromMember),
        never!("only the holder of the newest lease fences other instances", FencedWithoutLease),
        never!("no instance releases the lease of another instance", ForeignLeaseReleased),
        Property::always("only one instance at a time may commit", |_, world: &SharingWorld| {
            (0..world.fences.len()).all(|partition| world.committers(partition) <= 1)
        }),
        Property::always("a fleet at rest shares all partitions", |fleet, world: &SharingWorld| {
            world.is_moving(fleet) || world.is_shared()
        }),
        Property::always("the fleet comes to rest", |fleet: &Fleet, world: &SharingWorld| {
            world.lease_count <= fleet.most_leases()
        }),
        Property::sometimes("all instances share all partitions", |_, world: &SharingWorld| {
            world.instances.iter().all(|instance| instance.phase == InstancePhase::Running)
                && world.is_shared()
        }),
        Property::sometimes(
            "two instances believe that they have a partition",
            |_, world: &SharingWorld| {
                let driven = |partition: usize| {
                    world
                        .instances
                        .iter()
                        .filter(|instance| instance.partitions[partition].is_claimed())
                        .count()
                };
                (0..world.fences.len()).any(|partition| driven(partition) > 1)
            },
        ),
        Property::sometimes(
            "an instance waits until another instance's channel is closed",
            |_, world: &SharingWorld| world.channels.iter().any(|channels| channels.len() > 1),
        ),
    ]
}

impl SharingWorld {
    /// Returns the number of instances whose commits for a partition the store would apply.
    fn committers(&self, partition: usize) -> usize {
        let fence = self.fences[partition];
        let may = |state: &PartitionState| state.is_claimed() && state.epoch() == Some(fence);
        self.instances.iter().filter(|instance| may(&instance.partitions[partition])).count()
    }

    /// Returns whether a step of [`SharingWorld::progress`] is possible, or a rule is broken.
    fn is_moving(&self, fleet: &Fleet) -> bool {
        let mut steps = Vec::new();
        self.progress(fleet, &mut steps);
        self.broken.is_some() || !steps.is_empty()
    }

    /// Returns whether the running instances that reach the store share all partitions evenly, and each of them
    /// receives the events of its partitions. Returns true if no such instance exists.
    fn is_shared(&self) -> bool {
        let running: Vec<usize> = (0..self.instances.len())
            .filter(|id| {
                self.instances[*id].phase == InstancePhase::Running
                    && !self.instances[*id].is_cut_off
            })
            .collect();
        if running.is_empty() {
            return true;
        }
        let owns = |id: usize, partition: usize| {
            let lease = self.table.leases[partition];
            self.instances[id].partitions[partition] == PartitionState::Owned(lease.epoch)
                && lease.holder == Some(id as u8)
                && self.fences[partition] == lease.epoch
                && self.channels[partition] == [id as u8]
        };
        let partitions = self.fences.len();
        let owned = |id: &usize| (0..partitions).filter(|partition| owns(*id, *partition)).count();
        let shares: Vec<usize> = running.iter().map(owned).collect();
        let least = partitions / running.len();
        let most = partitions.div_ceil(running.len());
        shares.iter().sum::<usize>() == partitions
            && shares.iter().all(|share| (least..=most).contains(share))
    }
}
