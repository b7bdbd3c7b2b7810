//! The expected content of the store for one key: the settled sequences with their results, the state, and the ids.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use ordain_core::{AcceptedId, Event, Key};

use super::{Checker, at};
use crate::store::StoredKey;

#[derive(Debug, Clone)]
pub(crate) enum Settlement {
    Effect(Arc<Event>),
    /// The event ended without effect, and got a dead letter.
    Without(Arc<Event>),
    /// The sequence was skipped, and its event has never arrived.
    Skipped,
    /// The event of the skipped sequence arrived later.
    Late(Arc<Event>),
}

impl Settlement {
    pub(super) fn event(&self) -> Option<&Arc<Event>> {
        match self {
            Self::Effect(event) | Self::Without(event) | Self::Late(event) => Some(event),
            Self::Skipped => None,
        }
    }
}

/// The expected content of the store.
#[derive(Debug, Clone)]
pub(crate) struct KeyModel {
    /// The store has a record of the key.
    pub(super) live: bool,
    /// The next sequence of the key record.
    pub(super) next: u64,
    pub(super) incarnation: u64,
    pub(super) state: Option<Bytes>,
    pub(super) completed: bool,
    pub(super) settled: BTreeMap<u64, Settlement>,
    /// The settled sequences of each earlier life. A life of a key begins with the first commit of its record, and ends
    /// when the record expires.
    pub(super) former_lives: Vec<BTreeMap<u64, Settlement>>,
    /// By sequence, the id that was accepted under this sequence in the present life of the key.
    pub(super) accepted: BTreeMap<u64, AcceptedId>,
    /// Accepted in the present life of the key.
    pub(super) ids: BTreeSet<u64>,
    /// The position of the last accepted id in the source's queue.
    pub(super) position: Option<usize>,
    /// The first sequence of an imported key: all lower sequences were settled before the import.
    pub(super) imported: u64,
    /// The first sequence of the key's present life, if keys may begin anywhere; otherwise 0. Lower sequences count as
    /// skipped.
    pub(super) begin: u64,
    /// The virtual time of the last settlement.
    pub(super) settled_at: u64,
    /// The number of the rollout under which the key was last executed in its present life.
    pub(super) rollout_number: u64,
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
            former_lives: Vec::new(),
            accepted: BTreeMap::new(),
            ids: BTreeSet::new(),
            position: None,
            imported: 0,
            begin: 0,
            settled_at: 0,
            rollout_number: 0,
        }
    }

    /// Returns how a sequence was settled in each life of the key.
    pub(super) fn settlements(&self, sequence: u64) -> impl Iterator<Item = &Settlement> {
        self.former_lives.iter().chain([&self.settled]).filter_map(move |life| life.get(&sequence))
    }
}

impl Checker {
    /// The record is in the store from the beginning.
    pub(crate) fn imported(&mut self, key: &Key, record: &StoredKey) {
        let next = record.key_record.next;
        let incarnation = record.key_record.incarnation;
        let model = KeyModel { live: true, incarnation, imported: next, ..KeyModel::new(next) };
        self.keys.insert(key.clone(), model);
    }

    /// The expired key must have no spilled events.
    pub(crate) fn expired(&mut self, key: &Key, record: &StoredKey) {
        if let Some((sequence, _)) = record.spill.first_key_value() {
            self.broke(
                "I5",
                format!("{} is spilled, but the record of its key expired", at(key, *sequence)),
            );
        }
        for owner_model in self.owner_models.values_mut() {
            owner_model.lane_restarted(key);
        }
        let first = self.plan.settings.first;
        let model = self.model(key);
        let mut former_lives = std::mem::take(&mut model.former_lives);
        former_lives.push(std::mem::take(&mut model.settled));
        let imported = model.imported;
        let settled_at = model.settled_at;
        *model = KeyModel { former_lives, imported, settled_at, ..KeyModel::new(first) };
    }
}
