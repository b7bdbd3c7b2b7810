//! The durable record of one key, and what a commit writes of it.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::event::{Event, Key, Message};
use crate::gaps::Gaps;
use crate::id_times::IdTimes;
use crate::letter::{Cause, DeadLetter, LetterId};
use crate::limit::{Limit, untagged};
use crate::version::{Decided, Version};

/// The durable record of one key, without its handler's state (which is read and written beside
/// it, so that a change of one does not rewrite the other).
///
/// Times in it are the store's, in ms since the Unix epoch. A time of 0 in a record that is being
/// written means "the time of this commit": the store fills it in, since only it knows its clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// The next sequence to settle: everything below it is settled.
    pub next: u64,
    /// Time of the key's first commit. It tells a key born again after its end from the first one.
    pub incarnation: u64,
    /// The partition whose owner may commit.
    pub partition: u32,
    /// How often a load took it over from another partition. A write leaves it as it was loaded:
    /// a key that has come back to a partition is not the one that its old lane there knows.
    pub takeovers: u32,
    /// What is going on with the key.
    pub status: Status,
    /// Failed tries of event `next`.
    pub attempts: u32,
    /// Replay rounds made for event `next`.
    pub rounds: u32,
    /// How often the key was parked: an operator's action names the one it means.
    pub generation: u32,
    /// What is held in the store's spill area for this key.
    pub spilled: Spilled,
    /// What the last commit with an executed event was executed under.
    pub version: Option<Arc<Decided>>,
    /// Why the key waits, retries or is parked.
    pub trouble: Option<Box<Trouble>>,
    /// Content digests of the last settled sequences.
    pub digests: Digests,
    /// Sequences that were skipped without their event having been seen.
    pub holes: Holes,
    /// `fifo`: ids of sequences from here on are remembered. 0 where none are: `sequenced`.
    pub ids_from: u64,
    /// `fifo`: how old they are.
    pub id_times: IdTimes,
    /// Its last gaps whose clock ran out.
    pub gaps: Gaps,
}

impl Job {
    /// A key that has never been committed.
    pub fn new(first: u64, partition: u32) -> Self {
        Self {
            next: first,
            incarnation: 0,
            partition,
            takeovers: 0,
            status: Status::Active,
            attempts: 0,
            rounds: 0,
            generation: 0,
            spilled: Spilled::default(),
            version: None,
            trouble: None,
            digests: Digests::default(),
            holes: Holes::default(),
            ids_from: 0,
            id_times: IdTimes::default(),
            gaps: Gaps::default(),
        }
    }

    /// The generation that its last event was executed under; 0 where none was.
    pub fn version_generation(&self) -> u64 {
        self.version.as_ref().map_or(0, |it| it.generation)
    }

    /// Puts the time of the commit in place of the zeros, as a store does when it writes.
    pub fn fill_times(&mut self, now: u64) {
        if self.incarnation == 0 {
            self.incarnation = now;
        }
        if let Some(trouble) = &mut self.trouble
            && trouble.since == 0
        {
            trouble.since = now;
        }
        self.gaps.fill_times(now);
        self.id_times.fill_times(now);
    }

    /// Sets the times that the applied commit left open in `written`. A trouble or gap that arose after
    /// the commit was formed stays open: a later commit records it.
    pub(crate) fn fill_written_times(&mut self, written: &Self, now: u64) {
        if self.incarnation == 0 {
            self.incarnation = now;
        }
        let tries = [&*self, written].map(|it| (it.next, it.generation, it.attempts, &it.trouble));
        if tries[0] == tries[1]
            && let Some(trouble) = &mut self.trouble
            && trouble.since == 0
        {
            trouble.since = now;
        }
        self.gaps.fill_written_times(&written.gaps, now);
        // An open stretch always belongs to this write: a key has one write in flight.
        self.id_times.fill_times(now);
    }

    /// Returns whether a gap or a stretch of ids still lacks its time.
    pub fn has_new_times(&self) -> bool {
        self.gaps.is_new() || self.id_times.is_new()
    }
}

/// What is going on with a key. `Waiting` and `Retrying` are written only when something of the
/// key is written anyway; a lane in memory knows better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Events run as they come.
    Active,
    /// Event `next` is missing while later ones are held.
    Waiting,
    /// Event `next` failed and will be tried again.
    Retrying,
    /// Stopped at event `next` until something ends it.
    Parked,
    /// Ended for good; kept for `complete_ttl` so that repeats are known.
    Completed,
}

impl Status {
    /// All statuses, in the order in which a key may have them.
    pub const ALL: [Self; 5] =
        [Self::Active, Self::Waiting, Self::Retrying, Self::Parked, Self::Completed];

    /// Its name, as people write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Waiting => "waiting",
            Self::Retrying => "retrying",
            Self::Parked => "parked",
            Self::Completed => "completed",
        }
    }

    /// The inverse of [`name`](Self::name).
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.name() == name)
    }
}

/// Why a key waits, retries or is parked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// The class of the reason.
    pub cause: Cause,
    /// The reason: [`words`](Self::words) behind the tag of [`limit`](Self::limit).
    pub error: String,
    /// Since when.
    pub since: u64,
    /// The handler version that failed, if one did.
    pub version: Option<Version>,
}

impl Trouble {
    /// The limit that the handler broke, if it broke one that can be lifted.
    pub fn limit(&self) -> Option<Limit> {
        self.parts().0
    }

    /// The reason in words.
    pub fn words(&self) -> &str {
        self.parts().1
    }

    /// Words of other causes may be the handler's own, and are never read as a tag.
    fn parts(&self) -> (Option<Limit>, &str) {
        match self.cause {
            Cause::Limit | Cause::Timeout => untagged(&self.error),
            _ => (None, &self.error),
        }
    }

    /// What it costs in memory, in bytes.
    pub fn memory(&self) -> usize {
        size_of::<Self>() + self.error.len()
    }
}

/// Extent of a key's spill area.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spilled {
    /// How many events.
    pub count: u64,
    /// A lower bound of their sequences.
    pub first: u64,
    /// An upper bound of their sequences.
    pub last: u64,
}

impl Spilled {
    /// Widens the extent by one event.
    pub fn add(&mut self, sequence: u64) {
        if self.count == 0 {
            (self.first, self.last) = (sequence, sequence);
        } else {
            self.first = self.first.min(sequence);
            self.last = self.last.max(sequence);
        }
        self.count += 1;
    }

    /// Whether every number between the bounds is there.
    pub fn contiguous(&self) -> bool {
        self.count > 0 && self.count - 1 == self.last - self.first
    }

    /// Whether the sequence lies between the bounds.
    pub fn spans(&self, sequence: u64) -> bool {
        self.count > 0 && (self.first..=self.last).contains(&sequence)
    }
}

/// Content digests of the sequences just below `next`, the newest last: 32 bits each, enough to
/// tell an accident from a repeat, and 256 bytes a job at the default length.
///
/// A clone shares them until one of the two changes: every commit carries a copy of its jobs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Digests(Arc<VecDeque<u32>>);

impl FromIterator<u32> for Digests {
    fn from_iter<I: IntoIterator<Item = u32>>(digests: I) -> Self {
        Self(Arc::new(digests.into_iter().collect()))
    }
}

impl Digests {
    /// Stands for a sequence whose event was never seen.
    const UNSEEN: u32 = 0;

    /// The stored form of a content digest.
    pub fn short(content: u64) -> u32 {
        ((content ^ (content >> 32)) as u32).max(1)
    }

    /// Remembers the digest of sequence `next`, which is being settled.
    pub fn push(&mut self, content: u64, limit: usize) {
        self.push_short(Self::short(content), limit);
    }

    /// Sequence `next` is being settled without its event having been seen.
    pub fn push_unseen(&mut self, limit: usize) {
        self.push_short(Self::UNSEEN, limit);
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

    /// All of them, the oldest first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = u32> {
        self.0.iter().copied()
    }

    fn position(&self, next: u64, sequence: u64) -> Option<usize> {
        let back = usize::try_from(next.checked_sub(sequence)?).ok()?;
        self.0.len().checked_sub(back)
    }

    /// The event of a settled sequence has been seen after all.
    pub fn set(&mut self, next: u64, sequence: u64, content: u64) {
        let position = self.position(next, sequence);
        if let Some(short) = position.and_then(|at| Arc::make_mut(&mut self.0).get_mut(at)) {
            *short = Self::short(content);
        }
    }

    /// Whether `content` differs from what was settled as `sequence`; `None` if that is no longer
    /// remembered.
    pub fn differs(&self, next: u64, sequence: u64, content: u64) -> Option<bool> {
        let settled = *self.0.get(self.position(next, sequence)?)?;
        (settled != Self::UNSEEN).then(|| settled != Self::short(content))
    }
}

/// Ranges (first, last) of sequences that were skipped unseen, ascending. Few keys have any. A clone
/// shares them until one of the two changes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Holes(Option<Arc<Vec<(u64, u64)>>>);

impl FromIterator<(u64, u64)> for Holes {
    fn from_iter<I: IntoIterator<Item = (u64, u64)>>(ranges: I) -> Self {
        let ranges: Vec<(u64, u64)> = ranges.into_iter().collect();
        Self((!ranges.is_empty()).then(|| Arc::new(ranges)))
    }
}

impl Holes {
    /// Ranges remembered for a key: a key with more has lost its producer's trust long before,
    /// and the late original of a forgotten hole counts as a duplicate.
    pub const LIMIT: usize = 64;

    /// All of them.
    pub fn ranges(&self) -> &[(u64, u64)] {
        self.0.as_deref().map_or(&[], Vec::as_slice)
    }

    /// Adds a range above all others.
    pub fn push(&mut self, first: u64, last: u64) {
        let ranges = Arc::make_mut(self.0.get_or_insert_default());
        match ranges.last_mut() {
            Some(range) if range.1 + 1 == first => range.1 = last,
            _ => ranges.push((first, last)),
        }
        if ranges.len() > Self::LIMIT {
            ranges.remove(0);
        }
    }

    fn position(&self, sequence: u64) -> Option<usize> {
        self.ranges().iter().position(|&(first, last)| (first..=last).contains(&sequence))
    }

    /// Whether the sequence was skipped unseen.
    pub fn contains(&self, sequence: u64) -> bool {
        self.position(sequence).is_some()
    }

    /// Takes a sequence out: its original came after all.
    pub fn remove(&mut self, sequence: u64) {
        let Some(index) = self.position(sequence) else { return };
        let Some(ranges) = &mut self.0 else { return };
        let ranges = Arc::make_mut(ranges);
        let (first, last) = ranges.remove(index);
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

/// An id that a `fifo` stream has taken, with the number it got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TakenId {
    /// The number it got.
    pub sequence: u64,
    /// [`Event::id_digest`].
    pub id: u64,
    /// [`Digests::short`] of [`Event::content`].
    pub content: u32,
}

/// What a handler does to the state of its key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Change {
    /// Leave it as it is.
    #[default]
    Keep,
    /// Replace it.
    Put(Bytes),
    /// Remove it: the next event sees none.
    Delete,
}

impl Change {
    /// Bytes it holds.
    pub fn memory(&self) -> usize {
        match self {
            Self::Put(state) => state.len(),
            Self::Keep | Self::Delete => 0,
        }
    }
}

/// What a job must look like for a write to apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// There is no job, not even a tombstone.
    Absent,
    /// There is one, of this partition, with this `next` and the [`Job::takeovers`] that the
    /// write carries. A spill moves `next` as little as a take-over does: only their number tells
    /// that somebody else had the key meanwhile, and what is spilled is not what the lane knows.
    Next(u64),
}

/// Everything a commit writes of one key, all or nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobWrite {
    /// The key.
    pub key: Key,
    /// Condition; where it does not hold, this write alone is refused.
    pub expect: Expect,
    /// The job as it will be. Spilled events below its `next` are removed by this write; all of
    /// them are where its `spilled.count` is 0.
    pub job: Job,
    /// What becomes of the state.
    pub state: Change,
    /// Messages with the sequence of the event that emitted them, in order of emission.
    pub messages: Vec<Emitted>,
    /// Dead letters to put. One with the id of another replaces it.
    pub letters: Vec<DeadLetter>,
    /// Dead letters to remove, because their event has now been settled in another way.
    pub consumed: Vec<LetterId>,
    /// Events to hold in the spill area, each put only if its sequence is not there yet.
    pub spill: Vec<(u64, Arc<Event>)>,
    /// `fifo`: ids taken by this write, ascending.
    pub ids: SmallVec<[TakenId; 2]>,
    /// Earliest time, in ms from the commit, at which the owner must look at the key; the due
    /// index is changed to this.
    pub due_in: Option<u64>,
    /// Remove the job this many ms after the commit, if nothing is written until then.
    pub expire_in: Option<u64>,
}

/// A message and where it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Emitted {
    /// Sequence of the event.
    pub sequence: u64,
    /// Position among the messages of that event.
    pub index: u32,
    /// `fifo`: the digest of the event's id. A store that went back in time gives the event's sequence to
    /// another event, whose messages must have other ids. 0 in a `sequenced` stream, where the producer has
    /// given the sequence to this event for good.
    pub event: u64,
    /// The message.
    pub message: Message,
}

/// One commit of one shard: applied whole, except for writes that are refused one by one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// The shard.
    pub shard: u32,
    /// One more than the last commit of this (partition, shard). A batch sent again keeps it.
    pub number: u64,
    /// At most one per key.
    pub writes: Vec<JobWrite>,
    /// Dead letters that belong to no write: their events never touched a job. Idempotent by id.
    pub letters: Vec<DeadLetter>,
    /// Whether dead letters go into the outbox as well. A free letter whose like is there already
    /// does not: it comes from a repeated delivery.
    pub forward: bool,
}

impl Batch {
    /// The dead letters that the commit has put into the outbox, in their order there.
    pub fn forwarded<'a>(&'a self, applied: &'a Applied) -> impl Iterator<Item = &'a DeadLetter> {
        let refused = |at: usize| applied.refused.binary_search_by_key(&at, |it| it.0).is_ok();
        let writes = self.writes.iter().enumerate().filter(move |(at, _)| !refused(*at));
        let known = |at: usize| applied.known.binary_search(&at).is_ok();
        let free = self.letters.iter().enumerate().filter(move |(at, _)| !known(*at));
        writes
            .flat_map(|(_, write)| &write.letters)
            .chain(free.map(|(_, letter)| letter))
            .filter(|_| self.forward)
    }
}

/// What a commit answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitReply {
    /// It is durable, now or since an earlier try with the same number.
    Applied(Applied),
    /// A newer owner has the partition.
    Fenced,
    /// The store is not where this owner left it.
    Rewound {
        /// What was found, in words.
        found: String,
        /// The number of the last commit that it has, where that is under this owner's claim: what
        /// came after it is lost.
        last: Option<u64>,
    },
    /// No answer: it may have been applied or not. The batch is to be sent again.
    Unknown,
}

/// Details of an applied commit: only what is not the ordinary case.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Applied {
    /// The store's time of the commit: what zero times in its writes became.
    pub time: u64,
    /// Writes (by their position, ascending) that were refused. Nothing of them is in the store.
    pub refused: Vec<(usize, Refusal)>,
    /// Spilled events (position of the write, sequence) that were in the spill area already.
    pub present: Vec<Present>,
    /// In a batch that forwards: free letters (by their position, ascending) under whose id there
    /// was one already.
    pub known: Vec<usize>,
}

/// A spilled event whose sequence was there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Present {
    /// Position of the write.
    pub write: usize,
    /// The sequence.
    pub sequence: u64,
    /// Whether what is there has the same content.
    pub same: bool,
}

/// Why one write was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The job's `next` is another (`None`: there is no job).
    Next(Option<u64>),
    /// Another partition has taken the job over, and it may have come back since; its `next` is
    /// this.
    Partition(u64),
    /// The job's last event was executed under a newer [`Decided`] than this.
    Version,
    /// The job cannot be read.
    Corrupt(String),
}

/// A job as loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// The record.
    pub job: Job,
    /// The handler's state.
    pub state: Option<Bytes>,
    /// `fifo`: the ids remembered, ascending by sequence.
    pub ids: Vec<TakenId>,
    /// The time of the load, by the store's clock, in ms since the Unix epoch.
    pub now: u64,
    /// Time from now, in ms, to the key's entry in the due index; 0 if it has passed.
    pub due_in: Option<u64>,
    /// Time from now, in ms, until the store forgets the job; `None`: never.
    pub expire_in: Option<u64>,
}

impl Loaded {
    /// What it costs in memory, in bytes: the state and the ids, above all.
    pub fn memory(&self) -> usize {
        size_of::<Self>()
            + self.state.as_ref().map_or(0, Bytes::len)
            + self.ids.len() * size_of::<TakenId>()
    }
}
