//! Re-enqueues a lane after a change. Every part calls this after it has changed a lane: the lane
//! enters the queues, lists and counts that it now belongs in. No other part must know these
//! consequences.

use super::Sequencer;
use super::lane::{Lane, LaneMode};
use super::lanes::LaneList;
use crate::settings::SequencerSettings;
use crate::stats::LaneState;

impl Sequencer {
    pub(super) fn settle(&mut self, index: u32) {
        let lane = &mut self.lanes[index];
        if lane.live() {
            lane.advance_front();
            let is_open = lane.job.gaps.open().is_some();
            if lane.rare.is_some() || lane.parked() || lane.has_gap() || is_open {
                if let Some(error) = lane.breaks() {
                    self.break_lane(index, error);
                    return;
                }
                self.update_gap(index);
                self.want_page(index);
                self.overflow_held(index);
                self.watch_full(index);
            }
            let lane = &mut self.lanes[index];
            if !lane.ready && lane.runnable(&self.settings) {
                lane.ready = true;
                self.ready.push_back(index);
            }
            // A lane in a batch waits for the reply before it enters the next batch.
            if !lane.dirty && !lane.writing && lane.wants_write(&self.settings) {
                lane.dirty = true;
                self.shards[lane.shard as usize].dirty.push_back(index);
            }
        }
        self.lanes[index].rare.release();
        self.count(index);
        if self.lanes[index].rare.is_some() {
            self.arm(index);
        }
    }

    /// Sets a timer for the lane's earliest deadline.
    fn arm(&mut self, index: u32) {
        let lane = &mut self.lanes[index];
        let gap = lane.gap_clock();
        let tail = lane.rare.tail_at.filter(|_| lane.class == LaneState::Idle);
        let mut at = u64::MAX;
        for deadline in [lane.rare.retry_at, lane.rare.reload_at, tail, gap] {
            at = at.min(deadline.unwrap_or(u64::MAX));
        }
        if at < lane.rare.timer.unwrap_or(u64::MAX) {
            lane.rare.make().timer = Some(at);
            self.timers.set(at, index, lane.birth);
        }
    }

    pub(super) fn lane_timeout(&mut self, index: u32) {
        let now = self.now;
        let lane = &mut self.lanes[index];
        if let Some(rare) = lane.rare.there() {
            rare.timer = None;
        }
        if lane.rare.retry_at.is_some_and(|at| at <= now) {
            self.retry_now(index);
        }
        if self.lanes[index].gap_clock().is_some_and(|at| at <= now) {
            self.gap_round(index);
        }
        let lane = &mut self.lanes[index];
        let reload = lane.rare.there().and_then(|rare| rare.reload_at.take_if(|at| *at <= now));
        if reload.is_some() && !lane.writing {
            self.load_again(index);
        }
        if self.lanes[index].rare.tail_at.is_some_and(|at| at <= now) {
            self.ask_for_tail(index);
        }
        self.settle(index);
    }

    /// Updates the list and the counts that the lane belongs in.
    pub(super) fn count(&mut self, index: u32) {
        let lane = &mut self.lanes[index];
        let own = lane.own_memory();
        self.memory = self.memory + own - lane.charged;
        lane.charged = own;

        let class = class_of(lane, &self.settings);
        self.stats.lanes_by_state[lane.class as usize] -= 1;
        self.stats.lanes_by_state[class as usize] += 1;
        lane.class = class;

        let restless = lane.rare.gap.as_ref().is_some_and(|gap| !gap.for_ever())
            || lane.rare.reload_at.is_some();
        self.restless = self.restless + usize::from(restless) - usize::from(lane.restless);
        lane.restless = restless;

        let list = if lane.durable() {
            Some(LaneList::Evictable)
        } else if !lane.spill_all && lane.blocked() && lane.can_spill(&self.settings) {
            Some(LaneList::Blocked)
        } else {
            None
        };
        self.lanes.list(index, list);
    }
}

fn class_of(lane: &Lane, settings: &SequencerSettings) -> LaneState {
    match lane.mode {
        LaneMode::Loading => return LaneState::Loading,
        LaneMode::Foreign(_) => return LaneState::Waiting,
        LaneMode::Broken(_) => return LaneState::Broken,
        LaneMode::Live => {}
    }
    if lane.turn.is_some() {
        LaneState::Running
    } else if lane.rare.page.is_some() {
        LaneState::Loading
    } else if lane.ready {
        LaneState::Ready
    } else if lane.writing || lane.dirty {
        LaneState::Committing
    } else if lane.parked() {
        LaneState::Parked
    } else if lane.rare.retry_at.is_some() {
        LaneState::Retrying
    } else if lane.lacks_version(settings) && lane.has_next() {
        LaneState::Version
    } else if lane.rare.gap.is_some() {
        LaneState::Waiting
    } else {
        LaneState::Idle
    }
}
