//! Notifications about each execution of an event, for the commands that show a developer what a handler does.

use std::sync::Arc;

use bytes::Bytes;
use ordain_core::{Event, FailedAttempt, Message, StateUpdate};

use super::log_line::LogTarget;
use super::outcome::AcceptedReply;

/// One execution of an event by a handler. The event may be executed again, for example after a failed execution.
#[derive(Debug, Clone, Copy)]
pub struct Execution<'a> {
    /// The name of the stream.
    pub stream: &'a str,
    /// The event.
    pub event: &'a Arc<Event>,
    /// The event's sequence.
    pub sequence: u64,
    /// The state before the execution; `None` if the key has no state.
    pub state: Option<&'a Bytes>,
    /// The result.
    pub result: ExecutionResult<'a>,
}

/// The result of an execution.
#[derive(Debug, Clone, Copy)]
pub enum ExecutionResult<'a> {
    /// The handler returned an outcome that the host accepts.
    Effect {
        /// The change of the state.
        state: &'a StateUpdate,
        /// The messages, in order.
        messages: &'a [Message],
        /// `true` if the handler ends the key.
        complete: bool,
    },
    /// The handler rejected the event, with this reason.
    Rejected(&'a str),
    /// The execution failed, or the handler requested a retry.
    Failed(&'a FailedAttempt),
}

/// A receiver of the executions and of the log lines of all handlers of an engine. The worker that executes the event
/// calls the methods, so they must return soon.
pub trait ExecutionObserver: LogTarget {
    /// Receives an execution that has ended. The receiver has already received the log lines of this execution.
    fn executed(&self, execution: &Execution<'_>);
}

impl<'a> ExecutionResult<'a> {
    pub(super) fn of(reply: &'a Result<AcceptedReply, FailedAttempt>) -> Self {
        match reply {
            Ok(AcceptedReply::Effect { state, messages, complete }) => {
                Self::Effect { state, messages, complete: *complete }
            }
            Ok(AcceptedReply::Rejected(reason)) => Self::Rejected(reason),
            Err(failure) => Self::Failed(failure),
        }
    }
}
