//! The inputs of a sequencer: everything that can happen to it.

use std::sync::Arc;

use crate::event::{DeliveryNumber, Event, Key};
use crate::key_record::{CommitReply, KeySnapshot};
use crate::letter::DeadLetter;
use crate::turn::{AttemptToken, TurnResult};
use crate::version::Rollout;

/// The first spilled events from the requested sequence on, ascending, and whether no event follows
/// the last of them.
pub type SpillPage = (Vec<(u64, Arc<Event>)>, bool);

/// An input of a sequencer. A completion answers an [`Effect`](crate::Effect) and carries its token
/// or number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// The source delivered an event. Deliveries are numbered from 1 without holes;
    /// [`Input::Unreadable`] deliveries count too.
    Arrived {
        /// The position of the delivery.
        delivery: DeliveryNumber,
        /// The event.
        event: Arc<Event>,
    },
    /// The source delivered data that is not an event. The letter contains the data and the reason.
    Unreadable {
        /// The position of the delivery.
        delivery: DeliveryNumber,
        /// The complete letter.
        letter: Box<DeadLetter>,
    },
    /// An event that the source will also deliver later. Until then the event is durable elsewhere,
    /// and the sequencer does not acknowledge it. Offered events of a key arrive in the order of
    /// their deliveries and without holes. Like a delivery, an offered event needs
    /// [credit](crate::Sequencer::credit).
    ArrivedEarly(Arc<Event>),
    /// `true` if the source is unavailable. An unavailable source may hold missing events, so the
    /// sequencer gives up no gap until the source is back and has had time to deliver them.
    SourceUnavailable(bool),
    /// The source lost its connection and will deliver all unacknowledged events again, under new
    /// positions. This input precedes the first of these deliveries.
    SourceReset,
    /// The maximum number of unacknowledged deliveries of the source. It is below
    /// [`SequencerSettings::prefetch`](crate::SequencerSettings::prefetch) if the deliveries are large.
    Prefetch(usize),
    /// The source ended. Gap clocks expire at once, since no more events can arrive.
    SourceEnded,
    /// The answer to [`Effect::Load`](crate::Effect::Load).
    Loaded {
        /// The token of the load.
        token: AttemptToken,
        /// `None` if the key record does not exist; an error if the key record cannot be read.
        loaded: Result<Option<Box<KeySnapshot>>, String>,
    },
    /// The answer to [`Effect::Run`](crate::Effect::Run).
    TurnDone(TurnResult),
    /// The answer to [`Effect::Commit`](crate::Effect::Commit).
    Committed {
        /// The shard of the batch.
        shard: u32,
        /// The number of the batch.
        number: u64,
        /// The store's reply.
        reply: CommitReply,
    },
    /// The answer to [`Effect::ReadSpill`](crate::Effect::ReadSpill).
    SpillRead {
        /// The token of the read.
        token: AttemptToken,
        /// The events, or the reason why they cannot be read.
        read: Result<SpillPage, String>,
    },
    /// The answer to [`Effect::Replay`](crate::Effect::Replay).
    Replayed {
        /// The token of the request.
        token: AttemptToken,
        /// The requested events that the source found, ascending by sequence.
        found: Vec<(u64, Arc<Event>)>,
        /// The first sequence that the source did not search for; [`u64::MAX`] if the source
        /// searched for all requested sequences. If the source could not be queried at all, this
        /// is the first requested sequence, and the round does not count.
        until: u64,
        /// The reason why the source may find more events later: a failure, or a request to try
        /// again.
        failed: Option<Box<str>>,
    },
    /// The answer to [`Effect::ReadDue`](crate::Effect::ReadDue).
    DueRead {
        /// Entries (store time, key) after the requested start, the earliest first.
        entries: Vec<(u64, Key)>,
        /// The time from now to the earliest entry after those in `entries`, in ms; 0 if it has
        /// passed.
        next_in: Option<u64>,
    },
    /// The store was unreachable, or another server is its master now, so commits may be lost. The
    /// sequencer sends a commit to each shard, even an empty one, so that a loss is detected even if
    /// no events arrive.
    StoreMayHaveRolledBack,
    /// The previous owner committed messages, or dead letters to be forwarded, and has not yet published them. This
    /// input arrives in the order of the shard's commits and before any other input of the shard. [`Input::Published`]
    /// answers it, as it answers this owner's commits.
    OutboxBacklog {
        /// The shard.
        shard: u32,
        /// The number of the newest commit that contains these messages, counted since the last
        /// such input.
        through: u64,
        /// The number of messages and letters.
        messages: usize,
        /// Their cost in memory, in bytes.
        bytes: usize,
    },
    /// All messages and forwarded letters of a shard's commits up to this number are published and
    /// marked as done.
    Published {
        /// The shard.
        shard: u32,
        /// The number of the newest commit whose messages are published.
        through: u64,
    },
    /// The stored state of a key may have changed from outside: reload the key, even if it is idle.
    Reload(Key),
    /// From now on, this handler version executes events. With `None`, the version of the rollout is not available
    /// here, and events wait. Running turns finish under the previous version.
    VersionChanged(Option<Arc<Rollout>>),
    /// Start no more turns; finish and commit the running turns.
    Drain,
}
