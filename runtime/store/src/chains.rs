//! What the store keeps between stages: the numbers of messages, a log of them for replay, and queues
//! of the streams that are fed from here.
//!
//! Messages of one owner come in the order of its outbox. Which of them have their numbers is known by
//! their [`Place`] in it, as long as the outbox has them; what a producer publishes is known by its id.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
pub use ordain_core::Place;
use ordain_core::{Event, Key, NumberedPart, QueuePlace, QueueRun};

use super::{Claim, Partition, StoreError};

/// Messages that are given to [`Chains::assign`] together, at most: each adds up to twelve values to the
/// one write of a script, which can hand over eight thousand, and more must never come together.
pub const ASSIGN_LIMIT: usize = 500;

/// Bytes of them, about, beyond the first ones: as many as a commit has.
pub const ASSIGN_BYTES: usize = 4 << 20;

/// Where messages go, each to the key that it names there. Numbers are counted for each of them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Destination {
    /// An exchange of the broker.
    Exchange(Arc<str>),
    /// A stream that is fed from here.
    Stream(Arc<str>),
    /// A file.
    File(Arc<str>),
}

/// Its kind and name, as in `exchange/orders`.
impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, name) = match self {
            Self::Exchange(name) => ("exchange", name),
            Self::Stream(name) => ("stream", name),
            Self::File(name) => ("file", name),
        };
        write!(f, "{kind}/{name}")
    }
}

/// What is done with messages of a destination. All who give it messages have the same rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// How they are numbered; `None`: not at all, and what has a number keeps it.
    pub numbers: Option<Numbers>,
    /// Events that may wait for a partition of the stream; `None` where the destination is none.
    pub queue: Option<u64>,
}

/// How messages are numbered, and what is kept of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbers {
    /// Of the first one of a key.
    pub first: u64,
    /// How long they are kept for replay, in ms, and ids are remembered.
    pub retain: u64,
    /// How many of a key are kept.
    pub retain_events: u64,
    /// How long the count of a key that has ended is remembered, in ms. What comes meanwhile is numbered
    /// on; afterwards the key begins anew.
    pub complete_ttl: u64,
}

/// Those of a stream that says nothing of it.
impl Default for Numbers {
    fn default() -> Self {
        const DAY: u64 = 24 * 60 * 60 * 1_000;
        Self { first: 1, retain: DAY, retain_events: 10_000, complete_ttl: 7 * DAY }
    }
}

/// Whose messages they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The partition that has them in its outbox.
    pub partition: Partition,
    /// The shard of that outbox.
    pub shard: u32,
    /// The epoch of the owner's claim. Under an older one than before nothing is done.
    pub epoch: u64,
    /// The last commit that its claim found in that shard. Later ones that owners before it gave are lost
    /// there, and their numbers are those of other commits now.
    pub found: u64,
    /// The last place that this owner was answered of, for this destination and shard.
    pub before: Option<Place>,
    /// Through which commit the outbox is marked done: of those nothing needs to be known any more.
    pub done: u64,
}

/// Messages of one place, or of a producer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Its place; of no meaning without an origin.
    pub place: Place,
    /// In their order.
    pub items: Vec<Item>,
}

/// One message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// As whoever gets it will see it. One with a sequence keeps that; only a producer's has one.
    pub event: Arc<Event>,
    /// The partition of the stream that it goes to.
    pub partition: u32,
    /// The number that an owner's message had before the store lost it; 0 if it has had none. It gets this number
    /// again, unless another message has it now.
    pub number: u64,
}

/// What one outbox or one producer has for a destination and shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lot {
    /// Whose it is; `None`: a producer's, whose messages are known by their ids.
    pub origin: Option<Origin>,
    /// The parts, in their order. With no parts, the call only checks whether the store still has all that the owner gave.
    pub parts: Vec<Part>,
}

/// Messages for one destination and shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assign {
    /// Where they go.
    pub to: Destination,
    /// The shard of all their keys.
    pub shard: u32,
    /// What is done with them.
    pub rules: Rules,
    /// A message or entry that the shard must have; `None` if the caller knows of none. Owners do not need it: their
    /// lots name their last place.
    pub witness: Option<Witness>,
    /// One lot of an origin, with [`ASSIGN_LIMIT`] messages in all of them at most.
    pub lots: Vec<Lot>,
}

/// The newest message or entry that a producer knows to be in a shard. A shard that lacks it has gone back in time, and
/// would give the numbers of lost messages to new ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Witness {
    /// A message that the store has numbered.
    Numbered {
        /// Its key.
        key: Key,
        /// The digest of its id ([`Event::id_digest`]).
        id: u64,
        /// Its number.
        sequence: u64,
    },
    /// A message whose number is its producer's.
    Counted {
        /// Its key.
        key: Key,
        /// Its number.
        sequence: u64,
        /// The digest of its content ([`Event::content`]).
        content: u64,
    },
    /// An entry of a queue whose messages have no numbers.
    Entry {
        /// The partition of the stream.
        partition: u32,
        /// The place of the entry.
        place: QueuePlace,
    },
}

impl NumberedPart for Part {
    type Key = str;

    fn place(&self) -> Place {
        self.place
    }

    fn keys(&self) -> impl Iterator<Item = &str> {
        self.items.iter().map(|item| item.event.key())
    }

    fn bytes(&self) -> usize {
        self.items.iter().map(|item| item.event.memory()).sum()
    }

    fn request_numbers(&mut self, numbers: &[u64]) {
        for (item, number) in self.items.iter_mut().zip(numbers) {
            item.number = *number;
        }
    }
}

impl Lot {
    /// All its messages, in order.
    pub fn items(&self) -> impl Iterator<Item = &Item> {
        self.parts.iter().flat_map(|part| &part.items)
    }
}

impl Assign {
    /// All messages, in order.
    pub fn items(&self) -> impl Iterator<Item = &Item> {
        self.lots.iter().flat_map(Lot::items)
    }
}

/// What became of one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Assigned {
    /// It is new, and has this number; 0 where there are none.
    New(u64),
    /// It was there already, under this number.
    Known(u64),
    /// A producer's, of which the id or the sequence is another message's.
    Conflict(u64),
    /// A producer's that stands behind a conflict: nothing was done with it.
    Behind,
}

impl Assigned {
    /// The number that it has; that of the other one if there is a conflict; 0 where there is none.
    pub fn sequence(self) -> u64 {
        match self {
            Self::New(sequence) | Self::Known(sequence) | Self::Conflict(sequence) => sequence,
            Self::Behind => 0,
        }
    }
}

/// What became of a lot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LotReply {
    /// All have their numbers, are in the log, and wait for their stream. One for each message.
    Done(Vec<Assigned>),
    /// A newer owner has begun to give its messages, or these are done already. Nothing was done
    /// with it.
    Fenced,
    /// The store went back in time: it lacks messages of this owner that it had confirmed. It did nothing. The value
    /// is the last place of this owner that it has, if any; the owner can give the messages behind it again.
    WentBack(Option<Place>),
}

/// What became of all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AssignReply {
    /// One reply for each lot, and one run of new queue entries for each partition that got any.
    Lots(Vec<LotReply>, Vec<(u32, QueueRun)>),
    /// As many wait for a partition of the stream as may. Nothing was done.
    Full,
}

/// What waits under a number: an event, or bytes that are none, and why.
pub type Queued = Result<Event, (Bytes, String)>;

/// The result of a read of a queue.
#[derive(Debug, Clone, PartialEq)]
pub struct QueuePage {
    /// The number of the first entry that the queue has, or will have.
    pub first: u64,
    /// The entries, in order.
    pub entries: Vec<(QueuePlace, Queued)>,
}

/// The ends of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueEnds {
    /// The number of the first entry that waits; that of the next one if nothing waits.
    pub first: u64,
    /// The last entry that was put.
    pub last: QueuePlace,
}

impl QueueEnds {
    /// How many wait.
    pub fn len(&self) -> u64 {
        self.last.number.saturating_add(1).saturating_sub(self.first)
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What became of a removal from a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// The entries are removed, or the partition has another claim and nothing was done.
    Done,
    /// Nothing is removed: the store lacks the named commit. The caller tries again after the owner has repeated it.
    LacksCommit,
}

/// What a store keeps between stages.
///
/// Queues use places ([`QueuePlace`]) instead of bare numbers, because a store that went back in time gives the
/// numbers of lost entries to other entries. The store answers [`StoreError::WentBack`] to a place that is not in its
/// history. It never refuses the place of a damaged entry.
#[async_trait]
pub trait Chains: Send + Sync {
    /// Numbers messages, keeps them for replay, and lets them wait for their stream, in one atomic
    /// write. What was given before is answered as it was then. Of an exchange or a file it is durable
    /// when it is answered; of a stream at the latest when a later commit is.
    ///
    /// # Errors
    /// [`StoreError::WentBack`]: the shard lacks the [witness](Assign::witness); nothing was done. A store that cannot
    /// go back in time while it is open does not check it.
    async fn assign(&self, assign: Arc<Assign>) -> Result<AssignReply, StoreError>;

    /// What is kept for replay of a key, of these sequences, ascending, up to so many bytes: one at
    /// least if there is one. What cannot be read is none, and named in the log.
    async fn retained(
        &self,
        to: &Destination,
        key: &Key,
        wanted: &[RangeInclusive<u64>],
        bytes: usize,
    ) -> Result<Vec<Arc<Event>>, StoreError>;

    /// Reads what waits for a partition in a shard behind `after`: at most `limit` events and about `bytes`, one
    /// at least if there is one. An unreadable entry comes as its bytes, with the reason. An
    /// `after` in front of the last removed entry is always accepted.
    ///
    /// # Errors
    ///
    /// [`StoreError::WentBack`] if `after` is not in the history of the store.
    async fn queued(
        &self,
        partition: &Partition,
        shard: u32,
        after: QueuePlace,
        limit: usize,
        bytes: usize,
    ) -> Result<QueuePage, StoreError>;

    /// Removes what waits in a shard up to a place, as lazily as
    /// [`outbox_done`](super::Outbox::outbox_done), and under the same condition. `commit` is the last commit of
    /// the shard that this owner knows to be durable, or 0 if the removal depends on no commit.
    ///
    /// # Errors
    ///
    /// [`StoreError::WentBack`] if the place is not in the history of the store. Nothing is removed.
    async fn dequeue(
        &self,
        partition: &Partition,
        claim: Claim,
        shard: u32,
        commit: u64,
        through: QueuePlace,
    ) -> Result<Removal, StoreError>;

    /// The partitions that keys belong to, as far as their jobs tell: `None` where there is no job, or none
    /// that can be read. By the time of the answer another may have taken one over.
    async fn partitions_of(
        &self,
        stream: &str,
        keys: &[&str],
    ) -> Result<Vec<Option<u32>>, StoreError>;

    /// The ends of a partition's queue in each shard.
    async fn waiting_in(&self, partition: &Partition) -> Result<Vec<QueueEnds>, StoreError>;

    /// How many events wait for a partition.
    async fn waiting(&self, partition: &Partition) -> Result<u64, StoreError> {
        Ok(self.waiting_in(partition).await?.iter().map(QueueEnds::len).sum())
    }
}

/// What is kept of a message, unless it cannot be read.
pub fn readable(key: &str, kept: Result<Arc<Event>, String>) -> Option<Arc<Event>> {
    kept.inspect_err(|error| {
        tracing::error!(
            key,
            "a message that is kept cannot be read, and counts as not there: {error}"
        );
    })
    .ok()
}
