//! The reference model of one key: the settled sequences, in order, and their results.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use ordain_core::{AcceptedId, Event, Key};

use super::{Checker, at};
use crate::store::Record;

/// The way in which a sequence was settled.
#[derive(Debug, Clone)]
pub(crate) enum Settled {
    Effect(Arc<Event>),
    Without(Arc<Event>),
    /// The sequence was skipped, and its event has never arrived.
    Hole,
    /// The sequence was skipped, and its event arrived later.
    Late(Arc<Event>),
}

impl Settled {
    pub(super) fn event(&self) -> Option<&Arc<Event>> {
        match self {
            Self::Effect(event) | Self::Without(event) | Self::Late(event) => Some(event),
            Self::Hole => None,
        }
    }
}

/// The expected content of the store for one key.
#[derive(Debug, Clone)]
pub(crate) struct KeyModel {
    /// True if the store has a record of the key.
    pub(super) live: bool,
    pub(super) next: u64,
    pub(super) incarnation: u64,
    pub(super) state: Option<Bytes>,
    pub(super) completed: bool,
    pub(super) settled: BTreeMap<u64, Settled>,
    /// The sequences that were settled in earlier lives of the key. A life of a key ends when the key record expires.
    pub(super) former: Vec<BTreeMap<u64, Settled>>,
    /// By sequence, the id that was accepted under this sequence in the present life of the key.
    pub(super) taken: BTreeMap<u64, AcceptedId>,
    pub(super) ids: BTreeSet<u64>,
    /// The position of the last accepted id in the source's queue.
    pub(super) place: Option<usize>,
    /// The first sequence of an imported key: all lower sequences were settled before the import.
    pub(super) imported: u64,
    /// Virtual time of the last settlement.
    pub(super) settled_at: u64,
    /// The number of the rollout under which the key was last executed in its present life.
    pub(super) generation: u64,
}

impl KeyModel {
    pub(super) fn new(first: u64) -> Self {
        Self {
            live: false,
            next: first,
            incarnation: 0,
            state: None,
            completed: false,
            settled: BTreeMap::new(),
            former: Vec::new(),
            taken: BTreeMap::new(),
            ids: BTreeSet::new(),
            place: None,
            imported: 0,
            settled_at: 0,
            generation: 0,
        }
    }

    /// Returns how a sequence was settled in each life of the key.
    pub(super) fn settlements(&self, sequence: u64) -> impl Iterator<Item = &Settled> {
        self.former.iter().chain([&self.settled]).filter_map(move |life| life.get(&sequence))
    }
}

impl Checker {
    /// Records a key record that was imported from elsewhere.
    pub(crate) fn imported(&mut self, key: &Key, record: &Record) {
        let next = record.job.next;
        let incarnation = record.job.incarnation;
        let model = KeyModel { live: true, incarnation, imported: next, ..KeyModel::new(next) };
        self.keys.insert(key.clone(), model);
    }

    /// Checks and records that the store has removed an expired key record.
    pub(crate) fn expired(&mut self, key: &Key, record: &Record) {
        if let Some((sequence, _)) = record.spill.first_key_value() {
            self.broke("I5", format!("{} expired with its key", at(key, *sequence)));
        }
        for watch in self.watches.values_mut() {
            watch.reborn(key);
        }
        let first = self.plan.settings.first;
        let model = self.model(key);
        let mut former = std::mem::take(&mut model.former);
        former.push(std::mem::take(&mut model.settled));
        let imported = model.imported;
        let settled_at = model.settled_at;
        *model = KeyModel { former, imported, settled_at, ..KeyModel::new(first) };
    }
}
