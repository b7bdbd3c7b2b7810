//! A model of a producer that publishes a file through a store that goes back in time (loses its newest writes). The
//! state has the shards and two producers. The first producer publishes the file. It may end early and start again.
//! Each shard numbers its events and contains a checkpoint. In some scopes, the first producer also sends its events to
//! a broker that never goes back, and a stream reads the events from the broker. A checker explores all runs of the
//! model in small scopes (a scope limits the size of the model), and the simulator executes long random runs. The
//! product's own code remembers the calls of the producer of the file
//! ([`ProducerHistory`](ordain_core::ProducerHistory)). All other code of the model implements the protocol
//! independently of the product.

mod world;

use stateright::{Model, Property};

pub use world::{ProducerCounts, ProducerViolation, ProducerWorld};

/// The limits of a run: the number of events, the number of rare steps, and the fault.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProducerScope {
    /// Number of events to publish. The events have the numbers from 0. Events with an even number have the key of
    /// shard 0, the others the key of shard 1.
    pub events: u8,
    /// True if the producer is a program with the library. Such a producer publishes no file, and therefore has no
    /// checkpoints.
    pub is_library: bool,
    /// True if the producer also sends each event to a broker, from which a stream reads the events. The store then
    /// compares the numbers that it has given with the numbers in the records of the stream.
    pub has_reader: bool,
    /// Maximum number of events that another producer publishes.
    pub other_events: u8,
    /// Maximum number of times that shards go back.
    pub rollbacks: u64,
    /// Maximum number of times that the producer ends and starts again.
    pub restarts: u64,
    /// Maximum number of calls that the producer forgets, as if memory had no room for them.
    pub forgotten: u64,
    /// The rule that is broken on purpose; `None` in a correct model.
    pub fault: Option<ProducerFault>,
}

/// A rule that is broken on purpose, to prove that the checks find broken rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProducerFault {
    /// A call names no witness. A witness is the newest event that earlier calls added to a shard. A shard that lacks
    /// its witness has gone back.
    NoWitnessIsNamed,
    /// The producer does not write the events of lost calls again.
    NothingIsWrittenAgain,
    /// The producer checks the witnesses of the shards only before it publishes events, and not when it closes.
    NothingIsChecked,
    /// The producer forgets its newest call instead of its oldest call.
    NewestIsForgotten,
    /// A checkpoint names no witness.
    CheckpointNamesNoWitness,
    /// A new checkpoint replaces the stored checkpoint of a shard, even if the stored checkpoint is not the producer's
    /// previous checkpoint.
    CheckpointComparesNothing,
    /// A run that continues at the checkpoints writes the number of the previous run into them, instead of a new
    /// number.
    RunNumberIsNotWritten,
    /// A run continues at the newest checkpoint instead of the oldest checkpoint.
    NewestCheckpointCounts,
    /// After shards went back, a run does not continue at the oldest checkpoint.
    FileIsNotReadAgain,
    /// The store does not compare the id of a new event with the ids of the events that the store already has.
    NothingIsRemembered,
    /// The producer writes a lost event again, and the reader already has this event. The store refuses to number the
    /// event.
    RepeatsAreRefused,
    /// The reader has higher numbers than the store has given. The store gives a new event the number after the
    /// reader's highest number, instead of refusing the event.
    NumbersFollowReader,
    /// When the producer writes a lost event again, the store gives the event another number than before, although the
    /// first copy of the event may be in the broker.
    LostEventsGetOtherNumbers,
}

impl ProducerFault {
    /// All faults.
    pub const ALL: [Self; 13] = [
        Self::NoWitnessIsNamed,
        Self::NothingIsWrittenAgain,
        Self::NothingIsChecked,
        Self::NewestIsForgotten,
        Self::CheckpointNamesNoWitness,
        Self::CheckpointComparesNothing,
        Self::RunNumberIsNotWritten,
        Self::NewestCheckpointCounts,
        Self::FileIsNotReadAgain,
        Self::NothingIsRemembered,
        Self::RepeatsAreRefused,
        Self::NumbersFollowReader,
        Self::LostEventsGetOtherNumbers,
    ];
}

/// A step of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProducerStep {
    /// The producer publishes at most this number of events.
    Publish(u8),
    /// The producer publishes an event, ends before it receives the answer, and starts again.
    PublishUnanswered,
    /// The producer writes its checkpoint into the shards.
    Checkpoint,
    /// If a shard may have gone back, the producer checks that each shard has its witness.
    Check,
    /// The producer forgets its oldest call, because memory has no room for it.
    Forget,
    /// This number of milliseconds passes.
    Wait(u64),
    /// The other producer publishes an event to this shard.
    Other(u8),
    /// The reader settles the next event of this shard that the broker has.
    Read(u8),
    /// The present state of the shards becomes a state that they may go back to.
    Remember,
    /// The shard with this number, or every shard for `None`, goes back to the remembered state with this index. The
    /// last value is true if the producer's connection breaks.
    GoBack(Option<u8>, usize, bool),
    /// The producer ends and starts again.
    Restart,
}

/// Maximum number of remembered states that the shards may go back to, including the first state of the run.
const STATE_LIMIT: usize = 2;

pub(crate) const SHARDS: u8 = 2;

impl Model for ProducerScope {
    type State = ProducerWorld;
    type Action = ProducerStep;

    fn init_states(&self) -> Vec<ProducerWorld> {
        vec![ProducerWorld::new(self.events, self.is_library, self.has_reader, self.fault)]
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
        if world.other_events() < self.other_events {
            steps.extend((0..SHARDS).map(ProducerStep::Other));
        }
        if self.has_reader {
            steps.extend((0..SHARDS).map(ProducerStep::Read));
        }
        steps.extend((world.forgotten() < self.forgotten).then_some(ProducerStep::Forget));
        if world.rollbacks() < self.rollbacks {
            steps.extend((world.past() < STATE_LIMIT).then_some(ProducerStep::Remember));
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
                    ProducerViolation::$broken.rule(),
                    |_: &Self, world: &ProducerWorld| {
                        world.broken() != Some(ProducerViolation::$broken)
                            && world.broken_at_end() != Some(ProducerViolation::$broken)
                    },
                )
            };
        }
        vec![
            never!(Missing),
            never!(Duplicated),
            never!(OutOfOrder),
            never!(NumberReused),
            never!(Stuck),
            Property::sometimes(WRITTEN_AGAIN, |_, world: &ProducerWorld| {
                world.counts().rewritten > 0
            }),
            Property::sometimes(RENUMBERED, |_, world: &ProducerWorld| {
                world.counts().renumbered > 0
            }),
        ]
    }
}

/// A property that may occur only in runs with a broker and a restart. Another event takes a lost number. A later run
/// then publishes a lost event of the earlier run, and this event gets another number than before.
pub const RENUMBERED: &str = "a lost event of an earlier run gets another number";

/// A property that at least one run of each scope must show; otherwise the scope is too small to test anything.
pub const WRITTEN_AGAIN: &str = "a lost event is written again";
