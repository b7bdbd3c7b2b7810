//! `ordain plugins`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::Value;

use super::look::LookArgs;
use super::row::Row;
use crate::cli::{ConfigArg, EXIT_CONFIG, Failure};
use crate::show;
use ordain_http::view::{look_into, plugins};
use ordain_wasm::engine;

#[derive(Debug, Subcommand)]
pub(crate) enum PluginsCommand {
    /// List the handlers in the folder, with what uses them and what is wrong with files there.
    ///
    /// With `--admin` it also says which of them the process runs, and in which streams (`-`: none).
    /// Without it that is not known (`?`).
    List(ListArgs),
    /// Look into files as a process does that finds them in its folder: before you copy them there.
    ///
    /// Compiles and starts each under the limits of the configuration. Ends with 78 if one of them cannot
    /// be used.
    Check(CheckArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    look: LookArgs,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    config: ConfigArg,
    /// The files, named as in the folder: `NAME@VERSION.wasm`.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
}

impl PluginsCommand {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        match self {
            Self::List(args) => args.run(),
            Self::Check(args) => args.run(),
        }
    }
}

impl CheckArgs {
    fn run(self) -> Result<ExitCode, Failure> {
        let loaded = self.config.load()?;
        let engine = engine(&loaded)?;
        let mut end = ExitCode::SUCCESS;
        for path in &self.files {
            let row = Row::of(&look_into(&loaded, &engine, path)?);
            if self.json {
                show::text(&show::json_line(&row))?;
            } else {
                let row = row.fields();
                let said = row["reason"].as_str().map(|it| format!("{it}\n"));
                let none = rows(&row["streams"]).next().is_none();
                let said = said.unwrap_or_else(|| {
                    let used = if none { ", and no stream names it" } else { "" };
                    format!(
                        "can be used as {} (SHA-256 {}){used}\n",
                        text(&row, "handler"),
                        text(&row, "digest")
                    )
                });
                show::text(&format!("{}: {said}", text(&row, "path")))?;
            }
            if row.member::<String>("reason").is_some() {
                end = ExitCode::from(EXIT_CONFIG);
            }
        }
        Ok(end)
    }
}

impl ListArgs {
    fn run(self) -> Result<ExitCode, Failure> {
        let args = self;
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
    let (path, reason) = (text(row, "path"), text(row, "reason"));
    format!("{:<32} {:<8} {:<24} {:<24} {path}: {reason}\n", "-", "broken", "", "-")
}
