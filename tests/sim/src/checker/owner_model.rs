//! Checks the effects and inputs of each owner separately, because a stale owner must also follow the rules.

mod bounds;
mod commits;
mod replay;
mod turns;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ordain_core::{AttemptToken, Batch, Effect, Event, Input, Key, Rollout, VersionName};

use super::Checker;

/// Derived from the owner's inputs and effects.
#[derive(Debug, Default)]
pub(super) struct OwnerModel {
    turns: BTreeMap<AttemptToken, RunningTurn>,
    loads: BTreeMap<AttemptToken, Key>,
    /// By key, the range (first, one past the last) of dispatched events that are not yet durable.
    ahead: BTreeMap<Key, (u64, u64)>,
    /// The keys whose first event the owner executes a second time, because it has not loaded the key record. The store
    /// refuses the results of all turns of such a key until the lane of the key starts again.
    guesses: BTreeSet<Key>,
    /// By key, the highest [`Self::reach`] before the lane started again.
    reached: BTreeMap<Key, u64>,
    /// By shard, the commit without an answer.
    commits: BTreeMap<u32, Arc<Batch>>,
    /// By shard, a commit without a final answer, which the owner must send again.
    unknown: BTreeMap<u32, Arc<Batch>>,
    numbers: Vec<u64>,
    acknowledged: u64,
    /// By key, the sequence of the event that failed last, and the number of its consecutive failures of a kind that
    /// may pass (`FailureKind::may_pass`).
    failures: BTreeMap<Key, (u64, u32)>,
    /// By key, the sequence whose next attempt needs a fresh instance of the handler.
    fresh: BTreeMap<Key, u64>,
    /// By key, first missing sequence and replay source, the number of requests of this owner.
    requests: BTreeMap<(Key, u64, usize), u32>,
    /// By key, the number of loads whose key record contained a range of dead letters of later events.
    ahead_loads: BTreeMap<Key, u32>,
    /// By key and sequence of an event that waits for earlier events: the number of dead letters of this event that
    /// were committed during the life of this owner.
    early_letters: BTreeMap<(Key, u64), u32>,
    /// The owner must start no more turns.
    draining: bool,
    /// `None` if the owner lacks the handler version of the rollout.
    rollout_number: Option<u64>,
    version: Option<VersionName>,
    /// By key, the rollout number in the key record when the owner loaded it.
    loaded: BTreeMap<Key, u64>,
    /// The newest lost commit of each shard that went back. The lanes of the shard start again when the store answers
    /// this commit or the next commit.
    pub(super) lost: BTreeMap<u32, u64>,
    /// True if another owner has claimed the partition.
    taken_over: bool,
    /// The owner has requested its stop.
    stopped: bool,
}

#[derive(Debug)]
struct RunningTurn {
    key: Key,
    events: Vec<(u64, Arc<Event>)>,
    /// The lane of the key has started again since the turn began, so the results do not count.
    stale: bool,
    /// It is possible that the owner has not loaded the existing key record. The store refuses the results of such a
    /// guess.
    guess: bool,
    fresh: bool,
}

impl OwnerModel {
    fn set_rollout(&mut self, rollout: Option<&Rollout>) {
        self.rollout_number = rollout.map(|rollout| rollout.number);
        self.version = rollout.map(|rollout| rollout.build.version.clone());
    }

    /// Returns the sequence after the last event of a key. Only events count that the owner has dispatched, or that a
    /// commit under way settles.
    pub(super) fn reach(&self, key: &Key) -> Option<u64> {
        let sent = self.commits.values().chain(self.unknown.values());
        let writes = sent.flat_map(|batch| &batch.writes).filter(|write| write.key == *key);
        let dispatched = self.ahead.get(key).map(|(_, to)| *to);
        writes.map(|write| write.record.next).max().max(dispatched)
    }

    /// The value of [`Self::reach`] before the lane of the key started again.
    pub(super) fn reached(&self, key: &Key) -> Option<u64> {
        self.reached.get(key).copied()
    }

    /// Records that the lanes of all keys for which `is_selected` returns true start again.
    pub(super) fn lanes_restarted(&mut self, is_selected: impl Fn(&Key) -> bool) {
        let turns = self.turns.values().map(|running_turn| &running_turn.key);
        let all = turns.chain(self.ahead.keys()).chain(self.failures.keys());
        let all = all.chain(self.fresh.keys()).chain(self.requests.keys().map(|(key, ..)| key));
        let keys: Vec<Key> = all.filter(|key| is_selected(key)).cloned().collect();
        for key in &keys {
            self.lane_restarted(key);
        }
    }

    /// Records the sequences up to which a commit would have settled its keys, if the store had not gone back. The
    /// owner may change this commit before it sends the commit again.
    fn all_reached(&mut self, batch: &Batch) {
        for write in &batch.writes {
            let reached = self.reached.entry(write.key.clone()).or_default();
            *reached = write.record.next.max(*reached);
        }
    }

    /// Records that the owner may have dropped the results of a key that are not durable.
    fn results_dropped(&mut self, key: &Key) {
        self.guesses.remove(key);
        if let Some((_, to)) = self.ahead.remove(key) {
            let reached = self.reached.entry(key.clone()).or_default();
            *reached = to.max(*reached);
        }
    }

    /// Records that the lane of a key starts again, or that the record of the key has expired.
    pub(super) fn lane_restarted(&mut self, key: &Key) {
        self.results_dropped(key);
        for running_turn in self.turns.values_mut().filter(|running_turn| running_turn.key == *key)
        {
            running_turn.stale = true;
        }
        self.failures.remove(key);
        self.fresh.remove(key);
        self.requests.retain(|(other, ..), _| other != key);
    }
}

impl Checker {
    pub(crate) fn owner_started(&mut self, owner: u64, numbers: &[u64], rollout: Option<&Rollout>) {
        let mut owner_model = OwnerModel { numbers: numbers.to_vec(), ..OwnerModel::default() };
        owner_model.set_rollout(rollout);
        // A new owner does not have the events of recovered commits in memory.
        self.recovered.clear();
        self.owner_models.insert(owner, owner_model);
    }

    pub(crate) fn owner_ended(&mut self, owner: u64) {
        self.owner_models.remove(&owner);
        self.attempts.crashes += 1;
        self.deaths += 1;
    }

    /// This owner continues.
    pub(crate) fn partition_taken_over(&mut self, owner: u64) {
        self.attempts.takeovers += 1;
        self.owner_model(owner).taken_over = true;
    }

    pub(crate) fn version_changed(&mut self) {
        self.attempts.versions += 1;
    }

    fn owner_model(&mut self, owner: u64) -> &mut OwnerModel {
        self.owner_models.entry(owner).or_default()
    }

    pub(crate) fn effect_requested(&mut self, owner: u64, effect: &Effect) {
        let settings = self.plan.settings.clone();
        if self.owner_model(owner).stopped {
            self.broke("I2", format!("an owner requests {effect:?} after its stop"));
        }
        match effect {
            Effect::Load { token, key } => {
                let back = self.rollback_count > 0;
                let owner_model = self.owner_model(owner);
                if back {
                    // The owner may have loaded the key record before the store went back. The record may differ now.
                    owner_model.lane_restarted(key);
                }
                owner_model.loads.insert(*token, key.clone());
                let loads = owner_model.loads.len();
                if loads > settings.max_loads {
                    self.broke("I7", format!("{loads} loads at a time"));
                }
            }
            Effect::Run(turn) => self.runs(owner, turn),
            Effect::Commit(batch) => self.commits(owner, batch),
            Effect::Ack { through } => {
                let owner_model = self.owner_model(owner);
                let last = std::mem::replace(&mut owner_model.acknowledged, *through);
                if *through <= last {
                    self.broke(
                        "I3",
                        format!("an owner acknowledges delivery {through} after delivery {last}"),
                    );
                }
            }
            Effect::Replay { key, source, missing, .. } => {
                if *source >= settings.gap.sources.len() {
                    self.broke("gap", format!("replay source {source} does not exist"));
                }
                self.requested(owner, key, *source, missing);
            }
            Effect::Stop(_) => self.owner_model(owner).stopped = true,
            Effect::Publish { .. }
            | Effect::ReadSpill { .. }
            | Effect::ReadEarlyLetters { .. }
            | Effect::ReadDue { .. } => {}
        }
    }

    /// The owner will receive the input next.
    pub(crate) fn input_received(&mut self, owner: u64, input: &Input) {
        match input {
            Input::Loaded { token, loaded } => {
                let several = self.plan.partitions > 1 || self.attempts.takeovers > 0;
                let owner_model = self.owner_model(owner);
                let key = owner_model.loads.remove(token);
                match (&key, loaded) {
                    (Some(key), Ok(Some(loaded))) => {
                        owner_model.loaded.insert(key.clone(), loaded.record.rollout_number());
                        if loaded.record.ahead.is_some() {
                            *owner_model.ahead_loads.entry(key.clone()).or_default() += 1;
                        }
                    }
                    // The store has no record of the key, and therefore no rollout number. The record may have expired.
                    (Some(key), Ok(None)) => {
                        owner_model.loaded.remove(key);
                    }
                    _ => {}
                }
                // Another owner has settled these events, so they are durable, and so is the rollout that executed
                // them.
                if let (Some(key), Ok(Some(loaded))) = (&key, loaded)
                    && let Some(range) = owner_model.ahead.get_mut(key)
                {
                    range.0 = loaded.record.next.clamp(range.0, range.1);
                }
                // If the record cannot be read, the results of guesses, which ran before this answer, do not count.
                if let (Some(key), Err(_)) = (&key, loaded) {
                    owner_model.lane_restarted(key);
                }
                // Another owner may have had the key since the last load. In this case, the lane starts again. The lane
                // then loses the failed attempts that the owner of the lane had not yet written into the key record,
                // and the result of a turn that began during the load.
                if let Some(key) = key.filter(|_| several) {
                    owner_model.failures.remove(&key);
                    if owner_model.turns.values().any(|running_turn| running_turn.key == key) {
                        owner_model.results_dropped(&key);
                    }
                }
            }
            Input::TurnDone(done) => self.done(owner, done),
            Input::Committed { shard, reply, .. } => self.committed(owner, *shard, reply),
            Input::VersionChanged(version) => {
                let owner_model = self.owner_model(owner);
                owner_model.set_rollout(version.as_deref());
                owner_model.failures.clear();
                owner_model.fresh.clear();
            }
            Input::Drain => self.owner_model(owner).draining = true,
            Input::SourceReset => {
                let owner_model = self.owner_model(owner);
                owner_model.failures.clear();
                owner_model.requests.clear();
            }
            _ => {}
        }
    }
}
