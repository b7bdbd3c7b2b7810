//! Shows whether a source receives its events. The source writes the state; metrics and status reports read it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The state of a source.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum SourceState {
    /// This process does not run the source.
    #[default]
    Inactive,
    /// The source can deliver events, even if no event waits.
    Consuming,
    /// The source does not receive events now, and retries.
    Retrying {
        /// The last error.
        reason: String,
    },
    /// The source receives no events until an operator acts.
    Stopped {
        /// The reason, and the next step.
        reason: String,
    },
}

/// The current state of a source. If the source does not receive events, also the time when it stopped receiving them.
#[derive(Debug, Default)]
pub struct SourceHealth(Mutex<(SourceState, Option<Instant>)>);

impl SourceHealth {
    fn lock(&self) -> MutexGuard<'_, (SourceState, Option<Instant>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the state. An interruption begins with the first [`SourceState::Retrying`] or [`SourceState::Stopped`].
    pub fn set(&self, state: SourceState) {
        let mut current = self.lock();
        current.1 = match state {
            SourceState::Inactive | SourceState::Consuming => None,
            SourceState::Retrying { .. } | SourceState::Stopped { .. } => {
                current.1.or_else(|| Some(Instant::now()))
            }
        };
        current.0 = state;
    }

    /// Returns the state.
    pub fn state(&self) -> SourceState {
        self.lock().0.clone()
    }

    /// Returns the state if the source is stopped, or has retried for at least `period`. Otherwise returns `None`.
    pub fn interruption(&self, period: Duration) -> Option<SourceState> {
        let current = self.lock();
        let is_interrupted = match &current.0 {
            SourceState::Inactive | SourceState::Consuming => false,
            SourceState::Stopped { .. } => true,
            SourceState::Retrying { .. } => {
                current.1.is_some_and(|since| since.elapsed() >= period)
            }
        };
        is_interrupted.then(|| current.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interruption_counts_from_its_first_error() {
        let health = SourceHealth::default();
        let retrying = |reason: &str| SourceState::Retrying { reason: reason.to_owned() };
        assert_eq!(health.interruption(Duration::ZERO), None);
        health.set(retrying("a"));
        assert_eq!(health.interruption(Duration::from_hours(1)), None);
        std::thread::sleep(Duration::from_millis(20));
        health.set(retrying("b"));
        assert_eq!(health.interruption(Duration::from_millis(20)), Some(retrying("b")));
        health.set(SourceState::Consuming);
        assert_eq!(health.interruption(Duration::ZERO), None);
        let stopped = SourceState::Stopped { reason: "c".to_owned() };
        health.set(stopped.clone());
        assert_eq!(health.interruption(Duration::from_hours(1)), Some(stopped));
    }
}
