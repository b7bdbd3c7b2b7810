//! The result of a run.

/// A rule that a run breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QueueBroken {
    /// The reader delivered an entry a second time before the first delivery was finished.
    DeliveredTwice,
    /// The reader removed an entry before the effect of the entry was durable.
    RemovedTooEarly,
    /// The reader of an inbox published an entry before an earlier entry.
    OutOfOrder,
    /// An entry in the store never took effect.
    NoEffect,
    /// A settled entry stays in the queue.
    NotRemoved,
    /// The reader counted more or fewer lost entries than the store lost.
    WrongCount,
    /// The process without a reader did not count an event that the store lost while the event waited in the queue.
    NotCounted,
    /// The process without a reader counted more events than the store lost.
    CountedPresent,
    /// The reader never finishes reading.
    Stuck,
    /// A call over two shards succeeded although the store had lost a part of the call that was not read yet.
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

/// The counts of rare events in a run, which prove that the runs reach these events. Two states that differ only in
/// these counts are equal.
#[derive(Debug, Clone, Copy, Default)]
pub struct QueueSeen {
    /// Number of times that the store went back.
    pub rewinds: u64,
    /// Reads or removals that the store refused.
    pub refused: u64,
    /// Entries that the store lost before the reader read them, as the reader counted them.
    pub lost: u64,
    /// Entries that the reader read a second time, recognised, and did not deliver again.
    pub known: u64,
    /// Number of times that the reader's process ended and another process started.
    pub restarts: u64,
    /// Lost entries that a call over two shards wrote again.
    pub again: u64,
    /// Events that the process without a reader counted as lost.
    pub counted: u64,
    /// Calls that the process without a reader repeated, because the answer was lost.
    pub repeated: u64,
    /// Entries that the reader of an inbox published.
    pub published: u64,
}
