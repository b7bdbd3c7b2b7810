//! A count of the groups of requests that the store has synced and answered, in a file outside the storage engine. A
//! group consists of the requests that the writer thread processes together. One sync makes a group durable; a group
//! that needs no sync is not counted.
//!
//! After a crash, the engine drops unreadable data at the end of its journal. If this data is an incomplete last group,
//! nothing is lost, because the store never answered that group. But if the journal is damaged, the engine also drops
//! answered groups, without an error. To detect this, the writer thread keeps the count of groups in two places. The
//! last write of each synced group puts the new count into the database. When the group is durable, the writer thread
//! writes the count into the file, and then answers the requests of the group. If the count in the database is lower
//! than the count in the file, the database has lost groups. The file is not synced: after a power failure, it may
//! contain a lower count than the database, but never a higher count. This module must never make a commit wait for the
//! disk, and must never make a commit fail.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};

use ordain_store::StoreError;
use ordain_util::io_error::may_pass;

pub(super) struct AnsweredCommits {
    file: File,
    path: PathBuf,
    has_failed: bool,
}

impl AnsweredCommits {
    /// Opens the file. Returns an error if the file has a higher count than `groups`, the count in the database.
    pub(super) fn open(path: PathBuf, groups: u64) -> Result<Self, StoreError> {
        let answered = read(&path);
        if answered > groups {
            return Err(lost_commits_error(&path, answered, groups));
        }
        let opened = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
        let file = opened.map_err(|error| {
            let words = format!("cannot write {}: {error}", path.display());
            if may_pass(&error) {
                StoreError::Unavailable(words)
            } else {
                StoreError::Unusable(words)
            }
        })?;
        let mut this = Self { file, path, has_failed: false };
        this.write(groups);
        Ok(this)
    }

    /// Writes the number of durable groups into the file. If this fails, continues, and logs the first failure.
    pub(super) fn write(&mut self, groups: u64) {
        let written = self.file.rewind().and_then(|()| self.file.write_all(&groups.to_le_bytes()));
        if let Err(error) = written
            && !std::mem::replace(&mut self.has_failed, true)
        {
            let path = self.path.display();
            tracing::warn!(
                "cannot write {path}: {error}. The store accepts commits as before, but if the disk loses some of the \
                 commits, the next start cannot always detect the loss: check the disk"
            );
        }
    }
}

/// Returns the count in the file; 0 if there is no file.
pub(super) fn read(path: &Path) -> u64 {
    // A power failure may truncate the file. A truncated file counts as 0.
    let bytes = fs::read(path).unwrap_or_default();
    bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn lost_commits_error(path: &Path, answered: u64, groups: u64) -> StoreError {
    StoreError::Unusable(format!(
        "the store has lost commits: it had answered {answered} groups of requests, but its database contains only \
         {groups} of these groups and is therefore damaged or incomplete. Restore the store's folder from a backup. If \
         the folder contains data.before, the original journals are in data.before. To continue without the lost \
         commits, remove {}",
        path.display()
    ))
}
