//! Takes over, loads and commits the records of a partition's keys.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use fjall::{Readable, Snapshot};
use ordain_core::{Batch, CommitReply, Key, Loaded, TakenId};

use super::read::{of_key, sequence_of};
use super::record::{Record, State};
use super::request::Request;
use super::shared::Shared;
use super::tables::detach;
use super::{Embedded, keys};
use ordain_store::codec::decode_taken_id;
use ordain_store::{
    Claim, Claimed, OfKey, Partition, Records, STREAM_NAME_LIMIT, StoreError, claimed_by_another,
    too_long,
};

/// The result of a load for one key.
type LoadedKey = OfKey<Option<Box<Loaded>>>;

#[async_trait]
impl Records for Embedded {
    async fn claim(&self, partition: &Partition, epoch: u64) -> Result<Claimed, StoreError> {
        let length = partition.stream.len();
        if length > STREAM_NAME_LIMIT {
            return Err(StoreError::Unusable(format!(
                "the name of a stream has {length} bytes; at most {STREAM_NAME_LIMIT} are allowed"
            )));
        }
        let claimed = partition.clone();
        let claimed =
            self.ask(|answer| Request::Claim { partition: claimed, epoch, answer }).await?;
        claimed.ok_or_else(|| claimed_by_another(partition))
    }

    async fn load(
        &self,
        partition: &Partition,
        keys: &[Key],
        bytes: usize,
    ) -> Result<Vec<OfKey<Option<Box<Loaded>>>>, StoreError> {
        let stream = partition.stream.clone();
        let wanted = keys.to_vec();
        let read = move |shared: &Shared| load(shared, &stream, &wanted, bytes);
        let mut loaded = self.read(read).await?;
        let is_foreign = |job: &LoadedKey| matches!(job, Ok(Some(loaded)) if loaded.job.partition != partition.number);
        let foreign: Vec<usize> =
            (0..loaded.len()).filter(|index| is_foreign(&loaded[*index])).collect();
        if foreign.is_empty() {
            return Ok(loaded);
        }
        // The jobs are loaded again after the take-over, because the previous owner may have
        // committed in between.
        let taken: Vec<Key> = foreign.iter().map(|index| keys[*index].clone()).collect();
        let request = (partition.clone(), taken.clone());
        self.ask(|answer| Request::TakeOver { partition: request.0, keys: request.1, answer })
            .await?;
        let stream = partition.stream.clone();
        let again = move |shared: &Shared| load(shared, &stream, &taken, usize::MAX);
        let again = self.read(again).await?;
        for (index, job) in foreign.into_iter().zip(again) {
            loaded[index] = job;
        }
        Ok(loaded)
    }

    async fn commit(&self, partition: &Partition, claim: Claim, batch: Arc<Batch>) -> CommitReply {
        let partition = partition.clone();
        let reply = self.ask(|answer| Request::Commit { partition, claim, batch, answer }).await;
        reply.unwrap_or(CommitReply::Unknown)
    }
}

/// Loads jobs unchanged, whatever their partition.
fn load(
    shared: &Shared,
    stream: &str,
    keys: &[Key],
    bytes: usize,
) -> Result<Vec<LoadedKey>, StoreError> {
    let snapshot = shared.tables.db.snapshot();
    let now = shared.clock.now();
    let mut jobs = Vec::with_capacity(keys.len());
    let mut read = 0;
    for key in keys {
        let job = of_key(load_one(shared, &snapshot, stream, key, now))?;
        if let Ok(Some(job)) = &job {
            read += job.memory();
        }
        jobs.push(job);
        if read >= bytes {
            break;
        }
    }
    Ok(jobs)
}

fn load_one(
    shared: &Shared,
    snapshot: &Snapshot,
    stream: &str,
    key: &Key,
    now: u64,
) -> fjall::Result<LoadedKey> {
    if let Some(words) = too_long(key) {
        return Ok(Err(words));
    }
    let tables = &shared.tables;
    let place = keys::job(stream, key);
    let Some(stored) = snapshot.get(&tables.jobs, &place)? else { return Ok(Ok(None)) };
    let record = match Record::parse(&stored) {
        Ok(record) => record,
        Err(error) => return Ok(Err(error.to_string())),
    };
    if record.envelope.expired(now) {
        return Ok(Ok(None));
    }
    let state = match record.state {
        State::None => None,
        State::Inline(state) => Some(Bytes::copy_from_slice(state)),
        State::Beside(size) => {
            let state = snapshot.get(&tables.states, &place)?.map(detach);
            match state.filter(|state| state.len() as u64 == size) {
                Some(state) => Some(state),
                None => return Ok(Err(format!("its state of {size} bytes is missing"))),
            }
        }
    };
    let ids = match ids(shared, snapshot, stream, key, record.job.ids_from)? {
        Ok(ids) => ids,
        Err(words) => return Ok(Err(words)),
    };
    let due_in = record.envelope.due_in(now);
    let expire_in = record.envelope.expire_in(now);
    let job = record.job.to_job();
    Ok(Ok(Some(Box::new(Loaded { job, state, ids, now, due_in, expire_in }))))
}

fn ids(
    shared: &Shared,
    snapshot: &Snapshot,
    stream: &str,
    key: &str,
    from: u64,
) -> fjall::Result<Result<Vec<TakenId>, String>> {
    let mut ids = Vec::new();
    if from == 0 {
        return Ok(Ok(ids));
    }
    let range = keys::event(stream, key, from)..keys::event(stream, key, u64::MAX);
    for entry in snapshot.range(&shared.tables.ids, range) {
        let (place, value) = entry.into_inner()?;
        let sequence = sequence_of(&place);
        match decode_taken_id(sequence, &value) {
            Ok(id) => ids.push(id),
            Err(error) => return Ok(Err(format!("sequence {sequence}: {error}"))),
        }
    }
    Ok(Ok(ids))
}
