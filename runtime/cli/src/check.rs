//! `ordain check`: checks a configuration and its handlers. This module must not open the store or run an event.

use std::collections::BTreeSet;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use crate::cli::{CommandError, FileArg};
use crate::show::{self, JsonRow};
use ordain_config::{StoreConfig, explain};
use ordain_engine::run::check_files;
use ordain_http::view::{StreamIntake, StreamRow, StreamVersion};
use ordain_wasm::{CompilePriority, HandlerSetupError, MisnamedFile};
use ordain_wasm::{load_handlers, scan_folder};

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    config: FileArg,
    /// Instead of checking, print every setting with its meaning, default and reason.
    #[arg(long)]
    explain: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// The result, as JSON.
#[derive(Serialize)]
struct CheckReport {
    /// URL of the Redis store, to which the check does not connect; `None` for an embedded store.
    not_asked: Option<String>,
    streams: Vec<StreamRow>,
}

impl CheckArgs {
    pub(crate) fn run(self) -> Result<ExitCode, CommandError> {
        if self.explain {
            show::text(&explain())?;
            return Ok(ExitCode::SUCCESS);
        }
        let loaded = self.config.load()?;
        loaded.check_supported()?;
        check_files(&loaded)?;
        let handlers = load_handlers(&loaded)?;
        // `run` ignores unusable files; `check` reports them.
        let folder = scan_folder(&loaded)?;
        if let Some(MisnamedFile { path, reason }) = folder.misnamed.first() {
            return Err(CommandError::Config(anyhow::anyhow!("{}: {reason}", path.display())));
        }
        let used: BTreeSet<&str> =
            loaded.config.streams.values().map(|stream| &*stream.handler).collect();
        for file in used.iter().filter_map(|name| folder.handlers.get(*name)).flatten() {
            handlers
                .engine
                .load_in_child(file, CompilePriority::Normal)
                .map_err(HandlerSetupError::from)?;
        }
        let streams = loaded.config.streams.iter();
        let streams = streams.map(|(name, stream)| {
            let build = handlers.offered_build(&stream.handler);
            (name, stream, StreamVersion { build, ..StreamVersion::default() })
        });
        let store = match &loaded.config.store {
            StoreConfig::Embedded(_) => None,
            StoreConfig::Redis(redis) => Some(redis.url.to_string()),
        };
        if self.json {
            let rows = streams.map(|(name, stream, executing)| {
                StreamRow::of(name, Some((stream, executing)), StreamIntake::default())
            });
            let found = CheckReport { not_asked: store, streams: rows.collect() };
            JsonRow::from(found).print(true)?;
        } else {
            for (name, _, executing) in streams {
                let version = executing.build.map(|build| build.version).unwrap_or_default();
                show::text(&format!("stream {name}: handler {version}\n"))?;
            }
            show::text(&format!("{} is valid\n", loaded.file.display()))?;
            if let Some(store) = store {
                let words =
                    format!("the store at {store} was not checked: `ordain run` connects to it\n");
                show::text(&words)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
