//! Puts a lane into the queues, lists and counts in which it belongs after a change. Every part of the sequencer calls
//! this module after it has changed a lane. No other part therefore needs to update the queues, lists and counts.

use super::Sequencer;
use super::lane::{Lane, LaneMode};
use super::lanes::LaneList;
use crate::settings::SequencerSettings;
use crate::stats::LaneState;

impl Sequencer {
    pub(super) fn reschedule(&mut self, index: u32) {
        let lane = &mut self.lanes[index];
        if lane.live() {
            lane.advance_front();
            let is_open = lane.record.gaps.open().is_some();
            if lane.cold.is_some() || lane.parked() || lane.has_gap() || is_open {
                if let Some(error) = lane.take_break_reason() {
                    self.break_lane(index, error);
                    return;
                }
                self.update_gap(index);
                self.request_page(index);
                self.overflow_held(index);
                self.watch_full(index);
                self.read_passed_letters(index);
            }
            let lane = &mut self.lanes[index];
            if !lane.ready && lane.runnable(&self.settings) {
                lane.ready = true;
                self.ready.push_back(index);
            }
            // A lane with a write in flight waits for the reply before it enters the next batch.
            if !lane.dirty && !lane.writing && lane.wants_write(&self.settings) {
                lane.dirty = true;
                self.shards[lane.shard as usize].dirty.push_back(index);
            }
        }
        self.lanes[index].cold.release();
        self.update_counts(index);
        if self.lanes[index].cold.is_some() {
            self.set_timer(index);
        }
    }

    fn set_timer(&mut self, index: u32) {
        let lane = &mut self.lanes[index];
        let gap = lane.gap_clock();
        let tail = lane.cold.tail_at.filter(|_| lane.counted_state == LaneState::Idle);
        let mut at = u64::MAX;
        for deadline in [lane.cold.retry_at, lane.cold.reload_at, tail, gap] {
            at = at.min(deadline.unwrap_or(u64::MAX));
        }
        if at < lane.cold.timer_at.unwrap_or(u64::MAX) {
            lane.cold.get_or_init().timer_at = Some(at);
            self.timers.set(at, index, lane.serial);
        }
    }

    pub(super) fn lane_timeout(&mut self, index: u32) {
        let now = self.now;
        let lane = &mut self.lanes[index];
        if let Some(cold) = lane.cold.get_mut() {
            cold.timer_at = None;
        }
        if lane.cold.retry_at.is_some_and(|at| at <= now) {
            self.retry_now(index);
        }
        if self.lanes[index].gap_clock().is_some_and(|at| at <= now) {
            self.start_gap_round(index);
        }
        let lane = &mut self.lanes[index];
        let reload = lane.cold.get_mut().and_then(|cold| cold.reload_at.take_if(|at| *at <= now));
        if reload.is_some() && !lane.writing {
            self.restart_lane(index);
        }
        if self.lanes[index].cold.tail_at.is_some_and(|at| at <= now) {
            self.request_tail(index);
        }
        self.reschedule(index);
    }

    /// Moves the lane into its list, and updates the counts that include the lane: memory, states and changing lanes.
    pub(super) fn update_counts(&mut self, index: u32) {
        let lane = &mut self.lanes[index];
        let own = lane.own_memory();
        self.memory = self.memory + own - lane.counted_memory;
        lane.counted_memory = own;

        let class = lane_state(lane, &self.settings);
        self.stats.lanes_by_state[lane.counted_state as usize] -= 1;
        self.stats.lanes_by_state[class as usize] += 1;
        lane.counted_state = class;

        let restless = lane.cold.gap.as_ref().is_some_and(|gap| !gap.waits_forever())
            || lane.cold.reload_at.is_some();
        self.changing_lanes =
            self.changing_lanes + usize::from(restless) - usize::from(lane.will_change);
        lane.will_change = restless;

        let list = if lane.durable() {
            Some(LaneList::Evictable)
        } else if !lane.spill_all && lane.blocked() && lane.can_spill(&self.settings) {
            Some(LaneList::Blocked)
        } else {
            None
        };
        self.lanes.move_to(index, list);
    }
}

fn lane_state(lane: &Lane, settings: &SequencerSettings) -> LaneState {
    match lane.mode {
        LaneMode::Loading => return LaneState::Loading,
        LaneMode::Foreign(_) => return LaneState::Waiting,
        LaneMode::Broken(_) => return LaneState::Broken,
        LaneMode::Live => {}
    }
    if lane.turn.is_some() {
        LaneState::Running
    } else if lane.cold.page.is_some() {
        LaneState::Loading
    } else if lane.ready {
        LaneState::Ready
    } else if lane.writing || lane.dirty {
        LaneState::Committing
    } else if lane.parked() {
        LaneState::Parked
    } else if lane.cold.retry_at.is_some() {
        LaneState::Retrying
    } else if lane.lacks_version(settings) && lane.has_next() {
        LaneState::Version
    } else if lane.cold.gap.is_some() {
        LaneState::Waiting
    } else {
        LaneState::Idle
    }
}
