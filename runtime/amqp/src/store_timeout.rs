//! The time limit for the store's answers. The time limits for the broker include requests to the store. Without this
//! separate limit, Ordain would report a store that does not answer as a broker that does not answer.

use std::time::Duration;

use ordain_store::StoreError;
use ordain_util::wait::shortened;
use tokio::time::timeout;

/// Time limit for one request to the store: shorter than the time limits for the broker, which include such requests.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);

/// Limits the time of a request to the store. After the time limit, returns [`StoreError::Unavailable`].
pub async fn with_store_timeout<T>(
    request: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let limit = shortened(STORE_TIMEOUT);
    timeout(limit, request)
        .await
        .unwrap_or_else(|_| Err(StoreError::Unavailable(format!("no answer within {limit:?}"))))
}
