//! The due index: for each partition, a list of keys, each with the earliest time at which the owner must handle the
//! key.

use async_trait::async_trait;
use fjall::{Readable, Snapshot};
use ordain_core::Key;

use super::record::EmbeddedRecord;
use super::shared::SharedStore;
use super::tables::{is_damage, read_error};
use super::{EmbeddedStore, keys};
use ordain_store::{DueIndex, Partition, StoreError};

#[async_trait]
impl DueIndex for EmbeddedStore {
    async fn due(
        &self,
        partition: &Partition,
        after: Option<&(u64, Key)>,
        limit: usize,
        all: bool,
    ) -> Result<(Vec<(u64, Key)>, Option<u64>), StoreError> {
        let partition = partition.clone();
        let after = after.cloned();
        self.read(move |shared| due(shared, &partition, after.as_ref(), limit, all)).await
    }
}

/// Due entries, and the time until the next entry, in ms; `None` if there is no next entry.
type DueEntries = (Vec<(u64, Key)>, Option<u64>);

fn due(
    shared: &SharedStore,
    partition: &Partition,
    after: Option<&(u64, Key)>,
    limit: usize,
    future: bool,
) -> Result<DueEntries, StoreError> {
    let mark = shared.due.get(partition);
    let snapshot = shared.tables.db.snapshot();
    let now = shared.clock.now();
    let all = keys::due_all(partition);
    let start = match after {
        None => keys::due_from(partition, mark.from),
        Some((at, key)) => keys::after(keys::due(partition, *at, key)),
    };
    let range = start..keys::after(keys::due_from(partition, u64::MAX));
    // Only a read without `after` finds the first entry of the index. Only such a read may therefore advance the
    // watermark, the time at which later reads without `after` start.
    let advance = |to: u64| {
        if after.is_none() {
            shared.due.advance(partition, mark, to);
        }
    };
    let mut due = Vec::new();
    let mut first = None;
    for entry in snapshot.range(&shared.tables.times, range) {
        let entry = entry.key().map_err(|error| read_error(&error))?;
        let Some((at, key)) = keys::split_due(&all, &entry) else { continue };
        let first = *first.get_or_insert(at);
        if !is_due(shared, &snapshot, partition, &key, at, now)? {
            continue;
        }
        if (at > now && !future) || due.len() >= limit {
            advance(first.min(now));
            return Ok((due, Some(at.saturating_sub(now))));
        }
        due.push((at, key));
    }
    advance(first.unwrap_or(now).min(now));
    Ok((due, None))
}

/// Returns whether an entry is current. An entry is current if its key record is readable, has not expired, and has the
/// time of the entry as its due time. The index also has entries that are not current: the sweep removes an expired key
/// record and its entry only later, and never removes an unreadable key record.
fn is_due(
    shared: &SharedStore,
    snapshot: &Snapshot,
    partition: &Partition,
    key: &str,
    at: u64,
    now: u64,
) -> Result<bool, StoreError> {
    let table_key = keys::key_record(&partition.stream, key);
    let stored = match snapshot.get(&shared.tables.jobs, table_key) {
        Err(error) if !is_damage(&error) => return Err(read_error(&error)),
        stored => stored.ok().flatten(),
    };
    let record = stored.as_deref().and_then(|bytes| EmbeddedRecord::parse(bytes).ok());
    Ok(record
        .is_some_and(|record| record.envelope.due_at == at && !record.envelope.is_expired(now)))
}
