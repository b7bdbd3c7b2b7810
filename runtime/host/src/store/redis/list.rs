//! What people look at: streams, keys, dead letters. What cannot be read is listed as that, with
//! the reason, rather than left out. Must be bounded in time and memory by page, however much the
//! store holds.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::try_join_all;
use ordain_core::{Cause, DeadLetter, Event, Key, LetterContent, LetterId};
use redis::{Value, cmd};

use super::read::Numbered;
use super::record::Record;
use super::value::{array, bytes, number, parts, strange, text};
use super::{FIND_BYTES, Redis};
use crate::store::codec::{decode_letter, put_letter_key, put_letter_place, split_letter_place};
use crate::store::{KeyFilter, KeyRow, OutboxEntry, Page, Partition, StoreError, StoredLetter};

/// Rows of a page, whatever is asked for.
const PAGE_ROWS: usize = 1_000;
/// Bytes of letters of a page, after the first, from each shard.
const PAGE_BYTES: usize = 8 << 20;
/// Jobs looked at for a page, so that a rare status does not make it wait.
const PAGE_SCAN: usize = 10_000;
/// Jobs looked at in one call, which holds up everything else meanwhile: about a millisecond.
const SCAN: usize = 500;

/// What the cursors of the two listings begin with.
const KEY_CURSOR: &str = "k1:";
const LETTER_CURSOR: &str = "d1:";

/// What an outbox entry has, in bytes.
pub(super) fn size_of_entry(entry: &OutboxEntry) -> usize {
    let messages = entry.messages.iter().map(|message| message.emitted.message.memory());
    messages.chain(entry.letters.iter().map(DeadLetter::memory)).sum()
}

/// See [`Store::streams`](crate::store::Store::streams).
pub(super) async fn streams(store: &Redis) -> Result<Vec<Arc<str>>, StoreError> {
    let mut ask = cmd("SMEMBERS");
    ask.arg(store.names.common("partitions"));
    let partitions = array(store.ask(&ask).await?, "partitions")?;
    let mut streams = BTreeSet::new();
    for partition in partitions.into_iter().filter_map(text) {
        let Some((number, stream)) = partition.split_once(':') else { continue };
        let Ok(number) = number.parse() else { continue };
        let partition = Partition { stream: stream.into(), number };
        if !streams.contains(&partition.stream) && has_anything(store, &partition).await? {
            streams.insert(partition.stream);
        }
    }
    Ok(streams.into_iter().collect())
}

async fn has_anything(store: &Redis, partition: &Partition) -> Result<bool, StoreError> {
    let shards = (0..store.shards).map(async |shard| {
        let mut ask = cmd("EXISTS");
        ask.arg(&store.of_stream(shard, &partition.stream, ["jobs", "letters"])[..]);
        ask.arg(store.names.of_partition(shard, "outbox", partition));
        store.ask(&ask).await
    });
    let found = try_join_all(shards).await?;
    Ok(found.iter().any(|count| number(count).is_some_and(|count| count > 0)))
}

/// Where a page of keys begins: shard, the server's cursor there, and behind which key of what that
/// cursor gives.
struct KeyCursor {
    shard: u32,
    scan: u64,
    after: Option<Key>,
}

impl KeyCursor {
    fn parse(cursor: &str, shards: u32) -> Option<Self> {
        let mut parts = cursor.strip_prefix(KEY_CURSOR)?.splitn(3, ':');
        let shard = parts.next()?.parse().ok().filter(|shard| *shard < shards)?;
        let scan = parts.next()?.parse().ok()?;
        let after = parts.next()?;
        let after = if after.is_empty() { None } else { Some(after.strip_prefix('=')?.into()) };
        Some(Self { shard, scan, after })
    }

    fn text(&self) -> String {
        let after = self.after.as_ref().map(|key| format!("={key}")).unwrap_or_default();
        format!("{KEY_CURSOR}{}:{}:{after}", self.shard, self.scan)
    }
}

/// See [`Store::keys`](crate::store::Store::keys). By shard, and there as the server scans its
/// table: what is there all the time is listed once.
pub(super) async fn keys(
    store: &Redis,
    stream: &str,
    filter: &KeyFilter,
) -> Result<Page<KeyRow>, StoreError> {
    let mut at = match &filter.cursor {
        None => KeyCursor { shard: 0, scan: 0, after: None },
        Some(cursor) => KeyCursor::parse(cursor, store.shards)
            .ok_or_else(|| StoreError::Cursor(cursor.clone()))?,
    };
    let limit = filter.limit.clamp(1, PAGE_ROWS);
    let (mut rows, mut scanned) = (Vec::new(), 0);
    while at.shard < store.shards {
        let (next, found) = scan(store, stream, &at, &filter.prefix).await?;
        scanned += SCAN;
        for row in found {
            if at.after.as_ref().is_some_and(|after| row.key <= *after) {
                continue;
            }
            if filter
                .status
                .is_some_and(|status| !row.job.as_ref().is_ok_and(|job| job.status == status))
            {
                continue;
            }
            let key = row.key.clone();
            rows.push(row);
            if rows.len() >= limit {
                at.after = Some(key);
                return Ok(Page { rows, cursor: Some(at.text()) });
            }
        }
        let shard = at.shard + u32::from(next == 0);
        at = KeyCursor { shard, scan: next, after: None };
        if scanned >= PAGE_SCAN && at.shard < store.shards {
            return Ok(Page { rows, cursor: Some(at.text()) });
        }
    }
    Ok(Page { rows, cursor: None })
}

/// What one cursor of the server's gives, by key, and its next cursor.
async fn scan(
    store: &Redis,
    stream: &str,
    at: &KeyCursor,
    prefix: &str,
) -> Result<(u64, Vec<KeyRow>), StoreError> {
    let script = &store.scripts.keys;
    let names = store.of_stream(at.shard, stream, ["jobs", "states"]);
    let mut call = store.call_of(script, at.shard, stream, &names);
    call.arg(at.scan).arg(pattern(prefix)).arg(SCAN);
    let [next, now, found] = parts(store.run(script, call).await?, script.name)?;
    let (next, now) = number(&next).zip(number(&now)).ok_or_else(|| strange(script.name))?;
    let mut rows = Vec::new();
    for row in array(found, script.name)? {
        let [key, record, size] = parts(row, script.name)?;
        // Keys are texts; another one is somebody else's.
        let Some(key) = text(key) else { continue };
        let record = bytes(record).unwrap_or_default();
        rows.extend(key_row(&key, &record, number(&size).unwrap_or(0), now));
    }
    rows.sort_by(|a, b| a.key.cmp(&b.key));
    rows.dedup_by(|a, b| a.key == b.key);
    Ok((next, rows))
}

/// What matches all that begin so.
fn pattern(prefix: &str) -> String {
    if prefix.is_empty() {
        return String::new();
    }
    let mut pattern = String::with_capacity(prefix.len() + 1);
    for letter in prefix.chars() {
        if matches!(letter, '*' | '?' | '[' | ']' | '\\') {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern.push('*');
    pattern
}

/// A job as a row; `None` if it has expired.
fn key_row(key: &str, record: &[u8], state_size: u64, now: u64) -> Option<KeyRow> {
    let key = Key::from(key);
    match Record::parse(record) {
        Err(error) => Some(KeyRow { key, job: Err(error.to_string()), state_size, due_at: None }),
        Ok(record) if record.expired(now) => None,
        Ok(record) => {
            Some(KeyRow { key, job: Ok(record.job.to_job()), state_size, due_at: record.due_at })
        }
    }
}

/// See [`Store::key`](crate::store::Store::key).
pub(super) async fn key(
    store: &Redis,
    stream: &str,
    key: &str,
) -> Result<Option<(KeyRow, Option<Bytes>)>, StoreError> {
    let shard = store.shard_of(key);
    let script = &store.scripts.load;
    let names = store.of_stream(shard, stream, ["jobs", "states"]);
    let mut call = store.call_of(script, shard, stream, &names);
    call.arg(usize::MAX >> 16).arg(key.as_bytes());
    let [now, found] = parts(store.run(script, call).await?, script.name)?;
    let now = number(&now).ok_or_else(|| strange(script.name))?;
    let key_of =
        |words: String| KeyRow { key: key.into(), job: Err(words), state_size: 0, due_at: None };
    let [record, state, _] = match found {
        Value::Nil => return Ok(None),
        found @ Value::Array(_) => parts(found, script.name)?,
        words => return Ok(Some((key_of(text(words).unwrap_or_default()), None))),
    };
    let state = bytes(state);
    let size = state.as_ref().map_or(0, |state| state.len() as u64);
    let row = key_row(key, &bytes(record).unwrap_or_default(), size, now);
    Ok(row.map(|row| (row, state)))
}

/// Letters of one shard between two bounds, with their places and the time.
async fn letters_of_shard(
    store: &Redis,
    stream: &str,
    shard: u32,
    (from, to): (&[u8], &[u8]),
    limit: usize,
    bytes_limit: usize,
) -> Result<(u64, Vec<(Bytes, Bytes)>), StoreError> {
    let script = &store.scripts.letters;
    let names = store.of_stream(shard, stream, ["letters", "letters-order"]);
    let mut call = store.call_of(script, shard, stream, &names);
    call.arg(from).arg(to).arg(limit).arg(bytes_limit);
    let [now, rows] = parts(store.run(script, call).await?, script.name)?;
    let now = number(&now).ok_or_else(|| strange(script.name))?;
    let mut letters = Vec::new();
    let mut values = array(rows, script.name)?.into_iter().filter_map(bytes);
    while let (Some(place), Some(record)) = (values.next(), values.next()) {
        letters.push((place, record));
    }
    Ok((now, letters))
}

/// See [`Store::letters`](crate::store::Store::letters). Each shard has its letters in order; what
/// is read of them is put together up to where one of them has more.
pub(super) async fn letters(
    store: &Redis,
    stream: &str,
    key: Option<&str>,
    cursor: Option<&str>,
    limit: usize,
) -> Result<Page<StoredLetter>, StoreError> {
    let limit = limit.clamp(1, PAGE_ROWS);
    let mut prefix = Vec::new();
    if let Some(key) = key {
        put_letter_key(key, &mut prefix);
    }
    let from = match cursor {
        None => bound(b'[', &prefix),
        Some(cursor) => {
            let place = read_cursor(cursor).filter(|place| place.starts_with(&prefix));
            bound(b'(', &place.ok_or_else(|| StoreError::Cursor(cursor.to_owned()))?)
        }
    };
    let to = after_all(&prefix);
    // A letter without a key may be in any shard.
    let shards = (0..store.shards)
        .map(|shard| letters_of_shard(store, stream, shard, (&from, &to), limit, PAGE_BYTES));
    let (mut all, mut end, mut now) = (Vec::new(), None, 0);
    for (time, letters) in try_join_all(shards).await? {
        now = time.max(now);
        let read: usize = letters.iter().map(|(_, record)| record.len()).sum();
        if letters.len() >= limit || read >= PAGE_BYTES {
            let last = letters.last().map(|(place, _)| place.clone());
            end = [end, last].into_iter().flatten().min();
        }
        all.extend(letters);
    }
    all.sort_unstable();
    if let Some(end) = &end {
        all.truncate(all.partition_point(|(place, _)| place <= end));
    }
    let (mut rows, mut bytes) = (Vec::new(), 0);
    let count = all.len();
    for (at, (place, record)) in all.into_iter().enumerate() {
        bytes += record.len();
        rows.extend(kept_letter(store, &place, record, now));
        let is_last = at + 1 == count && end.is_none();
        if (rows.len() >= limit || bytes >= PAGE_BYTES || at + 1 == count) && !is_last {
            return Ok(Page { rows, cursor: Some(write_cursor(&place)) });
        }
    }
    Ok(Page { rows, cursor: None })
}

/// See [`Store::letter`](crate::store::Store::letter).
pub(super) async fn letter(
    store: &Redis,
    stream: &str,
    id: &LetterId,
) -> Result<Option<StoredLetter>, StoreError> {
    let place = place_of(id);
    let only = bound(b'[', &place);
    let shards = (0..store.shards)
        .map(|shard| letters_of_shard(store, stream, shard, (&only, &only), 1, PAGE_BYTES));
    for (now, letters) in try_join_all(shards).await? {
        for (place, record) in letters {
            if let Some(letter) = kept_letter(store, &place, record, now) {
                return Ok(Some(letter));
            }
        }
    }
    Ok(None)
}

impl Redis {
    /// Events that are kept as `far-ahead` letters put no longer than `within` ms ago.
    pub(super) async fn far_ahead(
        &self,
        partition: &Partition,
        key: &Key,
        range: &RangeInclusive<u64>,
        within: u64,
    ) -> Result<Vec<Numbered>, StoreError> {
        let mut prefix = Vec::new();
        put_letter_key(key, &mut prefix);
        let place = |sequence: u64| [&prefix[..], &sequence.to_be_bytes()].concat();
        let from = bound(b'[', &place(*range.start()));
        let to = match range.end().checked_add(1) {
            Some(end) => bound(b'(', &place(end)),
            None => after_all(&prefix),
        };
        let shard = self.shard_of(key);
        let many = usize::MAX >> 16;
        let read = letters_of_shard(self, &partition.stream, shard, (&from, &to), many, FIND_BYTES);
        let (now, letters) = read.await?;
        let put_from = now.saturating_sub(within);
        let event = |(place, record): (Bytes, Bytes)| -> Option<(u64, Arc<Event>)> {
            // A letter that cannot be read is no replay source, and no reason to stop.
            let stored = kept_letter(self, &place, record, now)?;
            let letter = stored.letter;
            match letter.content {
                LetterContent::Event(event)
                    if letter.cause == Cause::FarAhead && stored.at >= put_from =>
                {
                    Some((letter.id.sequence, event))
                }
                _ => None,
            }
        };
        Ok(letters.into_iter().filter_map(event).collect())
    }
}

/// A letter as kept; `None` if it is too old. One that cannot be read is shown as its bytes.
fn kept_letter(store: &Redis, place: &[u8], record: Bytes, now: u64) -> Option<StoredLetter> {
    match decode_letter(&record) {
        Ok(stored) => (stored.at.saturating_add(store.dead_ttl) > now).then_some(stored),
        Err(error) => {
            let letter = DeadLetter {
                id: split_letter_place(place)?,
                cause: Cause::Corrupt,
                error: format!("this letter cannot be read: {error}"),
                origin: None,
                version: None,
                content: LetterContent::Raw(record),
            };
            Some(StoredLetter { letter, at: 0 })
        }
    }
}

fn place_of(id: &LetterId) -> Vec<u8> {
    let mut place = Vec::new();
    put_letter_place(id, &mut place);
    place
}

fn bound(kind: u8, place: &[u8]) -> Vec<u8> {
    [&[kind], place].concat()
}

/// After all places that begin so: the last byte of a beginning is a terminator's.
fn after_all(prefix: &[u8]) -> Vec<u8> {
    match prefix.split_last() {
        None => b"+".to_vec(),
        Some((last, rest)) => bound(b'(', &[rest, &[last + 1]].concat()),
    }
}

/// A place, in hexadecimal digits: one that is no letter's can be gone on from too.
fn write_cursor(place: &[u8]) -> String {
    let digits = place.iter().map(|byte| format!("{byte:02x}"));
    LETTER_CURSOR.chars().map(String::from).chain(digits).collect()
}

fn read_cursor(cursor: &str) -> Option<Vec<u8>> {
    let digits = cursor.strip_prefix(LETTER_CURSOR)?.as_bytes().chunks(2);
    let byte = |two: &[u8]| match two {
        [high, low] => {
            let digit = |byte: u8| char::from(byte).to_digit(16);
            Some((digit(*high)? * 16 + digit(*low)?) as u8)
        }
        _ => None,
    };
    digits.map(byte).collect()
}
