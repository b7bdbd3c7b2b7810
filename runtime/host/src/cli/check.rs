//! `ordain check`.

use std::process::ExitCode;

use clap::Args;

use super::{Failure, FileArg};
use crate::config::{StoreConfig, explain};
use crate::run::{check_files, handlers};
use crate::view::{Executing, stream};

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
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
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        if self.explain {
            super::show::text(&explain())?;
            return Ok(ExitCode::SUCCESS);
        }
        let loaded = self.config.load()?;
        loaded.unsupported()?;
        check_files(&loaded)?;
        let handlers = handlers(&loaded)?;
        if let Some(broken) = handlers.broken() {
            // `run` does without it.
            return Err(Failure::Config(broken.into()));
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
