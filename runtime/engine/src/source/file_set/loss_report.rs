//! The reports about missing files. No unread rest of a file may be lost without a report.

use ordain_store::checkpoint::reread_advice;

use super::FileSet;
use super::compressed::CompressedFile;
use super::tracked_file::{TrackedFile, describe_loss};

/// The checkpoint keeps at most this number of missing files with an unread rest, and of missing files that were read
/// to their end. If such a file returns, the source reads only its unread bytes. Also limits the compressed files that
/// have left the folder.
pub(super) const LOST_FILES_LIMIT: usize = 16;

/// Maximum number of missing ignored files in the checkpoint. If such a file returns, the source still does not read
/// it. This limit is higher than [`LOST_FILES_LIMIT`], because an operator may compress or move all old files of a
/// folder, and restore them later. A file needs about 300 bytes in the checkpoint.
const IGNORED_FILES_LIMIT: usize = 256;

impl FileSet {
    /// Handles the files that have become missing. For each file of the set, `rests` contains the new compressed file
    /// that this file may have become. Reports the unread rest of a file as lost. Also reports a loss if the content of
    /// the compressed file differs in length from the file. In this case, a program appended lines after the source's
    /// newest measurement of the file, possibly after log rotation had renamed the file. All other missing files that
    /// were read to their end, or that the source ignores, stay in the set as lost files. If such a file returns, the
    /// source does not read it. Removes the remaining missing files from the set.
    pub(super) fn report_missing(&mut self, rests: Vec<Option<CompressedFile>>) {
        let mut kept = Vec::with_capacity(self.files.len());
        for (mut tracked, rest) in std::mem::take(&mut self.files).into_iter().zip(rests) {
            let progress = &tracked.progress;
            let is_reported = progress.is_lost || tracked.loss.is_some();
            if !tracked.is_missing || is_reported {
                kept.push(tracked);
                continue;
            }
            let unread = progress.unread_bytes();
            let is_begun = progress.is_begun();
            let has_other_length =
                rest.as_ref().is_some_and(|rest| rest.has_other_length_than(&tracked));
            let has_rest = unread > 0 || has_other_length;
            if progress.is_ignored || !has_rest && !progress.is_live {
                // Another program has removed, moved or compressed an old file.
                if is_begun {
                    tracked.progress.is_lost = true;
                    kept.push(tracked);
                }
                continue;
            }
            if has_rest {
                let any_rest = rest.as_ref().or_else(|| self.compressed.any_rest_of(&tracked));
                let loss = describe_loss(&tracked, any_rest);
                tracing::error!(stream = self.stream, "unread lines lost: {loss}");
                tracked.loss = Some(loss);
                tracked.loss_in = rest.map(|rest| rest.digest);
                // If the process ends before it delivers the dead letter, the next start repeats this report.
                tracked.progress.is_compressed = false;
                kept.push(tracked);
                continue;
            }
            self.report_read(&tracked, rest.as_ref());
            if is_begun {
                tracked.progress.is_lost = true;
                kept.push(tracked);
            }
        }
        self.files = kept;
    }

    /// Logs a warning if a missing file may have had lines after its last known end. The source has read the file up to
    /// this end.
    fn report_read(&self, tracked: &TrackedFile, compressed: Option<&CompressedFile>) {
        let progress = &tracked.progress;
        match compressed {
            Some(compressed) if compressed.has_length_of(tracked) => {}
            Some(compressed) => tracing::warn!(
                stream = self.stream,
                path = tracked.name,
                device = progress.device,
                inode = progress.inode,
                read_bytes = progress.position().offset,
                compressed = compressed.progress.path,
                "the file is missing or was truncated, and Ordain had read it to its last known end: a program may \
                 have compressed it. If lines were appended to the file after the bytes that were read, uncompress the \
                 compressed file in its folder, and Ordain reads these lines"
            ),
            None if !progress.is_begun() => {}
            None => tracing::warn!(
                stream = self.stream,
                path = tracked.name,
                device = progress.device,
                inode = progress.inode,
                read_bytes = progress.position().offset,
                "the file was removed, or no longer begins with the lines that Ordain had read. Now reading the file \
                 at this path from its beginning; {}. If lines were appended to the old file after the bytes that were \
                 read, these lines are lost",
                reread_advice(self.ordering)
            ),
        }
    }

    /// Removes the oldest missing files from the set. The set keeps at most [`LOST_FILES_LIMIT`] missing files with an
    /// unread rest, [`LOST_FILES_LIMIT`] missing files that were read to their end, and [`IGNORED_FILES_LIMIT`] missing
    /// ignored files.
    pub(super) fn forget_oldest(&mut self) {
        for (is_ignored, is_remembered, limit) in [
            (false, false, LOST_FILES_LIMIT),
            (false, true, LOST_FILES_LIMIT),
            (true, true, IGNORED_FILES_LIMIT),
        ] {
            let is_kind = |tracked: &TrackedFile| {
                tracked.progress.is_lost
                    && tracked.progress.is_ignored == is_ignored
                    && tracked.is_remembered() == is_remembered
            };
            let count = self.files.iter().filter(|tracked| is_kind(tracked)).count();
            let mut surplus = count.saturating_sub(limit);
            self.files.retain(|tracked| {
                let is_removed = surplus > 0 && is_kind(tracked);
                surplus -= usize::from(is_removed);
                !is_removed
            });
        }
    }
}
