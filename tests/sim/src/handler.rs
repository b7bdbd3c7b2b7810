//! The simulated handler. The result of a successful event depends only on the plan, the event with its sequence, the
//! state and the version, so the checker can compute each result again.

use bytes::Bytes;
use ordain_core::{Event, FailureKind, Message, MessageParts, StateUpdate, digest};

use crate::plan::{BlockKind, Plan};
use crate::producer::{BLOCKED_KEY, HANDLED_TYPE};
use crate::rng::mix;

pub(crate) const MESSAGE_LIMIT: u64 = 3;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Effect {
    pub(crate) state: StateUpdate,
    pub(crate) messages: Vec<Message>,
    pub(crate) complete: bool,
}

/// The plan, the key and the content of the event determine the behaviour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventBehavior {
    Fine,
    Rejected,
    /// The number of failures.
    Fails(FailureKind, u32),
    /// The event fails until a version other than [`FIRST_VERSION`](crate::world::FIRST_VERSION) executes it.
    FailsUntilNewVersion(FailureKind),
    FailsForEver(FailureKind),
}

impl EventBehavior {
    /// Returns the failure of attempt number `attempt` (from 0), if this attempt fails. `is_new_version` is true if a
    /// version other than the first executes the event.
    pub(crate) fn failure(self, attempt: u32, is_new_version: bool) -> Option<FailureKind> {
        match self {
            Self::Fails(kind, times) if attempt < times => Some(kind),
            Self::FailsUntilNewVersion(kind) if !is_new_version => Some(kind),
            Self::FailsForEver(kind) => Some(kind),
            _ => None,
        }
    }

    pub(crate) fn kind(self) -> Option<FailureKind> {
        match self {
            Self::Fails(kind, _) | Self::FailsUntilNewVersion(kind) | Self::FailsForEver(kind) => {
                Some(kind)
            }
            Self::Fine | Self::Rejected => None,
        }
    }
}

/// `Retry` occurs twice, so it is twice as likely as another kind.
const KINDS: [FailureKind; 6] = [
    FailureKind::Retry,
    FailureKind::Retry,
    FailureKind::Timeout,
    FailureKind::Trap,
    FailureKind::Limit,
    FailureKind::Error,
];

/// Returns whether the handler does not execute events of this event's type.
pub(crate) fn has_other_type(plan: &Plan, event: &Event) -> bool {
    plan.settings.types.is_some() && event.kind() != HANDLED_TYPE
}

pub(crate) fn behavior(plan: &Plan, event: &Event) -> EventBehavior {
    if has_other_type(plan, event) {
        return EventBehavior::Fine;
    }
    if plan.handler.blocked == Some(BlockKind::Failing) && event.key() == BLOCKED_KEY {
        return EventBehavior::FailsForEver(FailureKind::Retry);
    }
    let chance = mix(&[plan.seed, digest(event.key().as_bytes()), event.content(), 1]);
    let kind = KINDS[(chance >> 32) as usize % KINDS.len()];
    let mut choice = (chance % 1000) as u32;
    for (rate, behavior) in [
        (plan.handler.rejects, EventBehavior::Rejected),
        (plan.handler.fails, EventBehavior::Fails(kind, 1 + (chance >> 40) as u32 % 3)),
        (plan.handler.fails_for_ever / 2, EventBehavior::FailsUntilNewVersion(kind)),
        (plan.handler.fails_for_ever.div_ceil(2), EventBehavior::FailsForEver(kind)),
    ] {
        if choice < rate {
            return behavior;
        }
        choice -= rate;
    }
    EventBehavior::Fine
}

/// An event of another type changes no state. If the settings name a sink for such events, the only message passes the
/// event on to this sink.
pub(crate) fn handle(
    plan: &Plan,
    version: &str,
    sequence: u64,
    event: &Event,
    state: Option<&[u8]>,
) -> Effect {
    if has_other_type(plan, event) {
        let sink = plan.settings.types.as_ref().and_then(|types| types.sink.as_deref());
        let messages = sink.map(|sink| Message::forwarded(event, sink)).into_iter().collect();
        return Effect { state: StateUpdate::Keep, messages, complete: false };
    }
    let before = state.map_or(1, digest);
    let key = digest(event.key().as_bytes());
    let hash = mix(&[digest(version.as_bytes()), key, sequence, event.content(), before]);
    let state = match hash % 16 {
        0 => StateUpdate::Delete,
        1 => StateUpdate::Keep,
        _ => StateUpdate::Put(padded(plan, hash).into()),
    };
    let messages =
        (0..(hash >> 8) % (MESSAGE_LIMIT + 1)).map(|index| message(plan, hash, index)).collect();
    let chance = mix(&[plan.seed, key, event.content(), 2]);
    Effect { state, messages, complete: chance % 1000 < u64::from(plan.handler.completes) }
}

fn message(plan: &Plan, hash: u64, index: u64) -> Message {
    let data = padded(plan, mix(&[hash, index]));
    Message::new(&MessageParts {
        sink: if data[0].is_multiple_of(4) { "aside" } else { "out" },
        kind: "sim.done",
        data: &data,
        ..MessageParts::default()
    })
}

/// Zeros follow the hash, as many as the plan allows.
fn padded(plan: &Plan, hash: u64) -> Vec<u8> {
    let mut bytes = hash.to_le_bytes().to_vec();
    bytes.resize(bytes.len() + (hash % (plan.handler.padding + 1)) as usize, 0);
    bytes
}

/// Applies the change.
pub(crate) fn changed(state: Option<Bytes>, change: &StateUpdate) -> Option<Bytes> {
    match change {
        StateUpdate::Keep => state,
        StateUpdate::Put(state) => Some(state.clone()),
        StateUpdate::Delete => None,
    }
}

/// The result has the same effect as the two changes.
pub(crate) fn then(first: StateUpdate, second: &StateUpdate) -> StateUpdate {
    match second {
        StateUpdate::Keep => first,
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ordain_core::EventParts;

    #[test]
    fn failure_lasts_until_the_handler_is_repaired() {
        let behavior = EventBehavior::FailsUntilNewVersion(FailureKind::Trap);
        assert_eq!(behavior.failure(9, false), Some(FailureKind::Trap));
        assert_eq!(behavior.failure(9, true), None);
        assert_eq!(EventBehavior::Fails(FailureKind::Retry, 2).failure(2, false), None);
    }

    #[test]
    fn outcome_depends_on_version_and_state() {
        let plan = Plan::new(1, None);
        let event = Event::new(&EventParts { key: "k", data: b"x", ..EventParts::default() });
        let first = handle(&plan, "a", 1, &event, None);
        assert_eq!(first, handle(&plan, "a", 1, &event, None));
        assert_ne!(first, handle(&plan, "b", 1, &event, None));
        assert_ne!(first, handle(&plan, "a", 1, &event, Some(b"s")));
    }
}
