//! The time that the store writes down. Must never go back, whatever the machine's clock does:
//! a due or expired entry that was passed once stays passed. And must never stand still: what is
//! due in a second is due in a second, also while the machine's clock is behind.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The machine's clock may be behind the store by so much, in ms, before it is worth a warning.
const BEHIND: u64 = 60_000;

/// Where the time comes from, in ms.
#[derive(Clone)]
pub struct Clock {
    /// Since the Unix epoch; may go back.
    wall: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// Since some moment; only goes forward.
    steady: Arc<dyn Fn() -> u64 + Send + Sync>,
}

impl Clock {
    /// The machine's clocks.
    pub fn machine() -> Self {
        let wall = || {
            let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            elapsed.as_millis() as u64
        };
        let started = Instant::now();
        Self::new(wall, move || started.elapsed().as_millis() as u64)
    }

    /// Any others, for tests.
    pub fn new(
        wall: impl Fn() -> u64 + Send + Sync + 'static,
        steady: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Self {
        Self { wall: Arc::new(wall), steady: Arc::new(steady) }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

/// The steady clock, ahead of its own beginning by as much as the wall clock ever was.
#[derive(Debug)]
pub(super) struct Monotone {
    source: Clock,
    ahead: AtomicU64,
    /// Two threads may read the clocks in one order and answer in the other.
    newest: AtomicU64,
}

impl Monotone {
    /// Begins no earlier than `newest`, the newest time that the store holds.
    pub(super) fn new(source: Clock, newest: u64) -> Self {
        let (wall, steady) = ((source.wall)(), (source.steady)());
        if wall.saturating_add(BEHIND) < newest {
            tracing::warn!(
                behind_ms = newest - wall,
                "the machine's clock is behind the times in the store, which go on from where they \
                 were: set the clock, if it is wrong"
            );
        }
        // Records use 0 for "no time".
        let ahead = newest.max(1).saturating_sub(steady);
        Self { source, ahead: AtomicU64::new(ahead), newest: AtomicU64::new(newest.max(1)) }
    }

    /// Never earlier than any answer before.
    pub(super) fn now(&self) -> u64 {
        let steady = (self.source.steady)();
        let ahead = (self.source.wall)().saturating_sub(steady);
        let now = steady + self.ahead.fetch_max(ahead, Ordering::Relaxed).max(ahead);
        self.newest.fetch_max(now, Ordering::Relaxed).max(now)
    }
}
