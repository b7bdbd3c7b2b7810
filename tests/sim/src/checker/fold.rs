//! Determines the events whose execution led to a write. If the handler executes these events in order, the result is
//! exactly the state and the messages of the write.

use std::sync::Arc;

use bytes::Bytes;
use ordain_core::{Event, Message};

use crate::handler::{self, EventBehavior};
use crate::plan::Plan;

/// A sequence that a write settles with effect.
#[derive(Debug)]
pub(super) struct Step<'a> {
    pub(super) sequence: u64,
    /// The events that may have been executed. There are several candidates only if a producer sent different contents
    /// for the sequence.
    pub(super) candidates: Vec<Arc<Event>>,
    pub(super) messages: Vec<&'a Message>,
}

/// Chooses one candidate for each step, so that the execution of the chosen events changes state `from` into state
/// `to`. Returns the chosen events, and true if the last of them ends the key. Returns `None` if no choice leads to
/// state `to` and to the messages of all steps.
pub(super) fn fold(
    plan: &Plan,
    version: &str,
    steps: &[Step<'_>],
    from: Option<&Bytes>,
    to: Option<&Bytes>,
) -> Option<(Vec<Arc<Event>>, bool)> {
    let Some((step, rest)) = steps.split_first() else {
        return (from == to).then(|| (Vec::new(), false));
    };
    for event in &step.candidates {
        if !succeeds(plan, event, version) {
            continue;
        }
        let effect =
            handler::handle(plan, version, step.sequence, event, from.map(|state| &**state));
        if !effect.messages.iter().eq(step.messages.iter().copied()) {
            continue;
        }
        let ends = effect.complete || event.end();
        if ends && !rest.is_empty() {
            continue;
        }
        let state = handler::changed(from.cloned(), &effect.state);
        if let Some((mut events, ended)) = fold(plan, version, rest, state.as_ref(), to) {
            events.insert(0, event.clone());
            return Some((events, ended || ends));
        }
    }
    None
}

fn succeeds(plan: &Plan, event: &Event, version: &str) -> bool {
    match handler::behavior(plan, event) {
        EventBehavior::Fine | EventBehavior::Fails(..) => true,
        EventBehavior::FailsUntilNewVersion(_) => version != crate::world::FIRST_VERSION,
        EventBehavior::Rejected | EventBehavior::FailsForEver(_) => false,
    }
}
