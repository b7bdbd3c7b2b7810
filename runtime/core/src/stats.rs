//! What a sequencer counts, for status lines, metrics and tests.

use crate::letter::Cause;
use crate::settings::SOURCES_LIMIT;
use crate::turn::FailureKind;

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
    /// Failed tries by [`FailureKind`], in the order of [`FailureKind::ALL`].
    pub failures_by_kind: [u64; FailureKind::ALL.len()],
    /// Replay rounds.
    pub gap_rounds: u64,
    /// Questions to each replay source, by what came of them.
    pub replays: [Replays; SOURCES_LIMIT],
    /// How long events were missing that came after all.
    pub recovery: Recovery,
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
        let count = |sum: &mut [u64], more: &[u64]| {
            sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        };
        count(&mut self.dead, &other.dead);
        count(&mut self.failures_by_kind, &other.failures_by_kind);
        for (sum, more) in self.replays.iter_mut().zip(&other.replays) {
            sum.add(more);
        }
        count(&mut self.recovery.counts, &other.recovery.counts);
        self.recovery.sum_ms += other.recovery.sum_ms;
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

    /// The counters alone, of a sequencer that has ended.
    #[must_use]
    pub fn counters(&self) -> Self {
        Self {
            lanes: 0,
            lanes_by_state: [0; LaneState::ALL.len()],
            memory: 0,
            unacknowledged: 0,
            ahead: 0,
            turns: 0,
            loads: 0,
            outbox: 0,
            ..*self
        }
    }

    /// Lanes in a state.
    pub fn lanes_in(&self, state: LaneState) -> usize {
        self.lanes_by_state[state as usize]
    }

    /// A replay source has answered a question, with so many events.
    pub(crate) fn answered(&mut self, source: usize, found: usize, failed: bool) {
        let Some(replays) = self.replays.get_mut(source) else { return };
        let count = match (found, failed) {
            (1.., _) => &mut replays.found,
            (0, true) => &mut replays.failed,
            (0, false) => &mut replays.missing,
        };
        *count += 1;
    }

    /// All letters.
    pub fn dead_total(&self) -> u64 {
        self.dead.iter().sum()
    }
}

/// Questions to a replay source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Replays {
    /// Those that found an event.
    pub found: u64,
    /// Those that found none.
    pub missing: u64,
    /// Those that found none because the source failed.
    pub failed: u64,
}

impl Replays {
    /// Adds the figures of another.
    pub fn add(&mut self, other: &Self) {
        self.found += other.found;
        self.missing += other.missing;
        self.failed += other.failed;
    }
}

/// Times from the arrival of a later event until the missing one came, counted by length.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recovery {
    /// By the bounds of [`Recovery::BOUNDS_MS`]; the last are those beyond all of them.
    pub counts: [u64; Self::BOUNDS_MS.len() + 1],
    /// All of them together, in ms.
    pub sum_ms: u64,
}

impl Recovery {
    /// The longest time that each count has, in ms: from a swap on the way to an hour's outage.
    pub const BOUNDS_MS: [u64; 15] = [
        1, 5, 10, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000,
        3_600_000,
    ];

    pub(crate) fn add(&mut self, ms: u64) {
        self.counts[Self::BOUNDS_MS.partition_point(|bound| *bound < ms)] += 1;
        self.sum_ms = self.sum_ms.saturating_add(ms);
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
    /// Its next event is here, and the handler version is not that is to execute it.
    Version,
    /// Its next event failed and is tried again later.
    Retrying,
    /// It is stopped.
    Parked,
    /// What the store has of it cannot be read.
    Broken,
}

impl LaneState {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Idle,
        Self::Loading,
        Self::Ready,
        Self::Running,
        Self::Committing,
        Self::Waiting,
        Self::Version,
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
            Self::Version => "version",
            Self::Retrying => "retrying",
            Self::Parked => "parked",
            Self::Broken => "broken",
        }
    }
}
