//! `ordain keys`.

mod why;

use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use ordain_core::Status;
use serde_json::Value;

use super::look::LookArgs;
use crate::cli::Failure;
use crate::show;
use ordain_http::view;
use ordain_store::KeyFilter;

/// Rows that are read at a time.
const PAGE: usize = 500;

#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// List the keys of a stream.
    List(ListArgs),
    /// Show everything about a key, its state included.
    ///
    /// `next` is the sequence to settle next: everything below it is settled. `held` are later
    /// events in the store, with bounds of their sequences. `attempts` are failed tries of event
    /// `next`, `gap_rounds` how often it was asked for, `skipped` the ranges of sequences that were
    /// given up unseen. `trouble` is why it stands still. `version` is the handler version of the
    /// last event that took effect, `version_digest` the SHA-256 of its file, and `version_generation`
    /// the number of the decision on it. `due_at` is when it is looked at again. `incarnation` (the time
    /// of the key's first commit) is part of its messages' ids; `park_generation` counts how often
    /// it was parked, and `partition` is its owner.
    ///
    /// `gaps` are the last 16 gaps whose clock ran out: the missing sequences, since when, how often they
    /// were asked for, what each source answered, and how it ended: `arrived` by itself, `replayed` by a
    /// source, `skipped`, `parked`, `waiting` without an end, `passed` by something else; else it is `open`.
    Show(KeyArgs),
    /// Say in words where a key stands, why, and what helps.
    Why(KeyArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    look: LookArgs,
    /// The stream.
    stream: String,
    /// Only keys with this status.
    #[arg(long, value_parser = statuses())]
    status: Option<Status>,
    /// Only keys that begin so.
    #[arg(long, default_value = "")]
    prefix: String,
    /// Rows at most.
    #[arg(long, default_value_t = 1_000)]
    limit: usize,
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct KeyArgs {
    #[command(flatten)]
    look: LookArgs,
    /// The stream.
    stream: String,
    /// The key.
    key: String,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

impl KeysCommand {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            match self {
                Self::List(args) => list(args).await,
                Self::Show(args) => key(args, false).await,
                Self::Why(args) => key(args, true).await,
            }
        })
    }
}

async fn list(args: ListArgs) -> Result<ExitCode, Failure> {
    let look = args.look.begin(&args.stream).await?;
    let mut filter = KeyFilter {
        status: args.status,
        prefix: args.prefix,
        cursor: None,
        limit: PAGE.min(args.limit.max(1)),
        looks: None,
    };
    if !args.json {
        let head =
            format!("{:<32} {:<9} {:>12} {:>9}  {}\n", "KEY", "STATUS", "NEXT", "HELD", "WHY");
        show::text(&head)?;
    }
    let mut left = args.limit;
    while left > 0 {
        let page = look.keys(&args.stream, &filter).await?;
        let mut text = String::new();
        for row in page.rows.iter().take(left) {
            left -= 1;
            text += &if args.json { show::json_line(row) } else { line(&row.fields()) };
        }
        show::text(&text)?;
        filter.cursor = page.cursor;
        if filter.cursor.is_none() {
            return Ok(ExitCode::SUCCESS);
        }
    }
    if !args.json {
        show::text(&format!("more than {}: see --limit, --status and --prefix\n", args.limit))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn line(row: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let number = |value: &Value| value.as_u64().map(|number| number.to_string());
    let trouble = &row["trouble"];
    let why = match (row["error"].as_str(), trouble["error"].as_str()) {
        (Some(error), _) => error.to_owned(),
        (None, Some(error)) => format!("{}: {error}", text(&trouble["cause"])),
        (None, None) => String::new(),
    };
    format!(
        "{:<32} {:<9} {:>12} {:>9}  {why}\n",
        text(&row["key"]),
        text(&row["status"]),
        number(&row["next"]).unwrap_or_default(),
        number(&row["held"]["count"]).unwrap_or_default(),
    )
}

/// The statuses, so that the help names them.
fn statuses() -> impl TypedValueParser<Value = Status> {
    PossibleValuesParser::new(Status::ALL.map(Status::name))
        .try_map(|name| view::parse_status(&name))
}

async fn key(args: KeyArgs, why: bool) -> Result<ExitCode, Failure> {
    let look = args.look.begin(&args.stream).await?;
    let row = match look.key(&args.stream, &args.key).await {
        Err(Failure::Failed(error)) if why => {
            // Its events may all be dead letters.
            return Err(Failure::Failed(
                match why::letters(&look, &args.stream, &args.key).await? {
                    Some(letters) => anyhow::anyhow!("{error}; {letters}"),
                    None => error,
                },
            ));
        }
        row => row?,
    };
    if args.json || !why {
        show::row(&row, args.json)?;
    } else {
        let words = why::explain(&row.fields(), &look, &args.stream, &args.key).await?;
        show::text(&words)?;
    }
    Ok(ExitCode::SUCCESS)
}
