//! Listings of streams, keys and dead letters.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use ordain_core::{Cause, DeadLetter, Key, KeyRecord, KeyStatus, LetterContent, LetterId};

use super::StoreError;
use super::codec::RecordDecodeError;

/// The maximum number of rows that a caller can request for a page. If a caller requests more rows, the store uses this
/// number instead.
pub const PAGE_ROWS_LIMIT: usize = 1_000;

/// The total size of dead letters, in bytes, at which a page ends. The letter that reaches this size is the last letter
/// of the page, so that a page can contain a letter of any size. In an embedded store, expired letters that are still
/// stored count too, although the page does not contain them.
pub const LETTERS_PAGE_BYTES: usize = 8 << 20;

/// One page of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListPage<T> {
    /// The rows, in the store's order.
    pub rows: Vec<T>,
    /// The cursor of the next page; `None` on the last page.
    pub cursor: Option<String>,
}

/// A row of a listing of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredKey {
    /// The key.
    pub key: Key,
    /// The key record, or the reason why it cannot be read.
    pub record: Result<KeyRecord, String>,
    /// The size of the key's handler state, in bytes.
    pub state_size: u64,
    /// The earliest time at which the owner must handle the key, in ms since the Unix epoch, by the store's clock.
    /// `None` if the key has no entry in the due index.
    pub due_at: Option<u64>,
}

/// The request for one page of a listing of keys: a filter, a cursor and limits.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeyFilter {
    /// Lists only keys with this status; `None` lists all keys.
    pub status: Option<KeyStatus>,
    /// Lists only keys with this prefix.
    pub prefix: String,
    /// The cursor from the previous page; `None` for the first page.
    pub cursor: Option<String>,
    /// The number of rows at which the page ends. A store that reads rows in groups may return a few more rows.
    pub limit: usize,
    /// The approximate maximum number of key records that the store examines for a page. `None` stands for the store's
    /// default; a page then takes some tens of ms at most.
    pub scan_limit: Option<usize>,
}

/// A stored dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredLetter {
    /// The letter.
    pub letter: DeadLetter,
    /// The time when the letter was stored, by the store's clock, in ms since the Unix epoch; 0 if the record cannot be
    /// decoded.
    pub at: u64,
}

impl StoredLetter {
    /// Returns a letter for a record that cannot be decoded. A listing shows this letter, which contains the raw bytes
    /// of the record and the error.
    pub fn unreadable(id: LetterId, error: &RecordDecodeError, record: Bytes) -> Self {
        let letter = DeadLetter {
            id,
            cause: Cause::Corrupt,
            error: format!("this letter cannot be read: {error}"),
            origin: None,
            version: None,
            content: LetterContent::Raw(record),
        };
        Self { letter, at: 0 }
    }
}

/// The listings of streams and their keys.
#[async_trait]
pub trait KeyListing: Send + Sync {
    /// Returns the streams with a key record, a dead letter, an entry in an outbox, or an event in a queue of the
    /// store.
    async fn streams(&self) -> Result<Vec<Arc<str>>, StoreError>;

    /// Lists keys of a stream. Each page is limited in time and memory. A page may therefore have fewer rows than
    /// requested, or even no rows, although more pages follow. A key that exists throughout the listing is on at least
    /// one page. If keys are added or removed during the listing, a key may be on two pages.
    async fn keys(
        &self,
        stream: &str,
        filter: &KeyFilter,
    ) -> Result<ListPage<StoredKey>, StoreError>;

    /// Returns a key with its handler state. Returns `None` if the key has no record.
    async fn key(
        &self,
        stream: &str,
        key: &str,
    ) -> Result<Option<(StoredKey, Option<Bytes>)>, StoreError>;
}

/// The listings of dead letters.
#[async_trait]
pub trait LetterListing: Send + Sync {
    /// Lists the dead letters of a stream, or only the dead letters of `key`, sorted by key and sequence. Pages have
    /// the same limits as the pages of [`KeyListing::keys`].
    async fn letters(
        &self,
        stream: &str,
        key: Option<&str>,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<ListPage<StoredLetter>, StoreError>;

    /// Returns the dead letter with this id; `None` if the store has no such letter, or if the letter has expired.
    async fn letter(&self, stream: &str, id: &LetterId)
    -> Result<Option<StoredLetter>, StoreError>;
}
