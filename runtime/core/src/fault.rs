//! Deliberate faults in the sequencer's decisions. Tests activate these faults to prove that the checker of the
//! simulator finds wrong decisions. This module exists only with the feature `faults`, which is off by default.
//!
//! The file `tests/sim/src/boundary/fault.rs` defines the faults outside the sequencer, which change only an input, an
//! effect or a setting.

/// A deliberate fault in a decision of the sequencer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SequencerFault {
    /// If exactly one event is missing before the next held event, the sequencer skips the missing event instead of
    /// waiting for it.
    SkipAGap,
    /// A lane (the in-memory queue of a key) makes a load, a read or a replay request, and then a newer request. The
    /// sequencer accepts the answer to the older request as the answer to the newer request. The sequencer also accepts
    /// the result of a turn that began before the lane restarted.
    ForgetTheTokenCheck,
    /// When a repeat of the newest settled event of a key arrives, the sequencer executes this event a second time.
    TakeADuplicateForNew,
    /// The sequencer retries a failed event without limit.
    RetryForEver,
    /// The sequencer does not move the events of a blocked or slow key into the store.
    NeverSpill,
    /// The sequencer starts no turn while any key is parked (stopped at an event).
    BlockOthers,
    /// The sequencer never ends a key, even if an event is the last event of its key
    /// ([`Event::end`](crate::Event::end)) or an outcome of the handler ends the key.
    ForgetTheEnd,
    /// A key's earlier events were executed under a newer rollout (a later choice of the handler version) than the
    /// present rollout. The sequencer executes events of this key nevertheless.
    IgnoreNewerVersion,
    /// The sequencer keeps the state of a key in memory after the store has refused a write of the key.
    KeepRefusedState,
    /// After the store has gone back in time (lost its newest commits), lanes keep the data that they read before the
    /// lost commits were recovered.
    TrustOldReads,
    /// After the store has gone back in time, the sequencer does not compare arriving events with the digests of the
    /// events that recovered commits settled.
    ForgetRecoveredEvents,
    /// The sequencer does not update the key record's range of dead-lettered events that may still take effect.
    ForgetEventsAhead,
    /// The sequencer does not read the early dead letters whose sequences the key has passed, and therefore keeps these
    /// letters unchanged.
    KeepPassedLetters,
    /// The handler executes the events of all types, although the settings restrict the types.
    ExecuteOtherTypes,
}

impl SequencerFault {
    /// All faults.
    pub const ALL: [Self; 14] = [
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
        Self::ForgetRecoveredEvents,
        Self::ForgetEventsAhead,
        Self::KeepPassedLetters,
        Self::ExecuteOtherTypes,
    ];
}
