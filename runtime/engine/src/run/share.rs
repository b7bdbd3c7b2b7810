//! Computes the distribution of the partitions over the instances.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ordain_core::distribution::{OwnerCandidate, owners};

use ordain_config::{LoadedConfig, ResourceName, StreamConfig};
use ordain_store::BrokerHealth;
use ordain_store::InstanceInfo;
use ordain_store::{InstanceId, MembershipTable, Partition};

pub(super) fn all_partitions(loaded: &LoadedConfig) -> BTreeSet<Partition> {
    let partitions_of = |(name, stream): (&ResourceName, &StreamConfig)| {
        let name = name.shared();
        let partitions = stream.source.partitions();
        (0..partitions).map(move |number| Partition { stream: Arc::clone(&name), number })
    };
    loaded.config.streams.iter().flat_map(partitions_of).collect()
}

/// Returns the instance that should own each partition. All instances that have read the same table compute the same
/// distribution. Omits the partitions that no instance may claim now.
pub(super) fn distribution(
    loaded: &LoadedConfig,
    table: &MembershipTable,
) -> BTreeMap<Partition, InstanceId> {
    let members =
        table.members.iter().map(|(id, member)| (*id, InstanceInfo::decode(&member.info)));
    let (alone, members): (Vec<_>, Vec<_>) = members.partition(|(_, info)| info.alone);
    let members: Vec<(InstanceId, InstanceInfo)> =
        members.into_iter().filter(|(_, info)| !info.leaving).collect();
    // An instance that runs alone (with `--once`) keeps its partitions until it ends, so the distribution omits these
    // partitions.
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

/// Returns each instance with the streams whose partitions the instance is allowed to own. In two cases, an instance is
/// not a candidate for a stream:
/// - The broker refuses the stream to the instance, and another instance runs the stream without such a refusal.
/// - The instance has lost the broker (`Down`), and another instance runs the stream without such a refusal and reaches
///   the broker (`Up`).
///
/// At least one of the instances that run a stream is therefore always a candidate for the stream.
fn candidates(members: &[(InstanceId, InstanceInfo)]) -> Vec<OwnerCandidate<'_>> {
    let accepted_streams: BTreeSet<&str> =
        members.iter().flat_map(|(_, info)| info.accepted_streams()).collect();
    let streams_with_broker: BTreeSet<&str> = members
        .iter()
        .filter(|(_, info)| info.broker == BrokerHealth::Up)
        .flat_map(|(_, info)| info.accepted_streams())
        .collect();
    let is_excluded = |info: &InstanceInfo, stream: &str| {
        let is_refused = info.refused_streams.contains(stream) && accepted_streams.contains(stream);
        let is_cut_off = info.broker == BrokerHealth::Down && streams_with_broker.contains(stream);
        is_refused || is_cut_off
    };
    let mut candidates = Vec::new();
    for (id, info) in members {
        let mut candidate = OwnerCandidate { id: id.0, streams: BTreeMap::new() };
        for (stream, partitions) in &info.streams {
            if !is_excluded(info, stream) {
                candidate.streams.insert(stream, *partitions);
            }
        }
        candidates.push(candidate);
    }
    candidates
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ordain_store::{Lease, MemberRecord};

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

    /// Returns the information of an instance to which the broker refuses the stream `a`.
    fn refused(streams: &[&str], broker: BrokerHealth) -> InstanceInfo {
        let refused_streams = BTreeSet::from(["a".to_owned()]);
        InstanceInfo { refused_streams, ..about(streams, broker) }
    }

    #[test]
    fn instance_with_a_refused_stream_owns_nothing_that_others_can_consume() {
        let here = BrokerHealth::Up;
        let found = streams_of(&[refused(&["a", "b"], here), about(&["a", "b"], here)]);
        assert_eq!(found, [vec!["b"], vec!["a", "b"]], "only a is refused");
        let found = streams_of(&[refused(&["a"], here), about(&["b"], here)]);
        assert_eq!(found, [["a"], ["b"]], "no other instance runs a");
        let found = streams_of(&[refused(&["a"], here), refused(&["a"], here)]);
        assert_eq!(found, [["a"], ["a"]], "the broker accepts a for no instance");
        for doubted in [BrokerHealth::Suspect, BrokerHealth::Down] {
            let found = streams_of(&[refused(&["a"], here), about(&["a"], doubted)]);
            assert_eq!(found, [vec![], vec!["a"]], "only one instance can consume a");
        }
        let lost = BrokerHealth::Down;
        let found = streams_of(&[about(&["a"], lost), refused(&["a"], here), about(&["a"], here)]);
        assert_eq!(found, [vec![], vec![], vec!["a"]]);
        let found = streams_of(&[refused(&["a"], lost), refused(&["a"], here)]);
        assert_eq!(found, [["a"], ["a"]], "neither instance can consume a");
    }

    /// Returns the numbers of the partitions of the stream `a` that the instance `id` should own.
    fn share_of(id: u64, members: &[(u64, InstanceInfo)], held: &[(u32, u64)]) -> Vec<u32> {
        let text = "[broker]\nurl = \"amqp://localhost\"\n[streams.a]\nhandler = \"h\"\n\
                    source = { kind = \"amqp\", exchange = \"a\", queue = \"a\", partitions = 2 }\n";
        let loaded = LoadedConfig::parse(Path::new("ordain.toml"), text, &|_| None);
        let mut table = MembershipTable::default();
        for (id, info) in members {
            let member = MemberRecord { info: info.encode(), report: None, valid_for: None };
            table.members.insert(InstanceId(*id), member);
        }
        for (number, holder) in held {
            let partition = Partition { stream: "a".into(), number: *number };
            let lease = Lease { epoch: 1, holder: Some(InstanceId(*holder)), since: 0 };
            table.leases.insert(partition, lease);
        }
        let owners = distribution(&loaded.expect("a configuration"), &table);
        let own = owners.into_iter().filter(|(_, owner)| *owner == InstanceId(id));
        own.map(|(partition, _)| partition.number).collect()
    }

    #[test]
    fn refused_instance_owns_partitions_again_when_it_is_accepted_or_alone() {
        let here = BrokerHealth::Up;
        let old = refused(&["a"], here);
        let new = about(&["a"], here);
        let held_by_old = [(0, 1), (1, 1)];
        assert_eq!(share_of(1, &[(1, old.clone())], &held_by_old), [0, 1]);
        let both = [(1, old.clone()), (2, new.clone())];
        assert_eq!(share_of(2, &both, &held_by_old), [0, 1], "the accepted instance takes all");
        let accepted = [(1, new.clone()), (2, new.clone())];
        let held_by_new = [(0, 2), (1, 2)];
        let shares = [1, 2].map(|id| share_of(id, &accepted, &held_by_new).len());
        assert_eq!(shares, [1, 1]);
        let leaving = InstanceInfo { leaving: true, ..new.clone() };
        let left = share_of(1, &[(1, old.clone()), (2, leaving)], &held_by_new);
        assert_eq!(left, [0, 1], "no other instance stays");
        // An instance that runs alone keeps the partitions that it holds, and gets no share.
        let alone = InstanceInfo { alone: true, ..new };
        assert_eq!(share_of(1, &[(1, old), (2, alone)], &[(0, 2), (1, 1)]), [1]);
    }
}
