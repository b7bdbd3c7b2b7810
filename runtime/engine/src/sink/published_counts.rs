//! The numbers of published messages of each sink, for the metrics.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// The number of messages and forwarded dead letters that this process has published, by the name of the sink. The
/// store has recorded all these messages as published.
#[derive(Debug, Default)]
pub(crate) struct PublishedCounts(Mutex<BTreeMap<String, u64>>);

impl PublishedCounts {
    /// Adds numbers of published messages. A number may be 0, so that the metrics contain the sink before its first
    /// message.
    pub(super) fn add(&self, messages: impl IntoIterator<Item = (String, u64)>) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (sink, count) in messages {
            *counts.entry(sink).or_default() += count;
        }
    }

    pub(crate) fn get(&self) -> BTreeMap<String, u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
