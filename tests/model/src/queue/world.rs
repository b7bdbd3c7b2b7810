//! The state of a run, and the effect of each step.

mod reader;
mod shared;
mod unread;

use std::collections::{BTreeSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::OnceLock;

use ordain_core::{QueueCursor, QueuePosition, QueueRun};

use self::shared::SharedCall;
use self::unread::UnreadProcess;
use super::outcome::{QueueCounts, QueueViolation};
use super::store::{Store, Writer};
use super::{QueueFault, QueueScope, QueueStep};

/// The state of a run at one moment, and the counts of rare events up to this moment.
#[derive(Debug, Clone)]
pub struct QueueWorld {
    state: State,
    counts: QueueCounts,
    /// The violation that the final check would find if the run now finished all work without further losses. The first
    /// use computes this value.
    end_check: OnceLock<Option<QueueViolation>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    is_inbox: bool,
    fault: Option<QueueFault>,
    store: Store,
    /// The first of these states is the first state of the run.
    past: Vec<Store>,
    cursor: QueueCursor,
    /// The position and the id of each delivered entry that is not settled.
    open: VecDeque<(QueuePosition, u64)>,
    /// The position and the id of each settled entry that is not acknowledged to the reader.
    settled: VecDeque<(QueuePosition, u64)>,
    /// The store may have lost some of the owner's commits.
    commits: u64,
    /// The entries that took effect through these commits; for an inbox, the published entries.
    effects: BTreeSet<u64>,
    /// Entries that the present process of the reader has delivered and not yet finished.
    in_delivery: BTreeSet<u64>,
    ever_delivered: BTreeSet<u64>,
    /// Runs of entries that the reader's process put into the queue, but has not reported to the reader yet.
    unreported: VecDeque<QueueRun>,
    /// True if the store has gone back after the writers of the reader's process had put these runs into the queue. A
    /// writer reports a run as soon as the store has answered, and the reader takes the reports immediately before it
    /// reads. The next read therefore begins with the reports of these runs.
    must_report: bool,
    /// If the store loses such an entry of the reader's process before the reader has read it, the reader must count
    /// the loss.
    own: BTreeSet<u64>,
    shared: Option<SharedCall>,
    /// The other writers have no reader.
    unread: UnreadProcess,
    shared_calls: u64,
    /// Number of calls of writers to the queue, including repeated calls.
    calls: u64,
    /// Number of entries that the reader counted as lost.
    lost: u64,
    rollbacks: u64,
    restarts: u64,
    broken: Option<QueueViolation>,
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
    /// Returns the first state of a run: the queue is empty.
    pub fn new(scope: &QueueScope) -> Self {
        let state = State {
            is_inbox: scope.is_inbox,
            fault: scope.fault,
            store: Store::default(),
            past: vec![Store::default()],
            cursor: QueueCursor::default(),
            open: VecDeque::new(),
            settled: VecDeque::new(),
            commits: 0,
            effects: BTreeSet::new(),
            in_delivery: BTreeSet::new(),
            ever_delivered: BTreeSet::new(),
            unreported: VecDeque::new(),
            must_report: false,
            own: BTreeSet::new(),
            shared: None,
            unread: UnreadProcess::default(),
            shared_calls: 0,
            calls: 0,
            lost: 0,
            rollbacks: 0,
            restarts: 0,
            broken: None,
        };
        Self { state, counts: QueueCounts::default(), end_check: OnceLock::new() }
    }

    /// Performs a step.
    pub fn step(&mut self, step: QueueStep) {
        self.end_check = OnceLock::new();
        match step {
            QueueStep::Put(count, is_own) => self.put(count, is_own),
            QueueStep::PutUnanswered => self.put_unanswered(),
            QueueStep::RepeatPut => self.repeat_put(),
            QueueStep::Refuse => self.refuse(),
            QueueStep::RequestRecord => self.request_record(),
            QueueStep::CompareRecord => self.compare_record(),
            QueueStep::PutPart => self.put_part(),
            QueueStep::PutOtherPart => self.put_other_part(),
            QueueStep::NoticeRollback => self.notice_rollback(),
            QueueStep::Answer => self.answer(),
            QueueStep::ReportRuns => self.report_runs(),
            QueueStep::Read(limit) => self.read(limit),
            QueueStep::Settle => self.settle(),
            QueueStep::Finish => self.finish(),
            QueueStep::Remove => self.remove(true),
            QueueStep::RemoveUnanswered => self.remove(false),
            QueueStep::Recommit => self.recommit(),
            QueueStep::Remember => self.remember(),
            QueueStep::GoBack(to) => self.go_back(to),
            QueueStep::OtherGoesBack(to) => self.other_goes_back(to),
            QueueStep::Restart => self.restart(),
        }
    }

    /// Returns the rule that a step broke, if any.
    pub fn broken(&self) -> Option<QueueViolation> {
        self.state.broken
    }

    /// Returns the broken rule, if any, that the final check would find if the run now finished all work without
    /// further losses.
    pub fn broken_at_end(&self) -> Option<QueueViolation> {
        *self.end_check.get_or_init(|| {
            let mut world = self.clone();
            world.finish_and_check();
            world.broken()
        })
    }

    /// Returns the counts of rare events up to now.
    pub fn counts(&self) -> QueueCounts {
        let State { lost, rollbacks, restarts, unread: UnreadProcess { counted, .. }, .. } =
            self.state;
        QueueCounts { rollbacks, lost, restarts, counted, ..self.counts }
    }

    /// Returns the number of calls of writers to the queue up to now, including repeated calls.
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

    /// Returns whether a call over two shards is in progress, and has put its entry into the queue more than once.
    pub fn has_repeated_part(&self) -> bool {
        self.state.shared.as_ref().is_some_and(|call| call.ids.len() > 1)
    }

    /// Returns whether the process without a reader has repeated a call after its answer was lost.
    pub fn has_repeated_call(&self) -> bool {
        self.state.unread.has_repeated_call()
    }

    /// Returns how many lost events the process without a reader has counted.
    pub fn counted(&self) -> u64 {
        self.state.unread.counted
    }

    /// Returns whether an inbox has published an entry that the store has lost.
    pub fn has_published_lost_entry(&self) -> bool {
        let State { is_inbox, store, effects, .. } = &self.state;
        *is_inbox && effects.iter().any(|id| !store.has_entry(*id))
    }

    /// Returns the number of entries that the reader counted as lost.
    pub fn lost(&self) -> u64 {
        self.state.lost
    }

    /// Returns how often the store went back.
    pub fn rollbacks(&self) -> u64 {
        self.state.rollbacks
    }

    /// Returns how often the reader's process ended and another process started.
    pub fn restarts(&self) -> u64 {
        self.state.restarts
    }

    /// Returns the number of states that the store may go back to.
    pub fn past(&self) -> usize {
        self.state.past.len()
    }

    /// Finishes all work of the run, and checks the result. Completes the call over two shards, and reads, settles and
    /// removes all entries. Then compares the calls of the process without a reader with their record.
    pub fn finish_and_check(&mut self) {
        while self.state.shared.is_some() {
            self.put_part();
            self.put_other_part();
            self.answer();
        }
        for _ in 0..2 {
            self.recommit();
            self.report_runs();
            for reads in 0.. {
                if !self.has_news() || self.state.broken.is_some() {
                    break;
                }
                self.read(usize::MAX);
                if reads > 100 {
                    return self.record_violation(QueueViolation::Stuck);
                }
            }
            self.read(usize::MAX);
            while !self.state.open.is_empty() {
                self.settle();
            }
            self.finish();
            self.remove(true);
        }
        self.compare_record();
        self.request_record();
        self.compare_record();
        self.check();
    }

    fn is(&self, fault: QueueFault) -> bool {
        self.state.fault == Some(fault)
    }

    fn record_violation(&mut self, broken: QueueViolation) {
        self.state.broken.get_or_insert(broken);
    }

    fn put(&mut self, count: u8, is_own: bool) {
        let writer = if is_own { Writer::Own } else { Writer::Other };
        let (run, ids) = self.write(count, writer);
        let State { unreported, own, unread, .. } = &mut self.state;
        if is_own {
            own.extend(ids);
            unreported.push_back(run);
        } else {
            unread.accept(run, ids.into_iter().map(|id| vec![id]));
        }
    }

    /// Returns the written entries as a run, and their ids.
    fn write(&mut self, count: u8, writer: Writer) -> (QueueRun, Vec<u64>) {
        let State { unread, calls, .. } = &mut self.state;
        let number = if writer == Writer::Other { unread.take_number() } else { *calls + 1 };
        self.write_call(count, writer, number)
    }

    /// The store adds the entries to the queue, and the call to the record of its writer, in one write.
    fn write_call(&mut self, count: u8, writer: Writer, number: u64) -> (QueueRun, Vec<u64>) {
        self.state.store.record_call(writer, number);
        if self.is(QueueFault::RecordsSeparately) {
            self.remember();
        }
        self.state.calls += 1;
        let calls = self.state.calls;
        // The history digest of each call is a unique number, which does not depend on earlier calls.
        let history = if self.is(QueueFault::HistoriesAreEqual) { 1 } else { calls };
        let ids: Vec<u64> = (0..u64::from(count)).map(|at| calls * 10 + at).collect();
        let run = self.state.store.put(&ids, history, number);
        (run, ids)
    }

    fn remember(&mut self) {
        if self.state.past.last() != Some(&self.state.store) {
            self.state.past.push(self.state.store.clone());
        }
    }

    fn go_back(&mut self, to: usize) {
        let State { store, past, .. } = &mut self.state;
        let other_parts = std::mem::take(&mut store.other_parts);
        store.clone_from(&past[to]);
        store.other_parts = other_parts;
        self.state.must_report = !self.state.unreported.is_empty();
        self.record_rollback(to);
    }

    fn other_goes_back(&mut self, to: usize) {
        let State { store, past, .. } = &mut self.state;
        store.other_parts.clone_from(&past[to].other_parts);
        self.record_rollback(to);
    }

    /// Forgets the states after the one that a shard went back to. If a call over two shards is in progress, its
    /// process has not noticed the rollback yet.
    fn record_rollback(&mut self, to: usize) {
        let State { past, shared, rollbacks, .. } = &mut self.state;
        past.truncate(to + 1);
        *rollbacks += 1;
        if let Some(call) = shared {
            call.record_rollback();
        }
    }

    /// The new process knows only the content of the store.
    fn restart(&mut self) {
        let effects = self.durable_effects().clone();
        let State { store, .. } = &self.state;
        self.state = State {
            cursor: QueueCursor::default(),
            open: VecDeque::new(),
            settled: VecDeque::new(),
            unreported: VecDeque::new(),
            must_report: false,
            in_delivery: BTreeSet::new(),
            shared: None,
            commits: store.commits,
            effects,
            restarts: self.state.restarts + 1,
            ..self.state.clone()
        };
    }

    fn check(&mut self) {
        let effects = self.durable_effects();
        let State { store, own, ever_delivered, restarts, lost, unread, .. } = &self.state;
        let Store { entries, removed, .. } = store;
        let is_lost_unread = |id: &&u64| !ever_delivered.contains(id) && !store.has_entry(**id);
        let lost_unread = own.iter().filter(is_lost_unread).count() as u64;
        let (lost_events, unread_events) = unread.lost_events(store);
        if entries.iter().any(|entry| !effects.contains(&entry.id)) {
            self.record_violation(QueueViolation::NoEffect);
        } else if *removed != entries.len() as u64 {
            self.record_violation(QueueViolation::SettledNotRemoved);
        } else if *restarts == 0 && lost_unread != *lost {
            // The condition excludes restarts, because a new process does not expect the entries of the previous
            // process.
            self.record_violation(QueueViolation::WrongLossCount);
        } else if unread.counted < unread_events {
            self.record_violation(QueueViolation::LossNotCounted);
        } else if unread.counted > lost_events {
            // If a reader removed an event before the store lost the event, the process may count the loss, but need
            // not count it.
            self.record_violation(QueueViolation::PresentCountedAsLost);
        }
    }
}
