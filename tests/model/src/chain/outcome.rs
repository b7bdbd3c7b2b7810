//! The counts of rare events in a run, and the rules that a run may break.

/// The counts of rare events in a run. These counts prove that the runs reach the events. Two states that differ only
/// in these counts are equal.
#[derive(Debug, Clone, Copy, Default)]
pub struct ChainCounts {
    /// Number of times that shards went back.
    pub rollbacks: u64,
    /// Calls that the destination refused because it had gone back.
    pub refused: u64,
    /// Messages that the owner had to send again.
    pub resent: u64,
    /// Messages that the destination recognised as repeats.
    pub recognized: u64,
    /// Repeated messages that got a new number, for example because another message had taken their old number.
    pub changed: u64,
    /// Lost commits that the owner repeated.
    pub commits: u64,
    /// Number of times that the process ended and another process started.
    pub restarts: u64,
    /// Committed messages that the destination lost and lacks at the end. No process can send these messages again,
    /// because no process still has them in memory.
    pub lost: u64,
    /// Messages of lost commits that stay at the destination.
    pub orphans: u64,
}

/// A rule that a run has broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChainViolation {
    /// The destination lacks a committed message.
    Missing,
    /// The destination has a committed message twice, under two numbers.
    Duplicated,
    /// The numbers of a key's messages do not follow the order of the outbox.
    OutOfOrder,
    /// Two messages of one key have the same number.
    NumberReused,
    /// The destination mistook a message for another message.
    MessageMistaken,
    /// A message that was sent again got a new number although its old number was free.
    NumberChanged,
    /// The owner's count of messages to send again, or of messages that changed their number, is wrong.
    WrongResendCount,
    /// An owner sends a message whose commit is lost.
    SentWithoutCommit,
    /// The outbox again contains messages that the destination was allowed to forget.
    DoneButInOutbox,
    /// The owner cannot send all messages.
    Stuck,
}

impl ChainViolation {
    /// Returns the rule that is broken.
    pub const fn rule(self) -> &'static str {
        match self {
            Self::Missing => "a committed message is at its destination",
            Self::Duplicated => "a committed message is at its destination once",
            Self::OutOfOrder => "messages have the order of their outbox",
            Self::NumberReused => "two messages never get the same number",
            Self::MessageMistaken => "a message is recognised by its own content",
            Self::NumberChanged => "a message that is sent again keeps its number if it is free",
            Self::WrongResendCount => "exactly the lost messages are sent again",
            Self::SentWithoutCommit => "a message is sent only while its commit exists",
            Self::DoneButInOutbox => "the outbox has no message that was reported as done",
            Self::Stuck => "the owner finishes",
        }
    }
}
