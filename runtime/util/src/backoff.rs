//! Delays between retries. Each delay is twice the previous delay, up to a maximum.

use std::time::Duration;

use rand::RngExt as _;

/// A delay that doubles with each retry, from a shortest delay to a longest delay.
///
/// A constant of this type is a template: clone it for each operation that is retried, because the methods change the
/// next delay.
#[derive(Debug, Clone)]
pub struct Backoff {
    min: Duration,
    max: Duration,
    /// The next delay.
    delay: Duration,
}

impl Backoff {
    /// Creates a backoff whose first delay is `min`, and whose delays never exceed `max`.
    pub const fn new(min: Duration, max: Duration) -> Self {
        Self { min, max, delay: min }
    }

    /// Returns the next delay without changing it.
    pub fn delay(&self) -> Duration {
        self.delay
    }

    /// Doubles the next delay, up to the longest delay.
    pub fn advance(&mut self) {
        self.delay = self.delay.saturating_mul(2).min(self.max);
    }

    /// Sets the next delay to the longest delay.
    pub fn advance_to_max(&mut self) {
        self.delay = self.max;
    }

    /// Returns the next delay, and doubles the delay that the following call returns.
    pub fn next_delay(&mut self) -> Duration {
        let delay = self.delay;
        self.advance();
        delay
    }

    /// Returns a random time between half of the next delay and the whole delay, so that many processes do not retry
    /// together. Also doubles the delay that the following call uses.
    pub fn next_jittered(&mut self) -> Duration {
        self.next_delay().mul_f64(rand::rng().random_range(0.5..1.0))
    }

    /// Sets the next delay to the shortest delay.
    pub fn reset(&mut self) {
        self.delay = self.min;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN_DELAY: Duration = Duration::from_millis(100);
    const MAX_DELAY: Duration = Duration::from_millis(500);

    fn next_delays(backoff: &mut Backoff, count: usize) -> Vec<u128> {
        (0..count).map(|_| backoff.next_delay().as_millis()).collect()
    }

    #[test]
    fn delay_doubles_up_to_the_maximum() {
        let mut backoff = Backoff::new(MIN_DELAY, MAX_DELAY);
        assert_eq!(next_delays(&mut backoff, 5), [100, 200, 400, 500, 500]);
        backoff.reset();
        assert_eq!(next_delays(&mut backoff, 2), [100, 200]);
    }

    #[test]
    fn only_advancing_changes_the_delay() {
        let mut backoff = Backoff::new(MIN_DELAY, MAX_DELAY);
        assert_eq!((backoff.delay(), backoff.delay()), (MIN_DELAY, MIN_DELAY));
        backoff.advance();
        assert_eq!(backoff.delay(), 2 * MIN_DELAY);
        backoff.advance_to_max();
        assert_eq!(backoff.delay(), MAX_DELAY);
    }

    #[test]
    fn jitter_keeps_at_least_half_of_the_delay() {
        let mut backoff = Backoff::new(MAX_DELAY, MAX_DELAY);
        for _ in 0..1_000 {
            let delay = backoff.next_jittered();
            assert!(delay >= MAX_DELAY / 2 && delay <= MAX_DELAY, "{delay:?}");
        }
    }
}
