//! What people look at: streams, keys, dead letters. What cannot be read is listed as that, with
//! the reason, rather than left out. Must be bounded in time and memory by page, however much
//! the store holds.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use fjall::{Keyspace, Readable, Slice, Snapshot};
use ordain_core::{Cause, DeadLetter, Key, LetterContent, LetterId};

use super::keys;
use super::record::{Record, State};
use super::shared::Shared;
use super::tables::{Tables, detach, read_error};
use ordain_store::codec::decode_letter;
use ordain_store::{KeyFilter, KeyRow, Page, StoreError, StoredLetter};

/// Rows of a page, whatever is asked for.
const PAGE_ROWS: usize = 1_000;

/// Bytes of letters of a page, after the first.
const PAGE_BYTES: usize = 8 * 1024 * 1024;

/// Jobs looked at for a page, so that a rare status does not make it wait: about 20 ms.
const PAGE_SCAN: usize = 10_000;

/// What the cursors of the two listings begin with.
const KEY_CURSOR: &str = "k1:";
const LETTER_CURSOR: &str = "d1:";

/// See [`Store::streams`](ordain_store::Store::streams).
pub(super) fn streams(shared: &Shared) -> Result<Vec<Arc<str>>, StoreError> {
    let snapshot = shared.tables.db.snapshot();
    let mut names = BTreeSet::new();
    let Tables { jobs, letters, outbox, queue, .. } = &shared.tables;
    for table in [jobs, letters, outbox, queue] {
        let mut from = Vec::new();
        while let Some(place) = first_from(&snapshot, table, from)? {
            let Some((name, _)) = keys::split_stream(&place) else { break };
            names.insert(Arc::from(name));
            from = keys::after_stream(name);
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

/// See [`Store::keys`](ordain_store::Store::keys).
pub(super) fn keys(
    shared: &Shared,
    stream: &str,
    filter: &KeyFilter,
) -> Result<Page<KeyRow>, StoreError> {
    let snapshot = shared.tables.db.snapshot();
    let now = shared.clock.now();
    let prefix = keys::job(stream, &filter.prefix);
    let from = match &filter.cursor {
        None => prefix.clone(),
        Some(cursor) => {
            let last =
                cursor.strip_prefix(KEY_CURSOR).filter(|last| last.starts_with(&filter.prefix));
            let last = last.ok_or_else(|| StoreError::Cursor(cursor.clone()))?;
            after(keys::job(stream, last))
        }
    };
    let (limit, most) = (filter.limit.clamp(1, PAGE_ROWS), filter.looks.unwrap_or(PAGE_SCAN));
    let mut rows = Vec::new();
    for (count, entry) in snapshot.range(&shared.tables.jobs, from..).enumerate() {
        let (place, stored) = entry.into_inner().map_err(|error| read_error(&error))?;
        if !place.starts_with(&prefix) {
            break;
        }
        let Some((_, key)) = keys::split_job(&place) else { continue };
        if let Some(row) = key_row(key, &stored, now)
            && filter
                .status
                .is_none_or(|status| row.job.as_ref().is_ok_and(|job| job.status == status))
        {
            rows.push(row);
        }
        if rows.len() >= limit || count >= most {
            return Ok(Page { rows, cursor: Some(format!("{KEY_CURSOR}{key}")) });
        }
    }
    Ok(Page { rows, cursor: None })
}

/// See [`Store::key`](ordain_store::Store::key).
pub(super) fn key(
    shared: &Shared,
    stream: &str,
    key: &str,
) -> Result<Option<(KeyRow, Option<Bytes>)>, StoreError> {
    let tables = &shared.tables;
    let snapshot = tables.db.snapshot();
    let place = keys::job(stream, key);
    let stored = snapshot.get(&tables.jobs, &place).map_err(|error| read_error(&error))?;
    let Some(stored) = stored else { return Ok(None) };
    let Some(row) = key_row(key, &stored, shared.clock.now()) else { return Ok(None) };
    let state = match Record::parse(&stored).map(|record| record.state) {
        Ok(State::None) => None,
        Ok(State::Inline(state)) => Some(Bytes::copy_from_slice(state)),
        // Of a job that cannot be read, show at least this.
        Ok(State::Beside(_)) | Err(_) => {
            let state = snapshot.get(&tables.states, &place);
            state.map_err(|error| read_error(&error))?.map(detach)
        }
    };
    Ok(Some((row, state)))
}

/// A job as a row; `None` if it has expired.
fn key_row(key: &str, stored: &[u8], now: u64) -> Option<KeyRow> {
    let key = Key::from(key);
    let record = match Record::parse(stored) {
        Ok(record) => record,
        Err(error) => {
            return Some(KeyRow { key, job: Err(error.to_string()), state_size: 0, due_at: None });
        }
    };
    if record.envelope.expired(now) {
        return None;
    }
    Some(KeyRow {
        key,
        job: Ok(record.job.to_job()),
        state_size: record.state.size().unwrap_or_default(),
        due_at: (record.envelope.due_at != 0).then_some(record.envelope.due_at),
    })
}

/// See [`Store::letters`](ordain_store::Store::letters).
pub(super) fn letters(
    shared: &Shared,
    stream: &str,
    key: Option<&str>,
    cursor: Option<&str>,
    limit: usize,
) -> Result<Page<StoredLetter>, StoreError> {
    let snapshot = shared.tables.db.snapshot();
    let now = shared.clock.now();
    let prefix = key.map_or_else(|| keys::stream(stream), |key| keys::letter_key(stream, key));
    let from = match cursor {
        None => prefix.clone(),
        Some(cursor) => {
            let place = read_cursor(cursor).map(|id| keys::letter(stream, &id));
            let place = place.filter(|place| place.starts_with(&prefix));
            after(place.ok_or_else(|| StoreError::Cursor(cursor.to_owned()))?)
        }
    };
    let (mut rows, mut bytes) = (Vec::new(), 0);
    for entry in snapshot.range(&shared.tables.letters, from..) {
        let (place, value) = entry.into_inner().map_err(|error| read_error(&error))?;
        if !place.starts_with(&prefix) {
            break;
        }
        bytes += value.len();
        let Some(letter) = kept_letter(shared, &place, value.into(), now) else { continue };
        let id = letter.letter.id.clone();
        rows.push(letter);
        if rows.len() >= limit.clamp(1, PAGE_ROWS) || bytes >= PAGE_BYTES {
            return Ok(Page { rows, cursor: Some(write_cursor(&id)) });
        }
    }
    Ok(Page { rows, cursor: None })
}

/// See [`Store::letter`](ordain_store::Store::letter).
pub(super) fn letter(
    shared: &Shared,
    stream: &str,
    id: &LetterId,
) -> Result<Option<StoredLetter>, StoreError> {
    let place = keys::letter(stream, id);
    let value = shared.tables.letters.get(&place).map_err(|error| read_error(&error))?;
    let now = shared.clock.now();
    Ok(value.and_then(|value| kept_letter(shared, &place, value.into(), now)))
}

/// A letter as kept; `None` if it is too old. One that cannot be read is shown as its bytes.
fn kept_letter(shared: &Shared, place: &[u8], value: Bytes, now: u64) -> Option<StoredLetter> {
    match decode_letter(&value) {
        Ok(stored) => shared.letter_lives(stored.at, now).then_some(stored),
        Err(error) => {
            let letter = DeadLetter {
                id: keys::split_letter(place)?,
                cause: Cause::Corrupt,
                error: format!("this letter cannot be read: {error}"),
                origin: None,
                version: None,
                content: LetterContent::Raw(value),
            };
            Some(StoredLetter { letter, at: 0 })
        }
    }
}

/// Writes a cursor that points behind a letter.
pub fn write_cursor(id: &LetterId) -> String {
    format!("{LETTER_CURSOR}{}:{}:{}", id.sequence, id.tag, id.key)
}

/// Reads a cursor of [`write_cursor`], or returns `None`.
pub fn read_cursor(cursor: &str) -> Option<LetterId> {
    let mut parts = cursor.strip_prefix(LETTER_CURSOR)?.splitn(3, ':');
    let sequence = parts.next()?.parse().ok()?;
    let tag = parts.next()?.parse().ok()?;
    Some(LetterId { key: parts.next()?.into(), sequence, tag })
}

/// The first place after this one.
fn after(mut place: Vec<u8>) -> Vec<u8> {
    place.push(0);
    place
}
