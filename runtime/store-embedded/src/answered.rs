//! How many commits were answered, kept beside the engine.
//!
//! After a crash the engine drops what it cannot read at the end of its journal. At the very end
//! that is right: such a commit was never answered. A damaged journal loses more in the same
//! way, silently. So the number of commits is kept a second time, written after they are durable
//! and before they are answered; a database that holds fewer has lost some. The file is not
//! synced: after a power failure it may name an older number, never a newer one. This module
//! must never make a commit wait for the disk, nor fail one.

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
    /// Compares the file with what the database holds.
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
        // A file that was cut short by a power failure says nothing.
        let mut bytes = [0; 8];
        let answered = file.read_exact(&mut bytes).map_or(0, |()| u64::from_le_bytes(bytes));
        if answered > commits {
            return Err(lost(&path, answered, commits));
        }
        let mut this = Self { file, path, broken: false };
        this.write(commits);
        Ok(this)
    }

    /// Notes that so many commits are durable.
    pub(super) fn write(&mut self, commits: u64) {
        let written = self.file.rewind().and_then(|()| self.file.write_all(&commits.to_le_bytes()));
        if let Err(error) = written
            && !std::mem::replace(&mut self.broken, true)
        {
            let path = self.path.display();
            tracing::warn!(
                "cannot write {path}: {error}; damage may go unnoticed at the next start"
            );
        }
    }
}

fn lost(path: &Path, answered: u64, commits: u64) -> StoreError {
    StoreError::Unusable(format!(
        "the store has lost commits: it had answered {answered} and holds {commits}, so its \
         database is damaged or not whole. Its journals as they were are kept in data.before. Put the \
         store's folder back from a backup. To continue without the lost commits, remove {}",
        path.display()
    ))
}
