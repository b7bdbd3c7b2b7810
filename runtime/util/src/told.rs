//! Warnings of what goes on: once in a while, not each time.

use std::time::{Duration, Instant};

/// When something was told last.
#[derive(Debug)]
pub struct Told {
    every: Duration,
    at: Option<Instant>,
}

impl Told {
    /// Something that is told so often at most.
    pub const fn every(every: Duration) -> Self {
        Self { every, at: None }
    }

    /// Whether it is to be told now.
    pub fn is_due(&mut self) -> bool {
        let is_due = self.at.is_none_or(|at| at.elapsed() >= self.every);
        if is_due {
            self.at = Some(Instant::now());
        }
        is_due
    }
}
