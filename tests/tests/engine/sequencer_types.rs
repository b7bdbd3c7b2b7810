//! Tests of the sequencer with a handler that executes only some types of events.

use std::sync::Arc;

use anyhow::{Context, Result};
use ordain_core::{
    AppliedCommit, CommitReply, Effect, Event, EventParts, HandlerOutcome, Input, KeyStatus,
    KeyWrite, Message, MessageParts, OrderingMode, Sequencer, StateUpdate, Turn, TurnResult,
};

use super::sequencer_support::{event_parts, settings, version};

/// The settings of a stream whose handler executes the types `order.*`.
const TYPES: &str = "types = [\"order.*\"]";

/// A sequencer, and the answers of a store that has no key records at first.
struct Rig {
    sequencer: Sequencer,
    is_fifo: bool,
    delivery: u64,
    turns: Vec<Vec<u64>>,
    /// The turns without a result. While `has_slow_worker` is true, the turns get no results.
    running: Vec<Turn>,
    has_slow_worker: bool,
    writes: Vec<KeyWrite>,
    acknowledged: u64,
}

impl Rig {
    fn new(stream: &str) -> Result<Self> {
        let settings = settings(&format!(
            "{stream}\n[sinks.others]\nkind = \"file\"\npath = \"others.ndjson\""
        ))?;
        Ok(Self {
            is_fifo: settings.ordering == OrderingMode::Fifo,
            sequencer: Sequencer::new(settings, &[0], 0),
            delivery: 0,
            turns: Vec::new(),
            running: Vec::new(),
            has_slow_worker: false,
            writes: Vec::new(),
            acknowledged: 0,
        })
    }

    /// Delivers events together, each with its sequence and its type.
    fn deliver(&mut self, events: &[(u64, &str)]) {
        for (sequence, kind) in events {
            self.deliver_with(*sequence, kind, false);
        }
        self.perform();
    }

    /// Delivers an event, but does not perform the sequencer effects of the delivery.
    fn deliver_with(&mut self, sequence: u64, kind: &str, end: bool) {
        self.delivery += 1;
        let id = sequence.to_string();
        let parts = EventParts {
            sequence: (!self.is_fifo).then_some(sequence),
            id: &id,
            kind,
            headers: &[("tenant", "blue")],
            data: b"{}",
            end,
            ..event_parts()
        };
        let event = Arc::new(Event::new(&parts));
        self.sequencer.handle(0, Input::Arrived { delivery: self.delivery, event });
    }

    fn perform(&mut self) {
        while let Some(effect) = self.sequencer.poll_effect() {
            match effect {
                Effect::Run(turn) => {
                    self.turns.push(turn.events.iter().map(|(sequence, _)| *sequence).collect());
                    self.running.push(turn);
                    if !self.has_slow_worker {
                        self.finish_turns();
                    }
                }
                Effect::Commit(batch) => {
                    self.writes.extend(batch.writes.iter().cloned());
                    let applied = AppliedCommit { time: 1, ..AppliedCommit::default() };
                    let reply = CommitReply::Applied(applied);
                    let shard = batch.shard;
                    let number = batch.number;
                    self.sequencer.handle(0, Input::Committed { shard, number, reply });
                }
                Effect::Publish { batch, .. } => {
                    let shard = batch.shard;
                    let through = batch.number;
                    self.sequencer.handle(0, Input::Published { shard, through });
                }
                Effect::Load { token, .. } => {
                    self.sequencer.handle(0, Input::Loaded { token, loaded: Ok(None) });
                }
                Effect::ReadDue { .. } => {
                    self.sequencer.handle(0, Input::DueRead { entries: Vec::new(), next_in: None });
                }
                Effect::Ack { through } => self.acknowledged = through,
                effect => panic!("these tests do not cause {effect:?}"),
            }
        }
    }

    /// Reports the results of all running turns: each event emits a message with its sequence, and puts its sequence
    /// into the state.
    fn finish_turns(&mut self) {
        for turn in std::mem::take(&mut self.running) {
            let mut sequences = turn.events.iter().map(|(sequence, _)| sequence.to_string());
            let outcomes = sequences.clone().map(|sequence| HandlerOutcome::Effect {
                messages: vec![Message::new(&MessageParts {
                    sink: "handled",
                    kind: "done",
                    data: sequence.as_bytes(),
                    ..MessageParts::default()
                })],
                complete: false,
            });
            let result = TurnResult {
                token: turn.token,
                rollout: version(),
                outcomes: outcomes.collect(),
                state: sequences
                    .next_back()
                    .map_or(StateUpdate::Keep, |last| StateUpdate::Put(last.into())),
                failure: None,
            };
            self.sequencer.handle(0, Input::TurnDone(result));
        }
    }

    /// Returns the sequence and the sink of each committed message.
    fn messages(&self) -> Vec<(u64, &str)> {
        let messages = self.writes.iter().flat_map(|write| &write.messages);
        messages.map(|emitted| (emitted.sequence, emitted.message.sink())).collect()
    }

    /// Returns two numbers of settled events: events with effect, and events without a call of the handler.
    fn settled(&self) -> (u64, u64) {
        let stats = self.sequencer.stats();
        (stats.settled, stats.other_types)
    }

    fn last_write(&self) -> Result<&KeyWrite> {
        self.writes.last().context("a write")
    }
}

#[test]
fn handler_executes_only_events_of_its_types() -> Result<()> {
    let mut rig = Rig::new(TYPES)?;
    rig.deliver(&[
        (1, "order.new"),
        (2, "payment.done"),
        (3, "order.paid"),
        (4, "order.sent"),
        (5, ""),
        (6, "Order.new"),
        (7, "order.done"),
    ]);
    assert_eq!(rig.turns, [vec![1], vec![3, 4], vec![7]]);
    assert_eq!(rig.settled(), (4, 3));
    assert_eq!(rig.acknowledged, 7);
    assert_eq!(rig.messages(), [1, 3, 4, 7].map(|sequence| (sequence, "handled")));
    assert_eq!(rig.last_write()?.record.next, 8);
    assert_eq!(rig.sequencer.stats().dead_total(), 0);
    Ok(())
}

#[test]
fn key_with_only_other_types_has_a_record_without_state_and_version() -> Result<()> {
    let mut rig = Rig::new(TYPES)?;
    rig.deliver(&[(1, "a"), (2, "b"), (3, "c")]);
    assert!(rig.turns.is_empty(), "{:?}", rig.turns);
    assert_eq!(rig.settled(), (0, 3));
    assert_eq!(rig.acknowledged, 3);
    let write = rig.last_write()?;
    assert_eq!((write.record.next, &write.record.rollout), (4, &None));
    assert!(rig.writes.iter().all(|write| write.state == StateUpdate::Keep));
    let writes = rig.writes.len();
    // The repeats of the events are recognised, and have no effect.
    rig.deliver(&[(1, "a"), (2, "b"), (3, "c")]);
    assert_eq!((rig.sequencer.stats().duplicates, rig.writes.len()), (3, writes));
    assert_eq!((rig.settled(), rig.acknowledged), ((0, 3), 6));
    Ok(())
}

#[test]
fn events_of_other_types_go_to_the_sink_in_the_order_of_their_key() -> Result<()> {
    let mut rig = Rig::new(&format!("{TYPES}\nother_types = \"others\""))?;
    rig.deliver(&[(1, "a"), (2, "order.new"), (3, "b"), (4, "c"), (5, "order.done")]);
    let expected = [(1, "others"), (2, "handled"), (3, "others"), (4, "others"), (5, "handled")];
    assert_eq!(rig.messages(), expected);
    assert_eq!((rig.settled(), rig.sequencer.stats().messages), ((2, 3), 5));
    let message = &rig.writes[0].messages[0].message;
    assert_eq!((message.kind(), message.data(), message.key()), ("a", &b"{}"[..], None));
    assert_eq!(message.headers().collect::<Vec<_>>(), [("tenant", "blue")]);
    assert_eq!(rig.sequencer.stats().outbox, 0);
    Ok(())
}

#[test]
fn event_of_another_type_is_no_gap() -> Result<()> {
    let mut rig = Rig::new(TYPES)?;
    rig.deliver(&[(3, "order.paid"), (2, "other")]);
    assert_eq!((rig.turns.len(), rig.settled(), rig.acknowledged), (0, (0, 0), 0));
    rig.deliver(&[(1, "order.new")]);
    assert_eq!(rig.turns, [[1], [3]]);
    assert_eq!((rig.settled(), rig.acknowledged), ((2, 1), 3));
    Ok(())
}

#[test]
fn event_of_another_type_waits_for_its_predecessor() -> Result<()> {
    let mut rig = Rig::new(&format!("{TYPES}\nother_types = \"others\""))?;
    rig.has_slow_worker = true;
    rig.deliver(&[(1, "order.new"), (2, "other")]);
    assert_eq!((rig.turns.len(), rig.writes.len(), rig.acknowledged), (1, 0, 0));
    rig.finish_turns();
    rig.perform();
    assert_eq!(rig.messages(), [(1, "handled"), (2, "others")]);
    assert_eq!(rig.acknowledged, 2);
    Ok(())
}

#[test]
fn fifo_stream_numbers_events_of_all_types() -> Result<()> {
    let mut rig = Rig::new(&format!("{TYPES}\nordering = \"fifo\""))?;
    // The sequences are the ids of the events.
    rig.deliver(&[(30, "other"), (10, "order.new"), (20, "other"), (30, "other")]);
    assert_eq!(rig.turns, [[2]]);
    assert_eq!((rig.settled(), rig.sequencer.stats().duplicates), ((1, 2), 1));
    assert_eq!((rig.last_write()?.record.next, rig.acknowledged), (4, 4));
    Ok(())
}

#[test]
fn event_of_another_type_can_end_its_key() -> Result<()> {
    let mut rig = Rig::new(&format!("{TYPES}\nother_types = \"others\""))?;
    rig.deliver_with(1, "order.new", false);
    rig.deliver_with(2, "other", true);
    rig.perform();
    assert_eq!(rig.last_write()?.record.status, KeyStatus::Completed);
    let ends = rig.writes.iter().flat_map(|write| &write.messages);
    assert_eq!(ends.map(|emitted| emitted.message.end()).collect::<Vec<_>>(), [false, true]);
    Ok(())
}

/// One step settles at most `quantum` events of a key, and a commit contains at most `runtime.batch` events.
#[test]
fn many_events_of_other_types_respect_the_limits() -> Result<()> {
    let mut rig =
        Rig::new(&format!("{TYPES}\nquantum = 3\n[runtime]\nbatch = 10\nrun_ahead = 10"))?;
    let events: Vec<(u64, &str)> = (1..=500).map(|sequence| (sequence, "other")).collect();
    rig.deliver(&events);
    assert_eq!((rig.settled(), rig.acknowledged), ((0, 500), 500));
    let mut next = 1;
    for write in &rig.writes {
        assert!(write.record.next - next <= 10, "{next} to {}", write.record.next);
        next = write.record.next;
    }
    Ok(())
}
