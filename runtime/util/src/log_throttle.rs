//! Limits how often a repeated log line is written.

use std::time::{Duration, Instant};

/// A limit on a repeated log line: each interval allows a fixed number of lines, usually one.
///
/// An interval begins with its first allowed line. A lasting condition is therefore logged immediately, and then once
/// more in each interval.
#[derive(Debug)]
pub struct LogThrottle {
    /// The number of lines that an interval allows.
    lines: u32,
    interval: Duration,
    /// The time when the current interval began; `None` before the first line.
    began_at: Option<Instant>,
    /// The number of lines allowed so far in the current interval.
    allowed: u32,
    /// The number of lines suppressed since the last call of [`LogThrottle::take_suppressed`].
    suppressed: u64,
}

impl LogThrottle {
    /// Creates a throttle that allows one line per interval.
    pub const fn new(interval: Duration) -> Self {
        Self::with_lines(1, interval)
    }

    /// Creates a throttle that allows `lines` lines per interval.
    pub const fn with_lines(lines: u32, interval: Duration) -> Self {
        Self { lines, interval, began_at: None, allowed: 0, suppressed: 0 }
    }

    /// Returns whether a line may be written now, and counts the line as allowed or suppressed.
    pub fn allow(&mut self) -> bool {
        self.allow_at(Instant::now())
    }

    /// Returns whether a line may be written at `now`, and counts the line as allowed or suppressed.
    pub fn allow_at(&mut self, now: Instant) -> bool {
        let is_new = |began_at| now.duration_since(began_at) >= self.interval;
        if self.began_at.is_none_or(is_new) {
            self.began_at = Some(now);
            self.allowed = 0;
        }
        let is_allowed = self.allowed < self.lines;
        if is_allowed {
            self.allowed += 1;
        } else {
            self.suppressed += 1;
        }
        is_allowed
    }

    /// Returns how many lines were suppressed since the last call of [`LogThrottle::take_suppressed`].
    pub fn suppressed(&self) -> u64 {
        self.suppressed
    }

    /// Returns how many lines were suppressed since the last call of this method, and resets the count.
    pub fn take_suppressed(&mut self) -> u64 {
        std::mem::take(&mut self.suppressed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(10);
    const MILLISECOND: Duration = Duration::from_millis(1);

    #[test]
    fn one_line_is_allowed_per_interval() {
        let mut throttle = LogThrottle::new(INTERVAL);
        let start = Instant::now();
        assert!(throttle.allow_at(start));
        assert!(!throttle.allow_at(start));
        assert!(!throttle.allow_at(start + INTERVAL.saturating_sub(MILLISECOND)));
        assert!(throttle.allow_at(start + INTERVAL));
    }

    #[test]
    fn interval_begins_with_its_first_line() {
        let mut throttle = LogThrottle::new(INTERVAL);
        let start = Instant::now();
        let late = start + INTERVAL + INTERVAL / 2;
        assert!(throttle.allow_at(start));
        assert!(throttle.allow_at(late));
        assert!(!throttle.allow_at(start + 2 * INTERVAL));
        assert!(throttle.allow_at(late + INTERVAL));
    }

    #[test]
    fn suppressed_lines_are_counted() {
        let mut throttle = LogThrottle::with_lines(3, INTERVAL);
        let start = Instant::now();
        let allowed = (0..5).filter(|_| throttle.allow_at(start)).count();
        assert_eq!(allowed, 3);
        assert_eq!(throttle.suppressed(), 2);
        assert!(throttle.allow_at(start + INTERVAL));
        assert_eq!(throttle.take_suppressed(), 2);
        assert_eq!(throttle.suppressed(), 0);
    }
}
