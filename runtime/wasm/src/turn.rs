//! Executes a turn: its events one after the other, each on the state that the one before left.

use std::sync::Arc;

use bytes::Bytes;
use ordain_core::{Change, Event, Failure, Message, Turn, TurnDone, Verdict};

use super::engine::Engine;
use super::guest::{EventName, TurnName};
use super::handler::Active;
use super::instance::Instance;
use super::outcome::{self, Settled};
use super::settings::InstancePolicy;
use super::stream::StreamContext;

/// What turns that are taken together have in common.
pub(super) struct Setting {
    pub(super) engine: Arc<Engine>,
    pub(super) active: Arc<Active>,
    pub(super) stream: Arc<StreamContext>,
}

/// A turn's result, and its instance if another turn can have it.
pub(super) struct Ended {
    pub(super) done: TurnDone,
    pub(super) instance: Option<Instance>,
    /// Bytes of its messages, reasons and state.
    pub(super) bytes: usize,
}

/// Executes a turn, beginning on `instance` if there is one.
pub(super) async fn run(
    setting: Arc<Setting>,
    turn: Turn,
    mut instance: Option<Instance>,
) -> Ended {
    let version = Arc::clone(&setting.active.decided);
    let name = Arc::new(TurnName {
        version: version.build.version.clone(),
        stream: Arc::clone(&setting.stream),
        key: turn.key,
    });
    let mut done = TurnDone {
        token: turn.token,
        version,
        verdicts: Vec::with_capacity(turn.events.len()),
        state: Change::Keep,
        failure: None,
    };
    let mut state = turn.state;
    let mut bytes = 0;
    if let Some(instance) = &mut instance {
        instance.begin_slice();
    }
    for (sequence, event) in &turn.events {
        let name = EventName { turn: Arc::clone(&name), sequence: *sequence };
        match execute(&setting, &mut instance, &name, event, state.as_ref()).await {
            Ok(Settled::Effect { state: change, messages, complete }) => {
                apply(change, &mut state, &mut done.state);
                bytes += messages.iter().map(Message::memory).sum::<usize>();
                done.verdicts.push(Verdict::Effect { messages, complete });
                if complete || bytes >= turn.bytes {
                    break;
                }
            }
            Ok(Settled::Rejected(reason)) => {
                bytes += reason.len();
                done.verdicts.push(Verdict::Rejected(reason));
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
    Ended { done, instance, bytes }
}

/// Executes one event. Puts an instance back only if it can be used again.
async fn execute(
    setting: &Setting,
    slot: &mut Option<Instance>,
    name: &EventName,
    event: &Event,
    state: Option<&Bytes>,
) -> Result<Settled, Failure> {
    let Setting { engine, active, stream } = setting;
    let settings = engine.settings();
    let mut instance = match slot.take() {
        Some(instance) => instance,
        None => Instance::start(engine, &active.handler, name, event).await?,
    };
    let reply = instance.call(name, event, state.map(AsRef::as_ref), &settings.limits).await?;
    let settled = outcome::accept(reply, event, stream, &settings.limits)?;
    if settings.instance == InstancePolicy::Reused && instance.events() < settings.instance_events {
        *slot = Some(instance);
    }
    Ok(settled)
}

/// Applies what an event did to the state as the next one sees it, and to what all did together.
fn apply(change: Change, state: &mut Option<Bytes>, together: &mut Change) {
    match &change {
        Change::Keep => return,
        Change::Put(bytes) => *state = Some(bytes.clone()),
        Change::Delete => *state = None,
    }
    *together = change;
}
