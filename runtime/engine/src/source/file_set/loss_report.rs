//! The reports about missing files. No unread rest of a file may be lost without a report.

use std::io;
use std::path::Path;

use ordain_store::checkpoint::reread_advice;

use super::FileSet;
use super::listed_file::{CompressedRest, ListedFile, compressed_rest};
use super::tracked_file::{TrackedFile, describe_loss};

/// Maximum number of missing files of each kind that the checkpoint keeps: files with an unread rest, and files that
/// were read to their end. If such a file returns, the source reads only the bytes that it has not read yet.
const LOST_FILES_LIMIT: usize = 16;

impl FileSet {
    /// Handles the files that have become missing. Reports the unread rest of a file as lost. Also reports a loss if
    /// the path of the source named the file, and a compressed file may have more bytes than were read. Marks each
    /// other file that was read to its end as lost, so that the source does not read it again if it returns. Removes
    /// the remaining missing files from the set.
    pub(super) fn report_missing(&mut self, listed: &[ListedFile]) -> io::Result<()> {
        let mut kept = Vec::with_capacity(self.files.len());
        for mut tracked in std::mem::take(&mut self.files) {
            let progress = &tracked.progress;
            let is_reported = progress.is_lost || tracked.loss.is_some();
            if !tracked.is_missing || is_reported {
                kept.push(tracked);
                continue;
            }
            let unread = progress.unread_bytes();
            let is_begun = progress.is_begun();
            if progress.is_ignored {
                continue;
            }
            if unread == 0 && !progress.is_live {
                // Log rotation has removed an old file.
                if is_begun {
                    tracked.progress.is_lost = true;
                    kept.push(tracked);
                }
                continue;
            }
            let is_truncated = listed.iter().any(|listed| tracked.is(&listed.metadata));
            let compressed =
                compressed_rest(listed, Path::new(&progress.path), progress.position().offset)?;
            let has_other_length = matches!(compressed, CompressedRest::HasOtherLength(_));
            if unread > 0 || (has_other_length && !is_truncated) {
                let loss = describe_loss(&tracked, compressed);
                tracing::error!(stream = self.stream, "unread lines lost: {loss}");
                tracked.loss = Some(loss);
                kept.push(tracked);
                continue;
            }
            self.report_read(&tracked, is_truncated, &compressed);
            if is_begun {
                tracked.progress.is_lost = true;
                kept.push(tracked);
            }
        }
        self.files = kept;
        Ok(())
    }

    /// Logs a warning about a missing file that was read to its last known end, if the file may have had more lines.
    fn report_read(&self, tracked: &TrackedFile, is_truncated: bool, compressed: &CompressedRest) {
        let progress = &tracked.progress;
        match compressed {
            CompressedRest::IsRead if !is_truncated => {}
            CompressedRest::MayBeIn(compressed) if !is_truncated => tracing::warn!(
                stream = self.stream,
                path = tracked.name,
                device = progress.device,
                inode = progress.inode,
                read_bytes = progress.position().offset,
                compressed = %compressed.display(),
                "the file is missing, and Ordain had read it to its last known end: a program may have compressed it. \
                 If lines were appended to the file after the bytes that were read, uncompress the file in its folder, \
                 and Ordain reads these lines"
            ),
            _ if !progress.is_begun() => {}
            _ => tracing::warn!(
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

    /// Removes the oldest missing files from the set, if the set has more than [`LOST_FILES_LIMIT`] missing files with
    /// an unread rest, or more than [`LOST_FILES_LIMIT`] missing files that were read to their end.
    pub(super) fn forget_oldest(&mut self) {
        for is_read in [false, true] {
            let is_kind = |tracked: &TrackedFile| {
                tracked.progress.is_lost && tracked.is_remembered() == is_read
            };
            let count = self.files.iter().filter(|tracked| is_kind(tracked)).count();
            let mut surplus = count.saturating_sub(LOST_FILES_LIMIT);
            self.files.retain(|tracked| {
                let is_removed = surplus > 0 && is_kind(tracked);
                surplus -= usize::from(is_removed);
                !is_removed
            });
        }
    }
}
