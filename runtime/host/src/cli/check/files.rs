//! The files that a configuration names: what a start would find out, without making anything.

use std::fs::{File, OpenOptions, metadata};
use std::io;
use std::path::Path;

use crate::config::{ConfigError, Loaded, Place, Sink, Source};

/// Looks at every source and sink.
pub(super) fn check(loaded: &Loaded) -> Result<(), ConfigError> {
    let mut problems = Vec::new();
    let mut note = |setting: String, path: &Path, problem: Result<(), String>| {
        if let Err(problem) = problem {
            let message = format!("{} {problem}", path.display());
            problems.extend(loaded.error(&setting, message).problems);
        }
    };
    for (name, stream) in &loaded.config.streams {
        if let Source::File(source) = &stream.source
            && let Place::File(path) = &source.path
        {
            note(format!("streams.{name}.source.path"), path, source_file(path));
        }
    }
    for (name, sink) in &loaded.config.sinks {
        if let Sink::File(sink) = sink
            && let Place::File(path) = &sink.path
        {
            let problem = sink_file(path).map_err(|error| {
                format!(
                    "cannot be written: {error}. A file in a folder that is there, and that the \
                     user who runs Ordain may write to, is right"
                )
            });
            note(format!("sinks.{name}.path"), path, problem);
        }
    }
    if problems.is_empty() {
        return Ok(());
    }
    problems.sort();
    Err(ConfigError { file: loaded.file.clone(), problems })
}

fn source_file(path: &Path) -> Result<(), String> {
    let unreadable = |error| format!("cannot be read: {error}");
    if !metadata(path).map_err(unreadable)?.is_file() {
        return Err("is no regular file; events from a pipe come in with path = \"-\"".to_owned());
    }
    File::open(path).map(drop).map_err(unreadable)
}

fn sink_file(path: &Path) -> io::Result<()> {
    match metadata(path) {
        Ok(metadata) if metadata.is_file() => OpenOptions::new().write(true).open(path).map(drop),
        Ok(_) => Err(io::Error::other("a sink must be a regular file")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
            metadata(folder.unwrap_or(Path::new("."))).map(drop)
        }
        Err(error) => Err(error),
    }
}
