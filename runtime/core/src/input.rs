//! The inputs of a sequencer: deliveries, the answers to requests of the sequencer (see [`Effect`](crate::Effect)), and
//! other changes that the sequencer must handle.

use std::sync::Arc;

use crate::event::{DeliveryNumber, Event, Key};
use crate::key_record::{CommitReply, KeySnapshot};
use crate::letter::DeadLetter;
use crate::turn::{AttemptToken, TurnResult};
use crate::version::Rollout;

/// The first spilled events of a key from the requested sequence on, each with its sequence, in ascending order.
/// Spilled events are events that the store holds until they can run. The `bool` is `true` if the key has no spilled
/// event after these events.
pub type SpillPage = (Vec<(u64, Arc<Event>)>, bool);

/// An input of a sequencer. Some inputs are completions: a completion answers an [`Effect`](crate::Effect), and carries
/// the token or number of that effect. Only [`Input::DueRead`] carries neither a token nor a number, because at most
/// one [`ReadDue`](crate::Effect::ReadDue) is outstanding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// The source delivered an event. Deliveries are numbered from 1 without holes;
    /// [`Input::Unreadable`] deliveries count too.
    Arrived {
        /// The number of the delivery.
        delivery: DeliveryNumber,
        /// The delivered event.
        event: Arc<Event>,
    },
    /// The source delivered data that is not a valid event. The dead letter contains the data and the reason.
    Unreadable {
        /// The number of the delivery.
        delivery: DeliveryNumber,
        /// The dead letter, which the sequencer commits unchanged.
        letter: Box<DeadLetter>,
    },
    /// An early event: an event that the source will also deliver later. An early event comes from the inbox, the place
    /// in the store for events that arrived over HTTP. Until the delivery, the inbox keeps the event durably, so the
    /// sequencer has nothing to acknowledge. The early events of a key arrive in the order in which the source will
    /// deliver them. If the inbox passes two events of a key, it also passes all events that it holds between these two
    /// events of the key. The driver (the code that calls the sequencer) may pass an early event, like a delivery, only
    /// while [`credit`](crate::Sequencer::credit) is above 0.
    ArrivedEarly(Arc<Event>),
    /// The source became unavailable (`true`) or available again (`false`). An unavailable source may hold missing
    /// events. The sequencer therefore applies `gap.on_exhausted` to a gap (missing events of a key) only after the
    /// source has been available again for `gap.timeout`.
    SourceUnavailable(bool),
    /// The source lost its connection and will deliver all unacknowledged events again, under new delivery numbers.
    /// This input precedes the first of these deliveries.
    SourceReset,
    /// The new maximum number of unacknowledged deliveries of the source. The number is lower than
    /// [`SequencerSettings::prefetch`](crate::SequencerSettings::prefetch) if the deliveries are large. The number is
    /// higher than this setting if the source counts messages, and a message can contain several deliveries.
    Prefetch(usize),
    /// The source ended. No more events can arrive, so the sequencer starts the replay of missing events immediately,
    /// without waiting for `gap.timeout`.
    SourceEnded,
    /// The answer to [`Effect::Load`](crate::Effect::Load).
    Loaded {
        /// The token of the load.
        token: AttemptToken,
        /// The key record, with the handler state and the remembered ids of the key. `None` if the key record does not
        /// exist. An error if the record cannot be read.
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
        /// The store's reply, or [`CommitReply::Unknown`] if no reply arrived.
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
        /// The first sequence that the source did not search for. If the source searched for all requested sequences,
        /// the value is [`u64::MAX`]. If the source could not be queried at all, the value is the first requested
        /// sequence, and the replay round does not count towards `gap.attempts`.
        until: u64,
        /// The reason why the source may find more events later: the source failed, or requested another try later.
        /// `None` if the answer is final.
        failed: Option<Box<str>>,
    },
    /// The answer to [`Effect::ReadEarlyLetters`](crate::Effect::ReadEarlyLetters).
    EarlyLettersRead {
        /// The token of the read.
        token: AttemptToken,
        /// The dead letters, ascending by sequence.
        letters: Vec<DeadLetter>,
        /// The first sequence whose dead letters the store possibly has not returned. If the store has returned all
        /// dead letters, the value is the sequence after the requested sequences.
        until: u64,
    },
    /// The answer to [`Effect::ReadDue`](crate::Effect::ReadDue).
    DueRead {
        /// The requested entries of the due index, each with its key and with the time at which the owner must handle
        /// the key. The earliest entry is the first. The times are by the clock of the store.
        entries: Vec<(u64, Key)>,
        /// The time, in ms, until the first entry after `entries` is due; 0 if that entry is due already. `None` if no
        /// entry follows.
        next_in: Option<u64>,
    },
    /// The store was unreachable, or another server has become its master. The store may therefore have lost commits.
    /// After this input, the sequencer sends a commit to each shard, because the reply shows whether the shard has lost
    /// commits. The commit is empty if the sequencer has nothing to write to the shard.
    StoreMayHaveRolledBack,
    /// The previous owner committed messages or dead letters that are not yet recorded as published. The outbox
    /// publisher of this process publishes these messages and dead letters. The inputs of this kind for a shard arrive
    /// in the order of the shard's commits, and before any other input for the shard. Later, [`Input::Published`]
    /// reports these commits as published, in the same way as this owner's own commits.
    OutboxBacklog {
        /// The shard of these commits.
        shard: u32,
        /// The number of the newest commit that the input covers. The input also covers all earlier commits that no
        /// previous `OutboxBacklog` of the shard covered.
        through: u64,
        /// The number of unpublished messages and dead letters that the input covers.
        messages: usize,
        /// The memory cost of these messages and dead letters, in bytes.
        bytes: usize,
    },
    /// All messages and forwarded dead letters of a shard's commits up to `through` are published, and the store has
    /// recorded their publication.
    Published {
        /// The shard of the published commits.
        shard: u32,
        /// The number of the newest commit of the shard whose messages are published.
        through: u64,
    },
    /// A key may need processing although none of its events arrives and the due index does not contain the key. For
    /// example, a new handler version has become active, under which a parked key may continue. The sequencer loads the
    /// key record if the key is not in memory.
    Reload(Key),
    /// The handler version that executes events has changed. If the input contains a rollout, the version of that
    /// rollout executes all later turns. If the input contains `None`, this process lacks the version of the stream's
    /// rollout, and events wait. Running turns finish under the previous version.
    VersionChanged(Option<Arc<Rollout>>),
    /// The owner hands the partition over. The sequencer starts no more turns, and commits the results of the running
    /// turns when they arrive.
    Drain,
}
