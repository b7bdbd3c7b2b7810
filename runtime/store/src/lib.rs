//! What the runtime needs of a store. One trait, and one conformance suite over every
//! implementation of it.
//!
//! A store keeps and refuses; it decides nothing. What is written, and under which condition,
//! stands in the [`Batch`] that the sequencer made.

mod about;
mod chains;
pub mod checkpoint;
pub mod codec;
mod insist;
mod leases;
pub mod published_file;
mod redis_address;
mod redis_options;
mod report;
pub mod tenure;
pub mod versions;

use std::ops::RangeInclusive;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use ordain_core::{
    Batch, CommitReply, DeadLetter, Emitted, Event, Job, Key, LetterId, Loaded, SpillPage, Status,
};

pub use about::{About, PARTITIONS, Process, Reach};
pub use chains::{
    ASSIGN_BYTES, ASSIGN_LIMIT, Assign, AssignReply, Assigned, Chains, Destination, Item, Lot,
    LotReply, Numbers, Origin, Part, Place, Queued, Rules, readable,
};
pub use insist::insist_on;
pub use leases::{Beat, Beaten, Generation, InstanceId, Lease, Leased, Leases, Member, Table};
pub use redis_address::Address as RedisAddress;
pub use redis_options::{Options as RedisOptions, REDIS_BATCH_LIMIT};
pub use report::{BLOCKED, Report, Work};
pub use tenure::{Stage, Tenure};
pub use versions::is_version;

/// Bytes of a key. Decoders refuse longer ones. Keys are held by every lane and are part of every
/// record, index entry and listing, which no memory budget counts one by one; real ones have tens
/// of bytes, and what is longer is most often another field by mistake.
pub const KEY_SIZE_LIMIT: usize = 1 << 10;

/// Why a key cannot be kept, if it cannot.
pub fn too_long(key: &str) -> Option<String> {
    (key.len() > KEY_SIZE_LIMIT)
        .then(|| format!("the key has {} bytes; {KEY_SIZE_LIMIT} are allowed", key.len()))
}

/// Bytes of a mark's name: the longest path of the system and the longest name of a stream fit.
pub const MARK_NAME_LIMIT: usize = 8 << 10;

/// Bytes of a stream's name, which is part of every place: its length is kept in one byte.
pub const STREAM_NAME_LIMIT: usize = 255;

/// A partition of a stream: the unit of ownership.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition {
    /// The stream's name.
    pub stream: Arc<str>,
    /// Its number, from 0.
    pub number: u32,
}

/// What an owner writes into a fence. A commit under another claim is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// That of the lease: higher than that of every owner before.
    pub epoch: u64,
    /// Tells two owners of one epoch apart, which a store that went back in time can make.
    pub random: u64,
}

/// A claimed partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimed {
    /// The claim, written into every shard.
    pub claim: Claim,
    /// The number of the last commit of each shard; 0 where there was none.
    pub commits: Vec<u64>,
}

/// What one batch has to publish, in order: first its messages, then its letters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxEntry {
    /// Number of the commit.
    pub number: u64,
    /// Its messages.
    pub messages: Vec<OutboxMessage>,
    /// Its [forwarded](Batch::forwarded) dead letters.
    pub letters: Vec<DeadLetter>,
}

/// One committed message with what its id is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxMessage {
    /// Key of the event that caused it.
    pub key: Key,
    /// [`Job::incarnation`] of that key.
    pub incarnation: u64,
    /// The message, with the sequence of the event and its position there.
    pub emitted: Emitted,
}

/// A record of the host's own that is written together with the removal of outbox entries, or by
/// itself: the checkpoint of a source, the length of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// Its name, for example `source/orders` or `sink/receipts`.
    pub name: String,
    /// Its value.
    pub value: Bytes,
}

/// One page of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    /// The rows, in the store's order.
    pub rows: Vec<T>,
    /// Where to go on; `None` at the end.
    pub cursor: Option<String>,
}

/// A row of a listing of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRow {
    /// The key.
    pub key: Key,
    /// Its record, or why it cannot be read.
    pub job: Result<Job, String>,
    /// Bytes of its state.
    pub state_size: u64,
    /// Its entry in the due index: time in ms since the Unix epoch, by the store's clock.
    pub due_at: Option<u64>,
}

/// Which keys to list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeyFilter {
    /// Only with this status.
    pub status: Option<Status>,
    /// Only keys that begin so.
    pub prefix: String,
    /// Where the last page ended.
    pub cursor: Option<String>,
    /// Rows at most; a store that must give several at once may give a few more.
    pub limit: usize,
    /// Jobs that are looked at for a page, about; by default as many as take some ten ms.
    pub looks: Option<usize>,
}

/// A dead letter as kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredLetter {
    /// The letter.
    pub letter: DeadLetter,
    /// When it was put, by the store's clock, in ms since the Unix epoch.
    pub at: u64,
}

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

/// What a store's settings mean for what is acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Durability {
    /// One plain sentence.
    pub words: String,
    /// Whether a restart of a server loses much of it, or nothing is acknowledged as it is.
    pub is_at_risk: bool,
}

/// What a store has of one key, or why that cannot be read. What concerns others as well is a
/// [`StoreError`].
pub type OfKey<T> = Result<T, String>;

/// A store. All methods may be called from many tasks at once; for one (partition, shard) the
/// caller has one commit under way.
#[async_trait]
pub trait Store: Leases + Chains {
    /// Shards that it spreads keys over.
    fn shards(&self) -> u32;

    /// What its settings mean for what is acknowledged.
    fn durability(&self) -> Durability;

    /// How often it was out of reach. Whenever this has grown it may be at an earlier time.
    fn breaks(&self) -> u64 {
        0
    }

    /// Waits until it has failed for good, so that whoever runs on it can end; what is asked of it
    /// from then on is answered [`StoreError::Failed`]. Waits for ever where asking again may help.
    async fn failed(&self) -> StoreError {
        std::future::pending().await
    }

    /// Takes a partition over: writes a claim with the epoch of its [lease](Leases::lease) into each
    /// of its shards. From then on commits under an older claim are answered
    /// [`CommitReply::Fenced`]. Where somebody else has claimed it under this epoch or a higher one
    /// it is [`StoreError::InUse`]: only a new lease helps.
    async fn claim(&self, partition: &Partition, epoch: u64) -> Result<Claimed, StoreError>;

    /// Loads jobs in order until they have `bytes` together, one at least, and takes over for the
    /// partition those that another one had. Those not reached are neither answered nor taken
    /// over.
    async fn load(
        &self,
        partition: &Partition,
        keys: &[Key],
        bytes: usize,
    ) -> Result<Vec<OfKey<Option<Box<Loaded>>>>, StoreError>;

    /// Commits a batch durably. A number that is the last one again is answered as it was; the
    /// store keeps that answer.
    async fn commit(&self, partition: &Partition, claim: Claim, batch: Arc<Batch>) -> CommitReply;

    /// Spilled events of a key from `from` on, ascending, and whether there are none after them.
    /// At least one is read if there is one; then no more than `limit`, and `bytes` of memory.
    async fn read_spill(
        &self,
        partition: &Partition,
        key: &Key,
        from: u64,
        limit: usize,
        bytes: usize,
    ) -> Result<OfKey<SpillPage>, StoreError>;

    /// Missing events that the store has in any form: spilled, or as `far-ahead` letters that were
    /// put no longer than `within` ms ago.
    async fn find(
        &self,
        partition: &Partition,
        key: &Key,
        missing: &[RangeInclusive<u64>],
        within: u64,
    ) -> Result<OfKey<Vec<(u64, Arc<Event>)>>, StoreError>;

    /// Entries (time, key) of the partition's due index that have passed (with `all`, the others
    /// as well), the earliest first, behind `after`; and the ms to the earliest entry after those,
    /// passed or not.
    async fn due(
        &self,
        partition: &Partition,
        after: Option<&(u64, Key)>,
        limit: usize,
        all: bool,
    ) -> Result<(Vec<(u64, Key)>, Option<u64>), StoreError>;

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

    /// Notes how far the source of a partition is done with, as lazily as [`Store::outbox_done`],
    /// unless another claim is there: it speaks of the commits of this one. Answers false where it
    /// is not written: where another claim or none is there, where the store does not answer at
    /// once, or was out of reach more often than `breaks`. Then it may be at an earlier time,
    /// without what the checkpoint speaks of.
    async fn put_checkpoint(
        &self,
        partition: &Partition,
        claim: Claim,
        breaks: u64,
        mark: &Mark,
    ) -> Result<bool, StoreError>;

    /// Puts marks, as lazily as [`Store::outbox_done`].
    async fn put_marks(&self, marks: &[Mark]) -> Result<(), StoreError>;

    /// Reads a mark.
    async fn mark(&self, name: &str) -> Result<Option<Bytes>, StoreError>;

    /// Makes everything written so far durable.
    async fn flush(&self) -> Result<(), StoreError>;

    /// The streams of which it holds anything: a job, a dead letter, what is to be published, or what
    /// waits to be taken.
    async fn streams(&self) -> Result<Vec<Arc<str>>, StoreError>;

    /// Lists keys of a stream. A page is bounded in time and memory, so that it may have fewer
    /// rows than asked for, even none, and a cursor all the same. No key is missing that is there
    /// all the time; where keys come and go meanwhile, one may be on two pages.
    async fn keys(&self, stream: &str, filter: &KeyFilter) -> Result<Page<KeyRow>, StoreError>;

    /// One key, with its state.
    async fn key(
        &self,
        stream: &str,
        key: &str,
    ) -> Result<Option<(KeyRow, Option<Bytes>)>, StoreError>;

    /// Lists dead letters of a stream, by key and sequence; `key` restricts to one key. Pages are
    /// as those of [`Store::keys`].
    async fn letters(
        &self,
        stream: &str,
        key: Option<&str>,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<Page<StoredLetter>, StoreError>;

    /// One dead letter.
    async fn letter(&self, stream: &str, id: &LetterId)
    -> Result<Option<StoredLetter>, StoreError>;
}
