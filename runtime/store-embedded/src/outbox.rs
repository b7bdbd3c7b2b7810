//! Reads the unpublished messages and letters of committed batches.

use async_trait::async_trait;
use fjall::Readable;

use super::request::{OutboxRemoval, WriterRequest};
use super::shared::SharedStore;
use super::tables::read_error;
use super::writer::read_number;
use super::{EmbeddedStore, keys};
use ordain_store::codec::decode_outbox;
use ordain_store::{Claim, Mark, Outbox, OutboxEntry, Partition, StoreError, check_marks};

/// The maximum size of the outbox entries that one read returns, in bytes: the size of four full commits. A read
/// returns its first entry even if that entry is larger.
const OUTBOX_READ_BYTES: usize = 16 * 1024 * 1024;

#[async_trait]
impl Outbox for EmbeddedStore {
    async fn outbox(
        &self,
        partition: &Partition,
        shard: u32,
        after: u64,
        limit: usize,
    ) -> Result<Vec<OutboxEntry>, StoreError> {
        let partition = partition.clone();
        self.read(move |shared| outbox(shared, &partition, shard, after, limit)).await
    }

    async fn outbox_done(
        &self,
        partition: &Partition,
        claim: Claim,
        shard: u32,
        through: u64,
        marks: &[Mark],
    ) -> Result<Option<u64>, StoreError> {
        check_marks(marks)?;
        let outbox = Some(OutboxRemoval { partition: partition.clone(), claim, shard, through });
        let marks = marks.to_vec();
        self.send_request(|answer| WriterRequest::Done { outbox, marks, answer }).await
    }
}

#[allow(clippy::similar_names, reason = "both names are terms of the outbox")]
fn outbox(
    shared: &SharedStore,
    partition: &Partition,
    shard: u32,
    after: u64,
    limit: usize,
) -> Result<Vec<OutboxEntry>, StoreError> {
    let tables = &shared.tables;
    let snapshot = tables.db.snapshot();
    let done = snapshot.get(&tables.meta, keys::published_commit(partition, shard));
    let after = read_number(done.map_err(|error| read_error(&error))?).max(after);
    let Some(first) = after.checked_add(1) else { return Ok(Vec::new()) };
    let range = keys::outbox(partition, shard, first)..=keys::outbox(partition, shard, u64::MAX);
    let mut entries = Vec::new();
    let mut bytes = 0;
    for entry in snapshot.range(&tables.outbox, range) {
        let (table_key, value) = entry.into_inner().map_err(|error| read_error(&error))?;
        if !entries.is_empty()
            && (entries.len() >= limit || bytes + value.len() > OUTBOX_READ_BYTES)
        {
            break;
        }
        bytes += value.len();
        let number = keys::outbox_number(&table_key).unwrap_or_default();
        entries.push(decode_outbox(number, &value.into()).map_err(|error| {
            StoreError::Corrupt(format!(
                "stream {:?}, partition {}, shard {shard}, commit {number}: {error}",
                partition.stream, partition.number
            ))
        })?);
    }
    Ok(entries)
}
