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

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{DirEntryExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

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
/// Maximum number of lost files that the checkpoint remembers. If such a file returns, the source reads only its unread
/// rest.
const LOST_FILES_LIMIT: usize = 16;
/// Minimum time between two warnings that the folder is missing, or that another device is mounted there.
const WARN_INTERVAL: Duration = Duration::from_mins(1);

/// A file of the source, with the position that the source has reached in it.
#[derive(Debug)]
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
    /// `true` until the first scan of a stream without a checkpoint, or with a checkpoint of an earlier version. The
    /// source does not read the older files that this scan finds.
    is_first_start: bool,
    folder_device: Option<u64>,
    folder_throttle: LogThrottle,
}

/// A file of the source in the last listing of the folder.
struct ListedFile {
    path: PathBuf,
    role: FileRole,
    metadata: Metadata,
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
        self.is_listed = true;
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
    /// Creates the set of a stream. `checkpoint` has the files of the last run; `None` at the first start.
    pub fn new(
        pattern: FilePattern,
        stream: &str,
        ordering: OrderingMode,
        checkpoint: Option<&Checkpoint>,
    ) -> Self {
        let path = pattern.path().display().to_string();
        let entry = |progress: &FileProgress| {
            let name = if progress.has_identity() { &progress.path } else { &path };
            TrackedFile::new(progress.clone(), name.clone(), None)
        };
        Self {
            pattern: Some(pattern),
            stream: stream.to_owned(),
            ordering,
            files: checkpoint
                .map_or_else(Vec::new, |checkpoint| checkpoint.files().iter().map(entry).collect()),
            is_first_start: checkpoint.is_none_or(Checkpoint::is_of_earlier_version),
            folder_device: None,
            folder_throttle: LogThrottle::new(WARN_INTERVAL),
        }
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
            is_first_start: false,
            folder_device: None,
            folder_throttle: LogThrottle::new(WARN_INTERVAL),
        }
    }

    /// Forgets the positions, so that the source reads its files from their beginning. Ignored files stay ignored.
    pub fn rewind(&mut self) {
        self.files.retain(|tracked| tracked.progress.has_identity());
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
    pub(super) fn source_progress(&self, index: usize) -> SourceProgress {
        let files = self.progress();
        SourceProgress { current: files[index].clone(), files: files.into(), index }
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

    /// Returns whether the source reads another file after this file, and the path of the source no longer names this
    /// file. After a short time, no program completes the last line of such a file any more.
    pub(super) fn is_replaced(&self, index: usize) -> bool {
        !self.files[index].progress.is_live
            && self.files[index + 1..].iter().any(TrackedFile::is_read)
    }

    /// Sets the position up to which the source reads each file. This method measures a newer file before an older
    /// file. If a program adds a line to the older file and then a line to the newer file, the source therefore does
    /// not read the second line before the first line.
    pub(super) fn measure(&mut self) -> io::Result<()> {
        for tracked in self.files.iter_mut().rev() {
            if let Some(file) = &tracked.file {
                tracked.progress.length = file.metadata()?.len();
            }
            tracked.target = tracked.progress.length;
        }
        Ok(())
    }

    /// Returns the file with this index, and opens it if necessary. Returns `None` if the file is missing, or is no
    /// longer at its last known path.
    pub(super) fn open(&mut self, index: usize) -> io::Result<Option<Arc<File>>> {
        let tracked = &mut self.files[index];
        if tracked.file.is_none() && !tracked.is_missing {
            tracked.file = open_same(&tracked.progress)?;
        }
        Ok(tracked.file.clone())
    }

    /// Closes a file that was read to its end, if too many files are open.
    pub(super) fn close_surplus(&mut self, index: usize) {
        if self.is_full() && !self.is_fixed() && !self.files[index].is_unread() {
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
        // A file may have been renamed or copied during the first listing. Only a second listing, which begins after
        // the file was found missing, can show that the file is lost.
        for is_last in [false, true] {
            let Some(listed) = self.list(&pattern)? else { return Ok(()) };
            self.identify(&listed)?;
            self.find_tracked(&listed)?;
            self.add_unknown(&listed)?;
            self.is_first_start = false;
            if !self.files.iter().any(|tracked| tracked.is_missing && !tracked.progress.is_lost) {
                break;
            }
            if is_last {
                self.report_missing(&listed)?;
            }
        }
        self.close_idle();
        Ok(())
    }

    /// Adds files that appeared since the last scan. Holds these files open, up to [`OPEN_FILES_LIMIT`] open files in
    /// all, so that the source can read them even if they are removed before the next scan. The indexes of known files
    /// do not change.
    pub(super) fn discover(&mut self) -> io::Result<()> {
        let Some(pattern) = self.pattern.clone() else { return Ok(()) };
        let Some(listed) = self.list(&pattern)? else { return Ok(()) };
        for listed in &listed {
            let is_readable = !matches!(listed.role, FileRole::Compressed);
            let is_known = |tracked: &TrackedFile| tracked.is(&listed.metadata);
            if !is_readable || self.files.iter().any(is_known) {
                continue;
            }
            let Some(file) = open_listed(listed)? else { continue };
            if !self.is_copy(&file)? {
                self.push(listed, file);
            }
        }
        Ok(())
    }

    /// Returns the files of the folder that match the pattern, in reading order. Returns `None` if the folder is
    /// missing, or if another device is mounted there.
    fn list(&mut self, pattern: &FilePattern) -> io::Result<Option<Vec<ListedFile>>> {
        let folder = pattern.folder();
        let device = match fs::metadata(folder) {
            Ok(metadata) => Some(metadata.dev()),
            Err(error) if is_gone(&error) => None,
            Err(error) => return Err(error),
        };
        if device.is_none() || self.folder_device.is_some_and(|before| Some(before) != device) {
            if self.folder_throttle.allow() {
                tracing::warn!(
                    stream = self.stream, folder = %folder.display(),
                    "source waits: the folder is missing, or another device is mounted there; make the folder available"
                );
            }
            return Ok(None);
        }
        self.folder_device = device;
        listed_files(pattern).map(Some)
    }

    /// Finds the file of a checkpoint of an earlier version, which has no identity. The path of the source named this
    /// file, so this method compares no older files. If the method does not find the file, the file counts as missing.
    fn identify(&mut self, listed: &[ListedFile]) -> io::Result<()> {
        for tracked in &mut self.files {
            if tracked.progress.has_identity() {
                continue;
            }
            for live in listed.iter().filter(|listed| listed.role == FileRole::Live) {
                let Some(file) = open_listed(live)? else { continue };
                if tracked.progress.print.matches(&file)? {
                    tracked.continue_in(&live.path, &live.metadata, true, file);
                    break;
                }
            }
        }
        Ok(())
    }

    /// Finds the tracked files: among the open files, among the listed files, or under another name in the folder.
    fn find_tracked(&mut self, listed: &[ListedFile]) -> io::Result<()> {
        for index in 0..self.files.len() {
            let is_full = self.is_full();
            let tracked = &mut self.files[index];
            // The path may be a link to a listed file, so that one file has several names.
            let names = listed.iter().filter(|listed| {
                tracked.is(&listed.metadata) && listed.role != FileRole::Compressed
            });
            let best = names.max_by_key(|listed| {
                (listed.metadata.dev() == tracked.progress.device, listed.role == FileRole::Live)
            });
            tracked.is_listed = best.is_some();
            if let Some(found) = best
                && tracked.compared == Some((found.metadata.len(), found.metadata.modified()?))
            {
                tracked.rename(found);
                tracked.is_missing = false;
                continue;
            }
            let mut moved_to = None;
            let file = match (best, &tracked.file) {
                // An open file without a listed name was removed, or was moved out of the listed files.
                (_, Some(file)) => Some(Arc::clone(file)),
                (Some(found), None) => open_listed(found)?,
                (None, None) if tracked.progress.is_ignored => None,
                (None, None) => {
                    let found = find_by_identity(&tracked.progress)?;
                    found.map(|(path, file)| {
                        moved_to = Some(path.display().to_string());
                        file
                    })
                }
            };
            tracked.is_missing = true;
            let Some(file) = file else { continue };
            let metadata = file.metadata()?;
            if !tracked.has_read_bytes(&file, &metadata)? {
                tracked.file = None;
                continue;
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
            tracked.progress.is_lost = false;
            if tracked.file.is_none()
                && !is_full
                && (tracked.is_unread() || tracked.progress.is_live)
            {
                tracked.file = Some(file);
            }
        }
        Ok(())
    }

    /// Adds the listed files that are not tracked. A file that begins with all bytes that were read of a missing file
    /// takes the place of the missing file.
    fn add_unknown(&mut self, listed: &[ListedFile]) -> io::Result<()> {
        for listed in listed {
            let is_known =
                |tracked: &TrackedFile| !tracked.is_missing && tracked.is(&listed.metadata);
            let is_live = listed.role == FileRole::Live;
            if listed.role == FileRole::Compressed || self.files.iter().any(is_known) {
                continue;
            }
            let Some(file) = open_listed(listed)? else { continue };
            if let Some(original) = self.original(&file, is_live)? {
                original.continue_in(&listed.path, &listed.metadata, is_live, file);
                continue;
            }
            // A copy that another program makes of a file has nothing new, unless the program then truncates the
            // original file. While the copy is incomplete, no comparison can distinguish the two cases.
            if !is_live && self.is_copy(&file)? {
                continue;
            }
            let is_ignored = self.is_first_start && !is_live;
            self.push(listed, Arc::clone(&file));
            if is_ignored && let Some(tracked) = self.files.last_mut() {
                tracked.ignore(&file)?;
            }
        }
        Ok(())
    }

    /// Returns the tracked file of which `copy` is a copy. There are two cases. In the first case, the tracked file is
    /// missing, and `copy` begins with the bytes that were read of the tracked file. In the second case, the path of
    /// the source now names `copy`, the tracked file is no longer among the listed files, and `copy` begins with the
    /// whole content of the tracked file.
    fn original(&mut self, copy: &File, is_live: bool) -> io::Result<Option<&mut TrackedFile>> {
        for index in 0..self.files.len() {
            let tracked = &self.files[index];
            if !tracked.progress.is_begun() || tracked.progress.is_ignored {
                continue;
            }
            let is_original = match &tracked.file {
                None => {
                    let may_be_left = is_live && !tracked.is_listed && !tracked.is_unread();
                    (tracked.is_missing || may_be_left) && tracked.progress.print.matches(copy)?
                }
                Some(file) => is_live && !tracked.is_listed && is_whole_copy(file, copy)?,
            };
            if is_original {
                return Ok(self.files.get_mut(index));
            }
        }
        Ok(None)
    }

    /// Returns whether a tracked file other than `file` has the same beginning as `file`, as far as both have bytes.
    /// Also returns `true` for an empty file, of which nothing can be read; a later scan compares it again.
    fn is_copy(&self, file: &File) -> io::Result<bool> {
        let head = head(file)?;
        if head.is_empty() {
            return Ok(true);
        }
        for tracked in &self.files {
            let other = match &tracked.file {
                Some(file) => Some(Arc::clone(file)),
                None => open_same(&tracked.progress)?,
            };
            let Some(other) = other else { continue };
            let is_same_file = {
                let (one, two) = (file.metadata()?, other.metadata()?);
                (one.dev(), one.ino()) == (two.dev(), two.ino())
            };
            let other = self::head(&other)?;
            let both = other.len().min(head.len());
            if !is_same_file && both > 0 && head[..both] == other[..both] {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn push(&mut self, listed: &ListedFile, file: Arc<File>) {
        let path = canonical_path(&listed.path).display().to_string();
        let mut progress = FileProgress::unread(path, &listed.metadata);
        progress.is_live = listed.role == FileRole::Live;
        let name = listed.path.display().to_string();
        let file = (!self.is_full()).then_some(file);
        self.files.push(TrackedFile { is_listed: true, ..TrackedFile::new(progress, name, file) });
    }

    /// Decides about the files that are missing: removes files that were read to their end from the set, and reports
    /// the unread rest of the others as lost.
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
            if progress.is_ignored || (unread == 0 && !progress.is_live) {
                // Log rotation has removed an old file.
                continue;
            }
            let is_truncated = listed.iter().any(|listed| tracked.is(&listed.metadata));
            let compressed = compressed_rest(listed, progress.position().offset)?;
            if unread == 0 && (is_truncated || compressed == CompressedRest::None) {
                if progress.is_begun() {
                    tracing::warn!(
                        stream = self.stream,
                        path = tracked.name,
                        device = progress.device,
                        inode = progress.inode,
                        read_bytes = progress.position().offset,
                        "the file no longer begins with the lines that the last run read. Now reading the file from \
                         its beginning; {}. If lines were appended to the old file after the bytes that were read, \
                         these lines are lost",
                        reread_advice(self.ordering)
                    );
                }
                continue;
            }
            if unread == 0 && compressed == CompressedRest::IsRead {
                continue;
            }
            let loss = describe_loss(&tracked, compressed);
            tracing::error!(stream = self.stream, "unread lines lost: {loss}");
            tracked.loss = Some(loss);
            kept.push(tracked);
        }
        let lost = |tracked: &TrackedFile| tracked.progress.is_lost;
        while kept.iter().filter(|tracked| lost(tracked)).count() > LOST_FILES_LIMIT
            && let Some(oldest) = kept.iter().position(lost)
        {
            kept.remove(oldest);
        }
        self.files = kept;
        Ok(())
    }

    /// Closes older files that were read to their end and no longer change, and removes those from the set that the
    /// folder no longer lists.
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
                return tracked.is_listed;
            }
            true
        });
    }
}

impl TrackedFile {
    /// Marks the file as an older file that the source does not read.
    fn ignore(&mut self, file: &File) -> io::Result<()> {
        let length = file.metadata()?.len();
        let head = head(file)?;
        let head = &head[..head.len().min(usize::try_from(length).unwrap_or(usize::MAX))];
        let print = ReadFingerprint::new(head, &TailFingerprint::read(file, length)?);
        let position = FilePosition { offset: length, line: 0 };
        self.progress = self.progress.clone().at(position, print);
        self.progress.is_ignored = true;
        self.file = None;
        Ok(())
    }
}

/// Returns the files of the folder that match the pattern, in reading order.
fn listed_files(pattern: &FilePattern) -> io::Result<Vec<ListedFile>> {
    let mut listed = Vec::new();
    for entry in fs::read_dir(pattern.folder())? {
        let name = entry?.file_name();
        let Some(role) = pattern.role(&name) else { continue };
        let path = pattern.path_of(&name);
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_file() => listed.push(ListedFile { path, role, metadata }),
            Ok(_) => {}
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(error),
        }
    }
    let order = |listed: &ListedFile| {
        let is_last = listed.role == FileRole::Live && !pattern.is_glob();
        let number = match listed.role {
            FileRole::Rotated { number } => number,
            _ => 0,
        };
        let modified = listed.metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        (is_last, modified, u64::MAX - number, listed.path.clone())
    };
    listed.sort_by_cached_key(order);
    Ok(listed)
}

/// Returns the older files to which log rotation has given other names than `path`, in reading order. Returns no
/// compressed file.
pub(crate) fn rotated_files(path: &Path) -> io::Result<Vec<FileProgress>> {
    let pattern = FilePattern::new(path);
    // `path` names one file. If the name contains a wildcard, the older files of other files would match it too.
    if pattern.is_glob() {
        return Ok(Vec::new());
    }
    let mut listed = listed_files(&pattern)?;
    listed.retain(|listed| matches!(listed.role, FileRole::Rotated { .. }));
    let progress = |listed: &ListedFile| {
        FileProgress::unread(listed.path.display().to_string(), &listed.metadata)
    };
    Ok(listed.iter().map(progress).collect())
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
    /// The compressed file with this path may contain the rest.
    MayBeIn(PathBuf),
}

/// Searches the compressed files for the unread rest of a file of which the source has read `read` bytes.
fn compressed_rest(listed: &[ListedFile], read: u64) -> io::Result<CompressedRest> {
    let compressed = listed.iter().filter(|listed| listed.role == FileRole::Compressed);
    let mut newest = CompressedRest::None;
    for listed in compressed {
        if gzip_length(listed)? == Some(read & u64::from(u32::MAX)) {
            return Ok(CompressedRest::IsRead);
        }
        newest = CompressedRest::MayBeIn(listed.path.clone());
    }
    Ok(newest)
}

/// Returns the length of the content of a gzip file modulo 2^32, from the last bytes of the file. Returns `None` for a
/// file of another kind.
fn gzip_length(listed: &ListedFile) -> io::Result<Option<u64>> {
    let length = listed.metadata.len();
    if listed.path.extension().is_none_or(|extension| extension != "gz") || length < 18 {
        return Ok(None);
    }
    let Some(file) = open_listed(listed)? else { return Ok(None) };
    let mut bytes = [0; 4];
    file.read_exact_at(&mut bytes, length - 4)?;
    Ok(Some(u32::from_le_bytes(bytes).into()))
}

fn describe_loss(tracked: &TrackedFile, compressed: CompressedRest) -> String {
    let FileProgress { device, inode, .. } = tracked.progress;
    let from = tracked.progress.position().offset;
    let bytes = match tracked.progress.unread_bytes() {
        0 => "the bytes".to_owned(),
        unread => format!("at least {unread} bytes"),
    };
    let place = match compressed {
        CompressedRest::MayBeIn(path) => format!(
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
    let length = file.metadata()?.len();
    let head = TailFingerprint::read(file, length.min(TAIL_LIMIT_BYTES as u64))?;
    Ok(head.is_in(copy)? && TailFingerprint::read(file, length)?.is_in(copy)?)
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

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}
