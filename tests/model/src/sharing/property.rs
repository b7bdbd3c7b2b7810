//! The properties that must always hold, and the properties that a run must show at least once.

use stateright::Property;

use super::Fleet;
use super::instance::{Has, Life};
use super::world::Sharing;

/// A broken rule, found in the step that breaks it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Broken {
    TakenFromOneHeardOf,
    FencedWithoutLease,
    AnothersReleased,
}

pub(super) fn all() -> Vec<Property<Fleet>> {
    macro_rules! never {
        ($name:literal, $broken:ident) => {
            Property::always($name, |_: &Fleet, world: &Sharing| {
                world.broken != Some(Broken::$broken)
            })
        };
    }
    vec![
        never!("no member loses a partition", TakenFromOneHeardOf),
        never!("only the holder of the newest lease fences others", FencedWithoutLease),
        never!("no instance releases the lease of another", AnothersReleased),
        Property::always("only one instance at a time may commit", |_, world: &Sharing| {
            (0..world.fences.len()).all(|partition| world.committers(partition) <= 1)
        }),
        Property::always("a fleet at rest shares all partitions", |fleet, world: &Sharing| {
            world.is_moving(fleet) || world.is_shared()
        }),
        Property::always("the fleet comes to rest", |fleet: &Fleet, world: &Sharing| {
            world.given <= fleet.most_leases()
        }),
        Property::sometimes("all instances share all partitions", |_, world: &Sharing| {
            world.instances.iter().all(|instance| instance.life == Life::Running)
                && world.is_shared()
        }),
        Property::sometimes(
            "two instances believe that they have a partition",
            |_, world: &Sharing| {
                let driven = |partition: usize| {
                    world
                        .instances
                        .iter()
                        .filter(|instance| instance.has[partition].is_driven())
                        .count()
                };
                (0..world.fences.len()).any(|partition| driven(partition) > 1)
            },
        ),
        Property::sometimes("an instance waits behind another's channel", |_, world: &Sharing| {
            world.channels.iter().any(|channels| channels.len() > 1)
        }),
    ]
}

impl Sharing {
    /// Returns the number of instances whose commits for a partition the store would apply.
    fn committers(&self, partition: usize) -> usize {
        let fence = self.fences[partition];
        let may = |has: &Has| has.is_driven() && has.epoch() == Some(fence);
        self.instances.iter().filter(|instance| may(&instance.has[partition])).count()
    }

    fn is_moving(&self, fleet: &Fleet) -> bool {
        let mut moves = Vec::new();
        self.progress(fleet, &mut moves);
        self.broken.is_some() || !moves.is_empty()
    }

    /// Returns whether the running instances share all partitions evenly, and each instance receives the events of its
    /// partitions.
    fn is_shared(&self) -> bool {
        let there: Vec<usize> = (0..self.instances.len())
            .filter(|id| self.instances[*id].life == Life::Running && !self.instances[*id].is_cut)
            .collect();
        if there.is_empty() {
            return true;
        }
        let has = |id: usize, partition: usize| {
            let lease = self.table.leases[partition];
            self.instances[id].has[partition] == Has::Driven(lease.epoch)
                && lease.holder == Some(id as u8)
                && self.fences[partition] == lease.epoch
                && self.channels[partition] == [id as u8]
        };
        let partitions = self.fences.len();
        let owned = |id: &usize| (0..partitions).filter(|partition| has(*id, *partition)).count();
        let shares: Vec<usize> = there.iter().map(owned).collect();
        let least = partitions / there.len();
        let most = partitions.div_ceil(there.len());
        shares.iter().sum::<usize>() == partitions
            && shares.iter().all(|share| (least..=most).contains(share))
    }
}
