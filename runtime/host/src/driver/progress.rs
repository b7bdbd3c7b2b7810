//! The figures of a running partition, for whoever shows them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use ordain_core::Stats;

/// Figures that a driver puts and others read.
#[derive(Debug, Default)]
pub struct Shared {
    stats: Mutex<Stats>,
    ended: AtomicBool,
}

impl Shared {
    pub(super) fn put(&self, stats: &Stats) {
        *self.stats.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = *stats;
    }

    /// The last figures.
    pub fn get(&self) -> Stats {
        *self.stats.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Whether the sequencer has been told that the source is at its end.
    pub fn ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    pub(super) fn set_ended(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}
