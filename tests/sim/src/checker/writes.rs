//! Checks the commits that the store has applied: I1 (order), I4 (exactly once), I5 (nothing lost), I8 (one version).
//! Only events that an owner has received may be settled, spilled or dead-lettered.

use std::sync::Arc;

use ordain_core::{
    AppliedCommit, Batch, Cause, DeadLetter, Event, ExhaustedPolicy, Key, KeyStatus, KeyWrite,
    LetterContent, OrderingMode, WriteCondition,
};

use super::fold::{Step, fold};
use super::letters::letter_sequences;
use super::{Checker, Settlement, at};
use crate::handler;
use crate::store::Store;

impl Checker {
    pub(crate) fn applied(
        &mut self,
        partition: u32,
        batch: &Batch,
        applied: &AppliedCommit,
        store: &Store,
    ) {
        let mut letters = Vec::new();
        let mut removed = Vec::new();
        for (index, write) in batch.writes.iter().enumerate() {
            if applied.refused.iter().all(|(refused, _)| *refused != index) {
                self.write(partition, write, applied.time, store);
                letters.extend(&write.letters);
                removed.extend(write.removed_letters.iter().filter_map(|id| self.take_letter(id)));
            }
        }
        self.forwards(&letters, &batch.letters);
        letters.extend(&batch.letters);
        for letter in letters {
            self.letter_added(letter);
        }
        // The same commit may have replaced a removed letter by a letter with another cause.
        for letter in removed {
            self.letter_removed(&letter, store);
        }
    }

    fn write(&mut self, partition: u32, write: &KeyWrite, time: u64, store: &Store) {
        let key = &write.key;
        if write.record.partition != partition {
            self.broke("I2", format!("{key:?}: a write assigns the key to another partition"));
        }
        self.condition(write);
        self.check_rollout_number(write);
        self.assigned_ids(write);
        self.settle(write);
        self.incarnation(write, time);
        self.spills(write, store);
        self.counts(write);
        self.gap_history(write);
        self.warnings(write);
        let incarnation = self.model(key).incarnation;
        self.publishing.committed(partition, write, incarnation);
        self.due(write, store);
    }

    /// Checks that the condition of an applied write held.
    fn condition(&mut self, write: &KeyWrite) {
        let model = self.model(&write.key);
        let holds = match write.condition {
            WriteCondition::Absent => !model.live,
            WriteCondition::Next(next) => model.live && model.next == next,
        };
        if !holds {
            let found = (model.live, model.next);
            let detail =
                format!("the store applied {:?}, but (live, next) is {found:?}", write.condition);
            self.broke("I4", format!("{:?}: {detail}", write.key));
        }
    }

    /// No event may be executed under an older rollout than earlier events of its key.
    fn check_rollout_number(&mut self, write: &KeyWrite) {
        let now = write.record.rollout_number();
        let model = self.model(&write.key);
        let before = std::mem::replace(&mut model.rollout_number, now);
        if now < before {
            let key = &write.key;
            self.broke("I8", format!("{key:?}: rollout {now} commits after {before}"));
        }
    }

    /// The write must settle all sequences up to the new next sequence, and the handler must return the written state
    /// and messages for their events.
    fn settle(&mut self, write: &KeyWrite) {
        let key = &write.key;
        if self.plan.settings.begins_anywhere && !self.model(key).live {
            self.begins(write);
        }
        let next = self.next(key);
        let before = self.model(key).state.clone();
        if write.record.next < next {
            self.broke(
                "I1",
                format!("{} becomes the next sequence again", at(key, write.record.next)),
            );
            return;
        }
        if self.model(key).completed && write.record.next > next {
            self.broke("end", format!("{} is settled after the end of its key", at(key, next)));
            return;
        }
        let mut without = Vec::new();
        let mut steps = Vec::new();
        let is_skip = |letter: &&DeadLetter| letter.cause == Cause::Gap;
        let is_outside = |letter: &&DeadLetter| {
            let sequences = letter_sequences(letter);
            *sequences.start() < next || *sequences.end() >= write.record.next
        };
        if let Some(letter) = write.letters.iter().filter(is_skip).find(is_outside) {
            let label = at(key, letter.id.sequence);
            return self
                .broke("I5", format!("{label} is skipped, but this write does not settle it"));
        }
        for sequence in next..write.record.next {
            let letter =
                write.letters.iter().find(|letter| letter_sequences(letter).contains(&sequence));
            match letter.map(|letter| (letter.cause, &letter.content)) {
                Some((Cause::Late, LetterContent::Event(event))) => {
                    without.push((sequence, Settlement::Late(event.clone())));
                }
                Some((_, LetterContent::Event(event))) => {
                    without.push((sequence, Settlement::Without(event.clone())));
                }
                Some((Cause::Gap, LetterContent::Nothing)) => {
                    without.push((sequence, Settlement::Skipped));
                }
                Some((cause, _)) => {
                    let label = at(key, sequence);
                    return self.broke(
                        "I5",
                        format!("{label}: a dead letter with the cause {cause} has no event"),
                    );
                }
                None => steps.push(self.step(write, sequence)),
            }
        }
        let stray = write.messages.iter().find(|m| steps.iter().all(|s| s.sequence != m.sequence));
        if let Some(message) = stray {
            return self.broke(
                "I4",
                format!(
                    "{} emits messages, but this write does not settle it",
                    at(key, message.sequence)
                ),
            );
        }
        if !has_ordered_messages(write, &steps) {
            return self
                .broke("publishing", format!("{key:?}: the messages of a write are out of order"));
        }
        let after = handler::changed(before.clone(), &write.state);
        let version =
            write.record.rollout.as_deref().map_or("no version", |version| &version.build.version);
        let Some((events, ended)) =
            fold(&self.plan, version, &steps, before.as_ref(), after.as_ref())
        else {
            let sequences: Vec<_> = steps.iter().map(|s| (s.sequence, &s.candidates)).collect();
            let difference = format!("no execution of {sequences:?} by {version} has this effect");
            return self.broke(
                "I4",
                format!("{key:?} settled {next}..{}: {difference}", write.record.next),
            );
        };
        let effects = steps.iter().zip(events).map(|(s, e)| (s.sequence, Settlement::Effect(e)));
        let settled: Vec<_> = without.into_iter().chain(effects).collect();
        self.ends(write, &settled, ended);
        let now = self.now;
        let model = self.model(key);
        if write.record.next > next {
            model.settled_at = now;
        }
        model.live = true;
        model.next = write.record.next;
        model.state = after;
        let is_executed = |settled: &Settlement| {
            matches!(settled, Settlement::Effect(_) | Settlement::Without(_))
        };
        let executed = settled.iter().filter(|(_, settled)| is_executed(settled));
        let executed: Vec<_> = executed.map(|(sequence, _)| (key.clone(), *sequence)).collect();
        model.settled.extend(settled);
        if self.lacks_commits {
            self.recovered.extend(executed);
        }
    }

    /// The key may begin anywhere: by its first write, all lower sequences are skipped, or their events have arrived
    /// late. An owner must have received an event with the first sequence.
    fn begins(&mut self, write: &KeyWrite) {
        let key = &write.key;
        let is_late = |sequence| {
            let mut letters = write.letters.iter();
            letters.any(|letter| letter.cause == Cause::Late && letter.id.sequence == sequence)
        };
        let mut begin = 0;
        loop {
            let mut ranges = write.record.skipped.ranges().iter();
            if let Some((_, last)) = ranges.find(|(first, last)| (*first..=*last).contains(&begin))
            {
                begin = last + 1;
            } else if is_late(begin) {
                begin += 1;
            } else {
                break;
            }
        }
        if self.versions(key, begin).is_empty() {
            self.broke("begin", format!("{} never arrived, but is the first", at(key, begin)));
        }
        let model = self.model(key);
        model.begin = begin;
        model.next = begin;
    }

    /// Returns the events and the messages of a sequence that the write settles with effect.
    fn step<'a>(&self, write: &'a KeyWrite, sequence: u64) -> Step<'a> {
        let messages = write.messages.iter().filter(|m| m.sequence == sequence);
        let digests = &write.record.digests;
        let candidates = self.candidates(&write.key, sequence).iter().filter(|event| {
            digests.differs(write.record.next, sequence, event.repeat_digests()) != Some(true)
        });
        Step {
            sequence,
            candidates: candidates.cloned().collect(),
            messages: messages.map(|emitted| &emitted.message).collect(),
        }
    }

    fn candidates(&self, key: &Key, sequence: u64) -> &[Arc<Event>] {
        if self.plan.settings.ordering == OrderingMode::Sequenced {
            return self.versions(key, sequence);
        }
        let accepted = self.keys.get(key).and_then(|model| model.accepted.get(&sequence));
        accepted.map_or(&[], |accepted| self.versions(key, accepted.id))
    }

    /// The event that ends the key must complete it, and no earlier event.
    fn ends(&mut self, write: &KeyWrite, settled: &[(u64, Settlement)], ended: bool) {
        let key = &write.key;
        let marked = |s: &Settlement| s.event().is_some_and(|event| event.end());
        let last = settled.iter().find(|(sequence, _)| *sequence + 1 == write.record.next);
        let completed = write.record.status == KeyStatus::Completed;
        let was = self.model(key).completed;
        // If an event with the end mark is rejected or skipped, the checker accepts both results: the key ends, or the
        // key does not end.
        let may = was || ended || last.is_some_and(|(_, settled)| marked(settled));
        if (ended || was) && !completed {
            self.broke(
                "end",
                format!(
                    "{} follows the end of its key, which is not completed",
                    at(key, write.record.next)
                ),
            );
        }
        if completed && !may {
            self.broke(
                "end",
                format!("{} follows no end, but its key is completed", at(key, write.record.next)),
            );
        }
        // An ended key gets its expiry only when two things have happened: the events that it holds beyond its end have
        // become dead letters, and its owner has decided again about its early dead letters.
        let ttl = self.plan.settings.complete_ttl;
        let expires = write.expire_in.is_some_and(|wait| wait <= ttl);
        let holds = write.record.spilled.count > 0 || write.record.ahead.is_some();
        if completed && !expires && !holds {
            self.broke(
                "end",
                format!("{key:?} is completed, but does not expire within complete_ttl"),
            );
        }
        self.model(key).completed = completed;
    }

    /// The incarnation, a part of message ids, must stay the same until the key record expires.
    fn incarnation(&mut self, write: &KeyWrite, time: u64) {
        let model = self.model(&write.key);
        let written = if write.record.incarnation == 0 { time } else { write.record.incarnation };
        if model.incarnation == 0 {
            model.incarnation = written;
        }
        if model.incarnation != written {
            self.broke("I4", format!("{:?} changes its incarnation", write.key));
        }
    }

    /// The sequences that Ordain assigns must follow the order of delivery without holes, and each id gets one
    /// sequence.
    fn assigned_ids(&mut self, write: &KeyWrite) {
        let key = write.key.clone();
        let first = self.plan.settings.first;
        for accepted in &write.ids {
            let position = self.positions.get(&(key.clone(), accepted.id)).copied();
            let held = self.letters_of(&key, accepted.id);
            let model = self.model(&key);
            let due = model.accepted.last_key_value().map_or(first, |(last, _)| last + 1);
            let behind = model.position.is_some() && position <= model.position && !held;
            if accepted.sequence != due {
                self.broke(
                    "I1",
                    format!("{} is assigned instead of #{due}", at(&key, accepted.sequence)),
                );
            } else if !model.ids.insert(accepted.id) {
                self.broke(
                    "I4",
                    format!("{} has an id that was accepted before", at(&key, accepted.sequence)),
                );
            } else if behind {
                self.broke(
                    "I1",
                    format!(
                        "{} is assigned after a later event of the queue",
                        at(&key, accepted.sequence)
                    ),
                );
            } else {
                model.accepted.insert(accepted.sequence, *accepted);
                model.position = model.position.max(position);
            }
        }
    }

    /// An owner must have received each spilled event. No spilled event may be settled or too far ahead, and the key
    /// record must count all of them.
    fn spills(&mut self, write: &KeyWrite, store: &Store) {
        let key = &write.key;
        let end = self.first_unknown(key).saturating_add(self.plan.settings.gap.max_width);
        for (sequence, event) in &write.spill {
            let label = at(key, *sequence);
            let versions = self.candidates(key, *sequence);
            if *sequence < write.record.next {
                self.broke("I5", format!("{label} is spilled, but already settled"));
            } else if !versions.contains(event) {
                self.broke("I5", format!("{label} is spilled, but was never received"));
            } else if *sequence > end
                && self.plan.settings.ordering == OrderingMode::Sequenced
                && !self.seems_near(key, *sequence, store)
                && !self.follows_skip(key, *sequence)
            {
                self.broke("I7", format!("{label} is spilled, but too far ahead"));
            }
        }
        let Some(record) = store.records.get(key) else { return };
        let held = record.spill.len() as u64;
        let spilled = write.record.spilled;
        let outside = record.spill.keys().find(|sequence| !spilled.spans(**sequence));
        // The record of an ended key counts only spilled events without a dead letter. The dead-lettered events stay
        // spilled until the owner has read the last page; then its next write removes them.
        let ended = write.record.status == KeyStatus::Completed;
        if !ended && (held > spilled.count || outside.is_some()) {
            self.broke(
                "I5",
                format!("{key:?}: {held} spilled events, {outside:?} outside of {spilled:?}"),
            );
        }
        let limit = self.plan.settings.spill_limit + self.plan.settings.batch_events as u64;
        if held > limit {
            self.broke(
                "I7",
                format!("{key:?}: {held} events are spilled, but {limit} are allowed"),
            );
        }
    }

    /// Returns whether a sequence may have seemed near enough to be spilled. If an arriving event may repeat a spilled
    /// event, an owner spills the arriving event, and counts it as a new event. The next write of the key record
    /// corrects the count. If another owner loads the record before this write, the owner finds a count that is too
    /// high. The owner may then expect a sequence that is higher than the first missing sequence, but at most the
    /// sequence directly after the last spilled event.
    fn seems_near(&self, key: &Key, sequence: u64, store: &Store) -> bool {
        let width = self.plan.settings.gap.max_width;
        let Some(record) = store.records.get(key) else { return false };
        let near = record.spill.range(sequence.saturating_sub(width + 1)..);
        (self.deaths > 0 || self.plan.partitions > 1) && near.count() > 1
    }

    /// Returns whether the event may follow skipped sequences whose skip is in a write that is not committed yet.
    fn follows_skip(&self, key: &Key, sequence: u64) -> bool {
        let gap = &self.plan.settings.gap;
        let missing = self.first_unknown(key);
        let end = missing.saturating_add(gap.reachable_width()).saturating_add(gap.max_width);
        gap.on_exhausted == ExhaustedPolicy::Skip
            && sequence <= end
            && self.check_requested(key, missing).is_ok()
    }

    /// Checks that the counts of attempts and rounds in the key record are within their limits.
    fn counts(&mut self, write: &KeyWrite) {
        let settings = &self.plan.settings;
        let attempts = write.record.attempts;
        let rounds = write.record.rounds;
        if attempts > settings.retry.attempts.max(2) {
            self.broke("retry", format!("{:?}: {attempts} attempts are too many", write.key));
        } else if rounds > settings.gap.attempts + 1 {
            self.broke("gap", format!("{:?}: {rounds} replay rounds are too many", write.key));
        }
    }

    /// A key that can progress with the events in the store needs a due entry.
    fn due(&mut self, write: &KeyWrite, store: &Store) {
        let Some(record) = store.records.get(&write.key) else { return };
        let stopped = matches!(write.record.status, KeyStatus::Parked | KeyStatus::Completed);
        let runnable = record.spill.contains_key(&write.record.next);
        if runnable && !stopped && write.due_in.is_none() {
            let label = at(&write.key, write.record.next);
            self.broke(
                "due",
                format!("{label} is spilled and can run, but its key has no due entry"),
            );
        }
    }

    /// Returns whether an owner has received exactly this event.
    pub(super) fn is_known(&self, event: &Event) -> bool {
        self.received.has(event)
    }
}

/// Returns whether the messages of a write are in the order of their events, and the messages of each step have the
/// indices 0, 1, 2 and so on.
fn has_ordered_messages(write: &KeyWrite, steps: &[Step<'_>]) -> bool {
    let numbered = steps.iter().all(|step| {
        let of = write.messages.iter().filter(|m| m.sequence == step.sequence);
        of.zip(0..).all(|(message, index)| message.index == index)
    });
    numbered && write.messages.is_sorted_by_key(|message| (message.sequence, message.index))
}
