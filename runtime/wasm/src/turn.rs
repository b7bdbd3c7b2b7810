//! Executes a turn: its events in order, each on the state that the previous event left.

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

/// The values that all turns of one batch share.
pub(super) struct Setting {
    pub(super) engine: Arc<Engine>,
    pub(super) active: Arc<Active>,
    pub(super) stream: Arc<StreamContext>,
}

/// A turn's result, and its instance if another turn can use the instance.
pub(super) struct Ended {
    pub(super) done: TurnDone,
    pub(super) instance: Option<Instance>,
    /// Total size of the messages, rejection reasons and state, in bytes.
    pub(super) bytes: usize,
}

/// Executes a turn, on `instance` if one is given.
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

/// Executes one event. Puts the instance back into the slot only if another event may use it.
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

/// Applies an event's change to the state for the next event, and records it as the change of the whole turn.
fn apply(change: Change, state: &mut Option<Bytes>, together: &mut Change) {
    match &change {
        Change::Keep => return,
        Change::Put(bytes) => *state = Some(bytes.clone()),
        Change::Delete => *state = None,
    }
    *together = change;
}
