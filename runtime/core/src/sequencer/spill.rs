//! Moves events between memory and the spill area, and decides when to move them. The spill area is the part of the
//! store that holds events before their key can execute them.

use std::sync::Arc;

use super::delivery_window::NO_LANE;
use super::held::{HeldEvent, SpillCopy};
use super::letters::{orphan_letter, skip_letter};
use super::repeat::conflict_error;
use super::{Sequencer, ShardState};
use crate::effect::Effect;
use crate::event::Event;
use crate::input::SpillPage;
use crate::key_record::SpillExtent;
use crate::letter::Cause;
use crate::settings::{OrderingMode, OverflowPolicy};
use crate::turn::AttemptToken;

impl Sequencer {
    /// Requests a read of spilled events if the next event to execute may be among the spilled events. Also requests a
    /// read if the key has ended, because its spilled events must become dead letters.
    pub(super) fn request_page(&mut self, index: u32) {
        let lane = &self.lanes[index];
        let is_requested = lane.cold.page.is_some() || lane.cold.unreadable.is_some();
        if is_requested || lane.cold.stored_only.count == 0 || lane.writing {
            return;
        }
        if lane.turn.is_some() {
            // The read waits for the end of the turn. The turn may take long, and until its end, other lanes can use
            // the memory that the read would need.
            return;
        }
        let next = lane.done + lane.running_events() as u64;
        let from = if lane.end_is_durable() {
            lane.cold.stored_only.first
        } else if lane.ended
            || lane.parked()
            || lane.cold.retry_at.is_some()
            || lane.lacks_version(&self.settings)
            || !lane.cold.stored_only.spans(next)
            || lane.held.find(next).is_ok()
        {
            return;
        } else {
            next
        };
        let serial = self.next_serial();
        let lane = &mut self.lanes[index];
        lane.cold.get_or_init().page = Some(serial);
        self.outstanding_pages.insert(AttemptToken { lane: index, serial });
        self.effects.push_back(Effect::ReadSpill {
            token: AttemptToken { lane: index, serial },
            key: lane.key.clone(),
            from,
            limit: self.settings.lane_buffer.max(self.settings.quantum),
            bytes: self.settings.batch_bytes,
        });
    }

    pub(super) fn spill_read(&mut self, token: AttemptToken, read: Result<SpillPage, String>) {
        // The request ends even if no lane waits for its answer.
        self.outstanding_pages.remove(token);
        let Some(index) = self.match_completion(token, |lane| Some(&mut lane.cold.get_mut()?.page))
        else {
            return;
        };
        let lane = &mut self.lanes[index];
        if lane.ended && !lane.end_is_durable() {
            // When the end of the key is durable, the sequencer reads the events again and dead-letters them.
            self.reschedule(index);
            return;
        }
        let (events, end) = match read {
            Ok(page) => page,
            Err(error) => {
                lane.cold.get_or_init().unreadable = Some(error);
                self.reschedule(index);
                return;
            }
        };
        // Events of the page that are also in memory were spilled during the read. `stored_only` does not count these
        // events.
        let read = events.iter().filter(|(sequence, _)| lane.held.find(*sequence).is_err()).count();
        let remaining = lane.cold.stored_only.count.saturating_sub(read as u64);
        match events.last() {
            Some(&(read, _)) if !end && remaining > 0 && read < lane.cold.stored_only.last => {
                let first = read + 1;
                let last = lane.cold.stored_only.last;
                lane.cold.get_or_init().stored_only = SpillExtent { count: remaining, first, last };
            }
            _ => lane.cold.get_or_init().stored_only = SpillExtent::default(),
        }
        for (sequence, event) in events {
            if self.lanes[index].end_is_durable() {
                self.dead_letter_spilled(index, sequence, &event);
            } else {
                self.unspill(index, sequence, event);
            }
        }
        // Memory now contains the spilled events that were read, so the lane can compare the checks (deliveries that
        // may repeat spilled events) with these events.
        self.lanes[index].front = self.lanes[index].done;
        for check in self.lanes[index].cold.take_checks() {
            self.memory -= check.event.memory();
            self.accept(index, check.delivery, check.event);
        }
        let lane = &mut self.lanes[index];
        if lane.cold.stored_only.count == 0 && (lane.ended || lane.held.is_empty()) {
            // The key record may count more spilled events than the store holds, so the lane writes the record again.
            lane.must_write |= lane.record.spilled.count > 0;
        }
        self.reschedule(index);
    }

    /// If the lane already holds another event with this sequence, the spilled event becomes a dead letter.
    fn unspill(&mut self, index: u32, sequence: u64, event: Arc<Event>) {
        let lane = &mut self.lanes[index];
        if sequence < lane.done {
            return;
        }
        match lane.held.find(sequence) {
            Err(_) => {
                let copy = SpillCopy::Stored;
                let at = self.now;
                let held = HeldEvent { sequence, at, event, delivery: 0, copy, replayed: false };
                self.insert(index, held);
            }
            Ok(position) if lane.held.same(position, &event) => {
                // If the copy is being written, only the reply to the write may mark the event as stored and its
                // deliveries as finished. Before that reply, the store may still lose the copy. If the event were
                // already marked as stored, no commit would write its copy again.
                let held = lane.held.get(position);
                if held.is_some_and(|held| held.copy != SpillCopy::Writing) {
                    self.finish_stored(index, position);
                }
            }
            Ok(position) => {
                let other = lane.held.get(position).map(|held| &*held.event);
                let error = conflict_error(sequence, &event, other);
                let letter = orphan_letter(&lane.key, sequence, &event, Cause::Conflict, error);
                self.queue_orphan_letter(letter, 0);
            }
        }
    }

    /// Marks the deliveries of a held event as finished, because the spill area has a copy of the event.
    pub(super) fn finish_stored(&mut self, index: u32, position: usize) {
        let lane = &mut self.lanes[index];
        let Some((sequence, delivery)) = lane.held.mark_stored(position) else { return };
        self.window.finish(delivery);
        self.finish_repeats(index, sequence);
    }

    pub(super) fn finish_repeats(&mut self, index: u32, sequence: u64) {
        for delivery in self.lanes[index].take_repeats(sequence) {
            self.count_duplicate(delivery);
        }
    }

    pub(super) fn dead_letter_spilled(&mut self, index: u32, sequence: u64, event: &Arc<Event>) {
        let letter = self.after_end_letter(index, sequence, event);
        self.queue_orphan_letter(letter, 0);
    }

    /// Removes from memory the held events that have a copy in the store and cannot run soon.
    pub(super) fn evict_stored(&mut self, index: u32) {
        let slow = self.is_nearly_full() && self.lanes[index].turn.is_some();
        let lane = &mut self.lanes[index];
        if !(slow || lane.blocked()) || lane.cold.page.is_some() || lane.ended {
            return;
        }
        let stopped =
            lane.parked() || lane.cold.retry_at.is_some() || lane.cold.newer_rollout.is_some();
        let from = if slow || stopped {
            lane.done + lane.running_events() as u64
        } else {
            let gap = lane.cold.gap.as_ref().map_or(u64::MAX, |gap| gap.at);
            let rest = if lane.cold.stored_only.count > 0 {
                lane.cold.stored_only.first
            } else {
                u64::MAX
            };
            gap.min(rest)
        };
        let stored = |held: &HeldEvent| held.sequence >= from && held.copy == SpillCopy::Stored;
        for held in lane.held.extract(lane.running_events(), stored) {
            lane.cold.get_or_init().stored_only.add(held.sequence);
            self.memory -= held.event.memory();
        }
        lane.front = lane.done;
    }

    /// Returns the time at which the oldest delivery will have waited for `spill_after`. The lane of this delivery then
    /// spills. Returns `None` if that lane cannot spill, or if no delivery waits.
    pub(super) fn spill_timeout(&self) -> Option<u64> {
        let head = self.window.oldest()?;
        self.can_spill_head(head.lane).then(|| head.at.saturating_add(self.settings.spill_after))
    }

    /// `false` while no handler version is available: all keys wait then, and the source keeps the events that do not
    /// fit into memory.
    pub(super) fn can_spill_head(&self, lane: u32) -> bool {
        lane != NO_LANE
            && self.settings.rollout.is_some()
            && !fault!(self, NeverSpill)
            && self.lanes.get(lane).is_some_and(|lane| {
                lane.live() && !lane.spill_all && lane.can_spill(&self.settings)
            })
    }

    /// Turns the events beyond `spill_limit` into dead letters, including events that were held before their key
    /// stopped. Does nothing if `overflow` is `pause`, the default.
    pub(super) fn overflow_held(&mut self, index: u32) {
        let lane = &self.lanes[index];
        // A lane that holds only checks has no event to spill, but its key may still have room in the spill area.
        let room =
            lane.record.spilled.count < self.settings.spill_limit || lane.can_spill(&self.settings);
        if self.settings.overflow != OverflowPolicy::DeadLetter
            || (lane.held.not_durable() == 0 && lane.cold.checks.is_empty())
            || lane.ended
            || lane.turn.is_some()
            || lane.writing
            || !lane.pending.is_empty()
            || !lane.blocked()
            || lane.absence_assumed
            || room
        {
            return;
        }
        let lane = &mut self.lanes[index];
        let stopped =
            lane.parked() || lane.cold.retry_at.is_some() || lane.cold.newer_rollout.is_some();
        // The events before the first missing event can run, unless the key has stopped.
        let first = if stopped { lane.done } else { lane.front.max(lane.done) };
        let beyond = |held: &HeldEvent| {
            held.sequence > lane.done && held.sequence >= first && held.copy == SpillCopy::None
        };
        let extracted = lane.held.extract(0, beyond).into_iter();
        let mut overflowing: Vec<_> =
            extracted.map(|held| (held.sequence, held.delivery, held.event)).collect();
        if lane.cold.page.is_none() && !lane.cold.stored_only.contiguous() {
            let checks = lane.cold.take_checks().into_iter();
            overflowing.extend(checks.map(|check| (check.sequence, check.delivery, check.event)));
        }
        if overflowing.is_empty() {
            return;
        }
        lane.spill_all = false;
        lane.front = lane.done;
        for (sequence, delivery, event) in overflowing {
            self.memory -= event.memory();
            if delivery == 0 && self.settings.ordering == OrderingMode::Sequenced {
                // The event arrived early or from replay, so the source will deliver it, or replay can find it again.
                continue;
            }
            let lane = &mut self.lanes[index];
            if let Some(ids) = &mut lane.ids {
                ids.forget_from(sequence);
            }
            self.dead_letter_overflow(index, sequence, delivery, &event);
            for delivery in self.lanes[index].take_repeats(sequence) {
                self.dead_letter_overflow(index, sequence, delivery, &event);
            }
        }
    }

    /// A parked key that has reached `spill_limit` blocks the partition. Another owner may have released it, if the
    /// releasing event went to another partition, so its record is loaded again.
    pub(super) fn watch_full(&mut self, index: u32) {
        let lane = &mut self.lanes[index];
        if !lane.parked() || !lane.durable_but_full(&self.settings) {
            return;
        }
        // Early events and replayed events have no delivery that blocks other deliveries, and the lane can get these
        // events again. A lane of a `sequenced` stream therefore drops these events. In a `fifo` stream, these events
        // stay, because they would get other numbers if they arrived again later.
        let is_numbered_here = lane.ids.is_some();
        let is_dropped = |held: &HeldEvent| {
            held.delivery == 0 && held.copy == SpillCopy::None && !is_numbered_here
        };
        for held in lane.held.extract(0, is_dropped) {
            self.memory -= held.event.memory();
            lane.front = lane.done;
        }
        // Only the lanes of a `sequenced` stream have checks.
        if let Some(cold) = lane.cold.get_mut() {
            for check in cold.checks.extract_if(.., |check| check.delivery == 0) {
                self.memory -= check.event.memory();
            }
        }
        if lane.has_undurable_events() && lane.cold.reload_at.is_none() {
            lane.cold.get_or_init().reload_at =
                Some(self.now.saturating_add(self.settings.due_poll));
        }
    }

    /// Returns whether the sequencer has reached its limit of unacknowledged deliveries, and no turn, load, commit or
    /// ready lane can change that.
    pub(super) fn stalled(&self) -> bool {
        self.window.len() >= self.prefetch
            && self.turns == 0
            && self.outstanding_loads.len() == 0
            && self.ready.is_empty()
            && self.shards.iter().all(ShardState::is_quiet)
    }

    /// Makes dead letters of the held events of a key that has just ended.
    pub(super) fn dead_letter_held(&mut self, index: u32) {
        let lane = &mut self.lanes[index];
        lane.spill_all = false;
        if let Some(cold) = lane.cold.get_mut() {
            cold.forget_gap();
            // Abandon a read in progress, because it does not cover the events that the code below adds to
            // `stored_only`.
            cold.page = None;
        }
        if let Some(ids) = &mut lane.ids {
            // These events end as dead letters without a number, so a repeat of one of them must not count as the
            // repeat of a settled event.
            ids.forget_from(lane.done);
        }
        for held in lane.held.take() {
            self.memory -= held.event.memory();
            if held.copy == SpillCopy::Stored {
                // The event becomes a dead letter with the other spilled events, when the sequencer reads them.
                self.lanes[index].cold.get_or_init().stored_only.add(held.sequence);
                continue;
            }
            self.dead_letter_after_end(index, held.sequence, held.delivery, &held.event);
            for delivery in self.lanes[index].take_repeats(held.sequence) {
                self.dead_letter_after_end(index, held.sequence, delivery, &held.event);
            }
        }
        let lane = &mut self.lanes[index];
        if lane.cold.stored_only.count == 0 && lane.record.spilled.count > 0 {
            lane.must_write = true;
        }
    }

    /// Skips the sequences from `done` to `last`, whose events never arrived, and creates one dead letter for all of
    /// them.
    pub(super) fn skip_unseen(&mut self, index: u32, last: u64, error: String) {
        let lane = &mut self.lanes[index];
        let first = lane.done;
        let letter = skip_letter(&lane.key, first, last, error);
        let bytes = letter.memory();
        let chunk = lane.chunk(None, &self.settings);
        chunk.next = last + 1;
        chunk.skipped.push((first, last));
        chunk.letters.push(letter);
        chunk.bytes += bytes;
        self.memory += bytes;
        lane.done = last + 1;
        lane.record.rounds = 0;
        lane.record.attempts = 0;
        lane.record.failure = None;
    }
}
