//! A stream that reads the destination of a producer, and writes of the stream's key records.

use std::sync::Arc;

use ordain_core::{Event, EventDigests, Key, KeyRecord, KeyStatus, KeyWrite, WriteCondition};
use ordain_store::Store;

use super::super::{Owner, key_record, record_write};
use super::sender::{Sender, keys, message};

/// A producer, and the owner of a partition of the stream `cases`, which reads the producer's destination.
pub(super) struct ReaderRig {
    pub(super) keys: [Key; 2],
    pub(super) producer: Sender,
    /// The producer in calls that publish lost events again.
    pub(super) restoring: Sender,
    pub(super) owner: Owner,
}

impl ReaderRig {
    pub(super) async fn new(store: &dyn Store) -> Self {
        let producer = Sender::producer_with_reader(store);
        let restoring = producer.restoring();
        let owner = Owner::claim(store, "cases", 0).await;
        Self { keys: keys(store), producer, restoring, owner }
    }
}

pub(super) fn digests_of(key: &str, data: &[&str]) -> EventDigests {
    data.iter().map(|data| EventDigests::short(message(key, data).content())).collect()
}

/// These events wait in the store for earlier events. The function adds them to the record's extent of spilled events.
pub(super) fn spill_write(
    key: &str,
    condition: WriteCondition,
    mut record: KeyRecord,
    spill: Vec<(u64, Arc<Event>)>,
) -> KeyWrite {
    for (sequence, _) in &spill {
        record.spilled.add(*sequence);
    }
    KeyWrite { spill, due_in: Some(1_000), ..record_write(key, condition, record) }
}

/// Makes the write that ends a key before the sequence `next`. The record has the digests of messages with these data,
/// and expires after `expire_in` ms.
pub(super) fn end_write(
    key: &str,
    condition: WriteCondition,
    next: u64,
    data: &[&str],
    expire_in: u64,
) -> KeyWrite {
    let tombstone = KeyRecord {
        status: KeyStatus::Completed,
        digests: digests_of(key, data),
        ..key_record(next)
    };
    KeyWrite { expire_in: Some(expire_in), ..record_write(key, condition, tombstone) }
}
