//! The memory budget: what it counts, when the intake stops, which lanes leave, and which actions
//! wait.
//!
//! At three quarters of the budget the intake stops, blocked lanes spill and idle lanes leave. The
//! last quarter is for events already accepted. The memory that a turn, a load or a read of spilled
//! events needs is known only afterwards. At the full budget, therefore, no turn, load or read
//! starts while a commit or a publication is in progress. After that, turns start one at a time, and
//! loads and reads start when no lane is ready. A long turn delays none of these.

use super::Sequencer;
use super::lanes::LaneList;

/// The duration, in ms, after which a turn is slow and others no longer wait for it.
const SLOW_TURN_TIMEOUT_MS: u64 = 50;

impl Sequencer {
    /// Returns whether a requested [`Run`](crate::Effect::Run) may start now. With full memory, it
    /// waits for commits and publications in progress.
    pub fn may_run(&self) -> bool {
        !self.is_full() || self.all_published()
    }

    /// Returns whether a requested [`Load`](crate::Effect::Load) or
    /// [`ReadSpill`](crate::Effect::ReadSpill) may start now. With full memory, lanes that are
    /// ready to run go first.
    pub fn may_read(&self) -> bool {
        !self.is_full()
            || (self.all_published() && self.ready.is_empty() && !self.over_budget_turn_runs())
    }

    /// Returns whether another turn fits, including the expected outcomes of all running turns.
    pub(super) fn another_turn_fits(&self) -> bool {
        self.memory + (self.turns + 1) * self.outcome_bytes <= self.settings.memory_budget
    }

    /// Returns whether the last turn that started beyond the budget may still end soon.
    pub(super) fn over_budget_turn_runs(&self) -> bool {
        self.over_budget_turn
            .is_some_and(|(_, at)| self.now < at.saturating_add(SLOW_TURN_TIMEOUT_MS))
    }

    /// Returns the time when the next such turn may start although the last has not ended.
    pub(super) fn over_budget_timeout(&self) -> Option<u64> {
        let waits = !self.ready.is_empty() || self.is_full();
        self.over_budget_turn
            .filter(|_| waits && self.over_budget_turn_runs())
            .map(|(_, at)| at.saturating_add(SLOW_TURN_TIMEOUT_MS))
    }

    /// Returns whether memory reaches the budget.
    pub(super) fn is_full(&self) -> bool {
        self.memory >= self.settings.memory_budget
    }

    /// Returns whether memory reaches three quarters of the budget, so that the intake stops.
    pub(super) fn is_nearly_full(&self) -> bool {
        self.memory >= self.settings.memory_budget / 4 * 3
    }

    /// Frees memory, and spills lanes that block other events.
    pub(super) fn free_memory(&mut self) {
        let mut stalled = false;
        if let Some(head) = self.window.oldest()
            && self.can_spill_head(head.lane)
        {
            let late = self.now >= head.at.saturating_add(self.settings.spill_after);
            if late || head.behind > self.prefetch / 2 {
                self.lanes[head.lane].spill_all = true;
                self.reschedule(head.lane);
            }
            stalled = late || self.stalled();
        }
        if (stalled || self.source_has_ended || self.is_nearly_full() || self.room() == 0)
            && !fault!(self, NeverSpill)
        {
            while let Some(index) = self.lanes.first(LaneList::Blocked) {
                self.lanes[index].spill_all = true;
                self.reschedule(index);
            }
        }
        while self.is_nearly_full()
            && let Some(index) = self.lanes.first(LaneList::Evictable)
        {
            self.evict(index);
        }
    }

    /// Evicts the state of a lane that waits for its turn or for a read of spilled events. Evicts it only if memory is
    /// full and the state is larger than `memory_budget` divided by the prefetch. The lane is loaded again. Only a lane
    /// that has just committed is evicted, so that each eviction follows progress.
    pub(super) fn evict_state(&mut self, index: u32) {
        let lane = &self.lanes[index];
        let share = self.settings.memory_budget / self.prefetch.max(1);
        if !self.another_turn_fits()
            && (lane.runnable(&self.settings) || lane.cold.page.is_some())
            && lane.pending.is_empty()
            && !lane.must_write
            && lane.state.as_ref().is_some_and(|state| state.len() > share)
        {
            self.restart_lane(index);
        }
    }
}
