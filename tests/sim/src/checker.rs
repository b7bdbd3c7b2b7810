//! Watches a run from outside and says which invariant broke. It is told of everything that is
//! delivered, asked for, applied, acknowledged and published, and works out for itself what may
//! be: per key one list of settled sequences, and nothing clever. It must never influence a run.

mod acks;
mod alarms;
mod end;
mod fold;
mod keys;
mod known;
mod ledger;
mod letters;
mod past;
mod publishing;
mod tries;
mod watch;
mod writes;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bytes::Bytes;
use ordain_core::{DeadLetter, Key, LetterId};

use crate::plan::Plan;

use alarms::Alarms;
pub(crate) use keys::{KeyModel, Settled};
use known::Known;
pub(crate) use past::Past;
use publishing::Publishing;
use tries::Tries;
use watch::Watch;

/// What broke, in which words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// `I1` to `I8`, or another name of what was promised.
    pub invariant: &'static str,
    /// What was seen.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.detail)
    }
}

/// The checker of one run.
#[derive(Debug)]
pub(crate) struct Checker {
    plan: Plan,
    /// The first thing that broke.
    violation: Option<Violation>,
    now: u64,
    keys: BTreeMap<Key, KeyModel>,
    known: Known,
    /// What the store's dead letters must be.
    letters: BTreeMap<LetterId, DeadLetter>,
    /// Where the letters that hold events of (key, content) are.
    letter_index: BTreeMap<(Key, u64), BTreeSet<LetterId>>,
    publishing: Publishing,
    tries: Tries,
    watches: BTreeMap<u64, Watch>,
    /// Keys whose job was made unreadable.
    corrupt: BTreeSet<Key>,
    /// Keys of which spilled events could not be read; whether they can be now.
    unread: BTreeSet<Key>,
    mended: bool,
    /// Where each id stands first in the queue of a stream that numbers itself.
    places: BTreeMap<(Key, u64), usize>,
    deaths: u32,
    /// How often the store went back.
    times_back: u32,
    /// The store has gone back, and not all that it lost is made again.
    pub(crate) incomplete: bool,
    /// (key, content) of events of which a delivery was acknowledged.
    acknowledged_events: BTreeSet<(Key, u64)>,
    alarms: Alarms,
}

impl Checker {
    pub(crate) fn new(plan: &Plan) -> Self {
        Self {
            plan: plan.clone(),
            violation: None,
            now: 0,
            keys: BTreeMap::new(),
            known: Known::default(),
            letters: BTreeMap::new(),
            letter_index: BTreeMap::new(),
            publishing: Publishing::default(),
            tries: Tries::default(),
            watches: BTreeMap::new(),
            corrupt: BTreeSet::new(),
            unread: BTreeSet::new(),
            mended: false,
            places: BTreeMap::new(),
            deaths: 0,
            times_back: 0,
            incomplete: false,
            acknowledged_events: BTreeSet::new(),
            alarms: Alarms::default(),
        }
    }

    /// The first thing that broke, if something did.
    pub(crate) fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    /// Notes that something broke. Only the first counts: the rest may follow from it.
    pub(crate) fn broke(&mut self, invariant: &'static str, detail: String) {
        self.violation.get_or_insert(Violation { invariant, detail });
    }

    pub(crate) fn at(&mut self, now: u64) {
        self.now = now;
    }

    /// A job was made unreadable on purpose.
    pub(crate) fn corrupted(&mut self, key: &Key) {
        self.corrupt.insert(key.clone());
    }

    /// Whether a key may stand still because its spilled events cannot be read.
    fn is_unread(&self, key: &str) -> bool {
        !self.mended && self.unread.contains(key)
    }

    /// A read of spilled events fails on purpose.
    pub(crate) fn unread(&mut self, key: &Key) {
        self.unread.insert(key.clone());
    }

    /// From now on none does: whatever stood still because of that has to go on.
    pub(crate) fn mended(&mut self) {
        self.mended = true;
    }

    /// Whether jobs are forgotten while the run lasts.
    fn jobs_expire(&self) -> bool {
        let settings = &self.plan.settings;
        settings.complete_ttl < 1_000_000 || settings.key_ttl.is_some()
    }

    fn model(&mut self, key: &Key) -> &mut KeyModel {
        let first = self.plan.settings.first;
        self.keys.entry(key.clone()).or_insert_with(|| KeyModel::new(first))
    }

    /// The next sequence of a key to settle, durably.
    fn next(&self, key: &Key) -> u64 {
        self.keys.get(key).map_or(self.plan.settings.first, |model| model.next)
    }

    /// Bytes that are no event were delivered.
    pub(crate) fn delivered_raw(&mut self, bytes: &Bytes) {
        self.known.raw.insert(bytes.clone());
    }
}

/// For people: a sequence of a key.
fn at(key: &str, sequence: u64) -> String {
    format!("{key:?} #{sequence}")
}
