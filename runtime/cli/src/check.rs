//! `ordain check`.

use std::collections::BTreeSet;
use std::process::ExitCode;

use clap::Args;

use crate::cli::{Failure, FileArg};
use ordain_config::{StoreConfig, explain};
use ordain_engine::run::check_files;
use ordain_http::view::{Executing, stream};
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

impl CheckArgs {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        if self.explain {
            super::show::text(&explain())?;
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
            let streams: Vec<_> =
                streams.map(|(name, it, executing)| stream(name, Some((it, executing)))).collect();
            super::show::json(
                &serde_json::json!({ "streams": streams, "not_asked": store }),
                true,
            )?;
        } else {
            for (stream, _, executing) in streams {
                let version = executing.build.map(|it| it.version).unwrap_or_default();
                super::show::text(&format!("stream {stream}: handler {version}\n"))?;
            }
            super::show::text(&format!("{} can be run\n", loaded.file.display()))?;
            if let Some(store) = store {
                let words = format!("the store at {store} was not asked: `ordain run` does that\n");
                super::show::text(&words)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
