//! A trace of a run, for a person who replays one seed. The trace does not show whole events: it shows the key and the
//! sequence of an event, and for a delivery also the beginning of the event's data.

use std::fmt::Write;
use std::sync::Arc;

use ordain_core::{
    Batch, CommitReply, DeadLetter, Effect, Event, HandlerOutcome, Input, KeyRecord, KeyWrite,
    TurnResult,
};

#[derive(Debug)]
pub(crate) struct Trace {
    on: bool,
}

impl Trace {
    pub(crate) fn new(on: bool) -> Self {
        Self { on }
    }

    pub(crate) fn line(&self, now: u64, text: &str) {
        if self.on {
            println!("{now:>9}        {text}");
        }
    }

    pub(crate) fn input(&self, now: u64, owner: u64, input: &Input) {
        if self.on {
            println!("{now:>9} {owner:>3} <- {}", describe_input(input));
        }
    }

    pub(crate) fn effect(&self, now: u64, owner: u64, effect: &Effect) {
        if self.on {
            println!("{now:>9} {owner:>3} -> {}", describe_effect(effect));
        }
    }

    pub(crate) fn store(
        &self,
        now: u64,
        owner: u64,
        shard: u32,
        number: u64,
        reply: &CommitReply,
        applied: bool,
    ) {
        if self.on {
            let new = if applied { "" } else { " (nothing new)" };
            println!("{now:>9} {owner:>3} == {number} of shard {shard}: {}{new}", answer(reply));
        }
    }
}

fn describe_input(input: &Input) -> String {
    match input {
        Input::Arrived { delivery, event } => {
            let end = if event.end() { " END" } else { "" };
            let data = String::from_utf8_lossy(event.data());
            format!("{delivery}: {:?} #{:?} {:.20}{end}", event.key(), event.sequence(), data)
        }
        Input::ArrivedEarly(event) => {
            format!("offered: {:?} #{:?}", event.key(), event.sequence())
        }
        Input::Loaded { token, loaded: Ok(Some(loaded)) } => {
            let due = loaded.due_in;
            format!(
                "loaded {}/{}: {} due {due:?}",
                token.lane,
                token.serial,
                key_record(&loaded.record)
            )
        }
        Input::TurnDone(done) => turn_done(done),
        Input::Committed { shard, number, reply } => {
            format!("{number} of shard {shard}: {}", answer(reply))
        }
        Input::SpillRead { token, read: Ok((events, end)) } => {
            let numbers = sequences(events);
            format!("read {}/{}: {numbers:?} end {end}", token.lane, token.serial)
        }
        Input::Replayed { token, found, until, failed } => {
            let numbers = sequences(found);
            let lane = token.lane;
            let serial = token.serial;
            format!("found {lane}/{serial}: {numbers:?} until {until} failed {failed:?}")
        }
        other => format!("{other:?}"),
    }
}

fn describe_effect(effect: &Effect) -> String {
    match effect {
        Effect::Run(turn) => {
            let fresh = if turn.fresh { " fresh" } else { "" };
            let token = turn.token;
            let numbers = sequences(&turn.events);
            format!("run {}/{} {:?} {numbers:?}{fresh}", token.lane, token.serial, turn.key)
        }
        Effect::Commit(batch) => describe_batch(batch),
        Effect::Publish { batch, .. } => {
            format!("publish {} of shard {}", batch.number, batch.shard)
        }
        other => format!("{other:?}"),
    }
}

fn sequences(events: &[(u64, Arc<Event>)]) -> Vec<u64> {
    events.iter().map(|(sequence, _)| *sequence).collect()
}

fn turn_done(done: &TurnResult) -> String {
    let outcomes: Vec<String> = done
        .outcomes
        .iter()
        .map(|outcome| match outcome {
            HandlerOutcome::Effect { messages, complete: false } => messages.len().to_string(),
            HandlerOutcome::Effect { messages, complete: true } => {
                format!("{} and end", messages.len())
            }
            HandlerOutcome::Rejected(_) => "rejected".into(),
        })
        .collect();
    let failure = done.failure.as_ref().map(|failure| (failure.kind, failure.after_ms));
    let token = done.token;
    format!(
        "done {}/{} by {}: {outcomes:?} {failure:?}",
        token.lane, token.serial, done.rollout.build.version
    )
}

fn answer(reply: &CommitReply) -> String {
    match reply {
        CommitReply::Applied(applied) => {
            let mut text = "applied".to_owned();
            for (index, why) in &applied.refused {
                let _ = write!(text, ", {index} refused: {why:?}");
            }
            for present in &applied.existing_spills {
                let _ = write!(text, ", present {present:?}");
            }
            text
        }
        other => format!("{other:?}"),
    }
}

fn describe_batch(batch: &Batch) -> String {
    let mut text = format!("commit {} of shard {}", batch.number, batch.shard);
    for write in &batch.writes {
        let _ = write!(text, "\n                 {}", describe_write(write));
    }
    for put in &batch.letters {
        let _ = write!(text, "\n                 {}", letter(put));
    }
    text
}

fn describe_write(write: &KeyWrite) -> String {
    let mut text =
        format!("{:?} {:?} to {}", write.key, write.condition, key_record(&write.record));
    if !write.spill.is_empty() {
        let _ = write!(text, ", spill {:?}", sequences(&write.spill));
    }
    if !write.ids.is_empty() {
        let numbers: Vec<u64> = write.ids.iter().map(|taken| taken.sequence).collect();
        let _ = write!(text, ", ids of {numbers:?}");
    }
    for put in &write.letters {
        let _ = write!(text, ", {}", letter(put));
    }
    for id in &write.removed_letters {
        let _ = write!(text, ", consume #{}/{:x}", id.sequence, id.tag);
    }
    let _ = write!(text, ", {} messages", write.messages.len());
    if let Some(wait) = write.due_in {
        let _ = write!(text, ", due in {wait}");
    }
    if let Some(wait) = write.expire_in {
        let _ = write!(text, ", expires in {wait}");
    }
    text
}

fn key_record(key_record: &KeyRecord) -> String {
    let held = key_record.spilled;
    let mut text = format!("{} {:?}", key_record.next, key_record.status);
    if held.count > 0 {
        let _ = write!(text, ", {} held in {}..={}", held.count, held.first, held.last);
    }
    if key_record.attempts + key_record.rounds > 0 {
        let _ = write!(text, ", {} attempts, {} rounds", key_record.attempts, key_record.rounds);
    }
    if let Some(failure) = &key_record.failure {
        let _ = write!(text, ", {}", failure.cause);
    }
    text
}

fn letter(put: &DeadLetter) -> String {
    format!("letter {:?} #{}/{:x} {}", put.id.key, put.id.sequence, put.id.tag, put.cause)
}
