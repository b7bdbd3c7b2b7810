//! A number that one task sets and other tasks read.

use std::sync::atomic::{AtomicU64, Ordering};

/// The value that represents an unknown number.
const UNKNOWN_VALUE: u64 = u64::MAX;

/// The number of events waiting in a queue. The number is unknown until a task sets it.
#[derive(Debug)]
pub struct BacklogGauge(AtomicU64);

impl Default for BacklogGauge {
    fn default() -> Self {
        Self(AtomicU64::new(UNKNOWN_VALUE))
    }
}

impl BacklogGauge {
    /// Returns the number, or `None` if it is unknown.
    pub fn get(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|events| *events != UNKNOWN_VALUE)
    }

    /// Sets the number; `None` makes the number unknown.
    pub fn set(&self, events: Option<u64>) {
        self.0.store(events.unwrap_or(UNKNOWN_VALUE), Ordering::Relaxed);
    }
}
