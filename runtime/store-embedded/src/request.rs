//! Requests to the writer thread.

use std::sync::Arc;

use ordain_core::{Batch, CommitReply, Key};
use tokio::sync::oneshot;

use ordain_core::QueuePlace;
use ordain_store::{Assign, AssignReply, Claim, Claimed, Mark, Partition, Removal, StoreError};

/// A request to the writer thread. The writer replies when the change is as durable as the request
/// needs; if the store has failed, the writer drops the sender instead.
pub(super) enum Request {
    Commit {
        partition: Partition,
        claim: Claim,
        batch: Arc<Batch>,
        answer: Answer<CommitReply>,
    },
    /// Claims a partition. The reply is `None` if the epoch is not higher than all earlier ones.
    Claim {
        partition: Partition,
        epoch: u64,
        answer: Answer<Option<Claimed>>,
    },
    /// Returns the highest epoch of the partition's claims.
    NewestEpoch {
        partition: Partition,
        answer: Answer<u64>,
    },
    /// Moves jobs of another partition to this one.
    TakeOver {
        partition: Partition,
        keys: Vec<Key>,
        answer: Answer<()>,
    },
    /// Removes published outbox entries, if an outbox is given, and puts marks.
    Done {
        outbox: Option<OutboxDone>,
        marks: Vec<Mark>,
        answer: Answer<Option<u64>>,
    },
    Assign {
        assign: Arc<Assign>,
        answer: Answer<Result<AssignReply, StoreError>>,
    },
    /// Removes the waiting events of a partition up to a place.
    Dequeue {
        partition: Partition,
        claim: Claim,
        shard: u32,
        commit: u64,
        through: QueuePlace,
        answer: Answer<Result<Removal, StoreError>>,
    },
    Flush {
        answer: Answer<()>,
    },
    /// Overwrites a job with arbitrary bytes, for tests.
    Overwrite {
        stream: String,
        key: String,
        bytes: Vec<u8>,
        answer: Answer<()>,
    },
}

/// The last published commit of an outbox, under the claim of its owner.
pub(super) struct OutboxDone {
    pub(super) partition: Partition,
    pub(super) claim: Claim,
    pub(super) shard: u32,
    pub(super) through: u64,
}

/// The channel for the reply to a request.
pub(super) type Answer<T> = oneshot::Sender<T>;
