//! The configuration of a process. All settings are read and checked before any error is reported; each
//! error has its line and says what would be right. This crate must not open anything that the
//! configuration names, and must not decide anything at run time.
//!
//! Each table of the file is described once, in `process`, `stream`, `source` and `sink`, with meaning,
//! form, bounds, default and reason; the macros in `section` derive the rest. `check` holds the checks
//! that concern several settings, `later` the settings that this build does not support yet.
#![allow(clippy::doc_markdown, reason = "RabbitMQ and CloudEvents are names, not code")]

pub mod broker_url;
mod check;
mod expand;
mod explain;
mod known;
mod later;
pub mod numbering;
mod passage;
mod problem;
mod process;
mod reader;
mod readers;
mod replay;
mod scalar;
mod section;
mod settings;
mod sink;
mod source;
mod stream;
mod suggest;
mod template;
mod text;
mod units;

#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

pub use explain::explain;
pub use known::known_streams;
pub use passage::Passage;
pub use problem::{ConfigError, Lines, Problem};
pub use process::{
    Admin, Broker, Durability, Embedded, Ingress, Instance, Plugins, Redis, Runtime, StoreConfig,
};
pub use reader::Row;
pub use replay::{Authorization, Replay, ReplayServer, ReplayUrl};
pub use settings::Share;
pub use sink::{AmqpSink, FileSink, Sink, StreamSink};
pub use source::{
    AmqpSource, Bind, CHECKPOINT_EVENTS, FileSource, HttpSource, KeyFrom, REQUEST_EVENTS, Source,
    StreamSource,
};
pub use stream::{Gap, GapExhausted, Retry, RetryExhausted, Stream};
pub use template::RoutingKey;
pub use text::{BrokerUrl, FilePath, Name, Named, Place, Secret, Text};
pub use units::{Millis, Off, Percent, Size};

use reader::{Reader, Setting};
use section::section;

use ordain_util::text::quoted;

/// The file that a command reads if none is named.
pub const DEFAULT_FILE: &str = "ordain.toml";

/// Size limit of a configuration file, in bytes: a thousand streams fit, and the wrong file is noticed.
const FILE_LIMIT: u64 = 1 << 20;

section! {
    /// All settings of a configuration file.
    pub struct Config {
        /// Limits of the process, shared by all streams.
        runtime: Runtime = {};
        /// Where the process serves operators.
        admin: Option<Admin>;
        /// Where the process accepts events over HTTP. If left out, it listens at the default address if a
        /// stream has a source of kind `http`, and does not listen otherwise.
        ingress: Option<Ingress>;
        /// Where all data is kept.
        store: StoreConfig = { kind = "embedded" },
            because "it needs no server";
        /// The RabbitMQ of all sources and sinks of kind `amqp`.
        broker: Option<Broker>;
        /// The handlers.
        plugins: Plugins = {};
        /// The streams, by name; at least one.
        streams: Named<Stream> = {};
        /// The sinks, by name.
        sinks: Named<Sink> = {};
    }
}

/// A configuration as read from a file.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The file that was read.
    pub file: PathBuf,
    /// The settings, with defaults for those that the file leaves out.
    pub config: Config,
    /// The line of each setting in the file.
    pub lines: Lines,
}

impl Loaded {
    /// Reads a file and replaces environment variables. Relative paths in the file start at its folder.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        let text = read(file).map_err(|message| ConfigError::whole(file, message))?;
        Self::parse(file, &text, &|name| std::env::var(name).ok())
    }

    /// Parses a text that came from `file`; `env` looks up variables.
    pub fn parse(
        file: &Path,
        text: &str,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let base = file.parent().unwrap_or(Path::new(""));
        let mut reader = Reader::new(text, base, env);
        let config: Option<Config> = reader.document(text);
        let is_whole = reader.is_whole();
        let Reader { mut problems, lines, .. } = reader;
        if let Some(config) = config {
            if is_whole {
                problems.extend(check::check(&config, &lines));
            }
            if problems.is_empty() {
                return Ok(Self { file: file.to_owned(), config, lines });
            }
        }
        problems.sort();
        problems.dedup();
        Err(ConfigError { file: file.to_owned(), problems })
    }

    /// Returns an error if the file uses settings that this build does not support yet.
    pub fn unsupported(&self) -> Result<(), ConfigError> {
        let problems = later::unsupported(&self.config, &self.lines);
        if problems.is_empty() {
            return Ok(());
        }
        Err(ConfigError { file: self.file.clone(), problems })
    }

    /// Returns the option that selects this configuration on a command line; empty for the default file.
    pub fn option(&self) -> String {
        match self.file.to_str() {
            Some(DEFAULT_FILE) => String::new(),
            _ => format!(" --config {}", quoted(&self.file.display().to_string())),
        }
    }

    /// Returns an error about a setting that is found after reading, for example a missing handler.
    pub fn error(&self, setting: &str, message: impl Into<String>) -> ConfigError {
        let line = self.lines.of(setting);
        let problem = Problem { line, setting: setting.to_owned(), message: message.into() };
        ConfigError { file: self.file.clone(), problems: vec![problem] }
    }
}

/// Returns the documentation of every setting.
pub fn reference() -> &'static [Row] {
    Config::ROWS
}

fn read(file: &Path) -> Result<String, String> {
    let metadata = std::fs::metadata(file).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            format!(
                "cannot be read: {error}. Change to its folder, or name the file with --config FILE"
            )
        }
        _ => format!("cannot be read: {error}"),
    })?;
    if !metadata.is_file() {
        return Err("is not a file".to_owned());
    }
    if metadata.len() > FILE_LIMIT {
        return Err(format!(
            "has {} bytes; a configuration has at most {FILE_LIMIT}",
            metadata.len()
        ));
    }
    std::fs::read_to_string(file).map_err(|error| format!("cannot be read: {error}"))
}
