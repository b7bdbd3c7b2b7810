//! The fences. The fence of a partition in a shard contains the claim of the owner (an epoch and a random number), the
//! number of the last commit, and the reply to this commit.
//!
//! The fences in memory equal the stored fences, because only the writer thread changes them, and no other process can
//! write into the folder. There is one fence for each (partition, shard) that was ever claimed.

use std::collections::HashMap;

use fjall::OwnedWriteBatch;

use super::keys;
use super::tables::{Tables, read_error};
use ordain_store::codec::{FenceRecord, FenceVerdict, decode_fence, encode_fence};
use ordain_store::{Claim, Partition, StoreError};

#[derive(Default)]
pub(super) struct FenceTable(HashMap<(Partition, u32), FenceRecord>);

impl FenceTable {
    pub(super) fn load(tables: &Tables) -> Result<Self, StoreError> {
        let mut fences = HashMap::new();
        for entry in tables.meta.prefix(keys::FENCES_PREFIX) {
            let (key, value) = entry.into_inner().map_err(|error| read_error(&error))?;
            let partition_shard = keys::split_fence(&key)
                .ok_or_else(|| StoreError::Corrupt(format!("the key {key:?} of a fence")))?;
            let fence = decode_fence(&value).map_err(|error| {
                let (partition, shard) = &partition_shard;
                StoreError::Corrupt(format!(
                    "stream {:?}, partition {}, shard {shard}: {error}",
                    partition.stream, partition.number
                ))
            })?;
            fences.insert(partition_shard, fence);
        }
        Ok(Self(fences))
    }

    pub(super) fn newest_time(&self) -> u64 {
        self.0.values().map(|fence| fence.applied.time).max().unwrap_or_default()
    }

    pub(super) fn get(&self, partition: &Partition, shard: u32) -> Option<&FenceRecord> {
        self.0.get(&(partition.clone(), shard))
    }

    /// Returns [`FenceVerdict::Apply`] if the store may apply a commit, and otherwise the reply to the commit.
    pub(super) fn evaluate(
        &self,
        partition: &Partition,
        claim: Claim,
        shard: u32,
        number: u64,
    ) -> FenceVerdict {
        match self.get(partition, shard) {
            None => FenceVerdict::Answer(FenceVerdict::unclaimed()),
            Some(fence) => fence.evaluate(claim, number),
        }
    }

    /// Writes a fence to the batch and to memory. If the batch fails later, the fence in memory is wrong, but the store
    /// then disables itself and does not use the fence any more.
    pub(super) fn put(
        &mut self,
        tables: &Tables,
        batch: &mut OwnedWriteBatch,
        partition: &Partition,
        shard: u32,
        fence: FenceRecord,
    ) {
        let mut value = Vec::new();
        encode_fence(&fence, &mut value);
        batch.insert(&tables.meta, keys::fence(partition, shard), value);
        self.0.insert((partition.clone(), shard), fence);
    }
}
