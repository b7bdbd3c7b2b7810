//! Detects changes of the files of a project.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::Duration;

use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;

/// Time without a further change after which a change counts. Editors write a file in several steps.
const QUIET_TIME: Duration = Duration::from_millis(10);

/// Size above which only the length and the time of a file count, because reading the file would delay the build.
const READ_LIMIT_BYTES: u64 = 4 << 20;

/// Folders in which tools write, and which the watch ignores. Otherwise, each build would start the next build.
const IGNORED_FOLDERS: [&str; 6] =
    ["target", "plugins", "node_modules", "__pycache__", ".git", ".venv"];

/// A watch of files and folders.
pub(crate) struct FileWatch {
    changes: mpsc::Receiver<()>,
    _watcher: RecommendedWatcher,
}

impl FileWatch {
    /// Starts to watch files and folders, with all files inside. Ignores a path whose parent folder does not exist.
    pub(crate) fn start(paths: &[PathBuf]) -> Result<Self, notify::Error> {
        let (sender, changes) = mpsc::channel(1);
        let targets: Vec<PathBuf> = paths.iter().map(|path| absolute(path)).collect();
        let of_interest = targets.clone();
        let mut watcher =
            notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
                let is_change = event.map_or(true, |event| {
                    !matches!(event.kind, EventKind::Access(_))
                        && event.paths.iter().any(|path| is_watched(path, &of_interest))
                });
                if is_change {
                    // If the channel is full, a change is already pending.
                    let _ = sender.try_send(());
                }
            })?;
        for path in &targets {
            if path.is_dir() {
                watcher.watch(path, RecursiveMode::Recursive)?;
            } else if let Some(folder) = path.parent().filter(|folder| folder.is_dir()) {
                // An editor may replace the file, so the watch is on its folder.
                watcher.watch(folder, RecursiveMode::NonRecursive)?;
            }
        }
        Ok(Self { changes, _watcher: watcher })
    }

    /// Waits for a change, and until no further change follows.
    pub(crate) async fn changed(&mut self) {
        if self.changes.recv().await.is_none() {
            return std::future::pending().await;
        }
        while let Ok(Some(())) = tokio::time::timeout(QUIET_TIME, self.changes.recv()).await {}
    }
}

fn absolute(path: &Path) -> PathBuf {
    fs::canonicalize(path).or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.into())
}

fn is_watched(path: &Path, watched: &[PathBuf]) -> bool {
    watched.iter().any(|root| path.strip_prefix(root).is_ok_and(|inner| !is_ignored(inner)))
}

fn is_ignored(inner: &Path) -> bool {
    inner.iter().any(|part| IGNORED_FOLDERS.iter().any(|ignored| part == *ignored))
}

/// Returns a fingerprint of the names and contents of files and folders. Equal contents have equal fingerprints, so a
/// file that is written again with the same content does not count as changed.
pub(crate) fn fingerprint(paths: &[PathBuf]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for path in paths {
        hash_path(path, &mut hasher);
    }
    hasher.finish()
}

/// Adds a file or folder. A file that cannot be read counts as missing.
fn hash_path(path: &Path, hasher: &mut DefaultHasher) {
    path.hash(hasher);
    let Ok(metadata) = path.metadata() else { return };
    if metadata.is_dir() {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        let mut inner: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        inner.retain(|path| path.file_name().is_some_and(|name| !is_ignored(Path::new(name))));
        inner.sort();
        for path in inner {
            hash_path(&path, hasher);
        }
    } else if metadata.len() <= READ_LIMIT_BYTES {
        fs::read(path).unwrap_or_default().hash(hasher);
    } else {
        (metadata.len(), metadata.modified().ok()).hash(hasher);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprint_depends_on_contents_and_not_on_times() -> std::io::Result<()> {
        let home = tempfile::tempdir()?;
        let source = home.path().join("src");
        fs::create_dir_all(source.join("target"))?;
        fs::write(source.join("a"), "1")?;
        let paths = [source.clone(), home.path().join("missing")];
        let first = fingerprint(&paths);
        fs::write(source.join("a"), "1")?;
        fs::write(source.join("target/b"), "2")?;
        assert_eq!(fingerprint(&paths), first);
        fs::write(source.join("a"), "2")?;
        let second = fingerprint(&paths);
        assert_ne!(second, first);
        fs::write(home.path().join("missing"), "")?;
        assert_ne!(fingerprint(&paths), second);
        Ok(())
    }
}
