//! What one owner asks for: I2 (one turn of a key at a time), I7 (its bounds), the order of its
//! commits and acknowledgements, and that a failed try is written down.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ordain_core::{
    Batch, CommitReply, Effect, Event, Input, Key, Refusal, Stats, Status, Token, Turn, TurnDone,
    shard_of,
};

use super::{Checker, at};
use crate::handler;
use crate::store::Store;

/// One owner, as seen from outside.
#[derive(Debug, Default)]
pub(super) struct Watch {
    turns: BTreeMap<Token, Flight>,
    loads: BTreeSet<Token>,
    /// Dispatched and not durable, by key: from, to.
    ahead: BTreeMap<Key, (u64, u64)>,
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
}

impl Watch {
    /// A key begins anew, or its lane does.
    pub(super) fn reborn(&mut self, key: &Key) {
        self.ahead.remove(key);
        for flight in self.turns.values_mut().filter(|flight| flight.key == *key) {
            flight.stale = true;
        }
        self.failures.remove(key);
        self.fresh.remove(key);
        self.rounds.retain(|(other, _), _| other != key);
    }
}

impl Checker {
    pub(crate) fn born(&mut self, owner: u64, numbers: &[u64]) {
        let watch = Watch { numbers: numbers.to_vec(), ..Watch::default() };
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
            Effect::Load { token, .. } => {
                let watch = self.watch(owner);
                watch.loads.insert(*token);
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
                if *source >= settings.gap.sources {
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

    fn round(&mut self, owner: u64, key: &Key, missing: &[std::ops::RangeInclusive<u64>]) {
        self.tries.ask(key, missing);
        let Some(first) = missing.first().map(|range| *range.start()) else {
            return self.broke("gap", format!("{key:?}: a round that asks for nothing"));
        };
        let rounds = self.watch(owner).rounds.entry((key.clone(), first)).or_default();
        *rounds += 1;
        let rounds = *rounds;
        // One more for the tail of a key; and a lane that is evicted in the midst of a round makes
        // it again.
        let settings = &self.plan.settings;
        let starts = if settings.max_lanes < 64 { 4 } else { 1 };
        if rounds > (settings.gap.attempts + 1) * starts {
            self.broke("gap", format!("{}: round {rounds}", at(key, first)));
        }
    }

    fn runs(&mut self, owner: u64, turn: &Turn) {
        let settings = self.plan.settings.clone();
        let Some(&(first, _)) = turn.events.first() else {
            return self.broke("I1", format!("{:?}: an empty turn", turn.key));
        };
        let place = at(&turn.key, first);
        let consecutive = turn.events.iter().zip(first..).all(|((s, _), due)| *s == due);
        if !consecutive || turn.events.iter().any(|(_, e)| *e.key() != *turn.key) {
            self.broke("I1", format!("{place}: a turn of {:?}", turn.events));
        }
        if turn.events.len() > settings.quantum {
            self.broke("I7", format!("{place}: a turn of {} events", turn.events.len()));
        }
        let guess = first == settings.first && self.keys.get(&turn.key).is_some_and(|k| k.live);
        let watch = self.watch(owner);
        let other = watch.turns.values().any(|flight| flight.key == turn.key);
        let fresh = watch.fresh.remove(&turn.key).is_none_or(|due| due != first || turn.fresh);
        let (key, events) = (turn.key.clone(), turn.events.clone());
        let flight = Flight { key, events, stale: false, guess };
        let reused = watch.turns.insert(turn.token, flight).is_some();
        let turns = watch.turns.len();
        let to = first + turn.events.len() as u64;
        let range = watch.ahead.entry(turn.key.clone()).or_insert((first, to));
        if range.1 != first {
            *range = (first, to);
        }
        range.1 = to;
        let ahead: u64 = watch.ahead.values().map(|(from, to)| to - from).sum();
        let draining = watch.draining;
        if draining {
            self.broke("drain", format!("{place}: a turn after the drain"));
        } else if other {
            self.broke("I2", format!("{place}: a second turn of its key"));
        } else if reused {
            self.broke("I2", format!("{place}: a token used twice"));
        } else if turns > settings.max_turns {
            self.broke("I7", format!("{place}: {turns} turns at a time"));
        } else if ahead > settings.run_ahead as u64 {
            self.broke("I7", format!("{place}: {ahead} events ahead of durability"));
        } else if !fresh {
            self.broke("retry", format!("{place}: not on a fresh instance"));
        }
    }

    fn commits(&mut self, owner: u64, batch: &Arc<Batch>) {
        let shard = batch.shard;
        let what = format!("commit {} of shard {shard}", batch.number);
        let shards = self.plan.settings.shards;
        let mut keys: Vec<&Key> = batch.writes.iter().map(|write| &write.key).collect();
        let writes = keys.len();
        if keys.iter().any(|key| shard_of(key, shards) != shard) || shard >= shards {
            return self.broke("I2", format!("{what} has keys of another shard"));
        }
        keys.sort();
        keys.dedup();
        if keys.len() != writes && std::env::var("LAX").is_err() {
            self.broke("I2", format!("{what} has two writes of a key"));
        }
        self.batch_size(batch, &what);
        let watch = self.watch(owner);
        let last = watch.numbers[shard as usize];
        let again = watch.unknown.remove(&shard);
        let busy = watch.commits.insert(shard, batch.clone()).is_some();
        watch.numbers[shard as usize] = batch.number;
        if busy {
            self.broke("I7", format!("{what} while another is under way"));
        } else if let Some(again) = again {
            if again != *batch {
                self.broke("I4", format!("{what} is not the one whose answer was lost"));
            }
        } else if batch.number != last + 1 {
            self.broke("I4", format!("{what} follows {last}"));
        }
    }

    /// A turn is never cut, and neither is the skip of a wide gap.
    fn batch_size(&mut self, batch: &Batch, what: &str) {
        let settings = &self.plan.settings;
        let spilled: usize = batch.writes.iter().map(|write| write.spill.len()).sum();
        let events = spilled + batch.letters.len() + batch.writes.len();
        let allowed = settings.batch_events + settings.quantum + settings.lane_buffer;
        if events > allowed {
            self.broke("I7", format!("{what} has {events} events, {allowed} allowed"));
        }
    }

    /// An owner is about to be told something.
    pub(crate) fn told(&mut self, owner: u64, input: &Input) {
        match input {
            Input::Loaded { token, .. } => {
                self.watch(owner).loads.remove(token);
            }
            Input::TurnDone(done) => self.done(owner, done),
            Input::Committed { shard, reply, .. } => self.committed(owner, *shard, reply),
            Input::VersionChanged(_) => {
                let watch = self.watch(owner);
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

    fn done(&mut self, owner: u64, done: &TurnDone) {
        let watch = self.watch(owner);
        let Some(flight) = watch.turns.remove(&done.token) else { return };
        let Flight { key, events, stale, guess } = flight;
        let first = events[0].0;
        let next = first + done.verdicts.len() as u64;
        if let Some(range) = watch.ahead.get_mut(&key)
            && range.1 == first + events.len() as u64
        {
            range.1 = next.max(range.0);
        }
        let Some(failure) = &done.failure else { return };
        let (_, event) = &events[done.verdicts.len()];
        let nature = handler::nature(&self.plan, event);
        let counts = !stale && !guess;
        self.failed(&key, event.content(), nature, counts);
        if !counts {
            return;
        }
        let watch = self.watch(owner);
        if failure.kind.may_pass() {
            let count = watch.failures.entry(key.clone()).or_insert((next, 0));
            *count = (next, if count.0 == next { count.1 + 1 } else { 1 });
        } else {
            watch.fresh.insert(key.clone(), next);
        }
    }

    fn committed(&mut self, owner: u64, shard: u32, reply: &CommitReply) {
        let watch = self.watch(owner);
        let Some(batch) = watch.commits.remove(&shard) else { return };
        let CommitReply::Applied(applied) = reply else {
            watch.unknown.insert(shard, batch);
            return;
        };
        let mut refused = Vec::new();
        for (index, write) in batch.writes.iter().enumerate() {
            if let Some((_, why)) = applied.refused.iter().find(|(other, _)| *other == index) {
                watch.reborn(&write.key);
                refused.push((write.key.clone(), why.clone()));
                continue;
            }
            if write.job.status == Status::Parked {
                watch.reborn(&write.key);
            }
            watch.fresh.retain(|key, sequence| *key != write.key || *sequence >= write.job.next);
            if let Some(range) = watch.ahead.get_mut(&write.key) {
                range.0 = write.job.next.clamp(range.0, range.1);
            }
        }
        for (key, why) in refused {
            self.tries.refuse(&key);
            self.may_be_refused(&key, &why);
        }
    }

    /// With one owner for good, nobody else moves its jobs.
    fn may_be_refused(&mut self, key: &Key, why: &Refusal) {
        let alone = self.plan.partitions == 1;
        let unreadable = self.corrupt.contains(key);
        // A job may expire between its load and a commit, and a stale load may precede both.
        if alone && !unreadable && !self.jobs_expire() && !self.speculates() {
            self.broke("I2", format!("{key:?}: a write of the only owner is refused: {why:?}"));
        }
    }

    /// Whether sequence 1 may run before the job is known.
    fn speculates(&self) -> bool {
        self.plan.settings.ordering == ordain_core::Ordering::Sequenced
    }

    /// An owner has nothing more to ask for at this time.
    pub(crate) fn drained(&mut self, owner: u64, stats: &Stats, credit: usize, store: &Store) {
        let settings = &self.plan.settings;
        let slack = 64 << 10;
        let batch = settings.batch_events * 3;
        let bounds = [
            ("lanes", stats.lanes, settings.max_lanes),
            ("bytes in memory", stats.memory, settings.memory_budget + slack),
            ("deliveries unacknowledged", stats.unacknowledged + credit, settings.prefetch),
            ("events ahead", stats.ahead, settings.run_ahead),
            ("turns", stats.turns, settings.max_turns),
            ("loads", stats.loads, settings.max_loads),
            ("messages unpublished", stats.outbox, settings.max_outbox + batch),
        ];
        for (what, is, limit) in bounds {
            if is > limit {
                return self.broke("I7", format!("{is} {what}, {limit} allowed"));
            }
        }
        if stats.outbox < settings.max_outbox {
            self.written_down(owner, store);
        }
    }

    /// Failed tries are durable as soon as there was an occasion.
    fn written_down(&mut self, owner: u64, store: &Store) {
        let settings = self.plan.settings.clone();
        let watch = self.watch(owner);
        if watch.stopped {
            return;
        }
        let mut missing = None;
        watch.failures.retain(|key, (sequence, count)| {
            let shard = shard_of(key, settings.shards);
            if watch.commits.contains_key(&shard) || watch.unknown.contains_key(&shard) {
                return true;
            }
            let job = store.records.get(key).map(|record| &record.job);
            let here = job.is_none_or(|job| job.next == *sequence);
            let durable = job.map_or(0, |job| job.attempts);
            if here && *count < settings.retry.attempts && durable < *count {
                missing = Some((key.clone(), *sequence, *count, durable));
            }
            here
        });
        if let Some((key, sequence, count, durable)) = missing {
            let detail = format!("{}: {count} failed, {durable} written", at(&key, sequence));
            self.broke("retry", detail);
        }
    }
}
