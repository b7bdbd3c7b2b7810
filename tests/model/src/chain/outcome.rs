//! The counts of rare events in a run, and the violations that the checks of a run may find.

/// The counts of rare events in a run. The counts show that the runs reach these events. A comparison of two states
/// ignores these counts, except `rollbacks` and `restarts`, which are also a part of the state.
#[derive(Debug, Clone, Copy, Default)]
pub struct ChainCounts {
    /// Number of times that shards went back.
    pub rollbacks: u64,
    /// Number of calls that the destination refused because it had gone back.
    pub refused: u64,
    /// Number of lost messages that the owner had to send again.
    pub resent: u64,
    /// Number of messages that the destination recognised as repeats.
    pub recognized: u64,
    /// Number of messages that got a new number when the owner sent them again, for example because another message had
    /// taken the old number.
    pub changed: u64,
    /// Number of lost commits that an owner repeated.
    pub commits: u64,
    /// Number of times that the process ended and another process started.
    pub restarts: u64,
    /// Number of committed messages that the destination lacks at the end of a correct run. No process sends these
    /// messages again: either no process has them in memory, or the destination mistook them for other messages, so
    /// that their owner counts them as received.
    pub lost: u64,
    /// Number of messages of lost commits that stay at the destination.
    pub orphans: u64,
}

/// A violation: the way in which a run has broken a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChainViolation {
    /// The destination lacks a committed message that the owner could still send.
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
    /// The owner sends too few or too many messages again, or counts the lost messages or the messages with a changed
    /// number wrongly.
    WrongResendCount,
    /// An owner sends a message although the store has lost the commit of the message, and the owner has not repeated
    /// the commit.
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
            Self::NumberChanged => {
                "a message that is sent again keeps its number if the number is free"
            }
            Self::WrongResendCount => "exactly the lost messages are sent again",
            Self::SentWithoutCommit => "a message is sent only while its commit exists",
            Self::DoneButInOutbox => "the outbox has no message that was reported as done",
            Self::Stuck => "the owner finishes",
        }
    }
}
