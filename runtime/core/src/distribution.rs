//! The assignment of partitions to instances. All instances compute the assignment from the same membership table, and
//! get the same result.
//!
//! Each instance gets a share of each stream that it runs: a part of the stream's partitions. Shares are even: if two
//! instances run the same stream, the sizes of their shares of this stream differ by at most one. An owner keeps a
//! partition as long as the owner's share has room for the partition, so that few partitions move. A free partition
//! goes to an instance whose share has room. If several shares have room, the partition goes to the instance that owns
//! the fewest partitions, counted over all streams. If several instances own equally few partitions, rendezvous hashing
//! chooses one of them (Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998). Rendezvous
//! hashing alone would be uneven: with an average of ten partitions per instance, one of the instances would have about
//! twenty.
//!
//! The totals over all streams may be uneven, although the shares of each stream are even. The final step therefore
//! moves partitions to instances with smaller totals. A partition moves only if two conditions hold: the totals of the
//! two instances differ by two or more, and the shares of the partition's stream stay even after the move.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A partition: the name of its stream, and the number of the partition within the stream.
pub type PartitionId<'a> = (&'a str, u32);

/// An instance that may own partitions.
#[derive(Debug, Clone, Default)]
pub struct OwnerCandidate<'a> {
    /// The id of the instance.
    pub id: u64,
    /// The streams whose partitions the instance may own, each with its number of partitions.
    pub streams: BTreeMap<&'a str, u32>,
}

/// Returns the owner of each partition of all streams that any candidate runs. `held` contains the current owners. A
/// partition counts as free if its owner is not a candidate, or no longer runs the stream. `candidates` must not
/// contain an instance twice.
pub fn owners<'a>(
    candidates: &[OwnerCandidate<'a>],
    held: &BTreeMap<PartitionId<'a>, u64>,
) -> BTreeMap<PartitionId<'a>, u64> {
    let mut shares = PartitionShares::default();
    for candidate in candidates {
        shares.owned.insert(candidate.id, BTreeSet::new());
        for (stream, partitions) in &candidate.streams {
            let (most, of) = shares.streams.entry(stream).or_default();
            *most = (*most).max(*partitions);
            of.push(candidate.id);
        }
    }
    for (stream, (partitions, of)) in shares.streams.clone() {
        shares.distribute(stream, partitions, &of, held);
    }
    while let Some((part, from, to)) = shares.next_move() {
        shares.owned.entry(from).or_default().remove(&part);
        shares.assign_to(part, to);
    }
    let of = |(id, parts): (u64, BTreeSet<PartitionId<'a>>)| {
        parts.into_iter().map(move |part| (part, id))
    };
    shares.owned.into_iter().flat_map(of).collect()
}

#[derive(Default)]
struct PartitionShares<'a> {
    /// The number of partitions of each stream, and the instances that run the stream.
    streams: BTreeMap<&'a str, (u32, Vec<u64>)>,
    owned: BTreeMap<u64, BTreeSet<PartitionId<'a>>>,
}

impl<'a> PartitionShares<'a> {
    fn distribute(
        &mut self,
        stream: &'a str,
        partitions: u32,
        of: &[u64],
        held: &BTreeMap<PartitionId<'a>, u64>,
    ) {
        let mut has: BTreeMap<u64, Vec<u32>> = of.iter().map(|id| (*id, Vec::new())).collect();
        let mut free = Vec::new();
        for number in 0..partitions {
            let holder = held.get(&(stream, number)).and_then(|id| has.get_mut(id));
            holder.unwrap_or(&mut free).push(number);
        }
        // If the division leaves a remainder, some instances get one partition more. These are the instances that now
        // own the most partitions of the stream.
        let even = partitions as usize / of.len();
        let more = partitions as usize % of.len();
        let mut by_number: Vec<u64> = of.to_vec();
        by_number.sort_by_cached_key(|id| {
            (Reverse(has[id].len()), self.load(*id), Reverse(weight((stream, u32::MAX), *id)))
        });
        let mut room = BTreeMap::new();
        for (at, id) in by_number.into_iter().enumerate() {
            let share = even + usize::from(at < more);
            let mut has = has.remove(&id).unwrap_or_default();
            has.sort_by_cached_key(|number| Reverse(weight((stream, *number), id)));
            free.extend(has.drain(share.min(has.len())..));
            room.insert(id, share - has.len());
            for number in has {
                self.assign_to((stream, number), id);
            }
        }
        free.sort_unstable();
        for number in free {
            let part = (stream, number);
            let with_room = room.iter_mut().filter(|(_, room)| **room > 0);
            let best =
                with_room.min_by_key(|(id, _)| (self.load(**id), Reverse(weight(part, **id))));
            // The room of all instances together equals the number of free partitions, so an instance with room always
            // exists.
            let Some((id, room)) = best else { break };
            *room -= 1;
            self.assign_to(part, *id);
        }
    }

    fn assign_to(&mut self, part: PartitionId<'a>, id: u64) {
        self.owned.entry(id).or_default().insert(part);
    }

    fn load(&self, id: u64) -> usize {
        self.owned.get(&id).map_or(0, BTreeSet::len)
    }

    fn load_of(&self, stream: &'a str, id: u64) -> usize {
        let of_stream = (stream, 0)..=(stream, u32::MAX);
        self.owned.get(&id).map_or(0, |has| has.range(of_stream).count())
    }

    /// Returns a partition to move, its present owner and its future owner; `None` if nothing needs to move. Counted
    /// over all streams, the present owner has at least two partitions more than the future owner. The move keeps the
    /// shares of the stream even.
    fn next_move(&self) -> Option<(PartitionId<'a>, u64, u64)> {
        let mut by_load: Vec<u64> = self.owned.keys().copied().collect();
        by_load.sort_by_key(|id| Reverse(self.load(*id)));
        for from in by_load {
            for part in &self.owned[&from] {
                let of = &self.streams[part.0].1;
                let less = |id: &&u64| {
                    self.load(**id) + 1 < self.load(from)
                        && self.load_of(part.0, **id) < self.load_of(part.0, from)
                };
                let to = of.iter().filter(less);
                let to = to.min_by_key(|id| (self.load(**id), Reverse(weight(*part, **id))));
                if let Some(to) = to {
                    return Some((*part, from, *to));
                }
            }
        }
        None
    }
}

/// Returns the rendezvous weight of a partition at an instance. Among instances with equally few partitions, the
/// instance with the highest weight gets the partition.
fn weight((stream, number): PartitionId<'_>, id: u64) -> u64 {
    xxh3_64_with_seed(stream.as_bytes(), id ^ (u64::from(number) << 32 | u64::from(number)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs<'a>(id: u64, streams: &[(&'a str, u32)]) -> OwnerCandidate<'a> {
        // Real ids are random.
        OwnerCandidate {
            id: weight(("instance", 0), id),
            streams: streams.iter().copied().collect(),
        }
    }

    fn loads(owners: &BTreeMap<PartitionId<'_>, u64>) -> BTreeMap<u64, u32> {
        let mut loads = BTreeMap::new();
        for id in owners.values() {
            *loads.entry(*id).or_default() += 1;
        }
        loads
    }

    fn moved(
        before: &BTreeMap<PartitionId<'_>, u64>,
        after: &BTreeMap<PartitionId<'_>, u64>,
    ) -> usize {
        after.iter().filter(|(part, id)| before.get(*part) != Some(*id)).count()
    }

    #[test]
    fn thousand_partitions_stay_even_while_instances_join_and_leave() {
        let all: Vec<_> = (0..110).map(|id| runs(id, &[("orders", 1_000)])).collect();
        let mut there: Vec<usize> = (0..100).collect();
        let candidates =
            |there: &[usize]| there.iter().map(|at| all[*at].clone()).collect::<Vec<_>>();
        let mut owners = super::owners(&candidates(&there), &BTreeMap::new());
        let mut state = 7_u64;
        for step in 0..200 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (state >> 33) as usize;
            let joins = there.len() < 95 || (there.len() < 105 && at.is_multiple_of(2));
            let least = if joins {
                let new: Vec<usize> = (0..110).filter(|index| !there.contains(index)).collect();
                there.push(new[at / 2 % new.len()]);
                1_000 / there.len()
            } else {
                let gone = there.swap_remove(at / 2 % there.len());
                owners.values().filter(|id| **id == all[gone].id).count()
            };
            let next = super::owners(&candidates(&there), &owners);
            assert_eq!(next.len(), 1_000);
            let moved = moved(&owners, &next);
            let loads = loads(&next);
            let even = 1_000 / there.len();
            assert_eq!(loads.len(), there.len(), "step {step}: an instance has no partition");
            let min = loads.values().min().unwrap();
            let max = loads.values().max().unwrap();
            assert!(max - min <= 1 && *max as usize <= even + 1, "step {step}: {min} to {max}");
            // Only the partitions of the joining or leaving instance move. If the size of an even share changes, one
            // more partition may move.
            assert!(
                moved <= least + 1,
                "step {step}: {moved} partitions moved, but only {least} had to move"
            );
            owners = next;
        }
    }

    #[test]
    fn assignment_is_stable() {
        let streams: Vec<String> = (0..40).map(|number| format!("stream-{number}")).collect();
        let all: Vec<(&str, u32)> =
            streams.iter().zip(1..).map(|(name, number)| (&**name, number % 5 + 1)).collect();
        let mut candidates: Vec<OwnerCandidate<'_>> = (0..7).map(|id| runs(id, &all)).collect();
        candidates[3].streams.retain(|name, _| name.ends_with('1'));
        let owners = super::owners(&candidates, &BTreeMap::new());
        assert_eq!(super::owners(&candidates, &owners), owners);
        for (part, id) in &owners {
            let owner =
                candidates.iter().find(|candidate| candidate.id == *id).expect("a candidate");
            assert!(
                owner.streams.contains_key(part.0),
                "the owner of {part:?} does not run its stream"
            );
        }
        let loads = loads(&owners);
        let of_all = candidates
            .iter()
            .filter(|candidate| candidate.streams.len() == 40)
            .map(|candidate| loads[&candidate.id]);
        let min = of_all.clone().min().unwrap();
        let max = of_all.max().unwrap();
        assert!(max - min <= 1, "{min} to {max}");

        // While some owners are slow to release partitions, the result stays the same.
        candidates.remove(5);
        let next = super::owners(&candidates, &owners);
        let mut halfway = owners.clone();
        for (part, id) in next.iter().step_by(2) {
            halfway.insert(*part, *id);
        }
        assert_eq!(super::owners(&candidates, &halfway), next);
    }

    #[test]
    fn few_partitions_are_shared_evenly() {
        let two: Vec<_> = (0..2).map(|id| runs(id, &[("a", 2), ("b", 1), ("c", 1)])).collect();
        let first = super::owners(&two[..1], &BTreeMap::new());
        assert_eq!(loads(&first).into_values().collect::<Vec<_>>(), [4]);
        let both = super::owners(&two, &first);
        assert_eq!(loads(&both).into_values().collect::<Vec<_>>(), [2, 2]);
        assert_ne!(both[&("a", 0)], both[&("a", 1)]);
        assert_eq!(super::owners(&[], &both), BTreeMap::new());
    }
}
