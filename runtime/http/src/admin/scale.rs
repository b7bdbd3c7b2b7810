//! How many instances each stream wants, for metrics. What all instances have to do is in the store:
//! it is read in the background, when somebody has asked.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::App;
use crate::view;

/// Between two reads, at least: instances say what they have to do every two seconds.
const PAUSE: Duration = Duration::from_secs(2);

/// What was read last.
#[derive(Default)]
pub(super) struct Wanted {
    asked: Notify,
    by_stream: Mutex<BTreeMap<String, u64>>,
}

impl Wanted {
    /// The instances that each stream wants; empty before the first read. Has it read again.
    pub(super) fn get(&self) -> BTreeMap<String, u64> {
        self.asked.notify_one();
        self.by_stream.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Reads when somebody has asked, for ever.
pub(super) async fn watch(app: &App) {
    loop {
        app.wanted.asked.notified().await;
        if let Some(store) = app.figures.store() {
            match store.table().await {
                Ok(table) => {
                    let wanted = view::Instances::of(&app.loaded, &table).wanted();
                    *app.wanted.by_stream.lock().unwrap_or_else(PoisonError::into_inner) = wanted;
                }
                Err(error) => tracing::debug!(%error, "the instances were not read"),
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}
