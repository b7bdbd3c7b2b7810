//! The events of one key that are in memory, by sequence, and the counts that every write and
//! every turn asks for. Each change of an event goes through here, so that the counts are right.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::event::{Delivery, Event};

/// One event in memory.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) sequence: u64,
    /// When it came.
    pub(super) at: u64,
    pub(super) event: Arc<Event>,
    /// 0 where there is none, or none any more.
    pub(super) delivery: Delivery,
    pub(super) copy: SpillCopy,
    /// Found by replay: it may stand in a `far-ahead` letter.
    pub(super) replayed: bool,
}

/// Whether the store's spill area has a copy of an event in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SpillCopy {
    None,
    Writing,
    Stored,
}

/// Room made for a key's events when the first one comes.
const FEW: usize = 4;

/// What is held of one key: executed first (until that is durable), then what is to run.
#[derive(Debug, Default)]
pub(super) struct HeldEvents {
    /// Ascending by sequence.
    queue: VecDeque<Held>,
    /// How many, from the front, were executed.
    ran: u32,
    /// How many are not durable.
    loose: u32,
    /// How many have a copy, or get one by the write in flight.
    copies: u32,
}

impl HeldEvents {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// How many were not executed yet.
    pub(super) fn to_run(&self) -> usize {
        self.queue.len() - self.ran as usize
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// How many are not durable.
    pub(super) fn loose(&self) -> usize {
        self.loose as usize
    }

    /// How many have a copy, or get one by the write in flight.
    pub(super) fn copies(&self) -> usize {
        self.copies as usize
    }

    pub(super) fn highest(&self) -> Option<u64> {
        self.queue.back().map(|held| held.sequence)
    }

    /// Where the sequence is, or would be.
    pub(super) fn find(&self, sequence: u64) -> Result<usize, usize> {
        match self.queue.back() {
            None => Err(0),
            Some(last) if last.sequence < sequence => Err(self.queue.len()),
            Some(last) if last.sequence == sequence => Ok(self.queue.len() - 1),
            Some(_) => self.queue.binary_search_by_key(&sequence, |held| held.sequence),
        }
    }

    pub(super) fn get(&self, position: usize) -> Option<&Held> {
        self.queue.get(position)
    }

    /// Whether what is there has the same content.
    pub(super) fn same(&self, position: usize, event: &Event) -> bool {
        self.get(position).is_some_and(|held| held.event.content() == event.content())
    }

    /// The first that was not executed.
    pub(super) fn head(&self) -> Option<&Held> {
        self.queue.get(self.ran as usize)
    }

    /// Those that were not executed.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Held> {
        self.queue.range(self.ran as usize..)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Held> {
        self.queue.iter()
    }

    /// Puts an event in its place, before `done` as one that was executed. Whether a later one
    /// was there already.
    pub(super) fn insert(&mut self, held: Held, done: u64) -> bool {
        let Err(position) = self.find(held.sequence) else {
            unreachable!("two events of one sequence are never held")
        };
        self.loose += u32::from(held.copy != SpillCopy::Stored);
        self.copies += u32::from(held.copy != SpillCopy::None);
        self.ran += u32::from(held.sequence < done);
        if self.queue.capacity() == 0 {
            self.queue = VecDeque::with_capacity(FEW);
        }
        self.queue.insert(position, held);
        position + 1 < self.queue.len()
    }

    /// So many more were executed.
    pub(super) fn executed(&mut self, events: usize) {
        self.ran += events as u32;
    }

    /// Replay has found it, unless the source has delivered it before.
    pub(super) fn found(&mut self, sequence: u64) {
        if let Ok(position) = self.find(sequence) {
            let held = &mut self.queue[position];
            held.replayed |= held.delivery == 0;
        }
    }

    /// The source has delivered what replay had found.
    pub(super) fn deliver(&mut self, position: usize, delivery: Delivery) {
        self.queue[position].delivery = delivery;
    }

    /// The store has a copy: of which sequence, and the delivery that ends with that; `None` if it
    /// was known.
    pub(super) fn stored(&mut self, position: usize) -> Option<(u64, Delivery)> {
        let held = &mut self.queue[position];
        if held.copy == SpillCopy::Stored {
            return None;
        }
        self.copies += u32::from(held.copy == SpillCopy::None);
        self.loose -= 1;
        held.copy = SpillCopy::Stored;
        Some((held.sequence, std::mem::take(&mut held.delivery)))
    }

    /// Takes events from `next` on that have no copy as being written, in order, for as long as
    /// `write` has room for one. Whether it had room for all.
    pub(super) fn write_copies(&mut self, next: u64, mut write: impl FnMut(&Held) -> bool) -> bool {
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

    /// Takes out the first one if it lies below `next`.
    pub(super) fn pop_below(&mut self, next: u64) -> Option<Held> {
        let held = self.queue.pop_front_if(|held| held.sequence < next)?;
        self.ran = self.ran.saturating_sub(1);
        self.forget(&held);
        if self.queue.is_empty() {
            // Most keys have nothing in memory most of the time: the room is for others.
            self.queue = VecDeque::new();
        }
        Some(held)
    }

    /// Takes out those that were not executed, apart from the first `skip`, and that `which`
    /// names.
    pub(super) fn extract(&mut self, skip: usize, which: impl Fn(&Held) -> bool) -> Vec<Held> {
        let keep = (self.ran as usize + skip).min(self.queue.len());
        // Mostly there is none: then nothing is moved.
        if !self.queue.range(keep..).any(&which) {
            return Vec::new();
        }
        let (out, rest): (Vec<_>, Vec<_>) = self.queue.drain(keep..).partition(|held| which(held));
        self.queue.extend(rest);
        for held in &out {
            self.forget(held);
        }
        out
    }

    /// Takes out all.
    pub(super) fn take(&mut self) -> VecDeque<Held> {
        std::mem::take(self).queue
    }

    fn forget(&mut self, held: &Held) {
        self.loose -= u32::from(held.copy != SpillCopy::Stored);
        self.copies -= u32::from(held.copy != SpillCopy::None);
    }
}
