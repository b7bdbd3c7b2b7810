//! A folder on a simulated disk that keeps only synced data.
//!
//! A library that the host preloads (`synced.c`) records the writes and syncs of the host. [`SyncedDisk::cut_power`]
//! then changes the folder to the state in which a power failure leaves the disk. `synced.c` describes the files that
//! the library and this module share.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirEntryExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use ordain_servers::compile_preload;
use ordain_tests::host::Home;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/engine/disk/synced.c");

/// A folder of a home, and a record of the part of its data that the simulated disk holds.
pub(super) struct SyncedDisk {
    folder: PathBuf,
    side: PathBuf,
    library: PathBuf,
}

impl SyncedDisk {
    /// Creates the folder `name` in a home, and in it the empty folders `folders`. The disk already holds all these
    /// folders.
    pub(super) fn create(home: &Home, name: &str, folders: &[&str]) -> Result<Self> {
        // The path must be canonical, because the library compares canonical paths.
        let root = home.folder().canonicalize()?;
        let [folder, side, library] = [name, "side", "synced.so"].map(|name| root.join(name));
        compile_preload(SOURCE, &library)?;
        let disk = Self { folder, side, library };
        fs::create_dir(&disk.side)?;
        fs::create_dir(&disk.folder)?;
        for folder in folders.iter().map(|name| disk.folder.join(name)) {
            fs::create_dir(&folder)?;
            disk.keep_names(&folder)?;
        }
        disk.keep_names(&disk.folder)?;
        Ok(disk)
    }

    pub(super) fn env(&self) -> [(&'static str, PathBuf); 3] {
        [
            ("LD_PRELOAD", self.library.clone()),
            ("ORDAIN_DISK_FOLDER", self.folder.clone()),
            ("ORDAIN_DISK_SIDE", self.side.clone()),
        ]
    }

    /// Makes the next sync of a file or folder whose path ends with `ending` fail. The disk never gets the data of this
    /// sync.
    pub(super) fn fail_next_sync(&self, ending: &str) -> Result<()> {
        Ok(fs::write(self.side.join("fail"), ending)?)
    }

    /// Returns whether a sync has failed since the last call of [`fail_next_sync`](Self::fail_next_sync).
    pub(super) fn has_failed(&self) -> bool {
        !self.side.join("fail").exists()
    }

    /// Makes one call of the next process fail. `call` is the kind of the call, `open` or `read`. `number` selects the
    /// call among the calls on existing files whose paths contain `part`, counted from 1.
    pub(super) fn fail_call(&self, call: &str, number: usize, part: &str) -> Result<()> {
        Ok(fs::write(self.side.join(format!("fail-{call}")), format!("{number} {part}"))?)
    }

    /// Cancels the failure that [`fail_call`](Self::fail_call) has requested. Returns `false` if the call has already
    /// failed.
    pub(super) fn cancel_call(&self, call: &str) -> Result<bool> {
        let wish = self.side.join(format!("fail-{call}"));
        let is_pending = wish.exists();
        remove_if_present(&wish)?;
        Ok(is_pending)
    }

    /// Makes all writes to files whose paths contain `part` fail, as on a file system that has become read-only.
    pub(super) fn make_read_only(&self, part: &str) -> Result<()> {
        Ok(fs::write(self.side.join("read-only"), part)?)
    }

    /// Ends the effect of [`make_read_only`](Self::make_read_only).
    pub(super) fn make_writable(&self) -> Result<()> {
        Ok(fs::remove_file(self.side.join("read-only"))?)
    }

    /// Returns the log of all syncs: one line for each sync, in order.
    pub(super) fn log(&self) -> Result<String> {
        Ok(fs::read_to_string(self.side.join("log"))?)
    }

    /// Removes all data that the disk does not hold. No process may use the folder during the call. Also cancels a
    /// failure that [`fail_next_sync`](Self::fail_next_sync) has requested and that has not happened yet.
    pub(super) fn cut_power(&self) -> Result<()> {
        remove_if_present(&self.side.join("fail"))?;
        let mut names = HashMap::new();
        for entry in fs::read_dir(&self.side)? {
            let path = entry?.path();
            if path.extension().is_some_and(|kind| kind == "names") {
                names.insert(inode_of(&path)?, fs::read_to_string(path)?);
            }
        }
        let restored = self.folder.with_extension("restored");
        self.restore(&names, fs::metadata(&self.folder)?.ino(), &restored)?;
        fs::remove_dir_all(&self.folder)?;
        Ok(fs::rename(restored, &self.folder)?)
    }

    /// Creates the folder `to`. This folder gets the names and the content that the disk holds for the folder with the
    /// inode `inode`. Files keep their inodes.
    fn restore(&self, names: &HashMap<u64, String>, inode: u64, to: &Path) -> Result<()> {
        fs::create_dir(to)?;
        for entry in names.get(&inode).into_iter().flat_map(|names| names.lines()) {
            let mut parts = entry.splitn(3, ' ');
            let kind = parts.next().context("a kind")?;
            let inode = parts.next().context("an inode")?.parse()?;
            let path = to.join(parts.next().context("a name")?);
            if kind == "d" {
                self.restore(names, inode, &path)?;
            } else {
                self.restore_file(inode, &path)?;
            }
        }
        self.keep_names(to)
    }

    fn restore_file(&self, inode: u64, to: &Path) -> Result<()> {
        let [file, durable, dirty] =
            ["file", "durable", "dirty"].map(|kind| self.side.join(format!("{inode}.{kind}")));
        if file.exists() {
            fs::hard_link(file, to)?;
        }
        // Truncates the file, or creates it. If the host never wrote to the file, the library has no second name for
        // it, and the file does not exist yet.
        File::create(to)?;
        if durable.exists() {
            fs::copy(durable, to)?;
        }
        remove_if_present(&dirty)
    }

    fn keep_names(&self, folder: &Path) -> Result<()> {
        let mut names = String::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let kind = if entry.file_type()?.is_dir() { 'd' } else { 'f' };
            names += &format!("{kind} {} {}\n", entry.ino(), entry.file_name().display());
        }
        let inode = fs::metadata(folder)?.ino();
        Ok(fs::write(self.side.join(format!("{inode}.names")), names)?)
    }
}

fn inode_of(path: &Path) -> Result<u64> {
    let stem = path.file_stem().and_then(|stem| stem.to_str());
    Ok(stem.context("an inode")?.parse()?)
}

fn remove_if_present(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}
