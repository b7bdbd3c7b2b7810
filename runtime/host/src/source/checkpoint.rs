//! How far a file source has come, kept in the store, with what tells the file from another one
//! under the same name. Starting too early is harmless, since repeats are known; starting too
//! late would lose events. So in any doubt it starts at the beginning.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use ordain_core::digest;
use serde::{Deserialize, Serialize};

use super::Position;

/// Bytes at either end of the read part that must be unchanged.
const PROBE: u64 = 4 << 10;

/// A position in a certain file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    device: u64,
    inode: u64,
    /// Digests of the first and the last bytes before the position.
    head: u64,
    tail: u64,
    offset: u64,
    line: u64,
}

/// A checkpoint that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("the checkpoint in the store cannot be read")]
pub struct CheckpointError(#[from] serde_json::Error);

impl Checkpoint {
    /// Describes a position in an open file.
    pub fn new(file: &File, position: Position) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let Position { offset, line } = position;
        let probe = |from: u64, length: u64| -> io::Result<u64> {
            let mut bytes = vec![0; length as usize];
            file.read_exact_at(&mut bytes, from)?;
            Ok(digest(&bytes))
        };
        let length = offset.min(PROBE);
        Ok(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            head: probe(0, length)?,
            tail: probe(offset - length, length)?,
            offset,
            line,
        })
    }

    /// Where to go on in the file: at the checkpoint's position if it is the same file and what
    /// was read of it is still there, else `None`.
    pub fn resume(&self, file: &File) -> Option<Position> {
        let position = Position { offset: self.offset, line: self.line };
        (Self::new(file, position).ok()? == *self).then_some(position)
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
        Ok(serde_json::from_slice(bytes)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn only_the_same_file_is_resumed() {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(b"one\ntwo\nthree\n").expect("written");
        let position = Position { offset: 8, line: 2 };
        let checkpoint = Checkpoint::new(&file, position).expect("described");
        let decoded = Checkpoint::decode(&checkpoint.encode()).expect("decoded");
        assert_eq!(decoded.resume(&file), Some(position));

        file.write_all(b"four\n").expect("appended");
        assert_eq!(decoded.resume(&file), Some(position), "a file may grow");

        file.write_all_at(b"TWO", 4).expect("overwritten");
        assert_eq!(decoded.resume(&file), None, "what was read has changed");

        file.set_len(3).expect("truncated");
        assert_eq!(decoded.resume(&file), None, "it is shorter than what was read");
    }
}
