//! The outbox: committed messages and dead letters that are not yet published. A commit makes its messages and letters
//! durable together with its other results.

use async_trait::async_trait;
use ordain_core::{DeadLetter, EmittedMessage, Key};

use super::{Claim, Mark, Partition, StoreError};

/// The messages and dead letters of one commit, in the order in which they are published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxEntry {
    /// The number of the commit.
    pub number: u64,
    /// The messages of the commit.
    pub messages: Vec<OutboxMessage>,
    /// The dead letters of the commit that are to be published ([`Batch::forwarded`](ordain_core::Batch::forwarded)).
    pub letters: Vec<DeadLetter>,
}

/// A committed message, with the values from which the outbox publisher forms the message's id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxMessage {
    /// The key of the event that caused the message.
    pub key: Key,
    /// The [`KeyRecord::incarnation`](ordain_core::KeyRecord::incarnation) of that key.
    pub incarnation: u64,
    /// The message, the sequence of the event that caused the message, and the index of the message among the messages
    /// of this event.
    pub emitted: EmittedMessage,
}

/// Access to the committed messages and dead letters that are not yet published.
#[async_trait]
pub trait Outbox: Send + Sync {
    /// Returns the unpublished messages and letters of up to `limit` commits after commit `after`, in the order of the
    /// commits. Returns fewer commits if their messages are large, but at least one commit if there is one.
    async fn outbox(
        &self,
        partition: &Partition,
        shard: u32,
        after: u64,
        limit: usize,
    ) -> Result<Vec<OutboxEntry>, StoreError>;

    /// Removes the outbox entries of a shard up to and including commit `through`, and writes the marks, in one atomic
    /// write. The write is durable at the latest when a later commit of the shard is durable. Changes nothing if the
    /// shard has another claim than `claim`. The reason: after the store has gone back in time (lost its newest
    /// commits), commits of another owner may have the same numbers. Returns the number of the shard's last commit, or
    /// `None` if the shard has another claim. If `marks` is not empty, a store in Redis returns
    /// [`StoreError::Unusable`], because it cannot write marks and outbox in one atomic write.
    async fn outbox_done(
        &self,
        partition: &Partition,
        claim: Claim,
        shard: u32,
        through: u64,
        marks: &[Mark],
    ) -> Result<Option<u64>, StoreError>;
}
