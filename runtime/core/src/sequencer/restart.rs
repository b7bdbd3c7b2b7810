//! Restarts a lane. Usually the sequencer loads the key record again. If another partition has the key, the lane waits
//! instead of loading the record. If the key record or a spilled event is unreadable, the sequencer marks the lane as
//! broken. In each case, the sequencer treats the lane's events that are not durable as if they had just arrived.

use super::Sequencer;
use super::arrive::is_next;
use super::held::SpillCopy;
use super::lane::{DeferredEvent, Lane, LaneMode, RunningTurn};

impl Sequencer {
    /// Discards all results that are not durable, and loads the stored key record again. The events that are not
    /// durable wait for the load as if they had just arrived.
    pub(super) fn restart_lane(&mut self, index: u32) {
        self.unwind(index);
        self.lanes[index].mode = LaneMode::Loading;
        self.loads.push_back(index);
        self.reschedule(index);
    }

    /// Yields the key, because another partition took it over. If the next event of the key waits in this lane, the
    /// lane takes the key back immediately. Otherwise the lane takes the key back when that event arrives, or after
    /// `gap.timeout`. The time limit is necessary, because the other owner may change the stored `next`: without the
    /// time limit, the lane would wait for the wrong event.
    pub(super) fn yield_lane(&mut self, index: u32, next: u64) {
        self.unwind(index);
        let lane = &self.lanes[index];
        if lane.deferred.iter().any(|arrival| is_next(&self.settings, next, &arrival.event)) {
            self.restart_lane(index);
            return;
        }
        let lane = &mut self.lanes[index];
        lane.mode = LaneMode::Foreign(next);
        lane.cold.get_or_init().reload_at = Some(self.now + self.settings.gap.timeout.max(1));
        self.reschedule(index);
    }

    /// Marks the lane as broken, because the key's stored record or its spilled events cannot be read. The sequencer
    /// dead-letters the delivered events of this key, and only of this key, until the lane has left memory and is
    /// loaded again.
    pub(super) fn break_lane(&mut self, index: u32, error: String) {
        self.unwind(index);
        self.lanes[index].mode = LaneMode::Broken(error);
        self.accept_deferred(index);
        self.reschedule(index);
    }

    fn unwind(&mut self, index: u32) {
        let lane = &mut self.lanes[index];
        debug_assert!(!lane.writing, "a lane restarts only while no write of it is in flight");
        let arrivals = std::mem::take(&mut lane.deferred);
        for held in lane.held.take() {
            self.memory -= held.event.memory();
            if held.copy == SpillCopy::Stored {
                continue;
            }
            let repeats =
                lane.cold.repeats.iter().filter(|(sequence, _)| *sequence == held.sequence);
            let deliveries = std::iter::once(held.delivery).chain(repeats.map(|(_, d)| *d));
            for delivery in deliveries {
                self.memory += held.event.memory();
                let replayed = held.replayed && delivery == 0;
                let event = held.event.clone();
                lane.deferred.push(DeferredEvent { delivery, event, replayed });
            }
        }
        for chunk in std::mem::take(&mut lane.pending) {
            self.ahead -= chunk.events;
            self.memory -= chunk.bytes;
            for (delivery, event) in chunk.late_originals {
                self.memory += event.memory();
                lane.deferred.push(DeferredEvent::new(delivery, event));
            }
        }
        // Each check (a delivery that may repeat a spilled event) becomes an arrival, so its memory stays counted.
        let checks = lane.cold.take_checks();
        lane.deferred.extend(
            checks.into_iter().map(|check| DeferredEvent::new(check.delivery, check.event)),
        );
        lane.deferred.extend(arrivals);

        let settings = &self.settings;
        let fresh = Lane::new(lane.key.clone(), lane.shard, lane.serial, settings);
        let old = std::mem::replace(lane, fresh);
        lane.deferred = old.deferred;
        lane.turn = old.turn.map(|turn| RunningTurn { stale: true, ..turn });
        lane.dirty = old.dirty;
        lane.ready = old.ready;
        if old.cold.trapped.is_some() || old.cold.timer_at.is_some() {
            let cold = lane.cold.get_or_init();
            cold.trapped = old.cold.trapped;
            cold.timer_at = old.cold.timer_at;
        }
        lane.counted_state = old.counted_state;
        lane.will_change = old.will_change;
        lane.counted_memory = old.counted_memory;
        if fault!(self, KeepRefusedState) {
            self.lanes[index].state = old.state;
        }
    }
}
