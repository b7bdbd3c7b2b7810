//! Numbers for messages, retained messages, and queues.

use std::ops::RangeInclusive;
use std::sync::Arc;

use async_trait::async_trait;
use fjall::Readable;
use ordain_core::{Key, QueuePosition};

use super::queue::QueueEndsRecord;
use super::read::sequence_of;
use super::record::EmbeddedRecord;
use super::request::WriterRequest;
use super::shared::SharedStore;
use super::tables::{into_owned_bytes, read_error};
use super::{EmbeddedStore, keys};
use ordain_store::codec::{decode_queued, decode_retained};
use ordain_store::{
    AssignReply, AssignRequest, Claim, DequeueResult, Destination, FoundEvents, MessageLog,
    Partition, QueueEnds, QueuePage, StoreError, ok_or_log,
};

#[async_trait]
impl MessageLog for EmbeddedStore {
    async fn assign(&self, assign: Arc<AssignRequest>) -> Result<AssignReply, StoreError> {
        self.send_request(|answer| WriterRequest::Assign { assign, answer }).await?
    }

    async fn retained_messages(
        &self,
        to: &Destination,
        key: &Key,
        wanted: &[RangeInclusive<u64>],
        bytes: usize,
    ) -> Result<FoundEvents, StoreError> {
        let to = to.clone();
        let key = key.clone();
        let wanted = wanted.to_vec();
        self.read(move |shared| retained(shared, &to, &key, &wanted, bytes)).await
    }

    async fn read_queue(
        &self,
        partition: &Partition,
        shard: u32,
        after: QueuePosition,
        limit: usize,
        bytes: usize,
    ) -> Result<QueuePage, StoreError> {
        let partition = partition.clone();
        let read =
            move |shared: &SharedStore| queued(shared, &partition, shard, after, limit, bytes);
        self.read(read).await
    }

    async fn dequeue(
        &self,
        partition: &Partition,
        claim: Claim,
        shard: u32,
        commit: u64,
        through: QueuePosition,
    ) -> Result<DequeueResult, StoreError> {
        let partition = partition.clone();
        let request =
            |answer| WriterRequest::Dequeue { partition, claim, shard, commit, through, answer };
        self.send_request(request).await?
    }

    async fn partitions_of(
        &self,
        stream: &str,
        keys: &[&str],
    ) -> Result<Vec<Option<u32>>, StoreError> {
        let table_keys: Vec<_> = keys.iter().map(|key| keys::key_record(stream, key)).collect();
        self.read(move |shared| partitions_of(shared, &table_keys)).await
    }

    async fn has_counters(&self, to: &Destination, keys: &[&str]) -> Result<Vec<bool>, StoreError> {
        let table_keys: Vec<_> = keys.iter().map(|key| keys::key_counter(to, key)).collect();
        self.read(move |shared| {
            let has_counter = |table_key: &Vec<u8>| {
                let found = shared.tables.log.get(table_key).map_err(|error| read_error(&error))?;
                Ok(found.is_some())
            };
            table_keys.iter().map(has_counter).collect()
        })
        .await
    }

    async fn queue_ends(&self, partition: &Partition) -> Result<Vec<QueueEnds>, StoreError> {
        let partition = partition.clone();
        self.read(move |shared| waiting_in(shared, &partition)).await
    }
}

fn retained(
    shared: &SharedStore,
    to: &Destination,
    key: &Key,
    wanted: &[RangeInclusive<u64>],
    bytes: usize,
) -> Result<FoundEvents, StoreError> {
    let mut found = FoundEvents { events: Vec::new(), until: u64::MAX };
    let mut read_bytes = 0;
    let snapshot = shared.tables.db.snapshot();
    let now = shared.clock.now();
    for range in wanted {
        let from = keys::retained(to, key, *range.start());
        let last = *range.end();
        for entry in snapshot.range(&shared.tables.log, from..=keys::retained(to, key, last)) {
            let (table_key, value) = entry.into_inner().map_err(|error| read_error(&error))?;
            if keys::expiry_time(&table_key, &value).is_some_and(|until| until <= now) {
                continue;
            }
            let sequence = sequence_of(&table_key);
            if !found.events.is_empty() && read_bytes + value.len() > bytes {
                found.until = sequence;
                return Ok(found);
            }
            read_bytes += value.len();
            let event = ok_or_log(key, decode_retained(&into_owned_bytes(value)));
            found.events.extend(event.map(|event| (sequence, event)));
        }
    }
    Ok(found)
}

fn queued(
    store: &SharedStore,
    partition: &Partition,
    shard: u32,
    after: QueuePosition,
    limit: usize,
    bytes: usize,
) -> Result<QueuePage, StoreError> {
    let snapshot = store.tables.db.snapshot();
    let queue = snapshot.get(&store.tables.log, keys::queue(partition, shard));
    let queue = QueueEndsRecord::decode(queue.map_err(|error| read_error(&error))?.as_deref())?;
    let of = |number| keys::queued(partition, shard, number);
    let read = |number| snapshot.get(&store.tables.queue, of(number));
    if !queue.contains(after, read).map_err(|error| read_error(&error))? {
        return Err(StoreError::RolledBack);
    }
    let first = queue.ends.first;
    let from = of(first.max(after.number.saturating_add(1)));
    let mut entries = Vec::new();
    let mut read_bytes = 0;
    for entry in snapshot.range(&store.tables.queue, from..=of(u64::MAX)) {
        let (table_key, value) = entry.into_inner().map_err(|error| read_error(&error))?;
        if entries.len() >= limit || (!entries.is_empty() && read_bytes + value.len() > bytes) {
            break;
        }
        read_bytes += value.len();
        let number = keys::outbox_number(&table_key).unwrap_or_default();
        let position = QueuePosition { number, history: queue.history_at(number, Some(&value)) };
        let value = into_owned_bytes(value);
        entries.push((position, decode_queued(value.slice(value.len().min(8)..))));
    }
    Ok(QueuePage { first, entries })
}

fn partitions_of(
    shared: &SharedStore,
    table_keys: &[Vec<u8>],
) -> Result<Vec<Option<u32>>, StoreError> {
    let partition = |table_key: &Vec<u8>| {
        let found = shared.tables.jobs.get(table_key).map_err(|error| read_error(&error))?;
        Ok(found.and_then(|record| Some(EmbeddedRecord::parse(&record).ok()?.key_record.partition)))
    };
    table_keys.iter().map(partition).collect()
}

fn waiting_in(shared: &SharedStore, partition: &Partition) -> Result<Vec<QueueEnds>, StoreError> {
    let of_shard = |shard| {
        let found = shared.tables.log.get(keys::queue(partition, shard));
        let found = found.map_err(|error| read_error(&error))?;
        Ok(QueueEndsRecord::decode(found.as_deref())?.ends)
    };
    (0..shared.shards).map(of_shard).collect()
}
