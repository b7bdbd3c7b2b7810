//! Tracks the commit up to which all messages of a shard (slice of the store) are published and durably marked as
//! published.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The commit up to which all messages of a shard are published and durably marked as published. These messages return
/// to the outbox only if the store goes back in time (loses confirmed writes). The store writes a mark (here: the
/// record that messages are published) lazily: a mark is durable as soon as a later commit of the shard is durable. The
/// outbox publisher reports the marks to this type. The sequence assigner, which numbers messages, reads the watermark.
#[derive(Debug, Default)]
pub struct PublishWatermark {
    through: AtomicU64,
    /// The oldest and the newest mark of the marks that are possibly not durable yet. Each entry has the commit up to
    /// which the mark applies, and the number of the shard's last commit when the mark was written.
    pending_marks: Mutex<[Option<(u64, u64)>; 2]>,
    /// The highest commit of all marks that the outbox publisher has requested; 0 before the first request. The value
    /// is [`HAS_FILES_FLAG`] after the request of any mark that names a file.
    last_mark: AtomicU64,
}

/// The value of `last_mark` for a shard whose marks name files. A mark that names files must not be repeated without
/// the lengths of the files, which this type does not have.
const HAS_FILES_FLAG: u64 = u64::MAX;

impl PublishWatermark {
    /// Returns the commit up to which all messages are durably marked as published.
    pub fn through(&self) -> u64 {
        self.through.load(Ordering::Relaxed)
    }

    /// Records that the outbox publisher requests a mark for the messages up to the commit `through`. `has_files` is
    /// true if the mark names files.
    pub fn begin_mark(&self, through: u64, has_files: bool) {
        self.last_mark
            .fetch_max(if has_files { HAS_FILES_FLAG } else { through }, Ordering::SeqCst);
    }

    /// Returns the commit up to which messages must again be marked as published, after lost commits were repeated. The
    /// repeated commits have put their messages into the outbox again. Returns `None` if the outbox publisher has
    /// requested no mark, or if a requested mark named a file.
    pub fn mark_to_repeat(&self) -> Option<u64> {
        let last_mark = self.last_mark.load(Ordering::SeqCst);
        (last_mark != 0 && last_mark != HAS_FILES_FLAG).then_some(last_mark)
    }

    /// Records that the store has marked the messages up to the commit `through` as published. `last` is the number of
    /// the shard's last commit before this mark.
    pub fn record_mark(&self, through: u64, last: u64) {
        // A panic while the lock is held leaves the data consistent.
        let mut pending_marks =
            self.pending_marks.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let slot = usize::from(pending_marks[0].is_some());
        pending_marks[slot] = Some((through, last));
    }

    /// Records that a commit is durable. The marks that the store wrote before this commit are then durable too.
    pub fn record_commit(&self, number: u64) {
        let mut pending_marks =
            self.pending_marks.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        while let Some((through, last)) = pending_marks[0]
            && last < number
        {
            self.through.fetch_max(through, Ordering::Relaxed);
            *pending_marks = [pending_marks[1], None];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mark_with_a_file_is_not_repeated() {
        let watermark = PublishWatermark::default();
        assert_eq!(watermark.mark_to_repeat(), None);
        watermark.begin_mark(3, false);
        assert_eq!(watermark.mark_to_repeat(), Some(3));
        watermark.begin_mark(5, true);
        watermark.begin_mark(7, false);
        assert_eq!(watermark.mark_to_repeat(), None);
    }

    #[test]
    fn mark_counts_when_a_later_commit_is_durable() {
        let watermark = PublishWatermark::default();
        watermark.record_mark(3, 5);
        // The mark follows commit 5, so a confirmation of commit 5 does not show that the mark is durable.
        watermark.record_commit(5);
        assert_eq!(watermark.through(), 0);
        watermark.record_mark(4, 6);
        watermark.record_mark(5, 7);
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
