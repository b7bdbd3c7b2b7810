//! The state of one key in the memory of an owner.

use crate::set::Set;
use crate::store::{CommitId, KeyRecord, StoredRevision, Write};

/// The progress of the load of a key record.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Load {
    Wanted,
    /// The store has answered, and the owner has not received the answer yet.
    Answered(Option<KeyRecord>),
    /// The owner knows the key record, or assumes that the key has no record.
    Done,
}

/// The received events of one key, and the key record as the owner knows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Lane {
    pub(crate) load: Load,
    /// The stored key record; `None` if the key has no record, or if the owner assumes that the key has no record.
    pub(crate) revision: Option<StoredRevision>,
    /// The next sequence to execute: all earlier events of the key were executed.
    pub(crate) next_to_run: u8,
    /// Received events that are not durable, as far as the owner knows.
    pub(crate) held: Set,
    /// Spilled events, which wait in the store.
    pub(crate) spilled: Set,
}

impl Lane {
    pub(crate) fn new(load: Load) -> Self {
        Self { load, revision: None, next_to_run: 1, held: Set::default(), spilled: Set::default() }
    }

    fn is_loaded(&self) -> bool {
        self.load == Load::Done
    }

    /// Returns the next sequence in the stored key record; 1 if there is no record.
    fn next(&self) -> u8 {
        self.revision.map_or(1, |revision| revision.next)
    }

    pub(crate) fn ahead(&self) -> u8 {
        self.next_to_run - self.next()
    }

    pub(crate) fn is_runnable(&self) -> bool {
        self.is_loaded() && self.held.with_all(self.spilled).has(self.next_to_run)
    }

    /// Returns whether the store has all of the lane's state.
    pub(crate) fn is_stored(&self) -> bool {
        self.is_loaded() && self.ahead() == 0 && self.held.is_empty()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.is_stored() && !self.is_runnable()
    }

    /// Returns whether the lane holds events, but lacks the next event of the key. The next event may have come to
    /// another partition.
    pub(crate) fn waits(&self) -> bool {
        self.is_loaded() && !self.is_runnable() && self.ahead() == 0 && !self.held.is_empty()
    }

    /// Returns whether the event is durable, as far as the lane knows.
    pub(crate) fn has(&self, sequence: u8) -> bool {
        self.is_loaded() && (sequence < self.next() || self.spilled.has(sequence))
    }

    pub(crate) fn accept(&mut self, sequence: u8) {
        if !self.has(sequence) {
            self.held = self.held.with(sequence);
        }
    }

    /// Returns whether a load would change the lane's copy of the key record.
    pub(crate) fn would_change(&self, record: Option<&KeyRecord>) -> bool {
        let spilled = record.map_or(Set::default(), |record| record.spilled);
        match self.load {
            Load::Wanted => true,
            Load::Answered(_) => false,
            Load::Done => {
                self.revision != record.map(KeyRecord::revision) || self.spilled != spilled
            }
        }
    }

    /// Copies the loaded key record into the lane, and drops the held events that are durable according to the record.
    pub(crate) fn loaded(&mut self) {
        let Load::Answered(record) = std::mem::replace(&mut self.load, Load::Done) else { return };
        self.revision = record.as_ref().map(KeyRecord::revision);
        self.spilled = record.map_or(Set::default(), |record| record.spilled);
        self.next_to_run = self.next();
        self.held = self.held.without(self.spilled).from(self.next_to_run);
    }

    pub(crate) fn write(&self, key: u8, spill: bool) -> Option<Write> {
        let to_spill = if spill { self.held.from(self.next_to_run) } else { Set::default() };
        let spilled = self.spilled.with_all(to_spill).from(self.next_to_run);
        let write = Write { key, condition: self.revision, next: self.next_to_run, spilled };
        (self.is_loaded() && (self.ahead() > 0 || !to_spill.is_empty())).then_some(write)
    }

    pub(crate) fn written(&mut self, write: &Write, written_by: CommitId) {
        let take_overs = self.revision.map_or(0, |revision| revision.take_overs);
        self.revision = Some(StoredRevision { next: write.next, take_overs, written_by });
        self.spilled = write.spilled;
        self.held = self.held.without(write.spilled).from(write.next);
    }

    /// Keeps the held events, drops all results, and requests the stored key record again. The reason is that the store
    /// refused the lane's write, or that the lane read its key record before the owner repeated lost commits.
    pub(crate) fn refused(&mut self) {
        *self = Self { held: self.held, ..Self::new(Load::Wanted) };
    }
}
