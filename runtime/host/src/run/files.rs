//! The files of a configuration: opened before anything is read or written, and none of them both
//! read and written, or written twice, under whatever names.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::RunError;
use crate::config::{ConfigError, Loaded, Place, Sink as SinkConfig, Source as SourceConfig};
use crate::sink::{FileSink, Sink};
use crate::store::Store;

/// What makes a file the same under two names: device and inode.
type Identity = (u64, u64);

/// The open files of all sources and sinks, by the names of the streams and sinks.
pub(super) struct Files {
    pub(super) sources: BTreeMap<String, File>,
    pub(super) sinks: BTreeMap<String, Sink>,
}

impl Files {
    /// Opens them. What can be refused is, before any sink is made or cut.
    pub(super) async fn open(loaded: &Loaded, store: &dyn Store) -> Result<Self, RunError> {
        let mut files = Self { sources: BTreeMap::new(), sinks: BTreeMap::new() };
        let mut read = BTreeMap::new();
        for (name, path) in source_paths(loaded) {
            let setting = format!("streams.{name}.source.path");
            let (file, identity) = open_source(path)
                .map_err(|what| loaded.error(&setting, format!("{} {what}", path.display())))?;
            files.sources.insert(name.to_owned(), file);
            read.entry(identity).or_insert(setting);
        }
        let mut written = BTreeMap::new();
        for (name, sink) in &loaded.config.sinks {
            let SinkConfig::File(file) = sink else {
                unreachable!("`unsupported` refuses other sinks");
            };
            let sink = match &file.path {
                Place::Standard => Sink::Standard,
                Place::File(path) => {
                    let at = SinkPlace { loaded, setting: format!("sinks.{name}.path"), path };
                    at.check(&read, &written)?;
                    let sink = at.open(store).await?;
                    // The next sink may be another name of a file that was only made now.
                    let metadata =
                        std::fs::metadata(path).map_err(|error| at.unwritable(&error))?;
                    written.insert(identity(&metadata), at.setting);
                    Sink::File(sink)
                }
            };
            files.sinks.insert(name.to_string(), sink);
        }
        store.flush().await?;
        Ok(files)
    }
}

fn source_paths(loaded: &Loaded) -> impl Iterator<Item = (&str, &Path)> {
    loaded.config.streams.iter().filter_map(|(name, stream)| match &stream.source {
        SourceConfig::File(source) => match &source.path {
            Place::File(path) => Some((&**name, &**path)),
            Place::Standard => None,
        },
        _ => unreachable!("`unsupported` refuses other sources"),
    })
}

fn identity(metadata: &Metadata) -> Identity {
    (metadata.dev(), metadata.ino())
}

/// Opens a file of events. Anything but a regular one has no positions to go on from, and might
/// never open at all.
fn open_source(path: &Path) -> Result<(File, Identity), String> {
    let unreadable = |error| format!("cannot be read: {error}");
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err("is no regular file; events from a pipe come in with path = \"-\"".to_owned());
    }
    let file = File::open(path).map_err(unreadable)?;
    let identity = identity(&file.metadata().map_err(unreadable)?);
    Ok((file, identity))
}

/// Where a sink writes, and where the configuration says so.
struct SinkPlace<'a> {
    loaded: &'a Loaded,
    setting: String,
    path: &'a Path,
}

impl SinkPlace<'_> {
    fn error(&self, message: &str) -> ConfigError {
        self.loaded.error(&self.setting, format!("{} {message}", self.path.display()))
    }

    fn unwritable(&self, error: &std::io::Error) -> ConfigError {
        self.error(&format!(
            "cannot be written: {error}. A file in a folder that is there, and that the user who \
             runs Ordain may write to, is right"
        ))
    }

    /// Refuses what is no file of its own, without opening it: a pipe might never open.
    fn check(
        &self,
        read: &BTreeMap<Identity, String>,
        written: &BTreeMap<Identity, String>,
    ) -> Result<(), ConfigError> {
        // One that is not there is made; of any other error, opening tells more.
        let Ok(metadata) = std::fs::metadata(self.path) else { return Ok(()) };
        let identity = identity(&metadata);
        if !metadata.is_file() {
            return Err(self.error(
                "is no regular file: a regular file, or \"-\" for standard output, is right",
            ));
        }
        if let Some(input) = read.get(&identity) {
            return Err(self.error(&format!("is the same file as {input}: it would never end")));
        }
        if let Some(other) = written.get(&identity) {
            let message = format!("is the same file as {other}: each sink needs its own");
            return Err(self.error(&message));
        }
        Ok(())
    }

    async fn open(&self, store: &dyn Store) -> Result<FileSink, RunError> {
        let mark = store.mark(&FileSink::mark_name(self.path)).await?;
        let sink =
            FileSink::open(self.path, mark.as_deref()).map_err(|error| self.unwritable(&error))?;
        // From here on what lies beyond is known to be of a process that died.
        store.put_marks(&[sink.mark()]).await?;
        Ok(sink)
    }
}
