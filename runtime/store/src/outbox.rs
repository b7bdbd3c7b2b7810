//! What committed batches have to publish.

use async_trait::async_trait;
use ordain_core::{DeadLetter, Emitted, Key};

use super::{Claim, Mark, Partition, StoreError};

/// What one batch has to publish, in order: first its messages, then its letters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxEntry {
    /// Number of the commit.
    pub number: u64,
    /// Its messages.
    pub messages: Vec<OutboxMessage>,
    /// Its [forwarded](ordain_core::Batch::forwarded) dead letters.
    pub letters: Vec<DeadLetter>,
}

/// One committed message with what its id is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxMessage {
    /// Key of the event that caused it.
    pub key: Key,
    /// [`Job::incarnation`](ordain_core::Job::incarnation) of that key.
    pub incarnation: u64,
    /// The message, with the sequence of the event and its position there.
    pub emitted: Emitted,
}

/// Committed messages and letters, until they are published.
#[async_trait]
pub trait Outbox: Send + Sync {
    /// Committed messages and letters that are not marked done, from after commit `after` on, of at most
    /// `limit` commits (at least one if there is one).
    async fn outbox(
        &self,
        partition: &Partition,
        shard: u32,
        after: u64,
        limit: usize,
    ) -> Result<Vec<OutboxEntry>, StoreError>;

    /// Removes the outbox entries of a shard up to commit `through` and puts the marks, in one
    /// atomic write. It need not be durable before the next commit is, but becomes so in order.
    /// Under another claim than the shard's it does nothing: after the store went back in time,
    /// commits of the same numbers may be another owner's. Answers the number of the shard's last
    /// commit: when a later one is durable, this is; `None` where nothing was done.
    async fn outbox_done(
        &self,
        partition: &Partition,
        claim: Claim,
        shard: u32,
        through: u64,
        marks: &[Mark],
    ) -> Result<Option<u64>, StoreError>;
}
