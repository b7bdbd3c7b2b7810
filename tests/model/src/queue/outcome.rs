//! The violations that the checks of a run may find, and the counts of rare events in a run.

/// A violation: the way in which a run has broken a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QueueViolation {
    /// The reader delivered an entry a second time before the first delivery was finished.
    DeliveredTwice,
    /// The reader removed an entry before the effect of the entry was durable.
    RemovedTooEarly,
    /// The reader of an inbox published an entry before an earlier entry.
    OutOfOrder,
    /// At the end, an entry in the store has not taken effect.
    NoEffect,
    /// At the end, a settled entry is still in the queue.
    SettledNotRemoved,
    /// The reader's count of lost entries is wrong. The reader must count each entry of its own process that the store
    /// lost before a reader had read the entry, and no other entry.
    WrongLossCount,
    /// The process without a reader did not count the loss of an event that the store lost while the event waited in
    /// the queue.
    LossNotCounted,
    /// The process without a reader counted more events than the store lost.
    PresentCountedAsLost,
    /// The reader never finishes reading.
    Stuck,
    /// A call over two shards succeeded although the store had lost a part of the call that no reader had read yet.
    AnsweredCallLost,
}

impl QueueViolation {
    /// Returns the rule that is broken.
    pub const fn rule(self) -> &'static str {
        match self {
            Self::DeliveredTwice => {
                "an entry is not delivered again before its first delivery is finished"
            }
            Self::RemovedTooEarly => "an entry is removed after its effect is durable",
            Self::OutOfOrder => "the entries of an inbox are published in order",
            Self::NoEffect => "each entry of the store takes effect",
            Self::SettledNotRemoved => "settled entries are removed",
            Self::WrongLossCount => "entries that are lost unread are counted",
            Self::LossNotCounted => "events that are lost before their removal are counted",
            Self::PresentCountedAsLost => "events that the store has are not counted",
            Self::Stuck => "the reader finishes",
            Self::AnsweredCallLost => "the store has all unread parts of an answered call",
        }
    }
}

/// The counts of rare events in a run. The counts show that the runs reach these events. A comparison of two states
/// ignores these counts, except `rollbacks`, `lost`, `restarts` and `counted`, which are also a part of the state.
#[derive(Debug, Clone, Copy, Default)]
pub struct QueueCounts {
    /// Number of times that the store went back.
    pub rollbacks: u64,
    /// Number of reads and removals that the store refused.
    pub refused: u64,
    /// Number of entries that the reader counted as lost, because the store lost them before the reader read them.
    pub lost: u64,
    /// Number of entries that the reader read again, recognised, and did not deliver again.
    pub recognized: u64,
    /// Number of times that the reader's process ended and another process started.
    pub restarts: u64,
    /// Number of lost entries that calls over two shards wrote again.
    pub rewritten: u64,
    /// Number of events that the process without a reader counted as lost.
    pub counted: u64,
    /// Number of calls that the process without a reader repeated, because the answer was lost.
    pub repeated: u64,
    /// Number of entries that the reader of an inbox published.
    pub published: u64,
}
