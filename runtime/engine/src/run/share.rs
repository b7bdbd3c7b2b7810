//! Computes the distribution of the partitions over the instances.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ordain_core::distribution::{OwnerCandidate, owners};

use ordain_config::{LoadedConfig, ResourceName, StreamConfig};
use ordain_store::BrokerHealth;
use ordain_store::InstanceInfo;
use ordain_store::{InstanceId, MembershipTable, Partition};

/// Returns all partitions of the configured streams.
pub(super) fn all_partitions(loaded: &LoadedConfig) -> BTreeSet<Partition> {
    let partitions_of = |(name, stream): (&ResourceName, &StreamConfig)| {
        let name = name.shared();
        let partitions = stream.source.partitions();
        (0..partitions).map(move |number| Partition { stream: Arc::clone(&name), number })
    };
    loaded.config.streams.iter().flat_map(partitions_of).collect()
}

/// Returns the instance that should own each partition, according to the membership table. All instances that have read
/// the same table compute the same distribution. The result omits the partitions that no instance may claim now.
pub(super) fn distribution(
    loaded: &LoadedConfig,
    table: &MembershipTable,
) -> BTreeMap<Partition, InstanceId> {
    let members =
        table.members.iter().map(|(id, member)| (*id, InstanceInfo::decode(&member.info)));
    let (alone, members): (Vec<_>, Vec<_>) = members.partition(|(_, info)| info.alone);
    let members: Vec<(InstanceId, InstanceInfo)> =
        members.into_iter().filter(|(_, info)| !info.leaving).collect();
    // An instance that runs alone (with `--once`) keeps its partitions until it ends, so these partitions belong to no
    // share.
    let is_kept = |partition: &Partition| {
        table.holder(partition).is_some_and(|holder| alone.iter().any(|(id, _)| *id == holder))
    };
    let held = table.leases.iter().filter_map(|(partition, lease)| {
        Some(((&*partition.stream, partition.number), lease.holder?.0))
    });
    let owners = owners(&candidates(&members), &held.collect());
    let free = all_partitions(loaded).into_iter().filter(|partition| !is_kept(partition));
    let with_owner = free.filter_map(|partition| {
        let owner = *owners.get(&(&*partition.stream, partition.number))?;
        Some((partition, InstanceId(owner)))
    });
    with_owner.collect()
}

/// Returns each instance with the streams whose partitions the instance is allowed to own. While at least one instance
/// with a stream reaches the broker (`Up`), an instance that has lost the broker (`Down`) is no candidate for this
/// stream.
fn candidates(members: &[(InstanceId, InstanceInfo)]) -> Vec<OwnerCandidate<'_>> {
    let streams_with_broker: BTreeSet<&str> = members
        .iter()
        .filter(|(_, info)| info.broker == BrokerHealth::Up)
        .flat_map(|(_, info)| info.streams.keys().map(String::as_str))
        .collect();
    let is_cut_off = |info: &InstanceInfo, stream: &str| {
        info.broker == BrokerHealth::Down && streams_with_broker.contains(stream)
    };
    let mut candidates = Vec::new();
    for (id, info) in members {
        let mut candidate = OwnerCandidate { id: id.0, streams: BTreeMap::new() };
        for (stream, partitions) in &info.streams {
            if !is_cut_off(info, stream) {
                candidate.streams.insert(stream, *partitions);
            }
        }
        candidates.push(candidate);
    }
    candidates
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(streams: &[&str], broker: BrokerHealth) -> InstanceInfo {
        let streams = streams.iter().map(|stream| ((*stream).to_owned(), 2)).collect();
        InstanceInfo { streams, broker, ..InstanceInfo::default() }
    }

    fn streams_of(there: &[InstanceInfo]) -> Vec<Vec<String>> {
        let there: Vec<_> = (0..).map(InstanceId).zip(there.iter().cloned()).collect();
        let of = |candidate: OwnerCandidate<'_>| {
            candidate.streams.keys().map(ToString::to_string).collect()
        };
        candidates(&there).into_iter().map(of).collect()
    }

    #[test]
    fn instance_without_the_broker_owns_nothing_that_others_can_own() {
        let here = BrokerHealth::Up;
        let lost = BrokerHealth::Down;
        let found = streams_of(&[about(&["a", "b"], lost), about(&["a"], here)]);
        assert_eq!(found, [vec!["b"], vec!["a"]], "no other instance runs b");
        let found = streams_of(&[about(&["a"], lost), about(&["a"], lost), about(&["f"], here)]);
        assert_eq!(found, [["a"], ["a"], ["f"]], "no instance with a reaches the broker");
        let found = streams_of(&[about(&["a"], BrokerHealth::Suspect), about(&["a"], here)]);
        assert_eq!(found, [["a"], ["a"]]);
    }
}
