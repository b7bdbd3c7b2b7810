//! The files of a source: the files that the path of the source names, and the older files to which log rotation gives
//! other names.
//!
//! A file is recognised by its inode and by the bytes that were read, never by its name. After a rotation, the source
//! therefore finds the file again in the folder, and reads it to its end before it reads newer files. A rotation that
//! copies the file and truncates it (`copytruncate`) leaves the unread rest in the copy. The copy begins with the bytes
//! that were read, so the set continues in the copy instead of the truncated file. If an unread rest cannot be found,
//! the set reports a loss: no rest may be skipped silently.
//!
//! The set holds unread files open, up to [`OPEN_FILES_LIMIT`] open files in all, so that the source can still read a
//! file that was removed while the source runs.

mod identity;
mod listed_file;
mod tracked_file;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ordain_core::OrderingMode;
use ordain_store::checkpoint::{
    Checkpoint, FilePosition, FileProgress, ReadFingerprint, SourceProgress, reread_advice,
};
use ordain_util::canonical_path::canonical_path;
use ordain_util::failure_timer::FailureTimer;
use ordain_util::file_pattern::{FilePattern, FileRole};
use ordain_util::log_throttle::LogThrottle;

use identity::{is_copy_of, is_denied, is_gone, is_whole_copy, open_same};
use listed_file::{
    CompressedRest, ListedFile, Positions, compressed_rest, matching_files, open_listed, positions,
    sort_in_reading_order,
};
use tracked_file::{TrackedFile, describe_loss};

pub(super) use identity::head;
pub(crate) use identity::{find_by_identity, is_same_inode};
pub(crate) use listed_file::rotated_files;

/// Number of open files at which the source stops opening files in advance. The source then opens a further file only
/// when it reads this file.
const OPEN_FILES_LIMIT: usize = 128;
/// The source closes a file that has not changed for `IDLE_TIMEOUT`, if the source has read the file to its end and the
/// file is not the newest. Without wildcards in the path of the source, the file that the path names stays open.
const IDLE_TIMEOUT: Duration = Duration::from_mins(1);
/// Maximum number of missing files of each kind that the checkpoint keeps: files with an unread rest, and files that
/// were read to their end. If such a file returns, the source reads only the bytes that it has not read yet.
const LOST_FILES_LIMIT: usize = 16;
/// Maximum number of listings of the folder in one scan. More than two listings are necessary only if programs rename
/// files during the scan.
const SCANS_LIMIT: usize = 16;
/// Minimum time between two warnings that the folder is missing, or that another device is mounted there. Also the
/// minimum time between two warnings about files that this process has no right to read.
const WARN_INTERVAL: Duration = Duration::from_mins(1);

/// The files of a source, in reading order.
#[derive(Debug)]
pub struct FileSet {
    /// The path of the source; `None` for a fixed file, whose folder the set does not search.
    pattern: Option<FilePattern>,
    stream: String,
    ordering: OrderingMode,
    files: Vec<TrackedFile>,
    /// The progress of all files at the time of the first batch of the present pass over the files. The later batches
    /// of the pass share this list. `None` before the first batch of the pass, and after the set has inserted a file.
    snapshot: Option<Arc<[FileProgress]>>,
    /// `true` before the first scan, if the store has no data of the stream. The source ignores the older files that
    /// this first scan finds.
    is_first_start: bool,
    /// The device of each folder of the files.
    folder_devices: BTreeMap<PathBuf, u64>,
    folder_throttle: LogThrottle,
    /// The time since which a folder is missing, or another device is mounted there.
    folder_failures: FailureTimer,
    denied_throttle: LogThrottle,
    /// `true` if, after the last listing, the path of a listed file no longer led to the file.
    is_listing_outdated: bool,
}

impl FileSet {
    /// Creates the set of a stream without a checkpoint. `is_first_start` is `true` if the store has no data of the
    /// stream.
    pub fn new(
        pattern: FilePattern,
        stream: &str,
        ordering: OrderingMode,
        is_first_start: bool,
    ) -> Self {
        Self {
            pattern: Some(pattern),
            stream: stream.to_owned(),
            ordering,
            files: Vec::new(),
            snapshot: None,
            is_first_start,
            folder_devices: BTreeMap::new(),
            folder_throttle: LogThrottle::new(WARN_INTERVAL),
            folder_failures: FailureTimer::default(),
            denied_throttle: LogThrottle::new(WARN_INTERVAL),
            is_listing_outdated: false,
        }
    }

    /// Creates the set of a stream with the files of the checkpoint, at their positions.
    pub fn resume(
        pattern: FilePattern,
        stream: &str,
        ordering: OrderingMode,
        checkpoint: &Checkpoint,
    ) -> Self {
        let entry = |progress: &FileProgress| {
            TrackedFile::new(progress.clone(), progress.path.clone(), None)
        };
        let files = checkpoint.files().iter().map(entry).collect();
        Self { files, ..Self::new(pattern, stream, ordering, false) }
    }

    /// Creates the set of one open file, which the source reads from the position in `progress`. The set does not
    /// search the folder of the file.
    pub fn fixed(
        file: Arc<File>,
        name: &str,
        progress: FileProgress,
        ordering: OrderingMode,
    ) -> Self {
        Self {
            pattern: None,
            stream: String::new(),
            ordering,
            files: vec![TrackedFile::new(progress, name.to_owned(), Some(file))],
            snapshot: None,
            is_first_start: false,
            folder_devices: BTreeMap::new(),
            folder_throttle: LogThrottle::new(WARN_INTERVAL),
            folder_failures: FailureTimer::default(),
            denied_throttle: LogThrottle::new(WARN_INTERVAL),
            is_listing_outdated: false,
        }
    }

    /// Forgets the positions, so that the source reads its files from their beginning. Ignored files stay ignored.
    pub fn rewind(&mut self) {
        for tracked in self.files.iter_mut().filter(|tracked| !tracked.progress.is_ignored) {
            let progress = tracked.progress.clone();
            tracked.progress = progress.at(FilePosition::default(), ReadFingerprint::of_nothing());
            tracked.read_to = 0;
        }
    }

    /// Selects the last file, in reading order, that is not missing and of which a part was read before this start.
    /// Returns how many lines of this file were read. Returns `None` if there is no such file.
    pub fn resumed_line(&self) -> Option<u64> {
        let begun = self.files.iter().rev().find(|tracked| {
            tracked.is_read() && !tracked.is_missing && tracked.progress.is_begun()
        });
        begun.map(|tracked| tracked.progress.position().line)
    }

    /// Returns the progress of all files.
    pub fn progress(&self) -> Vec<FileProgress> {
        self.files.iter().map(|tracked| tracked.progress.clone()).collect()
    }

    /// Returns the progress of the source for a batch of deliveries from the file with this index.
    pub(super) fn source_progress(&mut self, index: usize) -> SourceProgress {
        let files = &self.files;
        let snapshot = self
            .snapshot
            .get_or_insert_with(|| files.iter().map(|tracked| tracked.progress.clone()).collect());
        SourceProgress {
            current: files[index].progress.clone(),
            files: Arc::clone(snapshot),
            index,
        }
    }

    /// Returns whether the set is one fixed file.
    pub(super) fn is_fixed(&self) -> bool {
        self.pattern.is_none()
    }

    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    pub(super) fn file(&mut self, index: usize) -> &mut TrackedFile {
        &mut self.files[index]
    }

    /// Returns whether the path of the source no longer names this file, and the source reads a later file that is not
    /// empty. A program may still complete the last line of such a replaced file, but only for a short time.
    pub(super) fn is_replaced(&self, index: usize) -> bool {
        let has_content = |newer: &TrackedFile| newer.is_read() && newer.progress.length > 0;
        !self.files[index].progress.is_live && self.files[index + 1..].iter().any(has_content)
    }

    /// Sets, for each file, the position up to which the source reads the file in this pass. This method measures a
    /// newer file before an older file. If a program adds a line to the older file and then a line to the newer file,
    /// the source therefore does not read the second line before the first line.
    pub(super) fn measure(&mut self) -> io::Result<()> {
        for tracked in self.files.iter_mut().rev() {
            let Some(file) = &tracked.file else {
                tracked.target = tracked.progress.length;
                continue;
            };
            tracked.target = file.metadata()?.len();
            // If a program has truncated a file before anything of it was read, keep the earlier length: by this
            // length, the next scan detects the truncation, and then searches for the removed bytes.
            if !tracked.is_cut_to(tracked.target) {
                tracked.progress.length = tracked.target;
            }
        }
        Ok(())
    }

    /// Returns the file with this index, and opens it if necessary. Returns `None` if the file is missing, is no longer
    /// at its last known path, or is an older file that this process has no right to read.
    pub(super) fn open(&mut self, index: usize) -> io::Result<Option<Arc<File>>> {
        let tracked = &mut self.files[index];
        if tracked.file.is_none() && !tracked.is_missing {
            match open_same(&tracked.progress) {
                // The next scan cannot compare the file either, and then treats it as missing.
                Err(error) if is_denied(&error) && !tracked.progress.is_live => {
                    tracked.compared = None;
                }
                opened => tracked.file = opened?,
            }
        }
        Ok(tracked.file.clone())
    }

    /// Closes a file that was read to its end, if [`OPEN_FILES_LIMIT`] files are open. Never closes a fixed file.
    pub(super) fn close_surplus(&mut self, index: usize) {
        let tracked = &self.files[index];
        if tracked.file.is_some() && !tracked.is_unread() && !self.is_fixed() && self.is_full() {
            self.files[index].file = None;
        }
    }

    fn is_full(&self) -> bool {
        self.files.iter().filter(|tracked| tracked.file.is_some()).count() >= OPEN_FILES_LIMIT
    }

    /// Compares the set with the folder: finds files under their new names, adds new files, and reports the loss of
    /// files that it cannot find. Returns `false` if programs renamed files during each of `SCANS_LIMIT` listings.
    /// The set may then lack a file that the source must read before a file of the set.
    pub fn scan(&mut self) -> io::Result<bool> {
        let Some(pattern) = self.pattern.clone() else { return Ok(true) };
        self.snapshot = None;
        let mut was_missing = false;
        for _ in 0..SCANS_LIMIT {
            let Some(listed) = self.list(&pattern)? else {
                if self.is_listing_outdated {
                    continue;
                }
                return Ok(true);
            };
            self.find_tracked(&pattern, &listed)?;
            self.add_unknown(&listed)?;
            self.forget_old_paths();
            if self.is_listing_outdated {
                continue;
            }
            self.is_first_start = false;
            let is_missing =
                |tracked: &TrackedFile| tracked.is_missing && !tracked.progress.is_lost;
            if was_missing || !self.files.iter().any(is_missing) {
                self.report_missing(&listed)?;
                self.close_idle();
                self.forget_oldest();
                return Ok(true);
            }
            // A program may have renamed or copied a file after the listing. Only a second listing, which begins after
            // the file was found missing, can show that the file is lost.
            was_missing = true;
        }
        Ok(false)
    }

    /// Adds files that appeared since the last scan. Holds these files open, up to [`OPEN_FILES_LIMIT`] open files in
    /// all, so that the source can read them even if they are removed before the next scan. The indexes of known files
    /// do not change. Leaves two kinds of files to the next scan: a file that may be a copy of a known file, and a file
    /// that the source must read before a known file.
    pub(super) fn discover(&mut self) -> io::Result<()> {
        let Some(pattern) = self.pattern.clone() else { return Ok(()) };
        let Some(listed) = self.list(&pattern)? else { return Ok(()) };
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
            if !self.is_copy(&file, &listed)? && !self.has_read_beginning(&file)? {
                let at = self.files.len();
                self.insert(at, found, file);
            }
        }
        Ok(())
    }

    /// Returns whether the folder has an older file that is neither tracked nor a copy of a tracked file. Such a file may
    /// contain the unread lines of a tracked file that a program has copied and then truncated. Returns `true` also if
    /// programs rename files of the folder during this call. If a program truncates a tracked file during this call,
    /// the result may be wrong.
    pub(super) fn has_unknown_older_file(&mut self) -> io::Result<bool> {
        let Some(pattern) = self.pattern.clone() else { return Ok(false) };
        let Some(listed) = self.list(&pattern)? else { return Ok(self.is_listing_outdated) };
        for found in listed.iter().filter(|found| !found.is_ignored) {
            let is_known = |tracked: &TrackedFile| tracked.is(&found.metadata);
            if !matches!(found.role, FileRole::Rotated { .. }) || self.files.iter().any(is_known) {
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
        Ok(false)
    }

    /// Returns whether `file` begins with all bytes that were read of one of the tracked files.
    fn has_read_beginning(&self, file: &File) -> io::Result<bool> {
        for tracked in self.files.iter().filter(|tracked| tracked.progress.is_begun()) {
            if tracked.progress.print.matches(file)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the files of the folder that match the pattern, in reading order. If the path of the source is a link,
    /// also returns the older files of the file to which the link leads. Returns `None` if a folder is missing, or if
    /// another device is mounted there. Also returns `None`, and sets `is_listing_outdated`, if programs rename the
    /// files of a folder without a pause.
    fn list(&mut self, pattern: &FilePattern) -> io::Result<Option<Vec<ListedFile>>> {
        self.is_listing_outdated = false;
        if !self.is_available(pattern.folder())? {
            return Ok(None);
        }
        let target = pattern.target();
        if let Some(target) = &target
            && !self.is_available(target.folder())?
        {
            return Ok(None);
        }
        if let Some(seconds) = self.folder_failures.recover() {
            tracing::info!(
                stream = self.stream, folder = %pattern.folder().display(), seconds,
                "source continues: the folder is available again"
            );
        }
        let mut listed = Vec::new();
        if !self.list_folder(pattern, self.is_first_start, |_| true, &mut listed)? {
            return Ok(None);
        }
        if let Some(target) = &target {
            // The link may lead to another file than before. The older files of this other file do not belong to the
            // source, so ignore them.
            let is_known = |tracked: &TrackedFile| target.names(Path::new(&tracked.progress.path));
            let is_new = !self.files.is_empty() && !self.files.iter().any(is_known);
            let is_ignored = self.is_first_start || is_new;
            let is_wanted = |role| role != FileRole::Live;
            if !self.list_folder(target, is_ignored, is_wanted, &mut listed)? {
                return Ok(None);
            }
        }
        // A file may have several names, for example if the path is a link to a file with the name of an older file.
        let live = listed.iter().filter(|found| found.role == FileRole::Live);
        let live: BTreeSet<_> = live.map(ListedFile::identity).collect();
        listed.retain(|found| found.role == FileRole::Live || !live.contains(&found.identity()));
        sort_in_reading_order(&mut listed, pattern);
        Ok(Some(listed))
    }

    /// Returns whether a folder exists and is still on the device of the first call. Otherwise logs a warning.
    fn is_available(&mut self, folder: &Path) -> io::Result<bool> {
        let device = match fs::metadata(folder) {
            Ok(metadata) => Some(metadata.dev()),
            Err(error) if is_gone(&error) => None,
            Err(error) => return Err(error),
        };
        let before = self.folder_devices.get(folder).copied();
        if let Some(device) = device.filter(|device| before.is_none_or(|before| before == *device))
        {
            self.folder_devices.insert(folder.to_owned(), device);
            return Ok(true);
        }
        self.folder_failures.record_failure();
        if self.folder_throttle.allow() {
            tracing::warn!(
                stream = self.stream, folder = %folder.display(),
                "source waits: the folder is missing, or another device is mounted there; make the folder available"
            );
        }
        Ok(false)
    }

    /// Adds to `listed` the files of a folder that match the pattern and have a wanted role. `is_ignored` is `true` if
    /// the source ignores all older files of the folder that the set does not track yet. Returns `false` if programs
    /// rename the files of the folder without a pause.
    fn list_folder(
        &mut self,
        pattern: &FilePattern,
        is_ignored: bool,
        is_wanted: impl Fn(FileRole) -> bool,
        listed: &mut Vec<ListedFile>,
    ) -> io::Result<bool> {
        let Some(matching) = matching_files(pattern)? else {
            self.is_listing_outdated = true;
            return Ok(false);
        };
        for (path, role, metadata) in matching {
            if !is_wanted(role) {
                continue;
            }
            let Some(metadata) = self.unless_denied(&path, role, metadata.map(Some))? else {
                continue;
            };
            let is_ignored = is_ignored && role != FileRole::Live;
            listed.push(ListedFile { path, role, metadata, is_ignored });
        }
        Ok(true)
    }

    /// Opens a listed file. Returns `None` if the path no longer leads to the file, or if the file is an older file
    /// that this process has no right to read.
    fn open_listed(&mut self, listed: &ListedFile) -> io::Result<Option<Arc<File>>> {
        let opened = open_listed(listed);
        self.is_listing_outdated |= matches!(opened, Ok(None));
        self.unless_denied(&listed.path, listed.role, opened)
    }

    /// Replaces an error by `None` and logs a warning, if the error shows that this process has no right to read an
    /// older file. The set then treats the file as missing. If this method returned the error, the error would end the
    /// whole run, but the other streams must continue.
    fn unless_denied<T>(
        &mut self,
        path: &Path,
        role: FileRole,
        result: io::Result<Option<T>>,
    ) -> io::Result<Option<T>> {
        match result {
            Err(error) if is_denied(&error) && role != FileRole::Live => {
                if self.denied_throttle.allow() {
                    tracing::warn!(
                        stream = self.stream, path = %path.display(),
                        "older file skipped: {error}; allow the user who runs Ordain to read the file"
                    );
                }
                Ok(None)
            }
            result => result,
        }
    }

    /// Finds the tracked files: among the open files, among the listed files, or under another name in the folder.
    fn find_tracked(&mut self, pattern: &FilePattern, listed: &[ListedFile]) -> io::Result<()> {
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
            // A program may have truncated a lost file in place. Another tracked file then has the inode, and owns the
            // listed file.
            let best = best.filter(|_| !tracked.progress.is_lost || !self.is_reused(tracked));
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
        if tracked.is_cut_to(metadata.len()) {
            tracked.file = None;
            tracked.is_cut = tracked.is_read();
            return Ok(());
        }
        tracked.is_missing = false;
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

    /// Searches for a tracked file that is not listed, in the folder where the file was last seen. Sets `has_old_path`
    /// if the file is still at a path that an earlier setting named, and the present setting neither names this path
    /// nor leads through a link.
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

    /// Removes the files that only an earlier path in the settings named.
    fn forget_old_paths(&mut self) {
        let stream = &self.stream;
        self.files.retain(|tracked| {
            if tracked.has_old_path {
                tracing::warn!(
                    stream,
                    path = tracked.name,
                    unread_bytes = tracked.progress.unread_bytes(),
                    "file forgotten: the path of the source no longer names it; Ordain does not read the file any more"
                );
            }
            !tracked.has_old_path
        });
    }

    /// Adds the listed files that are not tracked. A file that begins with all bytes that were read of a missing file
    /// takes the place of the missing file.
    fn add_unknown(&mut self, listed: &[ListedFile]) -> io::Result<()> {
        let known = |tracked: &TrackedFile| !tracked.is_missing || tracked.is_cut;
        let mut known_inodes: BTreeSet<u64> = self
            .files
            .iter()
            .filter(|tracked| known(tracked))
            .map(|tracked| tracked.progress.inode)
            .collect();
        let positions = positions(listed);
        for (at, found) in listed.iter().enumerate() {
            if found.role == FileRole::Compressed {
                continue;
            }
            let is_known = |tracked: &TrackedFile| known(tracked) && tracked.is(&found.metadata);
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
            if let Some(index) = self.original(&file, is_live)? {
                self.replace(index, found, &file, (at, &positions))?;
            } else if !is_live && !found.is_ignored && self.is_copy(&file, listed)? {
                // A copy of a tracked file has nothing new, unless the program that makes the copy then truncates the
                // tracked file. While the program is still copying, no comparison shows whether it will truncate the
                // file, so leave the copy to a later scan.
                continue;
            } else {
                let index = self.place(at, &positions);
                self.insert(index, found, Arc::clone(&file));
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
        (at, positions): (usize, &Positions),
    ) -> io::Result<()> {
        let is_live = copy.role == FileRole::Live;
        let length = file.metadata()?.len();
        let mut tracked = self.files.remove(index);
        let before = tracked.progress.clone();
        let index = if tracked.is_remembered() { self.place(at, positions) } else { index };
        tracked.continue_in(&copy.path, &copy.metadata, is_live, Arc::clone(file));
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

    /// Returns the index at which to insert a new file that has the position `at` in the listing. This is the index of
    /// the first tracked file that is listed later and of which nothing was read. Without such a tracked file, it is
    /// the end of the set.
    fn place(&self, at: usize, positions: &Positions) -> usize {
        let is_later = |tracked: &TrackedFile| {
            let position = positions.get(&tracked.progress.inode);
            tracked.is_unbegun() && position.is_some_and(|position| *position > at)
        };
        self.files.iter().position(is_later).unwrap_or(self.files.len())
    }

    /// Returns the index of the tracked file of which `copy` is a copy. In most cases, the tracked file is missing, and
    /// `copy` begins with the bytes that were read of the tracked file. If several tracked files match, returns the
    /// file of which most bytes were read. There are three further cases:
    ///
    /// - The path of the source now names `copy`, the tracked file is no longer among the listed files, and `copy`
    ///   begins with the whole content of the tracked file.
    /// - `copy` is an older file that begins with the first bytes that were read, but ends before the last of them: the
    ///   source read further lines after the copy was made, and before a program truncated the original file.
    /// - Nothing of the tracked file was read before a program truncated it, and `copy` is an older file that is at
    ///   least as long as the tracked file was.
    fn original(&self, copy: &File, is_live: bool) -> io::Result<Option<usize>> {
        let length = copy.metadata()?.len();
        let mut best = None::<(usize, (bool, u64))>;
        for (index, tracked) in self.files.iter().enumerate() {
            let FileProgress { print, is_ignored, .. } = &tracked.progress;
            let is_copied = !is_live && tracked.is_cut && length >= tracked.progress.length;
            if *is_ignored || !(tracked.progress.is_begun() || is_copied) {
                continue;
            }
            let is_shorter = length < print.end();
            let is_original = match &tracked.file {
                _ if is_copied => true,
                // If the path names `copy`, then `copy` is a new file that only has the same content as the removed
                // file.
                None if tracked.is_remembered() => !is_live && print.matches(copy)?,
                None if tracked.is_missing && is_shorter => !is_live && print.has_head(copy)?,
                None => {
                    let may_be_left = is_live && !tracked.is_listed && !tracked.is_unread();
                    (tracked.is_missing || may_be_left) && print.matches(copy)?
                }
                Some(file) => is_live && !tracked.is_listed && is_whole_copy(file, copy)?,
            };
            let order = (!is_shorter, print.end());
            if is_original && best.is_none_or(|(_, best_order)| order > best_order) {
                best = Some((index, order));
            }
        }
        Ok(best.map(|(index, _)| index))
    }

    /// Returns whether another file has the same content as `file`, up to the end of the shorter file: a tracked file,
    /// or a file that the path of the source names and that is in the listing. Also returns `true` if `file` is empty:
    /// nothing can be read of it yet, and a later scan compares it again.
    fn is_copy(&self, file: &File, listed: &[ListedFile]) -> io::Result<bool> {
        if file.metadata()?.len() == 0 {
            return Ok(true);
        }
        for tracked in &self.files {
            let other = match &tracked.file {
                Some(other) => Some(Arc::clone(other)),
                None => match open_same(&tracked.progress) {
                    Err(error) if is_denied(&error) => None,
                    opened => opened?,
                },
            };
            if other.map_or(Ok(false), |other| is_copy_of(file, &other))? {
                return Ok(true);
            }
        }
        let is_unknown = |found: &&ListedFile| {
            found.role == FileRole::Live
                && !self.files.iter().any(|tracked| tracked.is(&found.metadata))
        };
        for found in listed.iter().filter(is_unknown) {
            if open_listed(found)?.map_or(Ok(false), |other| is_copy_of(file, &other))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Inserts a file of which nothing was read.
    fn insert(&mut self, index: usize, listed: &ListedFile, file: Arc<File>) {
        let path = canonical_path(&listed.path).display().to_string();
        let mut progress = FileProgress::unread(path, &listed.metadata);
        progress.is_live = listed.role == FileRole::Live;
        let name = listed.path.display().to_string();
        let file = (!self.is_full()).then_some(file);
        let tracked = TrackedFile { is_listed: true, ..TrackedFile::new(progress, name, file) };
        self.files.insert(index, tracked);
        self.snapshot = None;
    }

    /// Handles the files that have become missing. Reports the unread rest of a file as lost. Also reports a loss if
    /// the path of the source named the file, and a compressed file may have more bytes than were read. Marks each
    /// other file that was read to its end as lost, so that the source does not read it again if it returns. Removes
    /// the remaining missing files from the set.
    fn report_missing(&mut self, listed: &[ListedFile]) -> io::Result<()> {
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
            let compressed = compressed_rest(listed, progress.position().offset)?;
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
    fn forget_oldest(&mut self) {
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

    /// Closes the files that were read to their end and did not change for [`IDLE_TIMEOUT`], except the newest file. If
    /// the path of the source has no wildcards, also leaves the file open that the path names. Also closes the files
    /// that the source does not read. If the last listing of the folder does not contain a closed file, the file counts
    /// as missing from then on.
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
