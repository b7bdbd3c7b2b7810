//! The result of a run.

/// A rule that a run breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QueueBroken {
    /// The reader delivered an entry that was under way already.
    DeliveredTwice,
    /// An entry was removed before its effect was durable.
    RemovedTooEarly,
    /// An entry of an inbox was published before an earlier entry.
    OutOfOrder,
    /// An entry of the store never took effect.
    NoEffect,
    /// A settled entry stays in the queue.
    NotRemoved,
    /// The reader counted more or fewer lost entries than the store lost.
    WrongCount,
    /// The process without a reader did not count an event that the store had lost before it was removed.
    NotCounted,
    /// The process without a reader counted more events than the store lost.
    CountedPresent,
    /// The reader never finishes reading.
    Stuck,
    /// A call over two shards was answered although the store lacked an unread part of it.
    AnsweredLost,
}

impl QueueBroken {
    /// Returns the rule that is broken.
    pub const fn rule(self) -> &'static str {
        match self {
            Self::DeliveredTwice => "an entry is under way once",
            Self::RemovedTooEarly => "an entry is removed after its effect is durable",
            Self::OutOfOrder => "the entries of an inbox are published in order",
            Self::NoEffect => "each entry of the store takes effect",
            Self::NotRemoved => "settled entries are removed",
            Self::WrongCount => "entries that are lost unread are counted",
            Self::NotCounted => "events that are lost before their removal are counted",
            Self::CountedPresent => "events that the store has are not counted",
            Self::Stuck => "the reader finishes",
            Self::AnsweredLost => "the store has all unread parts of an answered call",
        }
    }
}

/// The counts of rare events in a run. They show that runs reach all of these events. Two states that differ only in
/// these counts are the same state.
#[derive(Debug, Clone, Copy, Default)]
pub struct QueueSeen {
    /// Times that the store went back.
    pub rewinds: u64,
    /// Reads or removals that the store refused.
    pub refused: u64,
    /// Entries that the store lost before the reader read them, and that the reader counted.
    pub lost: u64,
    /// Entries that the reader read again and did not deliver again.
    pub known: u64,
    /// Times that the process ended and another process began.
    pub restarts: u64,
    /// Entries that a call over two shards wrote again.
    pub again: u64,
    /// Events that the process without a reader counted as lost.
    pub counted: u64,
    /// Calls of the process without a reader that it repeated, because the answer was lost.
    pub repeated: u64,
    /// Entries that an inbox published.
    pub published: u64,
}
