//! A model of messages between two shards of a store that goes back in time (loses its newest writes). One shard
//! contains an outbox. The owner of the outbox sends its messages to a shard of the destination, which numbers the
//! messages. A checker explores all runs of the model in small scopes (a scope limits the size of the model), and the
//! simulator executes long random runs. The product's own code remembers the messages that the owner has sent, and
//! chooses the messages to send again ([`PublishHistory`](ordain_core::PublishHistory)). All other code of the model
//! implements the protocol independently of the product. A *chunk* is the message at one outbox position.

mod destination;
mod outcome;
mod owner;
mod world;

use stateright::{Model, Property};

pub use outcome::{ChainCounts, ChainViolation};
pub use world::ChainWorld;

/// The limits of a run: the number of steps of each kind, and the fault.
#[derive(Debug, Clone, Default)]
pub struct ChainScope {
    /// Maximum number of commits: an owner that knows this number of commits makes no more. Each commit puts one or two
    /// messages into the outbox.
    pub commits: u64,
    /// Maximum number of new messages of the other producer.
    pub other_messages: usize,
    /// The choices for a rollback. Each element names the shards that go back in one step.
    pub rollback_choices: Vec<ChainShards>,
    /// Maximum number of times that shards go back.
    pub rollbacks: u64,
    /// Number of restarts of the process after which no step [`ChainStep::Restart`] is possible. The process also ends
    /// if the store has lost the owner's claim, or if the owner has forgotten a lost message. Restarts for these two
    /// reasons count as well, but have no limit.
    pub restarts: u64,
    /// Maximum number of sent messages that an owner forgets, as if memory had no room for them.
    pub forgotten: usize,
    /// True if the answer to a call may be lost, and the call may arrive a second time.
    pub loses_answers: bool,
    /// The rule that is broken on purpose; `None` in a correct model.
    pub fault: Option<ChainFault>,
}

/// The shards that go back in time in one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainShards {
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
    /// An owner does not send again the messages that the destination has lost.
    LostMessagesAreDropped,
    /// An owner sends lost messages again, but does not request their old numbers.
    LostMessagesGetNewNumbers,
    /// After each answer, the owner forgets its newest sent message. A correct owner forgets only its oldest messages.
    NewestIsForgotten,
    /// An owner never makes a call to check whether the destination still has the sent messages.
    NothingIsChecked,
    /// A call does not name the outbox position of the last message that the destination has confirmed.
    NoPositionIsNamed,
    /// The destination ignores the last confirmed outbox position that a call names, so the destination cannot notice
    /// that it has gone back.
    DestinationComparesNothing,
    /// The destination gives a message its requested number even if another message of the key has this number.
    TakenNumbersAreAssigned,
    /// The destination gives a message its requested number even if an earlier message of the same key and call has a
    /// higher number.
    NumbersGoBack,
    /// The owner requests the old number of a message even if an earlier message of the key, in an earlier call, has a
    /// higher number now.
    LaterNumbersGoBack,
    /// The destination does not remember the messages that it has numbered.
    NothingIsRemembered,
    /// The owner treats the removal of sent messages from the outbox as durable immediately. In fact, a later commit
    /// makes the removal durable.
    DoneBeforeDurable,
    /// An owner reports to the destination that messages are done (removed from the outbox for good), although the
    /// owner still has to send these messages again. The destination then forgets these messages.
    LostMessagesAreDone,
    /// An owner repeats lost commits, which puts their messages into the outbox again. The owner then does not remove
    /// the messages that it has already sent.
    RepeatedMessagesAreNotRemoved,
    /// The destination does not forget messages of commits that the outbox has lost.
    LostCommitsAreRemembered,
    /// The destination forgets the messages of lost commits only if all messages of their call belong to lost commits.
    LostCommitsStayInMixedBlocks,
    /// The second copy of a call arrives late, and the destination treats its messages as new messages.
    LateCallsAreNew,
    /// The destination accepts messages of an older owner.
    OlderOwnerIsAccepted,
}

impl ChainFault {
    /// All faults.
    pub const ALL: [Self; 18] = [
        Self::CommitsAreNotAwaited,
        Self::LostMessagesAreDropped,
        Self::LostMessagesGetNewNumbers,
        Self::NewestIsForgotten,
        Self::NothingIsChecked,
        Self::NoPositionIsNamed,
        Self::DestinationComparesNothing,
        Self::TakenNumbersAreAssigned,
        Self::NumbersGoBack,
        Self::LaterNumbersGoBack,
        Self::NothingIsRemembered,
        Self::DoneBeforeDurable,
        Self::LostMessagesAreDone,
        Self::RepeatedMessagesAreNotRemoved,
        Self::LostCommitsAreRemembered,
        Self::LostCommitsStayInMixedBlocks,
        Self::LateCallsAreNew,
        Self::OlderOwnerIsAccepted,
    ];
}

/// A step of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainStep {
    /// The owner repeats the commits that the store has lost, and then makes a commit with this number of messages.
    Commit(u8),
    /// The owner finds that the store lacks commits, and repeats them. If the store has lost the owner's claim, the
    /// process ends instead.
    Repeat,
    /// The owner sends at most this number of messages: lost messages if there are any, otherwise waiting messages.
    Send(usize),
    /// The owner sends all lost messages, or all waiting messages if none is lost. The answer is lost.
    SendUnanswered,
    /// The call whose answer was lost arrives a second time.
    ArriveLate,
    /// If the destination may have gone back, the owner makes a call to check that the destination has all sent
    /// messages. The call contains the messages to send next.
    Check,
    /// The owner removes the sent messages from the outbox.
    RemoveSent,
    /// The owner forgets its oldest sent message, because memory has no room for it.
    Forget,
    /// This number of milliseconds passes.
    Wait(u64),
    /// The other producer sends a new message.
    Other,
    /// The other producer sends its lost messages again, and requests their old numbers.
    OtherResend,
    /// The present state of the shards becomes a state that they may go back to.
    Remember,
    /// Shards go back to the remembered state with this index.
    GoBack(ChainShards, usize),
    /// The process ends, and another process starts.
    Restart,
}

/// Maximum number of remembered states that the shards may go back to, including the first state of the run.
const STATE_LIMIT: usize = 2;

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
            ChainStep::Send(1),
            ChainStep::Send(usize::MAX),
            ChainStep::Check,
            ChainStep::RemoveSent,
        ]);
        if self.loses_answers {
            steps.extend([ChainStep::SendUnanswered, ChainStep::ArriveLate]);
        }
        if self.other_messages > 0 {
            steps.push(ChainStep::OtherResend);
            steps
                .extend((world.other_messages() < self.other_messages).then_some(ChainStep::Other));
        }
        steps.extend((world.forgotten() < self.forgotten).then_some(ChainStep::Forget));
        if world.rollbacks() < self.rollbacks {
            steps.extend((world.past() < STATE_LIMIT).then_some(ChainStep::Remember));
            for shards in &self.rollback_choices {
                steps.extend((0..world.past()).map(|to| ChainStep::GoBack(*shards, to)));
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
                Property::always(ChainViolation::$broken.rule(), |_: &Self, world: &ChainWorld| {
                    world.broken() != Some(ChainViolation::$broken)
                        && world.broken_at_end() != Some(ChainViolation::$broken)
                })
            };
        }
        vec![
            never!(Missing),
            never!(Duplicated),
            never!(OutOfOrder),
            never!(NumberReused),
            never!(MessageMistaken),
            never!(NumberChanged),
            never!(WrongResendCount),
            never!(SentWithoutCommit),
            never!(DoneButInOutbox),
            never!(Stuck),
            Property::sometimes(RESENT, |_, world: &ChainWorld| world.counts().resent > 0),
        ]
    }
}

/// A property that at least one run of each scope with rollbacks must show; otherwise the scope is too small to test
/// anything.
pub const RESENT: &str = "a lost message is sent again";
