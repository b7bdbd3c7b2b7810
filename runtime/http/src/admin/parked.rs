//! How many keys are parked. Most of them are in the store only, and counting them takes a pass over
//! all keys: it is done in the background, when somebody has asked, and rarely enough that it takes
//! next to nothing of the store's time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ordain_core::Status;
use tokio::sync::Notify;

use super::App;
use ordain_store::{KeyFilter, Store, StoreError};

/// Keys listed at a time.
const PAGE: usize = 500;
/// From the end of one count to the begin of the next, at least, and how many times as long as the
/// last one took.
const PAUSE: Duration = Duration::from_secs(2);
const PAUSE_TIMES: u32 = 50;

/// The last count.
#[derive(Default)]
pub(super) struct ParkedKeys {
    wanted: Notify,
    by_stream: Mutex<BTreeMap<Arc<str>, u64>>,
}

impl ParkedKeys {
    /// The last count, by stream; empty before the first. Has them counted again.
    pub(super) fn get(&self) -> BTreeMap<Arc<str>, u64> {
        self.wanted.notify_one();
        self.by_stream.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Counts when somebody has asked, for ever.
pub(super) async fn count(app: &App) {
    loop {
        app.parked.wanted.notified().await;
        let began = Instant::now();
        if let Some(store) = app.figures.store() {
            match count_all(&*store).await {
                Ok(count) => {
                    *app.parked.by_stream.lock().unwrap_or_else(PoisonError::into_inner) = count;
                }
                Err(error) => tracing::debug!(%error, "parked keys were not counted"),
            }
        }
        tokio::time::sleep(PAUSE.max(began.elapsed() * PAUSE_TIMES)).await;
    }
}

async fn count_all(store: &dyn Store) -> Result<BTreeMap<Arc<str>, u64>, StoreError> {
    let mut counts = BTreeMap::new();
    for stream in store.streams().await? {
        let mut filter =
            KeyFilter { status: Some(Status::Parked), limit: PAGE, ..KeyFilter::default() };
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
