//! The records of a partition's keys: claims, loads and commits.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use fjall::{Readable, Snapshot};
use ordain_core::{AcceptedId, Batch, CommitReply, Key, KeySnapshot};

use super::read::{of_key, sequence_of};
use super::record::{EmbeddedRecord, StateLocation};
use super::request::WriterRequest;
use super::shared::SharedStore;
use super::tables::into_owned_bytes;
use super::{EmbeddedStore, keys};
use ordain_store::codec::decode_accepted_id;
use ordain_store::{
    Claim, ClaimedPartition, KeyResult, Partition, RecordStore, STREAM_NAME_LIMIT, StoreError,
    claimed_by_another, key_length_error,
};

type KeyLoad = KeyResult<Option<Box<KeySnapshot>>>;

#[async_trait]
impl RecordStore for EmbeddedStore {
    async fn claim(
        &self,
        partition: &Partition,
        epoch: u64,
    ) -> Result<ClaimedPartition, StoreError> {
        let length = partition.stream.len();
        if length > STREAM_NAME_LIMIT {
            return Err(StoreError::Unusable(format!(
                "the name of a stream has {length} bytes; at most {STREAM_NAME_LIMIT} bytes are allowed"
            )));
        }
        let claimed = partition.clone();
        let claimed = self
            .send_request(|answer| WriterRequest::Claim { partition: claimed, epoch, answer })
            .await?;
        claimed.ok_or_else(|| claimed_by_another(partition))
    }

    async fn load(
        &self,
        partition: &Partition,
        keys: &[Key],
        bytes: usize,
    ) -> Result<Vec<KeyResult<Option<Box<KeySnapshot>>>>, StoreError> {
        let stream = partition.stream.clone();
        let wanted = keys.to_vec();
        let read = move |shared: &SharedStore| load(shared, &stream, &wanted, bytes);
        let mut loaded = self.read(read).await?;
        let is_foreign = |key_load: &KeyLoad| {
            let loaded = key_load.as_ref().ok().and_then(Option::as_ref);
            loaded.is_some_and(|loaded| loaded.record.partition != partition.number)
        };
        let foreign: Vec<usize> =
            (0..loaded.len()).filter(|index| is_foreign(&loaded[*index])).collect();
        if foreign.is_empty() {
            return Ok(loaded);
        }
        // These key records belonged to another partition at the first load, and the owner of that partition may have
        // written them again before the take-over. Load them again.
        let taken: Vec<Key> = foreign.iter().map(|index| keys[*index].clone()).collect();
        let request = (partition.clone(), taken.clone());
        self.send_request(|answer| WriterRequest::TakeOver {
            partition: request.0,
            keys: request.1,
            answer,
        })
        .await?;
        let stream = partition.stream.clone();
        let again = move |shared: &SharedStore| load(shared, &stream, &taken, usize::MAX);
        let again = self.read(again).await?;
        for (index, mut key_load) in foreign.into_iter().zip(again) {
            if let (Ok(Some(before)), Ok(Some(taken))) = (&loaded[index], &mut key_load) {
                taken.moved_from = Some(before.record.partition);
            }
            loaded[index] = key_load;
        }
        Ok(loaded)
    }

    async fn commit(&self, partition: &Partition, claim: Claim, batch: Arc<Batch>) -> CommitReply {
        let partition = partition.clone();
        let reply = self
            .send_request(|answer| WriterRequest::Commit { partition, claim, batch, answer })
            .await;
        reply.unwrap_or(CommitReply::Unknown)
    }
}

/// Loads key records, and does not change the partition that a record names.
fn load(
    shared: &SharedStore,
    stream: &str,
    keys: &[Key],
    bytes: usize,
) -> Result<Vec<KeyLoad>, StoreError> {
    let snapshot = shared.tables.db.snapshot();
    let now = shared.clock.now();
    let mut key_loads = Vec::with_capacity(keys.len());
    let mut read = 0;
    for key in keys {
        let key_load = of_key(shared, load_one(shared, &snapshot, stream, key, now))?;
        if let Ok(Some(loaded)) = &key_load {
            read += loaded.memory();
        }
        key_loads.push(key_load);
        if read >= bytes {
            break;
        }
    }
    Ok(key_loads)
}

fn load_one(
    shared: &SharedStore,
    snapshot: &Snapshot,
    stream: &str,
    key: &Key,
    now: u64,
) -> fjall::Result<KeyLoad> {
    if let Some(words) = key_length_error(key) {
        return Ok(Err(words));
    }
    let tables = &shared.tables;
    let table_key = keys::key_record(stream, key);
    let Some(stored) = snapshot.get(&tables.jobs, &table_key)? else { return Ok(Ok(None)) };
    let record = match EmbeddedRecord::parse(&stored) {
        Ok(record) => record,
        Err(error) => return Ok(Err(shared.damage_text(&error.to_string()))),
    };
    if record.envelope.is_expired(now) {
        return Ok(Ok(None));
    }
    let state = match record.state {
        StateLocation::None => None,
        StateLocation::Inline(state) => Some(Bytes::copy_from_slice(state)),
        StateLocation::Separate(size) => {
            let state = snapshot.get(&tables.states, &table_key)?.map(into_owned_bytes);
            if state.as_ref().is_none_or(|state| state.len() as u64 != size) {
                let words = format!("the state of the key ({size} bytes) is missing");
                return Ok(Err(shared.damage_text(&words)));
            }
            state
        }
    };
    let ids = match ids(shared, snapshot, stream, key, record.key_record.ids_from)? {
        Ok(ids) => ids,
        Err(words) => return Ok(Err(shared.damage_text(&words))),
    };
    let due_in = record.envelope.due_in(now);
    let expire_in = record.envelope.expire_in(now);
    let key_record = record.key_record.to_key_record();
    Ok(Ok(Some(Box::new(KeySnapshot {
        record: key_record,
        state,
        ids,
        now,
        due_in,
        expire_in,
        moved_from: None,
    }))))
}

fn ids(
    shared: &SharedStore,
    snapshot: &Snapshot,
    stream: &str,
    key: &str,
    from: u64,
) -> fjall::Result<Result<Vec<AcceptedId>, String>> {
    let mut ids = Vec::new();
    if from == 0 {
        return Ok(Ok(ids));
    }
    let range = keys::event(stream, key, from)..keys::event(stream, key, u64::MAX);
    for entry in snapshot.range(&shared.tables.ids, range) {
        let (table_key, value) = entry.into_inner()?;
        let sequence = sequence_of(&table_key);
        match decode_accepted_id(sequence, &value) {
            Ok(id) => ids.push(id),
            Err(error) => return Ok(Err(format!("sequence {sequence}: {error}"))),
        }
    }
    Ok(Ok(ids))
}
