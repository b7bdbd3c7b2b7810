//! The due index: the times at which the owner of a partition must process a key again.

use async_trait::async_trait;
use ordain_core::Key;

use super::{Partition, StoreError};

/// The due index of each partition.
#[async_trait]
pub trait DueIndex: Send + Sync {
    /// Returns due entries (time, key) of a partition after `after`, the earliest first, and the time until the next
    /// entry, in ms. With `all`, also returns entries that are not due yet. The time is `None` if there is no next
    /// entry.
    async fn due(
        &self,
        partition: &Partition,
        after: Option<&(u64, Key)>,
        limit: usize,
        all: bool,
    ) -> Result<(Vec<(u64, Key)>, Option<u64>), StoreError>;
}
