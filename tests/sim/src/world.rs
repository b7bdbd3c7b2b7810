//! The simulated world: virtual time, an agenda of future actions, and the parts around the sequencers. The seed
//! determines all random choices.

mod disturb;
mod drive;
mod owner;
mod perform;
mod rollback;
mod serve;
mod work;

use std::collections::BTreeMap;
use std::sync::Arc;

use ordain_core::{Batch, Build, Effect, Event, FileDigest, Input, Key, OrderingMode, Rollout};

use crate::Options;
use crate::boundary::BoundaryFault;
use crate::checker::{Checker, CheckerSnapshot, Violation};
use crate::plan::Plan;
use crate::producer::{Script, SourceItem, script};
use crate::rng::{Rng, mix};
use crate::source::Source;
use crate::store::{Claim, Post, Store};
use crate::trace::Trace;
use owner::Owner;

pub(crate) const FIRST_VERSION: &str = "sim@1.0.0";

/// After this number of steps, a run counts as endless.
const STEP_LIMIT: u64 = 300_000;
/// Longest virtual time, in ms, for which a stale owner continues after a newer owner has claimed its partition.
const TAKEOVER_MS: u64 = 60_000;

#[derive(Debug)]
enum Action {
    /// An owner receives an input.
    Input(u64, Input),
    /// The store performs an owner's commit. The owner may have ended meanwhile.
    Commit { owner: u64, claim: Claim, batch: Arc<Batch>, reply: Reply },
    /// The store answers a request of an owner.
    Serve(u64, Effect),
    /// An owner publishes messages and dead letters.
    Publish { owner: u64, shard: u32, number: u64, posts: Vec<Post> },
    /// An owner checks its clock and its source.
    Wake(u64),
    /// A new owner of a partition starts.
    Start(u32),
    /// The owner of a partition ends, immediately or after some effects.
    Crash(u32),
    /// A new owner claims the partition while the present owner continues.
    Takeover(u32),
    /// The owner of a partition drains.
    Drain(u32),
    /// The owner of a partition loses its connection to the source.
    Reset(u32),
    /// The stale owner had continued although a newer owner had claimed its partition.
    Kill(u64),
    /// A new rollout begins.
    NewVersion,
    /// The last value is true if the owner has the version of the rollout.
    ReceiveRollout(u64, Arc<Rollout>, bool),
    /// A key record becomes unreadable.
    Corrupt,
    /// The world saves the present state of the store, unless the store lacks commits. The number is the time in ms
    /// after which the store goes back to the saved state.
    Remember(u64),
    /// The store, or one of its shards, goes back to the saved state.
    GoBack,
}

/// The reply to a commit, as the owner receives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reply {
    /// The store applies the commit, and the owner gets the reply.
    Received,
    /// The store does not apply the commit, and the owner gets no reply.
    LostBefore,
    /// The store applies the commit, but the owner gets no reply.
    LostAfter,
    /// The owner gets no reply and stops waiting. The store applies the commit later. The store does not apply the
    /// commit if the store lacks other commits when the commit arrives, or if the store goes back before the commit
    /// arrives.
    Delayed,
    /// The store applies the commit, but no owner waits for the reply.
    Unawaited,
}

pub(crate) struct World {
    plan: Plan,
    boundary_fault: Option<BoundaryFault>,
    #[cfg(feature = "faults")]
    core_fault: Option<ordain_core::SequencerFault>,
    rng: Rng,
    now: u64,
    /// The future actions, by time and order.
    agenda: BTreeMap<(u64, u64), Action>,
    /// The number of actions so far orders actions with the same time.
    tie: u64,
    steps: u64,
    /// The last time at which an action may have moved a key forward.
    progress: u64,
    store: Store,
    /// The store may go back to this state. The checker has a model of it.
    snapshot: Option<(Store, CheckerSnapshot)>,
    /// For each shard, the newest lost commit, until the owner has repeated all lost commits.
    lost: BTreeMap<u32, u64>,
    sources: Vec<Source>,
    /// The earliest time at which the source may deliver its last event.
    produced: u64,
    remote: BTreeMap<(Key, u64), Arc<Event>>,
    owners: BTreeMap<u64, Owner>,
    /// The partition of each owner of the run, including the owners that have ended.
    partitions_of: BTreeMap<u64, u32>,
    current: Vec<Option<u64>>,
    owners_born: u64,
    rollout: Arc<Rollout>,
    previous_rollout: Arc<Rollout>,
    /// By key and content of an event, the number of its executions.
    executions: BTreeMap<(Key, u64), u32>,
    checker: Checker,
    trace: Trace,
}

impl World {
    pub(crate) fn new(plan: Plan, options: &Options) -> Self {
        let mut rng = Rng::new(mix(&[plan.seed, 7]));
        let Script { queues, remote, imported, end } = script(&plan, &mut rng);
        let mut checker = Checker::new(&plan);
        if plan.settings.ordering == OrderingMode::Fifo {
            for (position, entry) in queues.iter().flatten().enumerate() {
                if let SourceItem::Event(event) = &entry.item {
                    checker.record_position(event, position);
                }
            }
        }
        let mut store = Store::new(plan.settings.shards);
        store.fault = options.store_fault;
        for (key, (partition, next)) in &imported {
            store.import(key, *partition, *next);
            checker.imported(key, &store.records[key]);
        }
        let mut world = Self {
            rng,
            now: 0,
            agenda: BTreeMap::new(),
            tie: 0,
            steps: 0,
            progress: 0,
            store,
            snapshot: None,
            lost: BTreeMap::new(),
            sources: queues.into_iter().map(Source::new).collect(),
            produced: end,
            remote,
            owners: BTreeMap::new(),
            partitions_of: BTreeMap::new(),
            current: vec![None; plan.partitions as usize],
            owners_born: 0,
            rollout: rollout(1, FIRST_VERSION),
            previous_rollout: rollout(1, FIRST_VERSION),
            executions: BTreeMap::new(),
            checker,
            trace: Trace::new(options.trace),
            boundary_fault: options.boundary_fault,
            #[cfg(feature = "faults")]
            core_fault: options.core_fault,
            plan,
        };
        world.schedule_disturbances();
        for partition in 0..world.plan.partitions {
            world.schedule(0, Action::Start(partition));
        }
        world
    }

    /// Runs the agenda until the owners only wait for time to pass, and checks the result. Then replaces all owners by
    /// new owners, runs the agenda again, and checks the result again.
    pub(crate) fn run(&mut self) -> Result<(), Violation> {
        self.run_until_idle()?;
        self.check_end()?;
        self.trace.line(self.now, "new owners replace all owners");
        self.plan.store.unreadable = 0;
        self.checker.reads_succeed();
        self.agenda.clear();
        for partition in 0..self.plan.partitions {
            self.crash(partition);
        }
        self.agenda.clear();
        for partition in 0..self.plan.partitions {
            self.schedule(1, Action::Start(partition));
        }
        self.progress = self.now;
        self.run_until_idle()?;
        self.check_end()
    }

    /// Runs the agenda until it is empty, or until all owners have been idle for a long time.
    fn run_until_idle(&mut self) -> Result<(), Violation> {
        let gap = &self.plan.settings.gap;
        let idle_limit = 600_000
            + 2 * (gap.timeout + gap.tail.unwrap_or(0) + gap.backoff.max)
            + 2 * (self.plan.settings.retry.backoff.max
                + self.plan.settings.complete_ttl.min(60_000));
        while let Some(((at, _), action)) = self.agenda.pop_first() {
            let idle = matches!(action, Action::Wake(_))
                && self.agenda.values().all(|action| matches!(action, Action::Wake(_)));
            if idle && at > self.progress + idle_limit {
                break;
            }
            self.now = at;
            self.checker.at(at);
            self.expire();
            self.perform_action(action);
            self.steps += 1;
            if self.steps > STEP_LIMIT {
                self.checker
                    .broke("livelock", format!("the run has not ended after {STEP_LIMIT} steps"));
            }
            if let Some(violation) = self.checker.violation() {
                return Err(violation.clone());
            }
        }
        Ok(())
    }

    fn check_end(&mut self) -> Result<(), Violation> {
        let left: Vec<SourceItem> =
            self.sources.iter().flat_map(Source::unacknowledged).cloned().collect();
        let left: Vec<&SourceItem> = left.iter().collect();
        for (id, owner) in &self.owners {
            // If there are more keys with unreadable spilled events than lanes, the owner loads these keys repeatedly.
            // It is sufficient that such an owner was quiescent (at rest) once after the last progress.
            let was_quiescent =
                self.plan.store.unreadable > 0 && owner.quiescent_at > self.progress;
            if left.is_empty() && !owner.sequencer.quiescent() && !was_quiescent {
                let stats = owner.sequencer.stats();
                let detail = format!(
                    "owner {id} has nothing to do, but is not quiescent: {stats:?} {}",
                    std::env::var("ORDAIN_SIM_SEED")
                        .map_or(String::new(), |_| format!("{:#?}", owner.sequencer))
                );
                self.checker.broke("quiescent", detail);
            }
        }
        self.checker.ended(&left, self.produced, &self.store);
        self.checker.violation().map_or(Ok(()), |violation| Err(violation.clone()))
    }

    fn schedule(&mut self, wait: u64, action: Action) {
        self.tie += 1;
        self.agenda.insert((self.now + wait, self.tie), action);
    }

    fn latency(&mut self) -> u64 {
        self.rng.below(self.plan.store.latency + 1)
    }

    fn expire(&mut self) {
        for (key, record) in self.store.expire(self.now) {
            self.checker.expired(&key, &record);
        }
    }

    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }

    /// The summary has the numbers of steps and owners, and the virtual time.
    pub(crate) fn summary(&self) -> String {
        format!("{} steps, {} ms, {} owners", self.steps, self.now, self.owners_born)
    }
}

/// All rollouts have the same file digest, because no simulated part compares file digests.
fn rollout(number: u64, version: &str) -> Arc<Rollout> {
    let build = Build { version: version.into(), digest: FileDigest([0; 32]) };
    Arc::new(Rollout { number, build })
}
