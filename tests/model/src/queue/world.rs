//! The store, the reader and the owner.

use std::collections::{BTreeSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::OnceLock;

use ordain_core::{QueueCursor, QueuePosition, QueueRun};

use super::{QueueFault, QueueStep};

/// A rule that a run breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QueueBroken {
    /// The reader delivered an entry that was under way already.
    DeliveredTwice,
    /// An entry was removed before its effect was durable.
    RemovedTooEarly,
    /// An entry of the store never took effect.
    NoEffect,
    /// A settled entry stays in the queue.
    NotRemoved,
    /// The reader counted more or fewer lost entries than the store lost.
    WrongCount,
    /// The reader never finishes reading.
    Stuck,
    /// A call over two shards was answered although the store lacked an unread part of it.
    AnsweredLost,
}

impl QueueBroken {
    /// Returns the rule that is broken.
    pub const fn rule(self) -> &'static str {
        match self {
            Self::DeliveredTwice => "an entry is under way once",
            Self::RemovedTooEarly => "an entry is removed after its effect is durable",
            Self::NoEffect => "each entry of the store takes effect",
            Self::NotRemoved => "settled entries are removed",
            Self::WrongCount => "entries that are lost unread are counted",
            Self::Stuck => "the reader finishes",
            Self::AnsweredLost => "the store has all unread parts of an answered call",
        }
    }
}

/// The counts of rare events in a run. They show that runs reach all of these events. Two states that differ only in
/// these counts are the same state.
#[derive(Debug, Clone, Copy, Default)]
pub struct QueueSeen {
    /// Times that the store went back.
    pub rewinds: u64,
    /// Reads or removals that the store refused.
    pub refused: u64,
    /// Entries that the store lost before the reader read them, and that the reader counted.
    pub lost: u64,
    /// Entries that the reader read again and did not deliver again.
    pub known: u64,
    /// Times that the process ended and another process began.
    pub restarts: u64,
    /// Entries that a call over two shards wrote again.
    pub again: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Entry {
    id: u64,
    history: u64,
}

/// The content of the store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Store {
    /// All entries that were ever put; the first has number 1.
    entries: Vec<Entry>,
    /// Number of removed entries.
    removed: u64,
    commits: u64,
    effects: BTreeSet<u64>,
    /// The parts of calls in the other shard, by the calls' numbers. These parts are never read or removed.
    others: BTreeSet<u64>,
}

impl Store {
    fn last(&self) -> u64 {
        self.entries.len() as u64
    }

    /// Returns whether the position is in the history of the queue. The store remembers only the last of the
    /// removed entries; it accepts every position before that entry.
    fn has(&self, place: QueuePosition) -> bool {
        let QueuePosition { number, history } = place;
        number == 0
            || number < self.removed
            || number <= self.last() && self.entries[number as usize - 1].history == history
    }
}

/// A call over two shards that is not answered yet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct SharedCall {
    /// The entry that the call put into the queue; `None` before the write, and after a check that did not find it.
    run: Option<QueueRun>,
    /// The ids of all entries that the call put into the queue. Each write of the same event has an id of its own here,
    /// although the sequencer would recognise the event.
    ids: Vec<u64>,
    /// True if the call wrote its part in the other shard, and no later check found it missing.
    has_other: bool,
    /// True if a shard went back during the call, since its last check.
    is_in_doubt: bool,
}

/// A moment of a run.
#[derive(Debug, Clone)]
pub struct QueueWorld {
    state: State,
    seen: QueueSeen,
    /// The rule that breaks if the world comes to rest (finishes all work without further losses) from this moment on;
    /// unset until the run has computed it.
    at_rest: OnceLock<Option<QueueBroken>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    fault: Option<QueueFault>,
    store: Store,
    /// States that the store may go back to, the beginning first.
    past: Vec<Store>,
    cursor: QueueCursor,
    /// Entries that are delivered and not settled.
    open: VecDeque<(QueuePosition, u64)>,
    /// Entries that are settled and not finished: a driver acknowledges a little later.
    settled: VecDeque<(QueuePosition, u64)>,
    /// The commits and effects that the owner knows.
    commits: u64,
    effects: BTreeSet<u64>,
    /// Entries that the present process has delivered and not yet finished.
    under_way: BTreeSet<u64>,
    /// All entries that were ever delivered.
    ever: BTreeSet<u64>,
    /// Runs of entries that this process put and has not reported to its reader.
    untold: VecDeque<QueueRun>,
    /// Entries that this process put. The reader must count them if they are lost unread.
    own: BTreeSet<u64>,
    /// The call over two shards that is in progress.
    shared: Option<SharedCall>,
    /// Number of calls over two shards that have begun.
    shared_calls: u64,
    calls: u64,
    lost: u64,
    rewinds: u64,
    restarts: u64,
    broken: Option<QueueBroken>,
}

impl PartialEq for QueueWorld {
    fn eq(&self, other: &Self) -> bool {
        self.state == other.state
    }
}

impl Hash for QueueWorld {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.state.hash(hasher);
    }
}

impl QueueWorld {
    /// Returns the beginning of a run.
    pub fn new(fault: Option<QueueFault>) -> Self {
        let state = State {
            fault,
            store: Store::default(),
            past: vec![Store::default()],
            cursor: QueueCursor::default(),
            open: VecDeque::new(),
            settled: VecDeque::new(),
            commits: 0,
            effects: BTreeSet::new(),
            under_way: BTreeSet::new(),
            ever: BTreeSet::new(),
            untold: VecDeque::new(),
            own: BTreeSet::new(),
            shared: None,
            shared_calls: 0,
            calls: 0,
            lost: 0,
            rewinds: 0,
            restarts: 0,
            broken: None,
        };
        Self { state, seen: QueueSeen::default(), at_rest: OnceLock::new() }
    }

    /// Performs a step.
    pub fn step(&mut self, step: QueueStep) {
        self.at_rest = OnceLock::new();
        match step {
            QueueStep::Put(count, is_own) => self.put(count, is_own),
            QueueStep::PutPart => self.put_part(),
            QueueStep::PutOtherPart => self.put_other_part(),
            QueueStep::Answer => self.answer(),
            QueueStep::Tell => self.tell(),
            QueueStep::Read(limit) => self.read(limit),
            QueueStep::Settle => self.settle(),
            QueueStep::Finish => self.finish(),
            QueueStep::Remove => self.remove(true),
            QueueStep::RemoveUnanswered => self.remove(false),
            QueueStep::MakeAgain => self.make_again(),
            QueueStep::Remember => self.remember(),
            QueueStep::GoBack(to) => self.go_back(to),
            QueueStep::OtherGoesBack(to) => self.other_goes_back(to),
            QueueStep::Restart => self.restart(),
        }
    }

    /// Returns the rule that a step broke, if any.
    pub fn broken(&self) -> Option<QueueBroken> {
        self.state.broken
    }

    /// Returns the rule that is broken after the world has come to rest from here, if any.
    pub fn broken_at_rest(&self) -> Option<QueueBroken> {
        *self.at_rest.get_or_init(|| {
            let mut world = self.clone();
            world.come_to_rest();
            world.broken()
        })
    }

    /// Returns the counts of rare events up to now.
    pub fn seen(&self) -> QueueSeen {
        let State { lost, rewinds, restarts, .. } = self.state;
        QueueSeen { rewinds, lost, restarts, ..self.seen }
    }

    /// Returns the number of calls of writers up to now.
    pub fn calls(&self) -> u64 {
        self.state.calls
    }

    /// Returns the number of calls over two shards that have begun.
    pub fn shared_calls(&self) -> u64 {
        self.state.shared_calls
    }

    /// Returns whether a call over two shards is in progress.
    pub fn has_shared_call(&self) -> bool {
        self.state.shared.is_some()
    }

    /// Returns whether a call over two shards is in progress and has put its entry into the queue again.
    pub fn has_repeated_part(&self) -> bool {
        self.state.shared.as_ref().is_some_and(|call| call.ids.len() > 1)
    }

    /// Returns the number of entries that were counted as lost.
    pub fn lost(&self) -> u64 {
        self.state.lost
    }

    /// Returns how often the store went back.
    pub fn rewinds(&self) -> u64 {
        self.state.rewinds
    }

    /// Returns how often the process ended.
    pub fn restarts(&self) -> u64 {
        self.state.restarts
    }

    /// Returns the number of states that the store may go back to.
    pub fn past(&self) -> usize {
        self.state.past.len()
    }

    /// Completes the call in progress, reads, settles and removes all entries, and checks the result.
    pub fn come_to_rest(&mut self) {
        while self.state.shared.is_some() {
            self.put_part();
            self.put_other_part();
            self.answer();
        }
        for _ in 0..2 {
            self.make_again();
            self.tell();
            for reads in 0.. {
                if !self.has_news() || self.state.broken.is_some() {
                    break;
                }
                self.read(usize::MAX);
                if reads > 100 {
                    return self.breaks(QueueBroken::Stuck);
                }
            }
            self.read(usize::MAX);
            while !self.state.open.is_empty() {
                self.settle();
            }
            self.finish();
            self.remove(true);
        }
        self.check();
    }

    fn is(&self, fault: QueueFault) -> bool {
        self.state.fault == Some(fault)
    }

    fn breaks(&mut self, broken: QueueBroken) {
        self.state.broken.get_or_insert(broken);
    }

    fn put(&mut self, count: u8, is_own: bool) {
        let is_alike = self.is(QueueFault::HistoriesAreAlike);
        let State { store, untold, own, calls, .. } = &mut self.state;
        *calls += 1;
        // Each call has a history of its own, independent of the calls before it.
        let history = if is_alike { 1 } else { *calls };
        let first = store.last() + 1;
        for at in 0..u64::from(count) {
            let id = *calls * 10 + at;
            store.entries.push(Entry { id, history });
            if is_own {
                own.insert(id);
            }
        }
        if is_own {
            untold.push_back(QueueRun { first, last: store.last(), history, call: 0 });
        }
    }

    /// Returns the call over two shards that is in progress, and begins one if there is none.
    fn shared_call(&mut self) -> &mut SharedCall {
        let State { shared, shared_calls, .. } = &mut self.state;
        shared.get_or_insert_with(|| {
            *shared_calls += 1;
            SharedCall::default()
        })
    }

    fn put_part(&mut self) {
        if self.shared_call().run.is_some() {
            return;
        }
        // The process reports the entry to its reader only after the call is answered.
        self.put(1, false);
        let State { store, calls, .. } = &self.state;
        let number = store.last();
        let history = store.entries.last().map_or(0, |entry| entry.history);
        let id = *calls * 10;
        let call = self.shared_call();
        call.run = Some(QueueRun { first: number, last: number, history, call: 0 });
        call.ids.push(id);
        let is_again = call.ids.len() > 1;
        self.seen.again += u64::from(is_again);
    }

    fn put_other_part(&mut self) {
        if std::mem::replace(&mut self.shared_call().has_other, true) {
            return;
        }
        let State { store, shared_calls, .. } = &mut self.state;
        store.others.insert(*shared_calls);
    }

    /// Answers the call over two shards if its parts are written. If a shard went back since the last check, checks the
    /// parts instead.
    fn answer(&mut self) {
        let Some(call) = &self.state.shared else { return };
        if call.is_in_doubt && !self.is(QueueFault::AnswersWithoutCheck) {
            return self.check_parts();
        }
        let Some(run) = call.run.filter(|_| call.has_other) else { return };
        let Some(call) = self.state.shared.take() else { return };
        let number = self.state.shared_calls;
        let State { store, ever, own, untold, .. } = &mut self.state;
        let is_here =
            |id: &u64| ever.contains(id) || store.entries.iter().any(|entry| entry.id == *id);
        let is_lost = !call.ids.iter().any(is_here) || !store.others.contains(&number);
        own.extend(call.ids.last());
        untold.push_back(run);
        if is_lost {
            self.breaks(QueueBroken::AnsweredLost);
        }
    }

    /// Finds the parts of the call that the store lacks. The record of the writer, which goes back together with the
    /// entries, has the write of an entry even after a reader has removed the entry.
    fn check_parts(&mut self) {
        let compares_positions = self.is(QueueFault::ComparesPositions);
        let number = self.state.shared_calls;
        let State { store, shared, .. } = &mut self.state;
        let Some(call) = shared else { return };
        call.is_in_doubt = false;
        let is_recorded = store.entries.iter().any(|entry| call.ids.last() == Some(&entry.id));
        call.run = call
            .run
            .filter(|run| if compares_positions { store.has(run.end()) } else { is_recorded });
        call.has_other &= store.others.contains(&number);
    }

    fn tell(&mut self) {
        while let Some(run) = self.state.untold.pop_front() {
            if !self.is(QueueFault::ExpectsNothing) {
                self.state.cursor.expect(run, 0);
            }
        }
    }

    /// Returns whether the ends of the queue show something to read.
    fn has_news(&self) -> bool {
        let State { store, cursor, .. } = &self.state;
        let history = store.entries.last().map_or(0, |entry| entry.history);
        let last = QueuePosition { number: store.last(), history };
        let after = cursor.after();
        last != after && (after.number > 0 || store.last() > store.removed)
    }

    fn read(&mut self, limit: usize) {
        let after = self.state.cursor.after();
        if !self.state.store.has(after) && !self.is(QueueFault::ReadsByNumber) {
            return self.begin_again();
        }
        let State { store, cursor, open, under_way, ever, .. } = &mut self.state;
        cursor.record_first(store.removed + 1);
        let from = after.number.max(store.removed) as usize;
        let end = from.saturating_add(limit).min(store.entries.len());
        if from >= end {
            cursor.record_end(store.removed + 1);
        }
        let mut is_twice = false;
        for (at, Entry { id, history }) in (1..).zip(&store.entries).take(end).skip(from) {
            let place = QueuePosition { number: at, history: *history };
            if !cursor.accept(place) {
                self.seen.known += 1;
                continue;
            }
            // The reader may deliver a finished entry again, as after a restart, because the sequencer knows the id of
            // the entry.
            is_twice |= !under_way.insert(*id);
            ever.insert(*id);
            open.push_back((place, *id));
        }
        self.state.lost += self.state.cursor.take_loss().map_or(0, |loss| loss.entries);
        if is_twice {
            self.breaks(QueueBroken::DeliveredTwice);
        }
    }

    fn begin_again(&mut self) {
        self.seen.refused += 1;
        if self.is(QueueFault::ForgetsWhatItDelivered) {
            self.state.cursor = QueueCursor::default();
        }
        self.state.cursor.restart();
    }

    fn settle(&mut self) {
        let Some((place, id)) = self.state.open.pop_front() else { return };
        self.state.commits += 1;
        self.state.effects.insert(id);
        self.state.settled.push_back((place, id));
        self.make_again();
    }

    fn make_again(&mut self) {
        let State { store, commits, effects, .. } = &mut self.state;
        store.commits = *commits;
        store.effects.clone_from(effects);
    }

    fn finish(&mut self) {
        while let Some((place, id)) = self.state.settled.pop_front() {
            self.state.under_way.remove(&id);
            self.state.cursor.finish(place);
        }
    }

    fn remove(&mut self, is_answered: bool) {
        let Some(through) = self.state.cursor.removable() else { return };
        if !self.is(QueueFault::RemovesByNumber) && !self.state.store.has(through) {
            return self.begin_again();
        }
        let has_commit = self.state.store.commits >= self.state.commits;
        if !self.is(QueueFault::RemovesWithoutCommit) && !has_commit {
            self.seen.refused += 1;
            return;
        }
        let State { store, cursor, .. } = &mut self.state;
        let end = through.number.min(store.last());
        let mut gone = store.entries.iter().take(end as usize).skip(store.removed as usize);
        let is_early = gone.any(|entry| !store.effects.contains(&entry.id));
        store.removed = store.removed.max(end);
        if is_answered {
            cursor.record_removal(through);
        }
        if is_early {
            self.breaks(QueueBroken::RemovedTooEarly);
        }
    }

    fn remember(&mut self) {
        if self.state.past.last() != Some(&self.state.store) {
            self.state.past.push(self.state.store.clone());
        }
    }

    fn go_back(&mut self, to: usize) {
        // A writer that received its answer has already notified the reader.
        self.tell();
        let State { store, past, .. } = &mut self.state;
        let others = std::mem::take(&mut store.others);
        store.clone_from(&past[to]);
        store.others = others;
        self.record_rewind(to);
    }

    fn other_goes_back(&mut self, to: usize) {
        let State { store, past, .. } = &mut self.state;
        store.others.clone_from(&past[to].others);
        self.record_rewind(to);
    }

    /// Forgets the states after the one that a shard went back to. A call in progress finds that a shard went back, or
    /// that a connection broke.
    fn record_rewind(&mut self, to: usize) {
        let State { past, shared, rewinds, .. } = &mut self.state;
        past.truncate(to + 1);
        *rewinds += 1;
        if let Some(call) = shared {
            call.is_in_doubt = true;
        }
    }

    /// Ends the process and begins another one with the content of the store.
    fn restart(&mut self) {
        let State { store, .. } = &self.state;
        self.state = State {
            cursor: QueueCursor::default(),
            open: VecDeque::new(),
            settled: VecDeque::new(),
            untold: VecDeque::new(),
            under_way: BTreeSet::new(),
            shared: None,
            commits: store.commits,
            effects: store.effects.clone(),
            restarts: self.state.restarts + 1,
            ..self.state.clone()
        };
    }

    fn check(&mut self) {
        let State { store, own, ever, restarts, lost, .. } = &self.state;
        let Store { entries, removed, effects, .. } = store;
        let has = |id: &u64| entries.iter().any(|entry| entry.id == *id);
        let lost_unread = own.iter().filter(|id| !ever.contains(id) && !has(id)).count() as u64;
        if entries.iter().any(|entry| !effects.contains(&entry.id)) {
            self.breaks(QueueBroken::NoEffect);
        } else if *removed != entries.len() as u64 {
            self.breaks(QueueBroken::NotRemoved);
        } else if *restarts == 0 && lost_unread != *lost {
            // A new process does not expect the entries of the previous process.
            self.breaks(QueueBroken::WrongCount);
        }
    }
}
