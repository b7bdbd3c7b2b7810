//! The workers, which execute turns with the simulated handler, and sometimes end a turn early.

use std::sync::Arc;

use ordain_core::{
    FailedAttempt, FailureKind, HandlerOutcome, Input, Message, Rollout, StateUpdate, Turn,
    TurnResult,
};

use super::{Action, FIRST_VERSION, World};
use crate::handler::{self, EventBehavior};
use crate::plan::BlockKind;
use crate::producer::BLOCKED_KEY;

/// Duration of each turn of the key that [`BlockKind::Slow`] blocks, in ms.
const BLOCKED_TURN_MS: u64 = 3_600_000;

impl World {
    /// Executes a turn. The owner receives the result after a delay.
    pub(super) fn execute(&mut self, owner: u64, version: &Arc<Rollout>, turn: &Turn) {
        let mut done = TurnResult {
            token: turn.token,
            rollout: Arc::clone(version),
            outcomes: Vec::new(),
            state: StateUpdate::Keep,
            failure: None,
        };
        let mut state = turn.state.clone();
        let mut bytes = 0;
        for (sequence, event) in &turn.events {
            let attempts = self.executions.entry((turn.key.clone(), event.content())).or_default();
            *attempts += 1;
            let behavior = handler::behavior(&self.plan, event);
            if let Some(kind) =
                behavior.failure(*attempts - 1, *version.build.version != *FIRST_VERSION)
            {
                done.failure = Some(self.failure(kind));
                break;
            }
            if behavior == EventBehavior::Rejected {
                done.outcomes.push(HandlerOutcome::Rejected("simulated".into()));
                if event.end() {
                    break;
                }
                continue;
            }
            let effect = handler::handle(
                &self.plan,
                &version.build.version,
                *sequence,
                event,
                state.as_deref(),
            );
            state = handler::changed(state, &effect.state);
            done.state = handler::then(done.state, &effect.state);
            let ends = event.end() || effect.complete;
            let messages = effect.messages;
            let complete = effect.complete;
            bytes += messages.iter().map(Message::memory).sum::<usize>();
            done.outcomes.push(HandlerOutcome::Effect { messages, complete });
            if ends || bytes >= turn.bytes || self.rng.permille(self.plan.handler.stops_early) {
                break;
            }
        }
        let wait = self.duration(turn);
        self.schedule(wait, Action::Input(owner, Input::TurnDone(done)));
    }

    /// Returns a failure of this kind. Some retries request a delay.
    fn failure(&mut self, kind: FailureKind) -> FailedAttempt {
        let wishes = kind == FailureKind::Retry && self.rng.permille(200);
        let after_ms = wishes.then(|| self.rng.below(500));
        FailedAttempt { kind, limit: None, message: format!("simulated {kind:?}"), after_ms }
    }

    fn duration(&mut self, turn: &Turn) -> u64 {
        let handler = &self.plan.handler;
        if handler.blocked == Some(BlockKind::Slow) && &*turn.key == BLOCKED_KEY {
            BLOCKED_TURN_MS
        } else if self.rng.permille(handler.slow) {
            self.rng.below(self.plan.handler.slowness + 1)
        } else {
            self.rng.below(4)
        }
    }
}
