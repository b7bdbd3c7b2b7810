//! The checkpoint of a file source, or of a publisher that reads a file, in the store: for each file, a position in the
//! file, the identity of the file, and a fingerprint of the bytes that were read. In this module, the word "source"
//! includes such a publisher. By the identity (device and inode), the source finds a file again after a log rotation
//! has given the file another name. By the fingerprint, the source distinguishes the file from another file with the
//! same inode, and finds a copy of the file. If the checkpoint may be wrong, the source reads the files from their
//! beginning. Reading a part of a file twice only repeats events, and the stream recognises most repeats. Skipping a
//! part of a file would lose events, so a checkpoint must never name a position after the first unprocessed event.
//!
//! The checkpoint of a stream's source is stored in one shard (a slice of the store), but depends on commits in all
//! shards. For each shard, this checkpoint therefore contains the number of the shard's last commit. If a shard has
//! lost this commit, the results of events before the position may be lost too, so the checkpoint may be wrong.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use ordain_core::{OrderingMode, digest};
use serde::{Deserialize, Serialize};

use ordain_util::tail_fingerprint::{TAIL_LIMIT_BYTES, TailFingerprint};

/// The format number of the stored checkpoints.
const FORMAT: u32 = 4;
/// The format number of the checkpoints of earlier versions of Ordain that this version can still read.
const EARLIER_FORMAT: u32 = 3;

/// The positions in the files of a source before which all events are processed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    format: u32,
    /// The files in the order in which the source reads them.
    files: Vec<FileProgress>,
    /// For each shard, the number of the last commit on which the positions depend.
    commits: Vec<u64>,
    /// A random number of the run (one execution of `ordain publish`) that wrote the checkpoint; `None` if a stream's
    /// source wrote the checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    run: Option<u64>,
}

/// A checkpoint of an earlier version: the position in one file, without the path and the identity of the file.
#[derive(Deserialize)]
struct EarlierCheckpoint {
    offset: u64,
    line: u64,
    print: ReadFingerprint,
    commits: Vec<u64>,
    run: Option<u64>,
}

/// The position up to which a source has read one file, with the identity of the file. In a checkpoint, all events
/// before this position are processed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileProgress {
    /// The last known path; empty in a checkpoint of an earlier version.
    pub path: String,
    /// The device of the file.
    pub device: u64,
    /// The inode of the file; 0 in a checkpoint of an earlier version.
    pub inode: u64,
    /// The time when the file was created, in nanoseconds since 1970; 0 if the file system does not record it. A new
    /// file may have the inode of a removed file, but not its time.
    pub created_ns: u64,
    offset: u64,
    line: u64,
    /// The length of the file when the source last measured it.
    pub length: u64,
    /// The fingerprint of the bytes that were read.
    pub print: ReadFingerprint,
    /// `true` if the path in the setting of the source named the file at the last scan of the folder; `false` if, for
    /// example, log rotation had given the file another name.
    pub is_live: bool,
    /// `true` if the file is an older file of a log rotation that existed before the first start of the stream. The
    /// source does not read such a file.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_ignored: bool,
    /// `true` if the file is missing, and the stream has a dead letter about its unread rest.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_lost: bool,
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
/// the checkpoint, and possibly further. The fingerprint does not change if the file is changed afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadFingerprint {
    end: u64,
    /// Digest of the first bytes that were read, at most [`TAIL_LIMIT_BYTES`] bytes.
    head: u64,
    /// Digest of the last bytes that were read.
    tail: u64,
    /// The number of bytes that `tail` covers.
    tail_bytes: u64,
}

/// The reason why a stored checkpoint cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The stored bytes are not a checkpoint.
    #[error("the checkpoint in the store is unreadable")]
    Unreadable(#[from] serde_json::Error),
    /// The checkpoint has another format. The value is the number of this format.
    #[error("the checkpoint in the store has format {0}, and this version reads format {FORMAT}")]
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

    /// Returns the offset up to which the file was read, in bytes.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Returns the fingerprint of a file of which nothing was read.
    pub fn of_nothing() -> Self {
        Self::new(b"", &TailFingerprint::new(0, b""))
    }

    /// Returns whether a file begins with the bytes that were read. Compares only the first and the last of these
    /// bytes.
    pub fn matches(&self, file: &File) -> io::Result<bool> {
        let is_long_enough =
            file.metadata()?.len() >= self.end && self.tail_bytes <= TAIL_LIMIT_BYTES as u64;
        if !is_long_enough {
            return Ok(false);
        }
        let head = TailFingerprint::read(file, head_length(self.end) as u64)?;
        let tail = TailFingerprint::read(file, self.end)?;
        let from = tail.bytes().len().saturating_sub(self.tail_bytes as usize);
        Ok(head.digest() == self.head && digest(&tail.bytes()[from..]) == self.tail)
    }
}

/// Returns the length of the head of a file that was read up to `end`, in bytes.
fn head_length(end: u64) -> usize {
    end.min(TAIL_LIMIT_BYTES as u64) as usize
}

impl FileProgress {
    /// Creates the progress of a file of which nothing was read.
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
            is_live: true,
            is_ignored: false,
            is_lost: false,
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
        self
    }

    /// Returns the number of bytes after the position that the file had when the source last measured it.
    pub fn unread_bytes(&self) -> u64 {
        self.length.saturating_sub(self.offset)
    }

    /// Returns whether the identity of the file is known. A checkpoint of an earlier version has only the position and
    /// the fingerprint, so the source searches for the file by its content, as for a copy.
    pub fn has_identity(&self) -> bool {
        self.inode != 0
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
    /// The progress in each file of the source. For the file of the batch, `current` is more recent.
    pub files: Arc<[FileProgress]>,
    /// The index of the file of the batch.
    pub index: usize,
    /// The progress in the file of the batch, at the end of the batch.
    pub current: FileProgress,
}

impl SourceProgress {
    /// Returns the checkpoint of the source with this position in the file of the batch. `commits` contains, for each
    /// shard, the number of the last commit on which the position depends.
    pub fn checkpoint(&self, position: FilePosition, commits: Vec<u64>) -> Checkpoint {
        let mut files = self.files.to_vec();
        if let Some(file) = files.get_mut(self.index) {
            *file = self.current.clone().at(position, self.current.print);
        }
        Checkpoint::new(files, commits)
    }
}

impl Checkpoint {
    /// Creates a checkpoint of the files of a source. `commits` contains, for each shard, the number of the last commit
    /// on which the positions depend. `commits` is empty if the positions depend on no commit.
    pub fn new(files: Vec<FileProgress>, commits: Vec<u64>) -> Self {
        Self { format: FORMAT, files, commits, run: None }
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

    /// Returns whether an earlier version wrote the checkpoint. Such a checkpoint has one file without identity, and no
    /// older files of a log rotation.
    pub fn is_of_earlier_version(&self) -> bool {
        self.format != FORMAT
    }

    /// Returns the files in the order in which the source reads them.
    pub fn files(&self) -> &[FileProgress] {
        &self.files
    }

    /// Returns the name of the mark (a named record in the store) that contains the checkpoint of a stream. The path of
    /// the source is not a part of the name: the files are recognised by their identity and content, under any spelling
    /// of the path.
    pub fn mark_name(stream: &str) -> String {
        format!("source/{stream}")
    }

    /// Returns the name of the mark in which earlier versions kept the checkpoint of a stream that reads a path.
    pub fn earlier_mark_name(stream: &str, path: &Path) -> String {
        format!("source/{stream}/{}", path.display())
    }

    /// Encodes the checkpoint in the stored format.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers can always be written")
    }

    /// Decodes a stored checkpoint. Returns an error if the bytes are not a checkpoint in the present format or in the
    /// format of earlier versions that this version can still read.
    pub fn decode(bytes: &[u8]) -> Result<Self, CheckpointError> {
        #[derive(Deserialize)]
        struct CheckpointFormat {
            format: Option<u32>,
        }
        // A checkpoint in format 1 has no field `format`.
        let format = serde_json::from_slice::<CheckpointFormat>(bytes)?.format.unwrap_or(1);
        match format {
            FORMAT => Ok(serde_json::from_slice(bytes)?),
            EARLIER_FORMAT => Ok(serde_json::from_slice::<EarlierCheckpoint>(bytes)?.into()),
            _ => Err(CheckpointError::Format(format)),
        }
    }
}

impl From<EarlierCheckpoint> for Checkpoint {
    fn from(earlier: EarlierCheckpoint) -> Self {
        let EarlierCheckpoint { offset, line, print, commits, run } = earlier;
        let progress = FileProgress {
            path: String::new(),
            device: 0,
            inode: 0,
            created_ns: 0,
            offset,
            line,
            length: offset,
            print,
            is_live: true,
            is_ignored: false,
            is_lost: false,
        };
        Self { format: EARLIER_FORMAT, run, ..Self::new(vec![progress], commits) }
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

    /// Returns the progress in a file of which the bytes `read` were read.
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

    #[test]
    fn checkpoint_of_earlier_version_has_no_identity() {
        let print = ReadFingerprint::new(b"one\n", &TailFingerprint::new(4, b"one\n"));
        let stored = serde_json::json!({
            "format": 3, "offset": 4, "line": 1, "print": print, "commits": [7, 9],
        });
        let checkpoint = Checkpoint::decode(stored.to_string().as_bytes()).expect("decoded");
        assert!(checkpoint.is_of_earlier_version());
        assert_eq!(checkpoint.shards_that_lost_commits(&[7, 8]), [1]);
        let [progress] = checkpoint.files() else { panic!("one file") };
        assert_eq!(progress.position(), FilePosition { offset: 4, line: 1 });
        assert!(!progress.has_identity() && progress.is_begun() && progress.unread_bytes() == 0);
        assert!(progress.print.matches(&file(b"one\ntwo\n")).expect("compared"));
    }

    #[test]
    fn other_format_is_an_error() {
        let first = br#"{"device":1,"inode":2,"head":3,"tail":4,"offset":5,"line":6}"#;
        let error = Checkpoint::decode(first).expect_err("the first format");
        assert!(error.to_string().contains("has format 1"), "{error}");
        Checkpoint::decode(b"no JSON").expect_err("no format at all");
    }
}
