//! Sends turns to the workers, and handles their results.

use std::sync::Arc;

use super::Sequencer;
use super::lane::RunningTurn;
use super::letters::{early_letter_ids, settling_letter};
use crate::effect::Effect;
use crate::event::Event;
use crate::key_record::{EmittedMessage, StateUpdate};
use crate::letter::Cause;
use crate::stats::LaneState;
use crate::turn::{AttemptToken, HandlerOutcome, Turn, TurnResult};
use crate::type_filter::TypeFilter;
use crate::version::Rollout;

impl Sequencer {
    /// Starts turns of the ready lanes, in the order in which the lanes became ready, as far as the limits permit.
    /// Settles the events that the handler does not execute because of their types. Returns whether the function
    /// settled an event: a shard may then have something to write.
    pub(super) fn dispatch(&mut self) -> bool {
        let filter = self.type_filter();
        let mut has_settled = false;
        while self.may_start_turn() {
            let Some(index) = self.ready.pop_front() else { break };
            let Some(lane) = self.lanes.get(index) else { continue };
            if !lane.ready {
                continue;
            }
            self.lanes[index].ready = false;
            if let Some(filter) = &filter
                && self.settle_other_types(index, filter)
            {
                has_settled = true;
                // If the lane has more events to run, it becomes ready again.
                self.reschedule(index);
                continue;
            }
            if self.lanes[index].runnable(&self.settings) {
                self.start_turn(index, filter.as_deref());
            }
            if self.lanes[index].cold.is_some() {
                self.reschedule(index);
            } else {
                // Only the lane's running state has changed.
                self.update_counts(index);
            }
        }
        has_settled
    }

    fn may_start_turn(&self) -> bool {
        if self.draining || self.ready.is_empty() {
            return false;
        }
        if fault!(self, BlockOthers) && self.stats.lanes_in(LaneState::Parked) > 0 {
            return false;
        }
        self.turns < self.settings.max_turns
            && self.ahead < self.settings.run_ahead
            && self.outbox < self.settings.max_outbox
            && (self.another_turn_fits() || (self.all_published() && !self.over_budget_turn_runs()))
    }

    /// Starts a turn with the next events of a lane, up to the first event that the handler does not execute because of
    /// its type.
    fn start_turn(&mut self, index: u32, filter: Option<&TypeFilter>) {
        let fits = self.another_turn_fits();
        let serial = self.next_serial();
        let mut limit = self.settings.quantum.min(self.settings.run_ahead - self.ahead);
        let lane = &mut self.lanes[index];
        let fresh = lane.has_trapped();
        if fresh {
            limit = 1;
        }
        let mut events: Vec<(u64, Arc<Event>)> = Vec::with_capacity(1);
        for (next, held) in (lane.done..).zip(lane.held.waiting().take(limit)) {
            let is_other_type = filter.is_some_and(|filter| !filter.accepts(held.event.kind()));
            if held.sequence != next || is_other_type {
                break;
            }
            events.push((next, Arc::clone(&held.event)));
        }
        if events.is_empty() {
            return;
        }
        lane.turn = Some(RunningTurn { serial, events: events.len() as u32, stale: false });
        if !fits {
            self.over_budget_turn = Some((AttemptToken { lane: index, serial }, self.now));
        }
        self.turns += 1;
        self.ahead += events.len();
        self.effects.push_back(Effect::Run(Turn {
            token: AttemptToken { lane: index, serial },
            key: lane.key.clone(),
            state: lane.state.clone(),
            events,
            fresh,
            bytes: self.settings.batch_bytes,
        }));
    }

    pub(super) fn turn_done(&mut self, result: TurnResult) {
        let careless = fault!(self, ForgetTheTokenCheck);
        let index = result.token.lane;
        self.over_budget_turn.take_if(|(token, _)| *token == result.token);
        let turn = self.lanes.get(index).and_then(|lane| lane.turn);
        let Some(turn) = turn.filter(|turn| turn.serial == result.token.serial) else {
            self.stats.stale += 1;
            return;
        };
        self.lanes[index].turn = None;
        self.turns -= 1;
        self.ahead -= turn.events as usize;
        if turn.stale && !careless {
            self.stats.stale += 1;
        } else {
            self.apply_result(index, turn, result);
        }
        self.reschedule(index);
    }

    fn apply_result(&mut self, index: u32, turn: RunningTurn, result: TurnResult) {
        let TurnResult { rollout: version, outcomes, state, failure, .. } = result;
        assert!(
            outcomes.len() <= turn.events as usize,
            "a worker must not settle more events than its turn has"
        );
        if !outcomes.is_empty() {
            self.apply_outcomes(index, &version, outcomes, state);
        }
        if let Some(failure) = failure
            && !self.lanes[index].ended
        {
            self.handle_failure(index, failure, &version);
        }
    }

    fn apply_outcomes(
        &mut self,
        index: u32,
        version: &Arc<Rollout>,
        outcomes: Vec<HandlerOutcome>,
        state: StateUpdate,
    ) {
        let ignore_end = fault!(self, ForgetTheEnd);
        let lane = &mut self.lanes[index];
        let key = Arc::clone(&lane.key);
        let ahead = lane.record.ahead.as_deref().copied();
        let mut done = lane.done;
        let mut bytes = state.memory();
        let mut ended = false;
        // Take the chunk out of the lane, so that the code below can read the lane's events while it fills the chunk.
        lane.chunk(Some(Arc::clone(version)), &self.settings);
        let mut chunk = lane.pending.pop().expect("the line above creates a chunk");
        let before = chunk.bytes;
        for (outcome, held) in outcomes.into_iter().zip(lane.held.waiting()) {
            ended = held.event.end();
            match outcome {
                HandlerOutcome::Effect { messages, complete } => {
                    ended |= complete;
                    chunk.effects += 1;
                    let event_digest = held.event.identity_digest();
                    for (position, message) in messages.into_iter().enumerate() {
                        bytes += message.memory();
                        let sequence = held.sequence;
                        let index = position as u32;
                        chunk.messages.push(EmittedMessage {
                            sequence,
                            index,
                            event_digest,
                            message,
                        });
                    }
                }
                HandlerOutcome::Rejected(reason) => {
                    let version = Some(version.build.version.clone());
                    let letter = settling_letter(
                        &key,
                        held.sequence,
                        &held.event,
                        Cause::Rejected,
                        reason,
                        version,
                    );
                    bytes += letter.memory();
                    chunk.letters.push(letter);
                }
            }
            chunk.removed_letters.extend(early_letter_ids(&key, held, ahead.as_ref()));
            chunk.events += 1;
            self.ahead += 1;
            done += 1;
            ended &= !ignore_end;
            if ended {
                break;
            }
        }
        match state {
            StateUpdate::Keep => {}
            StateUpdate::Put(state) => {
                lane.state = Some(state.clone());
                chunk.bytes -= chunk.state.memory();
                chunk.state = StateUpdate::Put(state);
            }
            StateUpdate::Delete => {
                lane.state = None;
                chunk.bytes -= chunk.state.memory();
                chunk.state = StateUpdate::Delete;
            }
        }
        lane.held.mark_executed((done - lane.done) as usize);
        chunk.next = done;
        chunk.bytes += bytes;
        self.memory = self.memory + chunk.bytes - before;
        self.outcome_bytes = bytes.max(self.outcome_bytes - self.outcome_bytes / 8);
        lane.pending.push(chunk);
        lane.done = done;
        lane.ended = ended;
        lane.record.attempts = 0;
        lane.record.rounds = 0;
        lane.record.failure = None;
    }
}
