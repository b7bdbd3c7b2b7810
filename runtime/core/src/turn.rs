//! Turns: consecutive events of one key, executed back to back by one worker.

use std::sync::Arc;

use bytes::Bytes;

use crate::event::{Event, Key, Message};
use crate::key_record::StateUpdate;
use crate::letter::Cause;
use crate::limit::HandlerLimit;
use crate::version::Rollout;

/// The identity of one asynchronous attempt of one lane. The completion carries the token back. The
/// sequencer drops the completion unless the lane still waits for exactly that attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptToken {
    /// The index of the lane.
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
    /// The state before the first event.
    pub state: Option<Bytes>,
    /// The events with their sequences: at least one, with consecutive sequences.
    pub events: Vec<(u64, Arc<Event>)>,
    /// `true` if the first event must run on an unused instance.
    pub fresh: bool,
    /// The byte limit for messages. The turn ends with the event whose messages reach this limit,
    /// because nothing of the turn can be committed before its end.
    pub bytes: usize,
}

/// The result of a turn.
///
/// The worker executes the events in order, each on the state that the previous event left. The
/// worker stops after a failure, and after an event that ends the key ([`Event::end`] or
/// [`HandlerOutcome::Effect::complete`]). It may stop earlier, after any event but not before the first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnResult {
    /// The token of the turn.
    pub token: AttemptToken,
    /// The version that executed the turn.
    pub rollout: Arc<Rollout>,
    /// One verdict for each settled event, from the first on.
    pub outcomes: Vec<HandlerOutcome>,
    /// The combined change of the state.
    pub state: StateUpdate,
    /// The failure of the event after the settled events, if it failed.
    pub failure: Option<FailedAttempt>,
}

/// The outcome of an executed event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandlerOutcome {
    /// The event had an effect.
    Effect {
        /// The messages that the event emitted, in order.
        messages: Vec<Message>,
        /// `true` if the event ends its key.
        complete: bool,
    },
    /// The handler rejected the event permanently, with this reason.
    Rejected(String),
}

/// A failed try of one event. The sequencer keeps nothing that the try did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedAttempt {
    /// The class of the failure.
    pub kind: FailureKind,
    /// The exceeded limit, if a setting can raise it.
    pub limit: Option<HandlerLimit>,
    /// The description of the failure, and the setting to check.
    pub message: String,
    /// The delay before the next try that the handler requested, in ms.
    pub after_ms: Option<u64>,
}

/// The classes of failures. `Retry` and `Timeout` may pass with time. The other failures would
/// recur on the same input; the sequencer tries them once more only to rule out an effect of
/// earlier events on the instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FailureKind {
    /// The handler requested another try.
    Retry,
    /// The handler ran too long.
    Timeout,
    /// The handler trapped.
    Trap,
    /// The handler exceeded a limit.
    Limit,
    /// The handler raised an uncaught error of its language.
    Error,
}

impl FailureKind {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Retry, Self::Timeout, Self::Trap, Self::Limit, Self::Error];

    /// Returns whether the failure may pass with time.
    pub fn may_pass(self) -> bool {
        matches!(self, Self::Retry | Self::Timeout)
    }

    /// Returns the dead-letter cause of an exhausted failure of this kind.
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
