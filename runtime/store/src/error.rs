//! Why a store did not do what it was asked.

use super::Partition;

/// Why the store did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It belongs to somebody else, or is of another kind, schema or shape. Nothing is written;
    /// the message says what was found and what to do.
    #[error("{0}")]
    Unusable(String),
    /// Another process has it, and only one may. Nothing is written; the message says which and
    /// what to do. When that one has ended, trying again helps.
    #[error("{0}")]
    InUse(String),
    /// It did not answer; trying again may help.
    #[error("the store did not answer: {0}")]
    Unavailable(String),
    /// It has failed for good: only opening it again helps. The message says what failed and what
    /// to do.
    #[error("{0}")]
    Failed(String),
    /// What is stored cannot be read.
    #[error("the store holds something unreadable: {0}")]
    Corrupt(String),
    /// The cursor of a listing is not one that this store gave.
    #[error("not a cursor of this listing: {0:?}")]
    Cursor(String),
}

/// Why a claim is refused.
pub fn claimed_by_another(partition: &Partition) -> StoreError {
    StoreError::InUse(format!(
        "another process has just taken partition {} of stream {:?}: one at a time may have it",
        partition.number, partition.stream
    ))
}
