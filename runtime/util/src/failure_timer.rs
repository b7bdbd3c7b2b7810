//! Measures how long an operation has failed, for the log lines about the failure and the recovery of the operation.

use std::time::{Duration, Instant};

/// The time of the first failure since the last recovery; `None` if no failure has followed that recovery.
#[derive(Debug, Default)]
pub struct FailureTimer(Option<Instant>);

impl FailureTimer {
    /// Records a failure.
    pub fn record_failure(&mut self) {
        self.0.get_or_insert_with(Instant::now);
    }

    /// Returns whether the operation has failed for at least the time `limit`.
    pub fn has_lasted(&self, limit: Duration) -> bool {
        self.0.is_some_and(|since| since.elapsed() >= limit)
    }

    /// Records the recovery. Returns the time since the first failure, in seconds; `None` if there was no failure since
    /// the last recovery.
    pub fn recover(&mut self) -> Option<u64> {
        self.0.take().map(|since| since.elapsed().as_secs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recovery_is_reported_once() {
        let mut timer = FailureTimer::default();
        assert_eq!(timer.recover(), None);
        timer.record_failure();
        timer.record_failure();
        assert!(timer.has_lasted(Duration::ZERO) && !timer.has_lasted(Duration::MAX));
        assert!(timer.recover().is_some());
        assert_eq!(timer.recover(), None);
        assert!(!timer.has_lasted(Duration::ZERO));
    }
}
