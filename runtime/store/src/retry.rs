//! Repeats a request to a store until the request succeeds.

use std::future::Future;
use std::time::Duration;

use super::StoreError;
use ordain_util::log_throttle::LogThrottle;

const RETRY_DELAY: Duration = Duration::from_millis(500);
const WARN_INTERVAL: Duration = Duration::from_secs(5);

/// Repeats a request until it succeeds, and logs the failures. `what` names the request in the log. While the request
/// fails, the caller waits, for example until an operator has repaired the store.
pub async fn retry_until_ok<T, F>(what: &str, ask: impl Fn() -> F) -> T
where
    F: Future<Output = Result<T, StoreError>>,
{
    let mut tries = 0_u32;
    let mut throttle = LogThrottle::new(WARN_INTERVAL);
    loop {
        match ask().await {
            Ok(answer) => {
                if tries > 0 {
                    tracing::info!(tries, "store request succeeded after retries ({what})");
                }
                return answer;
            }
            Err(error) => {
                if throttle.allow() {
                    tracing::error!(%error, tries, "store request failed ({what}); retrying");
                }
                tries = tries.saturating_add(1);
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
    }
}
