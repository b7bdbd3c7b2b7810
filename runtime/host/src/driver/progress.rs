//! The figures of a running partition, for whoever shows them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use ordain_core::{LaneState, Stats};

/// Figures that a driver puts and others read.
#[derive(Debug, Default)]
pub struct Shared {
    stats: Mutex<Stats>,
    ended: AtomicBool,
}

impl Shared {
    pub(super) fn put(&self, stats: Stats) {
        *self.stats.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = stats;
    }

    /// The last figures.
    pub fn get(&self) -> Stats {
        *self.stats.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Whether the sequencer has been told that the source is at its end.
    pub fn ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    pub(super) fn set_ended(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

/// The figures of all partitions of a process together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Their sums.
    pub stats: Stats,
}

impl Progress {
    /// Adds a partition's figures.
    #[must_use]
    pub fn and(mut self, other: &Stats) -> Self {
        let sum = &mut self.stats;
        sum.delivered += other.delivered;
        sum.settled += other.settled;
        sum.duplicates += other.duplicates;
        sum.reordered += other.reordered;
        sum.failures += other.failures;
        sum.gap_rounds += other.gap_rounds;
        sum.replayed += other.replayed;
        sum.spilled += other.spilled;
        sum.commits += other.commits;
        sum.refused += other.refused;
        sum.stale += other.stale;
        sum.messages += other.messages;
        sum.lanes += other.lanes;
        sum.memory += other.memory;
        sum.unacknowledged += other.unacknowledged;
        sum.ahead += other.ahead;
        sum.turns += other.turns;
        sum.loads += other.loads;
        sum.outbox += other.outbox;
        for (sum, other) in sum.dead.iter_mut().zip(other.dead) {
            *sum += other;
        }
        for (sum, other) in sum.lanes_by_state.iter_mut().zip(other.lanes_by_state) {
            *sum += other;
        }
        self
    }

    /// Lanes in a state.
    pub fn lanes(&self, state: LaneState) -> usize {
        self.stats.lanes_by_state[state as usize]
    }
}
