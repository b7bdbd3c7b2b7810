//! The number of wanted instances of each stream (the instances that its pending work needs), for metrics. After a
//! request for metrics, a background task reads the instances' reports from the store.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::AdminState;
use crate::view;

/// The delay between two reads. A shorter delay would be useless, because instances report their pending work every two
/// seconds.
const READ_DELAY: Duration = Duration::from_secs(2);

/// The result of the newest read, and the request for another read.
#[derive(Default)]
pub(super) struct WantedInstances {
    request: Notify,
    by_stream: Mutex<BTreeMap<String, u64>>,
}

impl WantedInstances {
    /// Returns the number of wanted instances of each stream according to the newest read, and requests another read.
    /// The result is empty before the first read.
    pub(super) fn get(&self) -> BTreeMap<String, u64> {
        self.request.notify_one();
        self.by_stream.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Reads the instances' reports on request, with a delay between two reads. This function never returns.
pub(super) async fn watch_wanted(app: &AdminState) {
    loop {
        app.wanted.request.notified().await;
        if let Some(store) = app.figures.store() {
            match store.table().await {
                Ok(table) => {
                    let wanted = view::InstanceOverview::of(&app.loaded, &table).wanted();
                    *app.wanted.by_stream.lock().unwrap_or_else(PoisonError::into_inner) = wanted;
                }
                Err(error) => tracing::debug!(%error, "number of wanted instances not updated"),
            }
        }
        tokio::time::sleep(READ_DELAY).await;
    }
}
