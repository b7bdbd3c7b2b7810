//! Why a driver ends.

use ordain_store::StoreError;

/// Why a driver ended before its time.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// Another owner has the partition.
    #[error("another process has taken the partition over")]
    Fenced,
    /// The store is not where this process left it.
    #[error(
        "the store went back in time in shard {shard}: {detail}. Was it restored from a backup, \
         or written by another copy? Start again to go on from what it holds now"
    )]
    Rewound {
        /// The shard.
        shard: u32,
        /// What was expected and found.
        detail: String,
    },
    /// The store failed.
    #[error("the store failed")]
    Store(#[from] StoreError),
    /// A key is full, and nothing that comes could end that.
    #[error(
        "key {key:?} is stopped at event {event} and has as many events behind it as `spill_limit` \
         allows, and `overflow = \"pause\"` lets no other event in: mend the cause (`ordain keys why`) \
         or raise spill_limit, then run again"
    )]
    Full {
        /// The key.
        key: String,
        /// The event.
        event: u64,
    },
    /// More batches wait for the publisher than the sequencer should let wait.
    #[error(
        "a bug of the host: the publisher's queue is full; what is committed is published at the \
         next start"
    )]
    PublisherFull,
    /// The source failed.
    #[error("the source failed")]
    Source(#[source] std::io::Error),
}
