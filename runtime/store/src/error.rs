//! Errors of a store.

use super::Partition;

/// An error of a store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The store cannot be used or cannot execute the request, and a retry would fail for the same reason. For example,
    /// the store belongs to another application, has another schema or number of shards, or is damaged. The message
    /// names the reason.
    #[error("{0}")]
    Unusable(String),
    /// Another process has the store open, or has claimed the partition. The message describes the conflict. A retry
    /// can succeed after the other process has ended.
    #[error("{0}")]
    InUse(String),
    /// The store did not answer, or refused the request for now. A retry can succeed.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// The store has failed and must be reopened. The message names the failure and the next step.
    #[error("{0}")]
    Failed(String),
    /// The store went back in time: it lost its newest writes. The caller named a queue position or a
    /// [`Witness`](crate::Witness) (for example the newest event that a producer wrote to a shard). The store lacks the
    /// named entry, event or call, or has another entry or event under the same number. The store changed nothing.
    /// After this error, the reader of a queue reads the queue again from the beginning.
    #[error("the store went back in time and lost confirmed data: try again")]
    RolledBack,
    /// A stored value is damaged.
    #[error("the store contains a damaged value: {0}")]
    Corrupt(String),
    /// The text is not a cursor that this listing has returned.
    #[error("the cursor {0:?} does not belong to this listing")]
    Cursor(String),
}

/// Returns the error for a partition that another owner has claimed.
pub fn claimed_by_another(partition: &Partition) -> StoreError {
    StoreError::InUse(format!(
        "another process has just claimed partition {} of stream {:?}: only one process may own it",
        partition.number, partition.stream
    ))
}
