//! The configuration of a process. This crate reads and checks all settings before it reports any error. Each error
//! contains its line, if the file has a line for it, and describes a valid value. This crate reads the files of
//! variables such as `${file:/path}`. The crate must not open anything else that the configuration names, and must not
//! control the processing of events.
//!
//! The modules `process`, `stream`, `source`, `sink` and `replay` describe each table of the file once: every setting
//! with meaning, form, bounds, default and the reason for the default. The macros in `section` derive the reader, the
//! checks and the printed reference from these descriptions. `location` describes the places of an event's key, id,
//! sequence, type and time; `format` names these places for the messages of well-known libraries. `check` finds
//! conflicts between settings. `lint` finds risky settings, and only warns. `unsupported` lists the settings that this
//! version of Ordain does not support yet.
#![allow(clippy::doc_markdown, reason = "RabbitMQ and CloudEvents are names, not code")]

mod broker_url;
mod check;
mod dev;
mod event_types;
mod exchange_readers;
mod explain;
mod format;
mod known;
mod lint;
mod location;
mod management;
pub mod numbering;
mod numbering_policy;
mod problem;
mod process;
mod queue_names;
mod reader;
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
mod unsupported;

#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

pub use broker_url::{BrokerAddress, BrokerUrl};
pub use dev::{BuildCommand, DevConfig};
pub use explain::explain;
pub use format::MessageFormat;
pub use known::known_streams;
pub use location::{
    EventLocations, IdLocation, IdPlace, JsonPointer, KeyLocation, KeyPart, KeyPlace,
    MessageProperty, Place, ValueLocation,
};
pub use management::ManagementUrl;
pub use numbering_policy::NumberingPolicy;
pub use problem::{ConfigError, ConfigProblem, SettingLines};
pub use process::{
    AdminConfig, BrokerConfig, EmbeddedConfig, IngressConfig, InstanceMode, PluginsConfig,
    RedisConfig, RedisDurability, RuntimeConfig, StoreConfig,
};
pub use queue_names::{dropped_queue, partition_queue};
pub use reader::ReferenceRow;
pub use replay::{Authorization, ReplayServer, ReplaySource, ReplayUrl};
pub use settings::{MIN_REMEMBERED_IDS, PartitionParams};
pub use sink::{AmqpSinkConfig, FileSinkConfig, SinkConfig, StreamSinkConfig, UnroutablePolicy};
pub use source::{
    AmqpSourceConfig, CHECKPOINT_INTERVAL_EVENTS, ExchangeBinding, FileSourceConfig, HashedPart,
    HttpSourceConfig, MESSAGE_EVENTS_LIMIT, REQUEST_EVENTS_LIMIT, SourceConfig, StreamSourceConfig,
};
pub use stream::{
    FirstSequence, GapConfig, GapExhausted, RetryConfig, RetryExhausted, StreamConfig,
};
pub use template::{RoutingKeyTemplate, RoutingKeyValues};
pub use text::{AmqpName, FileOrStdio, FilePath, NamedTables, ResourceName, Secret, SinkExchange};
pub use units::{ByteSize, Millis, OffOr, Percent};

use reader::{ConfigReader, SettingValue};
use section::section;

use ordain_util::text::shell_quoted;

/// The configuration file that a command reads if its command line names no file.
pub const DEFAULT_FILE: &str = "ordain.toml";

/// Size limit of a configuration file, in bytes: large enough for a thousand streams, and small enough to reject a file
/// that is no configuration.
const FILE_LIMIT_BYTES: u64 = 1 << 20;

section! {
    /// All settings of a configuration file.
    pub struct Config {
        /// Limits of the process, shared by all streams.
        runtime: RuntimeConfig = {};
        /// The listener for operators.
        admin: Option<AdminConfig>;
        /// The listener for events over HTTP. Without this table, the process listens at the default address, but only
        /// if a stream has a source of kind `http`.
        ingress: Option<IngressConfig>;
        /// The store, which keeps all durable data.
        store: StoreConfig = { kind = "embedded" },
            because "the embedded store needs no server";
        /// The RabbitMQ broker that all sources and sinks of kind `amqp` use.
        broker: Option<BrokerConfig>;
        /// The folder of the handlers, and the limits of the handlers.
        plugins: PluginsConfig = {};
        /// The streams, by name; at least one.
        streams: NamedTables<StreamConfig> = {};
        /// The sinks, by name.
        sinks: NamedTables<SinkConfig> = {};
        /// The build, the watched files and the events of the commands `dev` and `test`.
        dev: Option<DevConfig>;
    }
}

/// A configuration, and the lines of its settings in the file.
#[derive(Debug, Clone)]
pub struct LoadedConfig {
    /// The file that was read. If the configuration has no file, this is the name of the default file.
    pub file: PathBuf,
    /// The settings, with defaults for the settings that the file leaves out.
    pub config: Config,
    /// The line of each setting in the file.
    pub lines: SettingLines,
}

impl LoadedConfig {
    /// Reads a file, and replaces the variables in its texts by their values: environment variables, and the contents
    /// of files. A relative path in the file starts at the folder of the file.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        let text = read_file(file)?;
        Self::parse(file, &text, &|name| std::env::var(name).ok())
    }

    /// Returns a configuration that has no streams and in which every setting has its default.
    pub fn without_file() -> Result<Self, ConfigError> {
        // The reader rejects a file without a stream. This function therefore reads a file with one stream, and then
        // removes the stream.
        let text = "[streams.none]\nhandler = \"none\"\nsource = { kind = \"file\", path = \"-\" }";
        let mut loaded = Self::parse(Path::new(DEFAULT_FILE), text, &|_| None)?;
        loaded.config.streams = NamedTables::new();
        Ok(loaded)
    }

    /// Parses `text`, which is the content of `file`. The function `env` looks up environment variables.
    pub fn parse(
        file: &Path,
        text: &str,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let base = file.parent().unwrap_or(Path::new(""));
        let mut reader = ConfigReader::new(text, base, env);
        let config: Option<Config> = reader.document(text);
        let is_valid_toml = reader.is_valid_toml();
        let ConfigReader { mut problems, lines, .. } = reader;
        if let Some(config) = config {
            if is_valid_toml {
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

    /// Returns an error if the file uses settings that this version of Ordain does not support yet.
    pub fn check_supported(&self) -> Result<(), ConfigError> {
        let problems = unsupported::find_unsupported(&self.config, &self.lines);
        if problems.is_empty() {
            return Ok(());
        }
        Err(ConfigError { file: self.file.clone(), problems })
    }

    /// Returns the command-line option that selects this configuration, with a space before the option. Returns an
    /// empty text for the default file.
    pub fn config_option(&self) -> String {
        if self.file.to_str() == Some(DEFAULT_FILE) {
            return String::new();
        }
        let file = self.file.display().to_string();
        // If a space preceded a file name that begins with a hyphen, the command would read the file name as another
        // option.
        let between = if file.starts_with('-') { '=' } else { ' ' };
        format!(" --config{between}{}", shell_quoted(&file))
    }

    /// Returns an error about a setting. A caller uses this function for a fault that it finds after the file was read,
    /// such as a missing handler.
    pub fn setting_error(&self, setting: &str, message: impl Into<String>) -> ConfigError {
        let line = self.lines.line_of(setting);
        let setting = setting.to_owned();
        let message = message.into();
        let problem = ConfigProblem { line, setting, message, is_temporary: false };
        ConfigError { file: self.file.clone(), problems: vec![problem] }
    }
}

/// Returns the documentation of every setting.
pub fn reference() -> &'static [ReferenceRow] {
    Config::ROWS
}

fn read_file(file: &Path) -> Result<String, ConfigError> {
    let refused = |message| ConfigError::of_file(file, message, false);
    let unreadable = |error: io::Error| {
        match error.kind() {
        io::ErrorKind::NotFound if leads_to_nothing(file) => refused(
            "leads through a link to a file or folder that does not exist; check whether the disk of the missing file \
             or folder is mounted"
                .to_owned(),
        )
        .caused_by(&error),
        io::ErrorKind::NotFound => refused(format!(
            "cannot be read: {error}. Change to the folder of the file, or name the file with --config FILE"
        )),
        _ => refused(format!("cannot be read: {error}")).caused_by(&error),
    }
    };
    let metadata = std::fs::metadata(file).map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(refused("is not a file".to_owned()));
    }
    if metadata.len() > FILE_LIMIT_BYTES {
        return Err(refused(format!(
            "has {} bytes; a configuration has at most {FILE_LIMIT_BYTES}",
            metadata.len()
        )));
    }
    let text = std::fs::read_to_string(file).map_err(unreadable)?;
    if text.is_empty() {
        let message = "is empty: write at least one stream, or wait until another program has \
                       written the file";
        return Err(ConfigError::of_file(file, message.to_owned(), true));
    }
    Ok(text)
}

/// Returns whether the path contains a symbolic link to a file or folder that does not exist.
fn leads_to_nothing(path: &Path) -> bool {
    path.ancestors().any(|part| part.is_symlink() && !part.exists())
}
