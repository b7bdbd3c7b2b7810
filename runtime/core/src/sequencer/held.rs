//! The events of one key in memory, ordered by sequence, with the counts that every write and every turn needs. Every
//! change of an event must go through this module, so that the counts are correct.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::event::{DeliveryNumber, Event};

#[derive(Debug)]
pub(super) struct HeldEvent {
    pub(super) sequence: u64,
    /// The time when the lane took the event into memory.
    pub(super) at: u64,
    pub(super) event: Arc<Event>,
    /// The sequencer acknowledges this delivery when the event is durable. 0 if the source has not delivered the event
    /// yet, or if the delivery is finished.
    pub(super) delivery: DeliveryNumber,
    pub(super) copy: SpillCopy,
    /// `true` if replay found the event. If replay took the event from a dead letter, the commit of the event removes
    /// this dead letter.
    pub(super) replayed: bool,
}

/// The state of an event's copy in the spill area: the part of the store that holds events before they can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SpillCopy {
    None,
    Writing,
    Stored,
}

const INITIAL_CAPACITY: usize = 4;

/// The held events of one key: first the executed events whose results are not yet committed, then the events to
/// execute.
#[derive(Debug, Default)]
pub(super) struct HeldQueue {
    /// The held events, in ascending order of their sequences.
    queue: VecDeque<HeldEvent>,
    /// The number of executed events at the front.
    executed: u32,
    /// The number of events that are not durable: without a confirmed copy in the spill area.
    not_durable: u32,
    /// The number of events that have a copy in the spill area, or will get one from the write in flight.
    copies: u32,
}

impl HeldQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn to_run(&self) -> usize {
        self.queue.len() - self.executed as usize
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn not_durable(&self) -> usize {
        self.not_durable as usize
    }

    pub(super) fn copies(&self) -> usize {
        self.copies as usize
    }

    pub(super) fn highest(&self) -> Option<u64> {
        self.queue.back().map(|held| held.sequence)
    }

    /// The error is the position at which to insert an event with this sequence.
    pub(super) fn find(&self, sequence: u64) -> Result<usize, usize> {
        match self.queue.back() {
            None => Err(0),
            Some(last) if last.sequence < sequence => Err(self.queue.len()),
            Some(last) if last.sequence == sequence => Ok(self.queue.len() - 1),
            Some(_) => self.queue.binary_search_by_key(&sequence, |held| held.sequence),
        }
    }

    pub(super) fn get(&self, position: usize) -> Option<&HeldEvent> {
        self.queue.get(position)
    }

    /// Returns whether `event` is a repeat of the held event at a position.
    pub(super) fn same(&self, position: usize, event: &Event) -> bool {
        self.get(position).is_some_and(|held| event.repeats(&held.event))
    }

    pub(super) fn head(&self) -> Option<&HeldEvent> {
        self.queue.get(self.executed as usize)
    }

    pub(super) fn waiting(&self) -> impl Iterator<Item = &HeldEvent> {
        self.queue.range(self.executed as usize..)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &HeldEvent> {
        self.queue.iter()
    }

    /// Inserts an event. An event with a sequence below `done` counts as executed. Returns whether a later event was
    /// already held.
    pub(super) fn insert(&mut self, held: HeldEvent, done: u64) -> bool {
        let Err(position) = self.find(held.sequence) else {
            unreachable!("two events of one sequence are never held")
        };
        self.not_durable += u32::from(held.copy != SpillCopy::Stored);
        self.copies += u32::from(held.copy != SpillCopy::None);
        self.executed += u32::from(held.sequence < done);
        if self.queue.capacity() == 0 {
            self.queue = VecDeque::with_capacity(INITIAL_CAPACITY);
        }
        self.queue.insert(position, held);
        position + 1 < self.queue.len()
    }

    pub(super) fn mark_executed(&mut self, events: usize) {
        self.executed += events as u32;
    }

    /// Marks the event with this sequence as found by replay, unless the event has an unfinished delivery.
    pub(super) fn mark_replayed(&mut self, sequence: u64) {
        if let Ok(position) = self.find(sequence) {
            let held = &mut self.queue[position];
            held.replayed |= held.delivery == 0;
        }
    }

    /// Sets the delivery of an early event, or of an event that replay found before the source delivered it.
    pub(super) fn set_delivery(&mut self, position: usize, delivery: DeliveryNumber) {
        self.queue[position].delivery = delivery;
    }

    /// Returns the sequence of the event and the delivery that can now be acknowledged (0 if none); `None` if the copy
    /// was already recorded.
    pub(super) fn mark_stored(&mut self, position: usize) -> Option<(u64, DeliveryNumber)> {
        let held = &mut self.queue[position];
        if held.copy == SpillCopy::Stored {
            return None;
        }
        self.copies += u32::from(held.copy == SpillCopy::None);
        self.not_durable -= 1;
        held.copy = SpillCopy::Stored;
        Some((held.sequence, std::mem::take(&mut held.delivery)))
    }

    /// Selects the events from `next` on that have no copy in the spill area. Passes each selected event to `write`, in
    /// order, and marks its copy as being written. Stops when `write` returns `false`, because the write of the key is
    /// full. Returns whether all events fitted.
    pub(super) fn write_copies(
        &mut self,
        next: u64,
        mut write: impl FnMut(&HeldEvent) -> bool,
    ) -> bool {
        for held in &mut self.queue {
            if held.sequence < next || held.copy != SpillCopy::None {
                continue;
            }
            if !write(held) {
                return false;
            }
            held.copy = SpillCopy::Writing;
            self.copies += 1;
        }
        true
    }

    /// Returns `None` if the sequence of the first event is `next` or higher.
    pub(super) fn pop_below(&mut self, next: u64) -> Option<HeldEvent> {
        let held = self.queue.pop_front_if(|held| held.sequence < next)?;
        self.executed = self.executed.saturating_sub(1);
        self.uncount(&held);
        if self.queue.is_empty() {
            // A new queue replaces the empty queue to free its memory, because most keys hold no events most of the
            // time.
            self.queue = VecDeque::new();
        }
        Some(held)
    }

    /// Removes and returns the events that `which` selects. Never removes an executed event, or one of the first `skip`
    /// events after the executed events.
    pub(super) fn extract(
        &mut self,
        skip: usize,
        which: impl Fn(&HeldEvent) -> bool,
    ) -> Vec<HeldEvent> {
        let keep = (self.executed as usize + skip).min(self.queue.len());
        // Usually no event matches, and nothing needs to move.
        if !self.queue.range(keep..).any(&which) {
            return Vec::new();
        }
        let (out, rest): (Vec<_>, Vec<_>) = self.queue.drain(keep..).partition(|held| which(held));
        self.queue.extend(rest);
        for held in &out {
            self.uncount(held);
        }
        out
    }

    pub(super) fn take(&mut self) -> VecDeque<HeldEvent> {
        std::mem::take(self).queue
    }

    fn uncount(&mut self, held: &HeldEvent) {
        self.not_durable -= u32::from(held.copy != SpillCopy::Stored);
        self.copies -= u32::from(held.copy != SpillCopy::None);
    }
}
