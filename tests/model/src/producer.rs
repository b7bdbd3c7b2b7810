//! A producer that publishes a file through a store that goes back in time: the shards that number the events, the
//! checkpoint in each shard, another producer, and runs of the producer that end early. A checker walks through all
//! runs of small scopes, and the simulator plays long random runs. The producer's memory of its calls is the product's
//! own ([`ProducerHistory`](ordain_core::ProducerHistory)); the rest is written from the protocol alone.

mod world;

use stateright::{Model, Property};

pub use world::{ProducerBroken, ProducerSeen, ProducerWorld};

/// The steps of a run, and the limits of the rare steps.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProducerScope {
    /// Events to publish. The key of an event is its number modulo the number of shards, which is 2.
    pub events: u8,
    /// True if the producer publishes no file, so that it has no checkpoints.
    pub is_library: bool,
    /// Events of another producer.
    pub others: u8,
    /// Times that shards go back.
    pub rewinds: u64,
    /// Times that the producer ends and is started again.
    pub restarts: u64,
    /// Calls that memory has no room for.
    pub forgotten: u64,
    /// A rule that is broken on purpose.
    pub fault: Option<ProducerFault>,
}

/// A rule that is broken on purpose, to prove that the checks find broken rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProducerFault {
    /// A call names no witness (the newest event of earlier calls to a shard; a shard without its witness went back).
    NoWitnessIsNamed,
    /// The producer does not write lost calls again.
    NothingIsWrittenAgain,
    /// The producer does not check the witnesses at its end.
    NothingIsChecked,
    /// Memory forgets the newest call instead of the oldest.
    NewestIsForgotten,
    /// A checkpoint names no witness.
    CheckpointNamesNoWitness,
    /// A checkpoint does not name the previous checkpoint.
    CheckpointComparesNothing,
    /// A run does not mark the checkpoints with its number when it continues at them.
    RunIsNotMarked,
    /// A run continues at the newest checkpoint instead of the oldest.
    NewestCheckpointCounts,
    /// A run whose shards went back does not continue at the oldest checkpoint.
    FileIsNotReadAgain,
    /// The store does not know the ids of the events that it has.
    NothingIsKnown,
}

impl ProducerFault {
    /// All faults.
    pub const ALL: [Self; 10] = [
        Self::NoWitnessIsNamed,
        Self::NothingIsWrittenAgain,
        Self::NothingIsChecked,
        Self::NewestIsForgotten,
        Self::CheckpointNamesNoWitness,
        Self::CheckpointComparesNothing,
        Self::RunIsNotMarked,
        Self::NewestCheckpointCounts,
        Self::FileIsNotReadAgain,
        Self::NothingIsKnown,
    ];
}

/// A step of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProducerStep {
    /// The producer publishes at most this number of events.
    Publish(u8),
    /// The producer publishes an event, and ends before it has the answer.
    PublishUnanswered,
    /// The producer writes its checkpoint into the shards.
    Checkpoint,
    /// If a shard may have gone back, the producer checks that the shards have its events.
    Check,
    /// Memory has no room for the oldest call.
    Forget,
    /// This number of ms passes.
    Wait(u64),
    /// The other producer publishes an event to this shard.
    Other(u8),
    /// The present state of the shards becomes a state that they may go back to.
    Remember,
    /// One shard, or all, go back to the state with this index. The last value is true if a connection breaks.
    GoBack(Option<u8>, usize, bool),
    /// The producer ends, and is started again.
    Restart,
}

/// Number of moments that the shards may go back to, including the beginning.
const REMEMBERED: usize = 2;

/// Number of shards.
pub(crate) const SHARDS: u8 = 2;

impl Model for ProducerScope {
    type State = ProducerWorld;
    type Action = ProducerStep;

    fn init_states(&self) -> Vec<ProducerWorld> {
        vec![ProducerWorld::new(self.events, self.is_library, self.fault)]
    }

    fn actions(&self, world: &ProducerWorld, steps: &mut Vec<ProducerStep>) {
        if world.broken().is_some() {
            return;
        }
        steps.extend([
            ProducerStep::Publish(1),
            ProducerStep::Publish(SHARDS),
            ProducerStep::Checkpoint,
            ProducerStep::Check,
        ]);
        if world.others() < self.others {
            steps.extend((0..SHARDS).map(ProducerStep::Other));
        }
        steps.extend((world.forgotten() < self.forgotten).then_some(ProducerStep::Forget));
        if world.rewinds() < self.rewinds {
            steps.extend((world.past() < REMEMBERED).then_some(ProducerStep::Remember));
            for shard in [None, Some(0), Some(1)] {
                let breaks = (0..world.past()).flat_map(|to| [(to, false), (to, true)]);
                steps.extend(breaks.map(|(to, breaks)| ProducerStep::GoBack(shard, to, breaks)));
            }
        }
        if world.restarts() < self.restarts {
            steps.extend([ProducerStep::Restart, ProducerStep::PublishUnanswered]);
        }
    }

    fn next_state(&self, world: &ProducerWorld, step: ProducerStep) -> Option<ProducerWorld> {
        let mut next = world.clone();
        next.step(step);
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        macro_rules! never {
            ($broken:ident) => {
                Property::always(
                    ProducerBroken::$broken.rule(),
                    |_: &Self, world: &ProducerWorld| {
                        world.broken() != Some(ProducerBroken::$broken)
                            && world.broken_at_rest() != Some(ProducerBroken::$broken)
                    },
                )
            };
        }
        vec![
            never!(Missing),
            never!(Twice),
            never!(OutOfOrder),
            never!(OneNumberTwice),
            never!(Stuck),
            Property::sometimes(WRITTEN_AGAIN, |_, world: &ProducerWorld| world.seen().again > 0),
        ]
    }
}

/// The property that a scope must show. Without it, the scope would be too small to test anything.
pub const WRITTEN_AGAIN: &str = "a lost event is written again";
