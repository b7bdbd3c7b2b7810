//! A file that contains each message exactly once.
//!
//! Its length is written to the store together with the removal of the messages from the outbox.
//! At the start it is cut back to that length: what lies beyond was written by a process that
//! died before the store knew of it, and comes again.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::store::Mark;

/// An open file sink.
#[derive(Debug)]
pub struct FileSink {
    path: PathBuf,
    file: File,
    /// Where the next message goes.
    length: u64,
    synced: bool,
}

impl FileSink {
    /// Opens the file, with the mark that the store has of it. Without one, what is in the file
    /// stays and messages come behind it.
    pub fn open(path: &Path, mark: Option<&[u8]>) -> io::Result<Self> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        let present = file.metadata()?.len();
        let published = match mark {
            None => present,
            Some(mark) => mark.try_into().map(u64::from_le_bytes).map_err(|_| {
                io::Error::new(io::ErrorKind::InvalidData, "its length in the store is no number")
            })?,
        };
        if present < published {
            tracing::warn!(
                path = %path.display(),
                present,
                published,
                "the file is shorter than what has been published to it: somebody cut or removed \
                 it; new messages are written at its end"
            );
        } else if present > published {
            file.set_len(published)?;
        }
        Ok(Self { path: path.to_owned(), file, length: published.min(present), synced: true })
    }

    /// The name of a file's length among the store's marks.
    pub fn mark_name(path: &Path) -> String {
        format!("sink/{}", path.display())
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, self.length)?;
        self.length += bytes.len() as u64;
        self.synced = false;
        Ok(())
    }

    pub(super) fn sync(&mut self) -> io::Result<()> {
        if !self.synced {
            self.file.sync_data()?;
            self.synced = true;
        }
        Ok(())
    }

    /// The length, to be kept in the store.
    pub fn mark(&self) -> Mark {
        Mark {
            name: Self::mark_name(&self.path),
            value: Bytes::copy_from_slice(&self.length.to_le_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_store_does_not_know_of_is_cut_off() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out");
        std::fs::write(&path, "kept\n").expect("written");

        let mut sink = FileSink::open(&path, None).expect("opened");
        sink.append(b"one\n").expect("appended");
        let known = sink.mark();
        sink.append(b"two\n").expect("appended");
        drop(sink);

        let mut sink = FileSink::open(&path, Some(&known.value)).expect("opened");
        sink.append(b"2\n").expect("appended");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "kept\none\n2\n");

        std::fs::remove_file(&path).expect("removed");
        let mut sink = FileSink::open(&path, Some(&known.value)).expect("opened");
        sink.append(b"three\n").expect("appended");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "three\n");
    }
}
