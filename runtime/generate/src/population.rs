//! The keys in use. A key is in use while more events of the key may be generated, or lines of the key are in transit.
//! Each key that may get more events has a slot, and the chooser of keys selects a slot. An order that has ended
//! releases its slot for a new order. The memory of the ended order is released when none of its lines is in transit
//! any more.

use std::ops::{Index, IndexMut};

use super::options::{EventShape, LoadOptions};
use super::orders::OrderState;

/// The state of a key.
pub(super) struct KeyState {
    pub(super) name: String,
    pub(super) order: OrderState,
    /// The highest generated sequence of the key: also the number of the key's generated events.
    pub(super) events: u64,
    /// The highest sequence that was written.
    pub(super) written: u64,
    /// Number of lines of the key in transit.
    pub(super) pending: u64,
    /// True if the last generated event is marked as the last event of its key.
    pub(super) ended: bool,
    /// True if the order of the key has ended, so that no more events of the key will be generated. Always false for
    /// opaque events.
    pub(super) is_finished: bool,
}

/// The value of a slot whose next event begins a new key.
const EMPTY_SLOT: u32 = u32::MAX;

/// All keys in use, by index.
pub(super) struct Population {
    shape: EventShape,
    /// For each slot, the index of its key in `keys`, or [`EMPTY_SLOT`].
    slots: Vec<u32>,
    keys: Vec<KeyState>,
    /// Unused indexes of `keys`.
    free: Vec<u32>,
    key_count: u64,
}

impl Population {
    pub(super) fn new(load: &LoadOptions) -> Self {
        let slots = vec![EMPTY_SLOT; load.keys as usize];
        Self { shape: load.shape, slots, keys: Vec::new(), free: Vec::new(), key_count: 0 }
    }

    /// Returns the index of the slot's key. Begins a new key if the slot has none.
    pub(super) fn of_slot(&mut self, slot: usize) -> usize {
        if self.slots[slot] == EMPTY_SLOT {
            self.slots[slot] = self.begin(slot);
        }
        self.slots[slot] as usize
    }

    fn begin(&mut self, slot: usize) -> u32 {
        self.key_count += 1;
        let name = match self.shape {
            EventShape::Orders => format!("order-{}", self.key_count),
            EventShape::Opaque => format!("key-{}", slot + 1),
        };
        let life = OrderState::default();
        let key = KeyState {
            name,
            order: life,
            events: 0,
            written: 0,
            pending: 0,
            ended: false,
            is_finished: false,
        };
        if let Some(place) = self.free.pop() {
            self.keys[place as usize] = key;
            return place;
        }
        self.keys.push(key);
        // The number of indexes is far below 2^32: at most one for each slot, and one for each ended key with lines in
        // transit.
        self.keys.len() as u32 - 1
    }

    /// Releases a slot, so that its next event begins a new key.
    pub(super) fn release_slot(&mut self, slot: usize) {
        self.slots[slot] = EMPTY_SLOT;
    }

    /// Releases an index of `keys` for another key.
    pub(super) fn release_place(&mut self, place: usize) {
        self.free.push(place as u32);
    }

    /// Returns the indexes of the keys that have a slot, in the order of the slots.
    pub(super) fn unfinished(&self) -> Vec<usize> {
        let taken = self.slots.iter().filter(|place| **place != EMPTY_SLOT);
        taken.map(|place| *place as usize).collect()
    }
}

impl Index<usize> for Population {
    type Output = KeyState;

    fn index(&self, place: usize) -> &KeyState {
        &self.keys[place]
    }
}

impl IndexMut<usize> for Population {
    fn index_mut(&mut self, place: usize) -> &mut KeyState {
        &mut self.keys[place]
    }
}
