//! Marks: small named values of the runtime.

use async_trait::async_trait;
use bytes::Bytes;

use super::{Claim, Partition, StoreError};

/// Bytes of a mark's name: the longest path of the system and the longest name of a stream fit.
pub const MARK_NAME_LIMIT: usize = 8 << 10;

/// A record of the host's own that is written together with the removal of outbox entries, or by
/// itself: the checkpoint of a source, the length of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// Its name, for example `source/orders` or `sink/receipts`.
    pub name: String,
    /// Its value.
    pub value: Bytes,
}

/// The marks of a store.
#[async_trait]
pub trait Marks: Send + Sync {
    /// Puts marks, as lazily as [`Outbox::outbox_done`](super::Outbox::outbox_done).
    async fn put_marks(&self, marks: &[Mark]) -> Result<(), StoreError>;

    /// Reads a mark.
    async fn mark(&self, name: &str) -> Result<Option<Bytes>, StoreError>;

    /// Puts a mark into every shard, behind everything that was written there before. Shards may lie on several
    /// servers, of which each may go back in time alone: a shard that has lost writes then lacks the mark, or has an
    /// older one.
    async fn put_mark_in_shards(&self, mark: &Mark) -> Result<(), StoreError> {
        self.put_marks(std::slice::from_ref(mark)).await
    }

    /// Reads a mark that was put into every shard: its value in each shard, or one value where all shards go back
    /// together.
    async fn mark_in_shards(&self, name: &str) -> Result<Vec<Option<Bytes>>, StoreError> {
        Ok(vec![self.mark(name).await?])
    }

    /// Stores the checkpoint of a partition's source, as lazily as [`Outbox::outbox_done`](super::Outbox::outbox_done),
    /// unless another claim is there: it speaks of the commits of this one. Answers false where it
    /// is not written: where another claim or none is there, where the store does not answer at
    /// once, or was out of reach more often than `breaks`. Then it may be at an earlier time,
    /// without what the checkpoint speaks of.
    async fn put_checkpoint(
        &self,
        partition: &Partition,
        claim: Claim,
        breaks: u64,
        mark: &Mark,
    ) -> Result<bool, StoreError>;
}

/// Refuses marks whose names are longer than [`MARK_NAME_LIMIT`]: an engine may not be able to
/// keep them.
pub fn check_marks<'a>(marks: impl IntoIterator<Item = &'a Mark>) -> Result<(), StoreError> {
    match marks.into_iter().find(|mark| mark.name.len() > MARK_NAME_LIMIT) {
        None => Ok(()),
        Some(mark) => Err(StoreError::Unusable(format!(
            "the name of a mark has {} bytes; {MARK_NAME_LIMIT} are allowed",
            mark.name.len()
        ))),
    }
}
