//! How far a file source has come, kept in the store, with what tells the file from another one
//! under the same name: what was read of it. In any doubt a file is read from its beginning:
//! starting too early repeats, which is known mostly; starting too late would lose events.
//!
//! A checkpoint is stored in one shard, but depends on commits in all shards. It therefore names the last commit of
//! each shard: if a shard lacks that commit, the checkpoint is in doubt.

use std::fs::File;
use std::io;
use std::path::Path;

use ordain_core::{Ordering, digest};
use serde::{Deserialize, Serialize};

use ordain_util::probe::{PROBE, Probe};

/// The form of what is stored.
const FORMAT: u32 = 3;

/// A position in a certain file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    format: u32,
    offset: u64,
    line: u64,
    print: Print,
    /// Of each shard.
    commits: Vec<u64>,
}

/// A place between two lines of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Position {
    /// Bytes before it.
    pub offset: u64,
    /// Lines before it.
    pub line: u64,
}

/// What was read of a file up to some place, behind the position or at it. It is made from the
/// bytes that were read, not from what the file has afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Print {
    end: u64,
    /// Digest of the first bytes, up to [`PROBE`].
    head: u64,
    /// Digest of the last bytes, and how many.
    tail: u64,
    tail_bytes: u64,
}

/// A checkpoint that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// It is no checkpoint of this form.
    #[error("the checkpoint in the store cannot be read")]
    Unreadable(#[from] serde_json::Error),
    /// It is of another version.
    #[error("the checkpoint in the store has the form {0}, and this version reads {FORMAT}")]
    Format(u32),
}

impl Print {
    /// Of a file that begins with `head`, up to the end of `tail`.
    pub fn new(head: &[u8], tail: &Probe) -> Self {
        Self {
            end: tail.end(),
            head: digest(&head[..head_length(tail.end()).min(head.len())]),
            tail: tail.digest(),
            tail_bytes: tail.bytes().len() as u64,
        }
    }

    /// Up to where it was read.
    pub fn end(&self) -> u64 {
        self.end
    }

    fn fits(&self, file: &File) -> io::Result<bool> {
        let whole = file.metadata()?.len() >= self.end && self.tail_bytes <= PROBE as u64;
        if !whole {
            return Ok(false);
        }
        let head = Probe::read(file, head_length(self.end) as u64)?;
        let tail = Probe::read(file, self.end)?;
        let from = tail.bytes().len().saturating_sub(self.tail_bytes as usize);
        Ok(head.digest() == self.head && digest(&tail.bytes()[from..]) == self.tail)
    }
}

/// Bytes of the head of a file that was read up to `end`.
fn head_length(end: u64) -> usize {
    end.min(PROBE as u64) as usize
}

impl Checkpoint {
    /// Creates the checkpoint of a position in the file with this print. `commits` has the last commit of each shard
    /// on which the position depends; it is empty if the position depends on no commits.
    pub fn new(position: Position, print: Print, commits: Vec<u64>) -> Self {
        let Position { offset, line } = position;
        Self { format: FORMAT, offset, line, print, commits }
    }

    /// Returns the shards whose last commit is older than the one that the checkpoint names.
    pub fn lost_in(&self, last_commits: &[u64]) -> Vec<usize> {
        let of_shards = self.commits.iter().zip(last_commits).enumerate();
        of_shards
            .filter_map(|(shard, (spoken_of, last))| (last < spoken_of).then_some(shard))
            .collect()
    }

    /// Where to go on in the file: at the checkpoint's position if what was read of it is still
    /// there, in this file or a copy, else `None`.
    pub fn resume(&self, file: &File) -> io::Result<Option<Position>> {
        let position = Position { offset: self.offset, line: self.line };
        Ok(self.print.fits(file)?.then_some(position))
    }

    /// The name of a stream's checkpoint among the store's marks.
    pub fn mark(stream: &str, path: &Path) -> String {
        format!("source/{stream}/{}", path.display())
    }

    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers can always be written")
    }

    /// Reads the stored form.
    pub fn decode(bytes: &[u8]) -> Result<Self, CheckpointError> {
        #[derive(Deserialize)]
        struct Form {
            format: Option<u32>,
        }
        // The first form did not say which it is.
        let format = serde_json::from_slice::<Form>(bytes)?.format.unwrap_or(1);
        if format != FORMAT {
            return Err(CheckpointError::Format(format));
        }
        Ok(serde_json::from_slice(bytes)?)
    }
}

/// What becomes of events that are read again from the beginning of a file.
pub fn read_again(ordering: Ordering) -> &'static str {
    match ordering {
        Ordering::Sequenced => "what was taken before is recognised",
        Ordering::Fifo => {
            "what was taken before is recognised by its id among the last `id_window` events of \
             its key, and what is older takes effect again"
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
    fn what_was_read_must_be_there() {
        let mut original = file(b"one\ntwo\nthree\n");
        let position = Position { offset: 4, line: 1 };
        let print = Print::new(b"one\ntwo\nth", &Probe::new(8, b"one\ntwo\n"));
        let checkpoint = Checkpoint::new(position, print, vec![7, 0, 9]);
        let decoded = Checkpoint::decode(&checkpoint.encode()).expect("decoded");
        let resume = |file: &File| decoded.resume(file).expect("compared");
        assert_eq!(resume(&original), Some(position));
        assert_eq!(resume(&file(b"one\ntwo\n")), Some(position), "a copy is as good");

        original.write_all(b"four\n").expect("appended");
        assert_eq!(resume(&original), Some(position), "a file may grow");

        original.write_all_at(b"TWO", 4).expect("overwritten");
        assert_eq!(resume(&original), None, "what was read has changed");

        original.set_len(7).expect("truncated");
        assert_eq!(resume(&original), None, "it is shorter than what was read");
    }

    #[test]
    fn a_shard_that_lost_commits_is_named() {
        let print = Print::new(b"", &Probe::new(0, b""));
        let checkpoint = Checkpoint::new(Position::default(), print, vec![7, 0, 9]);
        assert!(checkpoint.lost_in(&[7, 0, 9]).is_empty());
        assert!(checkpoint.lost_in(&[8, 5, 10]).is_empty());
        assert_eq!(checkpoint.lost_in(&[6, 5, 0]), [0, 2]);
        let of_a_publisher = Checkpoint::new(Position::default(), print, Vec::new());
        assert!(of_a_publisher.lost_in(&[0, 0, 0]).is_empty());
    }

    #[test]
    fn another_form_is_named() {
        let first = br#"{"device":1,"inode":2,"head":3,"tail":4,"offset":5,"line":6}"#;
        let error = Checkpoint::decode(first).expect_err("the first form");
        assert!(error.to_string().contains("has the form 1"), "{error}");
        Checkpoint::decode(b"no JSON").expect_err("no form at all");
    }
}
