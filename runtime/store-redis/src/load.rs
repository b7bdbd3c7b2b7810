//! Loads key records, and moves key records of other partitions to the partition that loads them.

use bytes::Bytes;
use futures_util::future::try_join_all;
use ordain_core::{AcceptedId, Key, KeySnapshot};
use redis::Value;

use super::names::RedisKeyKind;
use super::record::{IDS_PER_BLOCK, MISSING_STATE_MESSAGE, RedisRecord, StatePlacement};
use super::value::{array, bytes, number, parts, unexpected_reply};
use super::{RedisStore, commit};
use ordain_store::codec::{ACCEPTED_ID_BYTES, KeyRecordView, decode_accepted_id};
use ordain_store::{KEY_SIZE_LIMIT, KeyResult, Partition, StoreError, key_length_error};

pub(super) type LoadedKey = KeyResult<Option<Box<KeySnapshot>>>;

/// Loads key records until their total size reaches about `bytes`. The result ends before the first key that was not
/// loaded.
pub(super) async fn load_some(
    store: &RedisStore,
    stream: &str,
    keys: &[Key],
    bytes: usize,
) -> Result<Vec<LoadedKey>, StoreError> {
    let shards = by_shard(store, keys);
    let loads = shards.iter().map(|(shard, positions)| {
        // The limit of each shard is a part of `bytes`, in proportion to the number of its keys. Each shard returns the
        // result for at least one of its keys.
        let part = bytes / keys.len().max(1) * positions.len();
        let keys = positions.iter().map(|at| &keys[*at]);
        load_shard(store, stream, *shard, keys, if shards.len() == 1 { bytes } else { part })
    });
    let mut all: Vec<Option<LoadedKey>> = keys.iter().map(|_| None).collect();
    for ((_, positions), loaded_keys) in shards.iter().zip(try_join_all(loads).await?) {
        for (at, loaded_key) in positions.iter().zip(loaded_keys) {
            all[*at] = Some(key_length_error(&keys[*at]).map_or(loaded_key, Err));
        }
    }
    // End the result before the first key that was not loaded because of the limit of its shard.
    Ok(all.into_iter().map_while(|loaded_key| loaded_key).collect())
}

fn by_shard(store: &RedisStore, keys: &[Key]) -> Vec<(u32, Vec<usize>)> {
    let mut shards = vec![Vec::new(); store.shards as usize];
    for (at, key) in keys.iter().enumerate() {
        shards[store.shard_of(key) as usize].push(at);
    }
    (0..).zip(shards).filter(|(_, keys)| !keys.is_empty()).collect()
}

/// Loads key records until their total size reaches `bytes`. Does not change the partition that a record names.
async fn load_shard(
    store: &RedisStore,
    stream: &str,
    shard: u32,
    keys: impl Iterator<Item = &Key>,
    bytes: usize,
) -> Result<Vec<LoadedKey>, StoreError> {
    let script = &store.scripts.load;
    let mut call = store.script_call(
        script,
        &store.stream_keys(shard, stream, [RedisKeyKind::Data, RedisKeyKind::Ids]),
    );
    call.arg(bytes);
    for key in keys {
        // Truncate a key above `KEY_SIZE_LIMIT`. The answer for this key does not matter, because `load_some` returns
        // an error in its place.
        call.arg(commit::record_field(&key[..key.floor_char_boundary(KEY_SIZE_LIMIT + 1)]));
    }
    let mut answers = array(store.run_script(script, call).await?, script.name)?.into_iter();
    let mut next_time =
        || answers.next().as_ref().and_then(number).ok_or_else(|| unexpected_reply(script.name));
    let server_time = next_time()?;
    let expiry_time = next_time()?;
    Ok(answers.map(|answer| parse_loaded(answer, server_time, expiry_time)).collect())
}

pub(super) async fn take_over(
    store: &RedisStore,
    partition: &Partition,
    keys: &[Key],
) -> Result<(), StoreError> {
    let script = &store.scripts.take_over;
    let shards = by_shard(store, keys).into_iter().map(async |(shard, positions)| {
        let [data] = store.stream_keys(shard, &partition.stream, [RedisKeyKind::Data]);
        let mut call = store.script_call(script, &[data, store.names.due(shard, partition)]);
        call.arg(&partition.number.to_le_bytes()[..]);
        for at in positions {
            call.arg(commit::record_field(&keys[at]));
        }
        store.run_script(script, call).await
    });
    try_join_all(shards).await.map(drop)
}

/// Decodes the answer for one key. The server's time determines when the key is due, and `expiry_time` determines when
/// its record expires.
fn parse_loaded(value: Value, server_time: u64, expiry_time: u64) -> LoadedKey {
    let form_error = || "the server's answer has an unexpected form".to_owned();
    if value == Value::Nil {
        return Ok(None);
    }
    let [record, state, first, blocks] = parts(value, "load").map_err(|_| form_error())?;
    let stored = bytes(record).ok_or_else(form_error)?;
    let record = RedisRecord::parse(&stored).map_err(|error| error.to_string())?;
    let state = match record.state {
        None => None,
        Some(StatePlacement::Inline(state)) => Some(stored.slice_ref(state)),
        Some(StatePlacement::Separate) => Some(bytes(state).ok_or(MISSING_STATE_MESSAGE)?),
    };
    let first = number(&first).ok_or_else(form_error)?;
    Ok(Some(Box::new(KeySnapshot {
        state,
        ids: ids_of(&record.key_record, first, array(blocks, "load").map_err(|_| form_error())?)?,
        now: expiry_time,
        due_in: record.due_at.map(|at| at.saturating_sub(server_time)),
        expire_in: record.expire_at.map(|at| at.saturating_sub(expiry_time)),
        record: record.key_record.to_key_record(),
        moved_from: None,
    })))
}

/// Decodes the accepted ids of a key from their blocks. `first` is the number of the first block. A block has one place
/// for each sequence; the place is empty if the sequence has no id. Omits the id of a sequence that the key has neither
/// settled nor spilled: a commit script wrote such an id, but ended before it made the commit.
fn ids_of(
    record: &KeyRecordView<'_>,
    first: u64,
    blocks: Vec<Value>,
) -> Result<Vec<AcceptedId>, String> {
    let mut taken = Vec::new();
    for (block, ids) in (first..).zip(blocks) {
        let ids: Bytes = bytes(ids).unwrap_or_default();
        for (sequence, id) in (block * IDS_PER_BLOCK..).zip(ids.chunks(ACCEPTED_ID_BYTES)) {
            let id = decode_accepted_id(sequence, id)
                .map_err(|error| format!("sequence {sequence}: {error}"))?;
            let is_empty = id.id == 0 && id.content == 0 && id.source == 0;
            let spilled = record.spilled.first..=record.spilled.last;
            let is_taken = sequence < record.next || spilled.contains(&sequence);
            if sequence >= record.ids_from && is_taken && !is_empty {
                taken.push(id);
            }
        }
    }
    Ok(taken)
}
