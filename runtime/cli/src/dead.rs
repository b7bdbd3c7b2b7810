//! `ordain dead`.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::Value;

use super::look::LookArgs;
use crate::cli::{EXIT_FAILED, Failure};
use crate::show;
use ordain_core::LetterId;
use ordain_http::view;
use ordain_util::text::say;

/// Rows that are read at a time.
const PAGE: usize = 200;

#[derive(Debug, Subcommand)]
pub(crate) enum DeadCommand {
    /// List the dead letters of a stream.
    List(ListArgs),
    /// Show one, with its whole event.
    Show(ShowArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    look: LookArgs,
    /// The stream.
    stream: String,
    /// Only those of this key.
    #[arg(long)]
    key: Option<String>,
    /// Rows at most.
    #[arg(long, default_value_t = 1_000)]
    limit: usize,
    /// One JSON object a line, with the whole event.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    look: LookArgs,
    /// The stream.
    stream: String,
    /// The id, as listed.
    id: String,
    /// The key; left out for an event without one.
    #[arg(long, default_value = "")]
    key: String,
    /// On one line.
    #[arg(long)]
    json: bool,
}

impl DeadCommand {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            match self {
                Self::List(args) => list(args).await,
                Self::Show(args) => one(args).await,
            }
        })
    }
}

async fn list(args: ListArgs) -> Result<ExitCode, Failure> {
    let look = args.look.begin(&args.stream).await?;
    if !args.json {
        show::text(&format!("{:<24} {:<24} {:<12} {}\n", "KEY", "ID", "CAUSE", "WHY"))?;
    }
    let (mut cursor, mut left) = (None, args.limit);
    while left > 0 {
        let key = args.key.as_deref();
        let limit = PAGE.min(left);
        let page = look.letters(&args.stream, key, cursor.as_deref(), limit).await?;
        let mut text = String::new();
        for row in page.rows.iter().take(left) {
            left -= 1;
            text += &if args.json { show::json_line(row) } else { line(&row.fields()) };
        }
        show::text(&text)?;
        cursor = page.cursor;
        if cursor.is_none() {
            return Ok(ExitCode::SUCCESS);
        }
    }
    if !args.json {
        show::text(&format!("more than {}: see --limit and --key\n", args.limit))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn line(row: &Value) -> String {
    let text = |field: &str| row[field].as_str().unwrap_or_default();
    let origin = row["origin"].as_str().map(|origin| format!(" ({origin})"));
    format!(
        "{:<24} {:<24} {:<12} {}{}\n",
        text("key"),
        text("id"),
        text("cause"),
        text("error"),
        origin.unwrap_or_default()
    )
}

async fn one(args: ShowArgs) -> Result<ExitCode, Failure> {
    let look = args.look.begin(&args.stream).await?;
    if LetterId::parse(&args.key, &args.id).is_none() {
        say(&view::no_letter_id(&args.id));
        return Ok(ExitCode::from(2));
    }
    let Some(letter) = look.letter(&args.stream, &args.key, &args.id).await? else {
        say(&format!(
            "stream {} has no dead letter {} of key {:?}: see `ordain dead list {}`, and give \
             --key",
            args.stream, args.id, args.key, args.stream
        ));
        return Ok(ExitCode::from(EXIT_FAILED));
    };
    show::row(&letter, args.json)?;
    Ok(ExitCode::SUCCESS)
}
