//! A copy of a server's data. A test restores the copy to return a store to an earlier time. The copy contains only the
//! folder of the data, so a test that restores the copy changes neither the configuration nor the log file of the
//! server.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::redis::Redis;

/// The saved files of a server.
#[derive(Debug)]
pub struct Snapshot {
    folder: TempDir,
}

impl Redis {
    /// Copies the data of the server, whether it is running or not. Pauses a running server during the copy. If the
    /// server writes each change to disk before it replies, the copy therefore contains every write to which the server
    /// has replied.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let snapshot = Snapshot { folder: tempfile::tempdir()? };
        self.still(|| copy(&self.data(), snapshot.folder.path()))
            .context("cannot copy the server's data")?;
        Ok(snapshot)
    }

    /// Kills the server, restores the data of the snapshot, and starts the server again. All writes after the snapshot
    /// are lost.
    pub fn go_back(&self, to: &Snapshot) -> Result<()> {
        self.kill()?;
        fs::remove_dir_all(self.data())?;
        fs::create_dir(self.data())?;
        copy(to.folder.path(), &self.data()).context("cannot restore the server's data")?;
        self.restart()
    }
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            fs::create_dir(&target)?;
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
