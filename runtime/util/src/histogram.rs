//! Counts values by size, for metrics. The histogram is a plain struct without a lock.

use std::sync::LazyLock;

/// Upper bounds of the buckets, ascending. An extra bucket counts the values above the last bound.
pub type BucketBounds = LazyLock<Vec<f64>>;

/// Bounds for the time that a handler takes for an event, in seconds.
pub static HANDLER_SECONDS: BucketBounds = LazyLock::new(|| geometric(1e-6, 2.0, 10.0));
/// Bounds for the duration of a commit, in seconds.
pub static COMMIT_SECONDS: BucketBounds = LazyLock::new(|| geometric(1e-4, 1.5, 60.0));
/// Bounds for the time from the producer's timestamp of an event to the commit of the event, in seconds. The buckets
/// are narrow, so that percentiles computed from them are precise.
pub static PUBLISH_TO_COMMIT_SECONDS: BucketBounds = LazyLock::new(|| geometric(5e-4, 1.3, 60.0));
/// Bounds for the number of events in a commit.
pub static BATCH_EVENTS: BucketBounds = LazyLock::new(|| geometric(1.0, 2.0, 65_536.0));

/// Returns ascending bounds, rounded to millionths. The first bound is `first`, each later bound is `factor` times the
/// previous bound, and the highest bound is at least `last`.
fn geometric(first: f64, factor: f64, last: f64) -> Vec<f64> {
    let mut bounds = vec![first];
    let mut bound = first;
    while bound < last {
        bound *= factor;
        bounds.push((bound * 1e6).round() / 1e6);
    }
    bounds
}

/// The number of values in each bucket, and the sum of all values.
#[derive(Debug, Clone)]
pub struct Histogram {
    bounds: &'static [f64],
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    /// Creates an empty histogram.
    pub fn new(bounds: &'static BucketBounds) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    /// Counts a value `times` times.
    pub fn add(&mut self, value: f64, times: u64) {
        self.counts[self.bounds.partition_point(|bound| *bound < value)] += times;
        self.sum += value * times as f64;
    }

    /// Adds the counts of another histogram with the same bounds.
    pub fn merge(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(sum, more)| *sum += more);
        self.sum += other.sum;
    }

    /// Removes all values.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        self.sum = 0.0;
    }

    /// Returns the sum of all values.
    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// Returns each bound with the number of values above the previous bound and up to this bound. The last bound is
    /// infinity.
    pub fn buckets(&self) -> Vec<(f64, u64)> {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        bounds.zip(self.counts.iter().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_is_counted_in_the_bucket_of_its_bound() {
        let mut histogram = Histogram::new(&BATCH_EVENTS);
        for (value, times) in [(0.0, 1), (1.0, 1), (1.5, 3), (1e9, 2)] {
            histogram.add(value, times);
        }
        let buckets = histogram.buckets();
        assert_eq!(buckets[..3], [(1.0, 2), (2.0, 3), (4.0, 0)]);
        assert_eq!(buckets.last(), Some(&(f64::INFINITY, 2)));
        let mut both = histogram.clone();
        both.merge(&histogram);
        assert_eq!((both.buckets()[0].1, both.sum()), (4, 2.0 * histogram.sum()));
    }

    #[test]
    fn bounds_ascend_in_small_steps() {
        assert!(
            PUBLISH_TO_COMMIT_SECONDS
                .windows(2)
                .all(|two| (1.29..1.31).contains(&(two[1] / two[0])))
        );
        assert!(PUBLISH_TO_COMMIT_SECONDS.last().is_some_and(|last| *last >= 60.0));
        assert!(HANDLER_SECONDS.is_sorted_by(|one, next| one < next));
    }
}
