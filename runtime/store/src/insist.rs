//! Asking a store until it does what it is asked.

use std::future::Future;
use std::time::Duration;

use super::StoreError;
use ordain_util::log_throttle::LogThrottle;

/// Between tries.
const RETRY: Duration = Duration::from_millis(500);
/// Time between two errors in the log.
const WARN_INTERVAL: Duration = Duration::from_secs(5);

/// Asks until it works: what is not of one key stops everything that needs it, until somebody mends
/// it.
pub async fn insist_on<T, F>(what: &str, ask: impl Fn() -> F) -> T
where
    F: Future<Output = Result<T, StoreError>>,
{
    let mut tries = 0_u32;
    let mut throttle = LogThrottle::new(WARN_INTERVAL);
    loop {
        match ask().await {
            Ok(answer) => {
                if tries > 0 {
                    tracing::info!(tries, "the {what} has worked");
                }
                return answer;
            }
            Err(error) => {
                if throttle.allow() {
                    tracing::error!(%error, tries, "the {what} failed, and is tried again");
                }
                tries = tries.saturating_add(1);
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}
