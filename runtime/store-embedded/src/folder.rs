//! The store's folder: whose it is, which schema it has, and who has it open.
//!
//! ```text
//! ordain.store   what this folder is: schema and number of shards, as text
//! lock           locked by the process that has it open; its id is in it
//! answered       number of commits answered
//! closed         there if the last process that had it open closed it in order
//! data/          the engine's
//! data.new/      the engine's while it is being made: half made after a crash, and worth nothing
//! data.before/   journals of the engine as they were before an opening that has not succeeded
//! ```
//!
//! Must never write into a folder that is not the store's.

use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::journal;
use super::tables::KEYSPACES;
use ordain_store::StoreError;

/// The layout of tables and keys that this version reads and writes.
const SCHEMA: u32 = 7;

const MARKER: &str = "ordain.store";
const MARKER_DRAFT: &str = "ordain.store.new";
const LOCK: &str = "lock";
const CLOSED: &str = "closed";
const BEFORE: &str = "data.before";
const HEADING: &str = "ordain embedded store";

/// A folder that this process has for itself, until dropped.
pub(super) struct Folder {
    path: PathBuf,
    lock: File,
}

impl Folder {
    /// Takes the folder; makes it where there is none.
    pub(super) fn take(path: &Path, shards: u32) -> Result<Self, StoreError> {
        make(path)?;
        refuse_foreign(path)?;
        let lock = lock(path)?;
        match read_marker(path)? {
            Some(kept) if kept == shards => {}
            Some(kept) => {
                return Err(StoreError::Unusable(format!(
                    "the store in {} was made with {kept} shards and is now to have {shards}; \
                     set shards back to {kept}, or drain it and begin with another folder",
                    path.display()
                )));
            }
            None => write_marker(path, shards).map_err(|error| unwritable(path, &error))?,
        }
        Ok(Self { path: path.to_owned(), lock })
    }

    /// Whether the folder is still the one under its path.
    pub(super) fn is_there(&self) -> bool {
        let identity = |metadata: io::Result<Metadata>| metadata.map(|it| (it.dev(), it.ino()));
        let (ours, found) = (self.lock.metadata(), fs::metadata(self.path.join(LOCK)));
        // Where the system does not tell, for a moment, nothing is wrong with the folder.
        match (identity(ours), identity(found)) {
            (Ok(ours), Ok(found)) => ours == found,
            (_, Err(error)) => error.kind() != io::ErrorKind::NotFound,
            (Err(_), Ok(_)) => true,
        }
    }

    /// Notes that everything is on the disk and nothing more will be written.
    pub(super) fn close(&self) {
        // Without the note, the next start does more than it must.
        let _ = File::create(self.path.join(CLOSED));
    }

    /// Makes sure that the disk has what the system reads of the engine's journals, unless they were closed
    /// in order: see [`journal::write_anew`]. To be undone by [`Self::settle`] once the engine is open.
    pub(super) fn secure_journals(&self) -> Result<(), StoreError> {
        let before = self.path.join(BEFORE);
        let written = match fs::remove_file(self.path.join(CLOSED)) {
            Ok(()) if !before.exists() => Ok(()),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => journal::write_anew(&self.data(), &before),
        };
        written.map_err(|error| {
            StoreError::Unavailable(format!(
                "cannot write the journal in {} anew: {error}. It is as large as up to 128 MiB: see to the \
                 disk, then start again",
                self.path.display()
            ))
        })
    }

    /// The engine is open, and holds all that it should: the journals as they were before are not needed.
    /// Makes the names of what was made in the folder durable.
    pub(super) fn settle(&self) -> Result<(), StoreError> {
        let before = self.path.join(BEFORE);
        match fs::remove_dir_all(&before) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(unwritable(&before, &error))
            }
            _ => self.sync(),
        }
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The engine's folder.
    pub(super) fn data(&self) -> PathBuf {
        self.path.join("data")
    }

    /// The file of [`Answered`](super::answered::Answered).
    pub(super) fn answered(&self) -> PathBuf {
        self.path.join("answered")
    }

    /// Makes the names of what was made in the folder durable, and the folder's own: the engine
    /// syncs only what lies within its own.
    fn sync(&self) -> Result<(), StoreError> {
        let synced = File::open(&self.path).and_then(|folder| folder.sync_all());
        synced.map_err(|error| unwritable(&self.path, &error))?;
        // One that cannot be opened was not made by us.
        if let Some(Ok(parent)) = self.path.parent().map(File::open) {
            let _ = parent.sync_all();
        }
        Ok(())
    }

    /// Makes the engine's folder where there is none: elsewhere first, so that under its name it
    /// is whole or not there. The engine itself writes one file after another, and takes a folder
    /// in which the first of them are missing for a new one. So it is refused if one is missing that each
    /// database has.
    pub(super) fn make_data(
        &self,
        make: impl FnOnce(&Path) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let (data, draft) = (self.data(), self.path.join("data.new"));
        if data.exists() {
            let tables = (0..KEYSPACES).map(|it| format!("keyspaces/{it}/current"));
            let missing = std::iter::once("version".to_owned()).chain(tables);
            return match missing.into_iter().find(|it| !data.join(it).exists()) {
                None => Ok(()),
                Some(missing) => Err(StoreError::Unusable(format!(
                    "the database in {} has no file {missing}, so it is damaged: somebody has removed the \
                     file, or a backup has left it out. Put the store's folder back from a whole backup",
                    data.display()
                ))),
            };
        }
        match fs::remove_dir_all(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(unwritable(&draft, &error));
            }
            _ => {}
        }
        make(&draft)?;
        fs::rename(&draft, &data).map_err(|error| unwritable(&data, &error))?;
        tracing::info!("made a new store in {}: no stream has any state yet", self.path.display());
        Ok(())
    }
}

fn make(path: &Path) -> Result<(), StoreError> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(StoreError::Unusable(format!(
            "the store's path {} is a file; it must be a folder",
            path.display()
        ))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::create_dir_all(path).map_err(|error| unwritable(path, &error))
        }
        Err(error) => Err(unwritable(path, &error)),
    }
}

/// A folder without the marker must be empty, but for what a crash right at the start leaves.
fn refuse_foreign(path: &Path) -> Result<(), StoreError> {
    if path.join(MARKER).exists() {
        return Ok(());
    }
    for entry in fs::read_dir(path).map_err(|error| unwritable(path, &error))? {
        let name = entry.map_err(|error| unwritable(path, &error))?.file_name();
        if name != LOCK && name != MARKER_DRAFT {
            return Err(StoreError::Unusable(format!(
                "the folder {} is not a store of Ordain (it holds {}, and no {MARKER}); give \
                 the store an empty or a new folder",
                path.display(),
                name.display()
            )));
        }
    }
    Ok(())
}

fn lock(path: &Path) -> Result<File, StoreError> {
    let file = path.join(LOCK);
    let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&file);
    let mut lock = opened.map_err(|error| unwritable(path, &error))?;
    match lock.try_lock() {
        Ok(()) => {
            // Only for people, so that failing to write it is no reason to stop.
            let _ = lock
                .rewind()
                .and_then(|()| lock.set_len(0))
                .and_then(|()| writeln!(lock, "{}", std::process::id()));
            Ok(lock)
        }
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let _ = lock.take(32).read_to_string(&mut holder);
            let holder = match holder.trim() {
                "" => "another process".to_owned(),
                id => format!("process {id}"),
            };
            Err(StoreError::InUse(format!(
                "{holder} has the store in {} open; stop it first, or give this one a \
                 folder of its own",
                path.display()
            )))
        }
        Err(TryLockError::Error(error)) => Err(unwritable(path, &error)),
    }
}

/// The number of shards, if the folder is a store.
fn read_marker(path: &Path) -> Result<Option<u32>, StoreError> {
    let text = match fs::read_to_string(path.join(MARKER)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unwritable(path, &error)),
    };
    let number = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "));
        line.and_then(|value| value.parse::<u32>().ok())
    };
    let (true, Some(schema)) = (text.starts_with(HEADING), number("schema")) else {
        return Err(StoreError::Unusable(format!(
            "the file {MARKER} in {} is not one that Ordain wrote; put it back from a backup, or \
             give the store an empty folder",
            path.display()
        )));
    };
    match number("shards") {
        Some(shards) if schema == SCHEMA => Ok(Some(shards)),
        _ => Err(StoreError::Unusable(format!(
            "the store in {} has schema {schema}, and this version of Ordain reads schema \
             {SCHEMA}; run the version that made it, or give this one another folder",
            path.display()
        ))),
    }
}

/// Whole or not at all: a marker must never be seen half written.
fn write_marker(path: &Path, shards: u32) -> io::Result<()> {
    let draft = path.join(MARKER_DRAFT);
    let mut file = File::create(&draft)?;
    write!(file, "{HEADING}\nschema = {SCHEMA}\nshards = {shards}\n")?;
    file.sync_all()?;
    fs::rename(&draft, path.join(MARKER))?;
    File::open(path)?.sync_all()
}

fn unwritable(path: &Path, error: &io::Error) -> StoreError {
    StoreError::Unusable(format!(
        "cannot use {} as the store's folder: {error}; let the user that runs Ordain write \
         there, or set another path",
        path.display()
    ))
}
