//! Observes a run, and reports the first broken invariant. The world notifies the checker of each delivery, request,
//! applied commit, acknowledgement and publication. From these notifications, the checker derives the allowed states.
//! For each key, it keeps the settled sequences and their results. The checker must never influence a run.

mod acks;
mod attempts;
mod end;
mod fold;
mod gap_history;
mod keys;
mod letters;
mod owner_model;
mod publishing;
mod received;
mod snapshot;
mod warnings;
mod writes;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bytes::Bytes;
use ordain_core::{DeadLetter, Key, LetterId};

use crate::plan::Plan;

use attempts::AttemptCounts;
pub(crate) use keys::{KeyModel, Settlement};
use owner_model::OwnerModel;
use publishing::CommittedOutput;
use received::ReceivedEvents;
pub(crate) use snapshot::CheckerSnapshot;
use warnings::Warnings;

/// A broken invariant, with a description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The broken invariant: `I1` to `I8` (see `docs/internals/architecture.md`), the name of another checked rule, or
    /// the rule of a model.
    pub invariant: &'static str,
    /// The observation that contradicts the invariant.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.detail)
    }
}

#[derive(Debug)]
pub(crate) struct Checker {
    plan: Plan,
    violation: Option<Violation>,
    /// The virtual time in ms.
    now: u64,
    keys: BTreeMap<Key, KeyModel>,
    received: ReceivedEvents,
    /// The expected dead letters of the store.
    letters: BTreeMap<LetterId, DeadLetter>,
    /// By key and content of an event, the dead letters that hold the event.
    letter_index: BTreeMap<(Key, u64), BTreeSet<LetterId>>,
    publishing: CommittedOutput,
    attempts: AttemptCounts,
    owner_models: BTreeMap<u64, OwnerModel>,
    /// Keys whose key record was made unreadable.
    corrupt: BTreeSet<Key>,
    /// Keys for which a read of spilled events failed.
    unread: BTreeSet<Key>,
    /// False while the simulation may make reads of spilled events fail; true at the end of the run, when all reads
    /// succeed.
    reads_succeed: bool,
    /// For a stream whose events Ordain numbers: by key and id, the first position in the source's queue.
    positions: BTreeMap<(Key, u64), usize>,
    /// Number of times that an owner ended or the store went back.
    deaths: u32,
    rollback_count: u32,
    /// True if the store has gone back and the owner has not yet repeated all lost commits.
    pub(crate) lacks_commits: bool,
    /// The present owner settled these events (key and sequence) again by repeating lost commits, and must distinguish
    /// them from other events with the same sequences. Skipped sequences are not included, because the owner has no
    /// digest of their late originals.
    recovered: BTreeSet<(Key, u64)>,
    /// Key and content of each event whose delivery was acknowledged.
    acknowledged_events: BTreeSet<(Key, u64)>,
    warnings: Warnings,
}

impl Checker {
    pub(crate) fn new(plan: &Plan) -> Self {
        Self {
            plan: plan.clone(),
            violation: None,
            now: 0,
            keys: BTreeMap::new(),
            received: ReceivedEvents::default(),
            letters: BTreeMap::new(),
            letter_index: BTreeMap::new(),
            publishing: CommittedOutput::default(),
            attempts: AttemptCounts::default(),
            owner_models: BTreeMap::new(),
            corrupt: BTreeSet::new(),
            unread: BTreeSet::new(),
            reads_succeed: false,
            positions: BTreeMap::new(),
            deaths: 0,
            rollback_count: 0,
            lacks_commits: false,
            recovered: BTreeSet::new(),
            acknowledged_events: BTreeSet::new(),
            warnings: Warnings::default(),
        }
    }

    pub(crate) fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    /// Only the first violation counts, because it may have caused the later ones.
    pub(crate) fn broke(&mut self, invariant: &'static str, detail: String) {
        self.violation.get_or_insert(Violation { invariant, detail });
    }

    pub(crate) fn at(&mut self, now: u64) {
        self.now = now;
    }

    /// The key record was made unreadable on purpose.
    pub(crate) fn corrupted(&mut self, key: &Key) {
        self.corrupt.insert(key.clone());
    }

    /// Returns whether a key may stop because its spilled events cannot be read.
    fn is_unreadable(&self, key: &str) -> bool {
        !self.reads_succeed && self.unread.contains(key)
    }

    /// The read of spilled events failed on purpose.
    pub(crate) fn unread(&mut self, key: &Key) {
        self.unread.insert(key.clone());
    }

    /// Every key that waited for a read must now progress.
    pub(crate) fn reads_succeed(&mut self) {
        self.reads_succeed = true;
    }

    fn keys_expire(&self) -> bool {
        let settings = &self.plan.settings;
        settings.complete_ttl < 1_000_000 || settings.key_ttl.is_some()
    }

    fn model(&mut self, key: &Key) -> &mut KeyModel {
        let first = self.plan.settings.first;
        self.keys.entry(key.clone()).or_insert_with(|| KeyModel::new(first))
    }

    /// Returns the next sequence of a key, according to the durable key record.
    fn next(&self, key: &Key) -> u64 {
        self.keys.get(key).map_or(self.plan.settings.first, |model| model.next)
    }

    /// The bytes are not an event.
    pub(crate) fn delivered_raw(&mut self, bytes: &Bytes) {
        self.received.raw.insert(bytes.clone());
    }
}

fn at(key: &str, sequence: u64) -> String {
    format!("{key:?} #{sequence}")
}
