//! `ordain check`.

use std::collections::BTreeSet;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use crate::cli::{Failure, FileArg};
use crate::show::{self, JsonRow};
use ordain_config::{StoreConfig, explain};
use ordain_engine::run::check_files;
use ordain_http::view::{Executing, StreamRow};
use ordain_wasm::{LoadingError, Manner, RefusedFile};
use ordain_wasm::{folder, handlers};

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    config: FileArg,
    /// Print every setting with its meaning, default and reason instead.
    #[arg(long)]
    explain: bool,
    /// Print what was found as JSON.
    #[arg(long)]
    json: bool,
}

/// The findings, as JSON.
#[derive(Serialize)]
struct Found {
    /// The URL of a store that only a run asks.
    not_asked: Option<String>,
    streams: Vec<StreamRow>,
}

impl CheckArgs {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        if self.explain {
            show::text(&explain())?;
            return Ok(ExitCode::SUCCESS);
        }
        let loaded = self.config.load()?;
        loaded.unsupported()?;
        check_files(&loaded)?;
        let handlers = handlers(&loaded)?;
        // `run` does without these.
        let folder = folder(&loaded)?;
        if let Some(RefusedFile { path, reason }) = folder.refused.first() {
            return Err(Failure::Config(anyhow::anyhow!("{}: {reason}", path.display())));
        }
        let used: BTreeSet<&str> = loaded.config.streams.values().map(|it| &*it.handler).collect();
        for file in used.iter().filter_map(|name| folder.handlers.get(*name)).flatten() {
            handlers.engine.load_beside(file, Manner::Fast).map_err(LoadingError::from)?;
        }
        let streams = loaded.config.streams.iter();
        let streams = streams.map(|(name, it)| {
            let build = handlers.offered(&it.handler);
            (name, it, Executing { build, ..Executing::default() })
        });
        let store = match &loaded.config.store {
            StoreConfig::Embedded(_) => None,
            StoreConfig::Redis(redis) => Some(redis.url.to_string()),
        };
        if self.json {
            let rows =
                streams.map(|(name, it, executing)| StreamRow::of(name, Some((it, executing))));
            let found = Found { not_asked: store, streams: rows.collect() };
            JsonRow::from(found).print(true)?;
        } else {
            for (stream, _, executing) in streams {
                let version = executing.build.map(|it| it.version).unwrap_or_default();
                show::text(&format!("stream {stream}: handler {version}\n"))?;
            }
            show::text(&format!("{} can be run\n", loaded.file.display()))?;
            if let Some(store) = store {
                let words = format!("the store at {store} was not asked: `ordain run` does that\n");
                show::text(&words)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
