//! The store's folder: its owner, its schema, and the process that has it open.
//!
//! ```text
//! ordain.store   identity file: schema and number of shards, as text; shows that the folder belongs to Ordain
//! lock           locked by the process that has the folder open; contains the id of this process, the URL of the
//!                process's admin listener, and the network of the process. The process also locks the folder data
//! answered       number of groups of requests that the store has synced and answered
//! closed         exists if the last process closed the store cleanly; names the oldest journal
//! data/          the engine's data
//! data.new/      the engine's data during its creation; incomplete and useless after a crash
//! data.before/   the engine's original journals, kept until an opening of the store succeeds
//! ```
//!
//! This module must never write into a folder that does not belong to the store.

use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use super::answered_commits;
use super::journal;
use super::tables::{KEYSPACE_COUNT, KEYSPACES_WITH_VALUE_FILES, damage_error};
use ordain_store::StoreError;
use ordain_util::io_error::may_pass;
use ordain_util::locked_file::LockedFile;

/// The version of the layout of tables and keys that this program reads and writes.
const SCHEMA_VERSION: u32 = 8;

const IDENTITY_FILE: &str = "ordain.store";
const IDENTITY_DRAFT_FILE: &str = "ordain.store.new";
const LOCK_FILE: &str = "lock";
const CLOSED_FILE: &str = "closed";
const ANSWERED_FILE: &str = "answered";
const DATA_FOLDER: &str = "data";
const OLD_JOURNALS_FOLDER: &str = "data.before";
/// A folder that some file systems have in their root. The store's folder may be the root of such a file system.
const FILE_SYSTEM_FOLDER: &str = "lost+found";
const IDENTITY_HEADING: &str = "ordain embedded store";

/// A folder that this process owns exclusively until this value is dropped.
pub(super) struct StoreFolder {
    path: PathBuf,
    /// The engine's folder, locked by [`lock_data`], and kept open so that `still_exists` can compare it with the
    /// folder at the path. Fields are dropped in the order of their declaration, so this folder is unlocked before the
    /// file `lock`. A process that can lock the file can therefore also lock this folder.
    data: LockedFile,
    lock: LockedFile,
    /// `true` if all data is on the disk and the store will write nothing more.
    is_closed: AtomicBool,
}

impl Drop for StoreFolder {
    /// Writes the file `closed`, if the store was closed cleanly. The engine has ended before this call, so the oldest
    /// journal no longer changes.
    fn drop(&mut self) {
        if self.is_closed.load(Ordering::Relaxed)
            && let Ok(Some(oldest)) = journal::oldest(&self.data())
        {
            // Ignore a failure. Without this file, the next start copies the journals, which is unnecessary but
            // harmless.
            let _ = fs::write(self.path.join(CLOSED_FILE), format!("{oldest}\n"));
        }
    }
}

impl StoreFolder {
    /// Locks the folder. If the folder does not exist, creates it first, with empty tables.
    pub(super) fn open(
        path: &Path,
        shards: u32,
        admin_url: Option<&str>,
        make_tables: impl FnOnce(&Path) -> Result<(), StoreError>,
    ) -> Result<Self, StoreError> {
        create_folder(path)?;
        refuse_foreign(path)?;
        // Refuse a foreign identity file before this method writes to the lock file.
        read_identity(path)?;
        let lock = lock(path, admin_url)?;
        match read_identity(path)? {
            Some(kept) if kept == shards => {}
            Some(kept) => {
                return Err(StoreError::Unusable(format!(
                    "the store in {} was created with {kept} shards, but this process uses {shards}; restore the file \
                     ordain.store if it was changed, or use another folder",
                    path.display()
                )));
            }
            None => write_identity(path, shards).map_err(|error| folder_error(path, &error))?,
        }
        create_data(path, make_tables)?;
        let engine = path.join(DATA_FOLDER);
        let data = File::open(&engine).map_err(|error| folder_error(&engine, &error))?;
        let data = lock_data(data, path)?;
        Ok(Self { path: path.to_owned(), lock, data, is_closed: AtomicBool::new(false) })
    }

    /// Returns whether the store's folder and the engine's folder are still at their paths.
    pub(super) fn still_exists(&self) -> bool {
        is_at(&self.lock, &self.path.join(LOCK_FILE)) && is_at(&self.data, &self.data())
    }

    /// Records that all data is on the disk, and that the store will write nothing more.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }

    /// Prepares the journals for the engine. Returns an error if the journals are damaged ([`journal::damage`]). If the
    /// last process did not close the store cleanly, or if an earlier opening failed, replaces the journals by copies
    /// whose content is certainly on the disk ([`journal::rewrite_journals`]). When the engine is open,
    /// [`Self::finish_opening`] removes the original journals.
    pub(super) fn secure_journals(&self) -> Result<(), StoreError> {
        let data = self.data();
        let before = self.path.join(OLD_JOURNALS_FOLDER);
        let oldest = oldest_when_closed(&self.path.join(CLOSED_FILE));
        let damage =
            journal::put_back(&data, &before).and_then(|()| journal::damage(&data, oldest));
        if let Some(words) = damage.map_err(|error| self.uncopied(&error))? {
            return Err(StoreError::Unusable(damage_error(&data, &words)));
        }
        self.begin_writing(&before).map_err(|error| self.uncopied(&error))
    }

    /// Removes the file `closed`, and copies the journals if their content is possibly not on the disk.
    fn begin_writing(&self, before: &Path) -> io::Result<()> {
        match fs::remove_file(self.path.join(CLOSED_FILE)) {
            // Sync the folder, so that a power failure does not bring the removed file back. The file names the oldest
            // journal, and the engine may remove this journal from now on. If the file came back, the next start would
            // report this journal as missing.
            Ok(()) => File::open(&self.path)?.sync_all()?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return self.rewrite_journals(before);
            }
            Err(error) => return Err(error),
        }
        if before.exists() { self.rewrite_journals(before) } else { Ok(()) }
    }

    /// Copies the journals, and keeps the originals in the folder `before`.
    fn rewrite_journals(&self, before: &Path) -> io::Result<()> {
        journal::rewrite_journals(&self.data(), before)?;
        // Sync the name of `before`, which may be new, before the engine can truncate a journal.
        File::open(&self.path)?.sync_all()
    }

    fn uncopied(&self, error: &io::Error) -> StoreError {
        StoreError::Unavailable(format!(
            "cannot read or copy the journal in {}: {error}. The journal has up to 128 MiB: check \
             the free space and the disk, then start again",
            self.path.display()
        ))
    }

    /// Removes the original journals that [`Self::secure_journals`] has kept, and makes the names of new files in the
    /// folder durable. The caller must first open the engine and check that the database contains all answered commits.
    pub(super) fn finish_opening(&self) -> Result<(), StoreError> {
        let before = self.path.join(OLD_JOURNALS_FOLDER);
        match fs::remove_dir_all(&before) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(folder_error(&before, &error))
            }
            _ => self.sync(),
        }
    }

    /// Returns the path of the store's folder.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the engine's folder.
    pub(super) fn data(&self) -> PathBuf {
        self.path.join(DATA_FOLDER)
    }

    /// Returns the path of the file with the count of [`AnsweredCommits`](super::answered_commits::AnsweredCommits).
    pub(super) fn answered_file(&self) -> PathBuf {
        self.path.join(ANSWERED_FILE)
    }

    /// Makes the names of new files in the folder durable, and also the name of the folder itself. The engine syncs
    /// only its own folder, so the store must sync these names. An earlier process may have created the folder and may
    /// have ended before it synced the folder's name.
    fn sync(&self) -> Result<(), StoreError> {
        let synced = File::open(&self.path).and_then(|folder| folder.sync_all());
        let synced = synced.and_then(|()| sync_name(&self.path));
        synced.map_err(|error| folder_error(&self.path, &error))
    }
}

/// Reads the number of the oldest journal from the file `closed`. Returns `None` if the file is missing or incomplete.
/// The file can be incomplete after a power failure, because it is not synced.
fn oldest_when_closed(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.strip_suffix('\n')?.parse().ok()
}

/// Returns whether this file or folder is still at `path`.
fn is_at(file: &File, path: &Path) -> bool {
    use std::io::ErrorKind::{NotADirectory, NotFound, StaleNetworkFileHandle};
    let identity =
        |metadata: io::Result<Metadata>| metadata.map(|found| (found.dev(), found.ino()));
    match (identity(file.metadata()), identity(fs::metadata(path))) {
        (Ok(ours), Ok(found)) => ours == found,
        // After any other error, such as a temporary error of the system, assume that the file still exists.
        (Err(error), _) | (_, Err(error)) => {
            !matches!(error.kind(), NotFound | NotADirectory | StaleNetworkFileHandle)
        }
    }
}

/// Creates the engine's folder if it does not exist. The engine writes one file after another, and a crash could leave
/// an incomplete folder. This function therefore creates the folder under another name, and renames it when it is
/// complete.
///
/// The engine treats a folder without certain files as new, and would silently begin an empty database. This function
/// therefore returns an error if an existing folder lacks one of the files that every database has. It also returns an
/// error if the folder is missing although the store has already answered requests.
fn create_data(
    path: &Path,
    make_tables: impl FnOnce(&Path) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let data = path.join(DATA_FOLDER);
    let draft = path.join("data.new");
    if data.exists() {
        let files = ["version", "lock"].map(str::to_owned).into_iter();
        let tables = (0..KEYSPACE_COUNT).map(|number| format!("keyspaces/{number}/current"));
        let values = KEYSPACES_WITH_VALUE_FILES.map(|number| format!("keyspaces/{number}/blobs"));
        let mut needed = files.chain(tables).chain(values);
        return match needed.find(|name| !data.join(name).exists()) {
            None => Ok(()),
            Some(missing) => Err(StoreError::Unusable(format!(
                "the database in {} has no file {missing}, so it is damaged: the file was removed, \
                 or a backup does not contain it. Restore the store's folder from a complete backup",
                data.display()
            ))),
        };
    }
    let answered = path.join(ANSWERED_FILE);
    if answered_commits::read(&answered) > 0 {
        return Err(StoreError::Unusable(format!(
            "the database in {} is missing: it was removed or is not mounted, or a backup does not \
             contain it. Put it back, or restore the store's folder from a complete backup. To \
             start with an empty store, remove {}",
            data.display(),
            answered.display()
        )));
    }
    match fs::remove_dir_all(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(folder_error(&draft, &error));
        }
        _ => {}
    }
    make_tables(&draft)?;
    sync_folders(&draft).map_err(|error| folder_error(&draft, &error))?;
    fs::rename(&draft, &data).map_err(|error| folder_error(&data, &error))?;
    tracing::info!("created a new store in {}: no stream has state yet", path.display());
    Ok(())
}

/// Makes the names of all files and folders in a folder durable. The engine itself does not sync all of these names:
/// after it has created the folders of its tables, it does not sync their parent folder.
fn sync_folders(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_folders(&entry.path())?;
        }
    }
    File::open(folder)?.sync_all()
}

fn create_folder(path: &Path) -> Result<(), StoreError> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(StoreError::Unusable(format!(
            "the store's path {} is a file; it must be a folder",
            path.display()
        ))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            create_durable(path).map_err(|error| match error.kind() {
                // The path, or a part of it, is a link to a folder that does not exist.
                io::ErrorKind::AlreadyExists => StoreError::Unavailable(format!(
                    "the store's path {} leads through a link to a folder that does not exist; check whether the disk \
                     of this folder is mounted, then start again",
                    path.display()
                )),
                _ => folder_error(path, &error),
            })
        }
        Err(error) => Err(folder_error(path, &error)),
    }
}

/// Creates a folder and its missing parents, and makes the name of each new folder durable. Otherwise, a power failure
/// could remove the store, and the next start would create an empty store.
fn create_durable(path: &Path) -> io::Result<()> {
    // A relative path with one name has an empty parent, which stands for the working folder.
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    match fs::metadata(parent) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => create_durable(parent)?,
        // An earlier process may have created the parent and may have ended before it synced the name.
        _ => sync_name(parent)?,
    }
    // Open the parent first, so that this function creates no folder whose name it cannot sync.
    let parent = File::open(parent)?;
    match fs::create_dir(path) {
        // Another process has created the folder at the same time, or the path ends with `..`.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
        created => created?,
    }
    parent.sync_all()
}

/// Makes the name of a folder durable, by a sync of the folder that contains the name. Does nothing in two cases: the
/// folder is the root of a mounted file system, or this user has no right to read the folder that contains the name. In
/// both cases, no process has created the folder by [`create_durable`].
fn sync_name(folder: &Path) -> io::Result<()> {
    let folder = folder.canonicalize()?;
    let Some(parent) = folder.parent() else { return Ok(()) };
    let parent = match File::open(parent) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
        opened => opened?,
    };
    if parent.metadata()?.dev() == fs::metadata(&folder)?.dev() {
        parent.sync_all()
    } else {
        Ok(())
    }
}

/// Returns an error if the folder is not empty and has no identity file, because such a folder belongs to another
/// program. Ignores the files that a crash at the first start can leave, and the folder `lost+found` of the file
/// system. A file with the name of the lock file must have the form of Ordain's lock file.
fn refuse_foreign(path: &Path) -> Result<(), StoreError> {
    if path.join(IDENTITY_FILE).exists() {
        return Ok(());
    }
    for entry in fs::read_dir(path).map_err(|error| folder_error(path, &error))? {
        let name = entry.map_err(|error| folder_error(path, &error))?.file_name();
        let is_known =
            [LOCK_FILE, IDENTITY_DRAFT_FILE, FILE_SYSTEM_FOLDER].iter().any(|own| name == *own);
        if !is_known || (name == LOCK_FILE && !is_own_lock(path)?) {
            return Err(StoreError::Unusable(format!(
                "the folder {} is not a store of Ordain (it contains {}, but no {IDENTITY_FILE}); give \
                 the store an empty or a new folder",
                path.display(),
                name.display()
            )));
        }
    }
    Ok(())
}

/// Returns whether Ordain wrote the lock file: a file with the id of a process and at least one more line. A file that
/// is empty, or contains only NUL bytes, counts as written by Ordain, because a crash can leave such a file.
fn is_own_lock(path: &Path) -> Result<bool, StoreError> {
    let file = path.join(LOCK_FILE);
    let content = fs::read(&file).map_err(|error| folder_error(&file, &error))?;
    let text = String::from_utf8_lossy(&content);
    let is_id = text.split_once('\n').is_some_and(|(id, _)| id.parse::<u32>().is_ok());
    Ok(content.iter().all(|byte| *byte == 0) || (is_id && text.lines().count() > 1))
}

/// Returns the URL of the admin listener of the owner: the process that has the folder open. Returns `None` if no
/// process has the folder open, or if the owner has no admin listener. Returns an error if the owner runs in another
/// network, because another program may listen at this URL in the network of this process.
pub(super) fn admin_url_of_owner(path: &Path) -> Result<Option<String>, StoreError> {
    let Ok(mut lock) = File::open(path.join(LOCK_FILE)) else { return Ok(None) };
    let is_open = matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock));
    let mut owner = String::new();
    if !is_open || lock.read_to_string(&mut owner).is_err() {
        return Ok(None);
    }
    let mut further = owner.lines().skip(1);
    let Some(url) = further.next().filter(|url| !url.is_empty()) else { return Ok(None) };
    // A file of an earlier version of Ordain does not contain the network.
    if further.next().is_some_and(|network| network != own_network()) {
        return Err(StoreError::InUse(format!(
            "{} has the store in {} open on another machine or in another network namespace, such as a container. Run \
             this command there, or name the URL of the process with --admin URL",
            owner_name(&owner),
            path.display()
        )));
    }
    Ok(Some(url.to_owned()))
}

/// Returns a text that identifies the network of this process: the boot of the machine, and the network namespace. The
/// same URL may lead to other processes in another network. A part that the system does not report is empty.
fn own_network() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = fs::read_link("/proc/self/ns/net").unwrap_or_default();
    format!("{} {}", boot.trim_end(), namespace.display())
}

/// Returns a description of the process that wrote this text into the lock file.
fn owner_name(owner: &str) -> String {
    match owner.lines().next().unwrap_or_default() {
        "" => "another process".to_owned(),
        id => format!("process {id}"),
    }
}

fn lock(path: &Path, admin_url: Option<&str>) -> Result<LockedFile, StoreError> {
    let file = path.join(LOCK_FILE);
    let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&file);
    let mut lock = opened.map_err(|error| folder_error(path, &error))?;
    match lock.try_lock() {
        Ok(()) => {
            // The content of the file only helps users and commands, so a failed write is ignored.
            let url = admin_url.unwrap_or_default();
            let content = format!("{}\n{url}\n{}\n", std::process::id(), own_network());
            // Use only one write, so that a killed process leaves an empty or a complete file: see `is_own_lock`.
            let _ = lock
                .rewind()
                .and_then(|()| lock.set_len(0))
                .and_then(|()| lock.write_all(content.as_bytes()));
            Ok(LockedFile::from(lock))
        }
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let _ = lock.read_to_string(&mut holder);
            Err(StoreError::InUse(format!(
                "{} has the store in {} open; stop it first, or give this process a \
                 folder of its own",
                owner_name(&holder),
                path.display()
            )))
        }
        Err(TryLockError::Error(error)) => Err(folder_error(path, &error)),
    }
}

/// Locks the engine's folder. The lock of the lock file is not enough. If a user removes this file while a process has
/// the store open, the next process creates and locks a new file. That process would replace the journals, and the
/// first process would continue to write into the replaced journals. The folder stays unlocked if the file system cannot
/// lock a folder, as is the case with some network file systems.
fn lock_data(data: File, path: &Path) -> Result<LockedFile, StoreError> {
    match data.try_lock() {
        Err(TryLockError::WouldBlock) => Err(StoreError::InUse(format!(
            "another process has the store in {} open, although its file {LOCK_FILE} was removed or replaced; stop \
             that process first, or give this process a folder of its own",
            path.display()
        ))),
        Ok(()) | Err(TryLockError::Error(_)) => Ok(LockedFile::from(data)),
    }
}

/// Returns the number of shards from the identity file; `None` if the folder has no identity file.
fn read_identity(path: &Path) -> Result<Option<u32>, StoreError> {
    let text = match fs::read_to_string(path.join(IDENTITY_FILE)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(folder_error(path, &error)),
    };
    let number = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "));
        line.and_then(|value| value.parse::<u32>().ok())
    };
    let (true, Some(schema)) = (text.starts_with(IDENTITY_HEADING), number("schema")) else {
        return Err(StoreError::Unusable(format!(
            "the file {IDENTITY_FILE} in {} was not written by Ordain; restore it from a backup, or \
             give the store an empty folder",
            path.display()
        )));
    };
    match number("shards") {
        Some(shards) if schema == SCHEMA_VERSION => Ok(Some(shards)),
        _ => Err(StoreError::Unusable(format!(
            "the store in {} has schema {schema}, but this version of Ordain reads schema {SCHEMA_VERSION}; run the \
             version that created the store, or give this version another folder",
            path.display()
        ))),
    }
}

/// Writes the identity file atomically, so that no process ever reads an incomplete file.
fn write_identity(path: &Path, shards: u32) -> io::Result<()> {
    let draft = path.join(IDENTITY_DRAFT_FILE);
    let mut file = File::create(&draft)?;
    write!(file, "{IDENTITY_HEADING}\nschema = {SCHEMA_VERSION}\nshards = {shards}\n")?;
    file.sync_all()?;
    fs::rename(&draft, path.join(IDENTITY_FILE))?;
    File::open(path)?.sync_all()
}

fn folder_error(path: &Path, error: &io::Error) -> StoreError {
    let path = path.display();
    // The store creates a missing folder. The error `NotFound` therefore means that the folder cannot be created at the
    // path, and a retry is useless.
    if may_pass(error) && error.kind() != io::ErrorKind::NotFound {
        return StoreError::Unavailable(format!(
            "cannot use {path} for the store now: {error}; remove the cause (for example, mount the disk, or free disk \
             space), then start again"
        ));
    }
    StoreError::Unusable(format!(
        "cannot use {path} for the store: {error}; remove the cause (for example, give the user that runs Ordain write \
         access), or set another `store.path`"
    ))
}
