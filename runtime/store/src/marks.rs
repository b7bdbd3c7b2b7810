//! Marks: small named values that the runtime keeps in the store.

use std::collections::BTreeMap;

use async_trait::async_trait;
use bytes::Bytes;

use super::{Claim, Destination, Partition, StoreError, Witness};

/// The maximum length of a mark's name, in bytes. The limit allows a name with the longest path of the operating system
/// and the longest stream name.
pub const MARK_NAME_LIMIT: usize = 8 << 10;

/// The name of the mark that [`Store::check_writable`](super::Store::check_writable) uses.
pub const HEALTH_MARK: &str = "admin/health";

/// A small record of the runtime, such as the checkpoint of a source or the length of a file that a sink has written.
/// The store writes a mark alone, or, in the embedded store, in one atomic write with the removal of outbox entries
/// (published messages).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// The name, for example `sink//var/receipts.jsonl` for the file sink that writes `/var/receipts.jsonl`.
    pub name: String,
    /// The value. The store does not interpret the value.
    pub value: Bytes,
}

/// The content that a shard (a slice of the store) must have to accept a mark. A shard that lacks this content has gone
/// back in time: it lost its newest writes.
#[derive(Debug, Clone, Default)]
pub struct MarkConditions<'a> {
    /// For each shard, the value that the mark must have now, as [`MarkStore::mark_in_shards`] returned it. A mark that
    /// already has the new value is accepted too, because a store may have to repeat a write whose reply was lost.
    pub before: &'a [Option<Bytes>],
    /// The destination to which the events in `witnesses` were written.
    pub destination: Option<&'a Destination>,
    /// For each shard, the newest event or call that the store has confirmed to the producer.
    pub witnesses: BTreeMap<u32, Witness>,
}

/// The marks of a store.
#[async_trait]
pub trait MarkStore: Send + Sync {
    /// Writes marks. Like the write of [`Outbox::outbox_done`](super::Outbox::outbox_done), the marks become durable
    /// with a later commit at the latest.
    async fn put_marks(&self, marks: &[Mark]) -> Result<(), StoreError>;

    /// Writes a mark if the value of the mark in the store is `before`; `None` means that the store has no such mark.
    /// Returns `false`, and writes nothing, if the store has another value. Two processes that change the mark
    /// therefore never overwrite each other's change. The mark becomes durable with a later commit at the latest.
    async fn replace_mark(&self, mark: &Mark, before: Option<&Bytes>) -> Result<bool, StoreError>;

    /// Returns the value of a mark; `None` if the store has no such mark.
    async fn mark(&self, name: &str) -> Result<Option<Bytes>, StoreError>;

    /// Writes a mark into every shard that meets the conditions. Returns whether all shards have the mark. Shards may
    /// be on several servers, and one server may go back in time without the others. The mark follows all earlier
    /// writes of its shard. If the shard later loses one of these earlier writes, the shard therefore also loses the
    /// mark, or returns to an older value of the mark. By default, for a store that cannot go back in time while it is
    /// open, this method writes one mark and checks no condition.
    async fn put_mark_in_shards(
        &self,
        mark: &Mark,
        _conditions: &MarkConditions<'_>,
    ) -> Result<bool, StoreError> {
        self.put_marks(std::slice::from_ref(mark)).await.map(|()| true)
    }

    /// Reads a mark that [`put_mark_in_shards`](Self::put_mark_in_shards) wrote. Returns the value of the mark in each
    /// shard, or a single value if the shards can only go back in time together.
    async fn mark_in_shards(&self, name: &str) -> Result<Vec<Option<Bytes>>, StoreError> {
        Ok(vec![self.mark(name).await?])
    }

    /// Writes the checkpoint of a partition's source, if `claim` is still the claim of the partition's owner. The
    /// checkpoint depends on the commits under the claim. Like the write of
    /// [`Outbox::outbox_done`](super::Outbox::outbox_done), the checkpoint becomes durable with a later commit at the
    /// latest.
    ///
    /// Returns `false` if the store does not write the checkpoint, for one of these reasons:
    ///
    /// - the partition has another claim, or no claim;
    /// - a server of the store does not reply immediately, or reports damaged data;
    /// - [`Store::disconnects`](super::Store::disconnects) is higher than `breaks`, the count that the caller knows.
    ///
    /// If a server does not reply immediately, or if the count is higher, the store may have gone back in time and lost
    /// the commits on which the checkpoint depends.
    async fn put_checkpoint(
        &self,
        partition: &Partition,
        claim: Claim,
        breaks: u64,
        mark: &Mark,
    ) -> Result<bool, StoreError>;
}

/// Refuses marks with names longer than [`MARK_NAME_LIMIT`], because a store may be unable to keep them.
pub fn check_marks<'a>(marks: impl IntoIterator<Item = &'a Mark>) -> Result<(), StoreError> {
    match marks.into_iter().find(|mark| mark.name.len() > MARK_NAME_LIMIT) {
        None => Ok(()),
        Some(mark) => Err(StoreError::Unusable(format!(
            "the name of a mark has {} bytes; at most {MARK_NAME_LIMIT} bytes are allowed",
            mark.name.len()
        ))),
    }
}
