//! The number of answered commits, kept outside the engine.
//!
//! After a crash the engine drops unreadable data at the end of its journal. For the last commit
//! that is correct: it was never answered. A damaged journal loses more commits in the same way,
//! silently. The number of commits is therefore kept a second time, written after the commits are
//! durable and before they are answered. A database with fewer commits has lost some. The file is
//! not synced: after a power failure it may contain an older number, never a newer one. This module
//! must never make a commit wait for the disk, and must never fail a commit.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use ordain_store::StoreError;

pub(super) struct Answered {
    file: File,
    path: PathBuf,
    broken: bool,
}

impl Answered {
    /// Opens the file and compares it with the number of commits in the database.
    pub(super) fn open(path: PathBuf, commits: u64) -> Result<Self, StoreError> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|error| {
                StoreError::Unusable(format!("cannot write {}: {error}", path.display()))
            })?;
        // A file that a power failure truncated contains no information.
        let mut bytes = [0; 8];
        let answered = file.read_exact(&mut bytes).map_or(0, |()| u64::from_le_bytes(bytes));
        if answered > commits {
            return Err(lost(&path, answered, commits));
        }
        let mut this = Self { file, path, broken: false };
        this.write(commits);
        Ok(this)
    }

    /// Records that `commits` commits are durable.
    pub(super) fn write(&mut self, commits: u64) {
        let written = self.file.rewind().and_then(|()| self.file.write_all(&commits.to_le_bytes()));
        if let Err(error) = written
            && !std::mem::replace(&mut self.broken, true)
        {
            let path = self.path.display();
            tracing::warn!(
                "cannot write {path}: {error}; the next start may not detect lost commits"
            );
        }
    }
}

fn lost(path: &Path, answered: u64, commits: u64) -> StoreError {
    StoreError::Unusable(format!(
        "the store has lost commits: it had answered {answered} and contains {commits}, so its \
         database is damaged or incomplete. The original journals are kept in data.before. Restore the \
         store's folder from a backup. To continue without the lost commits, remove {}",
        path.display()
    ))
}
