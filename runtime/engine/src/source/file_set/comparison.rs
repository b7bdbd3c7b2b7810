//! The comparison of a new file with the files of the set. The comparison must find each copy of a file of the set, so
//! that the source reads no line twice.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;

use ordain_store::checkpoint::FileProgress;
use ordain_util::file_pattern::FileRole;

use super::FileSet;
use super::identity::{head, if_permitted, is_copy_of, is_whole_copy};
use super::listed_file::{ListedFile, open_listed};
use super::tracked_file::TrackedFile;

/// Number of first bytes of two files that the set compares before any other comparison of these files. The set may
/// have thousands of files, and compares each new file with all of them. This first comparison is fast, and excludes
/// most files.
pub(super) const COMPARED_BYTES: usize = 1 << 10;

impl FileSet {
    /// Returns whether a tracked file exists whose read bytes are the beginning of `file`.
    pub(super) fn has_read_beginning(&self, file: &File) -> io::Result<bool> {
        let head = head(file)?;
        for tracked in self.files.iter().filter(|tracked| tracked.progress.is_begun()) {
            if tracked.progress.print.begins(&head) && tracked.progress.print.matches(file)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the index of the tracked file of which `copy` is a copy. In most cases, the tracked file is missing, and
    /// `copy` begins with the bytes that were read of the tracked file. If several tracked files match, returns the
    /// file of which most bytes were read. The method also returns a tracked file in five other cases:
    ///
    /// - The path of the source now names `copy`, the tracked file is no longer among the listed files, and `copy`
    ///   begins with the whole content of the tracked file.
    /// - `copy` is an older file that begins with the first bytes that were read, but ends before the position up to
    ///   which the tracked file was read. In this case, the source read more lines after the copy was made, and before
    ///   a program truncated or removed the original file.
    /// - A program truncated the tracked file before the source had read any of it. `copy` is an older file that is at
    ///   least as long as the tracked file was. If the first bytes of the tracked file are known, `copy` begins with
    ///   these bytes.
    /// - A program compressed the tracked file, and `copy` is the uncompressed file under a name that the path of the
    ///   source names.
    /// - The source ignores the tracked file, and `copy` is an older file that begins with the whole content of the
    ///   tracked file. `copy` may also be shorter, because a program may still be writing it. The method prefers a
    ///   tracked file that the source reads.
    ///
    /// `found` is the entry of `copy` in the listing.
    pub(super) fn original(
        &self,
        copy: &File,
        found: &ListedFile,
        listed: &[ListedFile],
    ) -> io::Result<Option<usize>> {
        let is_live = found.role == FileRole::Live;
        let length = copy.metadata()?.len();
        let head = head(copy)?;
        let mut best = None::<(usize, (bool, bool, u64))>;
        for (index, tracked) in self.files.iter().enumerate() {
            let FileProgress { print, is_ignored, .. } = &tracked.progress;
            if *is_ignored && (is_live || !tracked.is_missing) {
                continue;
            }
            let is_copied = !is_live
                && tracked.is_cut
                && length >= tracked.progress.length
                && tracked.progress.first_bytes.matches(copy)?;
            let is_begun = tracked.progress.is_begun() && print.begins(&head);
            if !(is_begun || is_copied) {
                continue;
            }
            let is_shorter = length < print.end();
            let is_original = match &tracked.file {
                _ if is_copied => true,
                // If the path names `copy`, then `copy` is a new file that has the same content as the removed file
                // only by chance. The exception is a removed file that a program has compressed and later uncompressed.
                None if tracked.is_missing && is_shorter => !is_live && print.has_head(copy)?,
                None if tracked.is_remembered() => {
                    let may_be_copy = !is_live
                        || tracked.progress.is_compressed && self.is_uncompressed(found, listed);
                    may_be_copy && print.matches(copy)?
                }
                None => {
                    let may_be_left = is_live && !tracked.is_listed && !tracked.is_unread();
                    (tracked.is_missing || may_be_left) && print.matches(copy)?
                }
                // A program may have truncated the tracked file after this scan found it, so also compare `copy` with
                // the bytes that were read.
                Some(file) => {
                    is_live
                        && !tracked.is_listed
                        && is_whole_copy(file, copy)?
                        && print.matches(copy)?
                }
            };
            let order = (!is_ignored, !is_shorter, print.end());
            if is_original && best.is_none_or(|(_, best_order)| order > best_order) {
                best = Some((index, order));
            }
        }
        Ok(best.map(|(index, _)| index))
    }

    /// Returns whether another file has the same content as `file`, up to the end of the shorter file. The other file
    /// is a tracked file, or a file in the listing that the path of the source names. Also returns `true` if `file` is
    /// empty: the file has nothing to read yet, and a later scan repeats the comparison. A program may have truncated a
    /// tracked file after the scan found the tracked file. `file` may then be a copy of the tracked file, but a
    /// comparison with the truncated file cannot show this. In this case, the method sets `is_listing_outdated` and
    /// returns `true`, so that the caller begins a new scan.
    pub(super) fn is_copy(&mut self, file: &File, listed: &[ListedFile]) -> io::Result<bool> {
        let length = file.metadata()?.len();
        if length == 0 {
            return Ok(true);
        }
        let start = start_of(file)?;
        for tracked in &mut self.files {
            // The start of the tracked file was read after the scan found the file, so a later truncation of the
            // tracked file does not matter.
            if tracked.start.as_ref().is_some_and(|other| !has_common_start(other, &start)) {
                continue;
            }
            let other = match &tracked.file {
                Some(other) => Some(Arc::clone(other)),
                None if tracked.progress.is_ignored && tracked.progress.is_lost => None,
                None => if_permitted(tracked.open_at_its_path())?,
            };
            let Some(other) = other else { continue };
            let other_start = start_of(&other)?;
            if is_copy_of(file, &other)? {
                return Ok(true);
            }
            // This check follows the comparison, so it also detects a truncation during the comparison.
            if !tracked.is_missing && tracked.has_changed(&other)? {
                tracked.compare_again();
                self.is_listing_outdated = true;
                return Ok(true);
            }
            // The source reads the content of a missing file from a copy, so the file that is still at its path may
            // change at any time.
            tracked.start = (!tracked.is_missing).then_some(other_start);
        }
        let inodes: BTreeSet<u64> =
            self.files.iter().map(|tracked| tracked.progress.inode).collect();
        let is_unknown = |found: &&ListedFile| {
            let is_tracked = |tracked: &TrackedFile| tracked.is(&found.metadata);
            found.role == FileRole::Live
                && !(inodes.contains(&found.metadata.ino()) && self.files.iter().any(is_tracked))
        };
        for found in listed.iter().filter(is_unknown) {
            let other = if_permitted(open_listed(found))?;
            if other.map_or(Ok(false), |other| is_copy_of(file, &other))? {
                return Ok(true);
            }
        }
        // A program may have replaced the content of `file` during the comparisons in memory.
        Ok(file.metadata()?.len() < length || !start_of(file)?.starts_with(&start))
    }
}

/// Returns the first bytes of a file, at most [`COMPARED_BYTES`].
fn start_of(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = head(file)?;
    bytes.truncate(COMPARED_BYTES);
    bytes.shrink_to_fit();
    Ok(bytes)
}

fn has_common_start(one: &[u8], two: &[u8]) -> bool {
    let length = one.len().min(two.len());
    one[..length] == two[..length]
}
