//! `ordain keys`.

mod why;

use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use ordain_core::Status;

use super::look::{Form, Look, LookArgs};
use crate::cli::Failure;
use crate::show::{self, JsonRow};
use ordain_http::view::{self, KeyRow};
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
    /// given up unseen. `trouble` is why it stands still, with the `limit` that was broken. `version` is the handler version of the
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
    if args.json {
        print(&args, &look, JsonRow::line).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let head = format!("{:<32} {:<9} {:>12} {:>9}  {}\n", "KEY", "STATUS", "NEXT", "HELD", "WHY");
    show::text(&head)?;
    if print(&args, &look, line).await? {
        show::text(&format!("more than {}: see --limit, --status and --prefix\n", args.limit))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the rows up to the limit. Returns whether there are more.
async fn print<F: Form<KeyRow>>(
    args: &ListArgs,
    look: &Look,
    line: impl Fn(&F) -> String,
) -> Result<bool, Failure> {
    let mut filter = KeyFilter {
        status: args.status,
        prefix: args.prefix.clone(),
        cursor: None,
        limit: PAGE.min(args.limit.max(1)),
        looks: None,
    };
    let mut left = args.limit;
    while left > 0 {
        let page = look.keys(&args.stream, &filter).await?;
        let rows = &page.rows[..left.min(page.rows.len())];
        left -= rows.len();
        show::text(&rows.iter().map(&line).collect::<String>())?;
        filter.cursor = page.cursor;
        if filter.cursor.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}

fn line(row: &KeyRow) -> String {
    if let Some(error) = &row.error {
        return format!("{:<32} {:<9} {:>12} {:>9}  {error}\n", row.key, row.status, "", "");
    }
    let trouble = row.trouble.as_ref();
    let why = trouble.map(|trouble| format!("{}: {}", trouble.cause, trouble.error));
    format!(
        "{:<32} {:<9} {:>12} {:>9}  {}\n",
        row.key,
        row.status,
        row.next,
        row.held.count,
        why.unwrap_or_default()
    )
}

/// The statuses, so that the help names them.
fn statuses() -> impl TypedValueParser<Value = Status> {
    PossibleValuesParser::new(Status::ALL.map(Status::name))
        .try_map(|name| view::parse_status(&name))
}

async fn key(args: KeyArgs, why: bool) -> Result<ExitCode, Failure> {
    let look = args.look.begin(&args.stream).await?;
    if args.json || !why {
        let row: JsonRow = found(&args, &look, why).await?;
        row.print(args.json)?;
    } else {
        let row: KeyRow = found(&args, &look, why).await?;
        show::text(&why::explain(&row, &look, &args.stream, &args.key).await?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the key. For `why`, the error of an absent key names its dead letters: all its events may be there.
async fn found<F: Form<KeyRow>>(args: &KeyArgs, look: &Look, why: bool) -> Result<F, Failure> {
    let error = match look.key(&args.stream, &args.key).await {
        Err(Failure::Failed(error)) if why => error,
        row => return row,
    };
    let letters = why::letters(look, &args.stream, &args.key).await?;
    Err(Failure::Failed(match letters {
        Some(letters) => anyhow::anyhow!("{error}; {letters}"),
        None => error,
    }))
}
