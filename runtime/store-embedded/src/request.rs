//! What the thread that writes is asked.

use std::sync::Arc;

use ordain_core::{Batch, CommitReply, Key};
use tokio::sync::oneshot;

use ordain_store::{Assign, AssignReply, Claim, Claimed, Mark, Partition, StoreError};

/// What is asked of the writer. The answer says what happened once it is durable enough; if the
/// store has failed, the sender is dropped instead.
pub(super) enum Request {
    Commit {
        partition: Partition,
        claim: Claim,
        batch: Arc<Batch>,
        answer: Answer<CommitReply>,
    },
    /// Answers with nothing where the epoch is not above all before.
    Claim {
        partition: Partition,
        epoch: u64,
        answer: Answer<Option<Claimed>>,
    },
    /// The highest epoch of the partition's claims.
    NewestEpoch {
        partition: Partition,
        answer: Answer<u64>,
    },
    /// Takes jobs over that another partition has.
    TakeOver {
        partition: Partition,
        keys: Vec<Key>,
        answer: Answer<()>,
    },
    /// Removes outbox entries if there is a place to remove them from, and puts marks.
    Done {
        outbox: Option<OutboxDone>,
        marks: Vec<Mark>,
        answer: Answer<Option<u64>>,
    },
    Assign {
        assign: Arc<Assign>,
        answer: Answer<Result<AssignReply, StoreError>>,
    },
    /// Removes what waits for a partition up to a number.
    Dequeue {
        partition: Partition,
        claim: Claim,
        shard: u32,
        through: u64,
        answer: Answer<Result<(), StoreError>>,
    },
    Flush {
        answer: Answer<()>,
    },
    /// Puts any bytes in the place of a job, for tests.
    Overwrite {
        stream: String,
        key: String,
        bytes: Vec<u8>,
        answer: Answer<()>,
    },
}

/// Through which commit an outbox is done, and who says so.
pub(super) struct OutboxDone {
    pub(super) partition: Partition,
    pub(super) claim: Claim,
    pub(super) shard: u32,
    pub(super) through: u64,
}

/// Where an answer goes.
pub(super) type Answer<T> = oneshot::Sender<T>;
