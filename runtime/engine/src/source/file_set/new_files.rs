//! Adds new files to the set. A new file must never precede an older file whose lines the source has not read.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;

use ordain_store::checkpoint::FileProgress;
use ordain_util::canonical_path::canonical_path;
use ordain_util::file_pattern::FileRole;

use super::FileSet;
use super::identity::{if_permitted, is_denied};
use super::listed_file::{FilePositions, ListedFile, is_rotated, open_listed, positions};
use super::tracked_file::TrackedFile;

impl FileSet {
    /// Adds files that appeared since the newest scan. Holds these files open, up to
    /// [`OPEN_FILES_LIMIT`](super::OPEN_FILES_LIMIT) open files in all, so that the source can read them even if they
    /// are removed before the next scan. The indexes of known files do not change. Leaves two kinds of files to the
    /// next scan: possible copies of known files, and files that the source must read before a known file.
    pub(in crate::source) fn discover(&mut self) -> io::Result<()> {
        let Some(pattern) = self.pattern.clone() else { return Ok(()) };
        let Some(listed) = self.list(&pattern, |_| true)? else { return Ok(()) };
        let positions = positions(&listed);
        for (at, found) in listed.iter().enumerate() {
            let is_known = |tracked: &TrackedFile| tracked.is(&found.metadata);
            if found.role == FileRole::Compressed
                || found.is_ignored
                || self.files.iter().any(is_known)
                || self.place(at, &positions) < self.files.len()
            {
                continue;
            }
            let Some(file) = self.open_listed(found)? else {
                if self.is_listing_outdated {
                    break;
                }
                continue;
            };
            if !self.is_copy(&file, &listed)?
                && !self.has_read_beginning(&file)?
                && self.original(&file, found, &listed)?.is_none()
            {
                let at = self.files.len();
                self.insert(at, found, file)?;
            }
            if self.is_listing_outdated {
                break;
            }
        }
        Ok(())
    }

    /// Returns whether the folder has an older file that is neither tracked nor a copy of a tracked file. If a program
    /// has overwritten the bytes that were read of a tracked file, this tracked file counts as not tracked. An older
    /// file that is not tracked may contain the unread lines of a tracked file that a program has copied and then
    /// truncated. Also returns `true` if the folder is missing, or if programs rename or truncate files of the folder
    /// during this call. In these two cases, the caller must wait for a complete scan. If a program truncates the file
    /// that the caller reads, the result may be wrong.
    pub(in crate::source) fn has_unknown_older_file(&mut self) -> io::Result<bool> {
        let Some(pattern) = self.pattern.clone() else { return Ok(false) };
        let Some(listed) = self.list(&pattern, |role| role != FileRole::Live)? else {
            return Ok(true);
        };
        for found in listed.iter().filter(|found| is_rotated(found.role) && !found.is_ignored) {
            if self.is_known(found)? {
                continue;
            }
            match open_listed(found) {
                Err(error) if is_denied(&error) => {}
                opened => match opened? {
                    Some(file) if self.is_copy(&file, &listed)? => {}
                    _ => return Ok(true),
                },
            }
        }
        if !self.is_listing_outdated {
            self.files.iter_mut().for_each(TrackedFile::record_listing);
        }
        Ok(self.is_listing_outdated)
    }

    fn is_known(&self, found: &ListedFile) -> io::Result<bool> {
        let state = (found.metadata.len(), found.metadata.modified()?);
        let is_same = |tracked: &&TrackedFile| tracked.is_present() && tracked.is(&found.metadata);
        for tracked in self.files.iter().filter(is_same) {
            if tracked.compared == Some(state) {
                return Ok(true);
            }
            let file = match &tracked.file {
                Some(file) => Some(Arc::clone(file)),
                None => if_permitted(open_listed(found))?,
            };
            if file.map_or(Ok(false), |file| tracked.progress.print.matches(&file))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Adds the listed files that are not tracked. If a listed file begins with all bytes that were read of a missing
    /// file, the listed file takes the place of the missing file.
    pub(super) fn add_unknown(&mut self, listed: &[ListedFile]) -> io::Result<()> {
        let mut known_inodes: BTreeSet<u64> = self
            .files
            .iter()
            .filter(|tracked| tracked.is_present())
            .map(|tracked| tracked.progress.inode)
            .collect();
        let positions = positions(listed);
        for (at, found) in listed.iter().enumerate() {
            if found.role == FileRole::Compressed {
                continue;
            }
            let is_known =
                |tracked: &TrackedFile| tracked.is_present() && tracked.is(&found.metadata);
            if known_inodes.contains(&found.metadata.ino()) && self.files.iter().any(is_known) {
                continue;
            }
            let is_live = found.role == FileRole::Live;
            let Some(file) = self.open_listed(found)? else {
                // A later file must not precede a file that a program has renamed since the listing.
                if self.is_listing_outdated {
                    break;
                }
                continue;
            };
            if let Some(index) = self.original(&file, found, listed)? {
                self.replace(index, found, &file, (at, &positions))?;
            } else if !is_live && !found.is_ignored && self.is_copy(&file, listed)? {
                // A copy of a tracked file contains nothing new, unless the copying program truncates the tracked file
                // afterwards. While the program is still copying, no comparison shows whether the program will truncate
                // the tracked file, so leave the copy to a later scan.
                if self.is_listing_outdated {
                    break;
                }
                continue;
            } else {
                let index = self.place(at, &positions);
                self.insert(index, found, Arc::clone(&file))?;
                if found.is_ignored {
                    self.files[index].ignore(&file)?;
                }
            }
            known_inodes.insert(found.metadata.ino());
        }
        Ok(())
    }

    /// Continues a tracked file in its copy: the entry gets the path and the identity of the copy. `at` is the position
    /// of the copy in the listing, and `positions` contains the positions of all listed files.
    fn replace(
        &mut self,
        index: usize,
        copy: &ListedFile,
        file: &Arc<File>,
        (at, positions): (usize, &FilePositions),
    ) -> io::Result<()> {
        let is_live = copy.role == FileRole::Live;
        let length = file.metadata()?.len();
        let mut tracked = self.files.remove(index);
        let before = tracked.progress.clone();
        let index = if tracked.is_remembered() { self.place(at, positions) } else { index };
        tracked.continue_in(&copy.path, &copy.metadata, is_live, Arc::clone(file));
        if tracked.progress.is_ignored {
            tracked.ignore(file)?;
            self.files.insert(index, tracked);
            return Ok(());
        }
        let is_shorter = length < before.print.end();
        if is_shorter {
            tracked.end_at(file, length)?;
        }
        self.files.insert(index, tracked);
        let mut position = before.position();
        position.offset = position.offset.max(length);
        if is_shorter && position.offset < before.length && !before.is_lost {
            // The copy has only a part of the unread rest. Track the other part as a missing file: if no listed file
            // has it, the set reports it as lost.
            let print = before.print;
            let rest =
                TrackedFile::new(before.at(position, print), copy.path.display().to_string(), None);
            self.files.push(TrackedFile { is_missing: true, ..rest });
        }
        Ok(())
    }

    /// Returns the index at which the set inserts a new file. This is the index of the first tracked file that is later
    /// in the listing and of which no line was read. Without such a file, it is the end of the set. `at` is the
    /// position of the new file in the listing.
    fn place(&self, at: usize, positions: &FilePositions) -> usize {
        let is_later = |tracked: &TrackedFile| {
            let position = positions.get(&tracked.progress.inode);
            tracked.is_unbegun() && position.is_some_and(|position| *position > at)
        };
        self.files.iter().position(is_later).unwrap_or(self.files.len())
    }

    fn insert(&mut self, index: usize, listed: &ListedFile, file: Arc<File>) -> io::Result<()> {
        let path = canonical_path(&listed.path).display().to_string();
        // A program may have truncated the file since the listing. With the length in the listing, the next scan would
        // treat the file as truncated, although the set already has the copy of the earlier content.
        let mut progress = FileProgress::unread(path, &file.metadata()?);
        progress.is_live = listed.role == FileRole::Live;
        let name = listed.path.display().to_string();
        let mut tracked = TrackedFile { is_listed: true, ..TrackedFile::new(progress, name, None) };
        tracked.remember_first_bytes(&file)?;
        tracked.file = (!self.is_full()).then_some(file);
        self.files.insert(index, tracked);
        self.snapshot = None;
        Ok(())
    }
}
