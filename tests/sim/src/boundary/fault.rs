//! The faults between a sequencer and its world, grouped by the kind of value that they change.

/// A deliberate fault between a sequencer and its world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BoundaryFault {
    // Settings.
    /// The sequencer has no limit `run_ahead`.
    IgnoreRunAhead,
    /// The sequencer has no limit `max_turns`.
    IgnoreMaxTurns,
    /// The sequencer forgets ids although their events may arrive again after a crash.
    ForgetIdsTooSoon,

    // Inputs.
    /// The sequencer does not count the unpublished messages of an earlier owner.
    ForgetLeftOvers,
    /// A refused write counts as applied.
    KeepRefusedResults,
    /// A commit without an answer counts as applied.
    TakeUnknownForApplied,
    /// Turns run although the handler version is missing.
    RunWithoutVersion,

    // Acknowledgements.
    /// A delivery counts as finished (may be acknowledged) when its turn is done.
    AckBeforeCommit,
    /// A delivery counts as finished at its arrival.
    AckPastHeld,
    /// A delivery counts as finished when its spill is requested.
    AckBeforeSpill,

    // Turns.
    /// A turn is started while the workers execute another turn of the same key.
    TwoTurnsOfOneKey,

    // Batches as a whole.
    /// A commit without an answer is sent again under a new number.
    NewNumberAfterUnknown,
    /// The batch that was in flight when the store went back is sent unchanged after the repeated batches.
    SendWhatRestsOnOldReads,
    /// A commit that the store has lost is repeated without its letters.
    RepeatWithoutLetters,
    /// Messages of refused writes are published.
    PublishRefused,
    /// An event gets no letter although an event with other content is known under its sequence or id.
    IgnoreConflicts,

    // Writes.
    /// A write that spills events leaves out the first of them.
    DropASpilledEvent,
    /// Failed tries are not recorded.
    LoseTheRetryCount,
    /// A key record contains no handler version.
    ForgetTheVersion,
    /// An accepted id is not recorded.
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
    /// The gap history of a key lacks the skipped gaps.
    LoseAGapEnd,
    /// The late original of a skipped sequence counts as a duplicate.
    TakeLateForDuplicate,
}

impl BoundaryFault {
    /// All faults.
    pub const ALL: [Self; 27] = [
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
        Self::RepeatWithoutLetters,
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
