//! Reads the due index of the store, and loads keys on request. The due index contains keys, each with the time at
//! which the owner must handle the key. Through this index, the sequencer finds due keys that are not in memory.

use super::Sequencer;
use crate::effect::Effect;
use crate::event::{Key, shard_of};

/// The delay until the next read of the due index, in ms, in five cases:
/// - No lane is free for the read.
/// - During the read, other keys took the last free lanes.
/// - A lane whose key has a due time left memory during the newest pass over the index.
/// - The store has not searched the whole index.
/// - A lane whose key is due, but cannot continue now, leaves memory.
///
/// Without the delay, the sequencer would read the index in a busy loop.
const SCAN_RETRY_DELAY_MS: u64 = 1_000;
/// The delay in the last four of these cases, in ms, after the source has ended. This delay is shorter, because the
/// caller then waits until all events are settled.
const SCAN_RETRY_DELAY_AT_END_MS: u64 = 20;
const SCAN_PAGE_LIMIT: usize = 256;

#[derive(Debug)]
pub(super) struct DueScan {
    /// The time of the next read: the next part of the current pass, or the start of the next pass.
    at: u64,
    /// The entry after which this pass continues; `None` at the beginning.
    after: Option<(u64, Key)>,
    reading: bool,
    in_pass: bool,
    /// `true` if, since the beginning of the newest pass, every read has searched its whole part of the index, each key
    /// that was read got a lane, and no lane whose key has a due time has left memory.
    clean: bool,
}

impl DueScan {
    pub(super) fn new(now: u64) -> Self {
        Self { at: now, after: None, reading: false, in_pass: false, clean: false }
    }

    pub(super) fn at(&self) -> Option<u64> {
        (!self.reading).then_some(self.at)
    }

    pub(super) fn is_finished(&self) -> bool {
        self.clean && !self.reading && !self.in_pass
    }

    /// Schedules a pass at `at` or earlier, because a key that is not in memory may be due then.
    pub(super) fn schedule(&mut self, at: u64) {
        self.clean = false;
        self.at = self.at.min(at);
    }
}

impl Sequencer {
    pub(super) fn read_due(&mut self) {
        let is_due = self.due.at <= self.now && !self.draining && self.settings.rollout.is_some();
        if self.due.reading || !is_due {
            return;
        }
        if self.due.after.is_none() {
            self.due.clean = true;
            self.due.in_pass = true;
        }
        let limit = SCAN_PAGE_LIMIT.min(self.room());
        if limit == 0 {
            self.due.at = self.now + SCAN_RETRY_DELAY_MS;
            return;
        }
        self.due.reading = true;
        let after = self.due.after.clone();
        self.effects.push_back(Effect::ReadDue { after, limit, all: self.source_has_ended });
    }

    pub(super) fn due_read(&mut self, entries: Vec<(u64, Key)>, next_in: Option<u64>) {
        if !std::mem::take(&mut self.due.reading) {
            self.stats.stale += 1;
            return;
        }
        let some = !entries.is_empty();
        for entry in entries {
            if !self.ensure_loaded(&entry.1) {
                // Other keys have taken the last free lanes since the read began. A later read will return this key.
                self.due.clean = false;
                break;
            }
            self.wake_idle(&entry.1);
            self.due.after = Some(entry);
        }
        let more = next_in.is_some_and(|wait| wait == 0 || self.source_has_ended);
        if some && more {
            self.due.at = self.now;
            return;
        }
        // If `more` is true here, the store returned no entry although the index has more entries: the store skipped
        // invalid entries, and has not searched the whole index.
        self.due.clean &= !more;
        self.due.after = None;
        self.due.in_pass = false;
        // While a lane is in memory, the entry of its key may stay in the index although the time of the entry has
        // passed. Such an entry needs no read before the next poll, because the lane has its own timer.
        let poll = self.settings.due_poll;
        self.due.at =
            self.now + next_in.filter(|wait| *wait > 0).map_or(poll, |wait| wait.min(poll));
        if !self.due.clean {
            self.due.schedule(self.now + self.scan_retry_delay());
        }
    }

    /// Returns the delay until the next read of the due index for keys that could not be processed.
    pub(super) fn scan_retry_delay(&self) -> u64 {
        if self.source_has_ended { SCAN_RETRY_DELAY_AT_END_MS } else { SCAN_RETRY_DELAY_MS }
    }

    pub(super) fn load_requested(&mut self) {
        while let Some(key) = self.reload_requests.pop_front() {
            if !self.ensure_loaded(&key) {
                self.reload_requests.push_front(key);
                return;
            }
        }
    }

    /// Loads a due key again if its lane has nothing due. The due entry then comes from another partition, and the lane
    /// does not know the entry. This happens in three steps:
    /// - The other partition took the key over.
    /// - The other partition spilled events of the key, and wrote the due entry.
    /// - A load that this partition had sent earlier arrived late, and took the key back. No lane waits for its answer
    ///   any more.
    fn wake_idle(&mut self, key: &Key) {
        let Some(index) = self.lanes.find(key) else { return };
        let lane = &self.lanes[index];
        if lane.durable() && lane.knows_nothing_due(self.now) {
            self.restart_lane(index);
        }
    }

    /// Returns `false` if the key needs a lane and no lane is free.
    pub(super) fn ensure_loaded(&mut self, key: &Key) -> bool {
        if self.lanes.find(key).is_some() {
            return true;
        }
        if self.room() == 0 {
            return false;
        }
        let index = self.insert_lane(Key::clone(key), shard_of(key, self.settings.shards));
        self.loads.push_back(index);
        self.reschedule(index);
        true
    }
}
