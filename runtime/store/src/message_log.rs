//! The data that the store keeps about messages on their way to a destination: their numbers, a log of messages for
//! replay, and the queues of streams whose source is the store.
//!
//! An outbox contains the committed messages of a partition that are to be published. The owner of the partition sends
//! these messages to the store in the order of the outbox, and the store assigns each message. If the messages of the
//! destination have numbers, the store gives the message its number and keeps the message for replay. If the
//! destination is a stream, the store puts the message into the queue of the stream. If the same message is sent again,
//! the store recognises the message. It recognises a message of an owner by the commit and the id of the message, as
//! long as the message can still be in the outbox. It recognises a message of a producer by the id of the message, or
//! by the number that the producer gave the message. As long as a store remembers the last number of a key, it must
//! never give two messages of the key the same number.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
pub use ordain_core::OutboxPosition;
use ordain_core::{Event, Key, NumberedChunk, QueuePosition, QueueRun, WriterCalls};

use super::{Claim, FoundEvents, Partition, StoreError};

/// The maximum number of messages in one call of [`MessageLog::assign`]. In Redis, each message adds at most twelve
/// values to the single write of a script, and one write can have at most about eight thousand values.
pub const ASSIGN_LIMIT: usize = 500;

/// The approximate maximum size of the messages in one call of [`MessageLog::assign`], in bytes. The first message may
/// exceed the limit. A commit has the same limit.
pub const ASSIGN_BYTES: usize = 4 << 20;

/// The destination of messages. The store numbers the messages of a key separately for each destination.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Destination {
    /// An exchange of the broker, with its name.
    Exchange(Arc<str>),
    /// A stream whose source is the store, with its name.
    Stream(Arc<str>),
    /// A file, with its path; for standard output, `-` and the name of the sink.
    File(Arc<str>),
}

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

/// The rules for the messages of a destination. All callers that assign messages to a destination must use the same
/// rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DestinationRules {
    /// The rules for numbering messages. `None` if the store numbers no messages of this destination; a message keeps
    /// the number that it already has.
    pub numbering: Option<NumberingSettings>,
    /// The number of waiting events at which a partition's queue in one shard (a slice of the store) is full. The store
    /// refuses a call that adds an event to a full queue. A call that finds a queue below this number can extend the
    /// queue beyond this number. `None` if the destination is not a stream.
    pub queue_limit: Option<u64>,
}

/// The rules for numbers, and for the retention of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NumberingSettings {
    /// The number of the first message of a key.
    pub first: u64,
    /// The time for which the store retains messages for replay and remembers the ids of producers' messages, in ms.
    pub retain: u64,
    /// The maximum number of retained messages of a key.
    pub retain_events: u64,
    /// The time for which the store remembers the last number of a key after the key has ended, in ms. A message that
    /// follows within this time gets the next number. A message that follows later gets the number `first`.
    pub complete_ttl: u64,
}

/// The rules of a stream whose configuration does not contain these settings.
impl Default for NumberingSettings {
    fn default() -> Self {
        const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
        Self { first: 1, retain: DAY_MS, retain_events: 10_000, complete_ttl: 7 * DAY_MS }
    }
}

/// The outbox from which messages come, and the progress of its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OriginOutbox {
    /// The partition of the outbox.
    pub partition: Partition,
    /// The shard of the outbox.
    pub shard: u32,
    /// The epoch of the owner's claim. A later owner has a higher epoch. If the store has already seen a higher epoch
    /// for this outbox, the store changes nothing.
    pub epoch: u64,
    /// The number of the last commit of this partition and shard when the owner wrote its claim. If an earlier owner
    /// has assigned messages of a commit with a higher number, the shard has lost that commit, and another commit will
    /// get its number.
    pub claimed_commit: u64,
    /// The last outbox position that the store confirmed to this owner, for this destination and shard; `None` if the
    /// store has confirmed no outbox position.
    pub last_confirmed: Option<OutboxPosition>,
    /// The number of a commit: the store records the messages of this commit and of all earlier commits as published.
    /// The store is allowed to forget the outbox positions of these messages.
    pub published_commit: u64,
}

/// The messages of one outbox position, or of a producer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxChunk {
    /// The outbox position of the messages; meaningless if the messages come from a producer.
    pub position: OutboxPosition,
    /// The messages, in order.
    pub items: Vec<AssignItem>,
}

/// A message that the store is to assign.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssignItem {
    /// The event that the receiver will get. The event has a sequence only if its producer has numbered it. Otherwise,
    /// if the store numbers the messages of the destination, it adds the number.
    pub event: Arc<Event>,
    /// The partition of the destination stream; meaningless if the destination is not a stream.
    pub partition: u32,
    /// The number that this message had before the store lost it; 0 if the message never had a number, or if the caller
    /// accepts another number.
    ///
    /// The store gives a message of an owner this number again on two conditions: no other message has got the number
    /// in the meantime, and the number is higher than the numbers of all earlier messages with the same key in the
    /// group. Otherwise the message gets the next number of its key. A message of a producer gets this number or none
    /// ([`AssignItemReply::OtherNumber`]).
    pub number: u64,
}

/// The messages of one outbox, or of one key of a producer, for a destination and shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssignGroup {
    /// The outbox of the messages. `None` if the messages come from a producer; the store then recognises a message by
    /// its id, or by the number that the producer gave it.
    pub origin: Option<OriginOutbox>,
    /// The chunks, in order. A group without chunks only checks that the store still has all messages that the store
    /// has confirmed to the owner.
    pub chunks: Vec<OutboxChunk>,
}

/// Messages for one destination and shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssignRequest {
    /// The destination of the messages.
    pub destination: Destination,
    /// The shard that has the keys of all messages.
    pub shard: u32,
    /// The rules of the destination.
    pub rules: DestinationRules,
    /// The newest message or call that the store has confirmed to the producer; `None` if the store has confirmed
    /// nothing to the producer. A shard that lacks the witness has lost data. Owners need no witness, because their
    /// groups name their last confirmed outbox position.
    pub witness: Option<Witness>,
    /// The writer's id and the number of this call, if a producer adds entries to queues; otherwise `None`. A store
    /// that can go back in time keeps the number of the call with the entries ([`MessageLog::writer_calls`]). A call
    /// without messages prolongs the time for which the store keeps the record of the writer.
    pub call: Option<WriterCall>,
    /// The streams that read the destination and that may also have events which producers have numbered without the
    /// store. Before the store numbers a producer's event, it reads the record of the event's key in each of these
    /// streams. If a record has a higher sequence than the store has given, the store does not number the event
    /// ([`AssignItemReply::NumberedElsewhere`], [`AssignItemReply::KeyEnded`]). A record has the sequences of settled
    /// events, of spilled events, and of the dead letters in [`KeyRecord::ahead`](ordain_core::KeyRecord::ahead).
    pub readers: Vec<Arc<str>>,
    /// True if the caller publishes lost events again: events whose numbers the store has lost. The store then checks
    /// whether a record of a reader has a higher sequence than the store has given. If so, the store compares the event
    /// with the reader's event at the sequence that the store would give ([`Event::repeat_digests`]). If the two are
    /// the same event, the store gives this sequence again, and the reader recognises the repeat. Otherwise, or if the
    /// reader no longer has the digest of its event, the store refuses the event ([`AssignItemReply::UnprovenRepeat`]).
    /// The store cannot compare the event with a dead letter, so it ignores the range of dead letters in the record.
    ///
    /// If the key has ended in the reader, the store gives no number, because with a number the key would start again.
    /// The store replies [`AssignItemReply::Settled`] if the reader has the event, and otherwise
    /// [`AssignItemReply::KeyEnded`].
    pub reuses_lost_numbers: bool,
    /// The groups, at most one of each origin. All groups together have at most [`ASSIGN_LIMIT`] messages.
    pub groups: Vec<AssignGroup>,
}

/// A call of a writer of queue entries: a publisher, or a process that accepts events over HTTP. The writer numbers its
/// calls to each stream and shard, from 1. All tries of a call have the same number, so the store counts a repeated
/// call only once. If the store refuses a call because the queue is full, the next call of the writer uses the same
/// number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriterCall {
    /// The random id of the writer.
    pub writer: u64,
    /// The number of the call, from 1.
    pub call: u64,
}

/// The newest message that a producer has written to a shard, or, if the messages have no numbers, the producer's
/// newest call that has added entries to a queue. A shard that lacks the witness has gone back in time (lost its newest
/// writes), and would give the numbers of lost messages to new messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Witness {
    /// A message that the store has numbered.
    StoreNumbered {
        /// The key of the message.
        key: Key,
        /// The digest of the message's identity ([`Event::identity_digest`]).
        id: u64,
        /// The number of the message.
        sequence: u64,
    },
    /// A message that its producer has numbered.
    ProducerNumbered {
        /// The key of the message.
        key: Key,
        /// The number of the message.
        sequence: u64,
        /// The digest of the message's content ([`Event::content`]).
        content: u64,
        /// The number whose message removes this message from the log, because the log retains a limited number of
        /// messages of a key ([`NumberingSettings::retain_events`]). Another producer may have written that message. A
        /// shard in which the key has reached this number therefore need not have the witness.
        evicted_by: u64,
    },
    /// A call that has added entries to a queue whose messages have no numbers.
    Call(WriterCall),
}

impl NumberedChunk for OutboxChunk {
    type Key = str;

    fn position(&self) -> OutboxPosition {
        self.position
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

impl AssignGroup {
    /// Returns all messages of the group, in order.
    pub fn items(&self) -> impl Iterator<Item = &AssignItem> {
        self.chunks.iter().flat_map(|chunk| &chunk.items)
    }
}

impl AssignRequest {
    /// Returns the messages of all groups, in order.
    pub fn items(&self) -> impl Iterator<Item = &AssignItem> {
        self.groups.iter().flat_map(AssignGroup::items)
    }
}

/// The result of assigning one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AssignItemReply {
    /// The message is new. The value is its number; 0 if the message has no number.
    New(u64),
    /// The store already had the message, under this number; 0 if the message has no number.
    Known(u64),
    /// The caller [publishes lost events again](AssignRequest::reuses_lost_numbers), and the key has ended in a reader,
    /// which has settled this event under the sequence in the value. The store does not keep the message.
    Settled(u64),
    /// The message of a producer has the id or the sequence of an earlier message, but different content. The value is
    /// the number of the earlier message.
    Conflict(u64),
    /// The message of a producer has no number, and the store cannot give it a number. A
    /// [reader](AssignRequest::readers) has events of the key with numbers that the store has not given, or that it
    /// gave and then lost. The value is the sequence after the highest of these numbers.
    NumberedElsewhere(u64),
    /// The caller [publishes lost events again](AssignRequest::reuses_lost_numbers), but the store cannot prove that
    /// the message repeats the reader's event at the sequence in the value. Either the reader has a different event at
    /// this sequence, or the store has no digest of the reader's event.
    UnprovenRepeat(u64),
    /// The caller writes a lost message of a producer again, and names the message's [earlier
    /// number](AssignItem::number). But the store would give the message another number: the number in the value. The
    /// store wrote nothing.
    OtherNumber(u64),
    /// The message of a producer has no number, and the store cannot give it a number. A
    /// [reader](AssignRequest::readers) has events of the key with numbers that the store has not given or no longer
    /// remembers, and the key has ended in this reader. The store can number messages of the key again when the
    /// reader's record of the ended key has expired.
    KeyEnded,
    /// The store ignored the message of a producer, because the store refused an earlier message of the same group.
    AfterConflict,
}

impl AssignItemReply {
    /// Returns the number in the reply: the number of the message itself, or, for a conflict, the number of the earlier
    /// message. Returns 0 if there is no number.
    pub fn sequence(self) -> u64 {
        match self {
            Self::New(sequence)
            | Self::Known(sequence)
            | Self::Settled(sequence)
            | Self::Conflict(sequence) => sequence,
            Self::NumberedElsewhere(_)
            | Self::UnprovenRepeat(_)
            | Self::OtherNumber(_)
            | Self::KeyEnded
            | Self::AfterConflict => 0,
        }
    }

    /// Returns whether the store refused the message of a producer, and therefore ignores the later messages of the
    /// same group.
    pub fn is_refused(self) -> bool {
        matches!(
            self,
            Self::Conflict(_)
                | Self::NumberedElsewhere(_)
                | Self::UnprovenRepeat(_)
                | Self::OtherNumber(_)
                | Self::KeyEnded
        )
    }
}

/// The reply to a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AssignGroupReply {
    /// The store has assigned all messages. Exception: in a group of a producer, the store has assigned neither a
    /// refused message ([`AssignItemReply::is_refused`]) nor the messages after it. The value has one result for each
    /// message.
    Done(Vec<AssignItemReply>),
    /// One of three cases: a newer owner of the outbox has begun to assign messages; the messages of this group are
    /// already recorded as published; or the call has an earlier group of the same outbox. The store changed nothing
    /// for this group.
    Fenced,
    /// The store went back in time: it lacks messages that it had confirmed to this owner. The store changed nothing
    /// for this group. The value is the last outbox position of this owner that the store still has, if any. The owner
    /// can assign the messages after this position again.
    RolledBack(Option<OutboxPosition>),
}

/// The reply to a call of [`MessageLog::assign`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AssignReply {
    /// One reply for each group; and, for each partition that got new queue entries, the range of these entries.
    Groups(Vec<AssignGroupReply>, Vec<(u32, QueueRun)>),
    /// The queue of a partition is full. The store changed nothing.
    Full,
}

/// A queue entry: an event, or the bytes of an unreadable entry and the reason.
pub type QueueEntry = Result<Event, (Bytes, String)>;

/// The result of a read of a queue.
#[derive(Debug, Clone, PartialEq)]
pub struct QueuePage {
    /// The number of the first entry in the queue. If the queue is empty, the number that the next entry will get.
    pub first: u64,
    /// The entries that were read, in order, each with its queue position.
    pub entries: Vec<(QueuePosition, QueueEntry)>,
}

/// The two ends of a queue: its first waiting entry and its newest entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueEnds {
    /// The number of the first waiting entry. If no entry waits, the number that the next entry will get.
    pub first: u64,
    /// The queue position of the newest entry.
    pub last: QueuePosition,
}

impl QueueEnds {
    /// Returns the number of waiting entries.
    pub fn len(&self) -> u64 {
        self.last.number.saturating_add(1).saturating_sub(self.first)
    }

    /// Returns whether no entry waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The result of a removal from a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DequeueResult {
    /// The store removed the entries. If the entries were already removed, or if the partition has another claim, the
    /// store changed nothing.
    Done,
    /// The store removed nothing, because the shard lacks the commit that the caller named. The caller retries after
    /// the owner has repeated that commit.
    MissingCommit,
}

/// The data that a store keeps about messages on their way to a destination: their numbers, the log of messages for
/// replay, and the queues.
///
/// Queues use positions ([`QueuePosition`]) instead of bare numbers, because a store that went back in time gives the
/// numbers of lost entries to other entries. A position consists of the number of an entry, and a history: a digest of
/// all writes to the queue up to the entry. If the entry with the number of a queue position has another history, or if
/// the queue has not reached this number, the store returns [`StoreError::RolledBack`]. The store never refuses the
/// queue position of a damaged entry.
#[async_trait]
pub trait MessageLog: Send + Sync {
    /// Assigns messages in one atomic write. If the messages of the destination have numbers, this write numbers the
    /// messages, and retains them for replay. If the destination is a stream, this write also puts the messages into
    /// the queues of the stream. Messages that the store recognises keep their numbers. Messages for an exchange or a
    /// file are durable when the store replies. Messages for a stream become durable with a later commit at the latest.
    ///
    /// # Errors
    /// [`StoreError::RolledBack`]: the shard lacks the [witness](AssignRequest::witness); the store changed nothing. A
    /// store that cannot go back in time while it is open does not check the witness.
    async fn assign(&self, assign: Arc<AssignRequest>) -> Result<AssignReply, StoreError>;

    /// Returns the retained messages of a key with the wanted sequences. Returns at most about `bytes` bytes, but at
    /// least one message if there is one. Omits unreadable messages, and logs them.
    async fn retained_messages(
        &self,
        to: &Destination,
        key: &Key,
        wanted: &[RangeInclusive<u64>],
        bytes: usize,
    ) -> Result<FoundEvents, StoreError>;

    /// Reads the entries that wait for a partition in a shard, after the queue position `after`. Returns at most
    /// `limit` entries and about `bytes` bytes, but at least one entry if there is one. Returns the bytes of an
    /// unreadable entry, with the reason. The store keeps the history of the last removed entry, but not of the entries
    /// removed before it. The store therefore accepts every `after` before the last removed entry.
    ///
    /// # Errors
    ///
    /// [`StoreError::RolledBack`] if the entry with the number of `after` has another history, or if the queue has not
    /// reached this number.
    async fn read_queue(
        &self,
        partition: &Partition,
        shard: u32,
        after: QueuePosition,
        limit: usize,
        bytes: usize,
    ) -> Result<QueuePage, StoreError>;

    /// Removes the entries of a partition's queue in a shard, up to and including a queue position. Changes nothing if
    /// `claim` is not the current claim of the partition. The removal becomes durable with a later commit, like the
    /// write of [`outbox_done`](super::Outbox::outbox_done). `commit` is the last commit of the shard that this owner
    /// knows to be durable, or 0 if the removal depends on no commit.
    ///
    /// # Errors
    ///
    /// [`StoreError::RolledBack`] if the entry with the number of `through` has another history, or if the queue has
    /// not reached this number. The store removed nothing.
    async fn dequeue(
        &self,
        partition: &Partition,
        claim: Claim,
        shard: u32,
        commit: u64,
        through: QueuePosition,
    ) -> Result<DequeueResult, StoreError>;

    /// Returns, for each key, the partition that its key record names. Returns `None` for a key without a record, or
    /// with an unreadable record. A record that has expired counts until the store removes it. When the caller gets the
    /// reply, another partition may already have taken over a key.
    async fn partitions_of(
        &self,
        stream: &str,
        keys: &[&str],
    ) -> Result<Vec<Option<u32>>, StoreError>;

    /// For each key, returns whether the store has a counter of the key in the destination. The store has a counter if
    /// it has accepted a message of the key with a number, or has given a message of the key a number. A counter that
    /// has expired counts until the store removes it.
    async fn has_counters(&self, to: &Destination, keys: &[&str]) -> Result<Vec<bool>, StoreError>;

    /// Reads two values from a shard at the same moment: the numbers of those calls of the writer to the partition's
    /// stream that the shard still has, and the ends of the partition's queue in the shard.
    ///
    /// A store that can go back in time writes the number of a call together with the entries of the call. If the
    /// store loses the entries, it therefore loses the number too. The store keeps the numbers for at least half an
    /// hour after the writer's last call. Afterwards, the store may report that it has no call of the writer. A store
    /// that cannot go back in time while it is open reports that it has all calls.
    async fn writer_calls(
        &self,
        partition: &Partition,
        shard: u32,
        _writer: u64,
    ) -> Result<(WriterCalls, QueueEnds), StoreError> {
        let ends = self.queue_ends(partition).await?[shard as usize];
        Ok((WriterCalls::all(), ends))
    }

    /// Returns the ends of a partition's queue in each shard.
    async fn queue_ends(&self, partition: &Partition) -> Result<Vec<QueueEnds>, StoreError>;

    /// Returns the number of events that wait for a partition.
    async fn queue_length(&self, partition: &Partition) -> Result<u64, StoreError> {
        Ok(self.queue_ends(partition).await?.iter().map(QueueEnds::len).sum())
    }
}

/// Returns the message in `result`. If the message is unreadable, logs the error and returns `None`.
pub fn ok_or_log(key: &str, result: Result<Arc<Event>, String>) -> Option<Arc<Event>> {
    result
        .inspect_err(|error| {
            tracing::error!(
                key,
                "a message that the store kept for replay is unreadable: {error}; continuing without it"
            );
        })
        .ok()
}
