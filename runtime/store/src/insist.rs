//! Asking a store until it does what it is asked.

use std::future::Future;
use std::time::Duration;

use super::StoreError;

/// Between tries.
const RETRY: Duration = Duration::from_millis(500);
/// Tries between two messages: five seconds.
const TELL_EVERY: u32 = 10;

/// Asks until it works: what is not of one key stops everything that needs it, until somebody mends
/// it.
pub async fn insist_on<T, F>(what: &str, ask: impl Fn() -> F) -> T
where
    F: Future<Output = Result<T, StoreError>>,
{
    let mut tries = 0_u32;
    loop {
        match ask().await {
            Ok(answer) => {
                if tries > 0 {
                    tracing::info!(tries, "the {what} has worked");
                }
                return answer;
            }
            Err(error) => {
                if tries.is_multiple_of(TELL_EVERY) {
                    tracing::error!(%error, tries, "the {what} failed, and is tried again");
                }
                tries = tries.saturating_add(1);
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}
