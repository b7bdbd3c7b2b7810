//! The files of a source: the files that the path of the source names, and the older files to which log rotation gives
//! other names.
//!
//! The set recognises a file by its inode and by the bytes that were read, never by its name. After a rotation, the
//! source therefore still finds the file in the folder. It reads this file to its end before it reads newer files. A
//! rotation that copies the file and truncates it (`copytruncate`) leaves the unread rest in the copy. The copy begins
//! with the bytes that were read, so the set continues in the copy instead of the truncated file. If the set cannot
//! find an unread rest, the set reports a loss: the set must never skip a rest silently. The set also reports
//! compressed files whose lines the source has never read.
//!
//! The set holds unread files open, up to [`OPEN_FILES_LIMIT`] open files in all, so that the source can still read a
//! file that was removed while the source runs.

mod comparison;
mod compressed;
mod gzip;
mod identity;
mod listed_file;
mod listing;
mod loss_report;
mod new_files;
mod scan;
#[cfg(test)]
mod tests;
mod tracked_file;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ordain_core::OrderingMode;
use ordain_store::checkpoint::{
    Checkpoint, FilePosition, FileProgress, ReadFingerprint, SourceProgress,
};
use ordain_util::failure_timer::FailureTimer;
use ordain_util::file_pattern::FilePattern;
use ordain_util::log_throttle::LogThrottle;

use compressed::CompressedFiles;
use identity::is_denied;
use tracked_file::TrackedFile;

pub(super) use compressed::CompressedFile;
pub(super) use identity::head;
pub(crate) use identity::{find_by_identity, is_same_inode};
pub(crate) use listed_file::rotated_files;

/// Number of open files at which the source stops opening files in advance. From this number on, the source opens a
/// file only when it reads the file.
const OPEN_FILES_LIMIT: usize = 128;
/// Minimum time between two warnings of the same kind. There are four kinds: the source waits for the folder; this
/// process has no right to read a file; the name of a file is not UTF-8; a program may still be uncompressing a file.
const WARN_INTERVAL: Duration = Duration::from_mins(1);

/// The files of a source, in reading order.
#[derive(Debug)]
pub struct FileSet {
    /// The path of the source; `None` for a fixed file, whose folder the set does not search.
    pattern: Option<FilePattern>,
    stream: String,
    ordering: OrderingMode,
    files: Vec<TrackedFile>,
    /// The progress of all files at the first batch of the present pass, which the later batches share. `None` before
    /// the first batch, and after the set has inserted a file.
    snapshot: Option<Arc<[FileProgress]>>,
    /// `true` before the first scan, if the store has no data of the stream. The source ignores the older files of this
    /// scan.
    is_first_start: bool,
    /// The device of each folder of the files.
    folder_devices: BTreeMap<PathBuf, u64>,
    folder_throttle: LogThrottle,
    /// Runs while a folder is missing, or while another device is mounted there.
    folder_failures: FailureTimer,
    denied_throttle: LogThrottle,
    name_throttle: LogThrottle,
    unfinished_throttle: LogThrottle,
    /// The device and the inode of each file that an earlier listing found while a program was uncompressing it.
    uncompressed: BTreeSet<(u64, u64)>,
    compressed: CompressedFiles,
    /// `true` if the path of a listed file no longer led to the file, or if a tracked file no longer had the bytes that
    /// were read.
    is_listing_outdated: bool,
}

/// The result of a scan of the folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanResult {
    /// The set has all files of the folder, in reading order.
    Complete,
    /// Programs renamed or truncated files during each listing of the folder. The set may lack a file that the source
    /// must read before a file of the set.
    Unsettled,
    /// The folder is missing, or another device is mounted there. The set is as before the scan.
    NotListed,
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
            name_throttle: LogThrottle::new(WARN_INTERVAL),
            unfinished_throttle: LogThrottle::new(WARN_INTERVAL),
            uncompressed: BTreeSet::new(),
            compressed: CompressedFiles::default(),
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
        // If the settings now name another path, the compressed files in the folder of this path do not belong to the
        // files of the checkpoint.
        let target = pattern.target();
        let is_named = |file: &FileProgress| {
            let path = Path::new(&file.path);
            pattern.names(path) || target.as_ref().is_some_and(|target| target.names(path))
        };
        let has_same_path =
            checkpoint.files().is_empty() || checkpoint.files().iter().any(is_named);
        let known = checkpoint.compressed().filter(|_| has_same_path);
        let compressed = CompressedFiles::resume(known);
        Self { files, compressed, ..Self::new(pattern, stream, ordering, false) }
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
            name_throttle: LogThrottle::new(WARN_INTERVAL),
            unfinished_throttle: LogThrottle::new(WARN_INTERVAL),
            uncompressed: BTreeSet::new(),
            compressed: CompressedFiles::default(),
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

    /// Selects a file that is not missing and that earlier runs have read at least in part. If there are several such
    /// files, selects the final one in reading order. Returns the number of lines of this file that the earlier runs
    /// have read. Returns `None` if no such file exists.
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

    /// Returns the progress of the source for a batch from the file with this index.
    pub(super) fn source_progress(&mut self, index: usize) -> SourceProgress {
        let files = &self.files;
        let snapshot = self
            .snapshot
            .get_or_insert_with(|| files.iter().map(|tracked| tracked.progress.clone()).collect());
        SourceProgress {
            current: files[index].progress.clone(),
            files: Arc::clone(snapshot),
            index,
            compressed: self.compressed.known().cloned(),
        }
    }

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

    /// Sets the target of each file in this pass. A newer file is measured before an older file, because a program may
    /// add a line to the older file and then a line to the newer file. With this order, the source does not read the
    /// second line before the first line.
    pub(super) fn measure(&mut self) -> io::Result<()> {
        for tracked in self.files.iter_mut().rev() {
            let Some(file) = &tracked.file else {
                tracked.target = tracked.progress.length;
                continue;
            };
            let file = Arc::clone(file);
            let metadata = file.metadata()?;
            tracked.target = metadata.len();
            // If a program has truncated a file before the source has read any of it, keep the earlier length. By this
            // length and the first bytes, the next scan detects the truncation, and then searches for the removed
            // bytes.
            if tracked.compared == Some((metadata.len(), metadata.modified()?)) {
                tracked.progress.length = tracked.target;
            } else if !tracked.is_cut_in(&file)? {
                tracked.progress.length = tracked.target;
                tracked.remember_first_bytes(&file)?;
            }
        }
        Ok(())
    }

    /// Returns the open file, and opens it if necessary. Returns `None` if the file is missing, is no longer at its
    /// last known path, or is an older file that this process has no right to read.
    pub(super) fn open(&mut self, index: usize) -> io::Result<Option<Arc<File>>> {
        let tracked = &mut self.files[index];
        if tracked.file.is_none() && !tracked.is_missing {
            match tracked.open_at_its_path() {
                // The next scan cannot compare the file, and therefore treats the file as missing.
                Err(error) if is_denied(&error) && !tracked.progress.is_live => {
                    tracked.compared = None;
                }
                opened => tracked.file = opened?,
            }
        }
        Ok(tracked.file.clone())
    }

    /// Closes a file that was read to its end, if [`OPEN_FILES_LIMIT`] files are open, but never a fixed file.
    pub(super) fn close_surplus(&mut self, index: usize) {
        let tracked = &self.files[index];
        if tracked.file.is_some() && !tracked.is_unread() && !self.is_fixed() && self.is_full() {
            self.files[index].file = None;
        }
    }

    fn is_full(&self) -> bool {
        self.files.iter().filter(|tracked| tracked.file.is_some()).count() >= OPEN_FILES_LIMIT
    }
}
