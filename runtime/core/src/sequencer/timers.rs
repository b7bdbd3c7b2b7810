//! The times at which the sequencer must handle lanes. Only the earliest entry of a lane is valid. An invalid entry
//! stays until its time comes. The sequencer then finds that no deadline of the lane is over, and changes nothing.
//! Therefore, setting and clearing a timer need no search.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

#[derive(Debug, Default)]
pub(super) struct LaneTimers {
    heap: BinaryHeap<Reverse<(u64, u32, u64)>>,
}

impl LaneTimers {
    pub(super) fn set(&mut self, at: u64, lane: u32, serial: u64) {
        self.heap.push(Reverse((at, lane, serial)));
    }

    pub(super) fn next(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }

    /// Removes the earliest timer if its time has come, and returns its lane: index and serial.
    pub(super) fn pop(&mut self, now: u64) -> Option<(u32, u64)> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse((_, lane, serial))| (lane, serial))
    }
}
