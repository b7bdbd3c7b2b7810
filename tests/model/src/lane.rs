//! The state of one key in the memory of an owner.

use crate::set::Set;
use crate::store::{Job, Known, Stamp, Write};

/// The progress of the load of a key record.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Load {
    /// The owner must request the load.
    Wanted,
    /// The store has answered, and the owner has not received the answer yet.
    Answered(Option<Job>),
    /// The key record is known, or assumed to be absent.
    Done,
}

/// A lane.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Lane {
    pub(crate) load: Load,
    /// The stored key record; `None` if there is none, or if the owner assumes so.
    pub(crate) known: Option<Known>,
    /// The next sequence to execute: all earlier events of the key were executed.
    pub(crate) done: u8,
    /// Received events that are not durable, as far as the owner knows.
    pub(crate) held: Set,
    /// Spilled events, which wait in the store.
    pub(crate) spilled: Set,
}

impl Lane {
    pub(crate) fn new(load: Load) -> Self {
        Self { load, known: None, done: 1, held: Set::default(), spilled: Set::default() }
    }

    fn is_live(&self) -> bool {
        self.load == Load::Done
    }

    /// Returns the next sequence in the stored key record; 1 if there is no record.
    fn next(&self) -> u8 {
        self.known.map_or(1, |known| known.next)
    }

    /// Returns the number of executed events that are not committed, as far as the owner knows.
    pub(crate) fn ahead(&self) -> u8 {
        self.done - self.next()
    }

    pub(crate) fn is_runnable(&self) -> bool {
        self.is_live() && self.held.with_all(self.spilled).has(self.done)
    }

    /// Returns whether the store has all of the lane's state.
    pub(crate) fn is_quiet(&self) -> bool {
        self.is_live() && self.ahead() == 0 && self.held.is_empty()
    }

    /// Returns whether the store has all of the lane's state, and no event can run.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_quiet() && !self.is_runnable()
    }

    /// Returns whether the lane waits for an event that another partition may have.
    pub(crate) fn waits(&self) -> bool {
        self.is_live() && !self.is_runnable() && self.ahead() == 0 && !self.held.is_empty()
    }

    /// Returns whether the event is durable, as far as the lane knows.
    pub(crate) fn has(&self, sequence: u8) -> bool {
        self.is_live() && (sequence < self.next() || self.spilled.has(sequence))
    }

    pub(crate) fn take(&mut self, sequence: u8) {
        if !self.has(sequence) {
            self.held = self.held.with(sequence);
        }
    }

    /// Returns whether a load would change the lane's copy of the key record.
    pub(crate) fn would_learn(&self, job: Option<&Job>) -> bool {
        let spilled = job.map_or(Set::default(), |job| job.spilled);
        match self.load {
            Load::Wanted => true,
            Load::Answered(_) => false,
            Load::Done => self.known != job.map(Job::known) || self.spilled != spilled,
        }
    }

    /// Copies the loaded key record into the lane.
    pub(crate) fn loaded(&mut self) {
        let Load::Answered(job) = std::mem::replace(&mut self.load, Load::Done) else { return };
        self.known = job.as_ref().map(Job::known);
        self.spilled = job.map_or(Set::default(), |job| job.spilled);
        self.done = self.next();
        self.held = self.held.without(self.spilled).from(self.done);
    }

    /// Returns the lane's next write; with `spill` the write includes the held events.
    pub(crate) fn write(&self, key: u8, spill: bool) -> Option<Write> {
        let loose = if spill { self.held.from(self.done) } else { Set::default() };
        let spilled = self.spilled.with_all(loose).from(self.done);
        let write = Write { key, known: self.known, next: self.done, spilled };
        (self.is_live() && (self.ahead() > 0 || !loose.is_empty())).then_some(write)
    }

    /// Records that the store applied the lane's write.
    pub(crate) fn written(&mut self, write: &Write, by: Stamp) {
        let take_overs = self.known.map_or(0, |known| known.take_overs);
        self.known = Some(Known { next: write.next, take_overs, by });
        self.spilled = write.spilled;
        self.held = self.held.without(write.spilled).from(write.next);
    }

    /// Records that the store refused the lane's write: keeps the held events, drops all results, and requests the
    /// stored key record again.
    pub(crate) fn refused(&mut self) {
        *self = Self { held: self.held, ..Self::new(Load::Wanted) };
    }
}
