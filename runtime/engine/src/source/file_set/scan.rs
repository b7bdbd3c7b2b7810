//! The scan: compares the set with the folder, and finds the files of the set under their present names. A scan must
//! never report a loss before two consecutive listings lack the file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ordain_store::checkpoint::FileProgress;
use ordain_util::canonical_path::canonical_path;
use ordain_util::file_pattern::{FilePattern, FileRole};

use super::identity::{find_by_identity, is_denied};
use super::listed_file::ListedFile;
use super::tracked_file::TrackedFile;
use super::{FileSet, ScanResult};

/// The source closes a file that it has read to the end, that is not the newest, and that has not changed for
/// `IDLE_TIMEOUT`. Without wildcards in the path of the source, the file that the path names stays open.
const IDLE_TIMEOUT: Duration = Duration::from_mins(1);
/// Maximum number of listings of the folder in one scan. More than two listings are necessary only if programs rename
/// or truncate files during the scan.
const SCANS_LIMIT: usize = 16;

impl FileSet {
    /// Compares the set with the folder: finds files under their new names, adds new files, and reports the loss of
    /// files that it cannot find. If programs rename or truncate files during each of `SCANS_LIMIT` listings, logs a
    /// warning and returns [`ScanResult::Unsettled`]. The caller must then repeat the scan before it reads.
    pub fn scan(&mut self) -> io::Result<ScanResult> {
        let Some(pattern) = self.pattern.clone() else { return Ok(ScanResult::Complete) };
        self.snapshot = None;
        for tracked in &mut self.files {
            tracked.was_missing = false;
        }
        for _ in 0..SCANS_LIMIT {
            let Some(listed) = self.list(&pattern, |_| true)? else {
                if self.is_listing_outdated {
                    continue;
                }
                return Ok(ScanResult::NotListed);
            };
            self.files.iter_mut().for_each(TrackedFile::record_listing);
            self.find_tracked(&pattern, &listed)?;
            self.add_unknown(&listed)?;
            self.find_compressed(&listed)?;
            self.forget_old_paths();
            if self.is_listing_outdated {
                continue;
            }
            self.is_first_start = false;
            let is_newly_missing = |tracked: &TrackedFile| {
                tracked.is_missing && !tracked.progress.is_lost && !tracked.was_missing
            };
            if !self.files.iter().any(is_newly_missing) {
                let rests = self.match_compressed();
                self.report_missing(rests);
                self.record_known_compressed();
                self.close_idle();
                self.forget_oldest();
                for tracked in &mut self.files {
                    tracked.was_gone = tracked.is_gone();
                }
                return Ok(ScanResult::Complete);
            }
            // A program may have renamed or copied a file after the listing. Only a second listing, which begins after
            // the file was found missing, can show that the file is lost.
            for tracked in &mut self.files {
                tracked.was_missing = tracked.is_missing;
            }
        }
        if self.folder_throttle.allow() {
            tracing::warn!(
                stream = self.stream, folder = %pattern.folder().display(),
                "source waits: programs rename or truncate the files of the folder without a pause; rotate the files \
                 less often"
            );
        }
        Ok(ScanResult::Unsettled)
    }

    pub(super) fn find_tracked(
        &mut self,
        pattern: &FilePattern,
        listed: &[ListedFile],
    ) -> io::Result<()> {
        let mut by_inode = BTreeMap::<u64, Vec<&ListedFile>>::new();
        for found in listed.iter().filter(|found| found.role != FileRole::Compressed) {
            by_inode.entry(found.metadata.ino()).or_default().push(found);
        }
        for index in 0..self.files.len() {
            let tracked = &self.files[index];
            // The path may be a link to a listed file, so that one file has several names.
            let names = by_inode.get(&tracked.progress.inode).into_iter().flatten().copied();
            let names = names.filter(|found| tracked.is(&found.metadata));
            let best = names.max_by_key(|found| {
                (found.metadata.dev() == tracked.progress.device, found.role == FileRole::Live)
            });
            // A program may have truncated a lost file in place. In this case, another tracked file has the inode of
            // the lost file, and owns the listed file.
            let best = best.filter(|_| !tracked.progress.is_lost || !self.is_reused(tracked));
            // If an ignored file returns under a name that the path of the source names, this file is a new file of the
            // source.
            let is_away = tracked.progress.is_ignored && tracked.progress.is_lost;
            let best = best.filter(|found| !is_away || found.role != FileRole::Live);
            self.find(index, pattern, best)?;
        }
        Ok(())
    }

    /// Returns whether another tracked file, which is not lost, has the identity of the file `lost`.
    fn is_reused(&self, lost: &TrackedFile) -> bool {
        let has_identity = |other: &FileProgress| {
            other.inode == lost.progress.inode && other.created_ns == lost.progress.created_ns
        };
        self.files.iter().any(|other| !other.progress.is_lost && has_identity(&other.progress))
    }

    /// Finds a tracked file. `best` is the listed file with the identity of the tracked file; `None` if no listed file
    /// has this identity.
    fn find(
        &mut self,
        index: usize,
        pattern: &FilePattern,
        best: Option<&ListedFile>,
    ) -> io::Result<()> {
        let tracked = &mut self.files[index];
        tracked.is_listed = best.is_some();
        if let Some(found) = best
            && !tracked.is_missing
            && !tracked.progress.is_lost
            && tracked.compared == Some((found.metadata.len(), found.metadata.modified()?))
        {
            tracked.rename(found);
            return Ok(());
        }
        let is_searched = !tracked.progress.is_ignored && !tracked.is_remembered();
        let mut moved_to = None;
        let file = match (best, tracked.file.clone()) {
            // Keep an open file even if it is not listed: it may have been removed or moved, but the source can still
            // read it.
            (_, Some(file)) => Some(file),
            (Some(found), None) => self.open_listed(found)?,
            (None, None) if !is_searched => None,
            (None, None) => self.find_unlisted(index, pattern)?.map(|(path, file)| {
                moved_to = Some(path.display().to_string());
                file
            }),
        };
        let is_full = self.is_full();
        let tracked = &mut self.files[index];
        tracked.is_missing = true;
        tracked.is_cut = false;
        let Some(file) = file else { return Ok(()) };
        let metadata = file.metadata()?;
        if !tracked.has_read_bytes(&file, &metadata)? {
            tracked.file = None;
            return Ok(());
        }
        if tracked.is_cut_in(&file)? {
            tracked.file = None;
            tracked.is_cut = tracked.is_read();
            return Ok(());
        }
        tracked.is_missing = false;
        tracked.was_missing = false;
        tracked.progress.is_live = false;
        if let Some(found) = best {
            tracked.rename(found);
        }
        if let Some(path) = moved_to {
            tracked.name.clone_from(&path);
            tracked.progress.path = path;
        }
        tracked.progress.device = metadata.dev();
        tracked.progress.length = metadata.len();
        tracked.remember_first_bytes(&file)?;
        if tracked.progress.is_lost {
            tracked.compare_again();
        }
        tracked.progress.is_lost = false;
        tracked.loss = None;
        if tracked.file.is_none() && !is_full && (tracked.is_unread() || tracked.progress.is_live) {
            tracked.file = Some(file);
        }
        Ok(())
    }

    /// Searches the folder where the file was last seen. Sets `has_old_path` if two conditions hold. The file is still
    /// at a path that an earlier setting named. The present setting neither names this path nor contains a link.
    fn find_unlisted(
        &mut self,
        index: usize,
        pattern: &FilePattern,
    ) -> io::Result<Option<(PathBuf, Arc<File>)>> {
        let tracked = &mut self.files[index];
        let found = match find_by_identity(&tracked.progress) {
            // The path of the source does not name the file, so this process does not need to read it.
            Err(error) if is_denied(&error) => None,
            found => found?,
        };
        tracked.has_old_path = found.as_ref().is_some_and(|(path, _)| {
            let is_at_its_path = path == Path::new(&tracked.progress.path);
            tracked.progress.is_live
                && is_at_its_path
                && !pattern.names(path)
                && !has_links(pattern)
        });
        Ok(found)
    }

    fn forget_old_paths(&mut self) {
        let stream = &self.stream;
        self.files.retain(|tracked| {
            if tracked.has_old_path {
                tracing::warn!(
                    stream,
                    path = tracked.name,
                    unread_bytes = tracked.progress.unread_bytes(),
                    "file forgotten: the setting `path` of the source was changed and no longer names this file, so \
                     Ordain does not read the file any more"
                );
            }
            !tracked.has_old_path
        });
    }

    /// Closes the files that were read to their end and did not change for [`IDLE_TIMEOUT`], except the newest file and
    /// a file that the path names without wildcards. Also closes the files that the source does not read. A closed file
    /// that is absent from the newest listing of the folder counts as missing from then on.
    fn close_idle(&mut self) {
        let is_glob = self.pattern.as_ref().is_some_and(FilePattern::is_glob);
        let newest = self.files.iter().rposition(TrackedFile::is_read);
        let mut index = 0;
        self.files.retain_mut(|tracked| {
            let is_newest = Some(index) == newest;
            index += 1;
            let is_idle = tracked.compared.is_some_and(|(_, changed_at)| {
                changed_at.elapsed().is_ok_and(|elapsed| elapsed >= IDLE_TIMEOUT)
            });
            let is_done = !tracked.is_unread() && tracked.loss.is_none();
            let may_close = (is_glob || !tracked.progress.is_live) && !is_newest;
            if tracked.file.is_some() && is_done && (may_close && is_idle || !tracked.is_read()) {
                tracked.file = None;
                tracked.is_missing = !tracked.is_listed;
                tracked.progress.is_lost |= tracked.is_missing;
                return tracked.is_listed || tracked.progress.is_begun() && tracked.is_remembered();
            }
            true
        });
    }
}

/// Returns whether the folder or the name of a path contains a link. The path may then lead to another file than
/// before, although the settings have not changed.
fn has_links(pattern: &FilePattern) -> bool {
    let absolute = std::path::absolute(pattern.folder()).ok();
    pattern.target().is_some() || absolute != Some(canonical_path(pattern.folder()))
}
