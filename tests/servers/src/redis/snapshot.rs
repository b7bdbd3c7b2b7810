//! A server's data at an earlier time, to make a store that went back in time. It never changes
//! the configuration or the log.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::redis::Redis;

/// The files of a server as they were.
#[derive(Debug)]
pub struct Snapshot {
    folder: TempDir,
}

impl Redis {
    /// Copies the data aside, of a server that runs or not. A running one stands still meanwhile,
    /// so that the copy holds every write that was answered before, where writes go to disk at
    /// once.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let snapshot = Snapshot { folder: tempfile::tempdir()? };
        self.still(|| copy(&self.data(), snapshot.folder.path()))
            .context("cannot copy the server's data")?;
        Ok(snapshot)
    }

    /// Kills the server, puts the data of that time back, and starts it: what was written since is
    /// lost.
    pub fn go_back(&self, to: &Snapshot) -> Result<()> {
        self.kill()?;
        fs::remove_dir_all(self.data())?;
        fs::create_dir(self.data())?;
        copy(to.folder.path(), &self.data()).context("cannot put the server's data back")?;
        self.restart()
    }
}

/// Copies what is in a folder, with the folders in it.
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
