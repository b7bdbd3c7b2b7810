//! What people look at: streams, keys, dead letters.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use ordain_core::{DeadLetter, Job, Key, LetterId, Status};

use super::StoreError;

/// One page of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    /// The rows, in the store's order.
    pub rows: Vec<T>,
    /// Where to go on; `None` at the end.
    pub cursor: Option<String>,
}

/// A row of a listing of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRow {
    /// The key.
    pub key: Key,
    /// Its record, or why it cannot be read.
    pub job: Result<Job, String>,
    /// Bytes of its state.
    pub state_size: u64,
    /// Its entry in the due index: time in ms since the Unix epoch, by the store's clock.
    pub due_at: Option<u64>,
}

/// Which keys to list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeyFilter {
    /// Only with this status.
    pub status: Option<Status>,
    /// Only keys that begin so.
    pub prefix: String,
    /// Where the last page ended.
    pub cursor: Option<String>,
    /// Rows at most; a store that must give several at once may give a few more.
    pub limit: usize,
    /// Jobs that are looked at for a page, about; by default as many as take some ten ms.
    pub looks: Option<usize>,
}

/// A dead letter as kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredLetter {
    /// The letter.
    pub letter: DeadLetter,
    /// When it was put, by the store's clock, in ms since the Unix epoch.
    pub at: u64,
}

/// Streams and their keys.
#[async_trait]
pub trait Keys: Send + Sync {
    /// The streams of which it holds anything: a job, a dead letter, what is to be published, or what
    /// waits to be taken.
    async fn streams(&self) -> Result<Vec<Arc<str>>, StoreError>;

    /// Lists keys of a stream. A page is bounded in time and memory, so that it may have fewer
    /// rows than asked for, even none, and a cursor all the same. No key is missing that is there
    /// all the time; where keys come and go meanwhile, one may be on two pages.
    async fn keys(&self, stream: &str, filter: &KeyFilter) -> Result<Page<KeyRow>, StoreError>;

    /// One key, with its state.
    async fn key(
        &self,
        stream: &str,
        key: &str,
    ) -> Result<Option<(KeyRow, Option<Bytes>)>, StoreError>;
}

/// Dead letters.
#[async_trait]
pub trait Letters: Send + Sync {
    /// Lists dead letters of a stream, by key and sequence; `key` restricts to one key. Pages are
    /// as those of [`Keys::keys`].
    async fn letters(
        &self,
        stream: &str,
        key: Option<&str>,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<Page<StoredLetter>, StoreError>;

    /// One dead letter.
    async fn letter(&self, stream: &str, id: &LetterId)
    -> Result<Option<StoredLetter>, StoreError>;
}
