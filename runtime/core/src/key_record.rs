//! The durable record of one key, and the writes that a commit makes to this record.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::event::{Event, Key, Message};
use crate::gaps::GapHistory;
use crate::id_times::IdTimes;
use crate::letter::{Cause, DeadLetter, LetterId};
use crate::limit::{ExceededLimit, HandlerLimit};
use crate::version::{Rollout, VersionName};

/// The durable record of one key, without its handler's state. The store reads and writes the state separately, so that
/// a change of the record or of the state rewrites only the changed part.
///
/// The times in the record are by the store's clock, in ms since the Unix epoch. In a record that is being written, a
/// time of 0 means "the time of this commit"; the store replaces the 0 by the time of its clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRecord {
    /// The next sequence to settle. All lower sequences are settled.
    pub next: u64,
    /// The time of the key's first commit. If a key starts again after its end, this time distinguishes the new key
    /// from the ended key of the same name.
    pub incarnation: u64,
    /// The partition whose owner may commit to this key.
    pub partition: u32,
    /// The number of loads that took the key over from another partition. Only a load changes the number, never a
    /// commit. When the key has moved to another partition and back, the number is higher than before these moves. The
    /// store therefore refuses a write that was formed from a load before the moves.
    pub takeovers: u32,
    /// The status of the key.
    pub status: KeyStatus,
    /// The number of failed tries of event `next` that count towards `retry.attempts`.
    pub attempts: u32,
    /// The number of replay rounds for event `next` that count towards `gap.attempts`.
    pub rounds: u32,
    /// An operator's action contains this number, so that the action has no effect if the key was released and parked
    /// again in the meantime.
    pub park_count: u32,
    /// The extent of the key's events in the spill area: the part of the store that holds events before they can run.
    pub spilled: SpillExtent,
    /// The range of the dead-lettered events that wait for earlier events of the key: the events with a dead letter
    /// `far-ahead` or `overflow`. `None` if the key has no such dead letter. While the range ends at or after the first
    /// missing sequence of the key, the key has a gap, even if the key holds no later event. When the key has passed
    /// sequences of the range, these sequences stay in the range until the owner has removed or replaced their
    /// remaining dead letters. Few keys have such dead letters, so the range is in a box.
    pub ahead: Option<Box<AheadRange>>,
    /// The rollout under which the newest executed event was committed. The rollout names the handler version.
    pub rollout: Option<Arc<Rollout>>,
    /// The reason why the key retries or is parked; `None` if the key does neither.
    pub failure: Option<Box<FailureInfo>>,
    /// The digests of the newest settled events.
    pub digests: EventDigests,
    /// The sequences that were skipped because their events never arrived. If keys may begin anywhere, also the
    /// sequences below the first sequence of the key.
    pub skipped: SkippedRanges,
    /// The first sequence whose id is remembered, in a `fifo` stream. 0 in a `sequenced` stream, which remembers no
    /// ids.
    pub ids_from: u64,
    /// The ages of the remembered ids, in a `fifo` stream.
    pub id_times: IdTimes,
    /// The latest gaps (missing events), with the answers of the replay sources.
    pub gaps: GapHistory,
}

impl KeyRecord {
    /// Creates the record of a key without commits.
    pub fn new(first: u64, partition: u32) -> Self {
        Self {
            next: first,
            incarnation: 0,
            partition,
            takeovers: 0,
            status: KeyStatus::Active,
            attempts: 0,
            rounds: 0,
            park_count: 0,
            spilled: SpillExtent::default(),
            ahead: None,
            rollout: None,
            failure: None,
            digests: EventDigests::default(),
            skipped: SkippedRanges::default(),
            ids_from: 0,
            id_times: IdTimes::default(),
            gaps: GapHistory::default(),
        }
    }

    /// Returns the number of the rollout under which the newest executed event was committed. Returns 0 if no event was
    /// executed.
    pub fn rollout_number(&self) -> u64 {
        self.rollout.as_ref().map_or(0, |decided| decided.number)
    }

    /// Returns `None` if the next event may be executed under the rollout `known`. Otherwise returns the lowest rollout
    /// number under which the event may be executed.
    pub fn missing_rollout(&self, known: Option<&Rollout>) -> Option<u64> {
        let last = self.rollout.as_deref()?;
        match known {
            Some(known) if known.number > last.number || known == last => None,
            // The store went back in time and assigned the number twice, so neither rollout is newer than the other.
            Some(known) if known.number == last.number => Some(last.number + 1),
            _ => Some(last.number),
        }
    }

    /// Replaces each time of 0 by the time of the commit, as a store does when it writes the record.
    pub fn fill_times(&mut self, now: u64) {
        if self.incarnation == 0 {
            self.incarnation = now;
        }
        if let Some(failure) = &mut self.failure
            && failure.since == 0
        {
            failure.since = now;
        }
        self.gaps.fill_times(now);
        self.id_times.fill_times(now);
    }

    /// Sets the times of this record that were still 0 in `written`, the record that the commit wrote. Failures and
    /// gaps that arose after the commit was formed keep the time 0, because a later commit records them.
    pub(crate) fn fill_written_times(&mut self, written: &Self, now: u64) {
        if self.incarnation == 0 {
            self.incarnation = now;
        }
        let tries = [&*self, written]
            .map(|record| (record.next, record.park_count, record.attempts, &record.failure));
        if tries[0] == tries[1]
            && let Some(failure) = &mut self.failure
            && failure.since == 0
        {
            failure.since = now;
        }
        self.gaps.fill_written_times(&written.gaps, now);
        // A stretch is a run of ids with one timestamp. A stretch that lacks its time always belongs to this write,
        // because a key has at most one write in flight.
        self.id_times.fill_times(now);
    }

    /// Returns whether a gap still lacks a time, or a run of ids (`IdTimes`) still lacks its timestamp.
    pub fn lacks_times(&self) -> bool {
        self.gaps.lacks_times() || self.id_times.lacks_time()
    }
}

/// The status of a key. Two changes do not by themselves cause a write: the change to `Waiting`, and the change from
/// `Retrying` to another status. The next write of the key stores the new status. The stored status may therefore be
/// older than the status in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyStatus {
    /// The next event runs when it arrives.
    Active,
    /// Event `next` is missing, and later events of the key have arrived.
    Waiting,
    /// Event `next` failed and will be retried.
    Retrying,
    /// The key is stopped at event `next`. An operator, another handler version or a changed limit of the handler can
    /// release the key. If event `next` is missing, two arrivals also release the key: the arrival of event `next`, and
    /// the arrival of a later event that is close enough for a skip.
    Parked,
    /// The key has ended. The record stays for `complete_ttl`, so that the sequencer detects repeated events.
    Completed,
}

impl KeyStatus {
    /// All statuses, in the order of the enum.
    pub const ALL: [Self; 5] =
        [Self::Active, Self::Waiting, Self::Retrying, Self::Parked, Self::Completed];

    /// Returns the name in listings and commands.
    pub fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Waiting => "waiting",
            Self::Retrying => "retrying",
            Self::Parked => "parked",
            Self::Completed => "completed",
        }
    }

    /// Parses a name that [`name`](Self::name) returned.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.name() == name)
    }
}

/// The reason why a key retries or is parked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailureInfo {
    /// The class of the reason, such as a timeout or a gap.
    pub cause: Cause,
    /// The reason as stored: the text ([`words`](Self::words)). If the handler exceeded a [`limit`](Self::limit), a tag
    /// with the name and the value of the limit precedes the text.
    pub error: String,
    /// The time of the commit that recorded the failure, by the store's clock.
    pub since: u64,
    /// The handler version that failed, if a handler failed.
    pub version: Option<VersionName>,
}

impl FailureInfo {
    /// Returns the limit that the handler exceeded, if the configuration can change this limit.
    pub fn limit(&self) -> Option<HandlerLimit> {
        self.exceeded().map(|exceeded| exceeded.limit)
    }

    pub(crate) fn exceeded(&self) -> Option<ExceededLimit> {
        self.parts().0
    }

    /// Returns the reason as text.
    pub fn words(&self) -> &str {
        self.parts().1
    }

    /// Splits the reason into tag and text. Only the causes `Limit` and `Timeout` have a tag. The text of another cause
    /// may come from the handler, so this function never parses a tag in such a text.
    fn parts(&self) -> (Option<ExceededLimit>, &str) {
        match self.cause {
            Cause::Limit | Cause::Timeout => ExceededLimit::untag(&self.error),
            _ => (None, &self.error),
        }
    }

    /// Returns the memory cost of this value, in bytes.
    pub fn memory(&self) -> usize {
        size_of::<Self>() + self.error.len()
    }
}

/// The extent of a key's spilled events: the events that the store holds until the key can execute them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpillExtent {
    /// The number of spilled events.
    pub count: u64,
    /// A lower bound of the sequences of the spilled events.
    pub first: u64,
    /// An upper bound of the sequences of the spilled events.
    pub last: u64,
}

impl SpillExtent {
    /// Adds an event to the number, and widens the bounds to contain its sequence.
    pub fn add(&mut self, sequence: u64) {
        if self.count == 0 {
            self.first = sequence;
            self.last = sequence;
        } else {
            self.first = self.first.min(sequence);
            self.last = self.last.max(sequence);
        }
        self.count += 1;
    }

    /// Returns whether every sequence from `first` to `last` is spilled; `false` if no event is spilled.
    pub fn contiguous(&self) -> bool {
        self.count > 0 && self.count - 1 == self.last - self.first
    }

    /// Returns whether the sequence is in the range from `first` to `last`; `false` if no event is spilled.
    pub fn spans(&self, sequence: u64) -> bool {
        self.count > 0 && (self.first..=self.last).contains(&sequence)
    }
}

/// The range of a key's dead-lettered events that may take effect later. Not every sequence in the range has a letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AheadRange {
    /// The lowest sequence of these events.
    pub first: u64,
    /// The highest sequence of these events.
    pub last: u64,
}

impl AheadRange {
    pub(crate) fn with(range: Option<&Self>, sequence: u64) -> Self {
        range.map_or(Self { first: sequence, last: sequence }, |range| Self {
            first: range.first.min(sequence),
            last: range.last.max(sequence),
        })
    }

    /// Returns whether the sequence is in the range from `first` to `last`.
    pub fn spans(&self, sequence: u64) -> bool {
        (self.first..=self.last).contains(&sequence)
    }
}

/// The digests ([`Event::repeat_digest`]) of the newest settled events, in ascending order of their sequences. The
/// final digest belongs to the sequence `next - 1`. A digest distinguishes a repeat of a settled event from a conflict.
/// A conflict is another event with the same sequence. For this purpose, 32 bits per digest are enough. At the default
/// length of 64 digests, the list costs 256 bytes per key record.
///
/// Each commit clones the records of its keys. The clones are cheap, because they share one list until a clone changes
/// it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EventDigests(Arc<VecDeque<u32>>);

impl FromIterator<u32> for EventDigests {
    fn from_iter<I: IntoIterator<Item = u32>>(digests: I) -> Self {
        Self(Arc::new(digests.into_iter().collect()))
    }
}

impl EventDigests {
    /// The value for a sequence whose event never arrived.
    const UNSEEN_DIGEST: u32 = 0;

    /// Returns the stored form of a digest: 32 bits, never 0, because 0 stands for an event that never arrived.
    pub fn short(digest: u64) -> u32 {
        ((digest ^ (digest >> 32)) as u32).max(1)
    }

    /// Returns whether the stored digest is one of the digests of an event ([`Event::repeat_digests`]).
    pub fn matches(stored: u32, digests: impl IntoIterator<Item = u64>) -> bool {
        digests.into_iter().any(|digest| Self::short(digest) == stored)
    }

    /// Appends the digest of event `next`, which is being settled.
    pub fn push(&mut self, digest: u64, limit: usize) {
        self.push_short(Self::short(digest), limit);
    }

    /// Appends an entry for sequence `next`, which is being settled without its event.
    pub fn push_unseen(&mut self, limit: usize) {
        self.push_short(Self::UNSEEN_DIGEST, limit);
    }

    fn push_short(&mut self, short: u32, limit: usize) {
        if limit == 0 && self.0.is_empty() {
            return;
        }
        let digests = Arc::make_mut(&mut self.0);
        while digests.len() >= limit.max(1) {
            digests.pop_front();
        }
        if limit > 0 {
            digests.push_back(short);
        }
    }

    /// Returns all digests, the oldest first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = u32> {
        self.0.iter().copied()
    }

    /// Returns the sequences of the settled events, with their digests. `next` is the sequence after the newest settled
    /// event. Omits a sequence whose event never arrived.
    pub(crate) fn sequences(&self, next: u64) -> impl Iterator<Item = (u64, u32)> {
        let first = next.saturating_sub(self.0.len() as u64);
        (first..).zip(self.iter()).filter(|(_, short)| *short != Self::UNSEEN_DIGEST)
    }

    fn position(&self, next: u64, sequence: u64) -> Option<usize> {
        let back = usize::try_from(next.checked_sub(sequence)?).ok()?;
        self.0.len().checked_sub(back)
    }

    /// Sets the digest of a settled sequence whose event arrived late.
    pub fn set(&mut self, next: u64, sequence: u64, digest: u64) {
        let position = self.position(next, sequence);
        if let Some(short) = position.and_then(|at| Arc::make_mut(&mut self.0).get_mut(at)) {
            *short = Self::short(digest);
        }
    }

    /// Returns whether an event differs from the event that was settled with this sequence. `digests` are the digests
    /// of the event ([`Event::repeat_digests`]). Returns `None` if the list does not contain the digest of the settled
    /// event.
    pub fn differs(
        &self,
        next: u64,
        sequence: u64,
        digests: impl IntoIterator<Item = u64>,
    ) -> Option<bool> {
        let settled = *self.0.get(self.position(next, sequence)?)?;
        (settled != Self::UNSEEN_DIGEST).then(|| !Self::matches(settled, digests))
    }
}

/// The sequences that were skipped because their event never arrived, as ranges (first, last) in ascending order. Few
/// keys have such ranges. Clones share one list until a clone changes it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SkippedRanges(Option<Arc<Vec<(u64, u64)>>>);

impl FromIterator<(u64, u64)> for SkippedRanges {
    fn from_iter<I: IntoIterator<Item = (u64, u64)>>(ranges: I) -> Self {
        let ranges: Vec<(u64, u64)> = ranges.into_iter().collect();
        Self((!ranges.is_empty()).then(|| Arc::new(ranges)))
    }
}

impl SkippedRanges {
    /// The maximum number of ranges remembered for a key. Only a faulty producer causes more ranges than this limit. If
    /// an event of a forgotten range arrives late, the sequencer treats the event as a duplicate. The list never
    /// forgets a range that begins at 0, because this range contains the sequences below the beginning of a key that
    /// may begin anywhere.
    pub const RANGES_LIMIT: usize = 64;

    /// Returns all ranges.
    pub fn ranges(&self) -> &[(u64, u64)] {
        self.0.as_deref().map_or(&[], Vec::as_slice)
    }

    /// Adds a range. Its sequences must be above the sequences of all other ranges.
    pub fn push(&mut self, first: u64, last: u64) {
        let ranges = Arc::make_mut(self.0.get_or_insert_default());
        match ranges.last_mut() {
            Some(range) if range.1 + 1 == first => range.1 = last,
            _ => ranges.push((first, last)),
        }
        if ranges.len() > Self::RANGES_LIMIT {
            ranges.remove(usize::from(ranges[0].0 == 0));
        }
    }

    fn position(&self, sequence: u64) -> Option<usize> {
        self.ranges().iter().position(|&(first, last)| (first..=last).contains(&sequence))
    }

    /// Returns whether the sequence was skipped because its event never arrived.
    pub fn contains(&self, sequence: u64) -> bool {
        self.position(sequence).is_some()
    }

    /// Removes a sequence whose event arrived late. If the removal would divide a range, and the list already has
    /// [`RANGES_LIMIT`](Self::RANGES_LIMIT) ranges, the sequence stays in its range. A repeat of its event then gets
    /// the same dead letter once more, but no other event of the range is forgotten.
    pub fn remove(&mut self, sequence: u64) {
        let Some(index) = self.position(sequence) else { return };
        let Some(ranges) = &mut self.0 else { return };
        let (first, last) = ranges[index];
        if first < sequence && sequence < last && ranges.len() >= Self::RANGES_LIMIT {
            return;
        }
        let ranges = Arc::make_mut(ranges);
        ranges.remove(index);
        if sequence < last {
            ranges.insert(index, (sequence + 1, last));
        }
        if first < sequence {
            ranges.insert(index, (first, sequence - 1));
        }
        if ranges.is_empty() {
            self.0 = None;
        }
    }
}

/// The id of an event that a `fifo` stream accepted, with the sequence that Ordain assigned to the event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AcceptedId {
    /// The sequence that Ordain assigned to the event.
    pub sequence: u64,
    /// The digest of the id: [`Event::id_digest`].
    pub id: u64,
    /// The digest of the source: [`Event::source_digest`]. 0 for an event without a source. An event with the same id,
    /// from any source, then counts as the same event.
    pub source: u32,
    /// The short digest of the content: [`EventDigests::short`] of [`Event::content`].
    pub content: u32,
}

impl AcceptedId {
    /// Returns the id of an event to which Ordain has assigned this sequence.
    pub fn new(sequence: u64, event: &Event) -> Self {
        Self {
            sequence,
            id: event.id_digest(),
            source: event.source_digest(),
            content: EventDigests::short(event.content()),
        }
    }
}

/// A handler's change of the state of its key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum StateUpdate {
    /// The state stays unchanged.
    #[default]
    Keep,
    /// The value replaces the state.
    Put(Bytes),
    /// The state is removed. The next event of the key starts without a state.
    Delete,
}

impl StateUpdate {
    /// Returns the number of bytes in the change.
    pub fn memory(&self) -> usize {
        match self {
            Self::Put(state) => state.len(),
            Self::Keep | Self::Delete => 0,
        }
    }
}

/// The condition under which the store applies a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteCondition {
    /// The key record does not exist, not even as the record of a completed key.
    Absent,
    /// The key record exists, belongs to this partition, has this `next`, and has the same [`KeyRecord::takeovers`] as
    /// the record in the write. `next` alone is not sufficient: another partition may take the key over and spill
    /// events of the key without changing `next`. If the key then returns to this partition, only the number of
    /// take-overs reveals that the spilled events may have changed since the lane loaded the key.
    Next(u64),
}

/// Everything that a commit writes to one key. The store applies either all parts or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyWrite {
    /// The key to which the write belongs.
    pub key: Key,
    /// The condition of the write. If the condition does not hold, the store refuses only this write, not the whole
    /// commit.
    pub condition: WriteCondition,
    /// The new key record. The write removes the spilled events below the record's `next`. If the record's
    /// `spilled.count` is 0, the write removes all spilled events.
    pub record: KeyRecord,
    /// The change of the handler's state.
    pub state: StateUpdate,
    /// The messages, each with the sequence of its event, in order of emission.
    pub messages: Vec<EmittedMessage>,
    /// The dead letters to write. A letter replaces an existing letter with the same id.
    pub letters: Vec<DeadLetter>,
    /// The dead letters to remove, because their event is now settled in another way.
    pub removed_letters: Vec<LetterId>,
    /// The events to write to the spill area, with their sequences. If the spill area already has an event with the
    /// same sequence, the store keeps the existing event.
    pub spill: Vec<(u64, Arc<Event>)>,
    /// In a `fifo` stream, the ids of the events that this write settles or spills and that were not durable before.
    /// Each id has the sequence that Ordain assigned to its event. The sequences ascend. The write adds these ids to
    /// the remembered ids of the key.
    pub ids: SmallVec<[AcceptedId; 2]>,
    /// The time from the commit until the owner must handle the key, in ms. The write sets the key's entry in the due
    /// index to this time. With `None`, the write removes the entry.
    pub due_in: Option<u64>,
    /// The time from the commit until the store removes the key record, in ms. A later write replaces this time. `None`
    /// if the store keeps the record for ever.
    pub expire_in: Option<u64>,
}

/// A message of a handler, and the event for which the handler emitted it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmittedMessage {
    /// The sequence of the event.
    pub sequence: u64,
    /// The position of the message among the messages of the event, from 0.
    pub index: u32,
    /// The digest of the event's source and id ([`Event::identity_digest`]). If the store goes back in time (loses its
    /// newest writes), another event may get the sequence of this event. Because of the digest, the messages of the two
    /// events have different ids.
    pub event_digest: u64,
    /// The message.
    pub message: Message,
}

/// One commit of one shard (a slice of the store, by hash of the key). The store applies the commit as a whole, except
/// for individual writes that the store refuses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// The shard of the commit.
    pub shard: u32,
    /// The number of the previous commit of this partition and shard, plus one. A repeated batch keeps its number.
    pub number: u64,
    /// The writes, at most one per key.
    pub writes: Vec<KeyWrite>,
    /// The orphan dead letters. An orphan dead letter belongs to no write, because its event never changed a key
    /// record. Writing the same letter twice leaves one letter, because the id is the same.
    pub letters: Vec<DeadLetter>,
    /// `true` if dead letters also go into the outbox, from which the outbox publisher publishes them. An orphan dead
    /// letter whose id already exists in the store does not go into the outbox, because it comes from a repeated
    /// delivery.
    pub forward: bool,
    /// `true` if the store had lost this commit, and the owner sends the commit again.
    pub repeated: bool,
}

impl Batch {
    /// Returns the writes that the store has applied, with their positions.
    pub(crate) fn applied_writes<'a>(
        &'a self,
        applied: &'a AppliedCommit,
    ) -> impl Iterator<Item = (usize, &'a KeyWrite)> {
        let refused =
            |at: usize| applied.refused.binary_search_by_key(&at, |refused| refused.0).is_ok();
        self.writes.iter().enumerate().filter(move |(at, _)| !refused(*at))
    }

    /// Returns the dead letters that the commit has put into the outbox, in the order of the outbox.
    pub fn forwarded<'a>(
        &'a self,
        applied: &'a AppliedCommit,
    ) -> impl Iterator<Item = &'a DeadLetter> {
        let known = |at: usize| applied.existing_letters.binary_search(&at).is_ok();
        let free = self.letters.iter().enumerate().filter(move |(at, _)| !known(*at));
        self.applied_writes(applied)
            .flat_map(|(_, write)| &write.letters)
            .chain(free.map(|(_, letter)| letter))
            .filter(|_| self.forward)
    }
}

/// The reply to a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitReply {
    /// The commit is durable: the store applied it at this try, or at an earlier try with the same number.
    Applied(AppliedCommit),
    /// A newer owner has claimed the partition.
    Fenced,
    /// The store went back in time: it has lost this owner's claim, or commits before this commit.
    RolledBack {
        /// The state that the store found, as text.
        found: String,
        /// The number of the newest commit that the shard still has; the store has lost all later commits. `None` if
        /// the shard has lost this owner's claim.
        last: Option<u64>,
    },
    /// No reply arrived, so the sequencer does not know whether the store applied the commit. The sequencer therefore
    /// repeats the commit.
    Unknown,
}

/// The details of an applied commit: its time, and the parts of the commit that the store refused or already had.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AppliedCommit {
    /// The time of the commit, by the store's clock. The store wrote this time in place of each time of 0 in the writes
    /// of the commit.
    pub time: u64,
    /// The refused writes, each with its position in the batch, in ascending order. The store changed nothing for these
    /// writes.
    pub refused: Vec<(usize, WriteRefusal)>,
    /// The events that the commit was to spill, but whose sequences were in the spill area already.
    pub existing_spills: Vec<ExistingSpill>,
    /// The positions in the batch, ascending, of the orphan dead letters whose ids the store had already. Such a letter
    /// comes from a repeated delivery.
    pub existing_letters: Vec<usize>,
}

/// An event that a commit was to spill, but whose sequence was in the spill area already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExistingSpill {
    /// The position of the write in the batch.
    pub write: usize,
    /// The sequence of the event.
    pub sequence: u64,
    /// `true` if the event of the commit is a repeat of the event in the spill area ([`Event::repeats`]).
    pub same: bool,
}

/// The reason why the store refused one write of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteRefusal {
    /// The condition of the write does not hold: the key record has another `next`, does not exist, or exists although
    /// the condition is [`WriteCondition::Absent`]. The value is the stored `next`, or `None` if the key record does
    /// not exist.
    Next(Option<u64>),
    /// Another partition took the key over. The key may have returned to this partition since then. The value is the
    /// stored `next` of the key.
    Partition(u64),
    /// According to the stored key record, an event of the key was executed under a newer [`Rollout`] than the events
    /// of the write.
    Version,
    /// The key record or other stored data of the key cannot be read, or the key is too long. The value is the reason.
    Corrupt(String),
}

/// A key record as loaded from the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeySnapshot {
    /// The record, without the state and the ids.
    pub record: KeyRecord,
    /// The state of the handler; `None` if the key has no state.
    pub state: Option<Bytes>,
    /// The remembered ids, ascending by sequence, in a `fifo` stream.
    pub ids: Vec<AcceptedId>,
    /// The time of the load, by the store's clock, in ms since the Unix epoch.
    pub now: u64,
    /// The time, in ms, from `now` until the key is due according to its entry in the due index; 0 if the key is due
    /// already. `None` if the key has no entry.
    pub due_in: Option<u64>,
    /// The time from `now` until the store removes the key record, in ms. `None` if the store never removes the record.
    pub expire_in: Option<u64>,
    /// The partition from which this load took the key over; `None` if the key already belonged to the partition that
    /// loads it.
    pub moved_from: Option<u32>,
}

impl KeySnapshot {
    /// Returns the memory cost in bytes, mainly of the state and the ids.
    pub fn memory(&self) -> usize {
        size_of::<Self>()
            + self.state.as_ref().map_or(0, Bytes::len)
            + self.ids.len() * size_of::<AcceptedId>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_sequences_leave_the_skipped_ranges() {
        let mut skipped: SkippedRanges = [(2, 20_000_000)].into_iter().collect();
        for late in [2, 20_000_000, 1_000] {
            skipped.remove(late);
        }
        assert_eq!(skipped.ranges(), [(3, 999), (1_001, 19_999_999)]);
        assert!(!skipped.contains(1_000) && skipped.contains(1_001));
    }

    #[test]
    fn late_sequences_do_not_divide_a_range_without_limit() {
        let mut skipped: SkippedRanges = [(1, 1_000_000)].into_iter().collect();
        for late in (2..1_000).step_by(2) {
            skipped.remove(late);
        }
        assert_eq!(skipped.ranges().len(), SkippedRanges::RANGES_LIMIT);
        assert!(skipped.contains(1) && skipped.contains(999_999), "the other sequences stay");
        // The list can always remove the first or the last sequence of a range, because the removal does not divide the
        // range.
        skipped.remove(1_000_000);
        assert!(!skipped.contains(1_000_000));
    }

    #[test]
    fn sequences_below_the_beginning_stay_when_ranges_are_forgotten() {
        for (before, remaining) in [((0, 9), [(0, 9), (22, 22)]), ((1, 9), [(20, 20), (22, 22)])] {
            let mut skipped: SkippedRanges = [before].into_iter().collect();
            for sequence in (20..).step_by(2).take(SkippedRanges::RANGES_LIMIT) {
                skipped.push(sequence, sequence);
            }
            assert_eq!(skipped.ranges().len(), SkippedRanges::RANGES_LIMIT);
            assert_eq!(skipped.ranges()[..2], remaining);
        }
    }
}
