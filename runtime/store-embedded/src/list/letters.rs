//! Lists dead letters.

use async_trait::async_trait;
use bytes::Bytes;
use fjall::Readable;
use ordain_core::LetterId;

use super::super::shared::SharedStore;
use super::super::tables::read_error;
use super::super::{EmbeddedStore, keys};
use super::after;
use ordain_store::codec::decode_letter;
use ordain_store::{
    LETTERS_PAGE_BYTES, LetterListing, ListPage, PAGE_ROWS_LIMIT, StoreError, StoredLetter,
};

const CURSOR_PREFIX: &str = "d1:";

#[async_trait]
impl LetterListing for EmbeddedStore {
    async fn letters(
        &self,
        stream: &str,
        key: Option<&str>,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<ListPage<StoredLetter>, StoreError> {
        let stream = stream.to_owned();
        let key = key.map(str::to_owned);
        let cursor = cursor.map(str::to_owned);
        self.read(move |shared| letters(shared, &stream, key.as_deref(), cursor.as_deref(), limit))
            .await
    }

    async fn letter(
        &self,
        stream: &str,
        id: &LetterId,
    ) -> Result<Option<StoredLetter>, StoreError> {
        let stream = stream.to_owned();
        let id = id.clone();
        self.read(move |shared| letter(shared, &stream, &id)).await
    }
}

fn letters(
    shared: &SharedStore,
    stream: &str,
    key: Option<&str>,
    cursor: Option<&str>,
    limit: usize,
) -> Result<ListPage<StoredLetter>, StoreError> {
    let snapshot = shared.tables.db.snapshot();
    let now = shared.clock.now();
    let prefix = key.map_or_else(|| keys::stream(stream), |key| keys::letter_key(stream, key));
    let from = match cursor {
        None => prefix.clone(),
        Some(cursor) => {
            let table_key = read_cursor(cursor).map(|id| keys::letter(stream, &id));
            let table_key = table_key.filter(|table_key| table_key.starts_with(&prefix));
            after(table_key.ok_or_else(|| StoreError::Cursor(cursor.to_owned()))?)
        }
    };
    let limit = limit.clamp(1, PAGE_ROWS_LIMIT);
    let mut rows = Vec::new();
    let mut bytes = 0;
    for entry in snapshot.range(&shared.tables.letters, from..) {
        let (table_key, value) = entry.into_inner().map_err(|error| read_error(&error))?;
        if !table_key.starts_with(&prefix) {
            break;
        }
        bytes += value.len();
        rows.extend(kept_letter(shared, &table_key, value.into(), now));
        // Expired letters count too, because the store reads them.
        let is_full = rows.len() >= limit || bytes >= LETTERS_PAGE_BYTES;
        if is_full && let Some(id) = keys::split_letter(&table_key) {
            return Ok(ListPage { rows, cursor: Some(write_cursor(&id)) });
        }
    }
    Ok(ListPage { rows, cursor: None })
}

fn letter(
    shared: &SharedStore,
    stream: &str,
    id: &LetterId,
) -> Result<Option<StoredLetter>, StoreError> {
    let table_key = keys::letter(stream, id);
    let value = shared.tables.letters.get(&table_key).map_err(|error| read_error(&error))?;
    let now = shared.clock.now();
    Ok(value.and_then(|value| kept_letter(shared, &table_key, value.into(), now)))
}

/// Returns the letter that is stored at `table_key`; `None` if the letter has expired. The letter of an unreadable
/// record contains the raw bytes of the record.
fn kept_letter(
    shared: &SharedStore,
    table_key: &[u8],
    value: Bytes,
    now: u64,
) -> Option<StoredLetter> {
    match decode_letter(&value) {
        Ok(stored) => shared.is_letter_live(stored.at, now).then_some(stored),
        Err(error) => Some(StoredLetter::unreadable(keys::split_letter(table_key)?, &error, value)),
    }
}

/// Returns the cursor of the page that starts after a letter.
pub fn write_cursor(id: &LetterId) -> String {
    format!("{CURSOR_PREFIX}{}:{}:{}", id.sequence, id.tag, id.key)
}

/// Parses a cursor that [`write_cursor`] returned. Returns `None` if the cursor is not valid.
pub fn read_cursor(cursor: &str) -> Option<LetterId> {
    let mut parts = cursor.strip_prefix(CURSOR_PREFIX)?.splitn(3, ':');
    let sequence = parts.next()?.parse().ok()?;
    let tag = parts.next()?.parse().ok()?;
    Some(LetterId { key: parts.next()?.into(), sequence, tag })
}
