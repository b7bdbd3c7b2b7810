//! When the owner of a partition must look at a key again.

use async_trait::async_trait;
use ordain_core::Key;

use super::{Partition, StoreError};

/// The due index of each partition.
#[async_trait]
pub trait DueIndex: Send + Sync {
    /// Entries (time, key) of the partition's due index that have passed (with `all`, the others
    /// as well), the earliest first, behind `after`; and the ms to the earliest entry after those,
    /// passed or not.
    async fn due(
        &self,
        partition: &Partition,
        after: Option<&(u64, Key)>,
        limit: usize,
        all: bool,
    ) -> Result<(Vec<(u64, Key)>, Option<u64>), StoreError>;
}
