//! The errors that end a driver.

use std::sync::Arc;

use super::alarms::why_command;
use ordain_store::StoreError;

/// The reason why a driver ended early.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// This process no longer owns the partition: it has lost the lease, or another process has claimed the partition.
    #[error("another process owns the partition now")]
    Fenced,
    /// The store went back in time and lost commits that this process cannot repeat.
    #[error(
        "the store went back in time in shard {shard}: {detail}. Was the store restored from a backup, or did a clone \
         of this process, such as a copy of its virtual machine, write to the store? Start Ordain again to continue \
         from the present state of the store"
    )]
    StoreRolledBack {
        /// The shard that lacks commits.
        shard: u32,
        /// A text that names the newest commit of this process in the shard, and describes the state in which the
        /// process found the shard.
        detail: String,
    },
    /// The store failed. The failed request was the write of a checkpoint, or the wait for the durability of all writes
    /// at the end of the driver.
    #[error("the store failed")]
    Store(#[from] StoreError),
    /// The store holds as many events of a key as `spill_limit` allows, and `overflow` is `pause`, so the partition
    /// accepts no more events. Usually, only an operator's action or another handler version can release the key. This
    /// error ends a driver only in a run with `once`, or after the source has failed. Otherwise, the driver logs the
    /// text of the error as a warning.
    #[error(
        "key {key:?} is stopped at event {event}, and its later events in the store have reached the limit \
         `spill_limit`. With `overflow = \"pause\"`, the partition of the key then accepts no more events of any \
         key. Remove the cause of the stop ({} shows it), or raise `spill_limit` and start Ordain again",
        why_command(.stream, .key)
    )]
    KeyFull {
        /// The stream of the key.
        stream: Arc<str>,
        /// The key that blocks the partition.
        key: String,
        /// The sequence of the event at which the key is stopped.
        event: u64,
    },
    /// More batches wait for the outbox publisher than the sequencer allows.
    #[error(
        "bug in Ordain: the queue of the outbox publisher is full; the next start publishes the committed messages"
    )]
    PublisherFull,
    /// The source failed. Each event that the source had delivered is settled or held in the store. Exception: if the
    /// driver also had to release the partition, some delivered events may be neither settled nor held.
    #[error("the source failed")]
    Source(#[source] std::io::Error),
}
