//! Waiting for a moment that may never come.

use std::time::Instant;

/// Waits until then; without a moment, for ever.
pub async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
