//! The due index: the times at which the owner of a partition must process a key again.

use async_trait::async_trait;
use ordain_core::Key;

use super::{Partition, StoreError};

/// The due index of each partition.
#[async_trait]
pub trait DueIndex: Send + Sync {
    /// Returns the due entries (time, key) of a partition that follow the entry `after`, the earliest first. With
    /// `all`, also returns the entries that are not due yet. Also returns the time, in ms, until the first later entry
    /// that the call does not return; `None` if there is no such entry.
    async fn due(
        &self,
        partition: &Partition,
        after: Option<&(u64, Key)>,
        limit: usize,
        all: bool,
    ) -> Result<(Vec<(u64, Key)>, Option<u64>), StoreError>;
}
