//! The checkpoint of a file source, or of a publisher that reads a file, in the store: a position in the file, and a
//! fingerprint of the bytes that were read. In this module, the word "source" includes such a publisher. The
//! fingerprint distinguishes the file from another file with the same name. If the checkpoint may be wrong, the source
//! reads the file from its beginning. Reading a part of the file twice only repeats events, and the stream recognises
//! most repeats. Skipping a part of the file would lose events, so a checkpoint must never name a position after the
//! first unprocessed event.
//!
//! A checkpoint is stored in one shard (a slice of the store), but depends on commits in all shards. For each shard,
//! the checkpoint therefore contains the number of the shard's last commit. If a shard has lost this commit, the
//! results of events before the position may be lost too, so the checkpoint may be wrong.

use std::fs::File;
use std::io;
use std::path::Path;

use ordain_core::{OrderingMode, digest};
use serde::{Deserialize, Serialize};

use ordain_util::tail_fingerprint::{TAIL_LIMIT_BYTES, TailFingerprint};

/// The format number of the stored checkpoints.
const FORMAT: u32 = 3;

/// The position up to which a source has read a file, with the fingerprint of that file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    format: u32,
    offset: u64,
    line: u64,
    print: ReadFingerprint,
    /// For each shard, the number of the last commit on which the position depends.
    commits: Vec<u64>,
    /// A random number of the run (one execution of `ordain publish`) that wrote the checkpoint; `None` if a stream's
    /// source wrote the checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    run: Option<u64>,
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
    /// Digest of the first bytes, up to [`TAIL_LIMIT_BYTES`].
    head: u64,
    /// Digest of the last bytes.
    tail: u64,
    /// The number of bytes that `tail` covers.
    tail_bytes: u64,
}

/// A checkpoint that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The stored bytes are not a checkpoint.
    #[error("the checkpoint in the store is unreadable")]
    Unreadable(#[from] serde_json::Error),
    /// The checkpoint has another format.
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

    fn matches(&self, file: &File) -> io::Result<bool> {
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

impl Checkpoint {
    /// Creates the checkpoint of a position in the file with this fingerprint. `commits` contains, for each shard, the
    /// number of the last commit on which the position depends. `commits` is empty if the position depends on no
    /// commit.
    pub fn new(position: FilePosition, fingerprint: ReadFingerprint, commits: Vec<u64>) -> Self {
        let FilePosition { offset, line } = position;
        Self { format: FORMAT, offset, line, print: fingerprint, commits, run: None }
    }

    /// Sets the number of the run that writes the checkpoint. The number distinguishes the checkpoint from a checkpoint
    /// that another run wrote at the same position.
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

    /// Returns the position at which the source continues in the file. Returns `None` if the file does not begin with
    /// the bytes that the source has read. A copy of the file with the same bytes is accepted.
    pub fn resume(&self, file: &File) -> io::Result<Option<FilePosition>> {
        let position = FilePosition { offset: self.offset, line: self.line };
        Ok(self.print.matches(file)?.then_some(position))
    }

    /// Returns the name of the mark (a named record in the store) that contains the checkpoint of a stream. The name does
    /// not contain the path of the file: the same file can have several paths, and its content shows whether the
    /// checkpoint belongs to it.
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

    /// Decodes a stored checkpoint.
    pub fn decode(bytes: &[u8]) -> Result<Self, CheckpointError> {
        #[derive(Deserialize)]
        struct CheckpointFormat {
            format: Option<u32>,
        }
        // A checkpoint in format 1 has no field `format`.
        let format = serde_json::from_slice::<CheckpointFormat>(bytes)?.format.unwrap_or(1);
        if format != FORMAT {
            return Err(CheckpointError::Format(format));
        }
        Ok(serde_json::from_slice(bytes)?)
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

    #[test]
    fn changed_file_is_not_continued() {
        let mut original = file(b"one\ntwo\nthree\n");
        let position = FilePosition { offset: 4, line: 1 };
        let print = ReadFingerprint::new(b"one\ntwo\nth", &TailFingerprint::new(8, b"one\ntwo\n"));
        let checkpoint = Checkpoint::new(position, print, vec![7, 0, 9]);
        let decoded = Checkpoint::decode(&checkpoint.encode()).expect("decoded");
        let resume = |file: &File| decoded.resume(file).expect("compared");
        assert_eq!(resume(&original), Some(position));
        assert_eq!(resume(&file(b"one\ntwo\n")), Some(position), "a copy is as good");

        original.write_all(b"four\n").expect("appended");
        assert_eq!(resume(&original), Some(position), "a file may grow");

        original.write_all_at(b"TWO", 4).expect("overwritten");
        assert_eq!(resume(&original), None, "the bytes that were read have changed");

        original.set_len(7).expect("truncated");
        assert_eq!(resume(&original), None, "the file is shorter than the bytes that were read");
    }

    #[test]
    fn shard_that_lost_commits_is_returned() {
        let print = ReadFingerprint::new(b"", &TailFingerprint::new(0, b""));
        let checkpoint = Checkpoint::new(FilePosition::default(), print, vec![7, 0, 9]);
        assert!(checkpoint.shards_that_lost_commits(&[7, 0, 9]).is_empty());
        assert!(checkpoint.shards_that_lost_commits(&[8, 5, 10]).is_empty());
        assert_eq!(checkpoint.shards_that_lost_commits(&[6, 5, 0]), [0, 2]);
        let of_a_publisher = Checkpoint::new(FilePosition::default(), print, Vec::new());
        assert!(of_a_publisher.shards_that_lost_commits(&[0, 0, 0]).is_empty());
    }

    #[test]
    fn other_format_is_an_error() {
        let first = br#"{"device":1,"inode":2,"head":3,"tail":4,"offset":5,"line":6}"#;
        let error = Checkpoint::decode(first).expect_err("the first format");
        assert!(error.to_string().contains("has format 1"), "{error}");
        Checkpoint::decode(b"no JSON").expect_err("no format at all");
    }
}
