//! The inputs of a sequencer: everything that can happen to it.

use std::sync::Arc;

use crate::event::{DeliveryNumber, Event, Key};
use crate::key_record::{CommitReply, KeySnapshot};
use crate::letter::DeadLetter;
use crate::turn::{AttemptToken, TurnResult};
use crate::version::Rollout;

/// The first spilled events (events that the store holds until they can run) from the requested sequence on, ascending,
/// and `true` if no further spilled event follows.
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
    /// An offered event: an event that the source will also deliver later. Until that delivery, the event is durable
    /// outside the sequencer, so the sequencer does not acknowledge it. The offered events of a key arrive in the order
    /// of their deliveries and without holes. Like a delivery, an offered event needs
    /// [credit](crate::Sequencer::credit).
    ArrivedEarly(Arc<Event>),
    /// `true` if the source is unavailable. An unavailable source may hold missing events, so the sequencer gives up no
    /// gap until the source has been available again for `gap.timeout`.
    SourceUnavailable(bool),
    /// The source lost its connection and will deliver all unacknowledged events again, under new
    /// positions. This input precedes the first of these deliveries.
    SourceReset,
    /// The maximum number of unacknowledged deliveries of the source, from now on. It is lower than
    /// [`SequencerSettings::prefetch`](crate::SequencerSettings::prefetch) if the deliveries are large.
    Prefetch(usize),
    /// The source ended. No more events can arrive, so the sequencer waits no longer for missing events and starts
    /// their replay at once.
    SourceEnded,
    /// The answer to [`Effect::Load`](crate::Effect::Load).
    Loaded {
        /// The token of the load.
        token: AttemptToken,
        /// The key record with its state and ids. `None` if the key record does not exist. An error if it cannot be
        /// read.
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
        /// The first sequence that the source did not search for. [`u64::MAX`] if the source searched for all requested
        /// sequences. The first requested sequence if the source could not be queried at all; the round of requests
        /// then does not count.
        until: u64,
        /// The reason why the source may find more events later: a failure, or a request to try again. `None` if the
        /// answer is final.
        failed: Option<Box<str>>,
    },
    /// The answer to [`Effect::ReadDue`](crate::Effect::ReadDue).
    DueRead {
        /// The entries of the due index after the requested start, each with its time and its key, the earliest first.
        /// The times are by the clock of the store.
        entries: Vec<(u64, Key)>,
        /// The time from now to the earliest entry after `entries`, in ms; 0 if that time has passed. `None` if there
        /// is no further entry.
        next_in: Option<u64>,
    },
    /// The store was unreachable, or another server is its master now. It may therefore have lost commits. The
    /// sequencer sends a commit to each shard, empty if necessary, so that it detects a loss even if no events arrive.
    StoreMayHaveRolledBack,
    /// The previous owner committed messages or dead letters that are not yet recorded as published. The publisher of
    /// this process publishes them. This input arrives in the order of the shard's commits and before any other input
    /// of the shard. [`Input::Published`] answers it, as it answers this owner's commits.
    OutboxBacklog {
        /// The shard.
        shard: u32,
        /// The number of the newest commit of these messages. The input covers the commits after the previous such
        /// input of the shard.
        through: u64,
        /// The number of messages and letters.
        messages: usize,
        /// The memory cost of the messages and letters, in bytes.
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
    /// A key may have work that its sequencer does not know of: for example, it was parked and a new handler version is
    /// active. The sequencer loads the key record if the key is not in memory.
    Reload(Key),
    /// The handler version that executes events has changed. With a rollout, its version executes all later turns. With
    /// `None`, the version is not available in this process, and events wait. Running turns finish under the previous
    /// version.
    VersionChanged(Option<Arc<Rollout>>),
    /// The owner hands the partition over. The sequencer starts no more turns, and finishes and commits the running
    /// turns.
    Drain,
}
