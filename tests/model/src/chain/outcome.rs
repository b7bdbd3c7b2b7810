//! The result of a run.

/// The counts of rare events in a run. They show that runs reach all of these events. Two states that differ only in
/// these counts are the same state.
#[derive(Debug, Clone, Copy, Default)]
pub struct ChainSeen {
    /// Times that a shard went back.
    pub rewinds: u64,
    /// Calls that the destination refused because it had gone back.
    pub refused: u64,
    /// Messages that were given again.
    pub again: u64,
    /// Messages that the destination recognised as repeats.
    pub known: u64,
    /// Messages that got another number because their own was taken.
    pub changed: u64,
    /// Commits that were repeated.
    pub commits: u64,
    /// Times that the process ended and another process began.
    pub restarts: u64,
    /// Messages that were lost with a process.
    pub lost: u64,
    /// Messages of lost commits that stay at the destination.
    pub orphans: u64,
}

/// A rule that a run breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChainBroken {
    /// A committed message is not at its destination.
    Missing,
    /// A committed message has two numbers.
    Twice,
    /// Messages are not in the order of their outbox.
    OutOfOrder,
    /// Two messages have one number.
    OneNumberTwice,
    /// A message was mistaken for another message.
    AnotherMessage,
    /// A message that was given again lost its number although that number was free.
    NumberChanged,
    /// The number of messages that are given again, or that change their number, differs from the owner's count.
    WrongCount,
    /// An owner gives a message whose commit is lost.
    WithoutCommit,
    /// Messages that the destination need not know any more are in the outbox again.
    DoneComesBack,
    /// Messages never reach their destination.
    Stuck,
}

impl ChainBroken {
    /// Returns the rule that is broken.
    pub const fn rule(self) -> &'static str {
        match self {
            Self::Missing => "a committed message is at its destination",
            Self::Twice => "a committed message is at its destination once",
            Self::OutOfOrder => "messages have the order of their outbox",
            Self::OneNumberTwice => "a number names one message",
            Self::AnotherMessage => "a message is known by its own content",
            Self::NumberChanged => "a message that is given again keeps a free number",
            Self::WrongCount => "the messages given again are those that were lost",
            Self::WithoutCommit => "a message is given while its commit exists",
            Self::DoneComesBack => "the outbox has no message that is done for good",
            Self::Stuck => "the owner finishes",
        }
    }
}
