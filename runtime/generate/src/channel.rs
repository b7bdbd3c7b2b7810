//! The faults between a producer and whoever reads: loss, repetition, reordering.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::options::Load;
use super::random::{For, Random};

/// A second copy comes up to so many events later, or up to the reorder distance if that is more:
/// about what a broker delivers again after a lost connection.
const REPEAT_DISTANCE: u64 = 100;

/// A line on its way.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Sent {
    /// It is due when the event of this index has been sent.
    due: u64,
    index: u64,
    /// Whether it is the second one of its event.
    pub(super) copy: bool,
    /// The record of its key.
    pub(super) key: usize,
    pub(super) sequence: u64,
    pub(super) line: Vec<u8>,
}

/// What becomes of an event on its way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fate {
    pub(super) lost: bool,
    pub(super) repeated: bool,
    delay: u64,
    copy_delay: u64,
}

/// Holds lines back. An event is never overtaken by one that is more than the reorder distance
/// behind it, so no more lines are held than that distance and that of copies.
pub(super) struct Channel {
    random: Random,
    loss: f64,
    duplicates: f64,
    reorder: u64,
    held: BinaryHeap<Reverse<Sent>>,
    /// Memory of lines that were written, for those to come.
    spare: Vec<Vec<u8>>,
}

impl Channel {
    pub(super) fn new(load: &Load) -> Self {
        Self {
            random: Random::new(load.seed, For::Faults),
            loss: load.loss.0,
            duplicates: load.duplicates.0,
            reorder: load.reorder,
            held: BinaryHeap::new(),
            spare: Vec::new(),
        }
    }

    /// Draws the fate of the next event; the same numbers are taken whatever it is.
    pub(super) fn fate(&mut self) -> Fate {
        let lost = self.random.chance(self.loss);
        let repeated = self.random.chance(self.duplicates) && !lost;
        let delay = self.random.below(self.reorder + 1);
        let copy_delay = delay + 1 + self.random.below(self.reorder.max(REPEAT_DISTANCE));
        Fate { lost, repeated, delay, copy_delay }
    }

    /// Memory for a line.
    pub(super) fn line(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Sends a line that is not lost, and its copy.
    pub(super) fn send(
        &mut self,
        index: u64,
        fate: Fate,
        key: usize,
        sequence: u64,
        line: Vec<u8>,
    ) {
        if fate.repeated {
            let mut again = self.line();
            again.extend_from_slice(&line);
            let due = index + fate.copy_delay;
            self.held.push(Reverse(Sent { due, index, copy: true, key, sequence, line: again }));
        }
        let due = index + fate.delay;
        self.held.push(Reverse(Sent { due, index, copy: false, key, sequence, line }));
    }

    /// The next line that is due when the event of this index has been sent.
    pub(super) fn receive(&mut self, index: u64) -> Option<Sent> {
        let due = self.held.peek().is_some_and(|Reverse(sent)| sent.due <= index);
        if due { self.held.pop().map(|Reverse(sent)| sent) } else { None }
    }

    /// Gives a line's memory back.
    pub(super) fn reuse(&mut self, mut line: Vec<u8>) {
        line.clear();
        self.spare.push(line);
    }
}
