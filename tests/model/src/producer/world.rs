//! The shards, the producer and its file, and another producer.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::OnceLock;

use ordain_core::ProducerHistory;

use super::{ProducerFault, ProducerStep, SHARDS};

/// A time in ms that is longer than the interval at which a producer checks its witnesses.
const CHECK_AFTER: u64 = 10_000;
/// The time in ms after which the producer forgets a call.
const MAX_AGE: u64 = 120_000;
/// The number of the other producer's first event.
const OTHERS: u8 = 100;
/// Number of attempts to write the events of one call. After them, the producer counts as stuck.
const ATTEMPTS: usize = 5;

/// The counts of rare events in a run. Two states that differ only in these counts are equal.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProducerSeen {
    /// Number of times that shards went back.
    pub rewinds: u64,
    /// Calls and checkpoints that a shard refused because it had gone back.
    pub refused: u64,
    /// Lost events that the producer wrote again.
    pub again: u64,
    /// Events that the store recognised as repeats.
    pub known: u64,
    /// Events that got another number when the producer wrote them again.
    pub changed: u64,
    /// Number of times that the producer started again.
    pub restarts: u64,
    /// Number of times that the producer read the file again from its oldest checkpoint.
    pub reread: u64,
}

/// A rule that a run breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProducerBroken {
    /// A shard lacks an event of the file.
    Missing,
    /// A shard has an event of the file twice, under two numbers.
    Twice,
    /// The events of a shard are not in the order of the file.
    OutOfOrder,
    /// A shard answered the same number for two events.
    OneNumberTwice,
    /// The producer never finishes.
    Stuck,
}

impl ProducerBroken {
    /// Returns the rule that is broken.
    pub const fn rule(self) -> &'static str {
        match self {
            Self::Missing => "a published event is in its shard",
            Self::Twice => "a published event is in its shard once",
            Self::OutOfOrder => "published events have the order of the file",
            Self::OneNumberTwice => "a number is answered for one event",
            Self::Stuck => "the producer finishes",
        }
    }
}

/// An event with its number in the shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Numbered {
    event: u8,
    number: u64,
}

/// A checkpoint in a shard.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Checkpoint {
    /// All events of the file before this one are in their shards.
    next: u8,
    /// The number of the run that wrote the checkpoint.
    run: u64,
}

/// A shard: its events, and the producer's checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Shard {
    events: Vec<Numbered>,
    checkpoint: Checkpoint,
}

impl Shard {
    /// Adds an event, unless the shard already has an event with its id. Returns the number of the event, and whether
    /// the shard already had it.
    fn put(&mut self, event: u8, forgets: bool) -> (Numbered, bool) {
        let known = self.events.iter().find(|other| other.event == event && !forgets).copied();
        let number = self.events.len() as u64 + 1;
        let numbered = known.unwrap_or(Numbered { event, number });
        if known.is_none() {
            self.events.push(numbered);
        }
        (numbered, known.is_some())
    }

    fn has(&self, witness: Option<&Numbered>) -> bool {
        witness.is_none_or(|witness| self.events.contains(witness))
    }
}

/// An event of a call. `is_new` is true if the producer knows that this call added the event to the shard. Only a new
/// event can be a witness (an event whose absence shows that the shard went back in time). An event that the store had
/// before the call cannot be a witness, because the store may soon forget its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Written {
    numbered: Numbered,
    is_new: bool,
}

/// The events that one call wrote.
type Call = Vec<Written>;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    fault: Option<ProducerFault>,
    /// Number of events in the file.
    file: u8,
    is_library: bool,
    shards: Vec<Shard>,
    past: Vec<Vec<Shard>>,
    /// The next event to publish.
    next: u8,
    /// Number of events of the file that this run or an earlier run has published.
    published: u8,
    history: ProducerHistory<Call, Numbered>,
    /// The checkpoint that the producer last wrote to, or read from, each shard.
    checkpoints: Vec<Checkpoint>,
    /// The number of this run. A run gets the next number whenever it reads the checkpoints.
    run: u64,
    /// For the new events of calls in the producer's memory, the numbers that the shards answered.
    answered: BTreeMap<u8, u64>,
    /// Published events that are not in the producer's memory, because it has forgotten their calls, or because an
    /// earlier run wrote them.
    forgotten: BTreeSet<u8>,
    others: u8,
    now: u64,
    rewinds: u64,
    /// Number of broken connections.
    breaks: u64,
    restarts: u64,
    calls_forgotten: u64,
    broken: Option<ProducerBroken>,
}

/// A moment of a run.
#[derive(Debug, Clone)]
pub struct ProducerWorld {
    state: State,
    seen: ProducerSeen,
    /// The rule that breaks if, from this moment on, the run finishes all work without further losses. The value is
    /// computed at its first use.
    at_rest: OnceLock<Option<ProducerBroken>>,
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

fn new_history(breaks: u64, now: u64) -> ProducerHistory<Call, Numbered> {
    ProducerHistory::new(usize::MAX, MAX_AGE, breaks, now)
}

fn shard_of(event: u8) -> u8 {
    event % SHARDS
}

/// Returns the newest event that a call wrote to each shard.
fn newest(call: &[Written]) -> BTreeMap<u32, Numbered> {
    let new = call.iter().filter(|written| written.is_new).map(|written| written.numbered);
    new.map(|numbered| (u32::from(shard_of(numbered.event)), numbered)).collect()
}

impl ProducerWorld {
    /// Returns the first state of a run. The producer publishes a file with this number of events. A producer that is a
    /// library has no file: it receives each event only once, and has no checkpoints.
    pub fn new(file: u8, is_library: bool, fault: Option<ProducerFault>) -> Self {
        let shards = vec![Shard::default(); usize::from(SHARDS)];
        let state = State {
            fault,
            file,
            is_library,
            past: vec![shards.clone()],
            shards,
            next: 0,
            published: 0,
            history: new_history(0, 0),
            checkpoints: vec![Checkpoint::default(); usize::from(SHARDS)],
            run: 0,
            answered: BTreeMap::new(),
            forgotten: BTreeSet::new(),
            others: 0,
            now: 0,
            rewinds: 0,
            breaks: 0,
            restarts: 0,
            calls_forgotten: 0,
            broken: None,
        };
        Self { state, seen: ProducerSeen::default(), at_rest: OnceLock::new() }
    }

    /// Performs a step.
    pub fn step(&mut self, step: ProducerStep) {
        self.at_rest = OnceLock::new();
        match step {
            ProducerStep::Publish(count) => self.publish(count),
            ProducerStep::PublishUnanswered => self.publish_unanswered(),
            ProducerStep::Checkpoint => self.put_checkpoint(),
            ProducerStep::Check => self.check(),
            ProducerStep::Forget => self.forget(),
            ProducerStep::Wait(ms) => self.state.now += ms,
            ProducerStep::Other(shard) => self.put_other(shard),
            ProducerStep::Remember => self.remember(),
            ProducerStep::GoBack(shard, to, breaks) => self.go_back(shard, to, breaks),
            ProducerStep::Restart => self.restart(),
        }
        if self.state.broken.is_none() && !self.numbers_are_unique() {
            self.breaks(ProducerBroken::OneNumberTwice);
        }
    }

    /// Returns the rule that a step broke, if any.
    pub fn broken(&self) -> Option<ProducerBroken> {
        self.state.broken
    }

    /// Returns the rule that breaks if, from this moment on, the run finishes all work without further losses; `None`
    /// if no rule breaks.
    pub fn broken_at_rest(&self) -> Option<ProducerBroken> {
        *self.at_rest.get_or_init(|| {
            let mut world = self.clone();
            world.come_to_rest();
            world.broken()
        })
    }

    /// Returns the counts of rare events up to now.
    pub fn seen(&self) -> ProducerSeen {
        let State { rewinds, restarts, .. } = self.state;
        ProducerSeen { rewinds, restarts, ..self.seen }
    }

    /// Returns the number of events that the other producer has published.
    pub fn others(&self) -> u8 {
        self.state.others
    }

    /// Returns how often shards went back.
    pub fn rewinds(&self) -> u64 {
        self.state.rewinds
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

    fn breaks(&mut self, broken: ProducerBroken) {
        self.state.broken.get_or_insert(broken);
    }

    /// Writes events to the shards that have their witness. Returns the written events with their numbers, and true if
    /// a shard lacks its witness.
    fn write(&mut self, events: &[u8], witnesses: &BTreeMap<u32, Numbered>) -> (Call, bool) {
        let forgets = self.is(ProducerFault::NothingIsKnown);
        let ignores = self.is(ProducerFault::NoWitnessIsNamed);
        let shards = &mut self.state.shards;
        let has: Vec<bool> = (0..)
            .zip(&*shards)
            .map(|(number, shard)| ignores || shard.has(witnesses.get(&number)))
            .collect();
        let mut call = Call::new();
        let mut went_back = false;
        for event in events {
            let shard = usize::from(shard_of(*event));
            if has[shard] {
                let (numbered, is_known) = shards[shard].put(*event, forgets);
                self.seen.known += u64::from(is_known);
                call.push(Written { numbered, is_new: !is_known });
            } else {
                went_back = true;
            }
        }
        (call, went_back)
    }

    /// Publishes the next events of the file.
    fn publish(&mut self, count: u8) {
        let before = self.seen.refused;
        self.write_lost_calls();
        let end = self.state.file.min(self.state.next + count);
        let mut open: Vec<u8> = (self.state.next..end).collect();
        for attempt in 0.. {
            if open.is_empty() {
                break;
            }
            if attempt == ATTEMPTS {
                return self.breaks(ProducerBroken::Stuck);
            }
            let witnesses = self.state.history.witnesses(self.state.now);
            let (call, went_back) = self.write(&open, &witnesses);
            open.retain(|event| call.iter().all(|written| written.numbered.event != *event));
            let State { history, answered, now, .. } = &mut self.state;
            // `answered` gets only the events that this call added to a shard, because only these can be witnesses.
            let new = call.iter().filter(|written| written.is_new);
            answered.extend(new.map(|written| (written.numbered.event, written.numbered.number)));
            let newest = newest(&call);
            history.add(call, 1, newest, *now);
            if went_back {
                self.write_again();
            }
        }
        self.state.next = self.state.next.max(end);
        self.state.published = self.state.published.max(end);
        if self.seen.refused > before {
            self.read_again();
        }
    }

    /// Writes the next event, and ends the producer. The next run has no record of this write.
    fn publish_unanswered(&mut self) {
        let State { next, file, history, now, .. } = &self.state;
        if next < file {
            let witnesses = history.witnesses(*now);
            self.write(&[self.state.next], &witnesses);
            self.state.published = self.state.published.max(self.state.next + 1);
        }
        self.restart();
    }

    /// Forgets old calls. If a shard may have gone back, checks that the shards have their witnesses, and writes the
    /// events of lost calls again.
    fn write_lost_calls(&mut self) {
        let State { history, answered, forgotten, breaks, now, .. } = &mut self.state;
        let events = |history: &ProducerHistory<Call, Numbered>| -> BTreeSet<u8> {
            history.calls().flatten().map(|written| written.numbered.event).collect()
        };
        let before = events(history);
        history.forget_old(*now);
        for event in before.difference(&events(history)) {
            answered.remove(event);
            forgotten.insert(*event);
        }
        if history.is_in_doubt(*breaks, *now) {
            if !self.lacking().is_empty() {
                self.write_again();
            }
            self.state.history.checked(self.state.breaks, self.state.now);
        }
    }

    fn check(&mut self) {
        let before = self.seen.refused;
        if !self.is(ProducerFault::NothingIsChecked) {
            self.write_lost_calls();
        }
        if self.seen.refused > before {
            self.read_again();
        }
    }

    /// Returns the shards that lack their witness.
    fn lacking(&self) -> BTreeSet<u32> {
        let State { history, shards, now, .. } = &self.state;
        let witnesses = history.witnesses(*now);
        let lacks = |number: &u32| !shards[*number as usize].has(witnesses.get(number));
        (0..u32::from(SHARDS)).filter(lacks).collect()
    }

    /// For each shard that lacks its witness, writes the shard's events of all calls in memory again.
    fn write_again(&mut self) {
        self.seen.refused += 1;
        let lacking = self.lacking();
        self.state.history.went_back(lacking);
        while let Some((lost, lacking)) = self.state.history.next_lost() {
            let mut call = lost.clone();
            let is_lost = |event: u8| lacking.contains(&u32::from(shard_of(event)));
            let events = call.iter().map(|written| written.numbered.event);
            let events: Vec<u8> = events.filter(|event| is_lost(*event)).collect();
            if !self.is(ProducerFault::NothingIsWrittenAgain) {
                let (again, _) = self.write(&events, &BTreeMap::new());
                for now in again {
                    self.seen.again += u64::from(now.is_new);
                    let of_event = call
                        .iter_mut()
                        .find(|written| written.numbered.event == now.numbered.event);
                    if let Some(written) = of_event {
                        self.seen.changed += u64::from(written.numbered != now.numbered);
                        written.is_new |= now.is_new;
                        written.numbered = now.numbered;
                    }
                    if let Some(number) = self.state.answered.get_mut(&now.numbered.event) {
                        *number = now.numbered.number;
                    }
                }
            }
            let newest = newest(&call);
            self.state.history.written_again(call, newest, None);
        }
        self.state.history.restored();
    }

    /// Continues at the oldest checkpoint, because shards went back.
    fn read_again(&mut self) {
        if !self.is(ProducerFault::FileIsNotReadAgain) && !self.state.is_library {
            self.seen.reread += 1;
            self.resume();
        }
    }

    /// Continues at the oldest checkpoint, and writes a new run number into all checkpoints.
    fn resume(&mut self) {
        let counts_newest = self.is(ProducerFault::NewestCheckpointCounts);
        let marks_run = !self.is(ProducerFault::RunIsNotMarked);
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

    /// Writes the checkpoint into each shard that has its witness and the producer's previous checkpoint.
    fn put_checkpoint(&mut self) {
        if self.state.is_library {
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
            self.write_again();
            self.read_again();
        }
    }

    fn forget(&mut self) {
        let State { history, answered, forgotten, calls_forgotten, fault, breaks, now, .. } =
            &mut self.state;
        *calls_forgotten += 1;
        if *fault == Some(ProducerFault::NewestIsForgotten) {
            let mut calls: Vec<Call> = history.calls().cloned().collect();
            calls.pop();
            *history = new_history(*breaks, *now);
            for call in calls {
                let newest = newest(&call);
                history.add(call, 1, newest, *now);
            }
            return;
        }
        if let Some(call) = history.calls().next() {
            for Written { numbered, .. } in call {
                answered.remove(&numbered.event);
                forgotten.insert(numbered.event);
            }
        }
        history.drop_oldest(*now);
    }

    fn put_other(&mut self, shard: u8) {
        let event = OTHERS + self.state.others;
        self.state.others += 1;
        self.state.shards[usize::from(shard)].put(event, false);
    }

    fn remember(&mut self) {
        if self.state.past.last() != Some(&self.state.shards) {
            self.state.past.push(self.state.shards.clone());
        }
    }

    fn go_back(&mut self, only: Option<u8>, to: usize, breaks_connection: bool) {
        let State { shards, past, rewinds, breaks, .. } = &mut self.state;
        *breaks += u64::from(breaks_connection);
        let old = past[to].clone();
        for (number, old) in (0..).zip(old) {
            if only.is_none_or(|only| only == number) {
                let at = usize::from(number);
                // A shard that went back never goes forward again, so the later remembered states change, too.
                past[to..].iter_mut().for_each(|state| state[at].clone_from(&old));
                shards[at] = old;
            }
        }
        past.dedup();
        *rewinds += 1;
    }

    /// Ends the producer, and starts it again at the oldest checkpoint.
    fn restart(&mut self) {
        self.state.restarts += 1;
        self.state.history = new_history(self.state.breaks, self.state.now);
        self.resume();
        self.state.answered.clear();
        self.state.forgotten.extend(0..self.state.published);
    }

    fn numbers_are_unique(&self) -> bool {
        let mut numbers = BTreeSet::new();
        let mut answered = self.state.answered.iter();
        answered.all(|(event, number)| numbers.insert((shard_of(*event), *number)))
    }

    /// Publishes the rest of the file, closes the producer, and checks the result.
    pub fn come_to_rest(&mut self) {
        // The last round finds nothing to do, unless the previous round found a loss.
        for _ in 0..4 {
            for calls in 0.. {
                if self.state.next >= self.state.file || self.state.broken.is_some() {
                    break;
                }
                self.publish(self.state.file);
                self.put_checkpoint();
                if calls > 10 {
                    return self.breaks(ProducerBroken::Stuck);
                }
            }
            self.state.now += CHECK_AFTER;
            self.check();
            self.put_checkpoint();
        }
        self.check_result();
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
            events.filter(|event| *event < OTHERS && !forgotten.contains(event)).is_sorted()
        });
        let broken = if *next < *file {
            Some(ProducerBroken::Stuck)
        } else if (0..*file).any(|event| count(event) == 0 && !may_lack(event)) {
            Some(ProducerBroken::Missing)
        } else if (0..*file).any(|event| count(event) > 1) {
            Some(ProducerBroken::Twice)
        } else if !in_order {
            Some(ProducerBroken::OutOfOrder)
        } else if !self.numbers_are_unique() {
            Some(ProducerBroken::OneNumberTwice)
        } else {
            None
        };
        if let Some(broken) = broken {
            self.breaks(broken);
        }
    }
}
