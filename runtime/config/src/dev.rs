//! `[dev]`: the settings of the commands with which a developer runs and tests the handlers of a project.

use super::reader::{ConfigReader, SettingNode, SettingValue};
use super::section::section;
use super::text::{FilePath, ResourceName};
use super::{Config, SourceConfig, StreamConfig};

section! {
    /// `[dev]`: the settings of the commands `dev` and `test`. All other commands only check this table.
    pub struct DevConfig {
        /// Command that builds the handlers and writes their files into the folder of handlers. `sh -c` runs the
        /// command in the folder of the configuration. Without this setting, the commands `dev` and `test` build
        /// nothing.
        build: Option<BuildCommand>;
        /// Files and folders whose change starts a build. They must not contain files that a build writes.
        watch: Vec<FilePath> = ["src"],
            because "most languages have the source code in this folder";
        /// File with the events that the command `dev` passes to the handlers after each build. Without this setting,
        /// the command reads the events from standard input.
        events: Option<FilePath>;
        /// Stream that receives these events, and the events of scripted tests. Required if several streams have a
        /// source of another kind than `stream`.
        stream: Option<ResourceName>;
        /// Folder of the scripted tests: the files `*.ndjson` in this folder.
        tests: FilePath = "tests",
            because "a folder next to the configuration is easy to find";
    }
}

/// A command for `sh -c`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildCommand(pub String);

impl SettingValue for BuildCommand {
    const FORM: &'static str = "a command for `sh -c`";

    fn read(reader: &mut ConfigReader<'_>, node: &SettingNode<'_>) -> Option<Self> {
        let text = reader.text(node, Self::FORM)?;
        if text.trim().is_empty() || text.contains('\0') {
            reader.report_wrong_form(node, Self::FORM);
            return None;
        }
        Some(Self(text.trim().to_owned()))
    }
}

impl SettingValue for Vec<FilePath> {
    const FORM: &'static str = "an array of paths";

    fn read(reader: &mut ConfigReader<'_>, node: &SettingNode<'_>) -> Option<Self> {
        let elements = reader.elements(node, Self::FORM)?;
        let paths: Vec<Option<FilePath>> =
            elements.iter().map(|element| FilePath::read(reader, element)).collect();
        paths.into_iter().collect()
    }
}

impl Config {
    /// Returns the stream that receives the events of the commands `dev` and `test`. If the configuration does not
    /// determine the stream, returns a text that states the reason and a valid setting.
    pub fn dev_stream(&self) -> Result<&ResourceName, String> {
        let named = self.dev.as_ref().and_then(|dev| dev.stream.as_ref());
        let is_fed = |stream: &StreamConfig| !matches!(stream.source, SourceConfig::Stream(_));
        let mut fed = self.streams.iter().filter(|(_, stream)| is_fed(stream));
        match (named, fed.next(), fed.next()) {
            (Some(name), ..) if self.streams.contains_key(name) => Ok(name),
            (Some(name), ..) => {
                let known: Vec<&str> = self.streams.keys().map(|name| &**name).collect();
                Err(format!("no stream has the name {name}; the streams are {}", known.join(", ")))
            }
            (None, Some((only, _)), None) => Ok(only),
            (None, None, _) => self.streams.keys().next().ok_or_else(|| "no stream".to_owned()),
            (None, Some(_), Some(_)) => Err("several streams have a source of another kind than \
                                             `stream`: name the stream that receives the events, \
                                             with `stream` in the section [dev]"
                .to_owned()),
        }
    }
}
