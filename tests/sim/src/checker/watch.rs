//! What one owner asks for and is told. Each owner is watched by itself: a stale one has to keep
//! to the rules as well.

mod bounds;
mod commits;
mod turns;

use std::collections::BTreeMap;
use std::sync::Arc;

use ordain_core::{Batch, Decided, Effect, Event, Input, Key, Token, Version};

use super::{Checker, at};

/// One owner, as seen from outside.
#[derive(Debug, Default)]
pub(super) struct Watch {
    turns: BTreeMap<Token, Flight>,
    loads: BTreeMap<Token, Key>,
    /// Dispatched and not durable, by key: from, to.
    ahead: BTreeMap<Key, (u64, u64)>,
    /// How far that went before a lane started again.
    reached: BTreeMap<Key, u64>,
    /// Commits without an answer.
    commits: BTreeMap<u32, Arc<Batch>>,
    /// Commits answered with `Unknown`: the same one has to come again.
    unknown: BTreeMap<u32, Arc<Batch>>,
    numbers: Vec<u64>,
    acknowledged: u64,
    /// Failed tries of the next event of a key that may pass, while nothing else happened to it.
    failures: BTreeMap<Key, (u64, u32)>,
    /// Keys whose next try has to be on a fresh instance.
    fresh: BTreeMap<Key, u64>,
    /// Replay rounds by key and first missing sequence.
    rounds: BTreeMap<(Key, u64), u32>,
    /// Told to start nothing more.
    draining: bool,
    /// The decision that it executes, if it has what was decided on, and the version of that.
    generation: Option<u64>,
    version: Option<Version>,
    /// Those that keys were executed under when they were loaded.
    loaded: BTreeMap<Key, u64>,
    /// Shards that went back, and their newest commit at that time. With its answer, or the one
    /// after it, lanes start again.
    pub(super) lost: BTreeMap<u32, u64>,
    stopped: bool,
}

#[derive(Debug)]
struct Flight {
    key: Key,
    events: Vec<(u64, Arc<Event>)>,
    /// Its lane has started again meanwhile: what comes of it does not count.
    stale: bool,
    /// It may run although its job is there and not known: what comes of it is refused.
    guess: bool,
    /// It runs on a fresh instance.
    fresh: bool,
}

impl Watch {
    fn hears(&mut self, decided: Option<&Decided>) {
        self.generation = decided.map(|it| it.generation);
        self.version = decided.map(|it| it.build.version.clone());
    }

    /// One past the last event of a key that it has dispatched, or settles by a commit under way.
    pub(super) fn reach(&self, key: &Key) -> Option<u64> {
        let sent = self.commits.values().chain(self.unknown.values());
        let writes = sent.flat_map(|batch| &batch.writes).filter(|write| write.key == *key);
        let dispatched = self.ahead.get(key).map(|(_, to)| *to);
        writes.map(|write| write.job.next).max().max(dispatched)
    }

    /// The same before its lane started again.
    pub(super) fn reached(&self, key: &Key) -> Option<u64> {
        self.reached.get(key).copied()
    }

    /// The lanes of many keys begin anew.
    pub(super) fn all_reborn(&mut self, which: impl Fn(&Key) -> bool) {
        let turns = self.turns.values().map(|flight| &flight.key);
        let all = turns.chain(self.ahead.keys()).chain(self.failures.keys());
        let all = all.chain(self.fresh.keys()).chain(self.rounds.keys().map(|(key, _)| key));
        let keys: Vec<Key> = all.filter(|key| which(key)).cloned().collect();
        for key in &keys {
            self.reborn(key);
        }
    }

    /// A commit will not be applied as it is.
    fn all_reached(&mut self, batch: &Batch) {
        for write in &batch.writes {
            let reached = self.reached.entry(write.key.clone()).or_default();
            *reached = write.job.next.max(*reached);
        }
    }

    /// A key begins anew, or its lane does.
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
    pub(crate) fn born(&mut self, owner: u64, numbers: &[u64], decided: Option<&Decided>) {
        let mut watch = Watch { numbers: numbers.to_vec(), ..Watch::default() };
        watch.hears(decided);
        self.watches.insert(owner, watch);
    }

    pub(crate) fn died(&mut self, owner: u64) {
        self.watches.remove(&owner);
        self.tries.crashes += 1;
        self.deaths += 1;
    }

    /// Another owner has claimed while this one goes on.
    pub(crate) fn doubled(&mut self) {
        self.tries.doubles += 1;
    }

    pub(crate) fn version_changed(&mut self) {
        self.tries.versions += 1;
    }

    fn watch(&mut self, owner: u64) -> &mut Watch {
        self.watches.entry(owner).or_default()
    }

    /// An owner asks for something.
    pub(crate) fn asked(&mut self, owner: u64, effect: &Effect) {
        let settings = self.plan.settings.clone();
        if self.watch(owner).stopped {
            self.broke("I2", format!("asks for {effect:?} after it stopped"));
        }
        match effect {
            Effect::Load { token, key } => {
                let back = self.times_back > 0;
                let watch = self.watch(owner);
                if back {
                    // It may have been loaded before, and be another now.
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

    /// An answer did not go to the end of the question.
    pub(crate) fn cut(&mut self, owner: u64, key: &Key, until: u64) {
        self.tries.cut(owner, key, until);
    }

    /// Nobody was asked for what is missing from this one on: the round does not count.
    pub(crate) fn unasked(&mut self, owner: u64, key: &Key, first: u64) {
        self.tries.cut(owner, key, first);
        if let Some(rounds) = self.watch(owner).rounds.get_mut(&(key.clone(), first)) {
            *rounds = rounds.saturating_sub(1);
        }
    }

    fn round(&mut self, owner: u64, key: &Key, missing: &[std::ops::RangeInclusive<u64>]) {
        self.tries.ask(owner, key, missing);
        let Some(first) = missing.first().map(|range| *range.start()) else {
            return self.broke("gap", format!("{key:?}: a round that asks for nothing"));
        };
        // A hole behind the next event is asked for early; that counts when the key stands at it.
        if first != self.next(key) {
            return;
        }
        let rounds = self.watch(owner).rounds.entry((key.clone(), first)).or_default();
        *rounds += 1;
        let rounds = *rounds;
        // Two more for the tail of a key: it may be asked for while a commit is under way, and once
        // more when the key has been silent after that. A lane that is evicted in the midst of a round makes it
        // again, and so does one whose key another partition takes away.
        let settings = &self.plan.settings;
        let disturbed = settings.max_lanes < 64 || self.plan.partitions > 1 || self.times_back > 0;
        let starts = if disturbed { 4 } else { 1 };
        if rounds > (settings.gap.attempts + 2) * starts {
            self.broke("gap", format!("{}: round {rounds}", at(key, first)));
        }
    }

    /// An owner is about to be told something.
    pub(crate) fn told(&mut self, owner: u64, input: &Input) {
        match input {
            Input::Loaded { token, loaded } => {
                let several = self.plan.partitions > 1 || self.tries.doubles > 0;
                let watch = self.watch(owner);
                let key = watch.loads.remove(token);
                match (&key, loaded) {
                    (Some(key), Ok(Some(loaded))) => {
                        watch.loaded.insert(key.clone(), loaded.job.version_generation());
                    }
                    // What the key was executed under went with its job, as when that expires.
                    (Some(key), Ok(None)) => {
                        watch.loaded.remove(key);
                    }
                    _ => {}
                }
                // What another owner has settled is durable, whoever executed it as well.
                if let (Some(key), Ok(Some(loaded))) = (&key, loaded)
                    && let Some(range) = watch.ahead.get_mut(key)
                {
                    range.0 = loaded.job.next.clamp(range.0, range.1);
                }
                // What of the key was executed as its first life counts for nothing.
                if let (Some(key), Err(_)) = (&key, loaded) {
                    watch.reborn(key);
                }
                // Where another owner has had the key meanwhile, its lane starts again, and a
                // try whose count could not be written is not counted.
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
