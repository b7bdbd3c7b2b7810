//! The records of a partition's keys: claims, loads and commits.

use std::sync::{Arc, PoisonError};

use async_trait::async_trait;
use futures_util::future::try_join_all;
use ordain_core::{Batch, CommitReply, Key, KeySnapshot};

use super::RedisStore;
use super::claim::{claim_shard, register_partition};
use super::commit::{parse_reply, put_batch, send_durably};
use super::load::{LoadedKey, load_some, take_over};
use super::names::RedisKeyKind;
use ordain_store::{
    Claim, ClaimedPartition, KeyResult, Partition, RecordStore, STREAM_NAME_LIMIT, StoreError,
};

#[async_trait]
impl RecordStore for RedisStore {
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
        // Register the partition again, because the server may have lost an earlier registration by this process.
        self.registered_partitions.lock().unwrap_or_else(PoisonError::into_inner).remove(partition);
        register_partition(self, partition).await?;
        let claim = Claim { epoch, random: rand::random() };
        let claims = (0..self.shards).map(|shard| claim_shard(self, partition, shard, claim));
        Ok(ClaimedPartition { claim, commits: try_join_all(claims).await? })
    }

    async fn load(
        &self,
        partition: &Partition,
        keys: &[Key],
        bytes: usize,
    ) -> Result<Vec<KeyResult<Option<Box<KeySnapshot>>>>, StoreError> {
        let mut loaded = load_some(self, &partition.stream, keys, bytes).await?;
        let is_foreign = |loaded_key: &LoadedKey| {
            let loaded = loaded_key.as_ref().ok().and_then(Option::as_ref);
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
        take_over(self, partition, &taken).await?;
        let again = load_some(self, &partition.stream, &taken, usize::MAX).await?;
        for (index, mut loaded_key) in foreign.into_iter().zip(again) {
            if let (Ok(Some(before)), Ok(Some(taken))) = (&loaded[index], &mut loaded_key) {
                taken.moved_from = Some(before.record.partition);
            }
            loaded[index] = loaded_key;
        }
        Ok(loaded)
    }

    async fn commit(&self, partition: &Partition, claim: Claim, batch: Arc<Batch>) -> CommitReply {
        let stream = &partition.stream;
        let number = partition.number;
        let shard = batch.shard;
        let kinds = [
            RedisKeyKind::Data,
            RedisKeyKind::Expiry,
            RedisKeyKind::Letters,
            RedisKeyKind::LettersAge,
            RedisKeyKind::Spilled,
            RedisKeyKind::Ids,
        ];
        let [data, expiry, letters, age, spilled, ids] = self.stream_keys(shard, stream, kinds);
        let due = self.names.due(shard, partition);
        let keys = [data, due, expiry, letters, age, spilled, ids];
        let mut call = self.script_call(&self.scripts.commit, &keys);
        put_batch(&mut call, number, claim, &batch, self.dead_ttl);
        let answer = send_durably(self, &self.scripts.commit, shard, call).await;
        let what = || format!("commit of stream {stream:?}, partition {number}, shard {shard}");
        let reason = match self.with_key_name(answer, || keys.to_vec()).await {
            Ok(Some(answer)) => match parse_reply(answer, claim, batch.number) {
                Some(reply) => {
                    self.retry_warnings.resolve(None, what);
                    if matches!(reply, CommitReply::RolledBack { .. }) {
                        self.record_rollback();
                    }
                    return reply;
                }
                None => format!("invalid reply; check the field f{number} of the hash {}", keys[0]),
            },
            Ok(None) => format!("fewer than {} replicas have the commit", self.replicas),
            Err(error) => error.to_string(),
        };
        self.retry_warnings.report(None, &what(), &reason);
        CommitReply::Unknown
    }
}
