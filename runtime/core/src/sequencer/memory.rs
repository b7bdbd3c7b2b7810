//! The memory budget of a sequencer. The functions decide when the sequencer stops accepting events, which lanes leave
//! memory, and which actions wait.
//!
//! At three quarters of the budget, the sequencer stops accepting events, blocked lanes spill (move their events into
//! the store), and lanes whose content is durable leave memory. The last quarter is for the work on events already
//! accepted. The sequencer does not know in advance how much memory a turn, a load or a read of spilled events needs.
//! The used memory may therefore exceed the budget. While a commit or a publication is in progress, a turn starts only
//! if the budget has room for its expected outcome. A load or a read starts only if the used memory is below the
//! budget. When all commits and publications are done, turns also start beyond the budget, one at a time. Loads and
//! reads then also start at a full budget, but only when no turn of a ready lane can start. A turn that started
//! beyond the budget delays other turns, loads and reads for at most 50 ms.

use super::Sequencer;
use super::lanes::LaneList;

/// The duration, in ms, after which a turn that started beyond the budget counts as slow. Other turns, loads and reads
/// then no longer wait for its end.
const SLOW_TURN_TIMEOUT_MS: u64 = 50;

impl Sequencer {
    /// Returns whether a requested [`Run`](crate::Effect::Run) may start now. When the memory budget is full, the turn
    /// waits for the commits and publications in progress.
    pub fn may_run(&self) -> bool {
        !self.is_full() || self.all_published()
    }

    /// Returns whether a requested [`Load`](crate::Effect::Load) or [`ReadSpill`](crate::Effect::ReadSpill) may start
    /// now. When the memory budget is full, the request waits for commits, publications, ready lanes that can run, and
    /// the first 50 ms of a turn that started beyond the budget.
    pub fn may_read(&self) -> bool {
        !self.is_full()
            || (self.all_published()
                && !self.ready_lanes_can_run()
                && !self.over_budget_turn_runs())
    }

    /// Returns whether a lane is ready to run, and its turn can start now or when a running turn has ended. The setting
    /// `run_ahead` limits the results that are not yet durable. A lane that loads its key record again keeps such
    /// results until the load ends, even when all turns and commits have ended. If these results exhaust `run_ahead`,
    /// no turn can start before such a load has ended.
    fn ready_lanes_can_run(&self) -> bool {
        !self.ready.is_empty() && (self.turns > 0 || self.ahead < self.settings.run_ahead)
    }

    /// Returns whether the budget has room for the expected outcomes of all running turns and of one more turn.
    pub(super) fn another_turn_fits(&self) -> bool {
        self.memory + (self.turns + 1) * self.outcome_bytes <= self.settings.memory_budget
    }

    /// True during the first 50 ms of the newest turn that started beyond the budget: other actions wait for its end.
    pub(super) fn over_budget_turn_runs(&self) -> bool {
        self.over_budget_turn
            .is_some_and(|(_, at)| self.now < at.saturating_add(SLOW_TURN_TIMEOUT_MS))
    }

    /// Returns the time at which other turns, loads and reads stop waiting for the newest turn that started beyond the
    /// budget: 50 ms after the start of that turn. Returns `None` if nothing waits for that turn.
    pub(super) fn over_budget_timeout(&self) -> Option<u64> {
        let waits = !self.ready.is_empty() || self.is_full();
        self.over_budget_turn
            .filter(|_| waits && self.over_budget_turn_runs())
            .map(|(_, at)| at.saturating_add(SLOW_TURN_TIMEOUT_MS))
    }

    pub(super) fn is_full(&self) -> bool {
        self.memory >= self.settings.memory_budget
    }

    /// Returns whether the used memory has reached three quarters of the budget. The sequencer then accepts no more
    /// deliveries.
    pub(super) fn is_nearly_full(&self) -> bool {
        self.memory >= self.settings.memory_budget / 4 * 3
    }

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

    /// Removes the state of a lane that has just committed, so that a lane makes progress before each removal. The lane
    /// must wait for its next turn or for a read of spilled events, and have nothing to write; the memory must have no
    /// room for another turn; and the state must be larger than `memory_budget` divided by the limit of unacknowledged
    /// deliveries. The sequencer loads the lane again when memory permits.
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
