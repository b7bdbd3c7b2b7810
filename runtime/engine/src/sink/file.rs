//! A sink that writes each message to a file exactly once.
//!
//! The sink appends one line for each message. In one write, the store then records the new length of the file and
//! removes the messages of these lines from the outbox. If the process dies between the append and this write, the file
//! has lines after the recorded length. The next start keeps these lines. If the outbox has the message of such a line,
//! the sink does not write the message a second time. If the outbox lacks the message, the store has lost the message,
//! for example because an operator restored an older copy of the store. The start reports such a message as lost. A
//! start removes an incomplete line from the end of the file, even if another program has renamed the file. The data
//! after the recorded length may contain a line of another program. If the outbox has all messages in the data after
//! this line, a start also removes the line and the data after it. If another file has taken the place of the sink
//! file, Ordain removes nothing from this other file.
//!
//! The open file may differ from the file that has the path: log rotation renames, removes or truncates a file while a
//! process writes to it. Before the first write after a sync, the sink therefore checks whether the path still leads to
//! the open file. If not, the sink opens the file that has the path. A message counts as published only if its line is
//! synced. After this sync, the file must also still have a name (it was not removed), and must still contain the line.
//! After each sync, the sink therefore checks the file. If the file no longer has a name, or lines are missing, the
//! sink repeats the write of all lines that it had appended since the previous sync.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{DirEntryExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::content::SinkContent;
use super::kept_lines::{ComparedLines, KeptLines, UnpublishedMessages, report_differing};
use super::pending_runs::PendingRuns;
use ordain_store::Mark;
use ordain_store::published_file::{FileFingerprint, OlderFile, PublishedFile};
use ordain_util::canonical_path::canonical_path;
use ordain_util::locked_file::LockedFile;
use ordain_util::tail_fingerprint::TailFingerprint;

/// Part size for rewriting kept lines, and for searching the end of the data.
const REWRITE_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct FileSink {
    path: PathBuf,
    mark_name: String,
    file: LockedFile,
    inode: u64,
    /// The fingerprint and the end of the written data. The sink writes the next message after this end.
    tail: TailFingerprint,
    /// The fingerprint and the end of the synced data.
    synced: TailFingerprint,
    is_synced: bool,
    /// False after the sink has unlocked its file. The sink unlocks its file if the path now leads to another file, and
    /// this other file is locked.
    is_locked: bool,
    /// The lines of unpublished messages that a file already contains. The sink must not write them a second time.
    kept: KeptLines,
    /// A position in the open file: the store has marked the messages of all lines before this position as published.
    unmarked_start: u64,
    /// The older files that may have lines of unmarked messages (messages that the store has not marked as published).
    older: Vec<UnmarkedFile>,
    /// The number of the run that follows the collected run. The collected run is the run that the outbox publisher was
    /// collecting at the newest call of `update_unmarked`. See [`PendingRuns`].
    next_run: u64,
}

/// An older file of the sink that may have lines of unmarked messages.
#[derive(Debug)]
struct UnmarkedFile {
    file: OlderFile,
    /// A number above the numbers of all pending runs whose messages have lines in the file.
    end_run: u64,
}

/// An older file of the sink, and the part that may have lines of unpublished messages.
#[derive(Debug)]
struct RenamedFile {
    inode: u64,
    file: File,
    range: Range<u64>,
}

/// An opened sink whose file may contain more lines than the store has recorded.
#[derive(Debug)]
pub(crate) struct FileSinkRecovery {
    sink: FileSink,
    file_length: u64,
    /// The part of the file before `sink.tail.end()` that may have lines of unpublished messages. The mark (the store's
    /// record of the file) names this part. If the store has no mark that matches the file, this part is the whole
    /// file. `None` if there is no such part.
    kept_range: Option<Range<u64>>,
    /// The files that an earlier process wrote under the path of the sink, and that now have other names.
    renamed: Vec<RenamedFile>,
}

impl FileSinkRecovery {
    /// Returns whether [`finish`](Self::finish) needs the messages of the outbox.
    pub(crate) fn needs_outbox(&self) -> bool {
        self.file_length > self.sink.tail.end()
            || self.kept_range.is_some()
            || !self.renamed.is_empty()
    }

    /// Searches the outbox for the messages of the lines that the store has not recorded as published. Removes an
    /// incomplete line from the end of the file, and data of other programs as [`FileSink::recover`] describes. Returns
    /// the sink and, for each stream, the number of messages that the file has after the recorded length and that the
    /// store lacks.
    pub(crate) fn finish(
        self,
        outbox: &UnpublishedMessages,
    ) -> io::Result<(FileSink, BTreeMap<String, u64>)> {
        let Self { mut sink, file_length, kept_range, renamed } = self;
        // If the outbox is empty, the sink has no message to skip. In this case, do not read the older files and the
        // kept range, which may be large.
        let has_messages = !outbox.is_empty();
        for RenamedFile { inode, file, range } in renamed.into_iter().filter(|_| has_messages) {
            let compared = ComparedLines::read(&file, range.clone(), outbox)?;
            // An earlier process died while it wrote the last line of this renamed file. Remove this line from the
            // renamed file: the sink will write the message of the line to the sink file.
            if compared.complete_length < range.end
                && compared.foreign_end().is_none()
                && let Err(error) = file.set_len(compared.complete_length)
            {
                tracing::warn!(
                    path = %sink.path.display(), inode, %error,
                    "a renamed file of the sink ends with an incomplete line, which cannot be removed; Ordain writes \
                     the message of this line to the sink file"
                );
            }
            if !compared.unpublished.is_empty() {
                file.sync_all()?;
                sink.older.push(UnmarkedFile {
                    file: OlderFile { inode, start: range.start },
                    end_run: 0,
                });
            }
            sink.kept.add(0..0, compared.unpublished);
        }
        if let Some(range) = kept_range.filter(|_| has_messages) {
            let compared = ComparedLines::read(&sink.file, range.clone(), outbox)?;
            sink.kept.add(range, compared.unpublished);
        }
        let lost = sink.recover(file_length, outbox)?;
        // The store's mark must include only durable content.
        if !sink.is_synced {
            sink.file.sync_all()?;
        }
        sink.record_sync();
        sink.unmarked_start = sink.kept.range().map_or(sink.tail.end(), |kept| kept.start);
        sink.kept.report(&sink.path);
        Ok((sink, lost))
    }
}

impl FileSink {
    /// Opens and locks the file of a sink. `mark` is the store's record of the file's published length. Without a mark,
    /// the contents of the file stay, and the sink writes after these contents.
    pub(crate) fn open(path: &Path, mark: Option<&[u8]>) -> io::Result<FileSinkRecovery> {
        let file = open_or_create(path)?;
        // The lock comes before the first read of the length: another process may still append lines.
        let (file, unsupported) = lock(file)?;
        if let Some(error) = unsupported {
            tracing::warn!(
                path = %path.display(), %error,
                "the file system cannot lock the sink file: make sure that no other process writes to the file. The \
                 processes would overwrite each other's lines"
            );
        }
        let metadata = file.metadata()?;
        let file_length = metadata.len();
        let inode = metadata.ino();
        let published = match mark {
            None => None,
            Some(mark) => Some(PublishedFile::decode(mark).ok_or_else(|| {
                let message = "the store contains an unreadable record about this file";
                io::Error::new(io::ErrorKind::InvalidData, message)
            })?),
        };
        let mut kept_range = None;
        let mut is_synced = false;
        let mut renamed = Vec::new();
        for older in published.iter().flat_map(|published| &published.older) {
            renamed.extend(find_older(path, *older)?);
        }
        let published = match published {
            Some(published)
                if file_length < published.length || !is_published(&published, &file, inode)? =>
            {
                report_other_file(path, &published, file_length, inode);
                renamed.extend(find_renamed(path, &published)?);
                None
            }
            published => published,
        };
        let length = if let Some(PublishedFile { length, kept, .. }) = published {
            // Ignore a kept range that ends after the length in the mark: another process truncated the file while an
            // earlier process wrote to it.
            kept_range = kept.filter(|range| range.end <= length);
            is_synced = true;
            length
        } else {
            // An earlier process may have opened this file after a log rotation, and ended before the store had a mark
            // of the file. The file may then have lines of messages that are still in the outbox.
            if file_length > 0 {
                kept_range = Some(0..file_length);
            }
            file_length
        };
        let tail = TailFingerprint::read(&file, length)?;
        let sink = Self {
            path: path.to_owned(),
            mark_name: Self::mark_name(path),
            file,
            inode,
            synced: tail.clone(),
            tail,
            is_synced,
            is_locked: true,
            kept: KeptLines::default(),
            unmarked_start: length,
            older: Vec::new(),
            next_run: 0,
        };
        Ok(FileSinkRecovery { sink, file_length, kept_range, renamed })
    }

    /// Keeps the complete lines after the published length, and removes an incomplete line from the end of the file. If
    /// the file has a line of another program after the published length, also removes this line and all data after it.
    /// If this data contains a message that the outbox lacks, removes nothing. Returns, for each stream, the number of
    /// messages that the remaining lines have and that the store lacks.
    fn recover(
        &mut self,
        file_length: u64,
        outbox: &UnpublishedMessages,
    ) -> io::Result<BTreeMap<String, u64>> {
        let length = self.tail.end();
        if file_length == length {
            return Ok(BTreeMap::new());
        }
        let range = length..file_length;
        let mut compared = ComparedLines::read(&self.file, range.clone(), outbox)?;
        if let Some(start) = compared.foreign_end() {
            tracing::warn!(
                path = %self.path.display(), bytes = file_length - start,
                "removed data from the end of the sink file: another process had written this data, or a power \
                 failure had damaged the last lines. If the removed data contains messages of Ordain, Ordain writes \
                 these messages again"
            );
            compared = ComparedLines::read(&self.file, range.start..start, outbox)?;
        }
        let ComparedLines { complete_length, lost, differing, unpublished, .. } = compared;
        self.file.set_len(complete_length)?;
        self.rewrite(length..complete_length)?;
        self.tail = TailFingerprint::read(&self.file, complete_length)?;
        self.kept.add(length..complete_length, unpublished);
        report_differing(&self.path, differing);
        Ok(lost)
    }

    /// Writes a part of the file a second time. If a sync of an earlier process failed, the operating system may count
    /// this part as written although it is not on the disk. A sync alone would then not write it.
    fn rewrite(&mut self, range: Range<u64>) -> io::Result<()> {
        let mut buffer = vec![0; REWRITE_BYTES];
        let mut at = range.start;
        while at < range.end {
            let left = usize::try_from(range.end - at).unwrap_or(REWRITE_BYTES);
            let part = &mut buffer[..left.min(REWRITE_BYTES)];
            self.file.read_exact_at(part, at)?;
            self.file.write_all_at(part, at)?;
            at += part.len() as u64;
        }
        self.is_synced = false;
        Ok(())
    }

    /// Returns a name that is the same for every spelling of the path.
    pub(crate) fn mark_name(path: &Path) -> String {
        format!("sink/{}", canonical_path(path).display())
    }

    /// Returns the name of a second mark, for a path that contains a link. The value of this mark is the
    /// [`mark_name`](Self::mark_name) that the path had at the last start, so the next start finds the mark of that
    /// file even if the link now leads to another file. Returns `None` if neither the path nor a folder of the path is
    /// a link. A part `..` of the path is no link.
    pub(crate) fn link_mark_name(path: &Path) -> Option<String> {
        let own = std::path::absolute(path).ok()?;
        own.ancestors().any(Path::is_symlink).then(|| format!("sink-link/{}", own.display()))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether a kept line has this message, which the sink must then skip. Removes this line from the kept
    /// lines. `number` is the number that the store has given to the message.
    pub(super) fn take_kept(
        &mut self,
        stream: &str,
        content: &SinkContent,
        number: Option<u64>,
    ) -> bool {
        self.kept.take(&self.path, stream, content, number)
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.is_synced {
            self.check_length()?;
        }
        self.end_line()?;
        self.file.write_all_at(bytes, self.tail.end())?;
        self.tail.extend(bytes);
        self.is_synced = false;
        Ok(())
    }

    /// Updates which parts of the files may have lines of unmarked messages. `has_skipped` is `true` if the sink has
    /// skipped a message of the run that is being collected.
    pub(super) fn update_unmarked(&mut self, runs: &PendingRuns, has_skipped: bool) {
        let oldest = runs.oldest_of_file(&self.mark_name);
        self.next_run = runs.number() + 1;
        if has_skipped || !self.kept.is_empty() {
            for older in &mut self.older {
                older.end_run = self.next_run;
            }
            return;
        }
        self.older.retain(|older| oldest.is_some_and(|oldest| oldest < older.end_run));
        if oldest.is_none() {
            self.unmarked_start = self.tail.end();
        }
    }

    /// Opens the file that has the path, if all lines are synced and the path no longer leads to the open file. The old
    /// file keeps its lines. Returns a mark if the sink has opened another file. The caller must store this mark before
    /// it appends: if the new file is renamed later and the process dies, the next start recognises the file by this
    /// mark. The mark names the older files with unmarked messages, so it also replaces the marks of this sink in all
    /// pending runs.
    pub(super) fn follow_path(&mut self) -> io::Result<Option<Mark>> {
        if !self.is_synced {
            return Ok(None);
        }
        let left = OlderFile { inode: self.inode, start: self.unmarked_start };
        let left_end = self.tail.end();
        if !self.open_path()? {
            return Ok(None);
        }
        if left.start < left_end {
            self.older.push(UnmarkedFile { file: left, end_run: self.next_run });
        }
        Ok(Some(self.mark_with(self.kept.range(), true)))
    }

    /// Opens the file that has the path, if the path does not lead to the open file. Creates a missing file. Returns
    /// whether the sink has opened another file. If the file at the path is locked, unlocks the open file: another sink
    /// of this process may have the lock, and wait for the open file.
    fn open_path(&mut self) -> io::Result<bool> {
        let open = self.file.metadata()?;
        match std::fs::metadata(&self.path) {
            // If the sink has unlocked the open file, another program may have written to the file meanwhile. In this
            // case, open the file again.
            Ok(at_path)
                if self.is_locked && (at_path.dev(), at_path.ino()) == (open.dev(), open.ino()) =>
            {
                return Ok(false);
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let file = open_or_create(&self.path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            let message = "the path no longer leads to a regular file";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let file = match lock(file) {
            Ok((file, _)) => file,
            Err(error) => {
                self.file.unlock()?;
                self.is_locked = false;
                return Err(error);
            }
        };
        self.is_locked = true;
        tracing::info!(
            path = %self.path.display(), inode_before = self.inode, inode = metadata.ino(),
            "sink file was renamed, removed or replaced: Ordain writes the next messages to the file that is now at the \
             path of the sink"
        );
        self.tail = TailFingerprint::read(&file, metadata.len())?;
        self.synced = self.tail.clone();
        self.inode = metadata.ino();
        self.file = file;
        self.unmarked_start = self.tail.end();
        self.kept.leave_file();
        Ok(true)
    }

    /// Makes the next write begin at the new end of the file if another process has truncated the file. A write at the
    /// old end would fill the missing part with zeros.
    fn check_length(&mut self) -> io::Result<()> {
        let file_length = self.file.metadata()?.len();
        if file_length < self.tail.end() {
            warn_shorter(&self.path, file_length, self.tail.end());
            self.tail = TailFingerprint::read(&self.file, file_length)?;
            self.synced = self.tail.clone();
            self.unmarked_start = self.unmarked_start.min(file_length);
        }
        Ok(())
    }

    /// Writes a line end if the data does not end with one. Another program may have written a line without a line end,
    /// or may have truncated the file within a line.
    fn end_line(&mut self) -> io::Result<()> {
        if self.tail.bytes().last().is_some_and(|byte| *byte != b'\n') {
            self.file.write_all_at(b"\n", self.tail.end())?;
            self.tail.extend(b"\n");
            self.is_synced = false;
        }
        Ok(())
    }

    pub(super) fn needs_sync(&self) -> bool {
        !self.is_synced
    }

    /// Makes all written lines durable. After a [lock error](is_lock_error), the caller may repeat the call, because
    /// no sync has failed. `unsynced` contains the lines that were appended since the previous sync. If another process
    /// removed or truncated the file before the sync had ended, writes these lines a second time. After a removal,
    /// writes the lines to the file that is now at the path. If this method wrote lines a second time, returns a mark
    /// for all runs whose messages the store has not marked as published. Otherwise returns `None`.
    pub(super) fn sync(&mut self, unsynced: &[u8]) -> io::Result<Option<Mark>> {
        if self.is_synced {
            return Ok(None);
        }
        self.file.sync_data()?;
        let mut rewritten_from = None;
        while !self.has_all_lines()? {
            rewritten_from = Some(self.write_again(unsynced)?);
            self.file.sync_data()?;
        }
        self.record_sync();
        // All pending runs get this mark: the runs whose messages the store has not marked as published. When the store
        // writes the mark for the first of these runs, the messages of the later runs are still in the outbox. The mark
        // therefore names the lines of all these runs as kept lines, so that a start compares all these lines with the
        // outbox.
        Ok(rewritten_from.map(|from| {
            let kept = self.unmarked_start.min(from)..self.tail.end();
            self.mark_with(Some(kept), true)
        }))
    }

    fn record_sync(&mut self) {
        self.is_synced = true;
        self.synced = self.tail.clone();
    }

    /// Returns whether the file still has a name, the final bytes of the synced data, and the final bytes of the lines
    /// that were written after the previous sync.
    fn has_all_lines(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.nlink() > 0
            && self.synced.is_in(&self.file)?
            && self.tail.is_in(&self.file)?)
    }

    /// Writes a second time the lines that were written since the previous sync. Returns the position of the first of
    /// these lines.
    fn write_again(&mut self, unsynced: &[u8]) -> io::Result<u64> {
        let metadata = self.file.metadata()?;
        if metadata.nlink() == 0 {
            self.open_path()?;
        } else {
            warn_shorter(&self.path, metadata.len(), self.tail.end());
            // If another process truncated the file before a write at the old end, this write has filled the missing
            // part with zeros.
            let end = end_of_data(&self.file, metadata.len().min(self.synced.end()))?;
            self.file.set_len(end)?;
            self.tail = TailFingerprint::read(&self.file, end)?;
            self.synced = self.tail.clone();
            self.unmarked_start = self.unmarked_start.min(end);
        }
        self.end_line()?;
        let from = self.tail.end();
        self.file.write_all_at(unsynced, from)?;
        self.tail.extend(unsynced);
        Ok(from)
    }

    /// Returns the mark for the store: the length and fingerprint of the written data, and the range of the kept lines.
    /// When the store writes the mark of a run, it has already marked the messages of all earlier runs with lines for
    /// this file as published. The mark therefore names the older files only while kept lines remain.
    pub(crate) fn mark(&self) -> Mark {
        self.mark_with(self.kept.range(), !self.kept.is_empty())
    }

    fn mark_with(&self, kept: Option<Range<u64>>, with_older: bool) -> Mark {
        let fingerprint = FileFingerprint { inode: self.inode, tail: self.tail.digest() };
        let older: Vec<OlderFile> =
            self.older.iter().filter(|_| with_older).map(|older| older.file).collect();
        let value = PublishedFile::encode(self.tail.end(), fingerprint, kept, &older);
        Mark { name: self.mark_name.clone(), value }
    }
}

/// Returns the position after the last non-zero byte before `end`; 0 if there is none. The lines of a sink file contain
/// no zero bytes.
fn end_of_data(file: &File, mut end: u64) -> io::Result<u64> {
    let mut buffer = vec![0; REWRITE_BYTES];
    while end > 0 {
        let part = &mut buffer[..end.min(REWRITE_BYTES as u64) as usize];
        let start = end - part.len() as u64;
        file.read_exact_at(part, start)?;
        if let Some(last) = part.iter().rposition(|byte| *byte != 0) {
            return Ok(start + last as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

/// Opens a file. Creates a missing file, and then syncs its folder.
fn open_or_create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let file = options.create(true).truncate(false).open(path)?;
            // The path may be a link to a file in another folder.
            let path = canonical_path(path);
            File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()?;
            Ok(file)
        }
        opened => opened,
    }
}

/// Locks a sink file. Two processes that write to the same file would overwrite each other's lines. The lock ends when
/// the file is dropped or the process ends. If the file system cannot lock files, as is the case with some network file
/// systems, returns the reason beside the file.
fn lock(file: File) -> io::Result<(LockedFile, Option<io::Error>)> {
    let unsupported = lock_result(file.try_lock())?;
    Ok((LockedFile::from(file), unsupported))
}

fn lock_result(locked: Result<(), TryLockError>) -> io::Result<Option<io::Error>> {
    match locked {
        Err(TryLockError::WouldBlock) => {
            let message = "another program, or another sink, has locked this file";
            Err(io::Error::new(io::ErrorKind::ResourceBusy, message))
        }
        Err(TryLockError::Error(error)) => Ok(Some(error)),
        Ok(()) => Ok(None),
    }
}

/// Returns whether an action failed because another program, or another sink of this process, has locked the file.
pub(super) fn is_lock_error(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ResourceBusy && error.raw_os_error().is_none()
}

fn warn_shorter(path: &Path, present: u64, published: u64) {
    tracing::warn!(
        path = %path.display(),
        present,
        published,
        "the sink file is shorter than the data that Ordain has written to it: another process has truncated, replaced \
         or removed the file. Ordain appends new messages, and does not write published messages again"
    );
}

/// Logs that the file at the path is not the file that `published` describes. Logs no warning if the path contains a
/// link, because an operator may have let the link lead to another file.
fn report_other_file(path: &Path, published: &PublishedFile, file_length: u64, inode: u64) {
    let fingerprint = published.fingerprint.as_ref();
    let is_other = fingerprint.is_some_and(|fingerprint| fingerprint.inode != inode);
    if is_other && FileSink::link_mark_name(path).is_some() {
        tracing::info!(
            path = %path.display(), bytes = file_length,
            "the path of the sink contains a link, and no longer leads to the file of the last run: Ordain writes new \
             messages at the end of the file at the path"
        );
    } else if file_length < published.length {
        warn_shorter(path, file_length, published.length);
    } else {
        tracing::warn!(
            path = %path.display(), bytes = file_length,
            "sink file is not the file of the last run: Ordain removes nothing from it, and writes new messages at its \
             end"
        );
    }
}

/// Returns whether a file is the file that the sink wrote, or a copy. Compares the final bytes of the published
/// content, or the inode if the published length is 0. Returns `true` if the mark has no fingerprint.
fn is_published(published: &PublishedFile, file: &File, inode: u64) -> io::Result<bool> {
    Ok(match &published.fingerprint {
        None => true,
        Some(fingerprint) if published.length == 0 => fingerprint.inode == inode,
        Some(fingerprint) => {
            fingerprint.tail == TailFingerprint::read(file, published.length)?.digest()
        }
    })
}

/// Searches for the file that `published` describes, under any name. Returns `None` if the mark has no fingerprint, if
/// there is no such file, or if no part of the file can have lines of unpublished messages.
fn find_renamed(path: &Path, published: &PublishedFile) -> io::Result<Option<RenamedFile>> {
    let Some(FileFingerprint { inode, .. }) = published.fingerprint else { return Ok(None) };
    let kept = published.kept.as_ref().map(|range| range.start);
    let older = OlderFile { inode, start: kept.unwrap_or(published.length) };
    let Some(renamed) = find_older(path, older)? else { return Ok(None) };
    let is_same =
        renamed.range.end >= published.length && is_published(published, &renamed.file, inode)?;
    Ok(is_same.then_some(renamed))
}

/// Searches the folder of a sink file, and of the file to which a link leads, for an older file under any name. Returns
/// `None` if the file is missing, or ends before the first line of an unpublished message.
fn find_older(path: &Path, older: OlderFile) -> io::Result<Option<RenamedFile>> {
    let OlderFile { inode, start } = older;
    let target = canonical_path(path);
    let own = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folders = [own.or(Some(Path::new("."))), target.parent()];
    for folder in folders.into_iter().flatten() {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            if entry.ino() != inode || !entry.file_type()?.is_file() {
                continue;
            }
            let writable = OpenOptions::new().read(true).write(true).open(entry.path());
            // Log rotation may have removed the permission to write to the file.
            let file = match writable.or_else(|_| File::open(entry.path())) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            let range = start..file.metadata()?.len();
            return Ok((!range.is_empty()).then_some(RenamedFile { inode, file, range }));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Opens a sink whose outbox is empty.
    fn open(path: &Path, mark: Option<&[u8]>) -> FileSink {
        FileSink::open(path, mark)
            .expect("opened")
            .finish(&UnpublishedMessages::default())
            .expect("finished")
            .0
    }

    /// The file has the content `before` and two messages. The mark does not cover the second message.
    fn written(folder: &Path, before: &str) -> (PathBuf, Mark) {
        let path = folder.join("out");
        fs::write(&path, before).expect("written");
        let mut sink = open(&path, None);
        sink.append(b"one\n").expect("appended");
        let known = sink.mark();
        sink.append(b"two\n").expect("appended");
        (path, known)
    }

    /// Appends a message to the sink file at `path`, and returns the contents of the file.
    fn after(path: &Path, mark: &[u8], message: &str) -> String {
        let mut sink = open(path, Some(mark));
        sink.append(message.as_bytes()).expect("appended");
        fs::read_to_string(path).expect("read")
    }

    #[test]
    fn lines_of_other_programs_are_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, known) = written(folder.path(), "kept\n");
        assert_eq!(after(&path, &known.value, "2\n"), "kept\none\n2\n");
        let first_form = 9_u64.to_le_bytes();
        assert_eq!(after(&path, &first_form, "two\n"), "kept\none\ntwo\n");

        // A copy of the sink file counts as the same file.
        fs::copy(&path, folder.path().join("copy")).expect("copied");
        fs::rename(folder.path().join("copy"), &path).expect("renamed");
        assert_eq!(after(&path, &known.value, "2\n"), "kept\none\n2\n");

        fs::remove_file(&path).expect("removed");
        assert_eq!(after(&path, &known.value, "three\n"), "three\n");
    }

    #[test]
    fn message_begins_a_line_of_its_own() {
        let folder = tempfile::tempdir().expect("a folder");
        // The file of another program has no line end.
        let (path, known) = written(folder.path(), "kept");
        assert_eq!(after(&path, &known.value, "2\n"), "kept\none\n2\n");
        let truncate = |length: u64| {
            let file = fs::File::options().write(true).open(&path).expect("opened");
            file.set_len(length).expect("truncated");
        };
        // Another program truncates the file within a line, between two runs and during a run.
        truncate(2);
        let mut sink = open(&path, Some(&known.value));
        sink.append(b"3\n").expect("appended");
        sink.sync(b"3\n").expect("synced");
        truncate(4);
        sink.append(b"4\n").expect("appended");
        assert_eq!(fs::read_to_string(&path).expect("read"), "ke\n3\n4\n");
        drop(sink);
        // A crash before the store has the mark leaves a file that a start accepts.
        assert_eq!(after(&path, &known.value, "5\n"), "ke\n3\n4\n5\n");
    }

    #[test]
    fn file_of_another_sink_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out");
        let sink = open(&path, None);
        let error = FileSink::open(&path, None).expect_err("the file is locked");
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
        assert!(error.to_string().contains("has locked this file"), "{error}");
        // A link of another sink leads to the file.
        let mut other = open(&folder.path().join("other"), None);
        fs::remove_file(folder.path().join("other")).expect("removed");
        std::os::unix::fs::symlink("out", folder.path().join("other")).expect("a link");
        let error = other.follow_path().expect_err("the file is locked");
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
        drop(sink);
        assert!(other.follow_path().expect("the file is free").is_some());
    }

    #[test]
    fn only_a_path_with_a_link_has_a_link_mark() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path().canonicalize().expect("a canonical path");
        fs::create_dir(folder.join("a")).expect("a folder");
        std::os::unix::fs::symlink("a", folder.join("link")).expect("a link");
        std::os::unix::fs::symlink("out", folder.join("a/to-out")).expect("a link");
        for path in ["a/out", "a/../a/out", "missing/out"] {
            assert_eq!(FileSink::link_mark_name(&folder.join(path)), None, "{path}");
        }
        for path in ["link/out", "a/to-out", "link/../a/out"] {
            let path = folder.join(path);
            let name = format!("sink-link/{}", path.display());
            assert_eq!(FileSink::link_mark_name(&path), Some(name));
        }
    }

    #[test]
    fn missing_locks_are_no_error() {
        let no_locks = io::Error::from(io::ErrorKind::Unsupported);
        let reason = lock_result(Err(TryLockError::Error(no_locks))).expect("no error");
        assert_eq!(reason.map(|error| error.kind()), Some(io::ErrorKind::Unsupported));
        assert!(lock_result(Ok(())).expect("no error").is_none());
        assert!(is_lock_error(&lock_result(Err(TryLockError::WouldBlock)).expect_err("locked")));
    }

    #[test]
    fn sinks_can_swap_their_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let [left, right, third] = ["left", "right", "third"].map(|name| folder.path().join(name));
        let mut sinks = [open(&left, None), open(&right, None)];
        for (from, to) in [(&left, &third), (&right, &left), (&third, &right)] {
            fs::rename(from, to).expect("renamed");
        }
        let error = sinks[0].follow_path().expect_err("the file is locked");
        assert!(is_lock_error(&error));
        for sink in sinks.iter_mut().rev() {
            assert!(sink.follow_path().expect("the file is free").is_some());
        }
    }

    #[test]
    fn sync_of_a_removed_file_waits_for_a_locked_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let [path, other] = ["out", "other"].map(|name| folder.path().join(name));
        let mut sink = open(&path, None);
        sink.append(b"one\n").expect("appended");
        let locking = open(&other, None);
        fs::rename(&other, &path).expect("renamed");
        for _ in 0..2 {
            let error = sink.sync(b"one\n").expect_err("the file is locked");
            assert!(is_lock_error(&error));
        }
        drop(locking);
        assert!(sink.sync(b"one\n").expect("synced").is_some());
        assert_eq!(fs::read_to_string(&path).expect("read"), "one\n");
    }

    #[test]
    fn another_file_is_not_truncated() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, known) = written(folder.path(), "");
        fs::write(&path, "a longer line of another program\n").expect("written");
        assert_eq!(after(&path, &known.value, "2\n"), "a longer line of another program\n2\n");

        // A file that takes the place of an empty sink file is not truncated.
        fs::remove_file(&path).expect("removed");
        let sink = open(&path, None);
        // `sink` keeps the old file open, so that no new file gets the inode of the old file.
        let empty = sink.mark();
        fs::write(folder.path().join("other"), "other\n").expect("written");
        fs::rename(folder.path().join("other"), &path).expect("renamed");
        assert_eq!(after(&path, &empty.value, "1\n"), "other\n1\n");
    }

    #[test]
    fn file_truncated_during_a_run_gets_no_zeros() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out");
        let mut sink = open(&path, None);
        for cut_to in [4, 0] {
            sink.append(b"one\ntwo\n").expect("appended");
            sink.sync(b"one\ntwo\n").expect("synced");
            fs::File::options()
                .write(true)
                .open(&path)
                .expect("opened")
                .set_len(cut_to)
                .expect("cut");
        }
        sink.append(b"three\n").expect("appended");
        assert_eq!(fs::read_to_string(&path).expect("read"), "three\n");
        let mark = sink.mark();
        drop(sink);
        assert_eq!(after(&path, &mark.value, "four\n"), "three\nfour\n");
    }
}
