//! Events that wait in the store until their key can execute them.

use std::ops::RangeInclusive;
use std::sync::Arc;

use async_trait::async_trait;
use ordain_core::{Event, Key, SpillPage};

use super::{KeyResult, Partition, StoreError};

/// The maximum number of bytes of events that [`SpillArea::find_missing`] returns, not counting the first event. A
/// later round of replay requests the remaining events.
pub const FOUND_BYTES_LIMIT: usize = 16 << 20;

/// The events of each key that wait in the store.
#[async_trait]
pub trait SpillArea: Send + Sync {
    /// Returns the spilled events of a key from sequence `from` on, ascending, and `true` if no spilled event follows
    /// the returned events. Returns at most `limit` events and `bytes` of memory, but at least one event if there is
    /// one.
    async fn read_spill(
        &self,
        partition: &Partition,
        key: &Key,
        from: u64,
        limit: usize,
        bytes: usize,
    ) -> Result<KeyResult<SpillPage>, StoreError>;

    /// Returns the missing events of a key that the store has as spilled events, or in `far-ahead` dead letters that
    /// were stored at most `within` ms ago.
    async fn find_missing(
        &self,
        partition: &Partition,
        key: &Key,
        missing: &[RangeInclusive<u64>],
        within: u64,
    ) -> Result<KeyResult<Vec<(u64, Arc<Event>)>>, StoreError>;
}
