//! Claims partitions: writes the claim of a new owner into the partition's fence in every shard.

use std::sync::PoisonError;

use futures_util::future::try_join_all;
use redis::cmd;

use super::names::RedisKeyKind;
use super::value::{bytes, number, unexpected_reply};
use super::{RedisStore, commit};
use ordain_store::codec::{FenceRecord, decode_fence};
use ordain_store::{Claim, Partition, StoreError, claimed_by_another};

/// The exclusive upper bound of epochs. The numbers of Lua are exact up to this bound, and no partition ever reaches
/// it.
pub(super) const EPOCH_LIMIT: u64 = 1 << 52;

/// Registers a partition in the store, unless this process has already registered it. First checks that the store still
/// has its record (schema and number of shards). Without this check, the partitions of a store that lost all its data
/// would begin anew without an error. The next start would then fail, because the store would have the Redis key
/// `partitions` but no record.
pub(super) async fn register_partition(
    store: &RedisStore,
    partition: &Partition,
) -> Result<(), StoreError> {
    if store
        .registered_partitions
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .contains(partition)
    {
        return Ok(());
    }
    check_record(store).await?;
    let Partition { stream, number } = partition;
    let mut note = cmd("SADD");
    note.arg(store.names.in_common_shard(RedisKeyKind::Partitions))
        .arg(format!("{number}:{stream}"));
    store.run_command(&note).await?;
    store
        .registered_partitions
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(partition.clone());
    Ok(())
}

/// Returns an error if the store no longer has its record (schema and number of shards). [`RedisStore::open`] found or
/// wrote this record, so a store without it has lost its data.
async fn check_record(store: &RedisStore) -> Result<(), StoreError> {
    let record = store.names.in_common_shard(RedisKeyKind::Store);
    let fields = store.run_command(cmd("HLEN").arg(&record)).await?;
    if number(&fields).ok_or_else(|| unexpected_reply("HLEN"))? > 0 {
        return Ok(());
    }
    Err(missing_record(store))
}

/// Returns the error about a store that no longer has its record.
pub(super) fn missing_record(store: &RedisStore) -> StoreError {
    let record = store.names.in_common_shard(RedisKeyKind::Store);
    StoreError::Failed(format!(
        "the store lost everything, or another program removed {record}: restore the data, and start again. A start \
         without the data creates a new store, in which all streams begin anew"
    ))
}

/// Forgets which partitions this process has registered. The next time that the process adds entries to the queue of a
/// partition, it therefore checks the record of the store and registers the partition again. A claim always checks this
/// record.
pub(super) fn forget_registrations(store: &RedisStore) {
    store.registered_partitions.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

/// Returns the highest epoch in the fences of the partition in all shards; 0 if the partition has no fence. Logs an
/// error if some shards have no fence, although another shard has commits of the partition.
pub(super) async fn newest_epoch(
    store: &RedisStore,
    partition: &Partition,
) -> Result<u64, StoreError> {
    let fences = (0..store.shards).map(async |shard| {
        let [data] = store.stream_keys(shard, &partition.stream, [RedisKeyKind::Data]);
        let field = format!("f{}", partition.number);
        let fence = store.run_command(cmd("HGET").arg(&data).arg(&field)).await?;
        let Some(fence) = bytes(fence) else { return Ok(None) };
        let fence = read_fence(&data, partition, &fence)?;
        let epoch = fence.claim.epoch;
        if epoch >= EPOCH_LIMIT {
            return Err(StoreError::Corrupt(format!(
                "field {field} of {data} has the impossible epoch {epoch}: remove the \
                 field"
            )));
        }
        Ok(Some(fence))
    });
    let fences = try_join_all(fences).await?;
    log_lost_shards(partition, &fences);
    let epochs = fences.into_iter().flatten().map(|fence| fence.claim.epoch);
    Ok(epochs.max().unwrap_or_default())
}

/// Logs an error if some shards have lost the data of a partition. An owner writes a fence into every shard before its
/// first commit, so a shard without a fence has lost its data.
fn log_lost_shards(partition: &Partition, fences: &[Option<FenceRecord>]) {
    if !fences.iter().flatten().any(|fence| fence.number > 0) {
        return;
    }
    let missing = (0..).zip(fences).filter(|(_, fence)| fence.is_none());
    let missing: Vec<u32> = missing.map(|(shard, _)| shard).collect();
    if !missing.is_empty() {
        tracing::error!(
            stream = &*partition.stream,
            partition = partition.number,
            shards = ?missing,
            "THE STORE WENT BACK IN TIME: these shards have lost the data of the partition, so the keys in these \
             shards begin anew. To get the states of these keys back, stop all instances, restore the data of the \
             Redis servers, and start again"
        );
    }
}

fn read_fence(data: &str, partition: &Partition, fence: &[u8]) -> Result<FenceRecord, StoreError> {
    decode_fence(fence).map_err(|error| {
        StoreError::Corrupt(format!("field f{} of {data}: {error}", partition.number))
    })
}

/// Writes a claim into the fence of a shard (the record of the owner and of the last commit). Returns the number of the
/// shard's last commit, or an error if another owner has claimed the partition under this epoch or a higher epoch.
pub(super) async fn claim_shard(
    store: &RedisStore,
    partition: &Partition,
    shard: u32,
    claim: Claim,
) -> Result<u64, StoreError> {
    let script = &store.scripts.claim;
    let [data] = store.stream_keys(shard, &partition.stream, [RedisKeyKind::Data]);
    let mut call = store.script_call(script, std::slice::from_ref(&data));
    call.arg(partition.number).arg(&commit::claim_bytes(claim)[..]);
    let fence = bytes(store.run_script(script, call).await?)
        .ok_or_else(|| unexpected_reply(script.name))?;
    let fence = read_fence(&data, partition, &fence)?;
    if fence.claim == claim {
        return Ok(fence.number);
    }
    Err(claimed_by_another(partition))
}
