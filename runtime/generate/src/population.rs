//! The keys that have events to come or lines on their way. An order that has ended leaves its
//! slot to a new one, and its memory too once its last line is written.

use std::ops::{Index, IndexMut};

use super::options::{Load, Shape};
use super::orders::Life;

/// A key so far.
pub(super) struct Key {
    pub(super) name: String,
    pub(super) life: Life,
    /// Its last sequence so far.
    pub(super) events: u64,
    /// The highest sequence that was written.
    pub(super) written: u64,
    /// Lines on their way.
    pub(super) pending: u64,
    /// Its last event was marked.
    pub(super) ended: bool,
    /// Nothing more comes.
    pub(super) over: bool,
}

/// A slot whose next event begins a new key.
const NOBODY: u32 = u32::MAX;

/// The keys, by their places.
pub(super) struct Population {
    shape: Shape,
    /// Of each slot, which is what is chosen: the place of its key.
    slots: Vec<u32>,
    keys: Vec<Key>,
    /// Places that no key has.
    free: Vec<u32>,
    born: u64,
}

impl Population {
    pub(super) fn new(load: &Load) -> Self {
        let slots = vec![NOBODY; load.keys as usize];
        Self { shape: load.shape, slots, keys: Vec::new(), free: Vec::new(), born: 0 }
    }

    /// The place of the slot's key; of a new one where the last has ended.
    pub(super) fn of_slot(&mut self, slot: usize) -> usize {
        if self.slots[slot] == NOBODY {
            self.slots[slot] = self.begin(slot);
        }
        self.slots[slot] as usize
    }

    fn begin(&mut self, slot: usize) -> u32 {
        self.born += 1;
        let name = match self.shape {
            Shape::Orders => format!("order-{}", self.born),
            Shape::Opaque => format!("key-{}", slot + 1),
        };
        let life = Life::default();
        let key = Key { name, life, events: 0, written: 0, pending: 0, ended: false, over: false };
        if let Some(place) = self.free.pop() {
            self.keys[place as usize] = key;
            return place;
        }
        self.keys.push(key);
        // Far below 32 bits: as many as there are slots, and keys whose lines are on their way.
        self.keys.len() as u32 - 1
    }

    /// The slot's next event begins a new key.
    pub(super) fn leave(&mut self, slot: usize) {
        self.slots[slot] = NOBODY;
    }

    /// Gives a place to another key.
    pub(super) fn forget(&mut self, place: usize) {
        self.free.push(place as u32);
    }

    /// The places of keys that could go on, by slot.
    pub(super) fn left(&self) -> Vec<usize> {
        let taken = self.slots.iter().filter(|place| **place != NOBODY);
        taken.map(|place| *place as usize).collect()
    }
}

impl Index<usize> for Population {
    type Output = Key;

    fn index(&self, place: usize) -> &Key {
        &self.keys[place]
    }
}

impl IndexMut<usize> for Population {
    fn index_mut(&mut self, place: usize) -> &mut Key {
        &mut self.keys[place]
    }
}
