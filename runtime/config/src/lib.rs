//! The configuration: read whole, every setting checked, every error reported at once with its
//! line and what would be right. It opens nothing that it names, and decides nothing at run time.
//!
//! Each table of the file is described once, in `process`, `stream`, `source` and `sink`, with
//! meaning, form, bounds, default and reason; `section` makes the rest from that. `check` holds
//! what concerns several settings, `later` what this build cannot run yet.
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

/// The file that every command takes when it is given none.
pub const DEFAULT_FILE: &str = "ordain.toml";

/// The largest file that is read: a thousand streams fit, and a wrong path is noticed.
const FILE_LIMIT: u64 = 1 << 20;

section! {
    /// Everything that a file can say.
    pub struct Config {
        /// What the process may use.
        runtime: Runtime = {};
        /// Where operators are served.
        admin: Option<Admin>;
        /// Where events are taken over HTTP. Left out: at its default if a stream's source is
        /// `http`, else not at all.
        ingress: Option<Ingress>;
        /// Where everything is kept.
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
    /// The file.
    pub file: PathBuf,
    /// What it says, with defaults for what it leaves out.
    pub config: Config,
    /// On which line it says it.
    pub lines: Lines,
}

impl Loaded {
    /// Reads a file, with the variables of the environment. Relative paths in it go from its
    /// folder.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        let text = read(file).map_err(|message| ConfigError::whole(file, message))?;
        Self::parse(file, &text, &|name| std::env::var(name).ok())
    }

    /// Reads a text that came from `file`, with the variables that `env` knows.
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

    /// What the file asks for and this build cannot do yet.
    pub fn unsupported(&self) -> Result<(), ConfigError> {
        let problems = later::unsupported(&self.config, &self.lines);
        if problems.is_empty() {
            return Ok(());
        }
        Err(ConfigError { file: self.file.clone(), problems })
    }

    /// How a command is told to take this configuration: nothing for the default one.
    pub fn option(&self) -> String {
        match self.file.to_str() {
            Some(DEFAULT_FILE) => String::new(),
            _ => format!(" --config {}", quoted(&self.file.display().to_string())),
        }
    }

    /// An error about a setting that only shows later, for example when a handler is not found.
    pub fn error(&self, setting: &str, message: impl Into<String>) -> ConfigError {
        let line = self.lines.of(setting);
        let problem = Problem { line, setting: setting.to_owned(), message: message.into() };
        ConfigError { file: self.file.clone(), problems: vec![problem] }
    }
}

/// Every setting that a file can have, as documented.
pub fn reference() -> &'static [Row] {
    Config::ROWS
}

fn read(file: &Path) -> Result<String, String> {
    let metadata = std::fs::metadata(file).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            format!("cannot be read: {error}. Go to its folder, or name it: --config FILE")
        }
        _ => format!("cannot be read: {error}"),
    })?;
    if !metadata.is_file() {
        return Err("is no file".to_owned());
    }
    if metadata.len() > FILE_LIMIT {
        return Err(format!("has {} bytes; at most {FILE_LIMIT} are read", metadata.len()));
    }
    std::fs::read_to_string(file).map_err(|error| format!("cannot be read: {error}"))
}
