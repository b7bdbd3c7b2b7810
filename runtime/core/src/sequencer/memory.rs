//! The memory budget: what is counted, when intake stops, what leaves, and what has to wait.
//!
//! At three quarters of the budget intake stops, blocked lanes spill and idle ones leave: the last
//! quarter is for what is in already. What a turn, a load or a read of spilled events brings is
//! known only afterwards. So at the whole budget none of them is to start while something is under
//! way that will free some of it.

use super::Sequencer;
use super::lanes::List;

impl Sequencer {
    /// Whether what it has asked to [`Run`](crate::Effect::Run) may start now: where memory is
    /// full it waits for what is being committed and published.
    pub fn may_run(&self) -> bool {
        !self.full() || self.written()
    }

    /// Whether what it has asked to [`Load`](crate::Effect::Load) and to
    /// [read](crate::Effect::ReadSpill) may be read now: where memory is full, what is executed goes
    /// first.
    pub fn may_read(&self) -> bool {
        !self.full() || self.drained()
    }

    /// Whether it holds as much as it may.
    pub(super) fn full(&self) -> bool {
        self.memory >= self.settings.memory_budget
    }

    /// Whether it holds so much that nothing more is taken in.
    pub(super) fn filling(&self) -> bool {
        self.memory >= self.settings.memory_budget / 4 * 3
    }

    /// Makes room where something holds up everything else.
    pub(super) fn relieve(&mut self) {
        let mut stalled = false;
        if let Some(head) = self.window.head()
            && self.can_spill_head(head.lane)
        {
            let late = self.now >= head.at.saturating_add(self.settings.spill_after);
            if late || head.behind > self.settings.prefetch / 2 {
                self.lanes[head.lane].spill_all = true;
                self.settle(head.lane);
            }
            stalled = late || self.stalled();
        }
        if (stalled || self.ended || self.filling() || self.room() == 0)
            && !fault!(self, NeverSpill)
        {
            while let Some(index) = self.lanes.first(List::Blocked) {
                self.lanes[index].spill_all = true;
                self.settle(index);
            }
        }
        while self.filling()
            && let Some(index) = self.lanes.first(List::Leaving)
        {
            self.leave(index);
        }
    }

    /// Where memory is full, a lane that waits for its turn gives up its state, if states of this
    /// size would fill memory with one for each event of the window. It is loaded again. Only what
    /// has just been committed is given up, so that each time something has moved on.
    pub(super) fn unload_state(&mut self, index: u32) {
        let lane = &self.lanes[index];
        let share = self.settings.memory_budget / self.settings.prefetch.max(1);
        if self.full()
            && lane.ready
            && lane.pending.is_empty()
            && lane.turn.is_none()
            && !lane.blocked()
            && lane.state.as_ref().is_some_and(|state| state.len() > share)
        {
            self.load_again(index);
        }
    }
}
