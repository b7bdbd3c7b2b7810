//! The number of parked keys (keys that stopped at a failed or missing event). Most parked keys are in the store only,
//! so a count must examine the records of all keys in the store. After a request for metrics, a background task counts
//! the parked keys. The task waits long enough between two counts to use a negligible share of the store's time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ordain_core::KeyStatus;
use tokio::sync::Notify;

use super::AdminState;
use ordain_store::{KeyFilter, Store, StoreError};

/// Maximum number of parked keys that one query of the count returns.
const PAGE_KEYS: usize = 500;
const MIN_COUNT_DELAY: Duration = Duration::from_secs(2);
/// The delay between two counts is at least this many times the duration of the last count.
const COUNT_DELAY_FACTOR: u32 = 50;

/// The result of the newest count, and the request for another count.
#[derive(Default)]
pub(super) struct ParkedCounts {
    request: Notify,
    by_stream: Mutex<BTreeMap<Arc<str>, u64>>,
}

impl ParkedCounts {
    /// Returns the result of the newest count, by stream, and requests another count. The result is empty before the
    /// first count.
    pub(super) fn get(&self) -> BTreeMap<Arc<str>, u64> {
        self.request.notify_one();
        self.by_stream.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Counts the parked keys on request, with a delay between two counts. This function never returns.
pub(super) async fn count_on_request(app: &AdminState) {
    loop {
        app.parked_counts.request.notified().await;
        let began = Instant::now();
        if let Some(store) = app.figures.store() {
            match count_all(&*store).await {
                Ok(count) => {
                    *app.parked_counts.by_stream.lock().unwrap_or_else(PoisonError::into_inner) =
                        count;
                }
                Err(error) => tracing::debug!(%error, "parked keys not counted"),
            }
        }
        tokio::time::sleep(MIN_COUNT_DELAY.max(began.elapsed() * COUNT_DELAY_FACTOR)).await;
    }
}

async fn count_all(store: &dyn Store) -> Result<BTreeMap<Arc<str>, u64>, StoreError> {
    let mut counts = BTreeMap::new();
    for stream in store.streams().await? {
        let mut filter =
            KeyFilter { status: Some(KeyStatus::Parked), limit: PAGE_KEYS, ..KeyFilter::default() };
        let count: &mut u64 = counts.entry(Arc::clone(&stream)).or_default();
        loop {
            let page = store.keys(&stream, &filter).await?;
            *count += page.rows.len() as u64;
            filter.cursor = page.cursor;
            if filter.cursor.is_none() {
                break;
            }
        }
    }
    Ok(counts)
}
