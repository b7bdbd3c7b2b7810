//! Executes a turn (a run of events of one key): calls the handler for each event in order, with the state after the
//! previous event.

use std::sync::Arc;

use bytes::Bytes;
use ordain_core::{Event, FailedAttempt, HandlerOutcome, Message, StateUpdate, Turn, TurnResult};

use super::engine::HandlerEngine;
use super::guest::{EventIdentity, TurnIdentity};
use super::handler::ActiveVersion;
use super::instance::HandlerInstance;
use super::observer::{Execution, ExecutionResult};
use super::outcome::{self, AcceptedReply};
use super::settings::InstancePolicy;
use super::stream::StreamContext;

/// The values that are equal for all turns that a worker takes from a queue together.
pub(super) struct TurnContext {
    pub(super) engine: Arc<HandlerEngine>,
    pub(super) active: Arc<ActiveVersion>,
    pub(super) stream: Arc<StreamContext>,
}

/// The result of a turn, and the WebAssembly instance if another turn can use it.
pub(super) struct FinishedTurn {
    pub(super) done: TurnResult,
    pub(super) instance: Option<HandlerInstance>,
    /// Total size of the messages, rejection reasons and state, in bytes.
    pub(super) bytes: usize,
}

/// Executes a turn. The first event uses `instance` if an instance is given. Ends the turn after a failure, or after an
/// event that ends the key. Also ends the turn after an event with effect if the messages and rejection reasons of the
/// turn then have `turn.bytes` bytes or more.
pub(super) async fn run(
    setting: Arc<TurnContext>,
    turn: Turn,
    mut instance: Option<HandlerInstance>,
) -> FinishedTurn {
    let version = Arc::clone(&setting.active.rollout);
    let name = Arc::new(TurnIdentity {
        version: version.build.version.clone(),
        stream: Arc::clone(&setting.stream),
        key: turn.key,
    });
    let mut done = TurnResult {
        token: turn.token,
        rollout: version,
        outcomes: Vec::with_capacity(turn.events.len()),
        state: StateUpdate::Keep,
        failure: None,
    };
    let mut state = turn.state;
    let mut bytes = 0;
    if let Some(instance) = &mut instance {
        instance.begin_slice();
    }
    for (sequence, event) in &turn.events {
        let name = EventIdentity { turn: Arc::clone(&name), sequence: *sequence };
        let reply = execute(&setting, &mut instance, &name, event, state.as_ref()).await;
        if let Some(observer) = setting.engine.observer() {
            observer.executed(&Execution {
                stream: setting.stream.name(),
                event,
                sequence: *sequence,
                state: state.as_ref(),
                result: ExecutionResult::of(&reply),
            });
        }
        match reply {
            Ok(AcceptedReply::Effect { state: change, messages, complete }) => {
                apply(change, &mut state, &mut done.state);
                bytes += messages.iter().map(Message::memory).sum::<usize>();
                done.outcomes.push(HandlerOutcome::Effect { messages, complete });
                if complete || bytes >= turn.bytes {
                    break;
                }
            }
            Ok(AcceptedReply::Rejected(reason)) => {
                bytes += reason.len();
                done.outcomes.push(HandlerOutcome::Rejected(reason));
            }
            Err(failure) => {
                done.failure = Some(failure);
                break;
            }
        }
        if event.end() {
            break;
        }
    }
    bytes += done.state.memory();
    FinishedTurn { done, instance, bytes }
}

/// Executes one event on the instance in `slot`, or on a new instance. Puts the instance back into `slot` only if
/// another event may use the instance.
async fn execute(
    setting: &TurnContext,
    slot: &mut Option<HandlerInstance>,
    name: &EventIdentity,
    event: &Event,
    state: Option<&Bytes>,
) -> Result<AcceptedReply, FailedAttempt> {
    let TurnContext { engine, active, stream } = setting;
    let settings = engine.settings();
    let mut instance = match slot.take() {
        Some(instance) => instance,
        None => HandlerInstance::start(engine, &active.handler, name, event).await?,
    };
    let reply = instance.call(name, event, state.map(AsRef::as_ref), &settings.limits).await?;
    let settled = outcome::accept(reply, event, stream, &settings.limits)?;
    if settings.instance == InstancePolicy::Reused && instance.events() < settings.instance_events {
        *slot = Some(instance);
    }
    Ok(settled)
}

/// Applies an event's change to `state`. The next event receives this state. Records the change as the change of the
/// whole turn.
fn apply(change: StateUpdate, state: &mut Option<Bytes>, turn_change: &mut StateUpdate) {
    match &change {
        StateUpdate::Keep => return,
        StateUpdate::Put(bytes) => *state = Some(bytes.clone()),
        StateUpdate::Delete => *state = None,
    }
    *turn_change = change;
}
