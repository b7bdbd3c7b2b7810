//! The store: the shard of the queue, and another shard.

use std::collections::BTreeSet;

use ordain_core::{QueuePosition, QueueRun};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Entry {
    pub(super) id: u64,
    /// The history digest, as a plain number.
    pub(super) history: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Writer {
    /// The writer of the reader's process.
    Own,
    Other,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Store {
    /// All entries of the queue, including the removed entries. The first entry has number 1.
    pub(super) entries: Vec<Entry>,
    pub(super) removed: u64,
    /// The record of each writer: the numbers of the calls that the store has processed.
    records: [BTreeSet<u64>; 2],
    /// Number of commits of the owner that the store has.
    pub(super) commits: u64,
    /// The entries that took effect through these commits.
    pub(super) effects: BTreeSet<u64>,
    /// The numbers of the calls that have written their part to the other shard. No reader ever reads or removes these
    /// parts.
    pub(super) other_parts: BTreeSet<u64>,
}

impl Store {
    pub(super) fn last(&self) -> u64 {
        self.entries.len() as u64
    }

    pub(super) fn record(&self, writer: Writer) -> &BTreeSet<u64> {
        &self.records[writer as usize]
    }

    pub(super) fn record_call(&mut self, writer: Writer, call: u64) {
        self.records[writer as usize].insert(call);
    }

    /// Returns the numbers of the first and the last entry, their history digest, and the number of the call.
    pub(super) fn put(&mut self, ids: &[u64], history: u64, call: u64) -> QueueRun {
        let first = self.last() + 1;
        self.entries.extend(ids.iter().map(|id| Entry { id: *id, history }));
        QueueRun { first, last: self.last(), history, call }
    }

    /// Returns whether the queue contains the entry, or contained it until a reader removed it. Returns false if the
    /// store has lost the entry.
    pub(super) fn has_entry(&self, id: u64) -> bool {
        self.entries.iter().any(|entry| entry.id == id)
    }

    /// Returns whether the position is in the history of the queue. The store has the history digests of the last
    /// removed entry and of all later entries. The store cannot check positions before the last removed entry, so it
    /// accepts all of them.
    pub(super) fn has(&self, position: QueuePosition) -> bool {
        let QueuePosition { number, history } = position;
        number == 0
            || number < self.removed
            || number <= self.last() && self.entries[number as usize - 1].history == history
    }
}
