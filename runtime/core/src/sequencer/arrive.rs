//! Decides what happens to arriving events.

use std::sync::Arc;

use super::Sequencer;
use super::delivery_window::NO_LANE;
use super::held::{HeldEvent, SpillCopy};
use super::lane::{DeferredEvent, LaneMode, SpillCheck};
use super::letters::orphan_letter;
use crate::event::{DeliveryNumber, Event, shard_of};
use crate::key_record::{AcceptedId, AheadRange, EventDigests};
use crate::letter::{Cause, DeadLetter};
use crate::settings::{OrderingMode, OverflowPolicy, SequencerSettings, sequence_fault};

impl Sequencer {
    pub(super) fn arrived(&mut self, delivery: DeliveryNumber, event: Arc<Event>) {
        self.stats.delivered += 1;
        if let Some(letter) = self.invalid_event_letter(&event) {
            self.window.open(delivery, NO_LANE, self.now);
            self.queue_orphan_letter(letter, delivery);
            return;
        }
        let index = match self.lanes.find(event.key()) {
            Some(index) => index,
            None => self.new_lane(&event),
        };
        self.window.open(delivery, index, self.now);
        self.accept(index, delivery, event);
        self.reschedule(index);
    }

    /// Accepts an early event: an event that the source will also deliver later. Drops an invalid event, which becomes
    /// a dead letter when the source delivers it.
    pub(super) fn arrived_early(&mut self, event: Arc<Event>) {
        if self.invalid_event_letter(&event).is_some() {
            return;
        }
        let index = match self.lanes.find(event.key()) {
            Some(index) => index,
            None => self.new_lane(&event),
        };
        self.accept_undelivered(index, event);
        self.reschedule(index);
    }

    /// Accepts an event without a delivery. Drops the event if `overflow` is `dead-letter` and the blocked key already
    /// has `spill_limit` waiting events. In a `fifo` stream, never drops the event, because otherwise the key would
    /// execute its next early event first. Early events cannot fill the memory, because the inbox limits their number.
    fn accept_undelivered(&mut self, index: u32, event: Arc<Event>) {
        if self.settings.ordering == OrderingMode::Fifo || !self.overflows(index) {
            self.accept(index, 0, event);
        }
    }

    pub(super) fn accept_replayed(&mut self, index: u32, event: Arc<Event>) {
        let sequence = event.sequence().unwrap_or_default();
        self.accept(index, 0, event);
        self.lanes[index].held.mark_replayed(sequence);
    }

    /// Returns the dead letter of an event that no lane can accept: the event lacks a key, an id (`fifo`) or a valid
    /// sequence (`sequenced`). Returns `None` if the event is valid.
    pub(super) fn invalid_event_letter(&self, event: &Arc<Event>) -> Option<DeadLetter> {
        let (cause, error) = if event.key().is_empty() {
            (Cause::NoKey, "the event has no key: set `partitionkey` or `subject`".into())
        } else if self.settings.ordering == OrderingMode::Fifo {
            if !event.id().is_empty() {
                return None;
            }
            (Cause::NoId, "the event has no id, which is needed to detect repeats".into())
        } else {
            (Cause::NoSequence, sequence_fault(&self.settings.sequences(), event.sequence())?)
        };
        let sequence = event.sequence().unwrap_or(0);
        Some(orphan_letter(&event.key().into(), sequence, event, cause, error))
    }

    fn new_lane(&mut self, event: &Event) -> u32 {
        let key = event.key().into();
        let shard = shard_of(event.key(), self.settings.shards);
        let index = self.insert_lane(key, shard);
        let first_of_all = self.settings.ordering == OrderingMode::Sequenced
            && event.sequence() == Some(self.settings.first);
        let lane = &mut self.lanes[index];
        if first_of_all {
            // A key whose first event arrives usually has no record yet, so the event may run before any load. The
            // commit checks that the store has no record of the key.
            lane.mode = LaneMode::Live;
            lane.absent = true;
            lane.absence_assumed = true;
        } else {
            self.loads.push_back(index);
        }
        index
    }

    /// Keeps the event while the lane cannot decide: the key record is not loaded, the store may have removed it, or
    /// another partition has the key.
    pub(super) fn accept(&mut self, index: u32, delivery: DeliveryNumber, event: Arc<Event>) {
        let lane = &mut self.lanes[index];
        match &lane.mode {
            LaneMode::Loading => self.defer(index, delivery, event),
            LaneMode::Foreign(next) => {
                let expected = is_next(&self.settings, *next, &event);
                self.defer(index, delivery, event);
                if expected {
                    self.restart_lane(index);
                }
            }
            // The source will deliver the event, or replay can find it again.
            LaneMode::Broken(_)
                if delivery == 0 && self.settings.ordering == OrderingMode::Sequenced => {}
            LaneMode::Broken(error) => {
                let error =
                    format!("the key's stored record or spilled events cannot be read: {error}");
                let sequence = event.sequence().unwrap_or(0);
                let letter = orphan_letter(&lane.key, sequence, &event, Cause::Corrupt, error);
                self.queue_orphan_letter(letter, delivery);
            }
            // The time `expires_at` has passed, so the store may have removed the key record. This event may then be
            // the first event of a new key with the same name.
            LaneMode::Live if self.now >= lane.expires_at && lane.durable() => {
                self.defer(index, delivery, event);
                self.restart_lane(index);
            }
            LaneMode::Live => match self.settings.ordering {
                OrderingMode::Sequenced => self.accept_sequenced(index, delivery, event),
                OrderingMode::Fifo => self.accept_fifo(index, delivery, event),
            },
        }
    }

    /// Keeps an event until its lane can decide what happens to the event.
    pub(super) fn defer(&mut self, index: u32, delivery: DeliveryNumber, event: Arc<Event>) {
        self.memory += event.memory();
        self.lanes[index].deferred.push(DeferredEvent::new(delivery, event));
    }

    pub(super) fn accept_deferred(&mut self, index: u32) {
        for DeferredEvent { delivery, event, replayed } in
            std::mem::take(&mut self.lanes[index].deferred)
        {
            self.memory -= event.memory();
            if replayed {
                self.accept_replayed(index, event);
            } else if delivery == 0 {
                self.accept_undelivered(index, event);
            } else {
                self.accept(index, delivery, event);
            }
        }
    }

    fn accept_sequenced(&mut self, index: u32, delivery: DeliveryNumber, event: Arc<Event>) {
        let sequence =
            event.sequence().expect("a `sequenced` stream refuses events without a sequence");
        let lane = &mut self.lanes[index];
        if sequence < lane.done && fault!(self, TakeADuplicateForNew) && sequence + 1 == lane.done {
            lane.done = sequence;
            lane.record.next = lane.record.next.min(sequence);
        }
        if self.settings.begins_anywhere && !self.begin_key(index, sequence, delivery) {
            return;
        }
        let lane = &mut self.lanes[index];
        if let Ok(position) = lane.held.find(sequence) {
            self.repeat_of_held(index, position, delivery, &event);
        } else if sequence < lane.done {
            self.repeat_of_settled(index, sequence, delivery, event);
        } else if lane.ended {
            self.dead_letter_after_end(index, sequence, delivery, &event);
        } else if lane.cold.stored_only.spans(sequence) {
            if !lane.cold.stored_only.contiguous() && self.overflows(index) {
                self.dead_letter_overflow(index, sequence, delivery, &event);
                return;
            }
            self.memory += event.memory();
            self.lanes[index].cold.get_or_init().checks.push(SpillCheck {
                sequence,
                event,
                delivery,
            });
        } else {
            self.hold(index, sequence, delivery, event);
        }
    }

    /// Lets a key without a record begin at the sequence of the first event that arrives. If a lower sequence arrives
    /// before the key has executed or written anything, the lower sequence becomes the beginning instead. Exception:
    /// the beginning stays if events that the lane holds would be too far ahead of the lower sequence. The first write
    /// of the key makes the beginning durable. Returns `false` if the lane drops the event. The lane drops an early
    /// event of a key without a beginning: the source will deliver this event again, but may deliver a lower sequence
    /// first.
    fn begin_key(&mut self, index: u32, sequence: u64, delivery: DeliveryNumber) -> bool {
        let lane = &mut self.lanes[index];
        if !lane.absent {
            return true;
        }
        let is_unused = lane.held.is_empty() && lane.pending.is_empty();
        if is_unused && delivery == 0 {
            return false;
        }
        let is_open = lane.pending.is_empty()
            && lane.turn.is_none_or(|turn| turn.stale)
            && lane.record.failure.is_none()
            && lane.held.highest().is_none_or(|highest| {
                highest <= sequence.saturating_add(self.settings.gap.max_width)
            });
        if is_unused || (is_open && sequence < lane.done) {
            lane.begin_at(sequence);
        }
        true
    }

    fn accept_fifo(&mut self, index: u32, delivery: DeliveryNumber, event: Arc<Event>) {
        let lane = &self.lanes[index];
        let ids = lane.ids.as_deref();
        if let Some((sequence, content)) = ids.and_then(|ids| ids.find(&event))
            && sequence >= self.known_ids_from(lane)
        {
            if let Ok(position) = lane.held.find(sequence) {
                self.repeat_of_held(index, position, delivery, &event);
            } else if EventDigests::matches(content, event.content_digests()) {
                self.count_duplicate(delivery);
            } else {
                self.dead_letter_conflict(index, sequence, delivery, &event);
            }
            return;
        }
        let lane = &mut self.lanes[index];
        if lane.ended {
            self.dead_letter_after_end(index, 0, delivery, &event);
            return;
        }
        lane.advance_front();
        let sequence = lane.front.max(lane.highest().map_or(0, |highest| highest + 1));
        if delivery != 0 && self.overflows(index) {
            self.dead_letter_overflow(index, sequence, delivery, &event);
            return;
        }
        let accepted = AcceptedId::new(sequence, &event);
        self.lanes[index].ids.get_or_insert_default().insert(accepted);
        self.hold(index, sequence, delivery, event);
    }

    /// The sequence of the new event is `done` or higher. In a `sequenced` stream, an event that is too far ahead, or
    /// whose key is full while `overflow` is `dead-letter`, becomes a dead letter if it has a delivery, and is dropped
    /// otherwise. While the stored key record does not permit the dead letter yet, this method defers the event.
    fn hold(&mut self, index: u32, sequence: u64, delivery: DeliveryNumber, event: Arc<Event>) {
        let lane = &mut self.lanes[index];
        if sequence != lane.done {
            lane.advance_front();
            let sequenced = self.settings.ordering == OrderingMode::Sequenced;
            if sequenced && sequence > lane.front.saturating_add(self.settings.gap.max_width) {
                if lane.absence_assumed {
                    self.defer(index, delivery, event);
                    return;
                }
                if delivery == 0 {
                    return;
                }
                if !self.record_ahead(index, sequence) {
                    self.defer(index, delivery, event);
                    return;
                }
                let lane = &self.lanes[index];
                let error = format!(
                    "sequence {sequence} is more than {} (gap.max_width) beyond {}, the first \
                     sequence that may be missing",
                    self.settings.gap.max_width, lane.front
                );
                let letter = orphan_letter(&lane.key, sequence, &event, Cause::FarAhead, error);
                self.queue_orphan_letter(letter, delivery);
                return;
            }
            // An event without a delivery (an early event, or a replayed event) runs immediately if no earlier event is
            // missing. Such an event needs no room in the spill area.
            let runs = delivery == 0 && sequence == lane.front;
            if sequenced && !runs && self.overflows(index) {
                self.dead_letter_overflow(index, sequence, delivery, &event);
                return;
            }
        }
        let copy = SpillCopy::None;
        self.insert(
            index,
            HeldEvent { sequence, at: self.now, event, delivery, copy, replayed: false },
        );
        let lane = &mut self.lanes[index];
        if lane.parked() {
            if sequence == lane.done
                && lane.record.failure.as_ref().is_some_and(|failure| failure.cause == Cause::Gap)
            {
                // The missing event that stopped the key has arrived after all.
                self.record_resumed_key(index, sequence);
                self.resume(index);
            } else if self.may_skip_to(index, sequence) {
                self.resume(index);
            } else {
                self.lanes[index].spill_all = true;
            }
        } else if lane.blocked()
            && lane.held.to_run() > self.settings.lane_buffer
            && !fault!(self, NeverSpill)
        {
            lane.spill_all = true;
        }
    }

    /// The lane must not hold an event with the same sequence yet.
    pub(super) fn insert(&mut self, index: u32, held: HeldEvent) {
        self.memory += held.event.memory();
        let lane = &mut self.lanes[index];
        let delivered = held.delivery != 0;
        let reordered = lane.held.insert(held, lane.done);
        self.stats.reordered += u64::from(reordered && delivered);
    }

    /// Returns whether the range `ahead` of the stored key record contains `sequence`, so that the event may become a
    /// dead letter. If not, makes the lane write a wider range into its record; the caller defers the event until the
    /// write is durable. The range must be durable before the dead letter: otherwise, a later owner would not learn
    /// from the record that the letter waits for earlier events.
    pub(super) fn record_ahead(&mut self, index: u32, sequence: u64) -> bool {
        if fault!(self, ForgetEventsAhead) {
            return true;
        }
        let lane = &mut self.lanes[index];
        lane.cut_requested(sequence);
        lane.expect_early_letter(sequence);
        let is_spanned =
            |range: Option<&AheadRange>| range.is_some_and(|range| range.spans(sequence));
        // `revision` has the range that the store will have after the write in flight.
        let is_recorded = is_spanned(lane.cold.revision.ahead.as_ref())
            && is_spanned(lane.record.ahead.as_deref());
        if !is_recorded {
            let ahead = AheadRange::with(lane.record.ahead.as_deref(), sequence);
            lane.record.ahead = Some(Box::new(ahead));
            lane.must_write = true;
        }
        if self.may_skip_to(index, sequence) {
            self.resume(index);
        }
        is_recorded && !self.lanes[index].writing
    }

    /// Returns whether the key is parked at a missing event, and may now skip the missing events before `sequence`,
    /// which has just arrived. Before this arrival, the gap up to the first later event was too wide to skip.
    fn may_skip_to(&self, index: u32, sequence: u64) -> bool {
        let lane = &self.lanes[index];
        lane.parked()
            && lane.record.failure.as_ref().is_some_and(|failure| failure.cause == Cause::Gap)
            && self.settings.gap.may_skip(lane.done, sequence)
    }

    fn overflows(&self, index: u32) -> bool {
        let lane = &self.lanes[index];
        self.settings.overflow == OverflowPolicy::DeadLetter
            && lane.cold.stored_only.count + lane.held.len() as u64 >= self.settings.spill_limit
            && lane.blocked()
    }
}

/// `next` is the next sequence of the key.
pub(super) fn is_next(settings: &SequencerSettings, next: u64, event: &Event) -> bool {
    match settings.ordering {
        OrderingMode::Sequenced => event.sequence() == Some(next),
        OrderingMode::Fifo => true,
    }
}
