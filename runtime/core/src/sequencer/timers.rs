//! When to look at which lane again. A lane has at most one entry that counts; entries that no
//! longer hold are dropped when they come up, so that setting and clearing cost nothing.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(u64, u32, u64)>>,
}

impl Timers {
    /// Asks for a look at the lane (named by place and birth) at a time.
    pub(super) fn set(&mut self, at: u64, lane: u32, birth: u64) {
        self.heap.push(Reverse((at, lane, birth)));
    }

    pub(super) fn next(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }

    /// A lane whose time has come.
    pub(super) fn pop(&mut self, now: u64) -> Option<(u32, u64)> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse((_, lane, birth))| (lane, birth))
    }
}
