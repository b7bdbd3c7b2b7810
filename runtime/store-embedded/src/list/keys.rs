//! Lists streams and their keys.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use fjall::{Keyspace, Readable, Slice, Snapshot};
use ordain_core::Key;

use super::super::record::{EmbeddedRecord, StateLocation};
use super::super::shared::SharedStore;
use super::super::tables::{Tables, into_owned_bytes, read_error};
use super::super::{EmbeddedStore, keys as table_keys};
use super::after;
use ordain_store::{KeyFilter, KeyListing, ListPage, PAGE_ROWS_LIMIT, StoreError, StoredKey};

/// The default of [`KeyFilter::scan_limit`]. With this limit, a page takes at most about 20 ms, even if the filter
/// finds only a few keys.
const PAGE_SCAN_LIMIT: usize = 10_000;

const CURSOR_PREFIX: &str = "k1:";

#[async_trait]
impl KeyListing for EmbeddedStore {
    async fn streams(&self) -> Result<Vec<Arc<str>>, StoreError> {
        self.read(streams).await
    }

    async fn keys(
        &self,
        stream: &str,
        filter: &KeyFilter,
    ) -> Result<ListPage<StoredKey>, StoreError> {
        let stream = stream.to_owned();
        let filter = filter.clone();
        self.read(move |shared| keys(shared, &stream, &filter)).await
    }

    async fn key(
        &self,
        stream: &str,
        key: &str,
    ) -> Result<Option<(StoredKey, Option<Bytes>)>, StoreError> {
        let stream = stream.to_owned();
        let key = key.to_owned();
        self.read(move |shared| read_key(shared, &stream, &key)).await
    }
}

fn streams(shared: &SharedStore) -> Result<Vec<Arc<str>>, StoreError> {
    let snapshot = shared.tables.db.snapshot();
    let mut names = BTreeSet::new();
    let Tables { jobs, letters, outbox, queue, .. } = &shared.tables;
    for table in [jobs, letters, outbox, queue] {
        let mut from = Vec::new();
        while let Some(table_key) = first_from(&snapshot, table, from)? {
            let Some((name, _)) = table_keys::split_stream(&table_key) else { break };
            names.insert(Arc::from(name));
            from = table_keys::after_stream(name);
        }
    }
    Ok(names.into_iter().collect())
}

fn first_from(
    snapshot: &Snapshot,
    table: &Keyspace,
    from: Vec<u8>,
) -> Result<Option<Slice>, StoreError> {
    let entry = snapshot.range(table, from..).next();
    entry.map(fjall::Guard::key).transpose().map_err(|error| read_error(&error))
}

fn keys(
    shared: &SharedStore,
    stream: &str,
    filter: &KeyFilter,
) -> Result<ListPage<StoredKey>, StoreError> {
    let snapshot = shared.tables.db.snapshot();
    let now = shared.clock.now();
    let prefix = table_keys::key_record(stream, &filter.prefix);
    let from = match &filter.cursor {
        None => prefix.clone(),
        Some(cursor) => {
            let last =
                cursor.strip_prefix(CURSOR_PREFIX).filter(|last| last.starts_with(&filter.prefix));
            let last = last.ok_or_else(|| StoreError::Cursor(cursor.clone()))?;
            after(table_keys::key_record(stream, last))
        }
    };
    let limit = filter.limit.clamp(1, PAGE_ROWS_LIMIT);
    let scan_limit = filter.scan_limit.unwrap_or(PAGE_SCAN_LIMIT);
    let mut rows = Vec::new();
    for (count, entry) in snapshot.range(&shared.tables.jobs, from..).enumerate() {
        let (table_key, stored) = entry.into_inner().map_err(|error| read_error(&error))?;
        if !table_key.starts_with(&prefix) {
            break;
        }
        let Some((_, key)) = table_keys::split_key_record(&table_key) else { continue };
        if let Some(row) = key_row(key, &stored, now)
            && filter.status.is_none_or(|status| {
                row.record.as_ref().is_ok_and(|record| record.status == status)
            })
        {
            rows.push(row);
        }
        if rows.len() >= limit || count >= scan_limit {
            return Ok(ListPage { rows, cursor: Some(format!("{CURSOR_PREFIX}{key}")) });
        }
    }
    Ok(ListPage { rows, cursor: None })
}

fn read_key(
    shared: &SharedStore,
    stream: &str,
    key: &str,
) -> Result<Option<(StoredKey, Option<Bytes>)>, StoreError> {
    let tables = &shared.tables;
    let snapshot = tables.db.snapshot();
    let table_key = table_keys::key_record(stream, key);
    let stored = snapshot.get(&tables.jobs, &table_key).map_err(|error| read_error(&error))?;
    let Some(stored) = stored else { return Ok(None) };
    let Some(row) = key_row(key, &stored, shared.clock.now()) else { return Ok(None) };
    let state = match EmbeddedRecord::parse(&stored).map(|record| record.state) {
        Ok(StateLocation::None) => None,
        Ok(StateLocation::Inline(state)) => Some(Bytes::copy_from_slice(state)),
        // Return the state from its separate entry. For an unreadable key record, this may be the only readable data.
        Ok(StateLocation::Separate(_)) | Err(_) => {
            let state = snapshot.get(&tables.states, &table_key);
            state.map_err(|error| read_error(&error))?.map(into_owned_bytes)
        }
    };
    Ok(Some((row, state)))
}

/// Returns a key record as a row; `None` if the record has expired.
fn key_row(key: &str, stored: &[u8], now: u64) -> Option<StoredKey> {
    let key = Key::from(key);
    let record = match EmbeddedRecord::parse(stored) {
        Ok(record) => record,
        Err(error) => {
            return Some(StoredKey {
                key,
                record: Err(error.to_string()),
                state_size: 0,
                due_at: None,
            });
        }
    };
    if record.envelope.is_expired(now) {
        return None;
    }
    Some(StoredKey {
        key,
        record: Ok(record.key_record.to_key_record()),
        state_size: record.state.size().unwrap_or_default(),
        due_at: (record.envelope.due_at != 0).then_some(record.envelope.due_at),
    })
}
