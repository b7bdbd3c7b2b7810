//! `ordain plugins`.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::Value;

use super::look::LookArgs;
use super::row::Row;
use super::{Failure, show};
use crate::run::engine;
use crate::view::plugins;

#[derive(Debug, Subcommand)]
pub(super) enum PluginsCommand {
    /// List the handlers in the folder, with what uses them and what is wrong with files there.
    ///
    /// With `--admin` it also says which of them the process runs, and in which streams (`-`: none).
    /// Without it that is not known (`?`).
    List(ListArgs),
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    look: LookArgs,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

impl PluginsCommand {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let Self::List(args) = self;
        let seen = if let Some(process) = args.look.process() {
            process.get(&["plugins"], &[])?
        } else {
            let loaded = args.look.load()?;
            Row::of(&plugins(&loaded, &*engine(&loaded)?)?)
        };
        if args.json {
            show::row(&seen, true)?;
            return Ok(ExitCode::SUCCESS);
        }
        let seen = seen.fields();
        let mut text = format!(
            "{:<32} {:<8} {:<24} {:<24} {}\n",
            "HANDLER", "STATE", "STREAMS", "RUNS IN", "FILE"
        );
        text.extend(rows(&seen["handlers"]).map(handler));
        text.extend(rows(&seen["refused"]).map(refused));
        show::text(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn rows(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn text<'a>(row: &'a Value, field: &str) -> &'a str {
    row[field].as_str().unwrap_or_default()
}

fn handler(row: &Value) -> String {
    let names = |list: &Value| rows(list).filter_map(Value::as_str).collect::<Vec<_>>().join(", ");
    let running = match names(&row["running"]) {
        _ if row["running"].is_null() => "?".to_owned(),
        none if none.is_empty() => "-".to_owned(),
        streams => streams,
    };
    let file = match row["reason"].as_str() {
        None => text(row, "path").to_owned(),
        Some(reason) => format!("{}: {reason}", text(row, "path")),
    };
    format!(
        "{:<32} {:<8} {:<24} {running:<24} {file}\n",
        text(row, "handler"),
        text(row, "state"),
        names(&row["streams"]),
    )
}

fn refused(row: &Value) -> String {
    format!("{:<32} {:<8} {}\n", text(row, "path"), "refused", text(row, "reason"))
}
