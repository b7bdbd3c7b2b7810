//! The files of a configuration. The process checks all files before it reads or writes any of them. No file may be
//! both read and written, or written by two sinks, even under different names. No sink may write to the configuration
//! or to a handler.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::{RunError, RunStatus};
use crate::sink::{FileSink, LineSink, Sinks, UnpublishedMessages};
use ordain_config::{Config, ConfigError, FileOrStdio, LoadedConfig, SinkConfig, SourceConfig};
use ordain_publish::incident::{IncidentSubject, MessagesLost, record};
use ordain_store::{Mark, Partition, Store, StoreError};
use ordain_util::canonical_path::canonical_path;
use ordain_util::file_pattern::{FilePattern, FileRole};
use ordain_util::io_error::leads_to_no_file;
use ordain_util::standard_output;
use tokio::task::block_in_place;

/// Maximum number of commits whose messages one read of the outbox returns. The outbox is the store's record of
/// committed messages that are not published yet.
const OUTBOX_PAGE_COMMITS: usize = 1_024;

/// The device and the inode, which are the same for all names of a file.
type FileIdentity = (u64, u64);

/// Opens the sinks. All checks that do not need a newly created file come before the creation or truncation of any
/// file. Adds the states of the sinks to `status`. Also counts in `status` the messages of configured streams that sink
/// files contain and that the store lacks.
pub(super) async fn open_sinks(
    loaded: &LoadedConfig,
    store: &dyn Store,
    status: &RunStatus,
) -> Result<Sinks, RunError> {
    let CheckedFiles { sink_paths, mut written } = check_all(loaded)?;
    if let Some((name, _)) = sink_paths.iter().find(|(_, sink_path)| sink_path.is_none()) {
        check_standard_output(loaded, name)?;
    }
    let mut sinks = Sinks::default();
    for (name, sink_path) in sink_paths {
        let Some(sink_path) = sink_path else {
            status.add_sink(&name, sinks.add_lines(&name, LineSink::Standard));
            continue;
        };
        // An earlier pass of this loop may have created the file under another name.
        if let Ok(metadata) = std::fs::metadata(sink_path.path) {
            sink_path.register(file_identity(&metadata), &mut written.existing)?;
        }
        let (sink, lost) = sink_path.open(store).await?;
        let mut others = 0;
        for (stream, messages) in lost {
            // Another program may have written the lines, with any text as the name of a stream.
            if loaded.config.streams.contains_key(&*stream) {
                report_lost_messages(&name, sink.path(), &stream, messages);
                status.count_lost_messages(&stream, messages);
            } else {
                others += messages;
            }
        }
        if others > 0 {
            tracing::warn!(
                sink = &*name, path = %sink.path().display(), lines = others,
                "the sink file ends with messages that the store does not have, and whose streams are not \
                 configured. Was an older copy of the store's folder restored, or did another program write these \
                 lines? The lines stay in the file, and new messages are written after them"
            );
        }
        let metadata =
            std::fs::metadata(sink_path.path).map_err(|error| sink_path.unwritable(&error))?;
        sink_path.register(file_identity(&metadata), &mut written.existing)?;
        status.add_sink(&name, sinks.add_lines(&name, LineSink::File(Box::new(sink))));
    }
    store.flush().await?;
    Ok(sinks)
}

/// Returns an error if standard output is closed: the messages of the sink would then count as published although they
/// would be lost. The error counts as temporary, because standard output may be open at another start with the same
/// configuration.
fn check_standard_output(loaded: &LoadedConfig, sink: &str) -> Result<(), ConfigError> {
    if !standard_output::is_closed() {
        return Ok(());
    }
    let message = "standard output is closed, so the messages of the sink would be lost. Start Ordain with an open \
                   standard output, or set the path of a file. To discard the messages, start Ordain with \
                   `> /dev/null`, which opens /dev/null only for writing";
    let error = loaded.setting_error(&format!("sinks.{sink}.path"), message);
    Err(error.caused_by(&ErrorKind::BrokenPipe.into()))
}

fn report_lost_messages(sink: &str, path: &Path, stream: &str, messages: u64) {
    let path = path.display();
    let incident = MessagesLost { to: format!("file/{path}"), messages, numbered: None };
    tracing::warn!(
        stream, sink, %path, lines = messages,
        cloudevent = record(stream, IncidentSubject::Sink(sink), &incident),
        "THE STORE WENT BACK IN TIME: it lacks the last messages of the file, so Ordain cannot write these messages \
         again. Was an older copy of the store's folder restored? The messages stay in the file, and new messages are \
         written after them"
    );
}

/// Checks the files in the same way as the start of a run, and returns the error of the first unusable file. Creates no
/// file.
pub fn check_files(loaded: &LoadedConfig) -> Result<(), ConfigError> {
    check_all(loaded).map(drop)
}

/// The file sinks, each with its path (`None` for standard output), and the sink files.
struct CheckedFiles<'a> {
    sink_paths: Vec<(String, Option<FileSinkPath<'a>>)>,
    written: WrittenFiles,
}

/// The files of all sinks, each with the setting that names it.
#[derive(Default)]
struct WrittenFiles {
    /// Files that exist.
    existing: BTreeMap<FileIdentity, String>,
    /// The canonical paths of files that do not exist yet.
    missing: BTreeMap<PathBuf, String>,
}

fn check_all(loaded: &LoadedConfig) -> Result<CheckedFiles<'_>, ConfigError> {
    let mut checked = CheckedFiles { sink_paths: Vec::new(), written: WrittenFiles::default() };
    let mut read = ReadFiles::default();
    for (name, path) in source_paths(loaded) {
        read.add(loaded, name, path)?;
    }
    let own = OwnFiles::new(loaded);
    for (name, sink) in &loaded.config.sinks {
        let SinkConfig::File(file) = sink else { continue };
        let sink_path = match &file.path {
            FileOrStdio::Stdio => None,
            FileOrStdio::File(path) => {
                let sink_path =
                    FileSinkPath { loaded, setting: format!("sinks.{name}.path"), path };
                sink_path.check(&read, &own, &mut checked.written)?;
                Some(sink_path)
            }
        };
        checked.sink_paths.push((name.to_string(), sink_path));
    }
    Ok(checked)
}

fn source_paths(loaded: &LoadedConfig) -> impl Iterator<Item = (&str, &Path)> {
    loaded.config.streams.iter().filter_map(|(name, stream)| match &stream.source {
        SourceConfig::File(source) => match &source.path {
            FileOrStdio::File(path) => Some((&**name, &**path)),
            FileOrStdio::Stdio => None,
        },
        _ => None,
    })
}

fn file_identity(metadata: &Metadata) -> FileIdentity {
    (metadata.dev(), metadata.ino())
}

/// The files of all sources, each with the setting that names it.
#[derive(Default)]
struct ReadFiles {
    files: BTreeMap<FileIdentity, String>,
    /// The canonical folder, the pattern and the setting of each source.
    patterns: Vec<(PathBuf, FilePattern, String)>,
}

impl ReadFiles {
    /// Adds the files of a source. The path must lead to a regular file: a file of another kind has no positions at
    /// which to resume, and opening it might block forever. With wildcards, skips files of other kinds instead, and
    /// accepts a pattern that matches no file yet. Accepts a missing file if the folder has an older file: log rotation
    /// has then renamed the file, and another program will create a new file at the path. Rejects a file that this
    /// process cannot read.
    fn add(&mut self, loaded: &LoadedConfig, stream: &str, path: &Path) -> Result<(), ConfigError> {
        let setting = format!("streams.{stream}.source.path");
        let refused = |path: &Path, what: String| {
            loaded.setting_error(&setting, format!("{} {what}", path.display()))
        };
        let unreadable = |path: &Path, error: std::io::Error| {
            refused(path, format!("cannot be read: {error}")).caused_by(&error)
        };
        let pattern = FilePattern::new(path);
        if pattern.has_wildcard_in_folder() {
            let what = "has a wildcard in its folder; only the file name may have wildcards";
            return Err(refused(path, what.to_owned()));
        }
        let mut paths = vec![path.to_owned()];
        if pattern.is_glob() {
            let folder = pattern.folder();
            paths.clear();
            for entry in std::fs::read_dir(folder).map_err(|error| unreadable(folder, error))? {
                let name = entry.map_err(|error| unreadable(folder, error))?.file_name();
                if pattern.role(&name) == Some(FileRole::Live) {
                    paths.push(pattern.path_of(&name));
                }
            }
        }
        for path in paths {
            let metadata = match std::fs::metadata(&path) {
                Err(error)
                    if leads_to_no_file(&error)
                        && (pattern.is_glob() || has_older_file(&pattern)) =>
                {
                    continue;
                }
                metadata => metadata.map_err(|error| unreadable(&path, error))?,
            };
            if !metadata.is_file() && !pattern.is_glob() {
                let what = "is not a regular file; to read events from a pipe, use path = \"-\"";
                return Err(refused(&path, what.to_owned()));
            }
            if metadata.is_file() {
                File::open(&path).map_err(|error| unreadable(&path, error))?;
                self.files.entry(file_identity(&metadata)).or_insert_with(|| setting.clone());
            }
        }
        for pattern in pattern.target().into_iter().chain([pattern]) {
            self.patterns.push((canonical_path(pattern.folder()), pattern, setting.clone()));
        }
        Ok(())
    }

    /// Returns the setting of the source that reads this file, or that would read a file at this path.
    fn setting(&self, path: &Path, metadata: Option<&Metadata>) -> Option<&String> {
        let by_identity = metadata.and_then(|metadata| self.files.get(&file_identity(metadata)));
        let canonical = canonical_path(path);
        let name = canonical.file_name()?;
        by_identity.or_else(|| {
            let of_path = |(folder, pattern, _): &&(PathBuf, FilePattern, String)| {
                canonical.parent() == Some(folder) && pattern.role(name).is_some()
            };
            self.patterns.iter().find(of_path).map(|(_, _, setting)| setting)
        })
    }
}

/// The configuration and the handlers, to which no sink may write.
struct OwnFiles {
    config: Option<FileIdentity>,
    /// The identities, because a handler file may have a second name outside the folder of handlers.
    handlers: BTreeSet<FileIdentity>,
    /// The canonical path.
    handler_folder: PathBuf,
}

impl OwnFiles {
    /// Leaves out files and folders that cannot be read, because the load of the handlers reports them.
    fn new(loaded: &LoadedConfig) -> Self {
        let identity = |path: &Path| std::fs::metadata(path).ok().as_ref().map(file_identity);
        let folder: &Path = &loaded.config.plugins.dir;
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let files = entries.map(|entry| entry.path()).filter(|path| is_handler_name(path));
        Self {
            config: identity(&loaded.file),
            handlers: files.filter_map(|path| identity(&path)).collect(),
            handler_folder: canonical_path(folder),
        }
    }

    /// Returns the purpose for which the process needs a file; `None` if the process does not need it. A missing file
    /// with the name of a handler also has a purpose, because the process would load the new file.
    fn purpose(&self, path: &Path, metadata: Option<&Metadata>) -> Option<&'static str> {
        let identity = metadata.map(file_identity);
        if identity.is_some() && identity == self.config {
            return Some("the configuration");
        }
        let is_known = identity.is_some_and(|identity| self.handlers.contains(&identity));
        let path = canonical_path(path);
        let is_inside = path.parent() == Some(&self.handler_folder) && is_handler_name(&path);
        (is_known || is_inside).then_some("a handler")
    }
}

fn is_handler_name(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "wasm")
}

/// Returns whether log rotation has left an older file in the folder of a source. If the path of the source is a link,
/// also searches the folder of the file to which the link leads.
fn has_older_file(pattern: &FilePattern) -> bool {
    let target = pattern.target();
    [Some(pattern), target.as_ref()].into_iter().flatten().any(|pattern| {
        let entries = std::fs::read_dir(pattern.folder()).into_iter().flatten().flatten();
        let mut roles = entries.map(|entry| pattern.role(&entry.file_name()));
        roles.any(|role| matches!(role, Some(FileRole::Rotated { .. })))
    })
}

struct FileSinkPath<'a> {
    loaded: &'a LoadedConfig,
    setting: String,
    path: &'a Path,
}

impl FileSinkPath<'_> {
    fn error(&self, message: &str) -> ConfigError {
        let message = format!("{} {message}", self.path.display());
        self.loaded.setting_error(&self.setting, message)
    }

    fn unwritable(&self, error: &std::io::Error) -> ConfigError {
        let advice = match error.kind() {
            ErrorKind::ResourceBusy => {
                "End the program that has locked the file, or use another file"
            }
            _ => "Use a file in an existing folder to which the user who runs Ordain may write",
        };
        self.error(&format!("cannot be written: {error}. {advice}")).caused_by(error)
    }

    /// Rejects each of these files: a file that is not regular, the file of a source or of another sink, the
    /// configuration, a handler, and a file to which this process cannot write. Checks the kind of the file before
    /// opening it, because opening a pipe might block.
    fn check(
        &self,
        read: &ReadFiles,
        own: &OwnFiles,
        written: &mut WrittenFiles,
    ) -> Result<(), ConfigError> {
        let metadata = std::fs::metadata(self.path);
        if let Some(input) = read.setting(self.path, metadata.as_ref().ok()) {
            return Err(self.error(&format!(
                "is the same file as {input}: the source would read the sink's messages without end"
            )));
        }
        if let Some(purpose) = own.purpose(self.path, metadata.as_ref().ok()) {
            return Err(self.error(&format!(
                "is the file of {purpose}: the sink would destroy it. Use another file"
            )));
        }
        let metadata = match metadata {
            Ok(metadata) => metadata,
            // A missing file is no error if its folder exists: the start creates the file.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
                let folder = std::fs::metadata(folder.unwrap_or(Path::new(".")));
                folder.map_err(|error| self.unwritable(&error))?;
                return self.register(canonical_path(self.path), &mut written.missing);
            }
            Err(error) => return Err(self.unwritable(&error)),
        };
        if !metadata.is_file() {
            return Err(self
                .error("is not a regular file. Use a regular file, or \"-\" for standard output"));
        }
        let opened = File::options().write(true).open(self.path);
        opened.map_err(|error| self.unwritable(&error))?;
        self.register(file_identity(&metadata), &mut written.existing)
    }

    /// Records the file under its identity or path. Rejects a file that already belongs to another sink.
    fn register<I: Ord>(
        &self,
        file: I,
        written: &mut BTreeMap<I, String>,
    ) -> Result<(), ConfigError> {
        let setting = written.entry(file).or_insert_with(|| self.setting.clone());
        if *setting == self.setting {
            return Ok(());
        }
        Err(self.error(&format!("is the same file as {setting}: each sink needs its own file")))
    }

    /// Opens the file. Returns the sink. Also returns, for each stream, the number of messages that the file has after
    /// its recorded length and that the store lacks.
    async fn open(&self, store: &dyn Store) -> Result<(FileSink, BTreeMap<String, u64>), RunError> {
        let unwritable = |error: std::io::Error| self.unwritable(&error);
        let link_mark_name = FileSink::link_mark_name(self.path);
        // If the path of the sink is a link, prefer the mark (the store's record of a file) of the last start. The file
        // to which the link leads now may have a mark of its own, but this mark may be from an earlier start: the last
        // run may have written to the file under another mark.
        let mark = match last_mark(store, link_mark_name.as_deref()).await? {
            None => store.mark(&FileSink::mark_name(self.path)).await?,
            mark => mark,
        };
        let opened = FileSink::open(self.path, mark.as_deref()).map_err(unwritable)?;
        let unpublished = if opened.needs_outbox() {
            unpublished_messages(&self.loaded.config, store).await?
        } else {
            UnpublishedMessages::default()
        };
        // The comparison can read a large part of the file, and must not block other tasks during the read.
        let (sink, lost) = block_in_place(|| opened.finish(&unpublished)).map_err(unwritable)?;
        // Record the present length and the identity of the file now. If this process dies, the next start recognises
        // the file, and finds the lines that were added after this length.
        let mark = sink.mark();
        let link_mark = link_mark_name.map(|name| Mark { name, value: mark.name.clone().into() });
        let marks: Vec<Mark> = link_mark.into_iter().chain([mark]).collect();
        store.put_marks(&marks).await?;
        Ok((sink, lost))
    }
}

/// If the path of the sink is a link, returns the mark of the last start. This mark describes the file that the last
/// run wrote, even if the link led to another file when this run started, or leads to another file now.
async fn last_mark(
    store: &dyn Store,
    link_mark_name: Option<&str>,
) -> Result<Option<Bytes>, StoreError> {
    let Some(link_mark_name) = link_mark_name else { return Ok(None) };
    let Some(last) = store.mark(link_mark_name).await? else { return Ok(None) };
    store.mark(&String::from_utf8_lossy(&last)).await
}

/// Reads the outboxes of all partitions. Includes the messages of all sinks, because the sink of a message may have
/// written to another file in an earlier run.
async fn unpublished_messages(
    config: &Config,
    store: &dyn Store,
) -> Result<UnpublishedMessages, StoreError> {
    let mut unpublished = UnpublishedMessages::default();
    for (name, stream) in &config.streams {
        let stream_name = name.shared();
        for number in 0..stream.source.partitions() {
            let partition = Partition { stream: Arc::clone(&stream_name), number };
            for shard in 0..store.shards() {
                let mut after = 0;
                loop {
                    let entries =
                        store.outbox(&partition, shard, after, OUTBOX_PAGE_COMMITS).await?;
                    let Some(last) = entries.last() else { break };
                    after = last.number;
                    for entry in entries {
                        unpublished.add_entry(&stream_name, entry);
                    }
                }
            }
        }
    }
    Ok(unpublished)
}
