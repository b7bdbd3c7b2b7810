//! The due index: for each partition, a list of keys, each with the earliest time at which the owner must handle the
//! key.

use async_trait::async_trait;
use ordain_core::Key;

use super::{Partition, StoreError};

/// Access to the due index of each partition.
#[async_trait]
pub trait DueIndex: Send + Sync {
    /// Returns at most `limit` due entries (time, key) of a partition, the earliest first, starting after the entry
    /// `after`. If `all` is `true`, includes the entries that are not due yet. The second result is the time, in ms,
    /// until the entry after the returned entries is due; `None` if no entry follows.
    async fn due(
        &self,
        partition: &Partition,
        after: Option<&(u64, Key)>,
        limit: usize,
        all: bool,
    ) -> Result<(Vec<(u64, Key)>, Option<u64>), StoreError>;
}
