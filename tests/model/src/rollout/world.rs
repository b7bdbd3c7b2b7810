//! The store, the instances, and the record of the key.

use std::hash::{Hash, Hasher};
use std::sync::OnceLock;

use ordain_core::rollout::RolloutMemory;
use ordain_core::{Build, FileDigest, KeyRecord, Rollout};

use super::{RolloutFault, RolloutStep};

/// Within this number of rounds, the rollouts must stop changing if no new failure happens.
const ROUND_LIMIT: usize = 20;

/// The counts of rare events. A comparison of two states ignores them, except `rollbacks` and `kills`, which are also a
/// part of the state.
#[derive(Debug, Clone, Copy, Default)]
pub struct RolloutCounts {
    /// Number of times that the table went back.
    pub rollbacks: u64,
    /// Number of times that an instance found another build under the number of its own rollout.
    pub repeated: u64,
    /// Number of times that an instance found that the key needed a newer rollout than the store had.
    pub required: u64,
    /// Number of rollouts that the store refused, because the stored rollout was not the rollout that the instance had
    /// read.
    pub refused: u64,
    /// Number of times that an instance was killed.
    pub kills: u64,
}

/// A violation: the way in which a run has broken a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RolloutViolation {
    /// Two builds executed events of a key under one rollout number, or a build executed an event under a lower number
    /// than the key already had.
    TwoBuilds,
    /// An instance replaced a rollout that it had not read.
    Overwritten,
    /// The store has no rollout; or an instance with the build of the store's rollout does not execute this rollout; or
    /// an instance executes another rollout.
    Disagreement,
    /// An instance with the build of the store's rollout cannot execute events of the key.
    Stuck,
    /// The rollouts never stop changing.
    EndlessChanges,
}

impl RolloutViolation {
    /// Returns the rule that is broken.
    pub const fn rule(self) -> &'static str {
        match self {
            Self::TwoBuilds => "a key has one build under each number, and the numbers rise",
            Self::Overwritten => "an instance replaces only a rollout that it has read",
            Self::Disagreement => "all instances run the build of the store",
            Self::Stuck => "an instance with the build executes the key",
            Self::EndlessChanges => "rollouts stop changing",
        }
    }
}

/// The last rollout, and the build that each member offers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Table {
    rollout: Option<Rollout>,
    offers: Vec<Option<u8>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Instance {
    memory: RolloutMemory,
    /// The table that was read last.
    table: Table,
    /// The instance executes events under this rollout.
    active: Option<Rollout>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    fault: Option<RolloutFault>,
    store: Table,
    /// The first of these tables is the table at the beginning of the run.
    past: Vec<Table>,
    /// The folder of each instance: bit N stands for build N.
    folders: Vec<u8>,
    instances: Vec<Option<Instance>>,
    key: Option<Rollout>,
    changes: u64,
    kills: u64,
    rollbacks: u64,
    broken: Option<RolloutViolation>,
}

/// The state of a run at one moment, and the counts of rare events up to this moment.
#[derive(Debug, Clone)]
pub struct RolloutWorld {
    state: State,
    counts: RolloutCounts,
    /// The violation that the final check would find if no new failure happened from this moment on. The first use
    /// computes this value.
    end_check: OnceLock<Option<RolloutViolation>>,
}

impl PartialEq for RolloutWorld {
    fn eq(&self, other: &Self) -> bool {
        self.state == other.state
    }
}

impl Hash for RolloutWorld {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.state.hash(hasher);
    }
}

fn build(number: u8) -> Build {
    Build { version: format!("h@{number}.0.0").into(), digest: FileDigest([number; 32]) }
}

/// The highest number in the folder.
fn offer(folder: u8) -> u8 {
    folder.ilog2() as u8
}

/// Returns whether an instance has a build: as a file in its folder, or as the build that it executes.
fn has(folder: u8, running: &Instance, wanted: &Build) -> bool {
    let is_file = (0..8).any(|number| folder & (1 << number) != 0 && build(number) == *wanted);
    is_file || running.active.as_ref().is_some_and(|active| active.build == *wanted)
}

impl RolloutWorld {
    /// Returns the first state of a run: no instance runs. [`super::RolloutScope`] lists the files in each folder.
    pub fn new(instances: u8, fault: Option<RolloutFault>) -> Self {
        let instances = usize::from(instances);
        let store = Table { rollout: None, offers: vec![None; instances] };
        let state = State {
            fault,
            past: vec![store.clone()],
            store,
            folders: (0..instances).map(|instance| 1 << 1 | 1 << (instance + 1)).collect(),
            instances: vec![None; instances],
            key: None,
            changes: 0,
            kills: 0,
            rollbacks: 0,
            broken: None,
        };
        Self { state, counts: RolloutCounts::default(), end_check: OnceLock::new() }
    }

    /// Performs a step.
    pub fn step(&mut self, step: RolloutStep) {
        self.end_check = OnceLock::new();
        match step {
            RolloutStep::Start(instance) => self.start(usize::from(instance)),
            RolloutStep::Poll(instance) => self.poll(usize::from(instance)),
            RolloutStep::Decide(instance) => self.decide(usize::from(instance)),
            RolloutStep::Execute(instance) => self.execute(usize::from(instance)),
            RolloutStep::Add(instance, build) => {
                let folder = self.state.folders[usize::from(instance)];
                self.change(usize::from(instance), folder | 1 << build);
            }
            RolloutStep::Remove(instance, build) => {
                let folder = self.state.folders[usize::from(instance)];
                self.change(usize::from(instance), folder & !(1 << build));
            }
            RolloutStep::Kill(instance) => self.kill(usize::from(instance)),
            RolloutStep::Remember => self.remember(),
            RolloutStep::GoBack(to) => self.go_back(to),
        }
    }

    /// Returns the rule that a step broke, if any.
    pub fn broken(&self) -> Option<RolloutViolation> {
        self.state.broken
    }

    /// Returns the broken rule, if any, that the final check would find if no new failure happened from this moment on.
    pub fn broken_at_end(&self) -> Option<RolloutViolation> {
        *self.end_check.get_or_init(|| {
            let mut world = self.clone();
            world.finish_and_check();
            world.broken()
        })
    }

    /// Returns the counts of rare events up to now.
    pub fn counts(&self) -> RolloutCounts {
        let State { rollbacks, kills, .. } = self.state;
        RolloutCounts { rollbacks, kills, ..self.counts }
    }

    /// Returns how often folders have changed.
    pub fn changes(&self) -> u64 {
        self.state.changes
    }

    /// Returns how often instances were killed.
    pub fn kills(&self) -> u64 {
        self.state.kills
    }

    /// Returns how often the table went back.
    pub fn rollbacks(&self) -> u64 {
        self.state.rollbacks
    }

    /// Returns the number of tables that the store may go back to.
    pub fn past(&self) -> usize {
        self.state.past.len()
    }

    fn is(&self, fault: RolloutFault) -> bool {
        self.state.fault == Some(fault)
    }

    fn record_violation(&mut self, broken: RolloutViolation) {
        self.state.broken.get_or_insert(broken);
    }

    fn start(&mut self, instance: usize) {
        if self.state.instances[instance].is_none() {
            self.state.instances[instance] = Some(Instance::default());
            self.poll(instance);
        }
    }

    fn poll(&mut self, instance: usize) {
        let State { store, folders, instances, .. } = &mut self.state;
        if let Some(running) = &mut instances[instance] {
            store.offers[instance] = Some(offer(folders[instance]));
            running.table.clone_from(store);
        }
    }

    fn decide(&mut self, instance: usize) {
        let forgets = self.is(RolloutFault::NumberIsForgotten);
        let keeps_build = self.is(RolloutFault::BuildIsKept);
        let by_number = self.is(RolloutFault::ReplacedByNumber);
        let own_wins = self.is(RolloutFault::OwnBuildWins);
        let State { store, folders, instances, .. } = &mut self.state;
        let Some(running) = &mut instances[instance] else { return };
        if forgets {
            running.memory = RolloutMemory::default();
        }
        let read = &running.table.rollout;
        let mut current = read.clone();
        if let (Some(found), Some(active)) = (&mut current, &running.active)
            && found.number == active.number
            && found.build != active.build
        {
            self.counts.repeated += 1;
            if keeps_build {
                found.build.clone_from(&active.build);
            }
        }
        let offers = running.table.offers.iter().enumerate();
        let others = offers.filter(|(other, _)| *other != instance);
        let others: Vec<Build> = others.filter_map(|(_, offer)| offer.map(build)).collect();
        let own = build(offer(folders[instance]));
        let mut next = running.memory.next(current.as_ref(), &own, &others, false);
        if own_wins && current.as_ref().is_some_and(|current| current.build != own) {
            next = Some(Rollout { number: running.memory.newest_number() + 1, build: own });
        }
        let is_replaced = next.is_some();
        let mut is_overwritten = false;
        if next.is_some() && store.rollout != next {
            let number = |rollout: &Option<Rollout>| rollout.as_ref().map(|found| found.number);
            if store.rollout == *read || (by_number && number(&store.rollout) == number(read)) {
                is_overwritten = store.rollout != *read;
                store.rollout = next;
            } else {
                self.counts.refused += 1;
            }
        }
        if let Some(current) = current.filter(|current| running.memory.is_newest(current)) {
            if has(folders[instance], running, &current.build) {
                running.active = Some(current);
            } else if !is_replaced {
                running.active = None;
            }
        }
        if is_overwritten {
            self.record_violation(RolloutViolation::Overwritten);
        }
    }

    fn execute(&mut self, instance: usize) {
        let by_number = self.is(RolloutFault::KeyHasNumberOnly);
        let State { store, instances, key, .. } = &mut self.state;
        let Some(running) = &mut instances[instance] else { return };
        let known = running.active.as_ref();
        let mut record = KeyRecord::new(1, 0);
        record.rollout = key.clone().map(Into::into);
        let is_same = known.map(|known| known.number) == key.as_ref().map(|key| key.number);
        let missing = record.missing_rollout(known).filter(|_| !(by_number && is_same));
        if let Some(number) = missing {
            running.table.clone_from(store);
            if store.rollout.as_ref().is_none_or(|rollout| rollout.number < number) {
                self.counts.required += 1;
                running.memory.require(number);
            }
        } else if let Some(active) = known {
            let keeps_rule =
                key.as_ref().is_none_or(|key| key == active || key.number < active.number);
            *key = Some(active.clone());
            if !keeps_rule {
                self.record_violation(RolloutViolation::TwoBuilds);
            }
        }
    }

    fn change(&mut self, instance: usize, folder: u8) {
        if folder != 0 && folder != self.state.folders[instance] {
            self.state.folders[instance] = folder;
            self.state.changes += 1;
        }
    }

    fn kill(&mut self, instance: usize) {
        if self.state.instances[instance].take().is_some() {
            self.state.store.offers[instance] = None;
            self.state.kills += 1;
        }
    }

    fn remember(&mut self) {
        if self.state.past.last() != Some(&self.state.store) {
            self.state.past.push(self.state.store.clone());
        }
    }

    fn go_back(&mut self, to: usize) {
        let State { store, past, instances, rollbacks, .. } = &mut self.state;
        past.truncate(to + 1);
        store.clone_from(&past[to]);
        // The old table may list dead instances. The product removes a dead instance when its lease ends. The model
        // does not wait for the end of the lease, and removes the instance immediately.
        for (offer, instance) in store.offers.iter_mut().zip(instances) {
            *offer = offer.filter(|_| instance.is_some());
        }
        *rollbacks += 1;
    }

    /// Lets the instances work without new failures, and checks the result.
    pub fn finish_and_check(&mut self) {
        let instances = 0..self.state.instances.len();
        for _ in 0..ROUND_LIMIT {
            let before = self.state.clone();
            for instance in instances.clone() {
                self.poll(instance);
                self.decide(instance);
                self.execute(instance);
            }
            if self.state == before {
                return self.check();
            }
        }
        self.record_violation(RolloutViolation::EndlessChanges);
    }

    fn check(&mut self) {
        let State { store, folders, instances, key, .. } = &self.state;
        let mut record = KeyRecord::new(1, 0);
        record.rollout = key.clone().map(Into::into);
        let mut broken = None;
        for (running, folder) in instances.iter().zip(folders) {
            let Some(running) = running else { continue };
            let runnable =
                store.rollout.clone().filter(|rollout| has(*folder, running, &rollout.build));
            if store.rollout.is_none() || running.active != runnable {
                broken = Some(RolloutViolation::Disagreement);
            } else if runnable.is_some() && record.missing_rollout(runnable.as_ref()).is_some() {
                broken = broken.or(Some(RolloutViolation::Stuck));
            }
        }
        if let Some(broken) = broken {
            self.record_violation(broken);
        }
    }
}
