//! Deliberate faults of the sequencer's decisions, to prove that the simulator's checker finds
//! them. Only with the feature `faults`.
//!
//! Faults that change nothing but an input, an effect or a setting stand outside the sequencer: in
//! `tests/sim/src/boundary.rs`.

/// A deliberate fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A single missing sequence is passed over.
    SkipAGap,
    /// A completion is taken for the lane's present attempt, whatever its token says.
    ForgetTheTokenCheck,
    /// The repeat of a settled event that is the last one is run again.
    TakeADuplicateForNew,
    /// A failure is never exhausted.
    RetryForEver,
    /// Nothing is ever spilled for being blocked or slow.
    NeverSpill,
    /// Nothing is dispatched while some key is parked.
    BlockOthers,
    /// Neither mark nor outcome ends a key.
    ForgetTheEnd,
    /// A job is executed under an older decision than before.
    IgnoreNewerVersion,
    /// After a refusal the state in memory is kept.
    KeepRefusedState,
    /// Lanes keep what was read while the store had gone back.
    TrustOldReads,
}

impl Fault {
    /// All of them.
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
