//! The result of a run.

/// The counts of rare events in a run, which prove that the runs reach these events. Two states that differ only in
/// these counts are equal.
#[derive(Debug, Clone, Copy, Default)]
pub struct ChainSeen {
    /// Number of times that shards went back.
    pub rewinds: u64,
    /// Calls that the destination refused because it had gone back.
    pub refused: u64,
    /// Messages that the owner had to send again.
    pub again: u64,
    /// Messages that the destination recognised as repeats.
    pub known: u64,
    /// Repeated messages that got a new number, for example because another message had taken their old number.
    pub changed: u64,
    /// Lost commits that the owner repeated.
    pub commits: u64,
    /// Number of times that the process ended and another process started.
    pub restarts: u64,
    /// Committed messages that the destination lacks at the end, because no process has them in memory any more.
    pub lost: u64,
    /// Messages of lost commits that stay at the destination.
    pub orphans: u64,
}

/// A rule that a run breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChainBroken {
    /// The destination lacks a committed message.
    Missing,
    /// The destination has a committed message twice, under two numbers.
    Twice,
    /// The numbers of a key's messages do not follow the order of the outbox.
    OutOfOrder,
    /// Two messages of one key have the same number.
    OneNumberTwice,
    /// The destination mistook a message for another message.
    AnotherMessage,
    /// A message that was sent again got a new number although its old number was free.
    NumberChanged,
    /// The owner's count of messages to send again, or of messages that changed their number, is wrong.
    WrongCount,
    /// An owner sends a message whose commit is lost.
    WithoutCommit,
    /// The outbox again contains messages that the destination was allowed to forget.
    DoneComesBack,
    /// The owner cannot send all messages.
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
