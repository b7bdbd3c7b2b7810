//! Numbers for messages, retained messages, and queues.

use std::ops::RangeInclusive;
use std::sync::Arc;

use async_trait::async_trait;
use fjall::Readable;
use ordain_core::{Event, Key, QueuePlace};

use super::queue::Queue;
use super::record::Record;
use super::request::Request;
use super::shared::Shared;
use super::tables::{detach, read_error};
use super::{Embedded, keys};
use ordain_store::codec::{decode_queued, decode_retained};
use ordain_store::{
    Assign, AssignReply, Chains, Claim, Destination, Partition, QueueEnds, QueuePage, Removal,
    StoreError, readable,
};

#[async_trait]
impl Chains for Embedded {
    async fn assign(&self, assign: Arc<Assign>) -> Result<AssignReply, StoreError> {
        self.ask(|answer| Request::Assign { assign, answer }).await?
    }

    async fn retained(
        &self,
        to: &Destination,
        key: &Key,
        wanted: &[RangeInclusive<u64>],
        bytes: usize,
    ) -> Result<Vec<Arc<Event>>, StoreError> {
        let to = to.clone();
        let key = key.clone();
        let wanted = wanted.to_vec();
        self.read(move |shared| retained(shared, &to, &key, &wanted, bytes)).await
    }

    async fn queued(
        &self,
        partition: &Partition,
        shard: u32,
        after: QueuePlace,
        limit: usize,
        bytes: usize,
    ) -> Result<QueuePage, StoreError> {
        let partition = partition.clone();
        let read = move |shared: &Shared| queued(shared, &partition, shard, after, limit, bytes);
        self.read(read).await
    }

    async fn dequeue(
        &self,
        partition: &Partition,
        claim: Claim,
        shard: u32,
        commit: u64,
        through: QueuePlace,
    ) -> Result<Removal, StoreError> {
        let partition = partition.clone();
        let request =
            |answer| Request::Dequeue { partition, claim, shard, commit, through, answer };
        self.ask(request).await?
    }

    async fn partitions_of(
        &self,
        stream: &str,
        keys: &[&str],
    ) -> Result<Vec<Option<u32>>, StoreError> {
        let places: Vec<_> = keys.iter().map(|key| keys::job(stream, key)).collect();
        self.read(move |shared| partitions_of(shared, &places)).await
    }

    async fn waiting_in(&self, partition: &Partition) -> Result<Vec<QueueEnds>, StoreError> {
        let partition = partition.clone();
        self.read(move |shared| waiting_in(shared, &partition)).await
    }
}

fn retained(
    shared: &Shared,
    to: &Destination,
    key: &Key,
    wanted: &[RangeInclusive<u64>],
    bytes: usize,
) -> Result<Vec<Arc<Event>>, StoreError> {
    let mut events = Vec::new();
    let mut read = 0;
    let snapshot = shared.tables.db.snapshot();
    let now = shared.clock.now();
    for range in wanted {
        let from = keys::retained(to, key, *range.start());
        let last = *range.end();
        for entry in snapshot.range(&shared.tables.log, from..=keys::retained(to, key, last)) {
            let (place, value) = entry.into_inner().map_err(|error| read_error(&error))?;
            if keys::kept_until(&place, &value).is_some_and(|until| until <= now) {
                continue;
            }
            if !events.is_empty() && read + value.len() > bytes {
                return Ok(events);
            }
            read += value.len();
            events.extend(readable(key, decode_retained(&detach(value))));
        }
    }
    Ok(events)
}

fn queued(
    store: &Shared,
    partition: &Partition,
    shard: u32,
    after: QueuePlace,
    limit: usize,
    bytes: usize,
) -> Result<QueuePage, StoreError> {
    let snapshot = store.tables.db.snapshot();
    let queue = snapshot.get(&store.tables.log, keys::queue(partition, shard));
    let queue = Queue::decode(queue.map_err(|error| read_error(&error))?.as_deref())?;
    let of = |number| keys::queued(partition, shard, number);
    let read = |number| snapshot.get(&store.tables.queue, of(number));
    if !queue.has(after, read).map_err(|error| read_error(&error))? {
        return Err(StoreError::WentBack);
    }
    let first = queue.ends.first;
    let from = of(first.max(after.number.saturating_add(1)));
    let mut entries = Vec::new();
    let mut read = 0;
    for entry in snapshot.range(&store.tables.queue, from..=of(u64::MAX)) {
        let (place, value) = entry.into_inner().map_err(|error| read_error(&error))?;
        if entries.len() >= limit || (!entries.is_empty() && read + value.len() > bytes) {
            break;
        }
        read += value.len();
        let number = keys::outbox_number(&place).unwrap_or_default();
        let place = QueuePlace { number, history: queue.history_at(number, Some(&value)) };
        let value = detach(value);
        entries.push((place, decode_queued(value.slice(value.len().min(8)..))));
    }
    Ok(QueuePage { first, entries })
}

fn partitions_of(shared: &Shared, places: &[Vec<u8>]) -> Result<Vec<Option<u32>>, StoreError> {
    let partition = |place: &Vec<u8>| {
        let found = shared.tables.jobs.get(place).map_err(|error| read_error(&error))?;
        Ok(found.and_then(|job| Some(Record::parse(&job).ok()?.job.partition)))
    };
    places.iter().map(partition).collect()
}

fn waiting_in(shared: &Shared, partition: &Partition) -> Result<Vec<QueueEnds>, StoreError> {
    let of_shard = |shard| {
        let found = shared.tables.log.get(keys::queue(partition, shard));
        let found = found.map_err(|error| read_error(&error))?;
        Ok(Queue::decode(found.as_deref())?.ends)
    };
    (0..shared.shards).map(of_shard).collect()
}
