//! A model of rollouts in a store that goes back in time (loses its newest writes). The state has the table of the
//! store, the instances with their folders of handlers, and the record of one key. It also has, for each instance, the
//! table that the instance has read from the store. The product's own code makes the decisions of the instances
//! ([`ordain_core::rollout::RolloutMemory`]). A checker explores all runs of the model in small scopes (a scope limits
//! the size of the model), and the simulator executes long random runs.

mod world;

use stateright::{Model, Property};

pub use world::{RolloutCounts, RolloutViolation, RolloutWorld};

/// The limits of a run: the number of instances and builds, the number of rare steps, and the fault.
#[derive(Debug, Clone, Copy, Default)]
pub struct RolloutScope {
    /// Number of instances. At the beginning, no instance runs. The folder of each instance has the file of build 1.
    /// The folder of instance N (from 0) also has the file of build N + 1.
    pub instances: u8,
    /// Number of builds of the handler. A build with a higher number has a higher version.
    pub builds: u8,
    /// Maximum number of times that a file is added to, or removed from, the folder of an instance.
    pub changes: u64,
    /// Maximum number of times that an instance is killed.
    pub kills: u64,
    /// Maximum number of times that the table in the store goes back.
    pub rollbacks: u64,
    /// The rule that is broken on purpose; `None` in a correct model.
    pub fault: Option<RolloutFault>,
}

/// A rule that is broken on purpose, to prove that the checks find broken rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RolloutFault {
    /// An instance forgets the highest rollout number that it has seen.
    NumberIsForgotten,
    /// An instance continues to execute its own build although it finds another build under the number of its rollout.
    BuildIsKept,
    /// The write of a rollout compares only the number of the rollout that it replaces, not the build.
    ReplacedByNumber,
    /// An instance replaces a rollout of another build by a rollout of its own build, even if its own build is older.
    OwnBuildWins,
    /// An instance compares only the number of its rollout with the number in the record of a key, not the build.
    KeyHasNumberOnly,
}

impl RolloutFault {
    /// All faults.
    pub const ALL: [Self; 5] = [
        Self::NumberIsForgotten,
        Self::BuildIsKept,
        Self::ReplacedByNumber,
        Self::OwnBuildWins,
        Self::KeyHasNumberOnly,
    ];
}

/// A step of a run. In a step of an instance, the first number identifies the instance. The second number, if any,
/// identifies a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RolloutStep {
    /// The instance starts.
    Start(u8),
    /// The instance writes the build that it offers into the table of the store, and reads the table.
    Poll(u8),
    /// The instance makes a decision from the table that it has read. The instance writes a new rollout if the stream
    /// needs a new rollout. The instance executes the rollout of the table if the instance has the build of this
    /// rollout and knows no newer rollout.
    Decide(u8),
    /// If the instance's rollout is new enough for the key, the instance executes an event of the key. If the
    /// instance's rollout is too old for the key, the instance reads the table. If the rollout of the table is too old
    /// as well, the instance requires a rollout with the number in the record or a higher number.
    Execute(u8),
    /// An operator copies the file of a build into the folder of the instance.
    Add(u8, u8),
    /// An operator removes the file of a build from the folder of the instance, unless the file is the last file in the
    /// folder.
    Remove(u8, u8),
    /// The instance is killed, and is no longer a member.
    Kill(u8),
    /// The present table becomes a table that the store may go back to.
    Remember,
    /// The table of the store goes back to the remembered table with this index. The record of the key does not go
    /// back, because it is on another server.
    GoBack(usize),
}

/// Maximum number of remembered tables that the store may go back to, including the first table.
const STATE_LIMIT: usize = 2;

impl Model for RolloutScope {
    type State = RolloutWorld;
    type Action = RolloutStep;

    fn init_states(&self) -> Vec<RolloutWorld> {
        vec![RolloutWorld::new(self.instances, self.fault)]
    }

    fn actions(&self, world: &RolloutWorld, steps: &mut Vec<RolloutStep>) {
        if world.broken().is_some() {
            return;
        }
        for instance in 0..self.instances {
            steps.extend([
                RolloutStep::Start(instance),
                RolloutStep::Poll(instance),
                RolloutStep::Decide(instance),
                RolloutStep::Execute(instance),
            ]);
            if world.changes() < self.changes {
                for build in 1..=self.builds {
                    steps.push(RolloutStep::Add(instance, build));
                    steps.push(RolloutStep::Remove(instance, build));
                }
            }
            steps.extend((world.kills() < self.kills).then_some(RolloutStep::Kill(instance)));
        }
        if world.rollbacks() < self.rollbacks {
            steps.extend((world.past() < STATE_LIMIT).then_some(RolloutStep::Remember));
            steps.extend((0..world.past()).map(RolloutStep::GoBack));
        }
    }

    fn next_state(&self, world: &RolloutWorld, step: RolloutStep) -> Option<RolloutWorld> {
        let mut next = world.clone();
        next.step(step);
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        macro_rules! never {
            ($broken:ident) => {
                Property::always(
                    RolloutViolation::$broken.rule(),
                    |_: &Self, world: &RolloutWorld| {
                        world.broken_at_end() != Some(RolloutViolation::$broken)
                    },
                )
            };
        }
        vec![
            never!(TwoBuilds),
            never!(Overwritten),
            never!(Disagreement),
            never!(Stuck),
            never!(EndlessChanges),
            Property::sometimes(NUMBER_REPEATED, |_, world: &RolloutWorld| {
                world.counts().repeated > 0
            }),
        ]
    }
}

/// A property that at least one run of each scope must show; otherwise the scope is too small to test anything.
pub const NUMBER_REPEATED: &str = "an instance finds another build under the number that it knows";
