//! `ordain plugins`.

use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{ConfigArg, Failure, show};
use crate::plugin::{Handler, HandlerFile, LoadError};
use crate::run::{engine, folder};
use crate::text::clean;

#[derive(Debug, Subcommand)]
pub(super) enum PluginsCommand {
    /// List the handlers in the folder, with what uses them and what is wrong with files there.
    List(ListArgs),
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    config: ConfigArg,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// A file whose name says that it is a handler.
struct Row<'a> {
    file: &'a HandlerFile,
    /// Whether streams would get it.
    highest: bool,
    streams: Vec<&'a str>,
    loaded: Result<Arc<Handler>, LoadError>,
}

impl PluginsCommand {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let Self::List(args) = self;
        let loaded = args.config.load()?;
        let folder = folder(&loaded)?;
        // What is not one would be found out by the next start: so each is tried.
        let engine = engine(&loaded)?;
        let mut rows = Vec::new();
        for (name, versions) in &folder.handlers {
            let streams = loaded.config.streams.iter();
            let using = streams.filter(|(_, stream)| &*stream.handler == name);
            let streams: Vec<&str> = using.map(|(stream, _)| &**stream).collect();
            for file in versions {
                let highest = folder.active(name) == Some(file);
                let streams = streams.clone();
                rows.push(Row { file, highest, streams, loaded: engine.load(file) });
            }
        }
        if args.json {
            let handlers: Vec<_> = rows.iter().map(Row::json).collect();
            let refused: Vec<_> = folder
                .refused
                .iter()
                .map(|refused| json!({ "path": refused.path, "reason": refused.reason }))
                .collect();
            show::json(&json!({ "handlers": handlers, "refused": refused }), true)?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut text = format!("{:<32} {:<8} {:<24} {}\n", "HANDLER", "STATE", "STREAMS", "FILE");
        text.extend(rows.iter().map(Row::line));
        for refused in &folder.refused {
            let (path, reason) = (refused.path.display().to_string(), clean(&refused.reason));
            text += &format!("{:<32} {:<8} {reason}\n", clean(&path), "refused");
        }
        show::text(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Row<'_> {
    fn state(&self) -> &'static str {
        match &self.loaded {
            Err(_) => "broken",
            Ok(_) if self.highest => "active",
            Ok(_) => "older",
        }
    }

    /// As it is recorded; of one that cannot be loaded, what its file's name says.
    fn version(&self) -> String {
        let of_name = |_: &LoadError| self.file.to_string();
        self.loaded.as_ref().map_or_else(of_name, |handler| handler.version().to_string())
    }

    fn json(&self) -> Value {
        json!({
            "handler": self.version(),
            "state": self.state(),
            "streams": self.streams,
            "path": self.file.path,
            "reason": self.loaded.as_ref().err().map(|error| &error.reason),
        })
    }

    fn line(&self) -> String {
        let path = self.file.path.display().to_string();
        let file = match &self.loaded {
            Ok(_) => path,
            Err(error) => error.to_string(),
        };
        format!(
            "{:<32} {:<8} {:<24} {}\n",
            self.version(),
            self.state(),
            self.streams.join(", "),
            clean(&file)
        )
    }
}
