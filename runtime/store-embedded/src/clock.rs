//! The store's clock. It must never go back, even if the machine's clock goes back, so that an entry that is due or
//! expired remains due or expired. The store's clock must also never stop. If the machine's clock is behind, the
//! store's clock continues from its own time: an entry that is due in a second still becomes due after a second.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The maximum number of ms by which the machine's clock may be behind the last time in the store. Above this number,
/// the store logs a warning when it is opened.
const CLOCK_WARNING_MS: u64 = 60_000;

/// The source of the time, in ms.
#[derive(Clone)]
pub struct TimeSource {
    /// Returns the time since the Unix epoch, in ms. This time may go back.
    wall: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// Returns the time since an arbitrary fixed moment, in ms. This time never goes back.
    steady: Arc<dyn Fn() -> u64 + Send + Sync>,
}

impl TimeSource {
    /// Creates a source that reads the machine's clocks.
    pub fn machine() -> Self {
        let wall = || {
            let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            elapsed.as_millis() as u64
        };
        let started = Instant::now();
        Self::new(wall, move || started.elapsed().as_millis() as u64)
    }

    /// Creates a source from two functions, for tests.
    pub fn new(
        wall: impl Fn() -> u64 + Send + Sync + 'static,
        steady: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Self {
        Self { wall: Arc::new(wall), steady: Arc::new(steady) }
    }
}

impl fmt::Debug for TimeSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

/// A clock that never goes back: the steady clock plus an offset. When the wall clock is ahead of the sum, the offset
/// grows, so that the sum reaches the wall clock.
#[derive(Debug)]
pub(super) struct MonotonicClock {
    source: TimeSource,
    offset: AtomicU64,
    /// The newest time that [`Self::now`] has returned. Two threads may read the clocks in one order and return in the
    /// opposite order, so [`Self::now`] compares its result with this time, and returns the later of the two.
    newest: AtomicU64,
}

impl MonotonicClock {
    /// Creates a clock that is never earlier than `newest`, the newest time in the store.
    pub(super) fn new(source: TimeSource, newest: u64) -> Self {
        let wall = (source.wall)();
        let steady = (source.steady)();
        if wall.saturating_add(CLOCK_WARNING_MS) < newest {
            tracing::warn!(
                behind_ms = newest - wall,
                "the machine's clock is behind the newest time in the store, so the store continues from its own time; \
                 correct the machine's clock if it is wrong"
            );
        }
        // Records use 0 for "no time", so the clock starts at 1 or later.
        let ahead = newest.max(1).saturating_sub(steady);
        Self { source, offset: AtomicU64::new(ahead), newest: AtomicU64::new(newest.max(1)) }
    }

    /// Returns the time, which is never earlier than any time returned before.
    pub(super) fn now(&self) -> u64 {
        let steady = (self.source.steady)();
        let ahead = (self.source.wall)().saturating_sub(steady);
        let now = steady + self.offset.fetch_max(ahead, Ordering::Relaxed).max(ahead);
        self.newest.fetch_max(now, Ordering::Relaxed).max(now)
    }
}
