//! The folder in which the commands `dev` and `test` run the handlers of a project, and the configuration of these
//! runs.
//!
//! The configuration is a copy of the project's configuration. It differs only in the places that the run reads and
//! writes: the source of the events, the store, and the sinks. It names no server.

use std::fs::{self, File, TryLockError};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use ordain_config::{LoadedConfig, SourceConfig};
use ordain_util::locked_file::LockedFile;
use ordain_wasm::scan_folder;
use toml::{Table, Value};

use crate::error::{ProjectError, of_file};
use crate::session::OpeningStore;

/// The folder of files in memory, on Linux.
const MEMORY_FOLDER: &str = "/dev/shm";

/// The settings of a source that name the places of an event's values. A file and a request have the same places.
const PLACE_SETTINGS: [&str; 5] = ["key", "id", "sequence", "type", "time"];

/// The source of the events of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Feed {
    /// The file [`Sandbox::events`].
    File,
    /// Requests to this address.
    Http(SocketAddr),
}

/// The delays of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delays {
    /// The delays of the project's configuration.
    Configured,
    /// Short delays before the run treats an event as missing. All events are in a file, so a missing event cannot
    /// arrive late.
    ShortGaps,
    /// Short delays before the run treats an event as missing, and before it tries a failed event again.
    Short,
}

/// A folder with the store, the files of sinks, and the copies of the handlers. The folder contains the configuration,
/// so that other commands can inspect the store.
#[derive(Debug)]
pub(crate) struct Sandbox {
    folder: PathBuf,
    /// The folder of the store and of the sinks. It is in memory, unless the store is kept or the system has no folder
    /// in memory. On a disk, each commit would wait for the disk, and delay the outcomes.
    data: PathBuf,
    /// Locked while this process uses the folder.
    _lock: LockedFile,
}

impl Sandbox {
    /// Creates the folder. Returns an error if another process uses the folder. With `keep`, an earlier store remains.
    pub(crate) fn create(folder: &Path, keep: bool) -> Result<Self, ProjectError> {
        fs::create_dir_all(folder.join("plugins")).map_err(of_file(folder))?;
        let folder = fs::canonicalize(folder).map_err(of_file(folder))?;
        // Version control ignores the folder.
        let ignore = folder.join(".gitignore");
        fs::write(&ignore, "*\n").map_err(of_file(&ignore))?;
        let path = folder.join("lock");
        let lock = File::create(&path).map_err(of_file(&path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(ProjectError::InUse(folder)),
            Err(TryLockError::Error(error)) => return Err(of_file(&path)(error)),
        }
        let lock = LockedFile::from(lock);
        let memory = if keep { None } else { memory_folder(&folder) };
        let data = memory.unwrap_or_else(|| folder.clone());
        let sandbox = Self { folder, data, _lock: lock };
        if !keep {
            sandbox.clear()?;
        }
        Ok(sandbox)
    }

    /// Returns the file of the events.
    pub(crate) fn events(&self) -> PathBuf {
        self.folder.join("events.ndjson")
    }

    /// Returns the file of the output of a build.
    pub(crate) fn build_log(&self) -> PathBuf {
        self.folder.join("build.log")
    }

    /// Starts to open the store of the next run.
    pub(crate) fn open_store(&self) -> Result<OpeningStore, ProjectError> {
        OpeningStore::start(self.store())
    }

    fn store(&self) -> PathBuf {
        self.data.join("store")
    }

    /// Removes the store and the files of the sinks, so that every key begins anew.
    pub(crate) fn clear(&self) -> Result<(), ProjectError> {
        for folder in [self.store(), self.data.join("sinks")] {
            match fs::remove_dir_all(&folder) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(of_file(&folder)(error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Copies the newest file of each handler into the folder. The copy has no version in its name, so a file can have
    /// another content after each build.
    pub(crate) fn copy_handlers(&self, project: &LoadedConfig) -> Result<(), ProjectError> {
        let found = scan_folder(project)?;
        for stream in project.config.streams.values() {
            let files = found.handlers.get(&*stream.handler).into_iter().flatten();
            let changed =
                |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
            let newest = files.map(|file| &file.path).max_by_key(|path| changed(path));
            let newest = newest.ok_or_else(|| ProjectError::MissingHandler {
                handler: stream.handler.to_string(),
                dir: project.config.plugins.dir.to_path_buf(),
            })?;
            let copy = self.folder.join("plugins").join(format!("{}.wasm", &*stream.handler));
            fs::copy(newest, &copy).map_err(of_file(newest))?;
        }
        Ok(())
    }

    /// Writes and loads the configuration of a run.
    pub(crate) fn configure(
        &self,
        project: &LoadedConfig,
        feed: Feed,
        delays: Delays,
    ) -> Result<LoadedConfig, ProjectError> {
        project.check_supported()?;
        let text = fs::read_to_string(&project.file).map_err(of_file(&project.file))?;
        let invalid = |message: String| project.setting_error("", message);
        let mut root: Table =
            text.parse().map_err(|error: toml::de::Error| invalid(error.to_string()))?;
        for name in ["admin", "broker", "dev", "ingress"] {
            root.remove(name);
        }
        root.insert("store".to_owned(), table("embedded", &self.store()));
        section(&mut root, "runtime").insert("workers".to_owned(), Value::Integer(1));
        let plugins = self.folder.join("plugins").display().to_string();
        section(&mut root, "plugins").insert("dir".to_owned(), plugins.into());
        let input = project.config.dev_stream().map_err(invalid)?;
        let sinks = section(&mut root, "sinks");
        for (name, sink) in sinks.iter_mut() {
            if kind(sink) != Some("stream") {
                *sink = table("file", &self.data.join(format!("sinks/{name}.ndjson")));
            }
        }
        fs::create_dir_all(self.data.join("sinks")).map_err(of_file(&self.data))?;
        for (name, stream) in section(&mut root, "streams").iter_mut() {
            let Some(stream) = stream.as_table_mut() else { continue };
            let is_fed = name == &**input;
            self.set_source(
                name,
                stream,
                is_fed.then_some(feed),
                &project.config.streams[name.as_str()].source,
            )?;
            set_delays(stream, delays);
        }
        if let Feed::Http(address) = feed {
            let listen = Table::from_iter([("listen".to_owned(), address.to_string().into())]);
            root.insert("ingress".to_owned(), listen.into());
        }
        let file = self.folder.join("ordain.toml");
        fs::write(&file, root.to_string()).map_err(of_file(&file))?;
        Ok(LoadedConfig::load(&file)?)
    }

    /// Replaces the source of a stream. A stream of kind `stream` keeps its source if it gets no events from the feed.
    /// Every other stream without a feed gets no events.
    fn set_source(
        &self,
        name: &str,
        stream: &mut Table,
        feed: Option<Feed>,
        configured: &SourceConfig,
    ) -> Result<(), ProjectError> {
        let mut source = match feed {
            None if matches!(configured, SourceConfig::Stream(_)) => return Ok(()),
            None => {
                let path = self.folder.join(format!("no-events-{name}.ndjson"));
                fs::write(&path, "").map_err(of_file(&path))?;
                table("file", &path)
            }
            Some(Feed::File) => table("file", &self.events()),
            Some(Feed::Http(_)) => Table::from_iter([("kind".to_owned(), "http".into())]).into(),
        };
        let has_places = matches!(configured, SourceConfig::File(_) | SourceConfig::Http(_));
        if let (true, Some(Value::Table(old)), Some(new)) =
            (has_places, stream.get("source"), source.as_table_mut())
        {
            let places = PLACE_SETTINGS.iter().filter_map(|name| Some((*name, old.get(*name)?)));
            new.extend(places.map(|(name, place)| (name.to_owned(), place.clone())));
        }
        stream.insert("source".to_owned(), source);
        Ok(())
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        if self.data != self.folder {
            // A folder that remains is removed at the next start.
            let _ = fs::remove_dir_all(&self.data);
        }
    }
}

/// Creates an empty folder in memory that belongs to `folder` and that only this user can access. Returns `None` if the
/// system has no such folder.
fn memory_folder(folder: &Path) -> Option<PathBuf> {
    let mut hasher = DefaultHasher::new();
    (folder, rustix::process::getuid().as_raw()).hash(&mut hasher);
    let path = Path::new(MEMORY_FOLDER).join(format!("ordain-project-{:016x}", hasher.finish()));
    // The folder of an earlier process may remain. The lock of `folder` shows that the process has ended.
    let _ = fs::remove_dir_all(&path);
    // This call fails if the folder exists, for example because another user has created it.
    fs::DirBuilder::new().mode(0o700).create(&path).ok()?;
    Some(path)
}

/// Returns a table with a kind and a path.
fn table(kind: &str, path: &Path) -> Value {
    let path = path.display().to_string();
    Table::from_iter([
        ("kind".to_owned(), Value::from(kind)),
        ("path".to_owned(), Value::from(path)),
    ])
    .into()
}

/// Sets the delays of a stream. The store is the only source of missing events, because a run must reach no server.
fn set_delays(stream: &mut Table, delays: Delays) {
    let gap = section(stream, "gap");
    gap.insert("replay".to_owned(), Value::Array(vec!["store".into()]));
    if delays != Delays::Configured {
        gap.insert("timeout".to_owned(), "100ms".into());
        gap.insert("attempts".to_owned(), Value::Integer(1));
        gap.insert("backoff".to_owned(), "1ms..1ms".into());
    }
    if delays == Delays::Short {
        section(stream, "retry").insert("backoff".to_owned(), "1ms..1ms".into());
    }
}

fn kind(table: &Value) -> Option<&str> {
    table.get("kind")?.as_str()
}

/// Returns the table with this name, and creates the table if it is missing.
fn section<'a>(root: &'a mut Table, name: &str) -> &'a mut Table {
    let value = root.entry(name).or_insert_with(|| Table::new().into());
    if !value.is_table() {
        *value = Table::new().into();
    }
    value.as_table_mut().expect("the line above makes the value a table")
}
