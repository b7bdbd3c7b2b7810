//! Lists dead letters.

use std::ops::RangeInclusive;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::try_join_all;
use ordain_core::{Cause, LetterId};

use super::super::RedisStore;
use super::super::names::RedisKeyKind;
use super::super::value::{array, bytes, number, parts, unexpected_reply};
use ordain_store::codec::{
    cause_number, decode_letter, put_letter_key, put_letter_place, split_letter_place,
};
use ordain_store::{
    LETTERS_PAGE_BYTES, LetterListing, ListPage, PAGE_ROWS_LIMIT, StoreError, StoredLetter,
};

const CURSOR_PREFIX: &str = "d1:";

/// A range of places of dead letters. The place of a letter is its sort key.
pub(in super::super) struct LetterRange {
    from: Vec<u8>,
    to: Vec<u8>,
}

impl LetterRange {
    pub(in super::super) fn continue_after(&mut self, place: &[u8]) {
        self.from = bound(b'(', place);
    }

    /// Returns the places of a key's letters with sequences in `range`. `key` is the common prefix of the places of the
    /// key's letters.
    pub(in super::super) fn of_sequences(key: &[u8], range: &RangeInclusive<u64>) -> Self {
        let place = |sequence: u64| [key, &sequence.to_be_bytes()].concat();
        Self {
            from: bound(b'[', &place(*range.start())),
            to: match range.end().checked_add(1) {
                Some(end) => bound(b'(', &place(end)),
                None => after_all(key),
            },
        }
    }
}

pub(in super::super) struct LetterFilter {
    /// The number of letters at which the read ends. The script reads pages of at most 16 places, so the read may
    /// return a few more letters.
    pub(in super::super) limit: usize,
    /// The number of bytes at which the read ends. The page that reaches this number is the last page.
    pub(in super::super) bytes: usize,
    /// The causes of the letters. An empty list selects all letters.
    pub(in super::super) causes: Vec<Cause>,
    /// The maximum age of the letters, in ms, if `causes` is not empty.
    pub(in super::super) within: u64,
}

impl LetterFilter {
    fn all(limit: usize, bytes: usize) -> Self {
        Self { limit, bytes, causes: Vec::new(), within: 0 }
    }
}

/// The letters of one shard that one call has read.
pub(in super::super) struct ShardLetters {
    now: u64,
    pub(in super::super) letters: Vec<(Bytes, Bytes)>,
    /// The place after which the next call continues; `None` if the range has no more letters.
    pub(in super::super) continue_after: Option<Bytes>,
}

/// Reads letters of one shard. One call examines a limited number of letters. If `continue_after` in the result is
/// `Some`, the caller must call this function again for the next letters.
pub(in super::super) async fn letters_of_shard(
    store: &RedisStore,
    stream: &str,
    shard: u32,
    bounds: &LetterRange,
    wanted: &LetterFilter,
) -> Result<ShardLetters, StoreError> {
    let script = &store.scripts.letters;
    let mut call = store.script_call(
        script,
        &store.stream_keys(shard, stream, [RedisKeyKind::Data, RedisKeyKind::Letters]),
    );
    let causes: Vec<u8> = wanted.causes.iter().copied().map(cause_number).collect();
    call.arg(&bounds.from).arg(&bounds.to).arg(wanted.limit).arg(wanted.bytes);
    call.arg(&causes[..]).arg(wanted.within);
    let [now, behind, rows] = parts(store.run_script(script, call).await?, script.name)?;
    let now = number(&now).ok_or_else(|| unexpected_reply(script.name))?;
    let mut letters = Vec::new();
    let mut values = array(rows, script.name)?.into_iter().filter_map(bytes);
    while let (Some(place), Some(record)) = (values.next(), values.next()) {
        letters.push((place, record));
    }
    Ok(ShardLetters { now, letters, continue_after: bytes(behind) })
}

#[async_trait]
impl LetterListing for RedisStore {
    async fn letters(
        &self,
        stream: &str,
        key: Option<&str>,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<ListPage<StoredLetter>, StoreError> {
        // Each shard returns its letters in order, and the page merges them. If a shard has more letters than it
        // returned, these letters may precede letters of other shards. The page therefore ends at the first place where
        // the letters of a shard are incomplete.
        let limit = limit.clamp(1, PAGE_ROWS_LIMIT);
        let mut prefix = Vec::new();
        if let Some(key) = key {
            put_letter_key(key, &mut prefix);
        }
        let mut bounds = LetterRange { from: bound(b'[', &prefix), to: after_all(&prefix) };
        if let Some(cursor) = cursor {
            let place = read_cursor(cursor).filter(|place| place.starts_with(&prefix));
            bounds.continue_after(&place.ok_or_else(|| StoreError::Cursor(cursor.to_owned()))?);
        }
        // A dead letter whose event has no key may be in any shard, so read every shard. The byte limit of a page is
        // divided equally among the shards.
        let wanted = LetterFilter::all(limit, LETTERS_PAGE_BYTES / self.shards as usize);
        let shards =
            (0..self.shards).map(|shard| letters_of_shard(self, stream, shard, &bounds, &wanted));
        let mut all = Vec::new();
        let mut end = None;
        let mut now = 0;
        for part in try_join_all(shards).await? {
            now = part.now.max(now);
            end = [end, part.continue_after].into_iter().flatten().min();
            all.extend(part.letters);
        }
        all.sort_unstable();
        if let Some(end) = &end {
            all.truncate(all.partition_point(|(place, _)| place <= end));
        }
        let mut rows = Vec::new();
        let mut bytes = 0;
        let mut all = all.into_iter().peekable();
        while let Some((place, record)) = all.next() {
            bytes += record.len();
            rows.extend(kept_letter(self, &place, record, now));
            if (rows.len() >= limit || bytes >= LETTERS_PAGE_BYTES) && all.peek().is_some() {
                return Ok(ListPage { rows, cursor: Some(write_cursor(&place)) });
            }
        }
        Ok(ListPage { rows, cursor: end.map(|end| write_cursor(&end)) })
    }

    async fn letter(
        &self,
        stream: &str,
        id: &LetterId,
    ) -> Result<Option<StoredLetter>, StoreError> {
        let place = place_of(id);
        let only = LetterRange { from: bound(b'[', &place), to: bound(b'[', &place) };
        let one = LetterFilter::all(1, LETTERS_PAGE_BYTES);
        let shards =
            (0..self.shards).map(|shard| letters_of_shard(self, stream, shard, &only, &one));
        for part in try_join_all(shards).await? {
            for (place, record) in part.letters {
                if let Some(letter) = kept_letter(self, &place, record, part.now) {
                    return Ok(Some(letter));
                }
            }
        }
        Ok(None)
    }
}

/// Decodes a stored letter; returns `None` if the letter has expired. For an unreadable record, returns a letter with
/// the raw bytes of the record, or `None` if `place` is not valid either.
fn kept_letter(store: &RedisStore, place: &[u8], record: Bytes, now: u64) -> Option<StoredLetter> {
    match decode_letter(&record) {
        Ok(stored) => (stored.at.saturating_add(store.dead_ttl) > now).then_some(stored),
        Err(error) => Some(StoredLetter::unreadable(split_letter_place(place)?, &error, record)),
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

/// Returns the upper bound of all places with this prefix. Every prefix that is not empty ends with a terminator. The
/// last byte of the terminator is below 255, so the addition cannot overflow.
fn after_all(prefix: &[u8]) -> Vec<u8> {
    match prefix.split_last() {
        None => b"+".to_vec(),
        Some((last, rest)) => bound(b'(', &[rest, &[last + 1]].concat()),
    }
}

/// Returns the cursor for a place, in hexadecimal digits. The place need not be valid, so that a listing can continue
/// after an invalid place.
pub fn write_cursor(place: &[u8]) -> String {
    let digits = place.iter().map(|byte| format!("{byte:02x}"));
    CURSOR_PREFIX.chars().map(String::from).chain(digits).collect()
}

/// Parses a cursor that [`write_cursor`] returned. Returns `None` if the cursor is not valid.
pub fn read_cursor(cursor: &str) -> Option<Vec<u8>> {
    let digits = cursor.strip_prefix(CURSOR_PREFIX)?.as_bytes().chunks(2);
    let byte = |two: &[u8]| match two {
        [high, low] => {
            let digit = |byte: u8| char::from(byte).to_digit(16);
            Some((digit(*high)? * 16 + digit(*low)?) as u8)
        }
        _ => None,
    };
    digits.map(byte).collect()
}
