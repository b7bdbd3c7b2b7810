//! A wait until an optional deadline, and a way to shorten waits in tests.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

static WAIT_DIVISOR: AtomicU32 = AtomicU32::new(1);

/// Makes [`shortened`] divide all later waits by `divisor`. The divisor 0 counts as 1. For tests only: with short
/// waits, a busy broker or store can appear unavailable.
pub fn shorten(divisor: u32) {
    WAIT_DIVISOR.store(divisor.max(1), Ordering::Relaxed);
}

/// Returns `wait`, divided by the divisor that a test has set with [`shorten`].
pub fn shortened(wait: Duration) -> Duration {
    wait / WAIT_DIVISOR.load(Ordering::Relaxed)
}

/// Waits until `at`. Never completes if `at` is `None`.
pub async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
