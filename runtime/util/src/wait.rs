//! Waiting for a moment that may never come, and long waits that a test can shorten.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

static DIVISOR: AtomicU32 = AtomicU32::new(1);

/// Makes every wait that [`shortened`] returns from now on this many times shorter. Only for tests:
/// a busy broker or store may then be taken for one that is away.
pub fn shorten(divisor: NonZeroU32) {
    DIVISOR.store(divisor.get(), Ordering::Relaxed);
}

/// Returns how long to wait: `wait`, unless a test has shortened it.
pub fn shortened(wait: Duration) -> Duration {
    wait / DIVISOR.load(Ordering::Relaxed)
}

/// Waits until then; without a moment, for ever.
pub async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
