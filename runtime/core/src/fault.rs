//! Deliberate faults in the sequencer's decisions. They prove that the simulator's checker finds
//! such faults. This module exists only with the feature `faults`.
//!
//! Faults that change only an input, an effect or a setting are outside the sequencer, in
//! `tests/sim/src/boundary.rs`.

/// A deliberate fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SequencerFault {
    /// The sequencer skips a single missing sequence.
    SkipAGap,
    /// The sequencer accepts a completion for the lane's current attempt without checking its
    /// token.
    ForgetTheTokenCheck,
    /// The sequencer executes a repeat of the last settled event again.
    TakeADuplicateForNew,
    /// The sequencer never exhausts a failure's attempts.
    RetryForEver,
    /// The sequencer never spills events because a key is blocked or slow.
    NeverSpill,
    /// The sequencer dispatches nothing while any key is parked.
    BlockOthers,
    /// Neither an event's end mark nor a handler's outcome ends a key.
    ForgetTheEnd,
    /// The sequencer executes a key under an older rollout than before.
    IgnoreNewerVersion,
    /// The sequencer keeps its state in memory after a refusal.
    KeepRefusedState,
    /// Lanes keep data that they read while the store had gone back in time.
    TrustOldReads,
}

impl SequencerFault {
    /// All faults.
    pub const ALL: [Self; 10] = [
        Self::SkipAGap,
        Self::ForgetTheTokenCheck,
        Self::TakeADuplicateForNew,
        Self::RetryForEver,
        Self::NeverSpill,
        Self::BlockOthers,
        Self::ForgetTheEnd,
        Self::IgnoreNewerVersion,
        Self::KeepRefusedState,
        Self::TrustOldReads,
    ];
}
