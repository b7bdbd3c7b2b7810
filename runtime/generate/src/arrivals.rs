//! Determines the time of each generated event, and formats this time.

use super::options::{ArrivalPattern, LoadOptions};
use super::random::{RandomPurpose, SeededRandom};

/// The time at which each load starts, in ms since the Unix epoch: 2026-01-01T00:00:00Z. The time is fixed, so that the
/// output does not depend on the day.
const START_MS: u64 = 1_767_225_600_000;

/// Average number of events in a burst: about the number that a partner system sends when it resumes after a pause.
const BURST_EVENTS: u64 = 100;

/// Rate within a burst, as a multiple of the average rate.
const BURST_RATE_FACTOR: f64 = 10.0;

const NANOS_PER_SECOND: f64 = 1e9;

/// A clock that returns the time of each event, in order.
pub(super) struct ArrivalClock {
    random: SeededRandom,
    arrivals: ArrivalPattern,
    /// Average time between two events, in ns.
    gap_ns: f64,
    now_ns: u64,
    /// Number of remaining events of the current burst.
    burst: u64,
}

impl ArrivalClock {
    pub(super) fn new(load: &LoadOptions) -> Self {
        let random = SeededRandom::new(load.seed, RandomPurpose::Arrivals);
        Self {
            random,
            arrivals: load.arrivals,
            gap_ns: NANOS_PER_SECOND / load.rate,
            now_ns: 0,
            burst: 0,
        }
    }

    /// Returns the time of the next event, in ns from the start.
    pub(super) fn next(&mut self) -> u64 {
        let gap = match self.arrivals {
            ArrivalPattern::Steady => self.gap_ns,
            ArrivalPattern::Poisson => self.exponential() * self.gap_ns,
            ArrivalPattern::Bursty => self.bursty(),
        };
        // The conversion and the sum saturate, so that the time never overflows.
        self.now_ns = self.now_ns.saturating_add(gap as u64);
        self.now_ns
    }

    fn bursty(&mut self) -> f64 {
        let close = self.gap_ns / BURST_RATE_FACTOR;
        if self.burst > 0 {
            self.burst -= 1;
            return close;
        }
        self.burst = self.random.below(2 * BURST_EVENTS - 1);
        // On average, the pause before a burst compensates for the short intervals of the burst, so the load has the
        // requested rate.
        close + self.exponential() * (self.gap_ns - close) * BURST_EVENTS as f64
    }

    /// Returns an exponentially distributed number with mean 1.
    fn exponential(&mut self) -> f64 {
        -libm::log(1.0 - self.random.unit())
    }
}

/// A formatter of times. The formatter caches the text up to the second, because most times share this text with the
/// previous time.
#[derive(Default)]
pub(super) struct TimeFormatter {
    second: Option<u64>,
    text: String,
}

impl TimeFormatter {
    /// Appends a time, given in ns from the start, in the format of RFC 3339 with milliseconds.
    pub(super) fn write(&mut self, ns: u64, out: &mut Vec<u8>) {
        let ms = START_MS + ns / 1_000_000;
        let second = ms / 1_000;
        if self.second != Some(second) {
            self.second = Some(second);
            // The latest time that a `u64` of ns from the start can hold is in the year 2610, which the conversions
            // accept.
            let time = i64::try_from(second)
                .ok()
                .and_then(|second| jiff::Timestamp::from_second(second).ok());
            self.text = time.unwrap_or_default().to_string();
        }
        let ms = ms % 1_000;
        out.extend_from_slice(self.text.trim_end_matches('Z').as_bytes());
        let digits = [ms / 100, ms / 10 % 10, ms % 10].map(|digit| b'0' + digit as u8);
        out.extend_from_slice(&[b'.', digits[0], digits[1], digits[2], b'Z']);
    }
}
