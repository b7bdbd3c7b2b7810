//! The shards, the producer and its file, and another producer.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::OnceLock;

use ordain_core::ProducerHistory;

use super::{ProducerFault, ProducerStep, SHARDS};

/// Longer than the interval at which a producer checks its witnesses.
const BEYOND_CHECK_INTERVAL_MS: u64 = 10_000;
/// The time in ms after which the producer forgets a call.
const CALL_MAX_AGE_MS: u64 = 120_000;
/// The number of the other producer's first event.
const FIRST_OTHER_EVENT: u8 = 100;
/// If all attempts to write the events of one call fail, the producer is stuck.
const ATTEMPT_LIMIT: usize = 5;

/// The counts of rare events. A comparison of two states ignores them, except `rollbacks` and `restarts`, which are
/// also a part of the state.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProducerCounts {
    /// Number of times that shards went back.
    pub rollbacks: u64,
    /// Number of times that a call, a check or a checkpoint showed the producer that a shard had gone back.
    pub refused: u64,
    /// Number of lost events that the producer wrote again.
    pub rewritten: u64,
    /// Number of events that the store recognised as repeats.
    pub recognized: u64,
    /// Number of events that got another number when the producer wrote them again.
    pub changed: u64,
    /// Number of times that the producer started again.
    pub restarts: u64,
    /// Number of times that the producer ended for one of two reasons. The store could not give a lost event its
    /// earlier number, or the reader had executed a lost event of the other producer or of an earlier run.
    pub stopped: u64,
    /// Number of lost events of an earlier run that a later run sent to the broker under another number, because
    /// another event had taken a lost number.
    pub renumbered: u64,
    /// Number of times that the producer read the file again from its oldest checkpoint, because a shard had gone back.
    pub reread: u64,
}

/// A violation: the way in which a run has broken a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProducerViolation {
    /// A shard lacks an event of the file.
    Missing,
    /// A shard has an event of the file twice, under two numbers, or the broker received an event under two numbers. It
    /// is no violation if the broker received the event from two runs: the memory of the later run lacks the events
    /// that only the earlier run added. After a loss, a new event can take the number of such an event, which then gets
    /// another number.
    Duplicated,
    /// The numbers that a shard gave to events in the producer's memory do not follow the order of the file.
    OutOfOrder,
    /// Two events in the producer's memory got the same number from a shard, or the broker received two events of a
    /// shard with the same number. It is no violation if one of the two events is an event of the other producer. The
    /// store has no record of a lost number, so it can give the number to the event of another producer. The exception
    /// of [`Self::Duplicated`] applies here too.
    NumberReused,
    /// The producer never finishes, or cannot write the events of a call.
    Stuck,
}

impl ProducerViolation {
    /// Returns the rule that is broken.
    pub const fn rule(self) -> &'static str {
        match self {
            Self::Missing => "a published event is in its shard",
            Self::Duplicated => "a published event is in its shard once",
            Self::OutOfOrder => "published events have the order of the file",
            Self::NumberReused => "two events never get the same number",
            Self::Stuck => "the producer finishes",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct NumberedEvent {
    event: u8,
    number: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Checkpoint {
    /// The next event to publish: all earlier events of the file are in their shards.
    next: u8,
    /// The number of the run that wrote the checkpoint.
    run: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Shard {
    events: Vec<NumberedEvent>,
    checkpoint: Checkpoint,
    /// The highest number in the record of the stream that reads the events from the broker; 0 without such a stream.
    read: u64,
}

impl Shard {
    /// 0 if the shard has no event.
    fn last(&self) -> u64 {
        self.events.last().map_or(0, |last| last.number)
    }

    /// Returns whether the shard refuses to number an event: the shard does not have the event, but the reader has
    /// higher numbers than the shard has given.
    fn refuses(&self, event: u8) -> bool {
        self.read > self.last() && !self.has_event(event)
    }

    fn has_event(&self, event: u8) -> bool {
        self.events.iter().any(|other| other.event == event)
    }

    /// Adds an event, unless the shard already has the event. With `forgets`, adds the event in any case. A new event
    /// gets the number after the highest number in the shard, or after `at_least` if `at_least` is higher. Returns the
    /// event with its number, and true if the shard already had the event.
    fn put(&mut self, event: u8, forgets: bool, at_least: u64) -> (NumberedEvent, bool) {
        let known = self.events.iter().find(|other| other.event == event && !forgets).copied();
        let number = self.last().max(at_least) + 1;
        let numbered = known.unwrap_or(NumberedEvent { event, number });
        if known.is_none() {
            self.events.push(numbered);
        }
        (numbered, known.is_some())
    }

    /// Returns true if the shard has the witness, or if `witness` is `None`.
    fn has(&self, witness: Option<&NumberedEvent>) -> bool {
        witness.is_none_or(|witness| self.events.contains(witness))
    }
}

/// `is_new` is true if the producer knows that this call added the event to the shard. Only a new event can be a
/// witness (an event whose absence shows that the shard went back): the store may soon forget the id of an event that
/// it had before the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct WrittenEvent {
    numbered: NumberedEvent,
    is_new: bool,
}

type Call = Vec<WrittenEvent>;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    fault: Option<ProducerFault>,
    file: u8,
    /// A program with the library has no file and no checkpoints.
    is_library: bool,
    /// For each shard and each number, the events that the broker has received, in the order of their arrival. Shards
    /// that go back do not change the broker. `None` if no stream reads the events from a broker.
    sent: Option<Vec<BTreeMap<u64, Vec<u8>>>>,
    /// True if the producer has ended with an error, because the store cannot give a lost event its earlier number.
    is_stopped: bool,
    shards: Vec<Shard>,
    /// The first of these states is the first state of the run.
    past: Vec<Vec<Shard>>,
    /// The next event to publish.
    next: u8,
    /// This run or an earlier run has published these events of the file.
    published: u8,
    history: ProducerHistory<Call, NumberedEvent>,
    /// For each shard, the checkpoint that the producer last wrote or read.
    checkpoints: Vec<Checkpoint>,
    /// Increases whenever a run reads the checkpoints.
    run: u64,
    /// The numbers of the new events of the calls in the producer's memory.
    answered: BTreeMap<u8, u64>,
    /// The producer has forgotten the calls of these events, or an earlier run wrote them.
    forgotten: BTreeSet<u8>,
    other_events: u8,
    /// The time in ms since the beginning of the run.
    now: u64,
    rollbacks: u64,
    disconnects: u64,
    restarts: u64,
    calls_forgotten: u64,
    broken: Option<ProducerViolation>,
}

/// The state of a run at one moment, and the counts of rare events up to this moment.
#[derive(Debug, Clone)]
pub struct ProducerWorld {
    state: State,
    counts: ProducerCounts,
    /// The violation that the final check would find if the run now finished all work without further losses. The first
    /// use computes this value.
    end_check: OnceLock<Option<ProducerViolation>>,
}

impl PartialEq for ProducerWorld {
    fn eq(&self, other: &Self) -> bool {
        self.state == other.state
    }
}

impl Hash for ProducerWorld {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.state.hash(hasher);
    }
}

fn new_history(disconnects: u64, now: u64) -> ProducerHistory<Call, NumberedEvent> {
    ProducerHistory::new(usize::MAX, CALL_MAX_AGE_MS, disconnects, now)
}

fn shard_of(event: u8) -> u8 {
    event % SHARDS
}

/// Returns the newest event that a call added to each shard.
fn newest(call: &[WrittenEvent]) -> BTreeMap<u32, NumberedEvent> {
    let new = call.iter().filter(|written| written.is_new).map(|written| written.numbered);
    new.map(|numbered| (u32::from(shard_of(numbered.event)), numbered)).collect()
}

impl ProducerWorld {
    /// The producer publishes `file` events. A program with the library has no file: it receives each event only once,
    /// and has no checkpoints. If `has_reader` is true, the producer also sends each event to a broker, and a stream
    /// reads the events from the broker.
    pub fn new(file: u8, is_library: bool, has_reader: bool, fault: Option<ProducerFault>) -> Self {
        let shards = vec![Shard::default(); usize::from(SHARDS)];
        let state = State {
            fault,
            file,
            is_library,
            sent: has_reader.then(|| vec![BTreeMap::new(); usize::from(SHARDS)]),
            is_stopped: false,
            past: vec![shards.clone()],
            shards,
            next: 0,
            published: 0,
            history: new_history(0, 0),
            checkpoints: vec![Checkpoint::default(); usize::from(SHARDS)],
            run: 0,
            answered: BTreeMap::new(),
            forgotten: BTreeSet::new(),
            other_events: 0,
            now: 0,
            rollbacks: 0,
            disconnects: 0,
            restarts: 0,
            calls_forgotten: 0,
            broken: None,
        };
        Self { state, counts: ProducerCounts::default(), end_check: OnceLock::new() }
    }

    /// Performs a step.
    pub fn step(&mut self, step: ProducerStep) {
        self.end_check = OnceLock::new();
        match step {
            ProducerStep::Publish(count) => self.publish(count),
            ProducerStep::PublishUnanswered => self.publish_unanswered(),
            ProducerStep::Checkpoint => self.put_checkpoint(),
            ProducerStep::Check => self.check(),
            ProducerStep::Forget => self.forget(),
            ProducerStep::Wait(ms) => self.state.now += ms,
            ProducerStep::Other(shard) => self.put_other(shard),
            ProducerStep::Read(shard) => self.read(shard),
            ProducerStep::Remember => self.remember(),
            ProducerStep::GoBack(shard, to, disconnects) => self.go_back(shard, to, disconnects),
            ProducerStep::Restart => self.restart(),
        }
        if self.state.broken.is_none() && !self.numbers_are_unique() {
            self.record_violation(ProducerViolation::NumberReused);
        }
    }

    /// Returns the rule that a step broke, if any.
    pub fn broken(&self) -> Option<ProducerViolation> {
        self.state.broken
    }

    /// Returns the broken rule, if any, that the final check would find if the run now finished all work without
    /// further losses.
    pub fn broken_at_end(&self) -> Option<ProducerViolation> {
        *self.end_check.get_or_init(|| {
            let mut world = self.clone();
            world.finish_and_check();
            world.broken()
        })
    }

    /// Returns the counts of rare events up to now.
    pub fn counts(&self) -> ProducerCounts {
        let State { rollbacks, restarts, .. } = self.state;
        ProducerCounts { rollbacks, restarts, ..self.counts }
    }

    /// Returns the number of events that the other producer has published.
    pub fn other_events(&self) -> u8 {
        self.state.other_events
    }

    /// Returns how often shards went back.
    pub fn rollbacks(&self) -> u64 {
        self.state.rollbacks
    }

    /// Returns how often the producer started again.
    pub fn restarts(&self) -> u64 {
        self.state.restarts
    }

    /// Returns the number of states that the shards may go back to.
    pub fn past(&self) -> usize {
        self.state.past.len()
    }

    /// Returns the number of calls that the producer has forgotten.
    pub fn forgotten(&self) -> u64 {
        self.state.calls_forgotten
    }

    fn is(&self, fault: ProducerFault) -> bool {
        self.state.fault == Some(fault)
    }

    fn record_violation(&mut self, broken: ProducerViolation) {
        self.state.broken.get_or_insert(broken);
    }

    /// Writes events to each shard that has its witness. Sends the written events to the broker, if there is a broker.
    /// A shard refuses a new event if the reader has higher numbers than the shard. `lost` contains the earlier numbers
    /// of lost events that the producer writes again. The shard accepts a lost event if the reader has this event under
    /// the next number of the shard. If a lost event would get another number than before, the shard refuses it,
    /// because the first copy may be in the broker. Returns the written events with their numbers, and true if the
    /// shard of an event lacks its witness.
    fn write(
        &mut self,
        events: &[u8],
        witnesses: &BTreeMap<u32, NumberedEvent>,
        lost: &BTreeMap<u8, u64>,
    ) -> (Call, bool) {
        let counts_on = self.is(ProducerFault::NumbersFollowReader);
        let forgets = self.is(ProducerFault::NothingIsRemembered);
        let ignores = self.is(ProducerFault::NoWitnessIsNamed);
        let refuses_repeats = self.is(ProducerFault::RepeatsAreRefused);
        let renumbers = self.is(ProducerFault::LostEventsGetOtherNumbers);
        let State { shards, sent, .. } = &mut self.state;
        let has: Vec<bool> = (0..)
            .zip(&*shards)
            .map(|(number, shard)| ignores || shard.has(witnesses.get(&number)))
            .collect();
        let mut call = Call::new();
        let mut went_back = false;
        for event in events {
            let shard = usize::from(shard_of(*event));
            if has[shard] {
                // For each number up to `read`, the reader has the first event with this number that the broker
                // received.
                let next = shards[shard].last() + 1;
                let read = sent.as_ref().and_then(|sent| sent[shard].get(&next)?.first());
                let earlier = lost.get(event).filter(|_| !refuses_repeats);
                let is_same = earlier.is_some() && read == Some(event);
                if !is_same && !counts_on && shards[shard].refuses(*event) {
                    continue;
                }
                let is_renumbered = earlier.is_some_and(|number| *number != next)
                    && !shards[shard].has_event(*event);
                if sent.is_some() && is_renumbered && !renumbers {
                    continue;
                }
                let at_least = if counts_on { shards[shard].read } else { 0 };
                let (numbered, is_known) = shards[shard].put(*event, forgets, at_least);
                self.counts.recognized += u64::from(is_known);
                call.push(WrittenEvent { numbered, is_new: !is_known });
            } else {
                went_back = true;
            }
        }
        for written in &call {
            let NumberedEvent { event, number } = written.numbered;
            let keeps_number = lost.get(&event).is_none_or(|earlier| *earlier == number);
            self.send(shard_of(event), written.numbered, keeps_number);
        }
        (call, went_back)
    }

    /// Does nothing without a broker. `keeps_number` is false if the event has another number in the memory of its
    /// producer.
    fn send(&mut self, shard: u8, numbered: NumberedEvent, keeps_number: bool) {
        let NumberedEvent { event, number } = numbered;
        let State { sent, restarts, .. } = &mut self.state;
        let may_be_renumbered = *restarts > 0 && keeps_number;
        let Some(sent) = sent else { return };
        let sent = &mut sent[usize::from(shard)];
        let has_other_number =
            sent.iter().any(|(other, sent)| *other != number && sent.contains(&event));
        let of_number = sent.entry(number).or_default();
        let is_of_file = |event: &u8| *event < FIRST_OTHER_EVENT;
        let is_reused = is_of_file(&event)
            && of_number.iter().any(|other| *other != event && is_of_file(other));
        if !of_number.contains(&event) {
            of_number.push(event);
        }
        let is_duplicated = has_other_number && is_of_file(&event);
        if may_be_renumbered {
            self.counts.renumbered += u64::from(is_duplicated);
        } else if is_duplicated {
            self.record_violation(ProducerViolation::Duplicated);
        } else if is_reused {
            self.record_violation(ProducerViolation::NumberReused);
        }
    }

    /// Settles the event if the broker has it.
    fn read(&mut self, shard: u8) {
        let State { sent, shards, .. } = &mut self.state;
        let next = shards[usize::from(shard)].read + 1;
        if sent.as_ref().is_some_and(|sent| sent[usize::from(shard)].contains_key(&next)) {
            shards[usize::from(shard)].read = next;
        }
    }

    /// If shards went back, writes lost events again and continues at the oldest checkpoint.
    fn publish(&mut self, count: u8) {
        if self.state.is_stopped {
            return;
        }
        let before = self.counts.refused;
        self.write_lost_calls();
        let end = self.state.file.min(self.state.next + count);
        let mut open: Vec<u8> = (self.state.next..end).collect();
        for attempt in 0.. {
            if open.is_empty() || self.state.is_stopped {
                break;
            }
            if attempt == ATTEMPT_LIMIT {
                return self.record_violation(ProducerViolation::Stuck);
            }
            let witnesses = self.state.history.witnesses(self.state.now);
            let (call, went_back) = self.write(&open, &witnesses, &BTreeMap::new());
            open.retain(|event| call.iter().all(|written| written.numbered.event != *event));
            let State { history, answered, now, .. } = &mut self.state;
            // `answered` gets only the events that this call added to a shard, because only these events can be
            // witnesses.
            let new = call.iter().filter(|written| written.is_new);
            answered.extend(new.map(|written| (written.numbered.event, written.numbered.number)));
            let newest = newest(&call);
            history.add(call, 1, newest, *now);
            if went_back {
                self.rewrite_lost_events();
            } else if !open.is_empty() && self.may_stop() {
                // The reader has executed a lost event of the other producer or of an earlier run. The store refuses
                // new events of the shard until the other producer has written this event again, or until an operator
                // states the loss.
                self.state.is_stopped = true;
                self.counts.stopped += 1;
            }
        }
        self.state.next = self.state.next.max(end);
        self.state.published = self.state.published.max(end);
        if self.counts.refused > before {
            self.reread_file();
        }
    }

    /// Ends the producer before it receives the answer. The next run has no record of this write.
    fn publish_unanswered(&mut self) {
        let State { next, file, history, now, is_stopped, .. } = &self.state;
        if next < file && !is_stopped {
            let witnesses = history.witnesses(*now);
            self.write(&[self.state.next], &witnesses, &BTreeMap::new());
            self.state.published = self.state.published.max(self.state.next + 1);
        }
        self.restart();
    }

    /// Forgets old calls. If a shard may have gone back, checks the witnesses first.
    fn write_lost_calls(&mut self) {
        let State { history, answered, forgotten, disconnects, now, is_stopped, .. } =
            &mut self.state;
        let events = |history: &ProducerHistory<Call, NumberedEvent>| -> BTreeSet<u8> {
            history.calls().flatten().map(|written| written.numbered.event).collect()
        };
        let before = events(history);
        history.forget_old(*now);
        for event in before.difference(&events(history)) {
            answered.remove(event);
            forgotten.insert(*event);
        }
        if !*is_stopped && history.is_in_doubt(*disconnects, *now) {
            if !self.shards_without_witness().is_empty() {
                self.rewrite_lost_events();
            }
            self.state.history.checked(self.state.disconnects, self.state.now);
        }
    }

    fn check(&mut self) {
        let before = self.counts.refused;
        if !self.is(ProducerFault::NothingIsChecked) {
            self.write_lost_calls();
        }
        if self.counts.refused > before {
            self.reread_file();
        }
    }

    /// Returns whether the producer may end with an error, because its memory may lack lost events of the other
    /// producer or of an earlier run.
    fn may_stop(&self) -> bool {
        self.state.other_events > 0 || self.state.restarts > 0
    }

    fn shards_without_witness(&self) -> BTreeSet<u32> {
        let State { history, shards, now, .. } = &self.state;
        let witnesses = history.witnesses(*now);
        let lacks = |number: &u32| !shards[*number as usize].has(witnesses.get(number));
        (0..u32::from(SHARDS)).filter(lacks).collect()
    }

    /// Writes all events in memory of each shard that lacks its witness.
    fn rewrite_lost_events(&mut self) {
        self.counts.refused += 1;
        let shards_without_witness = self.shards_without_witness();
        self.state.history.went_back(shards_without_witness);
        while let Some((lost, shards_without_witness)) = self.state.history.next_lost() {
            let mut call = lost.clone();
            let is_lost = |event: u8| shards_without_witness.contains(&u32::from(shard_of(event)));
            let events = call.iter().map(|written| written.numbered.event);
            let events: Vec<u8> = events.filter(|event| is_lost(*event)).collect();
            let numbers = call.iter().map(|written| written.numbered);
            let numbers = numbers.map(|numbered| (numbered.event, numbered.number)).collect();
            if !self.is(ProducerFault::NothingIsWrittenAgain) {
                let (rewritten_call, _) = self.write(&events, &BTreeMap::new(), &numbers);
                if rewritten_call.len() < events.len() {
                    // The publisher reports the refused event, and publishes nothing more. If no other producer takes
                    // numbers, and this run has published all events, the store must be able to give each lost event
                    // its earlier number.
                    if !self.may_stop() {
                        self.record_violation(ProducerViolation::Stuck);
                    }
                    self.state.is_stopped = true;
                    self.counts.stopped += 1;
                    return;
                }
                for rewritten in rewritten_call {
                    self.counts.rewritten += u64::from(rewritten.is_new);
                    let of_event = call
                        .iter_mut()
                        .find(|written| written.numbered.event == rewritten.numbered.event);
                    if let Some(written) = of_event {
                        self.counts.changed += u64::from(written.numbered != rewritten.numbered);
                        written.is_new |= rewritten.is_new;
                        written.numbered = rewritten.numbered;
                    }
                    if let Some(number) = self.state.answered.get_mut(&rewritten.numbered.event) {
                        *number = rewritten.numbered.number;
                    }
                }
            }
            let newest = newest(&call);
            self.state.history.written_again(call, newest, None);
        }
        self.state.history.restored();
    }

    /// Continues at the oldest checkpoint, because shards went back. A producer without a file does nothing.
    fn reread_file(&mut self) {
        if !self.is(ProducerFault::FileIsNotReadAgain) && !self.state.is_library {
            self.counts.reread += 1;
            self.resume();
        }
    }

    /// Continues at the oldest checkpoint, and writes a new run number into the checkpoint of each shard.
    fn resume(&mut self) {
        let counts_newest = self.is(ProducerFault::NewestCheckpointCounts);
        let marks_run = !self.is(ProducerFault::RunNumberIsNotWritten);
        let State { shards, checkpoints, next, run, .. } = &mut self.state;
        let positions: Vec<u8> = shards.iter().map(|shard| shard.checkpoint.next).collect();
        let position = if counts_newest { positions.iter().max() } else { positions.iter().min() };
        *next = position.copied().unwrap_or_default();
        *run += u64::from(marks_run);
        for shard in shards.iter_mut() {
            shard.checkpoint.run = *run;
        }
        *checkpoints = shards.iter().map(|shard| shard.checkpoint).collect();
    }

    /// If a shard lacks its witness or the producer's previous checkpoint, writes lost events again and continues at
    /// the oldest checkpoint.
    fn put_checkpoint(&mut self) {
        if self.state.is_library || self.state.is_stopped {
            return;
        }
        let is_unnamed = self.is(ProducerFault::CheckpointNamesNoWitness);
        let is_blind = self.is(ProducerFault::CheckpointComparesNothing);
        let State { shards, history, checkpoints, next, run, now, .. } = &mut self.state;
        let witnesses = history.witnesses(*now);
        let mut went_back = false;
        for (number, shard) in (0..).zip(&mut *shards) {
            let known = &mut checkpoints[number as usize];
            let has_witness = is_unnamed || shard.has(witnesses.get(&number));
            if has_witness && (is_blind || shard.checkpoint == *known) {
                shard.checkpoint = Checkpoint { next: *next, run: *run };
                *known = shard.checkpoint;
            } else {
                went_back = true;
            }
        }
        if went_back {
            self.rewrite_lost_events();
            self.reread_file();
        }
    }

    fn forget(&mut self) {
        let State {
            history, answered, forgotten, calls_forgotten, fault, disconnects, now, ..
        } = &mut self.state;
        *calls_forgotten += 1;
        if *fault == Some(ProducerFault::NewestIsForgotten) {
            let mut calls: Vec<Call> = history.calls().cloned().collect();
            calls.pop();
            *history = new_history(*disconnects, *now);
            for call in calls {
                let newest = newest(&call);
                history.add(call, 1, newest, *now);
            }
            return;
        }
        if let Some(call) = history.calls().next() {
            for WrittenEvent { numbered, .. } in call {
                answered.remove(&numbered.event);
                forgotten.insert(numbered.event);
            }
        }
        history.drop_oldest(*now);
    }

    fn put_other(&mut self, shard: u8) {
        let event = FIRST_OTHER_EVENT + self.state.other_events;
        self.state.other_events += 1;
        let of_shard = &mut self.state.shards[usize::from(shard)];
        if !of_shard.refuses(event) {
            let (numbered, _) = of_shard.put(event, false, 0);
            self.send(shard, numbered, true);
        }
    }

    fn remember(&mut self) {
        if self.state.past.last() != Some(&self.state.shards) {
            self.state.past.push(self.state.shards.clone());
        }
    }

    fn go_back(&mut self, only: Option<u8>, to: usize, disconnects_producer: bool) {
        let State { shards, past, rollbacks, disconnects, .. } = &mut self.state;
        *disconnects += u64::from(disconnects_producer);
        let old = past[to].clone();
        for (number, old) in (0..).zip(old) {
            if only.is_none_or(|only| only == number) {
                let at = usize::from(number);
                // A shard that went back cannot return to a later state, so the later remembered states get the shard's
                // old state, too.
                past[to..].iter_mut().for_each(|state| state[at].clone_from(&old));
                shards[at] = old;
            }
        }
        past.dedup();
        *rollbacks += 1;
    }

    /// The new run starts at the oldest checkpoint.
    fn restart(&mut self) {
        self.state.restarts += 1;
        self.state.is_stopped = false;
        self.state.history = new_history(self.state.disconnects, self.state.now);
        self.resume();
        self.state.answered.clear();
        self.state.forgotten.extend(0..self.state.published);
    }

    /// Returns whether each shard gave different numbers to all of its events that are in the producer's memory.
    fn numbers_are_unique(&self) -> bool {
        let mut numbers = BTreeSet::new();
        let mut answered = self.state.answered.iter();
        answered.all(|(event, number)| numbers.insert((shard_of(*event), *number)))
    }

    /// Publishes the rest of the file, checks for losses as a producer does when it closes, and checks the result.
    pub fn finish_and_check(&mut self) {
        // If a check finds a loss, the producer of a file continues at a checkpoint. The next round then publishes the
        // events after this checkpoint again.
        for _ in 0..4 {
            for calls in 0.. {
                let State { next, file, broken, is_stopped, .. } = &self.state;
                if next >= file || broken.is_some() || *is_stopped {
                    break;
                }
                self.publish(self.state.file);
                self.put_checkpoint();
                if calls > 10 {
                    return self.record_violation(ProducerViolation::Stuck);
                }
            }
            self.state.now += BEYOND_CHECK_INTERVAL_MS;
            self.check();
            self.put_checkpoint();
        }
        if !self.state.is_stopped {
            self.check_result();
        }
    }

    fn check_result(&mut self) {
        let State { shards, file, is_library, next, forgotten, .. } = &self.state;
        let may_lack = |event: u8| *is_library && forgotten.contains(&event);
        let count = |event: u8| {
            let events = &shards[usize::from(shard_of(event))].events;
            events.iter().filter(|numbered| numbered.event == event).count()
        };
        let in_order = shards.iter().all(|shard| {
            let events = shard.events.iter().map(|numbered| numbered.event);
            events
                .filter(|event| *event < FIRST_OTHER_EVENT && !forgotten.contains(event))
                .is_sorted()
        });
        let broken = if *next < *file {
            Some(ProducerViolation::Stuck)
        } else if (0..*file).any(|event| count(event) == 0 && !may_lack(event)) {
            Some(ProducerViolation::Missing)
        } else if (0..*file).any(|event| count(event) > 1) {
            Some(ProducerViolation::Duplicated)
        } else if !in_order {
            Some(ProducerViolation::OutOfOrder)
        } else if !self.numbers_are_unique() {
            Some(ProducerViolation::NumberReused)
        } else {
            None
        };
        if let Some(broken) = broken {
            self.record_violation(broken);
        }
    }
}
