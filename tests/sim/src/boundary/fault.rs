//! The faults between a sequencer and its world, grouped by the kind of value that they change.

/// A deliberate fault between a sequencer and its world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BoundaryFault {
    // Settings.
    /// The sequencer does not know the limit `run_ahead`.
    IgnoreRunAhead,
    /// The sequencer does not know the limit `max_turns`.
    IgnoreMaxTurns,
    /// The sequencer forgets ids although their events may arrive again after a crash.
    ForgetIdsTooSoon,

    // Inputs.
    /// The sequencer does not count the unpublished messages that an earlier owner left in the outbox.
    ForgetLeftOvers,
    /// The sequencer counts a refused write as applied.
    KeepRefusedResults,
    /// The sequencer counts a commit without an answer as applied.
    TakeUnknownForApplied,
    /// The sequencer starts turns although the owner lacks the handler version of the rollout.
    RunWithoutVersion,

    // Acknowledgements.
    /// A delivery counts as finished, and may be acknowledged, as soon as the turn with its event is done.
    AckBeforeCommit,
    /// A delivery counts as finished, and may be acknowledged, as soon as it arrives.
    AckPastHeld,
    /// A delivery counts as finished, and may be acknowledged, as soon as the sequencer requests the spill of its
    /// event.
    AckBeforeSpill,

    // Turns.
    /// A turn starts while the workers execute another turn of the same key.
    TwoTurnsOfOneKey,

    // Batches as a whole.
    /// When a commit has no answer, the owner sends it again under a new number.
    NewNumberAfterUnknown,
    /// After the store went back, the owner repeats the lost batches, and then sends the unanswered batch again. The
    /// owner does not change this batch, although the batch depends on reads from before the loss.
    SendWhatRestsOnOldReads,
    /// The owner repeats a commit that the store has lost, but without the dead letters of the commit.
    RepeatWithoutLetters,
    /// The owner publishes the messages of refused writes.
    PublishRefused,
    /// An event gets no dead letter although another event with the same sequence or id, but other content, exists.
    IgnoreConflicts,

    // Writes.
    /// A write that spills events leaves out the first of them.
    DropASpilledEvent,
    /// A write states that its key has no failed attempts.
    LoseTheRetryCount,
    /// A key record contains no rollout, and therefore no handler version.
    ForgetTheVersion,
    /// A write lacks the last of the ids that it accepts.
    ForgetTheId,
    /// A write contains its messages in reverse order.
    SwapMessages,
    /// A write with several messages lacks the last of them.
    LoseAMessage,
    /// Writes put no key into the due index.
    ForgetTheDueTime,
    /// A rejected event gets no dead letter.
    LoseALetter,
    /// The last skipped range of a write gets no dead letter.
    LoseAGapLetter,
    /// The dead letter of a skipped range lacks the last sequence of the range.
    ShortenAGapLetter,
    /// The gap history of a key does not contain the skipped gaps.
    LoseAGapEnd,
    /// An event that arrives after its sequence was skipped gets no dead letter, as if it were a duplicate.
    TakeLateForDuplicate,
}

impl BoundaryFault {
    /// All faults.
    pub const ALL: [Self; 28] = [
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
        Self::ShortenAGapLetter,
        Self::LoseAGapEnd,
        Self::TakeLateForDuplicate,
    ];
}
