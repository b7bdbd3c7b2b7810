//! Tracks the commit up to which all messages of a shard (slice of the store) are published, and durably recorded as
//! published.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The commit up to which all messages of a shard are published, and durably recorded as published. These messages
/// return to the outbox only if the store goes back in time (loses confirmed writes). The store writes a publish record
/// (the record that messages are published) lazily: it is durable as soon as a later commit of the shard is durable.
/// The outbox publisher reports the publish records to this type. The sequence assigner, which numbers messages, reads
/// the watermark.
#[derive(Debug, Default)]
pub struct PublishWatermark {
    through: AtomicU64,
    /// The oldest and the newest of the publish records that are possibly not durable yet. Each entry has the commit up
    /// to which the record applies, and the number of the shard's newest commit when the store wrote the record.
    pending_records: Mutex<[Option<(u64, u64)>; 2]>,
    /// The highest commit of all publish records that the outbox publisher has requested; 0 before the first request.
    /// After a request for a record that names a file, the value is [`HAS_FILES_FLAG`].
    last_request: AtomicU64,
}

/// The value of `last_request` for a shard whose publish records name files. Such a record must not be repeated without
/// the lengths of the files, which this type does not have.
const HAS_FILES_FLAG: u64 = u64::MAX;

impl PublishWatermark {
    /// Returns the commit up to which all messages are durably recorded as published.
    pub fn through(&self) -> u64 {
        self.through.load(Ordering::Relaxed)
    }

    /// Records that the outbox publisher requests a publish record for the messages up to the commit `through`.
    /// `has_files` is true if the record names files.
    pub fn begin_record(&self, through: u64, has_files: bool) {
        self.last_request
            .fetch_max(if has_files { HAS_FILES_FLAG } else { through }, Ordering::SeqCst);
    }

    /// Returns the commit up to which the driver must repeat the publish record after the repetition of lost commits.
    /// The repeated commits have put their messages into the outbox a second time. Returns `None` if the outbox
    /// publisher has requested no publish record, or if a requested record named a file.
    pub fn commit_to_repeat(&self) -> Option<u64> {
        let last_request = self.last_request.load(Ordering::SeqCst);
        (last_request != 0 && last_request != HAS_FILES_FLAG).then_some(last_request)
    }

    /// Records that the store has recorded the messages up to the commit `through` as published. `last` is the number
    /// of the shard's newest commit before this publish record.
    pub fn finish_record(&self, through: u64, last: u64) {
        // A panic while the lock is held leaves the data consistent.
        let mut pending_records =
            self.pending_records.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let slot = usize::from(pending_records[0].is_some());
        pending_records[slot] = Some((through, last));
    }

    /// Records that a commit is durable. The publish records that the store wrote before this commit are then durable
    /// too.
    pub fn record_commit(&self, number: u64) {
        let mut pending_records =
            self.pending_records.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        while let Some((through, last)) = pending_records[0]
            && last < number
        {
            self.through.fetch_max(through, Ordering::Relaxed);
            *pending_records = [pending_records[1], None];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_with_a_file_is_not_repeated() {
        let watermark = PublishWatermark::default();
        assert_eq!(watermark.commit_to_repeat(), None);
        watermark.begin_record(3, false);
        assert_eq!(watermark.commit_to_repeat(), Some(3));
        watermark.begin_record(5, true);
        watermark.begin_record(7, false);
        assert_eq!(watermark.commit_to_repeat(), None);
    }

    #[test]
    fn mark_counts_when_a_later_commit_is_durable() {
        let watermark = PublishWatermark::default();
        watermark.finish_record(3, 5);
        // The first publish record follows commit 5, so the durability of commit 5 does not show that this record is
        // durable.
        watermark.record_commit(5);
        assert_eq!(watermark.through(), 0);
        watermark.finish_record(4, 6);
        watermark.finish_record(5, 7);
        watermark.record_commit(6);
        assert_eq!(watermark.through(), 3);
        watermark.record_commit(7);
        assert_eq!(watermark.through(), 3);
        watermark.record_commit(8);
        assert_eq!(watermark.through(), 5);
        watermark.record_commit(9);
        assert_eq!(watermark.through(), 5);
    }
}
