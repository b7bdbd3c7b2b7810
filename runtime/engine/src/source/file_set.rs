//! The files of a source: the files that the path of the source names, and the older files to which log rotation gives
//! other names.
//!
//! A file is recognised by its inode and by the bytes that were read, never by its name. After a rotation, the source
//! therefore finds the file again in the folder, and reads it to its end before it reads newer files. A rotation that
//! copies the file and truncates it (`copytruncate`) leaves the unread rest in the copy; the copy begins with the bytes
//! that were read, and takes the place of the truncated file. If an unread rest cannot be found, the set reports a
//! loss: no rest may be skipped silently.
//!
//! The set holds unread files open, so that a file that is removed while the source runs can still be read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{DirEntryExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ordain_cloudevents::is_blank_byte;
use ordain_core::OrderingMode;
use ordain_store::checkpoint::{
    Checkpoint, FilePosition, FileProgress, ReadFingerprint, SourceProgress, created_ns,
    reread_advice,
};
use ordain_util::canonical_path::canonical_path;
use ordain_util::file_pattern::{FilePattern, FileRole};
use ordain_util::log_throttle::LogThrottle;
use ordain_util::tail_fingerprint::{TAIL_LIMIT_BYTES, TailFingerprint};

/// Number of open files from which on the source opens no further file in advance. The source then opens each further
/// file only when it reads the file.
const OPEN_FILES_LIMIT: usize = 128;
/// Time without a new line after which the source closes an older file that it has read to its end.
const IDLE_TIMEOUT: Duration = Duration::from_mins(1);
/// Maximum number of missing files with an unread rest that the checkpoint remembers, and of missing files that were
/// read to their end. If such a file returns, the source reads only its unread rest.
const LOST_FILES_LIMIT: usize = 16;
/// Minimum time between two warnings that the folder is missing, or that another device is mounted there. Also the
/// minimum time between two warnings about files that this process may not read.
const WARN_INTERVAL: Duration = Duration::from_mins(1);

/// A file of the source, with the position that the source has reached in it.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "the flags are independent of each other")]
pub(super) struct TrackedFile {
    pub(super) progress: FileProgress,
    /// The open file. `None` if the file is missing or ignored, if the source has not opened it yet, or if the source
    /// has closed it because it was read to its end.
    pub(super) file: Option<Arc<File>>,
    /// The path for messages, in the spelling of the configuration.
    pub(super) name: String,
    /// The position up to which the source has read, including an incomplete last line.
    pub(super) read_to: u64,
    /// The position up to which the source reads before it continues with the next file.
    pub(super) target: u64,
    /// The end of the incomplete last line, and the time when the source first found this end.
    pub(super) rest_seen: Option<(u64, Instant)>,
    /// The description of the unread rest, if the file is lost and the loss is not reported yet.
    pub(super) loss: Option<String>,
    /// The length and the modification time of the file when a comparison last showed that the file matches its
    /// fingerprint.
    compared: Option<(u64, SystemTime)>,
    /// `true` if the last scan found no file with this identity and content, neither among the open files nor in the
    /// folder.
    is_missing: bool,
    /// `true` if a program truncated the file in place before the source had read anything of it. The unread bytes are
    /// then in a copy of the file, or lost.
    is_cut: bool,
    /// `true` if the path in the settings named the file in the last run, and names it no longer.
    has_old_path: bool,
    /// `true` if the last listing of the folder had this file.
    is_listed: bool,
}

/// The files of a source, in reading order.
#[derive(Debug)]
pub struct FileSet {
    /// `None` for a fixed file, whose folder is not searched.
    pattern: Option<FilePattern>,
    stream: String,
    ordering: OrderingMode,
    files: Vec<TrackedFile>,
    /// The progress of all files at a recent time. The batches of one pass over the files share it. `None` if the files
    /// have changed since then.
    snapshot: Option<Arc<[FileProgress]>>,
    /// `true` until the first scan of a stream of which the store has no data. The source does not read the older files
    /// that this scan finds.
    is_first_start: bool,
    /// The device of each folder of the files.
    folder_devices: BTreeMap<PathBuf, u64>,
    folder_throttle: LogThrottle,
    denied_throttle: LogThrottle,
}

/// A file of the source in the last listing of the folder.
struct ListedFile {
    path: PathBuf,
    role: FileRole,
    metadata: Metadata,
    /// `true` if the file is an older file that existed before the stream first read files of this name. If the file is
    /// unknown, the source does not read it.
    is_ignored: bool,
}

impl TrackedFile {
    fn new(progress: FileProgress, name: String, file: Option<Arc<File>>) -> Self {
        Self {
            read_to: progress.position().offset,
            progress,
            file,
            name,
            target: 0,
            rest_seen: None,
            loss: None,
            compared: None,
            is_missing: false,
            is_cut: false,
            has_old_path: false,
            is_listed: false,
        }
    }

    /// Returns whether the source reads the file: the file is neither ignored nor lost.
    pub(super) fn is_read(&self) -> bool {
        !self.progress.is_ignored && !self.progress.is_lost
    }

    /// Returns whether a file with this metadata has the identity of the tracked file. A device may have another number
    /// after a restart of the machine, so this method compares the device only if the tracked file is open.
    fn is(&self, metadata: &Metadata) -> bool {
        is_same_inode(&self.progress, metadata)
            && (self.progress.device == metadata.dev() || self.file.is_none())
    }

    /// Gives the entry another file, which has the content that was read.
    fn continue_in(&mut self, path: &Path, metadata: &Metadata, is_live: bool, file: Arc<File>) {
        let progress = &mut self.progress;
        progress.path = canonical_path(path).display().to_string();
        progress.device = metadata.dev();
        progress.inode = metadata.ino();
        progress.created_ns = created_ns(metadata);
        progress.length = metadata.len();
        progress.is_live = is_live;
        progress.is_lost = false;
        self.name = path.display().to_string();
        self.file = Some(file);
        self.read_to = self.progress.position().offset;
        self.rest_seen = None;
        self.loss = None;
        self.compared = None;
        self.is_missing = false;
        self.is_cut = false;
        self.has_old_path = false;
        self.is_listed = true;
    }

    /// Sets the position to the end of a copy that has less than the bytes that were read.
    fn end_at(&mut self, copy: &File, length: u64) -> io::Result<()> {
        let position = self.progress.position();
        let offset = position.offset.min(length);
        let print = fingerprint(copy, offset)?;
        self.progress = self.progress.clone().at(FilePosition { offset, ..position }, print);
        self.read_to = offset;
        Ok(())
    }

    /// Makes the next scan compare the file with its fingerprint, and makes the source read the incomplete last line
    /// again.
    pub(super) fn compare_again(&mut self) {
        self.read_to = self.progress.position().offset;
        self.rest_seen = None;
        self.compared = None;
    }

    /// Gives the entry the present name of its file.
    fn rename(&mut self, listed: &ListedFile) {
        let name = listed.path.display().to_string();
        if self.name != name {
            self.progress.path = canonical_path(&listed.path).display().to_string();
            self.name = name;
        }
        self.progress.is_live = listed.role == FileRole::Live;
    }

    /// Records that the stream gets a dead letter about the unread rest. If the file was truncated in place, the source
    /// continues with the beginning of the file.
    pub(super) fn record_loss(&mut self) {
        if self.is_cut {
            self.progress.length = 0;
            self.compare_again();
            self.is_missing = false;
            self.is_cut = false;
        } else {
            self.progress.is_lost = true;
        }
    }

    /// Returns whether the file is known to have had complete unread bytes, nothing of the file was read, and the
    /// length of the file shows that these bytes were removed.
    fn is_cut_to(&self, length: u64) -> bool {
        let known = self.progress.length;
        !self.progress.is_begun() && self.read_to < known && length < known
    }

    /// Returns whether the source reads the file and has read nothing of it.
    fn is_unbegun(&self) -> bool {
        self.is_read() && !self.progress.is_begun()
    }

    /// Returns whether the file is missing, and the source had read it to its end.
    fn is_remembered(&self) -> bool {
        self.progress.is_lost && self.progress.unread_bytes() == 0
    }

    /// Returns whether the source has already tried to read the incomplete last line up to this end.
    pub(super) fn has_tried(&self, end: u64) -> bool {
        self.rest_seen.is_some_and(|(seen, _)| seen == end)
    }

    /// Returns whether the file has unread bytes. An incomplete last line counts as unread.
    fn is_unread(&self) -> bool {
        self.is_read() && self.progress.unread_bytes() > 0
    }

    /// Returns whether the file still has the bytes that were read. Compares the file with the fingerprint only if the
    /// file has changed since the last comparison.
    fn has_read_bytes(&mut self, file: &File, metadata: &Metadata) -> io::Result<bool> {
        let state = (metadata.len(), metadata.modified()?);
        if self.compared == Some(state) {
            return Ok(true);
        }
        let has_read_bytes = self.progress.print.matches(file)?;
        self.compared = has_read_bytes.then_some(state);
        Ok(has_read_bytes)
    }
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
            denied_throttle: LogThrottle::new(WARN_INTERVAL),
        }
    }

    /// Creates the set of a stream with the files of the last run.
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

    /// Creates the set of one open file, which is read from its position. The folder of the file is not searched.
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
            denied_throttle: LogThrottle::new(WARN_INTERVAL),
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

    /// Returns the number of lines that earlier runs have read of the file in which they stopped: the newest file of
    /// which they have read a part. Returns `None` if there is no such file.
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

    /// Returns whether the source reads another file with content after this file, and the path of the source no longer
    /// names this file. After a short time, no program completes the last line of such a file any more.
    pub(super) fn is_replaced(&self, index: usize) -> bool {
        let has_content = |newer: &TrackedFile| newer.is_read() && newer.progress.length > 0;
        !self.files[index].progress.is_live && self.files[index + 1..].iter().any(has_content)
    }

    /// Sets the position up to which the source reads each file. This method measures a newer file before an older
    /// file. If a program adds a line to the older file and then a line to the newer file, the source therefore does
    /// not read the second line before the first line.
    pub(super) fn measure(&mut self) -> io::Result<()> {
        for tracked in self.files.iter_mut().rev() {
            let Some(file) = &tracked.file else {
                tracked.target = tracked.progress.length;
                continue;
            };
            tracked.target = file.metadata()?.len();
            // The next scan searches for the bytes that were removed, and compares the file with its earlier length.
            if !tracked.is_cut_to(tracked.target) {
                tracked.progress.length = tracked.target;
            }
        }
        Ok(())
    }

    /// Returns the file with this index, and opens it if necessary. Returns `None` if the file is missing, or is no
    /// longer at its last known path.
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

    /// Closes a file that was read to its end, if too many files are open.
    pub(super) fn close_surplus(&mut self, index: usize) {
        let tracked = &self.files[index];
        if tracked.file.is_some() && !tracked.is_unread() && !self.is_fixed() && self.is_full() {
            self.files[index].file = None;
        }
    }

    fn is_full(&self) -> bool {
        self.files.iter().filter(|tracked| tracked.file.is_some()).count() >= OPEN_FILES_LIMIT
    }

    /// Compares the set with the folder: finds files under their new names, adds new files, and reports files that
    /// are lost.
    pub fn scan(&mut self) -> io::Result<()> {
        let Some(pattern) = self.pattern.clone() else { return Ok(()) };
        self.snapshot = None;
        // A file may have been renamed or copied during the first listing. Only a second listing, which begins after
        // the file was found missing, can show that the file is lost.
        for is_last in [false, true] {
            let Some(listed) = self.list(&pattern)? else { return Ok(()) };
            self.find_tracked(&pattern, &listed)?;
            self.add_unknown(&listed)?;
            self.forget_old_paths();
            self.is_first_start = false;
            if !self.files.iter().any(|tracked| tracked.is_missing && !tracked.progress.is_lost) {
                break;
            }
            if is_last {
                self.report_missing(&listed)?;
            }
        }
        self.close_idle();
        self.forget_oldest();
        Ok(())
    }

    /// Adds files that appeared since the last scan. Holds these files open, up to [`OPEN_FILES_LIMIT`] open files in
    /// all, so that the source can read them even if they are removed before the next scan. The indexes of known files
    /// do not change. Leaves a file that may take the place of a known file, or that precedes a known file, to the next
    /// scan.
    pub(super) fn discover(&mut self) -> io::Result<()> {
        let Some(pattern) = self.pattern.clone() else { return Ok(()) };
        let Some(listed) = self.list(&pattern)? else { return Ok(()) };
        for (at, found) in listed.iter().enumerate() {
            let is_known = |tracked: &TrackedFile| tracked.is(&found.metadata);
            let is_last = self.place(&listed[at + 1..]) == self.files.len();
            if found.role == FileRole::Compressed
                || found.is_ignored
                || self.files.iter().any(is_known)
                || !is_last
            {
                continue;
            }
            let Some(file) = self.open_listed(found)? else { continue };
            if !self.is_copy(&file)? && !self.has_read_beginning(&file)? {
                let at = self.files.len();
                self.insert(at, found, file);
            }
        }
        Ok(())
    }

    /// Returns whether `file` begins with all bytes that were read of a tracked file.
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
    /// another device is mounted there.
    fn list(&mut self, pattern: &FilePattern) -> io::Result<Option<Vec<ListedFile>>> {
        if !self.is_available(pattern.folder())? {
            return Ok(None);
        }
        let target = pattern.target();
        if let Some(target) = &target
            && !self.is_available(target.folder())?
        {
            return Ok(None);
        }
        let mut listed = Vec::new();
        self.list_folder(pattern, self.is_first_start, |_| true, &mut listed)?;
        if let Some(target) = &target {
            // The link may lead to another file than before. The older files of this other file are no older files of
            // the source.
            let is_known = |tracked: &TrackedFile| target.names(Path::new(&tracked.progress.path));
            let is_new = !self.files.is_empty() && !self.files.iter().any(is_known);
            let is_ignored = self.is_first_start || is_new;
            self.list_folder(target, is_ignored, |role| role != FileRole::Live, &mut listed)?;
        }
        // A file may have several names, for example if the path is a link to a file with the name of an older file.
        let live = listed.iter().filter(|found| found.role == FileRole::Live);
        let live: BTreeSet<_> = live.map(ListedFile::identity).collect();
        listed.retain(|found| found.role == FileRole::Live || !live.contains(&found.identity()));
        sort_in_reading_order(&mut listed, pattern);
        Ok(Some(listed))
    }

    /// Returns whether a folder exists and still is on the same device.
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
        if self.folder_throttle.allow() {
            tracing::warn!(
                stream = self.stream, folder = %folder.display(),
                "source waits: the folder is missing, or another device is mounted there; make the folder available"
            );
        }
        Ok(false)
    }

    /// Adds the files of a folder that match the pattern and have a wanted role to `listed`. `is_ignored` is `true` if
    /// the source does not read the older files of the folder that are unknown.
    fn list_folder(
        &mut self,
        pattern: &FilePattern,
        is_ignored: bool,
        is_wanted: impl Fn(FileRole) -> bool,
        listed: &mut Vec<ListedFile>,
    ) -> io::Result<()> {
        for (path, role, metadata) in matching_files(pattern)? {
            if !is_wanted(role) {
                continue;
            }
            let Some(metadata) = self.unless_denied(&path, role, metadata.map(Some))? else {
                continue;
            };
            let is_ignored = is_ignored && role != FileRole::Live;
            listed.push(ListedFile { path, role, metadata, is_ignored });
        }
        Ok(())
    }

    /// Opens a listed file. Returns `None` if the path no longer leads to the file, or if the file is an older file that
    /// this process may not read.
    fn open_listed(&mut self, listed: &ListedFile) -> io::Result<Option<Arc<File>>> {
        self.unless_denied(&listed.path, listed.role, open_listed(listed))
    }

    /// Treats an older file as missing if this process may not read it. The other streams of the process must continue.
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
            // After a program has truncated a file in place, another entry has the inode of the file.
            let best = best.filter(|_| !tracked.progress.is_lost || !self.is_reused(tracked));
            self.find(index, pattern, best)?;
        }
        Ok(())
    }

    /// Returns whether an entry that is not lost has the identity of a lost file.
    fn is_reused(&self, lost: &TrackedFile) -> bool {
        let has_identity = |other: &FileProgress| {
            other.inode == lost.progress.inode && other.created_ns == lost.progress.created_ns
        };
        self.files.iter().any(|other| !other.progress.is_lost && has_identity(&other.progress))
    }

    /// Finds a tracked file. `best` is the listed file with the identity of the tracked file.
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
            // An open file without a listed name was removed, or was moved out of the listed files.
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

    /// Searches for a tracked file that is not listed. If the file still has the path that the source read, the path in
    /// the settings has changed.
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
        for (at, found) in listed.iter().enumerate() {
            if found.role == FileRole::Compressed {
                continue;
            }
            let later = &listed[at + 1..];
            let is_known = |tracked: &TrackedFile| known(tracked) && tracked.is(&found.metadata);
            if known_inodes.contains(&found.metadata.ino()) && self.files.iter().any(is_known) {
                continue;
            }
            let is_live = found.role == FileRole::Live;
            let Some(file) = self.open_listed(found)? else { continue };
            if let Some(index) = self.original(&file, is_live)? {
                self.replace(index, found, &file, later)?;
            } else if !is_live && !found.is_ignored && self.is_copy(&file)? {
                // A copy that another program makes of a file has nothing new, unless the program then truncates the
                // original file. While the copy is incomplete, no comparison can distinguish the two cases.
                continue;
            } else {
                let index = self.place(later);
                self.insert(index, found, Arc::clone(&file));
                if found.is_ignored {
                    self.files[index].ignore(&file)?;
                }
            }
            known_inodes.insert(found.metadata.ino());
        }
        Ok(())
    }

    /// Gives a tracked file that was copied the place of its copy. `later` contains the listed files after the copy, in
    /// reading order.
    fn replace(
        &mut self,
        index: usize,
        copy: &ListedFile,
        file: &Arc<File>,
        later: &[ListedFile],
    ) -> io::Result<()> {
        let is_live = copy.role == FileRole::Live;
        let length = file.metadata()?.len();
        let mut tracked = self.files.remove(index);
        let before = tracked.progress.clone();
        let index = if tracked.is_remembered() { self.place(later) } else { index };
        tracked.continue_in(&copy.path, &copy.metadata, is_live, Arc::clone(file));
        let is_shorter = length < before.print.end();
        if is_shorter {
            tracked.end_at(file, length)?;
        }
        self.files.insert(index, tracked);
        let mut position = before.position();
        position.offset = position.offset.max(length);
        if is_shorter && position.offset < before.length && !before.is_lost {
            // The copy has only a part of the unread rest. The next listing finds no other part, and the set then
            // reports the other part as lost.
            let print = before.print;
            let rest =
                TrackedFile::new(before.at(position, print), copy.path.display().to_string(), None);
            self.files.push(TrackedFile { is_missing: true, ..rest });
        }
        Ok(())
    }

    /// Returns the index of a new file. `later` contains the listed files after the new file, in reading order. The source
    /// reads the new file before those of these files of which it has read nothing.
    fn place(&self, later: &[ListedFile]) -> usize {
        let is_later = |tracked: &TrackedFile| {
            tracked.is_unbegun() && later.iter().any(|found| tracked.is(&found.metadata))
        };
        self.files.iter().position(is_later).unwrap_or(self.files.len())
    }

    /// Returns the index of the tracked file of which `copy` is a copy. In most cases, the tracked file is missing, and
    /// `copy` begins with the bytes that were read of the tracked file. There are three further cases:
    ///
    /// - The path of the source now names `copy`, the tracked file is no longer among the listed files, and `copy`
    ///   begins with the whole content of the tracked file.
    /// - The source has read further than the end of `copy`, because it read more lines before a program truncated the
    ///   original file.
    /// - Nothing of the tracked file was read before a program truncated it, and `copy` is long enough.
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
                // A file that the path names is another file if an earlier file had the same content.
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

    /// Returns whether a tracked file other than `file` has the same content as `file`, as far as both have bytes.
    /// Also returns `true` for an empty file, of which nothing can be read; a later scan compares it again.
    fn is_copy(&self, file: &File) -> io::Result<bool> {
        let metadata = file.metadata()?;
        if metadata.len() == 0 {
            return Ok(true);
        }
        for tracked in &self.files {
            let other = match &tracked.file {
                Some(file) => Some(Arc::clone(file)),
                None => match open_same(&tracked.progress) {
                    Err(error) if is_denied(&error) => None,
                    opened => opened?,
                },
            };
            let Some(other) = other else { continue };
            let other_metadata = other.metadata()?;
            let is_same_file =
                (metadata.dev(), metadata.ino()) == (other_metadata.dev(), other_metadata.ino());
            if !is_same_file
                && has_same_content(file, metadata.len(), &other, other_metadata.len())?
            {
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

    /// Decides about the files that are missing: remembers files that were read to their end, and reports the unread
    /// rest of the others as lost.
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
                "the file no longer begins with the lines that the last run read. Now reading the file from its \
                 beginning; {}. If lines were appended to the old file after the bytes that were read, these lines \
                 are lost",
                reread_advice(self.ordering)
            ),
        }
    }

    /// Removes the oldest missing files from the set, if it has too many missing files.
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

    /// Closes older files that were read to their end and no longer change. If such a file is not in the last listing of
    /// the folder, it counts as missing from then on.
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

impl TrackedFile {
    /// Marks the file as an older file that the source does not read.
    fn ignore(&mut self, file: &File) -> io::Result<()> {
        let length = file.metadata()?.len();
        let position = FilePosition { offset: length, line: 0 };
        self.progress = self.progress.clone().at(position, fingerprint(file, length)?);
        self.progress.is_ignored = true;
        self.file = None;
        Ok(())
    }
}

/// Returns the files of the folder that match the pattern, with their roles.
fn matching_files(
    pattern: &FilePattern,
) -> io::Result<Vec<(PathBuf, FileRole, io::Result<Metadata>)>> {
    let mut matching = Vec::new();
    for entry in fs::read_dir(pattern.folder())? {
        let name = entry?.file_name();
        let Some(role) = pattern.role(&name) else { continue };
        let path = pattern.path_of(&name);
        match fs::metadata(&path) {
            Ok(metadata) if !metadata.is_file() => {}
            Err(error) if is_gone(&error) => {}
            metadata => matching.push((path, role, metadata)),
        }
    }
    Ok(matching)
}

fn sort_in_reading_order(listed: &mut [ListedFile], pattern: &FilePattern) {
    listed.sort_by_cached_key(|listed| {
        let is_last = listed.role == FileRole::Live && !pattern.is_glob();
        let number = match listed.role {
            FileRole::Rotated { number } => number,
            _ => 0,
        };
        let modified = listed.metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        (is_last, modified, u64::MAX - number, listed.path.clone())
    });
}

/// Returns the older files to which log rotation has given other names than `path`, in reading order. Returns no
/// compressed file.
pub(crate) fn rotated_files(path: &Path) -> io::Result<Vec<FileProgress>> {
    let pattern = FilePattern::new(path);
    // `path` names one file, so a `*` or `?` in its name is an ordinary character. The pattern would treat it as a
    // wildcard, and would also match the older files of other files.
    if pattern.is_glob() {
        return Ok(Vec::new());
    }
    let mut listed = Vec::new();
    for (path, role, metadata) in matching_files(&pattern)? {
        if matches!(role, FileRole::Rotated { .. }) {
            listed.push(ListedFile { path, role, metadata: metadata?, is_ignored: false });
        }
    }
    sort_in_reading_order(&mut listed, &pattern);
    let progress = |listed: &ListedFile| {
        FileProgress::unread(listed.path.display().to_string(), &listed.metadata)
    };
    Ok(listed.iter().map(progress).collect())
}

impl ListedFile {
    /// Returns the device and the inode.
    fn identity(&self) -> (u64, u64) {
        (self.metadata.dev(), self.metadata.ino())
    }
}

/// Returns the fingerprint of the first bytes of a file, up to `end`.
fn fingerprint(file: &File, end: u64) -> io::Result<ReadFingerprint> {
    let head = TailFingerprint::read(file, end.min(TAIL_LIMIT_BYTES as u64))?;
    Ok(ReadFingerprint::new(head.bytes(), &TailFingerprint::read(file, end)?))
}

/// Returns whether the folder or the name of a path contains a link. The path may then lead to another file than
/// before, although the settings have not changed.
fn has_links(pattern: &FilePattern) -> bool {
    let absolute = std::path::absolute(pattern.folder()).ok();
    pattern.target().is_some() || absolute != Some(canonical_path(pattern.folder()))
}

/// Returns whether a file has the inode of a known file, and was created at the same time. A creation time of 0 is
/// unknown, and counts as equal.
pub(crate) fn is_same_inode(progress: &FileProgress, metadata: &Metadata) -> bool {
    let created = created_ns(metadata);
    let before = progress.created_ns;
    progress.inode == metadata.ino() && (created == before || created == 0 || before == 0)
}

/// Searches the folder in which a file was last seen for the file, under any name.
pub(crate) fn find_by_identity(
    progress: &FileProgress,
) -> io::Result<Option<(PathBuf, Arc<File>)>> {
    let Some(folder) = Path::new(&progress.path).parent() else { return Ok(None) };
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if is_gone(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        if entry.ino() != progress.inode {
            continue;
        }
        let path = entry.path();
        let metadata = match fs::metadata(&path) {
            Ok(metadata) => metadata,
            Err(error) if is_gone(&error) => continue,
            Err(error) => return Err(error),
        };
        if is_same_inode(progress, &metadata)
            && let Some(file) = open_at(&path, metadata.dev(), metadata.ino())?
        {
            return Ok(Some((path, file)));
        }
    }
    Ok(None)
}

/// The result of the search for an unread rest among the compressed files of the folder.
#[derive(Debug, PartialEq, Eq)]
enum CompressedRest {
    /// The folder has no compressed files.
    None,
    /// The content of a compressed file has exactly the length that was read, so it has no unread rest.
    IsRead,
    /// The compressed file with this path may contain the rest. Its format does not state the length of the content.
    MayBeIn(PathBuf),
    /// The compressed file with this path may contain the rest. Its content has another length than the bytes that were
    /// read.
    HasOtherLength(PathBuf),
}

/// Searches the compressed files for the unread rest of a file of which the source has read `read` bytes.
fn compressed_rest(listed: &[ListedFile], read: u64) -> io::Result<CompressedRest> {
    let compressed = listed.iter().filter(|listed| listed.role == FileRole::Compressed);
    let mut newest = CompressedRest::None;
    for listed in compressed {
        newest = match gzip_length(listed)? {
            Some(length) if length == read & u64::from(u32::MAX) => {
                return Ok(CompressedRest::IsRead);
            }
            Some(_) => CompressedRest::HasOtherLength(listed.path.clone()),
            None => CompressedRest::MayBeIn(listed.path.clone()),
        };
    }
    Ok(newest)
}

/// Returns the length of the content of a gzip file modulo 2^32, from the last bytes of the file. Returns `None` for a
/// file of another kind, and for a file that this process cannot read.
fn gzip_length(listed: &ListedFile) -> io::Result<Option<u64>> {
    let length = listed.metadata.len();
    if listed.path.extension().is_none_or(|extension| extension != "gz") || length < 18 {
        return Ok(None);
    }
    let file = match open_listed(listed) {
        Err(error) if is_denied(&error) => return Ok(None),
        opened => opened?,
    };
    let Some(file) = file else { return Ok(None) };
    let mut bytes = [0; 4];
    match file.read_exact_at(&mut bytes, length - 4) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        read => read.map(|()| Some(u32::from_le_bytes(bytes).into())),
    }
}

fn describe_loss(tracked: &TrackedFile, compressed: CompressedRest) -> String {
    let FileProgress { device, inode, .. } = tracked.progress;
    let from = tracked.progress.position().offset;
    let bytes = match tracked.progress.unread_bytes() {
        0 => "the bytes".to_owned(),
        unread => format!("at least {unread} bytes"),
    };
    let place = match compressed {
        CompressedRest::MayBeIn(path) | CompressedRest::HasOtherLength(path) => format!(
            "They may be in {}, which is compressed: uncompress this file in its folder, and Ordain reads the rest",
            path.display()
        ),
        _ => "Put the file back into its folder, and Ordain reads the rest".to_owned(),
    };
    format!(
        "{}, device {device}, inode {inode}: {bytes} from byte {from} on were not read, because the file was removed, \
         truncated or compressed before Ordain had read it to its end. {place}",
        tracked.name
    )
}

/// Opens a listed file. Returns `None` if the path no longer leads to the file.
fn open_listed(listed: &ListedFile) -> io::Result<Option<Arc<File>>> {
    open_at(&listed.path, listed.metadata.dev(), listed.metadata.ino())
}

/// Opens a file at its last known path. Returns `None` if the path no longer leads to the file.
fn open_same(progress: &FileProgress) -> io::Result<Option<Arc<File>>> {
    open_at(Path::new(&progress.path), progress.device, progress.inode)
}

fn open_at(path: &Path, device: u64, inode: u64) -> io::Result<Option<Arc<File>>> {
    // This check comes before the open, because the open of a pipe may block forever.
    let is_file = |metadata: &Metadata| {
        metadata.is_file() && (metadata.dev(), metadata.ino()) == (device, inode)
    };
    match fs::metadata(path) {
        Ok(metadata) if is_file(&metadata) => {}
        Ok(_) => return Ok(None),
        Err(error) if is_gone(&error) => return Ok(None),
        Err(error) => return Err(error),
    }
    match File::open(path) {
        Ok(file) if is_file(&file.metadata()?) => Ok(Some(Arc::new(file))),
        Ok(_) => Ok(None),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns whether `copy` begins with the whole content of `file`. Compares only the first and the last bytes of the
/// content.
fn is_whole_copy(file: &File, copy: &File) -> io::Result<bool> {
    Ok(common_beginning(file, copy, file.metadata()?.len())?.is_some())
}

/// Returns whether two files have the same content, as far as both have bytes. Compares only the first and the last of
/// the common bytes. If the last common bytes are blank, both files may be rests of truncated files with different lines
/// after the blanks. The result is then `true` only while `file` has no further bytes. The result is also `true` if a
/// program truncates a file meanwhile; a later scan compares the files again.
fn has_same_content(file: &File, length: u64, other: &File, other_length: u64) -> io::Result<bool> {
    let common_length = length.min(other_length);
    let is_whole = length == common_length;
    Ok(match common_beginning(other, file, common_length)? {
        Some(last) => is_whole || !last.bytes().iter().copied().all(is_blank_byte),
        None => file.metadata()?.len() < length || other.metadata()?.len() < other_length,
    })
}

/// Returns the last of the first `length` bytes of two files. Returns `None` if the first or the last of these bytes
/// differ, or if a program truncated a file meanwhile.
fn common_beginning(one: &File, two: &File, length: u64) -> io::Result<Option<TailFingerprint>> {
    let head = TailFingerprint::read_if_whole(one, length.min(TAIL_LIMIT_BYTES as u64))?;
    let tail = TailFingerprint::read_if_whole(one, length)?;
    let (Some(head), Some(tail)) = (head, tail) else { return Ok(None) };
    Ok((head.is_in(two)? && tail.is_in(two)?).then_some(tail))
}

/// Returns the first bytes of a file, at most [`TAIL_LIMIT_BYTES`].
pub(super) fn head(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; TAIL_LIMIT_BYTES];
    let mut length = 0;
    while length < bytes.len() {
        match file.read_at(&mut bytes[length..], length as u64) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(length);
    Ok(bytes)
}

fn is_denied(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}
