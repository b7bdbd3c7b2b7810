//! The time that the store writes down. Must never go back, whatever the machine's clock does:
//! a due or expired entry that was passed once stays passed.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Where the time comes from: ms since the Unix epoch.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> u64 + Send + Sync>);

impl Clock {
    /// The machine's clock.
    pub fn wall() -> Self {
        Self::from_fn(|| {
            let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            elapsed.as_millis() as u64
        })
    }

    /// Any other, for tests.
    pub fn from_fn(now: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

/// A clock that stands still where its source goes back.
#[derive(Debug)]
pub(super) struct Monotone {
    source: Clock,
    newest: AtomicU64,
}

impl Monotone {
    /// Begins no earlier than `newest`, the newest time that the store holds.
    pub(super) fn new(source: Clock, newest: u64) -> Self {
        // Records use 0 for "no time".
        Self { source, newest: AtomicU64::new(newest.max(1)) }
    }

    /// Never earlier than any answer before.
    pub(super) fn now(&self) -> u64 {
        let now = (self.source.0)();
        self.newest.fetch_max(now, Ordering::Relaxed).max(now)
    }
}
