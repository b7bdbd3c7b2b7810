//! The effects and inputs of one owner. The checker watches each owner separately: a stale owner must follow the
//! rules, too.

mod bounds;
mod commits;
mod turns;

use std::collections::BTreeMap;
use std::sync::Arc;

use ordain_core::{AttemptToken, Batch, Effect, Event, Input, Key, Rollout, VersionName};

use super::{Checker, at};

/// An owner, as seen from outside.
#[derive(Debug, Default)]
pub(super) struct Watch {
    turns: BTreeMap<AttemptToken, Flight>,
    loads: BTreeMap<AttemptToken, Key>,
    /// The range (first, one past the last) of events that are dispatched and not durable, by key.
    ahead: BTreeMap<Key, (u64, u64)>,
    /// The end of that range before a lane started again.
    reached: BTreeMap<Key, u64>,
    /// Commits without an answer.
    commits: BTreeMap<u32, Arc<Batch>>,
    /// Commits answered with `Unknown`: the owner must send the same commit again.
    unknown: BTreeMap<u32, Arc<Batch>>,
    numbers: Vec<u64>,
    acknowledged: u64,
    /// Failed tries of the next event of a key, if the event may still succeed and nothing else happened to it.
    failures: BTreeMap<Key, (u64, u32)>,
    /// Keys whose next try must run on a fresh instance.
    fresh: BTreeMap<Key, u64>,
    /// Replay rounds by key and first missing sequence.
    rounds: BTreeMap<(Key, u64), u32>,
    /// True if the owner was requested to start nothing more.
    draining: bool,
    /// The number of the rollout that the owner executes, and the version, if the owner has that version.
    generation: Option<u64>,
    version: Option<VersionName>,
    /// The number of the rollout under which each key had been executed when the owner loaded it.
    loaded: BTreeMap<Key, u64>,
    /// Shards that went back, and their newest commit at that time. Lanes start again with the answer to that commit
    /// or to the next one.
    pub(super) lost: BTreeMap<u32, u64>,
    stopped: bool,
}

#[derive(Debug)]
struct Flight {
    key: Key,
    events: Vec<(u64, Arc<Event>)>,
    /// True if the turn's lane has started again since: the checker ignores the turn's results.
    stale: bool,
    /// True if the turn may be a guess: its key has a record that the owner does not know, and the store refuses the
    /// turn's results.
    guess: bool,
    /// True if the turn runs on a fresh instance.
    fresh: bool,
}

impl Watch {
    fn hears(&mut self, decided: Option<&Rollout>) {
        self.generation = decided.map(|decided| decided.number);
        self.version = decided.map(|decided| decided.build.version.clone());
    }

    /// Returns one past the last event of a key that the owner has dispatched, or that a commit under way settles.
    pub(super) fn reach(&self, key: &Key) -> Option<u64> {
        let sent = self.commits.values().chain(self.unknown.values());
        let writes = sent.flat_map(|batch| &batch.writes).filter(|write| write.key == *key);
        let dispatched = self.ahead.get(key).map(|(_, to)| *to);
        writes.map(|write| write.record.next).max().max(dispatched)
    }

    /// Returns the same before the lane of the key started again.
    pub(super) fn reached(&self, key: &Key) -> Option<u64> {
        self.reached.get(key).copied()
    }

    /// Records that the lanes of many keys begin again.
    pub(super) fn all_reborn(&mut self, which: impl Fn(&Key) -> bool) {
        let turns = self.turns.values().map(|flight| &flight.key);
        let all = turns.chain(self.ahead.keys()).chain(self.failures.keys());
        let all = all.chain(self.fresh.keys()).chain(self.rounds.keys().map(|(key, _)| key));
        let keys: Vec<Key> = all.filter(|key| which(key)).cloned().collect();
        for key in &keys {
            self.reborn(key);
        }
    }

    /// Records that a commit will not be applied unchanged.
    fn all_reached(&mut self, batch: &Batch) {
        for write in &batch.writes {
            let reached = self.reached.entry(write.key.clone()).or_default();
            *reached = write.record.next.max(*reached);
        }
    }

    /// Records that a key, or its lane, begins again.
    pub(super) fn reborn(&mut self, key: &Key) {
        if let Some((_, to)) = self.ahead.remove(key) {
            let reached = self.reached.entry(key.clone()).or_default();
            *reached = to.max(*reached);
        }
        for flight in self.turns.values_mut().filter(|flight| flight.key == *key) {
            flight.stale = true;
        }
        self.failures.remove(key);
        self.fresh.remove(key);
        self.rounds.retain(|(other, _), _| other != key);
    }
}

impl Checker {
    pub(crate) fn born(&mut self, owner: u64, numbers: &[u64], decided: Option<&Rollout>) {
        let mut watch = Watch { numbers: numbers.to_vec(), ..Watch::default() };
        watch.hears(decided);
        self.watches.insert(owner, watch);
    }

    pub(crate) fn died(&mut self, owner: u64) {
        self.watches.remove(&owner);
        self.tries.crashes += 1;
        self.deaths += 1;
    }

    /// Records that another owner has claimed the partition while this owner continues.
    pub(crate) fn doubled(&mut self) {
        self.tries.doubles += 1;
    }

    pub(crate) fn version_changed(&mut self) {
        self.tries.versions += 1;
    }

    fn watch(&mut self, owner: u64) -> &mut Watch {
        self.watches.entry(owner).or_default()
    }

    /// Checks an effect that an owner requests.
    pub(crate) fn asked(&mut self, owner: u64, effect: &Effect) {
        let settings = self.plan.settings.clone();
        if self.watch(owner).stopped {
            self.broke("I2", format!("requests {effect:?} after it stopped"));
        }
        match effect {
            Effect::Load { token, key } => {
                let back = self.times_back > 0;
                let watch = self.watch(owner);
                if back {
                    // The key record may have been loaded before, and may have changed.
                    watch.reborn(key);
                }
                watch.loads.insert(*token, key.clone());
                let loads = watch.loads.len();
                if loads > settings.max_loads {
                    self.broke("I7", format!("{loads} loads at a time"));
                }
            }
            Effect::Run(turn) => self.runs(owner, turn),
            Effect::Commit(batch) => self.commits(owner, batch),
            Effect::Ack { through } => {
                let watch = self.watch(owner);
                let last = std::mem::replace(&mut watch.acknowledged, *through);
                if *through <= last {
                    self.broke("I3", format!("acknowledges {through} after {last}"));
                }
            }
            Effect::Replay { key, source, missing, .. } => {
                if *source >= settings.gap.sources.len() {
                    self.broke("gap", format!("replay source {source} does not exist"));
                }
                if *source == 0 {
                    self.round(owner, key, missing);
                }
            }
            Effect::Stop(_) => self.watch(owner).stopped = true,
            Effect::Publish { .. } | Effect::ReadSpill { .. } | Effect::ReadDue { .. } => {}
        }
    }

    /// Records that an answer did not cover the whole request.
    pub(crate) fn cut(&mut self, owner: u64, key: &Key, until: u64) {
        self.tries.cut(owner, key, until);
    }

    /// Records that no source was queried for the missing events from this one on: the round does not count.
    pub(crate) fn unasked(&mut self, owner: u64, key: &Key, first: u64) {
        self.tries.cut(owner, key, first);
        if let Some(rounds) = self.watch(owner).rounds.get_mut(&(key.clone(), first)) {
            *rounds = rounds.saturating_sub(1);
        }
    }

    fn round(&mut self, owner: u64, key: &Key, missing: &[std::ops::RangeInclusive<u64>]) {
        self.tries.ask(owner, key, missing);
        let Some(first) = missing.first().map(|range| *range.start()) else {
            return self.broke("gap", format!("{key:?}: a round that requests nothing"));
        };
        // The owner may request a hole behind the next event early; the round counts when the key reaches the hole.
        if first != self.next(key) {
            return;
        }
        let rounds = self.watch(owner).rounds.entry((key.clone(), first)).or_default();
        *rounds += 1;
        let rounds = *rounds;
        // The limit has two more rounds for the tail of a key: the owner may request it while a commit is under way,
        // and again when the key has been silent after that. A lane that is evicted during a round repeats the round,
        // and so does a lane whose key another partition takes over.
        let settings = &self.plan.settings;
        let disturbed = settings.max_lanes < 64 || self.plan.partitions > 1 || self.times_back > 0;
        let starts = if disturbed { 4 } else { 1 };
        if rounds > (settings.gap.attempts + 2) * starts {
            self.broke("gap", format!("{}: round {rounds}", at(key, first)));
        }
    }

    /// Records an input that an owner is about to receive.
    pub(crate) fn told(&mut self, owner: u64, input: &Input) {
        match input {
            Input::Loaded { token, loaded } => {
                let several = self.plan.partitions > 1 || self.tries.doubles > 0;
                let watch = self.watch(owner);
                let key = watch.loads.remove(token);
                match (&key, loaded) {
                    (Some(key), Ok(Some(loaded))) => {
                        watch.loaded.insert(key.clone(), loaded.record.rollout_number());
                    }
                    // The rollout number of the key was removed with its record, as when a record expires.
                    (Some(key), Ok(None)) => {
                        watch.loaded.remove(key);
                    }
                    _ => {}
                }
                // Events that another owner has settled are durable, and so is the rollout that executed them.
                if let (Some(key), Ok(Some(loaded))) = (&key, loaded)
                    && let Some(range) = watch.ahead.get_mut(key)
                {
                    range.0 = loaded.record.next.clamp(range.0, range.1);
                }
                // Results of the key's first life that were executed on a guess do not count.
                if let (Some(key), Err(_)) = (&key, loaded) {
                    watch.reborn(key);
                }
                // If another owner has had the key meanwhile, its lane starts again, and a try whose count could
                // not be written is not counted.
                if let Some(key) = key.filter(|_| several) {
                    watch.failures.remove(&key);
                }
            }
            Input::TurnDone(done) => self.done(owner, done),
            Input::Committed { shard, reply, .. } => self.committed(owner, *shard, reply),
            Input::VersionChanged(version) => {
                let watch = self.watch(owner);
                watch.hears(version.as_deref());
                watch.failures.clear();
                watch.fresh.clear();
            }
            Input::Drain => self.watch(owner).draining = true,
            Input::SourceReset => {
                let watch = self.watch(owner);
                watch.failures.clear();
                watch.rounds.clear();
            }
            _ => {}
        }
    }
}
