//! Sets the whole store, or one of its shards, back to an earlier state.

use std::collections::BTreeMap;

use ordain_core::{Key, LetterId, shard_of};

use super::Store;

#[derive(Debug, Clone, Copy)]
pub(crate) struct RolledBackPart {
    pub(crate) shards: u32,
    /// The only shard that goes back; `None` if all shards go back.
    pub(crate) only: Option<u32>,
}

impl RolledBackPart {
    pub(crate) fn shard(self, shard: u32) -> bool {
        self.only.is_none_or(|only| only == shard)
    }

    pub(crate) fn key(self, key: &Key) -> bool {
        self.shard(shard_of(key, self.shards))
    }

    pub(crate) fn letter(self, id: &LetterId) -> bool {
        // Dead letters without a key are spread over the shards.
        let keyless = (id.tag % u64::from(self.shards)) as u32;
        self.shard(if id.key.is_empty() { keyless } else { shard_of(&id.key, self.shards) })
    }
}

/// Restores the earlier entries of a map for all keys for which `part` returns true.
pub(crate) fn restore<K: Ord + Clone, V: Clone>(
    map: &mut BTreeMap<K, V>,
    then: &BTreeMap<K, V>,
    part: impl Fn(&K) -> bool,
) {
    map.retain(|key, _| !part(key));
    let back = then.iter().filter(|(key, _)| part(key));
    map.extend(back.map(|(key, value)| (key.clone(), value.clone())));
}

impl Store {
    /// Returns the number of the last commit of a partition in a shard; 0 if there is none.
    pub(crate) fn last(&self, partition: u32, shard: u32) -> u64 {
        self.fences.get(&(partition, shard)).map_or(0, |fence| fence.last)
    }

    /// Restores an earlier state of some shards. No owner may have claimed a partition since that state.
    pub(crate) fn go_back(&mut self, then: &Self, part: RolledBackPart) {
        assert_eq!(
            self.epoch, then.epoch,
            "an owner has claimed a partition since the earlier state"
        );
        restore(&mut self.records, &then.records, |key| part.key(key));
        restore(&mut self.letters, &then.letters, |id| part.letter(id));
        restore(&mut self.fences, &then.fences, |(_, shard)| part.shard(*shard));
        restore(&mut self.outbox, &then.outbox, |(_, shard)| part.shard(*shard));
    }
}
