//! Creates, loads and evicts lanes (in-memory queues of the active keys).

use super::Sequencer;
use super::lane::{Lane, LaneMode, StoredRevision};
use super::lanes::LaneList;
use crate::effect::Effect;
use crate::event::Key;
use crate::key_record::{KeyRecord, KeySnapshot, KeyStatus};
use crate::settings::OrderingMode;
use crate::turn::AttemptToken;

/// The exclusive upper bound for the numbers of a `fifo` key. A key with a million events per second would not reach
/// this bound in half a million years. The range above the bound is larger than the number of events that a lane may
/// hold, so that no number can overflow.
const NUMBERS_END: u64 = u64::MAX - (1 << 40);

impl Sequencer {
    /// The caller must have checked that a lane is unused or can be evicted (`room() > 0`).
    pub(super) fn insert_lane(&mut self, key: Key, shard: u32) -> u32 {
        if self.lanes.len() >= self.settings.max_lanes
            && let Some(oldest) = self.lanes.first(LaneList::Evictable)
        {
            self.evict(oldest);
        }
        let serial = self.next_serial();
        let lane = Lane::new(key, shard, serial, &self.settings);
        self.stats.lanes_by_state[lane.counted_state as usize] += 1;
        let index = self.lanes.insert(lane);
        self.stats.lanes_peak = self.stats.lanes_peak.max(self.lanes.len());
        index
    }

    /// Evicts a lane whose content is durable. If the key has a due time, schedules a read of the due index for that
    /// time. If that time has passed, the lane cannot continue now, for example because this process lacks the handler
    /// version. The read then waits, because otherwise the sequencer would load and evict the lane in a busy loop.
    pub(super) fn evict(&mut self, index: u32) {
        let lane = self.lanes.remove(index);
        debug_assert!(lane.durable(), "only a lane whose content is durable may be evicted");
        self.memory -= lane.counted_memory;
        self.memory -= lane.held.iter().map(|held| held.event.memory()).sum::<usize>();
        self.stats.lanes_by_state[lane.counted_state as usize] -= 1;
        self.changing_lanes -= usize::from(lane.will_change);
        if let Some(at) = lane.due(self.now) {
            let at =
                if at > self.now { at } else { self.now.saturating_add(self.scan_retry_delay()) };
            self.due.schedule(at);
        }
    }

    pub(super) fn start_loads(&mut self) {
        while self.outstanding_loads.len() < self.settings.max_loads {
            let Some(index) = self.loads.pop_front() else { return };
            let serial = self.next_serial();
            let Some(lane) = self.lanes.get(index) else { continue };
            if !lane.wants_load() {
                continue;
            }
            if lane.live() {
                self.reload_for_gap(index, serial);
            } else {
                self.request_load(index, serial);
            }
        }
    }

    pub(super) fn request_load(&mut self, index: u32, serial: u64) {
        let lane = &mut self.lanes[index];
        lane.load = Some(serial);
        self.outstanding_loads.insert(AttemptToken { lane: index, serial });
        let token = AttemptToken { lane: index, serial };
        self.effects.push_back(Effect::Load { token, key: lane.key.clone() });
    }

    pub(super) fn loaded(
        &mut self,
        token: AttemptToken,
        loaded: Result<Option<Box<KeySnapshot>>, String>,
    ) {
        // The request ends even if no lane waits for its answer.
        self.outstanding_loads.remove(token);
        let Some(index) = self.match_completion(token, |lane| Some(&mut lane.load)) else { return };
        if self.lanes[index].live() {
            self.reloaded_for_gap(index, &loaded);
        } else {
            match loaded {
                Err(error) => self.lanes[index].mode = LaneMode::Broken(error),
                Ok(None) => {
                    let lane = &mut self.lanes[index];
                    lane.mode = LaneMode::Live;
                    lane.absent = true;
                }
                Ok(Some(loaded)) => self.install(index, *loaded),
            }
            self.accept_deferred(index);
            if self.lanes[index].cold.tail_at.is_some_and(|at| at <= self.now) {
                self.request_tail(index);
            }
        }
        self.reschedule(index);
    }

    /// If no lane waits for the completion, counts it as stale and returns `None`.
    pub(super) fn match_completion(
        &mut self,
        token: AttemptToken,
        waiting: impl Fn(&mut Lane) -> Option<&mut Option<u64>>,
    ) -> Option<u32> {
        let careless = fault!(self, ForgetTheTokenCheck);
        if self.lanes.get(token.lane).is_some()
            && let Some(slot) = waiting(&mut self.lanes[token.lane])
            && (*slot == Some(token.serial) || (careless && slot.is_some()))
        {
            *slot = None;
            return Some(token.lane);
        }
        self.stats.stale += 1;
        None
    }

    fn install(&mut self, index: u32, loaded: KeySnapshot) {
        let ignore_newer = fault!(self, IgnoreNewerVersion);
        let now = self.now;
        let settings = &self.settings;
        let lane = &mut self.lanes[index];
        self.shards[lane.shard as usize].store_clock_offset = loaded.now.wrapping_sub(now);
        let last = loaded.record.next.max(loaded.record.spilled.last);
        if settings.ordering == OrderingMode::Fifo && last >= NUMBERS_END {
            lane.mode = LaneMode::Broken(format!(
                "the record contains sequence {last}, which no key can reach: the record is damaged"
            ));
            return;
        }
        lane.mode = LaneMode::Live;
        lane.absent = false;
        let revision = StoredRevision::of(&loaded.record);
        lane.record = KeyRecord { partition: settings.partition, ..loaded.record };
        if !fault_keeps_state(lane) {
            lane.state = loaded.state;
        }
        if lane.record.rollout == settings.rollout {
            // All lanes share one copy of the rollout.
            lane.record.rollout.clone_from(&settings.rollout);
        }
        if !ignore_newer {
            self.newest_rollout = self.newest_rollout.max(lane.compare_versions(settings));
        }
        lane.done = lane.record.next;
        lane.front = lane.record.next;
        lane.ended = lane.record.status == KeyStatus::Completed;
        lane.expires_at = loaded.expire_in.map_or(u64::MAX, |wait| now.saturating_add(wait));
        if settings.ordering == OrderingMode::Fifo {
            if lane.record.ids_from == 0 {
                // The stream was `sequenced` before it became `fifo`.
                lane.record.ids_from = lane.record.next;
            }
            // In a `fifo` stream, no dead letter waits for earlier events, because the numbers follow the order of
            // delivery.
            lane.record.ahead = None;
            lane.ids = Some(Box::new(super::ids::IdWindow::from_accepted(&loaded.ids)));
        }
        let wait = loaded.due_in.unwrap_or(0);
        if revision != StoredRevision::NEW {
            let cold = lane.cold.get_or_init();
            cold.revision = revision;
            cold.stored_only = lane.record.spilled;
        }
        lane.advance_front();
        if lane.may_have_gap() {
            lane.cold.get_or_init().gap_due = Some(now + wait.min(settings.gap.timeout));
        }
        match lane.record.status {
            KeyStatus::Retrying => {
                lane.cold.get_or_init().retry_at = Some(now + wait.min(settings.retry.backoff.max));
                lane.record.status = KeyStatus::Active;
            }
            KeyStatus::Waiting => lane.record.status = KeyStatus::Active,
            KeyStatus::Active
                if loaded.due_in.is_some()
                    && lane.cold.stored_only.count == 0
                    && lane.record.ahead.is_none() =>
            {
                let wait = if self.source_has_ended { 0 } else { wait };
                lane.cold.get_or_init().tail_at =
                    settings.gap.tail.map(|tail| now + wait.min(tail));
                // If `gap.tail` is no longer set, nothing of the key is due. The lane then writes the key, because
                // otherwise the entry in the due index would become due repeatedly.
                lane.must_write |= lane.cold.tail_at.is_none();
            }
            KeyStatus::Active | KeyStatus::Parked | KeyStatus::Completed => {}
        }
        if lane.cold.retry_at.is_some_and(|at| at <= now) {
            self.retry_now(index);
        } else if lane.parked() {
            self.retry_outdated(index);
        }
    }
}

/// Returns whether the fault `KeepRefusedState` left a state in a lane that waits for the key record.
fn fault_keeps_state(lane: &Lane) -> bool {
    cfg!(feature = "faults") && lane.state.is_some()
}
