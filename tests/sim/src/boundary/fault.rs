//! The faults between a sequencer and its world, by what they change.

/// A deliberate fault between a sequencer and its world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BoundaryFault {
    // Settings.
    /// `run_ahead` does not hold.
    IgnoreRunAhead,
    /// `max_turns` does not hold.
    IgnoreMaxTurns,
    /// Ids are forgotten although a crash can bring their events again.
    ForgetIdsTooSoon,

    // Inputs.
    /// Unpublished messages of an earlier owner do not count.
    ForgetLeftOvers,
    /// A refused write counts as applied.
    KeepRefusedResults,
    /// A commit without an answer counts as applied.
    TakeUnknownForApplied,
    /// Turns run although the handler version is not here.
    RunWithoutVersion,

    // Acknowledgements.
    /// A delivery counts as finished when its turn is done.
    AckBeforeCommit,
    /// A delivery counts as finished at its arrival.
    AckPastHeld,
    /// A delivery counts as finished when its spill is asked for.
    AckBeforeSpill,

    // Turns.
    /// A turn is started while one of the same key is with the workers.
    TwoTurnsOfOneKey,

    // Batches as a whole.
    /// A commit without an answer is sent again under a new number.
    NewNumberAfterUnknown,
    /// The batch in flight is sent as it is after those that the store had lost.
    SendWhatRestsOnOldReads,
    /// Messages of refused writes are published.
    PublishRefused,
    /// An event whose content differs from that of its identity gets no letter.
    IgnoreConflicts,

    // Writes.
    /// A spill write leaves out its first event.
    DropASpilledEvent,
    /// Failed tries are not written down.
    LoseTheRetryCount,
    /// A job records no handler version.
    ForgetTheVersion,
    /// An id taken is not written down.
    ForgetTheId,
    /// Messages of one write are emitted in reverse.
    SwapMessages,
    /// The last of several messages of a write is dropped.
    LoseAMessage,
    /// Nothing enters the due index.
    ForgetTheDueTime,
    /// A rejected event gets no letter.
    LoseALetter,
    /// A skipped sequence gets no letter.
    LoseAGapLetter,
    /// The ledger of a key's gaps lacks those that were skipped.
    LoseAGapEnd,
    /// The late original of a skipped sequence counts as a duplicate.
    TakeLateForDuplicate,
}

impl BoundaryFault {
    /// All of them.
    pub const ALL: [Self; 26] = [
        Self::IgnoreRunAhead,
        Self::IgnoreMaxTurns,
        Self::ForgetIdsTooSoon,
        Self::ForgetLeftOvers,
        Self::KeepRefusedResults,
        Self::TakeUnknownForApplied,
        Self::RunWithoutVersion,
        Self::AckBeforeCommit,
        Self::AckPastHeld,
        Self::AckBeforeSpill,
        Self::TwoTurnsOfOneKey,
        Self::NewNumberAfterUnknown,
        Self::SendWhatRestsOnOldReads,
        Self::PublishRefused,
        Self::IgnoreConflicts,
        Self::DropASpilledEvent,
        Self::LoseTheRetryCount,
        Self::ForgetTheVersion,
        Self::ForgetTheId,
        Self::SwapMessages,
        Self::LoseAMessage,
        Self::ForgetTheDueTime,
        Self::LoseALetter,
        Self::LoseAGapLetter,
        Self::LoseAGapEnd,
        Self::TakeLateForDuplicate,
    ];
}
