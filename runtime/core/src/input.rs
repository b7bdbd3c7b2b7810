//! Everything that can happen to a sequencer.

use std::sync::Arc;

use crate::event::{Delivery, Event, Key};
use crate::job::{CommitReply, Loaded};
use crate::letter::DeadLetter;
use crate::turn::{Token, TurnDone};
use crate::version::Decided;

/// The first spilled events from the sequence asked for on, ascending, and whether there is nothing
/// after the last of them.
pub type SpillPage = (Vec<(u64, Arc<Event>)>, bool);

/// What happened. Completions answer an [`Effect`](crate::Effect) and carry its token or number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// The source delivered an event. Deliveries are numbered from 1 without holes; those that
    /// are [`Input::Unreadable`] count.
    Arrived {
        /// Its position.
        delivery: Delivery,
        /// The event.
        event: Arc<Event>,
    },
    /// The source delivered something that is no event; the letter says what and why.
    Unreadable {
        /// Its position.
        delivery: Delivery,
        /// The finished letter.
        letter: Box<DeadLetter>,
    },
    /// An event that the source will deliver as well, later: it is durable elsewhere until then, and is not
    /// acknowledged. Of a key, they come in the order of those deliveries, and without holes. As a delivery it
    /// needs [credit](crate::Sequencer::credit).
    Offered(Arc<Event>),
    /// Whether the source delivers nothing at the moment, and may have what is missing: until it is back, and has
    /// had the time to bring that, no gap is given up.
    SourceAway(bool),
    /// The source will deliver everything unacknowledged again, under new positions (its
    /// connection was lost). It comes before the first of them.
    SourceReset,
    /// The source delivers at most so many before some are acknowledged, which are fewer than
    /// [`Settings::prefetch`](crate::Settings::prefetch) where they are large.
    Window(usize),
    /// The source is at its end: gap clocks expire at once, since nothing more can come.
    SourceEnded,
    /// Answers [`Effect::Load`](crate::Effect::Load).
    Loaded {
        /// The load's.
        token: Token,
        /// `None`: there is no such job. An error names a job that cannot be read.
        loaded: Result<Option<Box<Loaded>>, String>,
    },
    /// Answers [`Effect::Run`](crate::Effect::Run).
    TurnDone(TurnDone),
    /// Answers [`Effect::Commit`](crate::Effect::Commit).
    Committed {
        /// The batch's.
        shard: u32,
        /// The batch's.
        number: u64,
        /// The answer.
        reply: CommitReply,
    },
    /// Answers [`Effect::ReadSpill`](crate::Effect::ReadSpill).
    SpillRead {
        /// The read's.
        token: Token,
        /// An error says why they cannot be read.
        read: Result<SpillPage, String>,
    },
    /// Answers [`Effect::Replay`](crate::Effect::Replay).
    Replayed {
        /// The request's.
        token: Token,
        /// What was found, of what was asked for, ascending by sequence.
        found: Vec<(u64, Arc<Event>)>,
        /// How far the answer goes: what is missing from here on was not looked for. [`u64::MAX`] for all of
        /// it; the first that was asked for where the source could not be asked at all, and the round does not
        /// count.
        until: u64,
        /// Why the source may know more later: it failed, or answered "again".
        failed: Option<Box<str>>,
    },
    /// Answers [`Effect::ReadDue`](crate::Effect::ReadDue).
    DueRead {
        /// Entries (store time, key) after the one asked from, the earliest first.
        entries: Vec<(u64, Key)>,
        /// Time from now, in ms, to the earliest entry after those; 0 if it has passed.
        next_in: Option<u64>,
    },
    /// The store was out of reach, or another server is its master now: commits may be lost. The
    /// newest of each shard is sent once more, so that this is noticed although nothing comes. None
    /// is where no commit is kept.
    StoreMayHaveGoneBack,
    /// An earlier owner committed messages and forwarded letters that are not published. Of each shard
    /// in order, and before anything else of the shard. Answered by `Published`, as those of one's own
    /// commits.
    LeftOver {
        /// The shard.
        shard: u32,
        /// The number of the newest commit that they are of, or are since the last such input.
        through: u64,
        /// How many.
        messages: usize,
        /// What they cost in memory, in bytes.
        bytes: usize,
    },
    /// All messages and forwarded letters of the commits of a shard up to this number are published
    /// and marked done.
    Published {
        /// The shard.
        shard: u32,
        /// The number of the newest such commit.
        through: u64,
    },
    /// Something outside has changed for a key: look at it, even if it is quiet.
    Look(Key),
    /// Another handler version executes events from now on, or none: what was decided on is not here.
    /// Turns that run end under the one before.
    VersionChanged(Option<Arc<Decided>>),
    /// No more turns are to be started: finish and commit what runs.
    Drain,
}
