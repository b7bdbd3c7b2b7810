//! What a sequencer counts, for status lines, metrics and tests.

use crate::letter::Cause;

/// Counters since the start, and gauges of this moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Deliveries taken.
    pub delivered: u64,
    /// Events settled with effect, durably.
    pub settled: u64,
    /// Repeats of events that were settled or held, durably.
    pub duplicates: u64,
    /// Dead letters, durably, by [`Cause`] in the order of [`Cause::ALL`].
    pub dead: [u64; Cause::ALL.len()],
    /// Events that arrived after a later one of their key.
    pub reordered: u64,
    /// Failed tries.
    pub failures: u64,
    /// Replay rounds.
    pub gap_rounds: u64,
    /// Events found by replay.
    pub replayed: u64,
    /// Events written to the spill area.
    pub spilled: u64,
    /// Commits applied.
    pub commits: u64,
    /// Writes refused.
    pub refused: u64,
    /// Commits that the store had lost and that were made again.
    pub rewound: u64,
    /// Completions for attempts long given up.
    pub stale: u64,
    /// Messages committed.
    pub messages: u64,

    /// Lanes in memory.
    pub lanes: usize,
    /// The most that there ever were, compared with `max_lanes`; of several sequencers the sum.
    pub lanes_peak: usize,
    /// Lanes by state, in the order of [`LaneState::ALL`].
    pub lanes_by_state: [usize; LaneState::ALL.len()],
    /// Bytes held, compared with `memory_budget`.
    pub memory: usize,
    /// Deliveries not yet acknowledged, compared with `prefetch`.
    pub unacknowledged: usize,
    /// Events dispatched or executed and not committed, compared with `run_ahead`.
    pub ahead: usize,
    /// Turns with the workers.
    pub turns: usize,
    /// Loads under way.
    pub loads: usize,
    /// Messages and forwarded letters committed and not published, compared with `max_outbox`.
    pub outbox: usize,
}

impl Stats {
    /// Letters of one cause.
    pub fn dead_of(&self, cause: Cause) -> u64 {
        self.dead[cause as usize]
    }

    /// Adds the figures of another sequencer.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        let add = |sum: &mut [usize], more: &[usize]| {
            sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        };
        add(&mut self.lanes_by_state, &other.lanes_by_state);
        self.dead.iter_mut().zip(other.dead).for_each(|(sum, more)| *sum += more);
        self.delivered += other.delivered;
        self.settled += other.settled;
        self.duplicates += other.duplicates;
        self.reordered += other.reordered;
        self.failures += other.failures;
        self.gap_rounds += other.gap_rounds;
        self.replayed += other.replayed;
        self.spilled += other.spilled;
        self.commits += other.commits;
        self.refused += other.refused;
        self.rewound += other.rewound;
        self.stale += other.stale;
        self.messages += other.messages;
        self.lanes += other.lanes;
        self.lanes_peak += other.lanes_peak;
        self.memory += other.memory;
        self.unacknowledged += other.unacknowledged;
        self.ahead += other.ahead;
        self.turns += other.turns;
        self.loads += other.loads;
        self.outbox += other.outbox;
        self
    }

    /// Lanes in a state.
    pub fn lanes_in(&self, state: LaneState) -> usize {
        self.lanes_by_state[state as usize]
    }

    /// All letters.
    pub fn dead_total(&self) -> u64 {
        self.dead.iter().sum()
    }
}

/// What a lane is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneState {
    /// Nothing to do.
    Idle,
    /// Its job is being loaded.
    Loading,
    /// It has an event to run.
    Ready,
    /// A worker has a turn of it.
    Running,
    /// Its results are being committed.
    Committing,
    /// Its next event is missing.
    Waiting,
    /// Its next event failed and is tried again later.
    Retrying,
    /// It is stopped.
    Parked,
    /// What the store has of it cannot be read.
    Broken,
}

impl LaneState {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Idle,
        Self::Loading,
        Self::Ready,
        Self::Running,
        Self::Committing,
        Self::Waiting,
        Self::Retrying,
        Self::Parked,
        Self::Broken,
    ];

    /// The name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Loading => "loading",
            Self::Ready => "ready",
            Self::Running => "running",
            Self::Committing => "committing",
            Self::Waiting => "waiting",
            Self::Retrying => "retrying",
            Self::Parked => "parked",
            Self::Broken => "broken",
        }
    }
}
