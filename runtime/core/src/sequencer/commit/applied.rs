//! Applies the store's reply to the lanes whose writes were in the commit. For each write, either the store has refused
//! the write, or the events of the write are now durably settled or spilled.

use super::super::Sequencer;
use super::write::spill_extent;
use super::{InFlightBatch, InFlightWrite};
use crate::effect::Effect;
use crate::key_record::{AppliedCommit, KeyWrite, WriteCondition, WriteRefusal};
use crate::settings::OrderingMode;

impl Sequencer {
    pub(super) fn apply_reply(&mut self, in_flight: InFlightBatch, applied: AppliedCommit) {
        self.settled_times.clear();
        let InFlightBatch { batch, mut lanes, letters, bytes, .. } = in_flight;
        self.shards[batch.shard as usize].store_clock_offset = applied.time.wrapping_sub(self.now);
        self.retain_commit(&batch, &applied, &mut lanes);
        self.stats.commits += 1;
        self.memory -= bytes;
        for (letter, delivery) in batch.letters.iter().zip(letters) {
            self.stats.dead[letter.cause as usize] += 1;
            self.window.finish(delivery);
            if letter.cause.waits_for_earlier() {
                self.early_letter_stored(&letter.id);
            }
        }
        let mut refused = applied.refused.iter().peekable();
        let mut messages = (0, 0);
        for (position, (in_write, write)) in lanes.into_iter().zip(&batch.writes).enumerate() {
            let index = in_write.lane;
            self.lanes[index].writing = false;
            self.lanes[index].writing_late = false;
            self.ahead -= in_write.events;
            if let Some((_, refusal)) = refused.next_if(|(refused, _)| *refused == position) {
                self.handle_refusal(in_write, refusal.clone());
                continue;
            }
            messages.0 += write.messages.len();
            messages.1 +=
                write.messages.iter().map(|emitted| emitted.message.memory()).sum::<usize>();
            self.write_applied(position, in_write, write, &applied);
            self.reschedule(index);
            self.evict_state(index);
        }
        self.stats.messages += messages.0 as u64;
        for letter in batch.forwarded(&applied) {
            messages.0 += 1;
            messages.1 += letter.memory();
        }
        if messages.0 > 0 {
            self.outbox += messages.0;
            self.memory += messages.1;
            let entry = (batch.number, messages.0, messages.1);
            self.shards[batch.shard as usize].outbox.push_back(entry);
            self.effects.push_back(Effect::Publish { batch, applied });
        }
    }

    fn write_applied(
        &mut self,
        position: usize,
        in_write: InFlightWrite,
        write: &KeyWrite,
        applied: &AppliedCommit,
    ) {
        let index = in_write.lane;
        self.stats.settled += in_write.effects as u64;
        self.stats.other_types += in_write.other_types as u64;
        for letter in &write.letters {
            self.stats.dead[letter.cause as usize] += 1;
        }
        self.update_id_times(index, write, applied.time);
        self.lanes[index].record.fill_written_times(&write.record, applied.time);
        self.forget_settled(index, write.record.next);
        for (delivery, event) in in_write.late_originals {
            drop(event);
            self.window.finish(delivery);
        }
        for (sequence, _) in &write.spill {
            if let Ok(at) = self.lanes[index].held.find(*sequence) {
                self.finish_stored(index, at);
            }
        }
        for check in in_write.checks {
            self.memory -= check.event.memory();
            let present = applied
                .existing_spills
                .iter()
                .find(|present| present.write == position && present.sequence == check.sequence);
            match present {
                Some(present) if present.same => self.count_duplicate(check.delivery),
                Some(_) => {
                    self.dead_letter_conflict(index, check.sequence, check.delivery, &check.event);
                }
                None => {
                    self.lanes[index].cold.get_or_init().stored_only.add(check.sequence);
                    self.window.finish(check.delivery);
                }
            }
        }
        self.trim_ids(index);
        let exact = spill_extent(&self.lanes[index], &[]);
        let lane = &mut self.lanes[index];
        // The write counted each check (a delivery that may repeat a spilled event) as a new event. The record must not
        // keep that count. Otherwise each repeat would count once more after a restart of the lane, and the key would
        // reach its spill limit too early.
        lane.must_write |= lane.record.spilled.count > exact.count;
        lane.record.spilled = exact;
        lane.absence_assumed = false;
        if lane.end_is_durable() {
            self.dead_letter_held(index);
        } else {
            self.evict_stored(index);
        }
        self.accept_deferred(index);
    }

    /// Starts a new stretch of ids (a run of ids with one timestamp) if the newest stretch is too old for the ids of
    /// the commit. This happens when the commit took a long time.
    fn update_id_times(&mut self, index: u32, write: &KeyWrite, time: u64) {
        if self.settings.ordering == OrderingMode::Fifo
            && let WriteCondition::Next(first) = write.condition
            && first < write.record.next
        {
            self.lanes[index].record.id_times.record_commit(first, time, self.settings.id_ttl);
        }
    }

    /// Removes the held events below `next`, because they are durably settled, and finishes their deliveries.
    fn forget_settled(&mut self, index: u32, next: u64) {
        while let Some(held) = self.lanes[index].held.pop_below(next) {
            self.memory -= held.event.memory();
            self.settled_times.push(held.event.time_ms());
            self.window.finish(held.delivery);
            self.finish_repeats(index, held.sequence);
        }
    }

    fn handle_refusal(&mut self, in_write: InFlightWrite, refusal: WriteRefusal) {
        let index = in_write.lane;
        self.stats.refused += 1;
        for (delivery, event) in in_write.late_originals {
            self.defer(index, delivery, event);
        }
        // The memory of the checks stays counted, because the lane keeps the checks.
        if !in_write.checks.is_empty() {
            self.lanes[index].cold.get_or_init().checks.extend(in_write.checks);
        }
        match refusal {
            // After the refusal `Version`, the restarted lane waits for the rollout under which the newest executed
            // event of the key was committed.
            WriteRefusal::Next(_) | WriteRefusal::Version => self.restart_lane(index),
            WriteRefusal::Partition(next) => self.yield_lane(index, next),
            WriteRefusal::Corrupt(error) => self.break_lane(index, error),
        }
    }
}
