//! Numbers for messages, what is kept of them, and queues.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use async_trait::async_trait;
use fjall::Readable;
use ordain_core::{Event, Key};

use super::queue::Queue;
use super::record::Record;
use super::request::Request;
use super::shared::Shared;
use super::tables::{detach, read_error};
use super::{Embedded, keys};
use ordain_store::codec::{decode_queued, decode_retained};
use ordain_store::{
    Assign, AssignReply, Chains, Claim, Destination, Partition, Queued, StoreError, readable,
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
        let (to, key, wanted) = (to.clone(), key.clone(), wanted.to_vec());
        self.read(move |shared| retained(shared, &to, &key, &wanted, bytes)).await
    }

    async fn queued(
        &self,
        partition: &Partition,
        shard: u32,
        after: u64,
        limit: usize,
        bytes: usize,
    ) -> Result<Vec<(u64, Queued)>, StoreError> {
        let partition = partition.clone();
        let read = move |shared: &Shared| queued(shared, &partition, shard, after, limit, bytes);
        self.read(read).await
    }

    async fn dequeue(
        &self,
        partition: &Partition,
        claim: Claim,
        shard: u32,
        through: u64,
    ) -> Result<(), StoreError> {
        let partition = partition.clone();
        self.ask(|answer| Request::Dequeue { partition, claim, shard, through, answer }).await?
    }

    async fn partitions_of(
        &self,
        stream: &str,
        keys: &[&str],
    ) -> Result<Vec<Option<u32>>, StoreError> {
        let places: Vec<_> = keys.iter().map(|key| keys::job(stream, key)).collect();
        self.read(move |shared| partitions_of(shared, &places)).await
    }

    async fn waiting_in(&self, partition: &Partition) -> Result<Vec<Range<u64>>, StoreError> {
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
    let (mut events, mut read) = (Vec::new(), 0);
    let (snapshot, now) = (shared.tables.db.snapshot(), shared.clock.now());
    for range in wanted {
        let (from, last) = (keys::retained(to, key, *range.start()), *range.end());
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
    after: u64,
    limit: usize,
    bytes: usize,
) -> Result<Vec<(u64, Queued)>, StoreError> {
    let snapshot = store.tables.db.snapshot();
    let queue = snapshot.get(&store.tables.log, keys::queue(partition, shard));
    let queue = Queue::decode(queue.map_err(|error| read_error(&error))?.as_deref())?;
    let from = keys::queued(partition, shard, queue.first.max(after + 1));
    let (mut events, mut read) = (Vec::new(), 0);
    for entry in
        snapshot.range(&store.tables.queue, from..=keys::queued(partition, shard, u64::MAX))
    {
        let (place, value) = entry.into_inner().map_err(|error| read_error(&error))?;
        if events.len() >= limit || (!events.is_empty() && read + value.len() > bytes) {
            break;
        }
        read += value.len();
        let number = keys::outbox_number(&place).unwrap_or_default();
        events.push((number, decode_queued(detach(value))));
    }
    Ok(events)
}

fn partitions_of(shared: &Shared, places: &[Vec<u8>]) -> Result<Vec<Option<u32>>, StoreError> {
    let partition = |place: &Vec<u8>| {
        let found = shared.tables.jobs.get(place).map_err(|error| read_error(&error))?;
        Ok(found.and_then(|it| Some(Record::parse(&it).ok()?.job.partition)))
    };
    places.iter().map(partition).collect()
}

fn waiting_in(shared: &Shared, partition: &Partition) -> Result<Vec<Range<u64>>, StoreError> {
    let of_shard = |shard| {
        let found = shared.tables.log.get(keys::queue(partition, shard));
        let found = found.map_err(|error| read_error(&error))?;
        let Queue { first, last } = Queue::decode(found.as_deref())?;
        Ok(first..last.saturating_add(1))
    };
    (0..shared.shards).map(of_shard).collect()
}
