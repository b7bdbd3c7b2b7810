//! The interface of a store. [`Store`] combines one trait for each kind of data. One conformance suite
//! tests every implementation.
//!
//! A store keeps records, and refuses writes whose conditions do not hold. A store makes no decision about an event:
//! the sequencer makes these decisions, and its [`Batch`](ordain_core::Batch) contains the writes of a commit, each
//! with its condition.

pub mod checkpoint;
pub mod clock;
pub mod codec;
mod due;
mod error;
mod instance_info;
mod leases;
mod listings;
mod marks;
mod message_log;
mod outbox;
pub mod ownership;
pub mod published_file;
mod queue_record;
mod records;
mod redis_address;
mod redis_options;
mod report;
mod retry;
mod shared_record;
mod spill;
pub mod versions;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

pub use due::DueIndex;
pub use error::{StoreError, claimed_by_another};
pub use instance_info::{BrokerHealth, InstanceInfo, PARTITIONS_LIMIT, ProcessIdentity};
pub use leases::{
    HeartbeatReply, HeartbeatRequest, InstanceId, Lease, LeaseReply, LeaseStore, MemberRecord,
    MembershipTable, MembershipVersion,
};
pub use listings::{
    KeyFilter, KeyListing, LETTERS_PAGE_BYTES, LetterListing, ListPage, PAGE_ROWS_LIMIT, StoredKey,
    StoredLetter,
};
pub use marks::{HEALTH_MARK, MARK_NAME_LIMIT, Mark, MarkConditions, MarkStore, check_marks};
pub use message_log::{
    ASSIGN_BYTES, ASSIGN_LIMIT, AssignGroup, AssignGroupReply, AssignItem, AssignItemReply,
    AssignReply, AssignRequest, DequeueResult, Destination, DestinationRules, MessageLog,
    NumberingSettings, OriginOutbox, OutboxChunk, OutboxPosition, QueueEnds, QueueEntry, QueuePage,
    Witness, WriterCall, ok_or_log,
};
pub use outbox::{Outbox, OutboxEntry, OutboxMessage};
pub use ownership::{Ownership, OwnershipPhase};
pub use queue_record::{QueueRecord, QueueRecords};
pub use records::{Claim, ClaimedPartition, KeyResult, RecordStore};
pub use redis_address::{RedisAddress, RedisUrl};
pub use redis_options::{REDIS_BATCH_LIMIT, RedisOptions};
pub use report::{BLOCKED_STATES, InstanceReport, PendingWork};
pub use retry::retry_until_ok;
pub use shared_record::SharedRecord;
pub use spill::{EarlyLetters, FOUND_BYTES_LIMIT, FoundEvents, SpillArea};
pub use versions::is_version;

/// The maximum length of a key, in bytes. The decoders of events refuse longer keys. The limit is low because every
/// record, index entry, listing and active lane (the in-memory queue of one key) contains a copy of the key. Real keys
/// have tens of bytes. A key above the limit is usually a mistake: another field of the event was configured as the
/// key.
pub const KEY_SIZE_LIMIT: usize = 1 << 10;

/// Returns a description of the error if a key is longer than [`KEY_SIZE_LIMIT`]; otherwise `None`.
pub fn key_length_error(key: &str) -> Option<String> {
    (key.len() > KEY_SIZE_LIMIT).then(|| {
        format!("the key has {} bytes; at most {KEY_SIZE_LIMIT} bytes are allowed", key.len())
    })
}

/// The maximum length of a stream's name, in bytes. The embedded store writes the length of a name in one byte.
pub const STREAM_NAME_LIMIT: usize = 255;

/// A partition of a stream. One process at a time owns a partition.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition {
    /// The name of the stream.
    pub stream: Arc<str>,
    /// The number of the partition, from 0.
    pub number: u32,
}

/// The durability of commits in a store. The durability depends on the kind of the store and on the settings of its
/// servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DurabilityReport {
    /// The description of the durability, as a sentence for the log.
    pub description: String,
    /// `true` in three cases: a restart of a server can lose more than the writes of the last seconds; a server does
    /// not report whether it removes data when its memory is full; or too few replicas are connected, so that the store
    /// can confirm no commit.
    pub is_at_risk: bool,
}

/// A store. Many tasks may call all methods concurrently, with one exception: the owner of a partition must have at
/// most one commit in progress for each shard (a slice of the store).
#[async_trait]
pub trait Store:
    RecordStore
    + SpillArea
    + DueIndex
    + Outbox
    + MarkStore
    + KeyListing
    + LetterListing
    + LeaseStore
    + MessageLog
    + 'static
{
    /// Returns the number of shards.
    fn shards(&self) -> u32;

    /// Returns the durability that the store's settings provide.
    fn durability(&self) -> DurabilityReport;

    /// Returns whether the store may go back in time while it is open. A store goes back in time when a server loses
    /// its newest writes although it has confirmed them, for example because a replica without these writes becomes the
    /// master.
    fn may_roll_back(&self) -> bool {
        false
    }

    /// Returns a count that increases when a connection to a server breaks, and when data of the store moves to another
    /// server. The count also increases when a reply shows this process that the store has gone back in time. If two
    /// calls return different counts, the store may have lost data between these calls.
    fn disconnects(&self) -> u64 {
        0
    }

    /// Returns a count as [`Store::disconnects`] does, but counts only the disconnects that may have affected this
    /// shard.
    fn shard_disconnects(&self, _shard: u32) -> u64 {
        self.disconnects()
    }

    /// Updates the counts of [`Store::shard_disconnects`] for these shards. Does nothing if the shards are on one
    /// server. The reason for this method: a server may have been replaced since the last request to it. The store
    /// notices the replacement only when it sends the next request.
    async fn update_shard_disconnects(&self, _shards: &BTreeSet<u32>) {}

    /// Returns the reason of the newest failure of a request to the store's servers. Returns `None` if the store
    /// repeats no failed request now, or if the newest failure is older than some seconds.
    fn retry_reason(&self) -> Option<String> {
        None
    }

    /// Returns the time for which a request has failed at each try, although the store may complete other requests. For
    /// example, the user of the store's servers may lack the right to one command. Returns `None` unless a request has
    /// failed for about ten seconds.
    fn lasting_failure(&self) -> Option<Duration> {
        None
    }

    /// Waits until the store has failed permanently. After the failure, every commit returns
    /// [`CommitReply::Unknown`](ordain_core::CommitReply::Unknown), and every other request that reads or writes stored
    /// data returns [`StoreError::Failed`]. Never completes for a store that can recover from every failure.
    async fn failed(&self) -> StoreError {
        std::future::pending().await
    }

    /// Checks once, without retries, whether the store accepts events. A store on a server writes a meaningless value,
    /// because a server that answers reads may still refuse writes. The check also returns an error if the user of the
    /// server lacks a right that is needed to accept an event, or if the store has lost the record that describes it. By
    /// default, this method only reads a mark: after a failed write, a store without a server returns an error to every
    /// read.
    async fn check_writable(&self) -> Result<(), StoreError> {
        self.mark(HEALTH_MARK).await.map(drop)
    }

    /// Returns whether the store answers a read. An answer that refuses the read because of a missing right also counts.
    async fn answers(&self) -> bool {
        self.mark(HEALTH_MARK).await.is_ok()
    }

    /// Checks the settings of the store's servers again. Returns a description if the settings now permit a loss of
    /// data that they did not permit when the store was opened. Settings can change while a process runs, for example
    /// when a replica with other settings becomes master. Returns an error if the settings cannot be read.
    async fn check_servers(&self) -> Result<Option<String>, StoreError> {
        Ok(None)
    }

    /// Makes all earlier writes durable.
    async fn flush(&self) -> Result<(), StoreError>;
}
