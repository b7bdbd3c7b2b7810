//! The checkpoint of a file source, or of a publisher that reads a file, in the store. For each file, it contains a
//! position in the file, the identity of the file, and a fingerprint of the bytes that were read. In this module, the
//! word "source" includes such a publisher. By the identity (inode, device and creation time), the source recognises a
//! file that a log rotation has renamed. By the fingerprint, the source distinguishes the file from another file with
//! the same inode, and finds a copy of the file. If the checkpoint may be wrong, the source reads the files from their
//! beginning. Reading a part of a file twice only repeats events, and the stream recognises most repeats. Skipping a
//! part of a file would lose events, so a checkpoint must never name a position after the first unprocessed event.
//!
//! The checkpoint of a stream's source is stored in one shard (a slice of the store), but depends on commits in all
//! shards. For each shard, this checkpoint therefore contains the number of the last commit on which the positions
//! depend. If a shard has lost this commit, the results of events before the positions may be lost too, so the
//! checkpoint may be wrong.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use ordain_core::{OrderingMode, digest};
use serde::{Deserialize, Serialize};

use ordain_util::tail_fingerprint::{TAIL_LIMIT_BYTES, TailFingerprint};

const FORMAT: u32 = 4;

/// The checkpoint of a source: for each file of the source, the position before which all events are processed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    format: u32,
    files: Vec<FileProgress>,
    /// The last commit of each shard on which the positions depend.
    commits: Vec<u64>,
    /// The run (one execution of `ordain publish`) that wrote the checkpoint; `None` for a stream's source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    run: Option<u64>,
    /// Digests of the compressed files that need no report: they existed at the first start, the stream has a dead
    /// letter about them, or the source had read their lines before a program compressed them. `None` if a publisher or
    /// an earlier version of Ordain wrote the checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    compressed: Option<Vec<u64>>,
}

/// The position up to which a source has read one file, with the identity of the file. In a checkpoint, all events
/// before this position are processed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(clippy::struct_excessive_bools, reason = "the flags are independent of each other")]
pub struct FileProgress {
    /// The last known path.
    pub path: String,
    /// The device of the file.
    pub device: u64,
    /// The inode of the file.
    pub inode: u64,
    /// The time when the file was created, in nanoseconds since 1970; 0 if the file system does not record it. A new
    /// file may have the inode of a removed file, but not the creation time of that file.
    pub created_ns: u64,
    offset: u64,
    line: u64,
    /// The length of the file when the source last measured it.
    pub length: u64,
    /// The fingerprint of the bytes that were read.
    pub print: ReadFingerprint,
    /// The fingerprint of the first bytes that the file had when the source last measured it, at most
    /// [`TAIL_LIMIT_BYTES`]. By this fingerprint, the source detects that the content of a file has changed, even if
    /// the source has read nothing of this file. The fingerprint is empty as soon as the source has read a part of the
    /// file.
    #[serde(
        default = "ReadFingerprint::of_nothing",
        skip_serializing_if = "ReadFingerprint::is_of_nothing"
    )]
    pub first_bytes: ReadFingerprint,
    /// `true` if the path in the setting of the source named the file at the last scan of the folder. `false` if, for
    /// example, log rotation had renamed the file.
    pub is_live: bool,
    /// `true` if the source does not read the file, because log rotation had renamed the file before the source began
    /// to read the files of its path. The source begins to read at the first start of the stream and, if the path is a
    /// link, whenever the link leads to another file.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_ignored: bool,
    /// `true` if the file is missing and has no unread bytes that the source waits for. Such a file is in one of these
    /// cases: the source has read the file to its end, or ignores the file; the stream has a dead letter about the
    /// unread rest; or a publisher has continued with another file. If the file returns, the source reads only the
    /// bytes after the position. It reads no bytes of an ignored file.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_lost: bool,
    /// `true` if the source has found a compressed file that may be the compressed form of this file. A file has at
    /// most one compressed form, so the source does not compare this file with more compressed files.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_compressed: bool,
    /// `true` if the source has read only blanks from the file.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_only_blanks: bool,
}

/// A position between two lines of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FilePosition {
    /// The number of bytes before the position.
    pub offset: u64,
    /// The number of lines before the position.
    pub line: u64,
}

/// A fingerprint of the bytes that a source has read from a file. The source has read at least up to the position of
/// the checkpoint, and possibly beyond it. The fingerprint describes the bytes as they were when the source read them.
/// If a program changes these bytes later, the stored fingerprint stays the same, so a comparison
/// ([`matches`](Self::matches)) can show the change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadFingerprint {
    end: u64,
    /// Digest of the first bytes that were read, at most [`TAIL_LIMIT_BYTES`] bytes.
    head: u64,
    /// Digest of the last bytes that were read, at most [`TAIL_LIMIT_BYTES`] bytes.
    tail: u64,
    tail_bytes: u64,
}

/// The reason why a stored checkpoint cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The stored bytes are not a checkpoint.
    #[error("the checkpoint in the store is unreadable")]
    Unreadable(#[from] serde_json::Error),
    /// The checkpoint has another format. The value is the number of this format.
    #[error(
        "the checkpoint in the store has format {0}, but this version of Ordain reads format {FORMAT}"
    )]
    Format(u32),
}

impl ReadFingerprint {
    /// Creates the fingerprint of the bytes that were read from a file. `head` is the beginning of the file, and `tail`
    /// describes the last bytes that were read.
    pub fn new(head: &[u8], tail: &TailFingerprint) -> Self {
        Self {
            end: tail.end(),
            head: digest(&head[..head_length(tail.end()).min(head.len())]),
            tail: tail.digest(),
            tail_bytes: tail.bytes().len() as u64,
        }
    }

    /// Returns a digest of the whole fingerprint.
    pub fn digest(&self) -> u64 {
        let numbers = [self.end, self.head, self.tail, self.tail_bytes];
        digest(numbers.map(u64::to_be_bytes).as_flattened())
    }

    /// Returns the offset up to which the file was read, in bytes.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Returns the fingerprint of an unread file.
    pub fn of_nothing() -> Self {
        Self::new(b"", &TailFingerprint::new(0, b""))
    }

    fn is_of_nothing(&self) -> bool {
        self.end == 0
    }

    /// Returns whether a file begins with the bytes that this fingerprint describes, that is, with the bytes that the
    /// source had read. Compares only the first and the last of these bytes.
    pub fn matches(&self, file: &File) -> io::Result<bool> {
        let is_long_enough =
            file.metadata()?.len() >= self.end && self.tail_bytes <= TAIL_LIMIT_BYTES as u64;
        if !is_long_enough {
            return Ok(false);
        }
        let Some(head) = TailFingerprint::read_if_whole(file, head_length(self.end) as u64)? else {
            return Ok(false);
        };
        let Some(tail) = TailFingerprint::read_if_whole(file, self.end)? else { return Ok(false) };
        let from = tail.bytes().len().saturating_sub(self.tail_bytes as usize);
        Ok(head.digest() == self.head && digest(&tail.bytes()[from..]) == self.tail)
    }

    /// Returns whether the first bytes that were read are the beginning of `bytes`, the first bytes of a file. The
    /// caller must read at least [`TAIL_LIMIT_BYTES`] bytes, or the whole file.
    pub fn begins(&self, bytes: &[u8]) -> bool {
        bytes.get(..head_length(self.end)).is_some_and(|head| digest(head) == self.head)
    }

    /// Returns whether a file begins with the first bytes that were read. The result is `false` if all these bytes are
    /// zero: zeros do not identify a file, because many files begin with zeros after a program has truncated them.
    pub fn has_head(&self, file: &File) -> io::Result<bool> {
        let head = TailFingerprint::read_if_whole(file, head_length(self.end) as u64)?;
        Ok(head.is_some_and(|head| {
            head.digest() == self.head && head.bytes().iter().any(|byte| *byte != 0)
        }))
    }
}

fn head_length(end: u64) -> usize {
    end.min(TAIL_LIMIT_BYTES as u64) as usize
}

impl FileProgress {
    /// Creates the progress of an unread file.
    pub fn unread(path: String, metadata: &Metadata) -> Self {
        Self {
            path,
            device: metadata.dev(),
            inode: metadata.ino(),
            created_ns: created_ns(metadata),
            offset: 0,
            line: 0,
            length: metadata.len(),
            print: ReadFingerprint::of_nothing(),
            first_bytes: ReadFingerprint::of_nothing(),
            is_live: true,
            is_ignored: false,
            is_lost: false,
            is_compressed: false,
            has_only_blanks: false,
        }
    }

    /// Returns the position up to which the source has read the file.
    pub fn position(&self) -> FilePosition {
        FilePosition { offset: self.offset, line: self.line }
    }

    /// Sets the position up to which the source has read the file.
    pub fn set_position(&mut self, FilePosition { offset, line }: FilePosition) {
        self.offset = offset;
        self.line = line;
    }

    /// Sets the position, and the fingerprint of the bytes that were read. The fingerprint covers at least the bytes up
    /// to the position.
    #[must_use]
    pub fn at(mut self, position: FilePosition, print: ReadFingerprint) -> Self {
        self.set_position(position);
        self.print = print;
        self.length = self.length.max(print.end);
        if self.is_begun() {
            self.first_bytes = ReadFingerprint::of_nothing();
        }
        self
    }

    /// Forgets the length and the first bytes of an unread file.
    pub fn forget_content(&mut self) {
        self.length = 0;
        self.first_bytes = ReadFingerprint::of_nothing();
    }

    /// Returns the number of bytes from the position to the end of the file, as the source last measured the file.
    pub fn unread_bytes(&self) -> u64 {
        self.length.saturating_sub(self.offset)
    }

    /// Returns whether the source has read a part of the file.
    pub fn is_begun(&self) -> bool {
        self.print.end > 0
    }
}

/// Returns the time when a file was created, in nanoseconds since 1970; 0 if the file system does not record it.
pub fn created_ns(metadata: &Metadata) -> u64 {
    let created = metadata.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    created.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(0))
}

/// The progress of a source at the end of a batch of deliveries. All deliveries of the batch are from one file.
#[derive(Debug, Clone)]
pub struct SourceProgress {
    /// The progress in each file of the source. Many batches share one list, and the list does not change. For the file
    /// of a batch, the progress is therefore in `current` of the newest batch from this file, not in the list.
    pub files: Arc<[FileProgress]>,
    /// The index of the file of the batch.
    pub index: usize,
    /// The progress in the file of the batch, at the end of the batch.
    pub current: FileProgress,
    /// Digests of the compressed files that need no report after the batch; `None` if the source does not search for
    /// compressed files.
    pub compressed: Option<Arc<[u64]>>,
}

impl SourceProgress {
    /// Returns the checkpoint of the source after this batch. `earlier` has the progress at the end of earlier batches
    /// that share the list of files. `commits` contains, for each shard, the number of the last commit on which the
    /// position depends.
    pub fn checkpoint<'a>(
        &self,
        earlier: impl IntoIterator<Item = &'a Self>,
        position: FilePosition,
        commits: Vec<u64>,
    ) -> Checkpoint {
        let mut files = self.files.to_vec();
        for batch in earlier {
            if let Some(file) = files.get_mut(batch.index) {
                file.clone_from(&batch.current);
            }
        }
        if let Some(file) = files.get_mut(self.index) {
            *file = self.current.clone().at(position, self.current.print);
        }
        Checkpoint::new(files, commits).with_compressed(self.compressed.as_deref())
    }
}

impl Checkpoint {
    /// Creates a checkpoint of the files of a source. `commits` contains, for each shard, the number of the last commit
    /// on which the positions depend. `commits` is empty if the positions depend on no commit.
    pub fn new(files: Vec<FileProgress>, commits: Vec<u64>) -> Self {
        Self { format: FORMAT, files, commits, run: None, compressed: None }
    }

    /// Sets the digests of the compressed files that need no report.
    #[must_use]
    pub fn with_compressed(self, compressed: Option<&[u64]>) -> Self {
        Self { compressed: compressed.map(<[u64]>::to_vec), ..self }
    }

    /// Sets the number of the run (one execution of `ordain publish`) that writes the checkpoint. The number
    /// distinguishes the checkpoint from a checkpoint that another run wrote at the same position.
    #[must_use]
    pub fn of_run(self, run: u64) -> Self {
        Self { run: Some(run), ..self }
    }

    /// Returns the shards that have lost a commit. The checkpoint names a commit of each shard. A shard has lost this
    /// commit if the number of the shard's last commit is lower.
    pub fn shards_that_lost_commits(&self, last_commits: &[u64]) -> Vec<usize> {
        let required_and_last = self.commits.iter().zip(last_commits).enumerate();
        required_and_last
            .filter_map(|(shard, (required, last))| (last < required).then_some(shard))
            .collect()
    }

    /// Returns the files in the order in which the source reads them.
    pub fn files(&self) -> &[FileProgress] {
        &self.files
    }

    /// Returns the digests of the compressed files that need no report; `None` if the checkpoint does not contain them.
    pub fn compressed(&self) -> Option<&[u64]> {
        self.compressed.as_deref()
    }

    /// Returns the name of the mark (a named record in the store) that contains the checkpoint of a stream. The name
    /// does not contain the path of the source, because the source recognises its files by their identity and content,
    /// however the path is written.
    pub fn mark_name(stream: &str) -> String {
        format!("source/{stream}")
    }

    /// Encodes the checkpoint in the stored format.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers can always be written")
    }

    /// Decodes a stored checkpoint. Returns an error if the bytes are not a checkpoint in the present format.
    pub fn decode(bytes: &[u8]) -> Result<Self, CheckpointError> {
        #[derive(Deserialize)]
        struct CheckpointFormat {
            format: Option<u32>,
        }
        // A checkpoint in format 1 has no field `format`.
        let format = serde_json::from_slice::<CheckpointFormat>(bytes)?.format.unwrap_or(1);
        match format {
            FORMAT => Ok(serde_json::from_slice(bytes)?),
            _ => Err(CheckpointError::Format(format)),
        }
    }
}

/// Returns the end of the log line for a file that the source reads again from its beginning. This part of the line
/// states which of the repeated events take effect again.
pub fn reread_advice(ordering: OrderingMode) -> &'static str {
    match ordering {
        OrderingMode::Sequenced => "events that were processed before do not take effect again",
        OrderingMode::Fifo => {
            "events that were processed before do not take effect again if their ids are among the last \
             `id_window` ids of their keys; older events take effect again"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    fn file(text: &[u8]) -> File {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(text).expect("written");
        file
    }

    /// `read` contains the bytes that were read.
    fn progress(file: &File, read: &[u8], position: FilePosition) -> FileProgress {
        let metadata = file.metadata().expect("metadata");
        let print = ReadFingerprint::new(read, &TailFingerprint::new(read.len() as u64, read));
        FileProgress::unread("events".to_owned(), &metadata).at(position, print)
    }

    #[test]
    fn changed_file_is_not_continued() {
        let mut original = file(b"one\ntwo\nthree\n");
        let position = FilePosition { offset: 4, line: 1 };
        let of_original = progress(&original, b"one\ntwo\n", position);
        let checkpoint = Checkpoint::new(vec![of_original], vec![7, 0, 9]);
        let decoded = Checkpoint::decode(&checkpoint.encode()).expect("decoded");
        assert_eq!(decoded, checkpoint);
        let [decoded] = decoded.files() else { panic!("one file") };
        assert_eq!((decoded.position(), decoded.unread_bytes()), (position, 10));
        let matches = |file: &File| decoded.print.matches(file).expect("compared");
        assert!(matches(&original));
        assert!(matches(&file(b"one\ntwo\n")), "a copy is as good");

        original.write_all(b"four\n").expect("appended");
        assert!(matches(&original), "a file may grow");

        original.write_all_at(b"TWO", 4).expect("overwritten");
        assert!(!matches(&original), "the bytes that were read have changed");

        original.set_len(7).expect("truncated");
        assert!(!matches(&original), "the file is shorter than the bytes that were read");
    }

    #[test]
    fn shard_that_lost_commits_is_returned() {
        let checkpoint = Checkpoint::new(Vec::new(), vec![7, 0, 9]);
        assert!(checkpoint.shards_that_lost_commits(&[7, 0, 9]).is_empty());
        assert!(checkpoint.shards_that_lost_commits(&[8, 5, 10]).is_empty());
        assert_eq!(checkpoint.shards_that_lost_commits(&[6, 5, 0]), [0, 2]);
        let of_a_publisher = Checkpoint::new(Vec::new(), Vec::new());
        assert!(of_a_publisher.shards_that_lost_commits(&[0, 0, 0]).is_empty());
    }

    /// A checkpoint of an earlier version has no digests of compressed files.
    #[test]
    fn digests_of_compressed_files_are_optional() {
        let checkpoint = Checkpoint::new(Vec::new(), vec![7]);
        let text = String::from_utf8(checkpoint.encode()).expect("JSON");
        assert!(!text.contains("compressed"), "{text}");
        assert_eq!(Checkpoint::decode(text.as_bytes()).expect("decoded").compressed(), None);
        let digests = [u64::MAX, 1];
        let checkpoint = checkpoint.with_compressed(Some(&digests));
        let decoded = Checkpoint::decode(&checkpoint.encode()).expect("decoded");
        assert_eq!(decoded.compressed(), Some(&digests[..]));
    }

    #[test]
    fn other_format_is_an_error() {
        let first = br#"{"device":1,"inode":2,"head":3,"tail":4,"offset":5,"line":6}"#;
        let error = Checkpoint::decode(first).expect_err("the first format");
        assert!(error.to_string().contains("has format 1"), "{error}");
        Checkpoint::decode(b"no JSON").expect_err("no format at all");
    }
}
