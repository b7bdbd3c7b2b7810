//! The memory budget: what is counted, when intake stops, what leaves, and what has to wait.
//!
//! At three quarters of the budget intake stops, blocked lanes spill and idle ones leave: the last
//! quarter is for what is in already. What a turn, a load or a read of spilled events brings is
//! known only afterwards. So at the whole budget none of them is to start while something is being
//! committed or published, and then one turn at a time; loads and reads when nothing is there to
//! run. A turn that runs long holds up none of that.

use super::Sequencer;
use super::lanes::List;

/// A turn that takes longer than this, in ms, is slow: the others don't wait for it.
const SOON: u64 = 50;

impl Sequencer {
    /// Whether what it has asked to [`Run`](crate::Effect::Run) may start now: where memory is
    /// full it waits for what is being committed and published.
    pub fn may_run(&self) -> bool {
        !self.full() || self.written()
    }

    /// Whether what it has asked to [`Load`](crate::Effect::Load) and to
    /// [read](crate::Effect::ReadSpill) may be read now: where memory is full, what can run goes
    /// first.
    pub fn may_read(&self) -> bool {
        !self.full() || (self.written() && self.ready.is_empty() && !self.extra_runs())
    }

    /// Whether another turn fits, with what it and those under way will bring.
    pub(super) fn fits(&self) -> bool {
        self.memory + (self.turns + 1) * self.outcome <= self.settings.memory_budget
    }

    /// Whether the turn that was started last without fitting may end soon.
    pub(super) fn extra_runs(&self) -> bool {
        self.extra.is_some_and(|(_, at)| self.now < at.saturating_add(SOON))
    }

    /// When the next one may start although that one has not ended.
    pub(super) fn extra_timeout(&self) -> Option<u64> {
        let waits = !self.ready.is_empty() || self.full();
        self.extra.filter(|_| waits && self.extra_runs()).map(|(_, at)| at.saturating_add(SOON))
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
            if late || head.behind > self.prefetch / 2 {
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

    /// Where memory is full, a lane that waits for its turn, or for spilled events to be read, gives
    /// up its state, if states of this size would fill memory with one for each event of the window.
    /// It is loaded again. Only what has just been committed is given up, so that each time something
    /// has moved on.
    pub(super) fn unload_state(&mut self, index: u32) {
        let lane = &self.lanes[index];
        let share = self.settings.memory_budget / self.prefetch.max(1);
        if !self.fits()
            && (lane.runnable(&self.settings) || lane.rare.page.is_some())
            && lane.pending.is_empty()
            && !lane.header
            && lane.state.as_ref().is_some_and(|state| state.len() > share)
        {
            self.load_again(index);
        }
    }
}
