//! Which partitions are an instance's share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ordain_core::ownership::{Candidate, owners};

use ordain_config::{Loaded, Name, Stream};
use ordain_store::About;
use ordain_store::Reach;
use ordain_store::{InstanceId, Partition, Table};

/// All partitions of the streams that are configured.
pub(super) fn all(loaded: &Loaded) -> BTreeSet<Partition> {
    let of = |(name, stream): (&Name, &Stream)| {
        let (name, partitions) = (name.shared(), stream.source.partitions());
        (0..partitions).map(move |number| Partition { stream: Arc::clone(&name), number })
    };
    loaded.config.streams.iter().flat_map(of).collect()
}

/// Those that an instance is to have, as the table says. Others are to have each other partition, and
/// come to that by the same table.
pub(super) fn share(loaded: &Loaded, table: &Table, id: InstanceId) -> BTreeSet<Partition> {
    let there = table.members.iter().map(|(id, member)| (*id, About::decode(&member.about)));
    let (alone, there): (Vec<_>, Vec<_>) = there.partition(|(_, it)| it.alone);
    let there: Vec<(InstanceId, About)> = there.into_iter().filter(|(_, it)| !it.leaving).collect();
    // It keeps what it has to its end.
    let is_kept = |partition: &Partition| {
        table.holder(partition).is_some_and(|holder| alone.iter().any(|(id, _)| *id == holder))
    };
    let held = table.leases.iter().filter_map(|(partition, lease)| {
        Some(((&*partition.stream, partition.number), lease.holder?.0))
    });
    let owners = owners(&candidates(&there), &held.collect());
    let all = all(loaded).into_iter();
    let is_ours = |it: &Partition| owners.get(&(&*it.stream, it.number)) == Some(&id.0);
    all.filter(|it| is_ours(it) && !is_kept(it)).collect()
}

/// Who may have what. One that does not reach the broker may have a stream only if nobody who runs it
/// does.
fn candidates(there: &[(InstanceId, About)]) -> Vec<Candidate<'_>> {
    let reached: BTreeSet<&str> = there
        .iter()
        .filter(|(_, it)| it.broker == Reach::Reached)
        .flat_map(|(_, it)| it.streams.keys().map(String::as_str))
        .collect();
    let is_cut_off =
        |about: &About, stream: &str| about.broker == Reach::Lost && reached.contains(stream);
    let mut candidates = Vec::new();
    for (id, about) in there {
        let mut candidate = Candidate { id: id.0, streams: BTreeMap::new() };
        for (stream, partitions) in &about.streams {
            if !is_cut_off(about, stream) {
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

    fn about(streams: &[&str], broker: Reach) -> About {
        let streams = streams.iter().map(|it| ((*it).to_owned(), 2)).collect();
        About { streams, broker, ..About::default() }
    }

    fn streams_of(there: &[About]) -> Vec<Vec<String>> {
        let there: Vec<_> = (0..).map(InstanceId).zip(there.iter().cloned()).collect();
        let of = |it: Candidate<'_>| it.streams.keys().map(ToString::to_string).collect();
        candidates(&there).into_iter().map(of).collect()
    }

    #[test]
    fn who_does_not_reach_the_broker_has_nothing_that_others_can_have() {
        let (here, lost) = (Reach::Reached, Reach::Lost);
        let found = streams_of(&[about(&["a", "b"], lost), about(&["a"], here)]);
        assert_eq!(found, [vec!["b"], vec!["a"]], "nobody else runs b");
        let found = streams_of(&[about(&["a"], lost), about(&["a"], lost), about(&["f"], here)]);
        assert_eq!(found, [["a"], ["a"], ["f"]], "the broker is away for all");
        let found = streams_of(&[about(&["a"], Reach::Doubted), about(&["a"], here)]);
        assert_eq!(found, [["a"], ["a"]]);
    }
}
