//! Requests to the writer thread.

use std::sync::Arc;

use bytes::Bytes;
use ordain_core::{Batch, CommitReply, Key};
use tokio::sync::oneshot;

use ordain_core::QueuePosition;
use ordain_store::{
    AssignReply, AssignRequest, Claim, ClaimedPartition, DequeueResult, Mark, Partition, StoreError,
};

/// A request to the writer thread. The thread sends its reply through `answer` after it has made the change. If the
/// request needs a sync, the thread sends the reply after the sync. If the store fails, the thread drops `answer`
/// without a reply.
pub(super) enum WriterRequest {
    Commit {
        partition: Partition,
        claim: Claim,
        batch: Arc<Batch>,
        answer: ReplySender<CommitReply>,
    },
    /// Claims a partition: writes the claim of the new owner into each fence. The reply is `None` if an earlier claim
    /// has the same epoch or a higher epoch.
    Claim {
        partition: Partition,
        epoch: u64,
        answer: ReplySender<Option<ClaimedPartition>>,
    },
    NewestEpoch {
        partition: Partition,
        answer: ReplySender<u64>,
    },
    /// Moves key records that belong to another partition to this partition.
    TakeOver {
        partition: Partition,
        keys: Vec<Key>,
        answer: ReplySender<()>,
    },
    /// Writes marks. If `outbox` is `Some`, also removes published outbox entries, and replies with the number of the
    /// shard's last commit. Writes nothing and replies `None` if the claim in `outbox` is not the current claim.
    Done {
        outbox: Option<OutboxRemoval>,
        marks: Vec<Mark>,
        answer: ReplySender<Option<u64>>,
    },
    /// Writes a mark if its present value is `before`. The reply is `true` if the thread has written the mark.
    ReplaceMark {
        mark: Mark,
        before: Option<Bytes>,
        answer: ReplySender<bool>,
    },
    Assign {
        assign: Arc<AssignRequest>,
        answer: ReplySender<Result<AssignReply, StoreError>>,
    },
    /// Removes the waiting events of a partition in a shard, up to and including a queue position.
    Dequeue {
        partition: Partition,
        claim: Claim,
        shard: u32,
        commit: u64,
        through: QueuePosition,
        answer: ReplySender<Result<DequeueResult, StoreError>>,
    },
    Flush {
        answer: ReplySender<()>,
    },
    /// Overwrites a key record with arbitrary bytes, for tests.
    Overwrite {
        stream: String,
        key: String,
        bytes: Vec<u8>,
        answer: ReplySender<()>,
    },
}

/// A removal of outbox entries, up to and including commit `through`, under the claim of the partition's owner.
pub(super) struct OutboxRemoval {
    pub(super) partition: Partition,
    pub(super) claim: Claim,
    pub(super) shard: u32,
    pub(super) through: u64,
}

pub(super) type ReplySender<T> = oneshot::Sender<T>;
