//! A model of a file source whose checkpoint is in a store that goes back in time (loses its newest writes). The state
//! has two shards with the effects of events, the checkpoint in the first shard, and the owner that reads the file.
//! Some events become dead letters, and the owner may take such an event from its dead letter and execute the event. A
//! checker explores all runs of the model in small scopes (a scope limits the size of the model), and the simulator
//! executes long random runs. The model implements the protocol independently of the product.

mod world;

use stateright::{Model, Property};

pub use world::{CheckpointCounts, CheckpointViolation, CheckpointWorld};

/// The limits of a run: the size of the file, the number of rare steps, and the fault.
#[derive(Debug, Clone, Copy, Default)]
pub struct CheckpointScope {
    /// Number of events in the file. The events have the numbers from 0. Events with an even number are in shard 0, the
    /// others in shard 1.
    pub events: u8,
    /// Number of events that become dead letters. They are the first events of the file.
    pub dead: u8,
    /// Maximum number of times that shards go back.
    pub rollbacks: u64,
    /// Number of new owners after which no step [`CheckpointStep::Restart`] is possible. An owner also ends if the
    /// store has lost the owner's claim. The owner that follows such an end counts as a new owner too, but the number
    /// of such owners has no limit.
    pub restarts: u64,
    /// The rule that is broken on purpose; `None` in a correct model.
    pub fault: Option<CheckpointFault>,
}

/// A rule that is broken on purpose, to prove that the checks find broken rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CheckpointFault {
    /// A checkpoint does not name the last commit of any shard.
    NoCommitIsNamed,
    /// A checkpoint names the last commit of its own shard only.
    OneCommitIsNamed,
    /// An owner that reads the file from its beginning leaves the old checkpoint in the store.
    OldCheckpointStays,
    /// A checkpoint covers events that are not committed.
    OpenEventsAreCovered,
    /// An owner does not repeat lost commits.
    LostCommitsAreDropped,
    /// An owner does not end although the store has lost its claim.
    LostClaimIsKept,
    /// If an owner reads a settled event a second time, it also executes the event a second time.
    SettledEventsAreExecuted,
    /// A repeated commit neither writes nor removes dead letters.
    LettersAreNotRepeated,
    /// An owner removes a dead letter before the effect of its event is committed.
    LettersAreRemovedEarly,
}

impl CheckpointFault {
    /// All faults.
    pub const ALL: [Self; 9] = [
        Self::NoCommitIsNamed,
        Self::OneCommitIsNamed,
        Self::OldCheckpointStays,
        Self::OpenEventsAreCovered,
        Self::LostCommitsAreDropped,
        Self::LostClaimIsKept,
        Self::SettledEventsAreExecuted,
        Self::LettersAreNotRepeated,
        Self::LettersAreRemovedEarly,
    ];
}

/// A step of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckpointStep {
    /// The owner reads the checkpoint and opens the file.
    Start,
    /// The owner reads at most this number of events.
    Read(u8),
    /// The owner repeats the lost commits of this shard. Then it commits the uncommitted events of the shard.
    Commit(u8),
    /// The owner takes an event from its dead letter. The next commit of the event's shard contains the effect of the
    /// event, and removes the dead letter.
    TakeLetter,
    /// The owner writes a checkpoint.
    Save,
    /// The owner finds that the store lacks commits, and repeats them. If a shard has lost the owner's claim, the owner
    /// ends instead.
    Repeat,
    /// The present state of the shards becomes a state that they may go back to.
    Remember,
    /// The shard with this number, or every shard for `None`, goes back to the remembered state with this index.
    GoBack(Option<u8>, usize),
    /// The owner ends, and another owner claims the partition.
    Restart,
}

/// Maximum number of remembered states that the shards may go back to, including the first state of the run.
const STATE_LIMIT: usize = 2;

pub(crate) const SHARDS: u8 = 2;

impl Model for CheckpointScope {
    type State = CheckpointWorld;
    type Action = CheckpointStep;

    fn init_states(&self) -> Vec<CheckpointWorld> {
        vec![CheckpointWorld::new(self.events, self.dead, self.fault)]
    }

    fn actions(&self, world: &CheckpointWorld, steps: &mut Vec<CheckpointStep>) {
        if world.broken().is_some() {
            return;
        }
        steps.extend([
            CheckpointStep::Start,
            CheckpointStep::Read(1),
            CheckpointStep::Commit(0),
            CheckpointStep::Commit(1),
            CheckpointStep::TakeLetter,
            CheckpointStep::Save,
            CheckpointStep::Repeat,
        ]);
        if world.rollbacks() < self.rollbacks {
            steps.extend((world.past() < STATE_LIMIT).then_some(CheckpointStep::Remember));
            for shard in [None, Some(0), Some(1)] {
                steps.extend((0..world.past()).map(|to| CheckpointStep::GoBack(shard, to)));
            }
        }
        steps.extend((world.restarts() < self.restarts).then_some(CheckpointStep::Restart));
    }

    fn next_state(&self, world: &CheckpointWorld, step: CheckpointStep) -> Option<CheckpointWorld> {
        let mut next = world.clone();
        next.step(step);
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        macro_rules! never {
            ($broken:ident) => {
                Property::always(
                    CheckpointViolation::$broken.rule(),
                    |_: &Self, world: &CheckpointWorld| {
                        world.broken_at_end() != Some(CheckpointViolation::$broken)
                    },
                )
            };
        }
        vec![
            never!(Missing),
            never!(NoLetter),
            never!(Duplicated),
            never!(Stuck),
            Property::sometimes(READ_AGAIN, |_, world: &CheckpointWorld| world.counts().reread > 0),
        ]
    }
}

/// A property that at least one run of each scope must show; otherwise the scope is too small to test anything.
pub const READ_AGAIN: &str = "a file is read again from its beginning";
