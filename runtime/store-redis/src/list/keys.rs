//! Lists streams and keys. A listing of keys reads one shard after the other, and each shard in the order of the
//! server's `HSCAN`. A key that exists throughout the listing is listed at least once.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::try_join_all;
use ordain_core::Key;
use redis::cmd;

use super::super::names::{RedisKeyKind, escape_pattern};
use super::super::record::{MISSING_STATE_MESSAGE, RedisRecord, StatePlacement};
use super::super::value::{array, bytes, number, parts, text, unexpected_reply};
use super::super::{RedisStore, commit};
use ordain_store::{
    Destination, KeyFilter, KeyListing, ListPage, PAGE_ROWS_LIMIT, StoreError, StoredKey,
};

/// The approximate maximum number of fields that the store examines for one page, if the caller requests no other
/// limit. With this limit, a page takes a short time even if the filter finds only a few keys.
const PAGE_SCAN_LIMIT: usize = 20_000;
/// A call that examines this number of fields blocks the server for about a millisecond.
const CALL_SCAN_LIMIT: usize = 500;

const CURSOR_PREFIX: &str = "k1:";

/// The start of a page: the shard, and the cursor of `HSCAN` in the shard. If `after` is `Some`, earlier pages have
/// listed all keys of the shard up to this key, in the order of the keys. The page, and the later pages of the shard,
/// then omit these keys.
#[derive(Debug, PartialEq, Eq)]
pub struct KeyCursor {
    shard: u32,
    scan: u64,
    after: Option<Key>,
}

impl KeyCursor {
    /// Parses a cursor for a store with this number of shards. Returns `None` if the cursor is not valid.
    pub fn parse(cursor: &str, shards: u32) -> Option<Self> {
        let mut parts = cursor.strip_prefix(CURSOR_PREFIX)?.splitn(3, ':');
        let shard = parts.next()?.parse().ok().filter(|shard| *shard < shards)?;
        let scan = parts.next()?.parse().ok()?;
        let after = parts.next()?;
        let after = if after.is_empty() { None } else { Some(after.strip_prefix('=')?.into()) };
        Some(Self { shard, scan, after })
    }

    /// Returns the cursor as text.
    pub fn text(&self) -> String {
        let after = self.after.as_ref().map(|key| format!("={key}")).unwrap_or_default();
        format!("{CURSOR_PREFIX}{}:{}:{after}", self.shard, self.scan)
    }
}

#[async_trait]
impl KeyListing for RedisStore {
    async fn streams(&self) -> Result<Vec<Arc<str>>, StoreError> {
        let mut ask = cmd("SMEMBERS");
        ask.arg(self.names.in_common_shard(RedisKeyKind::Partitions));
        let partitions = array(self.run_command(&ask).await?, "partitions")?;
        let names: BTreeSet<Arc<str>> = partitions
            .into_iter()
            .filter_map(text)
            .filter_map(|partition| partition.split_once(':').map(|(_, stream)| stream.into()))
            .collect();
        let holding = try_join_all(names.iter().map(|stream| holds_anything(self, stream))).await?;
        Ok(names
            .into_iter()
            .zip(holding)
            .filter(|(_, holds)| *holds)
            .map(|(name, _)| name)
            .collect())
    }

    async fn keys(
        &self,
        stream: &str,
        filter: &KeyFilter,
    ) -> Result<ListPage<StoredKey>, StoreError> {
        let mut at = match &filter.cursor {
            None => KeyCursor { shard: 0, scan: 0, after: None },
            Some(cursor) => KeyCursor::parse(cursor, self.shards)
                .ok_or_else(|| StoreError::Cursor(cursor.clone()))?,
        };
        let limit = filter.limit.clamp(1, PAGE_ROWS_LIMIT);
        let scan_limit = filter.scan_limit.unwrap_or(PAGE_SCAN_LIMIT);
        let mut rows = Vec::new();
        let mut scanned = 0;
        let mut count = limit;
        while at.shard < self.shards {
            count = count.clamp(1, CALL_SCAN_LIMIT);
            let (next, found) = scan(self, stream, &at, filter, count).await?;
            scanned += count;
            let before = rows.len();
            let is_wanted = |row: &StoredKey| {
                let status = row.record.as_ref().ok().map(|record| record.status);
                at.after.as_ref().is_none_or(|after| row.key > *after)
                    && (filter.status.is_none() || filter.status == status)
            };
            rows.extend(found.into_iter().filter(is_wanted));
            // Truncate the result of `HSCAN` only if the result is the whole hash. Otherwise the server could resize
            // its hash table before the next page, and the same cursor would then return other fields.
            if rows.len() > limit && at.scan == 0 && next == 0 {
                rows.truncate(limit);
                at.after = rows.last().map(|row| row.key.clone());
                return Ok(ListPage { rows, cursor: Some(at.text()) });
            }
            count = if rows.len() == before { 2 * count } else { limit - limit.min(rows.len()) };
            // An earlier page may have truncated the result of a scan of the whole hash. If this scan, with a smaller
            // count, returns only a part of the hash, any later scan of the shard may return keys of the earlier page.
            // Keep `after` until the end of the shard, so that the later pages omit these keys.
            let after = at.after.filter(|_| next != 0);
            at = KeyCursor { shard: at.shard + u32::from(next == 0), scan: next, after };
            if at.shard < self.shards && (rows.len() >= limit || scanned >= scan_limit) {
                return Ok(ListPage { rows, cursor: Some(at.text()) });
            }
        }
        Ok(ListPage { rows, cursor: None })
    }

    async fn key(
        &self,
        stream: &str,
        key: &str,
    ) -> Result<Option<(StoredKey, Option<Bytes>)>, StoreError> {
        let script = &self.scripts.load;
        let names =
            self.stream_keys(self.shard_of(key), stream, [RedisKeyKind::Data, RedisKeyKind::Ids]);
        let mut call = self.script_call(script, &names);
        // The first argument is the limit in bytes. The limit has no effect, because the script always returns the
        // first key record, even if this record exceeds the limit.
        call.arg(u32::MAX).arg(commit::record_field(key));
        let [_, now, found] = parts(self.run_script(script, call).await?, script.name)?;
        let now = number(&now).ok_or_else(|| unexpected_reply(script.name))?;
        if found == redis::Value::Nil {
            return Ok(None);
        }
        let [record, beside, ..]: [_; 4] = parts(found, script.name)?;
        let record = bytes(record).unwrap_or_default();
        let state = match RedisRecord::parse(&record).map(|record| record.state) {
            Ok(Some(StatePlacement::Inline(state))) => Some(record.slice_ref(state)),
            Ok(Some(StatePlacement::Separate)) => bytes(beside),
            Ok(None) | Err(_) => None,
        };
        let size = state.as_ref().map_or(0, |state| state.len() as u64);
        Ok(key_row(key, &record, size, now).map(|row| (row, state)))
    }
}

async fn holds_anything(store: &RedisStore, stream: &str) -> Result<bool, StoreError> {
    let script = &store.scripts.has_data;
    // Check the shards one after the other. Usually the first check is enough, because the first shard nearly always
    // has data of the stream.
    for shard in 0..store.shards {
        let [data] = store.stream_keys(shard, stream, [RedisKeyKind::Data]);
        let log = store.log_key(shard, &Destination::Stream(stream.into()));
        let names = [data, log];
        let mut cursor = 0;
        loop {
            let mut call = store.script_call(script, &names);
            call.arg(cursor);
            let [found, next] = parts(store.run_script(script, call).await?, script.name)?;
            cursor = number(&next).ok_or_else(|| unexpected_reply(script.name))?;
            if number(&found) == Some(1) {
                return Ok(true);
            }
            if cursor == 0 {
                break;
            }
        }
    }
    Ok(false)
}

/// Returns the key records that one call of `HSCAN` finds, sorted by key, and the next cursor.
async fn scan(
    store: &RedisStore,
    stream: &str,
    at: &KeyCursor,
    filter: &KeyFilter,
    count: usize,
) -> Result<(u64, Vec<StoredKey>), StoreError> {
    let script = &store.scripts.keys;
    let mut call =
        store.script_call(script, &store.stream_keys(at.shard, stream, [RedisKeyKind::Data]));
    call.arg(at.scan).arg(pattern(&filter.prefix)).arg(count);
    call.arg(filter.status.map_or_else(String::new, |status| (status as u8).to_string()));
    let [next, now, found] = parts(store.run_script(script, call).await?, script.name)?;
    let (next, now) =
        number(&next).zip(number(&now)).ok_or_else(|| unexpected_reply(script.name))?;
    let mut rows = Vec::new();
    for row in array(found, script.name)? {
        let [key, record, size] = parts(row, script.name)?;
        // Skip a field that is not UTF-8, because another program has written it.
        let Some(key) = text(key) else { continue };
        let record = bytes(record).unwrap_or_default();
        rows.extend(key_row(&key, &record, number(&size).unwrap_or(0), now));
    }
    rows.sort_by(|a, b| a.key.cmp(&b.key));
    rows.dedup_by(|a, b| a.key == b.key);
    Ok((next, rows))
}

/// Returns the pattern for `HSCAN` that matches the key records of all keys with this prefix.
fn pattern(prefix: &str) -> String {
    format!("j{}*", escape_pattern(prefix))
}

/// Returns a key record as a row; `None` if the record has expired.
fn key_row(key: &str, record: &[u8], state_size: u64, now: u64) -> Option<StoredKey> {
    let (key_record, due_at) = match RedisRecord::parse(record) {
        Err(error) => (Err(error.to_string()), None),
        Ok(record) if record.is_expired(now) => return None,
        Ok(RedisRecord { state: Some(StatePlacement::Separate), .. }) if state_size == 0 => {
            (Err(MISSING_STATE_MESSAGE.to_owned()), None)
        }
        Ok(record) => (Ok(record.key_record.to_key_record()), record.due_at),
    };
    Some(StoredKey { key: key.into(), record: key_record, state_size, due_at })
}
