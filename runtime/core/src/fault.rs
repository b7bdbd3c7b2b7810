//! Deliberate faults, to prove that the simulator's checker bites. Only with the feature `faults`.

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// A deliberate fault.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Fault { $($(#[$doc])* $name,)* }

        impl Fault {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The name, in kebab case.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

faults! {
    /// A delivery counts as finished when its turn is done.
    AckBeforeCommit = "ack-before-commit",
    /// A buffered delivery counts as finished at its arrival.
    AckPastHeld = "ack-past-held",
    /// A delivery counts as finished when its spill is asked for.
    AckBeforeSpill = "ack-before-spill",
    /// What an earlier owner left to be published does not count.
    ForgetLeftOvers = "forget-left-overs",
    /// A single missing sequence is passed over.
    SkipAGap = "skip-a-gap",
    /// A turn is started while one of the same key is with the workers.
    TwoTurnsOfOneKey = "two-turns-of-one-key",
    /// A completion is taken for the lane's present attempt, whatever its token says.
    ForgetTheTokenCheck = "forget-the-token-check",
    /// A spill write leaves out its first event.
    DropASpilledEvent = "drop-a-spilled-event",
    /// The repeat of a settled event that is the last one is run again.
    TakeADuplicateForNew = "take-a-duplicate-for-new",
    /// Failed tries are not written down.
    LoseTheRetryCount = "lose-the-retry-count",
    /// A failure is never exhausted.
    RetryForEver = "retry-for-ever",
    /// Content is never compared.
    IgnoreConflicts = "ignore-conflicts",
    /// A rejected event gets no letter.
    LoseALetter = "lose-a-letter",
    /// A skipped sequence gets no letter.
    LoseAGapLetter = "lose-a-gap-letter",
    /// That a gap is skipped is not noted.
    LoseAGapEnd = "lose-a-gap-end",
    /// A refused write counts as applied.
    KeepRefusedResults = "keep-refused-results",
    /// A commit without an answer counts as applied.
    TakeUnknownForApplied = "take-unknown-for-applied",
    /// A commit without an answer is sent again under a new number.
    NewNumberAfterUnknown = "new-number-after-unknown",
    /// `run_ahead` does not hold.
    IgnoreRunAhead = "ignore-run-ahead",
    /// `max_turns` does not hold.
    IgnoreMaxTurns = "ignore-max-turns",
    /// Nothing is ever spilled for being blocked or slow.
    NeverSpill = "never-spill",
    /// Nothing is dispatched while some key is parked or retries.
    BlockOthers = "block-others",
    /// Neither mark nor outcome ends a key.
    ForgetTheEnd = "forget-the-end",
    /// An id taken is not written down.
    ForgetTheId = "forget-the-id",
    /// Messages of one write are emitted in reverse.
    SwapMessages = "swap-messages",
    /// The last of several messages of a write is dropped.
    LoseAMessage = "lose-a-message",
    /// Messages of refused writes are published.
    PublishRefused = "publish-refused",
    /// Turns run although the handler version is not here.
    RunWithoutVersion = "run-without-version",
    /// A job is executed under an older decision than before.
    IgnoreNewerVersion = "ignore-newer-version",
    /// A job records no handler version.
    ForgetTheVersion = "forget-the-version",
    /// Nothing enters the due index.
    ForgetTheDueTime = "forget-the-due-time",
    /// The late original of a skipped sequence counts as a duplicate.
    TakeLateForDuplicate = "take-late-for-duplicate",
    /// After a refusal the state in memory is kept.
    KeepRefusedState = "keep-refused-state",
    /// Lanes keep what was read while the store had gone back.
    TrustOldReads = "trust-old-reads",
    /// The batch in flight is sent as it is after those that the store had lost.
    SendWhatRestsOnOldReads = "send-what-rests-on-old-reads",
}
