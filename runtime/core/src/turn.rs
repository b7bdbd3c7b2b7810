//! A turn: consecutive events of one key, executed back to back by one worker.

use std::sync::Arc;

use bytes::Bytes;

use crate::event::{Event, Key, Message};
use crate::job::Change;
use crate::letter::Cause;
use crate::limit::Limit;
use crate::version::Decided;

/// Names one attempt of one lane at something asynchronous. The completion carries it back, and
/// is dropped unless the lane still waits for exactly that attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token {
    /// Where the lane is.
    pub lane: u32,
    /// Never used twice in the life of a sequencer.
    pub serial: u64,
}

/// What a worker is to execute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    /// To be given back with the result.
    pub token: Token,
    /// The key of all its events.
    pub key: Key,
    /// The state before the first event.
    pub state: Option<Bytes>,
    /// At least one; sequences are consecutive.
    pub events: Vec<(u64, Arc<Event>)>,
    /// Whether the first event must run on an instance that nothing has run on.
    pub fresh: bool,
    /// The turn ends with the event whose messages bring them to so many bytes: nothing of it can
    /// be committed before its end.
    pub bytes: usize,
}

/// What a worker did.
///
/// The events are executed in order, each on the state that the one before left. A worker stops
/// after a failure, and after an event that ends the key ([`Event::end`] or
/// [`Verdict::Effect::complete`]). It may stop earlier, after any event but not before the first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnDone {
    /// The turn's.
    pub token: Token,
    /// What executed it.
    pub version: Arc<Decided>,
    /// One for each settled event, from the first on.
    pub verdicts: Vec<Verdict>,
    /// What all of them together did to the state.
    pub state: Change,
    /// How the event after the settled ones failed, if it did.
    pub failure: Option<Failure>,
}

/// How an executed event ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// With effect.
    Effect {
        /// What it emitted, in order.
        messages: Vec<Message>,
        /// Whether it ends its key.
        complete: bool,
    },
    /// The handler refused it for good; the reason in its words.
    Rejected(String),
}

/// A failed try of one event. Nothing that the try did is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The class.
    pub kind: FailureKind,
    /// The limit that was broken, if it is one that can be lifted.
    pub limit: Option<Limit>,
    /// What happened, and which setting to look at.
    pub message: String,
    /// The handler's wish for when to try again, in ms.
    pub after_ms: Option<u64>,
}

/// Classes of failure. The first two may pass with time; the others would repeat themselves on
/// the same input, and are tried once more only to rule out what earlier events left behind in
/// the instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FailureKind {
    /// The handler asked for another try.
    Retry,
    /// It ran too long.
    Timeout,
    /// It trapped.
    Trap,
    /// It broke a limit.
    Limit,
    /// An uncaught error of its language.
    Error,
}

impl FailureKind {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Retry, Self::Timeout, Self::Trap, Self::Limit, Self::Error];

    /// Whether waiting may help.
    pub fn may_pass(self) -> bool {
        matches!(self, Self::Retry | Self::Timeout)
    }

    /// The cause that an exhausted failure of this kind has.
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
