//! The counters and gauges of a sequencer, for status lines, metrics and tests.

use crate::letter::Cause;
use crate::settings::SOURCES_LIMIT;
use crate::turn::FailureKind;

/// The counters of a sequencer since its start, and the current values of its gauges.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// The number of deliveries that the sequencer has received, including unreadable deliveries.
    pub delivered: u64,
    /// The number of events settled durably with effect.
    pub settled: u64,
    /// The number of durably settled events that the handler did not execute because of their types.
    pub other_types: u64,
    /// The number of deliveries that repeat an event. A repeat counts as soon as the original event is durably settled
    /// or spilled.
    pub duplicates: u64,
    /// The number of the deliveries in `duplicates` that were store-numbered, and that the sequencer could not compare
    /// with the settled event of the same sequence. The sequencer no longer knew the digest of that event.
    pub unverified_duplicates: u64,
    /// The number of durable dead letters of each [`Cause`], in the order of [`Cause::ALL`].
    pub dead: [u64; Cause::ALL.len()],
    /// The number of delivered events that arrived while a later event of their key was in memory.
    pub reordered: u64,
    /// The number of failed tries.
    pub failures: u64,
    /// The number of failed tries of each [`FailureKind`], in the order of [`FailureKind::ALL`].
    pub failures_by_kind: [u64; FailureKind::ALL.len()],
    /// The number of replay rounds that have begun.
    pub gap_rounds: u64,
    /// The numbers of requests to each replay source, by result.
    pub replays: [ReplayCounts; SOURCES_LIMIT],
    /// The durations of the gaps that ended because the missing event arrived. A duration begins when a later event
    /// arrives, and ends when the missing event arrives.
    pub recovery_times: RecoveryTimes,
    /// The number of events that replay sources have returned.
    pub replayed: u64,
    /// The number of events that the sequencer has sent to the spill area of the store, including repeats of events
    /// that are already in the spill area.
    pub spilled: u64,
    /// The number of applied commits.
    pub commits: u64,
    /// The number of writes that the store refused.
    pub refused: u64,
    /// The number of commits that the store had lost and the sequencer sent again.
    pub recommitted: u64,
    /// The number of completions (answers to requests of the sequencer, see [`Effect`](crate::Effect)) that the
    /// sequencer dropped, because it no longer waited for these answers.
    pub stale: u64,
    /// The number of committed messages.
    pub messages: u64,

    /// The number of lanes. A lane is the in-memory queue of one active key.
    pub lanes: usize,
    /// The maximum number of lanes so far; the limit is `max_lanes`. For several sequencers together, the field is the
    /// sum of their maxima.
    pub lanes_peak: usize,
    /// The number of lanes in each state, in the order of [`LaneState::ALL`].
    pub lanes_by_state: [usize; LaneState::ALL.len()],
    /// The memory of events, states, outcomes, unpublished messages and kept commits, in bytes; the limit is
    /// `memory_budget`.
    pub memory: usize,
    /// The number of deliveries that are not yet acknowledged; the limit is `prefetch`.
    pub unacknowledged: usize,
    /// The number of events that are dispatched or executed but not yet committed; the limit is `run_ahead`.
    pub ahead: usize,
    /// The number of turns that the sequencer has requested and whose results have not arrived yet.
    pub turns: usize,
    /// The number of loads of key records in progress.
    pub loads: usize,
    /// The number of messages and forwarded dead letters that are committed but not yet published. When the number
    /// reaches `max_outbox`, the sequencer starts no more turns.
    pub outbox: usize,
}

impl Stats {
    /// Returns the number of dead letters with this cause.
    pub fn dead_of(&self, cause: Cause) -> u64 {
        self.dead[cause as usize]
    }

    /// Returns the sums of the figures of this sequencer and the figures of `other`.
    #[must_use]
    pub fn plus(mut self, other: &Self) -> Self {
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
        count(&mut self.recovery_times.counts, &other.recovery_times.counts);
        self.recovery_times.sum_ms += other.recovery_times.sum_ms;
        self.delivered += other.delivered;
        self.settled += other.settled;
        self.other_types += other.other_types;
        self.duplicates += other.duplicates;
        self.unverified_duplicates += other.unverified_duplicates;
        self.reordered += other.reordered;
        self.failures += other.failures;
        self.gap_rounds += other.gap_rounds;
        self.replayed += other.replayed;
        self.spilled += other.spilled;
        self.commits += other.commits;
        self.refused += other.refused;
        self.recommitted += other.recommitted;
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

    /// Returns the counters and `lanes_peak` of a sequencer that has ended, with all gauges set to 0.
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

    /// Returns the number of lanes in a state.
    pub fn lanes_in(&self, state: LaneState) -> usize {
        self.lanes_by_state[state as usize]
    }

    /// `failed` is `true` if the source failed.
    pub(crate) fn count_answer(&mut self, source: usize, found: usize, failed: bool) {
        let Some(replays) = self.replays.get_mut(source) else { return };
        let count = match (found, failed) {
            (1.., _) => &mut replays.found,
            (0, true) => &mut replays.failed,
            (0, false) => &mut replays.missing,
        };
        *count += 1;
    }

    /// Returns the number of all dead letters.
    pub fn dead_total(&self) -> u64 {
        self.dead.iter().sum()
    }
}

/// The numbers of requests to one replay source, by result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReplayCounts {
    /// The number of requests that found an event.
    pub found: u64,
    /// The number of successful requests that found no event.
    pub missing: u64,
    /// The number of requests that found no event because the source failed.
    pub failed: u64,
}

impl ReplayCounts {
    /// Adds the numbers of `other` to these numbers.
    pub fn add(&mut self, other: &Self) {
        self.found += other.found;
        self.missing += other.missing;
        self.failed += other.failed;
    }
}

/// A histogram of the durations of gaps, from the arrival of a later event to the arrival of the missing event.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RecoveryTimes {
    /// For each bound of [`RecoveryTimes::BOUNDS_MS`], the number of durations up to this bound and above the previous
    /// bound. The last number counts the durations above all bounds.
    pub counts: [u64; Self::BOUNDS_MS.len() + 1],
    /// The sum of all durations, in ms.
    pub sum_ms: u64,
}

impl RecoveryTimes {
    /// The upper bound of each count, in ms. The lowest bounds suit two events that swap their order in transit; the
    /// highest bound suits an outage of an hour.
    pub const BOUNDS_MS: [u64; 15] = [
        1, 5, 10, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000,
        3_600_000,
    ];

    pub(crate) fn add(&mut self, ms: u64) {
        self.counts[Self::BOUNDS_MS.partition_point(|bound| *bound < ms)] += 1;
        self.sum_ms = self.sum_ms.saturating_add(ms);
    }
}

/// The state of a lane: the in-memory queue of one active key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneState {
    /// The lane has nothing to do.
    Idle,
    /// The lane waits for its key record, or for a read of its spilled events.
    Loading,
    /// The lane has an event to execute, and waits until its turn starts.
    Ready,
    /// A worker executes a turn of the lane.
    Running,
    /// A write of the lane waits for the next commit, or is in flight. The write contains results, events to spill or a
    /// change of the key record.
    Committing,
    /// The lane waits for a missing event, or another partition has the key.
    Waiting,
    /// The lane's next event has arrived, but this process lacks the handler version that must execute the event.
    Version,
    /// The lane's next event failed and will be retried later.
    Retrying,
    /// The lane's key is parked: stopped at an event.
    Parked,
    /// The key record or the spilled events of the lane cannot be read.
    Broken,
}

impl LaneState {
    /// All states, in the order of the enum.
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

    /// Returns the name of the state in metrics.
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
