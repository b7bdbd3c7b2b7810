//! Numbered messages between two shards of a store that goes back in time: an outbox, its owner, and a shard of the
//! destination that numbers the messages. A checker walks through all runs of small scopes, and the simulator plays
//! long random runs. The owner's memory of its messages, and the choice of messages that it gives (sends to the
//! destination) again, are the product's own ([`PublishHistory`](ordain_core::PublishHistory)); the rest is written
//! from the protocol alone.

mod destination;
mod outcome;
mod owner;
mod world;

use stateright::{Model, Property};

pub use outcome::{ChainBroken, ChainSeen};
pub use world::ChainWorld;

/// The steps of a run, and the limits of the rare steps.
#[derive(Debug, Clone, Default)]
pub struct ChainScope {
    /// Commits of the outbox. Each has one message, or two.
    pub commits: u64,
    /// Messages of another producer.
    pub others: usize,
    /// Shards that may go back.
    pub places: Vec<ChainPlaces>,
    /// Times that shards go back.
    pub rewinds: u64,
    /// Times that the process ends and another process begins.
    pub restarts: u64,
    /// Parts (each the message of one outbox position) that the owner forgets because memory has no room for them.
    pub forgotten: usize,
    /// True if answers are lost.
    pub loses_answers: bool,
    /// A rule that is broken on purpose.
    pub fault: Option<ChainFault>,
}

/// The shards that go back in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainPlaces {
    /// The shard with the outbox.
    Source,
    /// The shard that numbers the messages.
    Destination,
    /// Both shards go back, to the same moment.
    Both,
}

/// A rule that is broken on purpose, to prove that the checks find broken rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChainFault {
    /// An owner sends messages to the destination again before it has repeated the lost commits that contain these
    /// messages.
    CommitsAreNotAwaited,
    /// An owner does not give lost messages again.
    LostPartsAreDropped,
    /// Lost messages are given again like new ones.
    LostPartsGetNewNumbers,
    /// Memory forgets the newest part instead of the oldest.
    NewestIsForgotten,
    /// An owner makes no call without messages to check that the destination still has its messages.
    NothingIsChecked,
    /// A call does not name the last outbox position that was answered.
    NoPlaceIsNamed,
    /// The destination does not compare the last outbox position of a call with its own.
    DestinationComparesNothing,
    /// The destination gives a message a number that another message has.
    TakenNumbersAreGiven,
    /// The destination gives a message a number below that of an earlier message of the call.
    NumbersGoBack,
    /// A later call requests a number below that of an earlier message.
    LaterNumbersGoBack,
    /// The destination does not remember the messages that it has numbered.
    NothingIsKnown,
    /// A mark counts as durable before the store has confirmed it.
    DoneBeforeDurable,
    /// An owner reports messages as done although it still has to give them again, so that the destination forgets
    /// them.
    LostPartsAreDone,
    /// An owner does not mark the messages of repeated commits again.
    RepeatedCommitsAreNotMarked,
    /// The destination does not forget messages of lost commits.
    LostCommitsStayKnown,
    /// The destination forgets messages of lost commits only where a whole call consists of them.
    LostCommitsStayInMixedBlocks,
    /// The destination treats late repeats as new messages.
    LateCallsAreNew,
    /// The destination accepts messages of an older owner.
    OlderOwnerIsAccepted,
}

impl ChainFault {
    /// All faults.
    pub const ALL: [Self; 18] = [
        Self::CommitsAreNotAwaited,
        Self::LostPartsAreDropped,
        Self::LostPartsGetNewNumbers,
        Self::NewestIsForgotten,
        Self::NothingIsChecked,
        Self::NoPlaceIsNamed,
        Self::DestinationComparesNothing,
        Self::TakenNumbersAreGiven,
        Self::NumbersGoBack,
        Self::LaterNumbersGoBack,
        Self::NothingIsKnown,
        Self::DoneBeforeDurable,
        Self::LostPartsAreDone,
        Self::RepeatedCommitsAreNotMarked,
        Self::LostCommitsStayKnown,
        Self::LostCommitsStayInMixedBlocks,
        Self::LateCallsAreNew,
        Self::OlderOwnerIsAccepted,
    ];
}

/// A step of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainStep {
    /// The owner first repeats the commits that the store has lost, and then commits this number of messages.
    Commit(u8),
    /// The owner finds that the store lacks commits, and repeats them.
    Repeat,
    /// The owner gives at most this number of parts.
    Give(usize),
    /// The owner gives all parts, and the answer is lost.
    GiveUnanswered,
    /// The call without an answer arrives once more.
    ArriveLate,
    /// If the destination may have gone back, the owner checks that it has all given messages.
    Check,
    /// The owner marks the given messages in the outbox as done.
    Mark,
    /// Memory has no room for the oldest part.
    Forget,
    /// This number of ms passes.
    Wait(u64),
    /// The other producer puts a new message.
    Other,
    /// The other producer puts its lost messages again, under their numbers.
    OtherAgain,
    /// The present state of the shards becomes a state that they may go back to.
    Remember,
    /// Shards go back.
    GoBack(ChainPlaces, usize),
    /// The process ends; another process begins.
    Restart,
}

/// Number of moments that the shards may go back to, including the beginning.
const REMEMBERED: usize = 2;

impl Model for ChainScope {
    type State = ChainWorld;
    type Action = ChainStep;

    fn init_states(&self) -> Vec<ChainWorld> {
        vec![ChainWorld::new(1, self.fault)]
    }

    fn actions(&self, world: &ChainWorld, steps: &mut Vec<ChainStep>) {
        if world.broken().is_some() {
            return;
        }
        if world.commits() < self.commits {
            steps.extend([ChainStep::Commit(1), ChainStep::Commit(2)]);
        }
        steps.extend([
            ChainStep::Repeat,
            ChainStep::Give(1),
            ChainStep::Give(usize::MAX),
            ChainStep::Check,
            ChainStep::Mark,
        ]);
        if self.loses_answers {
            steps.extend([ChainStep::GiveUnanswered, ChainStep::ArriveLate]);
        }
        if self.others > 0 {
            steps.push(ChainStep::OtherAgain);
            steps.extend((world.others() < self.others).then_some(ChainStep::Other));
        }
        steps.extend((world.forgotten() < self.forgotten).then_some(ChainStep::Forget));
        if world.rewinds() < self.rewinds {
            steps.extend((world.past() < REMEMBERED).then_some(ChainStep::Remember));
            for place in &self.places {
                steps.extend((0..world.past()).map(|to| ChainStep::GoBack(*place, to)));
            }
        }
        steps.extend((world.restarts() < self.restarts).then_some(ChainStep::Restart));
    }

    fn next_state(&self, world: &ChainWorld, step: ChainStep) -> Option<ChainWorld> {
        let mut next = world.clone();
        next.step(step);
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        macro_rules! never {
            ($broken:ident) => {
                Property::always(ChainBroken::$broken.rule(), |_: &Self, world: &ChainWorld| {
                    world.broken() != Some(ChainBroken::$broken)
                        && world.broken_at_rest() != Some(ChainBroken::$broken)
                })
            };
        }
        vec![
            never!(Missing),
            never!(Twice),
            never!(OutOfOrder),
            never!(OneNumberTwice),
            never!(AnotherMessage),
            never!(NumberChanged),
            never!(WrongCount),
            never!(WithoutCommit),
            never!(DoneComesBack),
            never!(Stuck),
            Property::sometimes(GIVEN_AGAIN, |_, world: &ChainWorld| world.seen().again > 0),
        ]
    }
}

/// The property that a scope must show. Without it, the scope would be too small to test anything.
pub const GIVEN_AGAIN: &str = "a lost message is given again";
