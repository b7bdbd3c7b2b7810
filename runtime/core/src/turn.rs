//! Turns: consecutive events of one key, executed back to back by one worker.

use std::sync::Arc;

use bytes::Bytes;

use crate::event::{Event, Key, Message};
use crate::key_record::StateUpdate;
use crate::letter::Cause;
use crate::limit::HandlerLimit;
use crate::version::Rollout;

/// The identity of one attempt of a lane. An attempt is a turn, a load, a read of spilled events, a read of early dead
/// letters or a replay request. A lane is the in-memory queue of one active key. The completion of the attempt returns
/// the token. The sequencer accepts the completion only if the lane still waits for exactly that attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptToken {
    /// The index of the lane in the table of lanes.
    pub lane: u32,
    /// A number that the sequencer never uses twice.
    pub serial: u64,
}

/// A request to a worker to execute events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    /// The token to return with the result.
    pub token: AttemptToken,
    /// The key of all events of the turn.
    pub key: Key,
    /// The handler's state before the first event; `None` if the key has no state.
    pub state: Option<Bytes>,
    /// The events with their sequences: at least one, with consecutive sequences.
    pub events: Vec<(u64, Arc<Event>)>,
    /// `true` if the first event must run on a new instance of the handler.
    pub fresh: bool,
    /// The byte limit for the messages of the turn. The turn ends with the event whose messages reach the limit.
    /// Without the limit, uncommitted messages could fill the memory, because no result of a turn can be committed
    /// before the turn ends.
    pub bytes: usize,
}

/// The result of a turn.
///
/// The worker executes the events in order, each on the state that the previous event left. The worker stops after a
/// failure, and after an event that ends the key ([`Event::end`] or [`HandlerOutcome::Effect::complete`]). The worker
/// may also stop earlier, after any executed event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnResult {
    /// The token of the turn.
    pub token: AttemptToken,
    /// The rollout under which the worker executed the turn.
    pub rollout: Arc<Rollout>,
    /// The outcomes of the events, in order: one outcome for each event that was executed without a failure.
    pub outcomes: Vec<HandlerOutcome>,
    /// The change that all events of `outcomes` together make to the state.
    pub state: StateUpdate,
    /// The failure of the first event that has no outcome; `None` if no event failed.
    pub failure: Option<FailedAttempt>,
}

/// The outcome of an executed event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandlerOutcome {
    /// The event had an effect.
    Effect {
        /// The messages that the event emitted, in order.
        messages: Vec<Message>,
        /// `true` if the handler ended the key with this event.
        complete: bool,
    },
    /// The handler rejected the event permanently, with this reason.
    Rejected(String),
}

/// A failed try of one event. The messages of the try and its change of the state have no effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedAttempt {
    /// The class of the failure.
    pub kind: FailureKind,
    /// The limit that the handler exceeded, if the configuration can change this limit; otherwise `None`.
    pub limit: Option<HandlerLimit>,
    /// The description of the failure, with the setting to check if there is one.
    pub message: String,
    /// The delay that the handler requested before the next try, in ms; `None` if it requested none.
    pub after_ms: Option<u64>,
}

/// The classes of failures. `Retry` and `Timeout` may pass with time. A failure of another class usually recurs on the
/// same input. The sequencer therefore tries the event only once more, in case earlier events had left the instance of
/// the handler in a bad state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FailureKind {
    /// The handler requested another try.
    Retry,
    /// The handler ran longer than its time limit.
    Timeout,
    /// The handler trapped: its WebAssembly code stopped with a fault.
    Trap,
    /// The handler exceeded a limit other than its time limit.
    Limit,
    /// The handler raised an uncaught error of its language.
    Error,
}

impl FailureKind {
    /// All kinds, in the order of the enum.
    pub const ALL: [Self; 5] = [Self::Retry, Self::Timeout, Self::Trap, Self::Limit, Self::Error];

    /// Returns whether the failure may pass with time.
    pub fn may_pass(self) -> bool {
        matches!(self, Self::Retry | Self::Timeout)
    }

    /// Returns the cause of the dead letter of an event whose last try failed in this way.
    pub fn cause(self) -> Cause {
        match self {
            Self::Retry => Cause::Retry,
            Self::Timeout => Cause::Timeout,
            Self::Trap => Cause::Trap,
            Self::Limit => Cause::Limit,
            Self::Error => Cause::Error,
        }
    }
}
