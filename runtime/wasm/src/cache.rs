//! The folder of compiled handlers, which makes later starts fast. Above the size limit, the cache removes the least
//! recently used entries.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tempfile::TempDir;
use wasmtime::{Cache, CacheConfig};

use super::function_cache;

/// Approximate size limit of the cache, in bytes. The largest measured component (Python) takes about 15 MB.
const CACHE_LIMIT_BYTES: u64 = 1 << 30;
/// Minimum time since the last use of an entry before the cache may remove the entry. Another process may be about to
/// load an entry that was used more recently.
const EVICTION_DELAY: Duration = Duration::from_hours(1);
/// Extension of the file in which Wasmtime records the uses of an entry.
const STATS_EXTENSION: &str = "stats";

/// Beginning of the extension of an entry that is being written.
pub(super) const PARTIAL_EXTENSION_PREFIX: &str = "wip-";
/// Time since the last write after which an incomplete file counts as abandoned by the process that began to write the
/// file. No write takes this long.
const WRITE_TIMEOUT: Duration = Duration::from_mins(1);

/// The folder of a cache, to which this process can write.
pub(super) enum CacheDir {
    /// A permanent folder.
    Permanent(PathBuf),
    /// A temporary folder, which is removed when this value is dropped.
    Temporary(TempDir),
}

impl CacheDir {
    /// Returns a cache in this folder. If this folder is not usable, returns a cache in a temporary folder. Returns
    /// `None` if neither folder is usable.
    pub(super) fn open_or_temporary(dir: &Path) -> Option<Self> {
        let permanent = std::path::absolute(dir).and_then(|dir| {
            create_private_folder(&dir)?;
            let dir = dir.canonicalize()?;
            tempfile::tempfile_in(&dir)?;
            check_private(&dir)?;
            Ok(dir)
        });
        let error = match permanent {
            Ok(dir) => return Some(Self::Permanent(dir)),
            Err(error) => error,
        };
        // Log no warning if the folder of handlers is missing: a command that only checks files needs no such folder.
        let has_parent = dir.parent().is_some_and(|parent| parent.symlink_metadata().is_ok());
        if has_parent {
            tracing::warn!(
                "cache of compiled handlers {} unusable: {error}; each start compiles the handlers",
                dir.display()
            );
        }
        TempDir::with_prefix("ordain-").map(Self::Temporary).ok()
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Permanent(path) => path,
            Self::Temporary(dir) => dir.path(),
        }
    }

    /// Removes the least recently used entries until the cache is within its limit. Keeps all entries that were used
    /// within [`EVICTION_DELAY`], even above the limit.
    pub(super) fn clean(&self) {
        let cleaned = evict_entries(self.path(), CACHE_LIMIT_BYTES, SystemTime::now());
        if let Err(error) = cleaned {
            tracing::debug!(%error, "cache of compiled handlers not cleaned");
        }
    }
}

/// An entry of the cache.
struct CacheEntry {
    last_used: SystemTime,
    size: u64,
    path: PathBuf,
}

/// Removes the least recently used entries until at most `limit_bytes` bytes remain. Keeps each entry that was used
/// within [`EVICTION_DELAY`], even above this limit. The cache has a folder for each version of the compiler. Such a
/// folder has an entry for each component: a file, and optionally a record of the last use of this file. The cache also
/// has a file of compiled functions for each handler.
fn evict_entries(dir: &Path, limit_bytes: u64, now: SystemTime) -> io::Result<()> {
    let mut entries = Vec::new();
    for path in list_files(dir)? {
        // Skips a missing file: another process that cleans the cache at the same time may have removed it.
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        if path.extension().is_none() {
            let stats_modified = fs::metadata(path.with_extension(STATS_EXTENSION))
                .and_then(|stats| stats.modified());
            let used = metadata.modified()?.max(stats_modified.unwrap_or(SystemTime::UNIX_EPOCH));
            entries.push(CacheEntry { last_used: used, size: metadata.len(), path });
        }
    }
    entries.sort_by_key(|entry| entry.last_used);
    let mut total_bytes: u64 = entries.iter().map(|entry| entry.size).sum();
    for CacheEntry { last_used: used, size, path } in entries {
        let is_recent = now.duration_since(used).is_ok_and(|age| age < EVICTION_DELAY);
        if total_bytes <= limit_bytes || is_recent {
            break;
        }
        let _ = fs::remove_file(&path);
        // Ignore an error: usually the error only means that the entry has no record of its last use.
        let _ = fs::remove_file(path.with_extension(STATS_EXTENSION));
        total_bytes -= size;
    }
    Ok(())
}

/// Returns the paths of all files of the cache; follows no links.
fn list_files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for of_version in fs::read_dir(dir.join("modules"))? {
        let of_version = of_version?;
        if of_version.file_type()?.is_dir() {
            add_files(&of_version.path(), &mut files)?;
        }
    }
    let functions = dir.join(function_cache::FOLDER);
    if functions.symlink_metadata().is_ok_and(|folder| folder.is_dir()) {
        add_files(&functions, &mut files)?;
    }
    Ok(files)
}

fn add_files(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for file in fs::read_dir(folder)? {
        let file = file?;
        if file.file_type()?.is_file() {
            files.push(file.path());
        }
    }
    Ok(())
}

/// Removes the files of entries that a process began to write and did not complete within [`WRITE_TIMEOUT`]. No other
/// process would complete them.
pub(super) fn remove_unfinished(dir: &Path) {
    // The folder of entries does not exist before the first entry.
    for path in list_files(dir).unwrap_or_default() {
        let is_unfinished = path.extension().is_some_and(|extension| {
            extension.to_string_lossy().starts_with(PARTIAL_EXTENSION_PREFIX)
        });
        let modified = fs::symlink_metadata(&path).and_then(|metadata| metadata.modified());
        let age = modified.ok().and_then(|time| time.elapsed().ok());
        if is_unfinished && age.is_some_and(|age| age > WRITE_TIMEOUT) {
            let _ = fs::remove_file(&path);
        }
    }
}

/// Creates a folder to which only this user may write, unless the folder exists. The parent folder must exist.
fn create_private_folder(dir: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match builder.create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Checks that only this user or root can have written the cache. The process executes the code in the folder without
/// verifying it, so no other user may own the folder, write to it, or replace it.
#[cfg(unix)]
fn check_private(dir: &Path) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt as _;
    /// Mode bit of a folder in which only an entry's owner can remove the entry.
    const STICKY_BIT: u32 = 0o1000;
    let me = rustix::process::geteuid().as_raw();
    let metadata = fs::metadata(dir)?;
    let refused = if metadata.uid() != me {
        "the folder belongs to another user, and its contents would be executed: remove the folder, and run commands \
         as the user of the service"
    } else if metadata.mode() & 0o022 != 0 {
        "other users can write to the folder, and its contents would be executed: remove this right (`chmod go-w`)"
    } else if let Some(parent) = dir.parent()
        && let parent = fs::metadata(parent)?
        && ((parent.uid() != me && parent.uid() != 0)
            || (parent.mode() & 0o022 != 0 && parent.mode() & STICKY_BIT == 0))
    {
        "other users can replace the folder, and its contents would be executed. The folder of handlers must belong to \
         this user or to root, and no other user may write to it (`chown`, `chmod go-w`)"
    } else {
        return Ok(());
    };
    Err(io::Error::other(refused))
}

#[cfg(not(unix))]
fn check_private(_: &Path) -> io::Result<()> {
    Ok(())
}

/// Opens the cache, which stores compiled code under a digest of the component, the engine's settings and the engine's
/// version. Returns `None` if the cache cannot be opened. In this case,
/// [`HandlerEngine::load`](crate::HandlerEngine::load) compiles a handler anew at each start, and the compiler process
/// of `compile` fails.
pub(super) fn open_cache(dir: &Path) -> Option<Cache> {
    let open = || -> wasmtime::Result<Cache> {
        let mut config = CacheConfig::new();
        config.with_directory(dir);
        // These limits of Wasmtime are so high that they never apply. Instead, `clean` enforces the real limit, because
        // `clean` keeps entries that another process may be about to load.
        config.with_files_total_size_soft_limit(1 << 50).with_file_count_soft_limit(1 << 40);
        Cache::new(config)
    };
    open()
        .inspect_err(|error| {
            tracing::warn!(
                "cache of compiled handlers {} unusable: {error:#}; each start compiles the handlers",
                dir.display()
            );
        })
        .ok()
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn longest_unused_entries_are_removed_first() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        let of_version = dir.path().join("modules").join("wasmtime-1");
        fs::create_dir_all(&of_version)?;
        let now = SystemTime::now();
        let put = |name: &str, hours: u64| -> io::Result<()> {
            let path = of_version.join(name);
            fs::write(&path, [0; 100])?;
            File::options().write(true).open(path)?.set_modified(now - Duration::from_hours(hours))
        };
        put("older", 9)?;
        put("old-but-used", 99)?;
        put("old-but-used.stats", 2)?;
        put("oldest", 100)?;
        put("oldest.stats", 50)?;
        put("new", 0)?;
        let left = |most| -> io::Result<Vec<String>> {
            evict_entries(dir.path(), most, now)?;
            let left = fs::read_dir(&of_version)?;
            let left = left.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
            let mut left: Vec<String> = left.collect::<io::Result<_>>()?;
            left.retain(|name| !name.contains('.'));
            left.sort();
            Ok(left)
        };
        assert_eq!(left(400)?, ["new", "old-but-used", "older", "oldest"]);
        assert_eq!(left(399)?, ["new", "old-but-used", "older"]);
        assert_eq!(left(200)?, ["new", "old-but-used"]);
        assert_eq!(left(0)?, ["new"], "another process may be about to load it");

        put("begun.wip-atomic-write-mod", 1)?;
        put("writing.wip-atomic-write-mod", 0)?;
        std::os::unix::fs::symlink(&of_version, dir.path().join("modules").join("link"))?;
        remove_unfinished(dir.path());
        assert!(!of_version.join("begun.wip-atomic-write-mod").exists());
        assert!(of_version.join("writing.wip-atomic-write-mod").exists());
        assert_eq!(list_files(dir.path())?.len(), 2, "no links are followed");
        Ok(())
    }
}
