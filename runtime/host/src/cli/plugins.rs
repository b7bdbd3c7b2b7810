//! `ordain plugins`.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;

use super::{ConfigArg, Failure, show};
use crate::plugin::Folder;

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

impl PluginsCommand {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let Self::List(args) = self;
        let loaded = args.config.load()?;
        let dir = &loaded.config.plugins.dir;
        let folder = Folder::scan(dir).map_err(|error| {
            loaded.error("plugins.dir", format!("{} cannot be read: {error}", dir.display()))
        })?;
        let streams_of = |handler: &str| -> Vec<String> {
            let streams = loaded.config.streams.iter();
            let using = streams.filter(|(_, stream)| &*stream.handler == handler);
            using.map(|(name, _)| name.to_string()).collect()
        };
        let mut handlers = Vec::new();
        for (name, versions) in &folder.handlers {
            let active = folder.active(name).map(|file| file.path.clone());
            for file in versions {
                let is_active = active.as_ref() == Some(&file.path);
                handlers.push((file.version(), is_active, file.path.clone(), streams_of(name)));
            }
        }
        if args.json {
            let handlers: Vec<_> = handlers
                .iter()
                .map(|(version, active, path, streams)| {
                    json!({ "handler": &**version, "active": active, "path": path, "streams": streams })
                })
                .collect();
            let refused: Vec<_> = folder
                .refused
                .iter()
                .map(|refused| json!({ "path": refused.path, "reason": refused.reason }))
                .collect();
            show::text(&format!("{}\n", json!({ "handlers": handlers, "refused": refused })))?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut text = format!("{:<32} {:<8} {:<24} {}\n", "HANDLER", "STATE", "STREAMS", "FILE");
        for (version, active, path, streams) in &handlers {
            let state = if *active { "active" } else { "older" };
            text += &format!(
                "{version:<32} {state:<8} {:<24} {}\n",
                streams.join(", "),
                path.display()
            );
        }
        for refused in &folder.refused {
            let reason = show::clean(&refused.reason);
            text += &format!("{:<32} {:<8} {reason}\n", refused.path.display(), "refused");
        }
        show::text(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}
