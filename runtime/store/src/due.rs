//! The due index: when the owner of a partition must look at a key again.

use async_trait::async_trait;
use ordain_core::Key;

use super::{Partition, StoreError};

/// The due index of each partition.
#[async_trait]
pub trait DueIndex: Send + Sync {
    /// Returns due entries (time, key) of a partition after `after`, the earliest first, and the ms until
    /// the next entry. With `all`, entries whose time has not come are returned as well.
    async fn due(
        &self,
        partition: &Partition,
        after: Option<&(u64, Key)>,
        limit: usize,
        all: bool,
    ) -> Result<(Vec<(u64, Key)>, Option<u64>), StoreError>;
}
