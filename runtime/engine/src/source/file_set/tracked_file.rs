//! A file of a source, with the position that the source has reached in it.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use ordain_store::checkpoint::{FilePosition, FileProgress, ReadFingerprint, created_ns};
use ordain_util::canonical_path::canonical_path;
use ordain_util::file_pattern::FileRole;
use ordain_util::tail_fingerprint::{TAIL_LIMIT_BYTES, TailFingerprint};

use super::compressed::CompressedFile;
use super::identity::{fingerprint, has_whole_line, head, is_same_inode, open_at, open_same};
use super::listed_file::ListedFile;

#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "the flags are independent of each other")]
pub(in crate::source) struct TrackedFile {
    pub(in crate::source) progress: FileProgress,
    /// `None` if the file is missing or ignored, not opened yet, or closed after the source read it to its end.
    pub(in crate::source) file: Option<Arc<File>>,
    /// The path of the file for messages: in the spelling of the configuration if a listing has found the file through
    /// the configured path, and the canonical path otherwise.
    pub(in crate::source) name: String,
    /// The position up to which the source has read, including an incomplete last line.
    pub(in crate::source) read_to: u64,
    /// In this pass, the source reads up to this position before it continues with the next file.
    pub(in crate::source) target: u64,
    /// The end of the incomplete last line, and the time when the source first found this end.
    pub(in crate::source) rest_seen: Option<(u64, Instant)>,
    /// The time since which the reader has found an incomplete last line at each visit of the file; `None` if the last
    /// line was complete at the newest visit.
    pub(in crate::source) unfinished_since: Option<Instant>,
    /// The description of the lost unread rest, until the source delivers the dead letter about it.
    pub(in crate::source) loss: Option<String>,
    /// The digest of the new compressed file that `loss` names.
    pub(in crate::source) loss_in: Option<u64>,
    /// The length and the modification time of the file at the newest comparison which showed that the file matches its
    /// fingerprint.
    pub(super) compared: Option<(u64, SystemTime)>,
    /// `true` if `progress.first_bytes` contain a whole non-blank line. Other files do not begin with this line.
    pub(super) has_known_line: bool,
    /// `true` if the first bytes already contained such a line before the newest listing of the folder. This listing
    /// had no unknown older file. While this file has these first bytes, no older file therefore has earlier lines of
    /// this file.
    pub(super) is_identified: bool,
    /// The first bytes of the file, at most [`COMPARED_BYTES`](super::comparison::COMPARED_BYTES). `None` if no
    /// comparison has read these bytes since the newest listing of the folder.
    pub(super) start: Option<Vec<u8>>,
    /// `true` if the newest scan found no file with this identity and content, neither among the open files nor in the
    /// folder.
    pub(super) is_missing: bool,
    /// `true` if an earlier listing of the present scan already showed that the file is missing.
    pub(super) was_missing: bool,
    /// `true` if a program truncated the file in place before the source had read anything of it. The unread bytes are
    /// then in a copy of the file, or lost.
    pub(super) is_cut: bool,
    pub(super) has_old_path: bool,
    pub(super) is_listed: bool,
    /// `true` if the file was gone (see [`is_gone`](Self::is_gone)) at the end of the newest complete scan.
    pub(super) was_gone: bool,
}

impl TrackedFile {
    pub(super) fn new(progress: FileProgress, name: String, file: Option<Arc<File>>) -> Self {
        Self {
            read_to: progress.position().offset,
            was_gone: progress.is_lost,
            progress,
            file,
            name,
            target: 0,
            rest_seen: None,
            unfinished_since: None,
            loss: None,
            loss_in: None,
            compared: None,
            has_known_line: false,
            is_identified: false,
            start: None,
            is_missing: false,
            was_missing: false,
            is_cut: false,
            has_old_path: false,
            is_listed: false,
        }
    }

    /// Returns whether the source reads the file: the file is neither ignored nor lost.
    pub(in crate::source) fn is_read(&self) -> bool {
        !self.progress.is_ignored && !self.progress.is_lost
    }

    /// Returns whether a file with this metadata has the identity of the tracked file. A device may have another number
    /// after a restart of the machine, so this method compares the device only if the tracked file is open.
    pub(super) fn is(&self, metadata: &Metadata) -> bool {
        is_same_inode(&self.progress, metadata)
            && (self.progress.device == metadata.dev() || self.file.is_none())
    }

    /// Opens the file at its last known path. If a program has changed a link of the configured path, only the
    /// configured path may still lead to the file. In this case, opens the file at the configured path, and records the
    /// new canonical path. Returns `None` if no path leads to the file.
    pub(super) fn open_at_its_path(&mut self) -> io::Result<Option<Arc<File>>> {
        if let Some(file) = open_same(&self.progress)? {
            return Ok(Some(file));
        }
        let path = Path::new(&self.name);
        let opened = open_at(path, self.progress.device, self.progress.inode)?;
        if opened.is_some() {
            self.progress.path = canonical_path(path).display().to_string();
        }
        Ok(opened)
    }

    /// Continues in another file, such as a copy, which begins with the bytes that were read. The position stays the
    /// same.
    pub(super) fn continue_in(
        &mut self,
        path: &Path,
        metadata: &Metadata,
        is_live: bool,
        file: Arc<File>,
    ) {
        let progress = &mut self.progress;
        progress.path = canonical_path(path).display().to_string();
        progress.device = metadata.dev();
        progress.inode = metadata.ino();
        progress.created_ns = created_ns(metadata);
        progress.length = metadata.len();
        progress.is_live = is_live;
        progress.is_lost = false;
        progress.is_compressed = false;
        self.name = path.display().to_string();
        self.file = Some(file);
        self.read_to = self.progress.position().offset;
        self.rest_seen = None;
        self.loss = None;
        self.compared = None;
        self.has_known_line = false;
        self.is_identified = false;
        self.start = None;
        self.is_missing = false;
        self.was_missing = false;
        self.is_cut = false;
        self.has_old_path = false;
        self.is_listed = true;
        self.was_gone = false;
    }

    /// Adapts the entry to a copy that ends before the position up to which the file was read. Afterwards, the position
    /// is at most the end of the copy, and the fingerprint covers only bytes of the copy.
    pub(super) fn end_at(&mut self, copy: &File, length: u64) -> io::Result<()> {
        let position = self.progress.position();
        let offset = position.offset.min(length);
        let print = fingerprint(copy, offset)?;
        self.progress = self.progress.clone().at(FilePosition { offset, ..position }, print);
        self.read_to = offset;
        Ok(())
    }

    /// Makes the next scan compare the file with its fingerprint, and makes the source read the incomplete last line a
    /// second time.
    pub(in crate::source) fn compare_again(&mut self) {
        self.read_to = self.progress.position().offset;
        self.rest_seen = None;
        self.compared = None;
    }

    /// Records the present name of the file, and whether the path of the source names the file.
    pub(super) fn rename(&mut self, listed: &ListedFile) {
        let name = listed.path.display().to_string();
        if self.name != name {
            self.progress.path = canonical_path(&listed.path).display().to_string();
            self.name = name;
        }
        self.progress.is_live = listed.role == FileRole::Live;
        self.progress.is_compressed = false;
    }

    /// Records that the stream gets a dead letter about the unread rest. If a program truncated the file in place
    /// before anything of it was read, the source continues with the beginning of the file. Otherwise the file counts
    /// as lost.
    pub(in crate::source) fn record_loss(&mut self) {
        if self.is_cut {
            self.progress.forget_content();
            self.has_known_line = false;
            self.is_identified = false;
            self.compare_again();
            self.is_missing = false;
            self.is_cut = false;
        } else {
            self.progress.is_lost = true;
            self.progress.is_compressed |= self.loss_in.is_some();
        }
    }

    /// Returns whether the present length of the file shows that a program truncated the file before any line of it was
    /// read. In this case, the file had bytes after `read_to`, and `length` is below the last known length.
    pub(in crate::source) fn is_cut_to(&self, length: u64) -> bool {
        self.may_be_cut() && length < self.progress.length
    }

    /// Returns whether the length or the first bytes of `file` show that a program truncated the file before any line
    /// of it was read. The file may have grown beyond its last known length after the truncation.
    pub(in crate::source) fn is_cut_in(&self, file: &File) -> io::Result<bool> {
        let length = file.metadata()?.len();
        Ok(self.may_be_cut()
            && (self.is_cut_to(length) || !self.progress.first_bytes.matches(file)?))
    }

    fn may_be_cut(&self) -> bool {
        !self.progress.is_begun() && self.read_to < self.progress.length
    }

    /// Updates `progress.first_bytes` after the file has grown. Keeps the earlier fingerprint if the file is shorter
    /// than its last known length, or no longer has the first bytes that it had before. With the earlier fingerprint,
    /// the next comparison shows the change.
    pub(super) fn remember_first_bytes(&mut self, file: &File) -> io::Result<()> {
        let known = self.progress.first_bytes.end();
        let limit = self.progress.length.min(TAIL_LIMIT_BYTES as u64);
        let is_known = known >= limit && (self.has_known_line || limit == 0);
        if self.progress.is_begun() || is_known {
            return Ok(());
        }
        let head = head(file)?;
        let tail = TailFingerprint::new(head.len() as u64, &head);
        let first_bytes = ReadFingerprint::new(&head, &tail);
        // These comparisons follow the read, so they also detect a truncation before the read or during the read.
        if file.metadata()?.len() >= self.progress.length
            && self.progress.first_bytes.matches(file)?
            && first_bytes.matches(file)?
        {
            self.progress.first_bytes = first_bytes;
            // In a longer file, the first bytes count as a whole line even if the line has no end within these bytes.
            let end = self.progress.length.max(head.len() as u64);
            self.has_known_line = has_whole_line(&TailFingerprint::new(end, &head));
        }
        Ok(())
    }

    /// Records that a listing of the folder has no unknown older file. The caller must have read the first bytes of the
    /// file before the listing.
    pub(super) fn record_listing(&mut self) {
        self.is_identified = self.has_known_line;
    }

    /// Returns whether the first bytes of the file show that no older file has earlier lines of this file. The caller
    /// must check that the file still has these first bytes (see [`is_cut_in`](Self::is_cut_in)).
    pub(in crate::source) fn is_identified(&self) -> bool {
        self.is_identified && self.may_be_cut()
    }

    /// Returns whether a program has truncated or rewritten the file since the newest scan found it.
    pub(super) fn has_changed(&self, file: &File) -> io::Result<bool> {
        Ok(!self.progress.print.matches(file)? || self.is_cut_in(file)?)
    }

    /// Returns whether the file is found. A file that a program truncated before the source read anything of it counts
    /// as found.
    pub(super) fn is_present(&self) -> bool {
        !self.is_missing || self.is_cut
    }

    /// Returns whether the source has read no line of the file, or only blanks. Blanks do not identify a file: many
    /// files begin with the same blanks after a truncation.
    pub(in crate::source) fn has_no_read_line(&self) -> bool {
        self.progress.position().line == 0 || self.progress.has_only_blanks
    }

    pub(super) fn is_unbegun(&self) -> bool {
        self.is_read() && self.has_no_read_line()
    }

    /// Returns whether two conditions hold: the file is missing, and the source has read it to its end or ignores it.
    pub(super) fn is_remembered(&self) -> bool {
        self.progress.is_lost && (self.progress.is_ignored || self.progress.unread_bytes() == 0)
    }

    /// Returns whether the folder no longer has the file with the content that was read.
    pub(super) fn is_gone(&self) -> bool {
        self.is_missing || !self.is_listed
    }

    /// Returns whether the file may have become a compressed file, and the set has not matched it with a compressed
    /// file yet. An ignored file counts only in the scan that finds it missing. A compressed file that appears later
    /// probably contains unread lines, and has the same length only by chance.
    pub(super) fn may_be_compressed(&self) -> bool {
        let is_forgotten = self.progress.is_ignored && self.was_gone;
        self.is_gone() && !is_forgotten && !self.progress.is_compressed && self.loss.is_none()
    }

    /// Returns the fingerprint of the bytes that were read. If nothing was read, returns the fingerprint of the first
    /// bytes. Returns `None` if the set knows no byte of the file.
    pub(super) fn beginning(&self) -> Option<&ReadFingerprint> {
        let FileProgress { print, first_bytes, .. } = &self.progress;
        [print, first_bytes].into_iter().find(|known| known.end() > 0)
    }

    /// Returns whether two conditions hold: the file has become missing, and the file has an unread rest or probably
    /// had one. A file probably had an unread rest if the path of the source named the file, because programs may have
    /// appended lines to such a file. A program seldom appends lines to a file that log rotation has renamed; only a
    /// compressed file with the same first bytes shows such lines.
    pub(super) fn may_have_unknown_rest(&self) -> bool {
        let is_reported = self.progress.is_lost || self.loss.is_some();
        let may_have_grown = self.progress.unread_bytes() > 0 || self.progress.is_live;
        self.is_missing && !is_reported && !self.progress.is_ignored && may_have_grown
    }

    /// Returns the digest of the new compressed file that the next dead letter about this file names.
    pub(super) fn unreported_rest(&self) -> Option<u64> {
        self.loss_in.filter(|_| self.loss.is_some())
    }

    /// Returns whether the source has already tried to read the incomplete last line up to this end.
    pub(in crate::source) fn has_tried(&self, end: u64) -> bool {
        self.rest_seen.is_some_and(|(seen, _)| seen == end)
    }

    /// Returns whether the file has unread bytes. An incomplete last line counts as unread.
    pub(super) fn is_unread(&self) -> bool {
        self.is_read() && self.progress.unread_bytes() > 0
    }

    /// Returns whether the file still has the bytes that were read. Compares the file with the fingerprint only if its
    /// length or its modification time has changed since the previous comparison.
    pub(super) fn has_read_bytes(&mut self, file: &File, metadata: &Metadata) -> io::Result<bool> {
        let state = (metadata.len(), metadata.modified()?);
        if self.compared == Some(state) {
            return Ok(true);
        }
        let has_read_bytes = self.progress.print.matches(file)?;
        self.compared = has_read_bytes.then_some(state);
        Ok(has_read_bytes)
    }

    /// Marks the file as an older file that the source does not read.
    pub(super) fn ignore(&mut self, file: &File) -> io::Result<()> {
        let length = file.metadata()?.len();
        let position = FilePosition { offset: length, line: 0 };
        self.progress = self.progress.clone().at(position, fingerprint(file, length)?);
        self.progress.is_ignored = true;
        self.file = None;
        Ok(())
    }
}

pub(super) fn describe_loss(tracked: &TrackedFile, compressed: Option<&CompressedFile>) -> String {
    let FileProgress { device, inode, .. } = tracked.progress;
    let from = tracked.progress.position().offset;
    let bytes = match tracked.progress.unread_bytes() {
        0 => "the bytes".to_owned(),
        unread => format!("at least {unread} bytes"),
    };
    let place = match compressed {
        Some(file) => format!(
            "The bytes may be in {}: uncompress this file in its folder, and Ordain reads the rest",
            file.description()
        ),
        None => "Put the file back into its folder, and Ordain reads the rest".to_owned(),
    };
    format!(
        "{}, device {device}, inode {inode}: {bytes} from byte {from} on were not read, because the file was removed, \
         truncated, compressed or made unreadable before Ordain had read it to its end. {place}",
        tracked.name
    )
}
