//! The execution times of events by handler version, for the metrics.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ordain_util::histogram::{HANDLER_SECONDS, Histogram};

/// Maximum number of retired versions whose execution times the metrics still contain. This process no longer offers a
/// retired version, and starts no more turns with that version. With this limit, a program that reads the metrics once
/// a minute sees each version, even if the versions change every few seconds.
const RETIRED_VERSIONS_LIMIT: usize = 16;

/// The histogram of the execution times of a compiled version. All clones share the histogram, because workers may
/// still finish events of a version after the registry has released the version.
#[derive(Debug, Clone)]
pub(super) struct ExecutionTimes(Arc<Mutex<Histogram>>);

impl ExecutionTimes {
    /// Creates an empty histogram.
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Histogram::new(&HANDLER_SECONDS))))
    }

    /// Returns a copy of the histogram.
    pub(super) fn histogram(&self) -> Histogram {
        self.lock().clone()
    }

    /// Adds the times in `measured`, and clears `measured`.
    pub(super) fn record(&self, measured: &mut Histogram) {
        self.lock().merge(measured);
        measured.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Histogram> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether this is the only clone.
    fn is_last_clone(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

/// The handler name, the version and the execution times of the most recently retired versions: at most
/// [`RETIRED_VERSIONS_LIMIT`].
#[derive(Debug, Default)]
pub(super) struct RetiredTimes(Vec<(String, String, ExecutionTimes)>);

impl RetiredTimes {
    /// Adds the times of a version that retires. If an earlier compiled form of the same version has retired, and no
    /// worker still executes events with that form, combines the times of the two forms.
    pub(super) fn add(&mut self, name: &str, version: &str, times: ExecutionTimes) {
        self.0.retain(|(old_name, old_version, old)| {
            let is_same = old_name == name && old_version == version && old.is_last_clone();
            if is_same {
                times.record(&mut old.histogram());
            }
            !is_same
        });
        self.0.push((name.to_owned(), version.to_owned(), times));
        let beyond = self.0.len().saturating_sub(RETIRED_VERSIONS_LIMIT);
        self.0.drain(..beyond);
    }

    /// Returns the handler name, the version and the histogram of each retired version. A version may be contained
    /// several times.
    pub(super) fn histograms(&self) -> impl Iterator<Item = (String, String, Histogram)> {
        let copy = |(name, version, times): &(String, String, ExecutionTimes)| {
            (name.clone(), version.clone(), times.histogram())
        };
        self.0.iter().map(copy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records one event that takes a second.
    fn record_second(times: &ExecutionTimes) {
        let mut measured = Histogram::new(&HANDLER_SECONDS);
        measured.add(1.0, 1);
        times.record(&mut measured);
        assert!(measured.sum() == 0.0);
    }

    /// Returns the versions and the sums of their times, in whole seconds.
    fn sums(retired: &RetiredTimes) -> Vec<(String, u64)> {
        retired.histograms().map(|(_, version, times)| (version, times.sum() as u64)).collect()
    }

    /// A worker finishes an event of a version after the version has retired.
    #[test]
    fn time_recorded_after_the_retirement_is_kept() {
        let mut retired = RetiredTimes::default();
        let times = ExecutionTimes::new();
        record_second(&times);
        retired.add("orders", "1.0.0", times.clone());
        record_second(&times);
        assert_eq!(sums(&retired), [("1.0.0".to_owned(), 2)]);
    }

    /// Two versions alternate. The number of changes exceeds the limit of retired versions.
    #[test]
    fn times_of_a_version_that_retires_repeatedly_are_combined() {
        let mut retired = RetiredTimes::default();
        for _ in 0..2 * RETIRED_VERSIONS_LIMIT {
            for version in ["1.0.0", "1.1.0"] {
                let times = ExecutionTimes::new();
                record_second(&times);
                retired.add("orders", version, times);
            }
        }
        let rounds = 2 * RETIRED_VERSIONS_LIMIT as u64;
        assert_eq!(sums(&retired), [("1.0.0".to_owned(), rounds), ("1.1.0".to_owned(), rounds)]);
    }

    /// While a worker executes events with the earlier compiled form of a version, the earlier times stay separate, so
    /// that no later time is lost.
    #[test]
    fn times_that_may_grow_are_not_combined() {
        let mut retired = RetiredTimes::default();
        let old = ExecutionTimes::new();
        retired.add("orders", "1.0.0", old.clone());
        retired.add("orders", "1.0.0", ExecutionTimes::new());
        record_second(&old);
        assert_eq!(sums(&retired), [("1.0.0".to_owned(), 1), ("1.0.0".to_owned(), 0)]);
    }

    #[test]
    fn oldest_of_too_many_retired_versions_is_removed() {
        let mut retired = RetiredTimes::default();
        for number in 0..=RETIRED_VERSIONS_LIMIT {
            retired.add("orders", &format!("1.{number}.0"), ExecutionTimes::new());
        }
        let versions = sums(&retired);
        assert_eq!(versions.len(), RETIRED_VERSIONS_LIMIT);
        assert_eq!(versions[0].0, "1.1.0");
    }
}
