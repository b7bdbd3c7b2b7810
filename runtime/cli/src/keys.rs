//! `ordain keys`: prints keys and their records.

mod why;

use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use ordain_core::KeyStatus;

use super::inspect::{InspectArgs, InspectTarget, RowForm};
use crate::cli::CommandError;
use crate::show::{self, JsonRow};
use ordain_http::view::{self, KeyRow};
use ordain_store::KeyFilter;

/// Maximum number of rows that `ordain keys list` requests in one page.
const PAGE_ROWS: usize = 500;

#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// List the keys of a stream.
    List(KeysListArgs),
    /// Show the whole record of a key, including its state.
    ///
    /// Events: `next` is the sequence of the event that the key settles next. An event is settled when it has ended
    /// with or without effect. All lower sequences are settled. `held` describes the events of the key that wait in the
    /// store: their number, and a lower and an upper bound of their sequences. `ahead` is a range of sequences. It
    /// contains all events of the key that wait in dead letters (`far-ahead`, `overflow`) until all earlier events are
    /// settled. Without such an event, `ahead` is absent. `skipped` lists the ranges of sequences that were skipped
    /// because their events never arrived (at most the last 64 ranges).
    ///
    /// Failures: `trouble` is the reason why the key waits for a retry or is parked (stopped at a failed or missing
    /// event). If a handler exceeded a limit, `trouble` names the `limit`. `attempts` counts the failed attempts to
    /// execute event `next` that count towards `retry.attempts`. `gap_rounds` counts the rounds of requests for event
    /// `next`, if this event is missing. `park_generation` counts how often the key was parked.
    ///
    /// Handler: `version` is the handler version that executed the key's last event; only settled events that a handler
    /// executed count. `version_digest` is the SHA-256 of the file of that version. `version_generation` is the number
    /// of the rollout (the stored choice of a version) that selected the version.
    ///
    /// Owner: `partition` is the partition of the key. `due_at` is the time at which the owner of the partition checks
    /// the key next.
    ///
    /// Messages: `incarnation` is the time of the key's first commit. The ids of the key's messages are derived from
    /// this time and other values.
    ///
    /// Gaps (missing events): `gaps` lists the last 16 gaps whose timeout (`gap.timeout`) elapsed. Each entry contains
    /// the missing sequences, the time at which Ordain found the gap, and the end of the gap. It also contains the
    /// number of rounds of requests, and the answers of each replay source.
    ///
    /// The `end` of a gap is one of these words. `open`: the gap has not ended. `arrived`: the stream's source
    /// delivered the event. `replayed`: a replay source returned the event. `passed`: another owner settled the
    /// sequences, or the key ended. If no round found the event, `gap.on_exhausted` determines the end: `skipped`,
    /// `parked` or `waiting`.
    Show(KeyArgs),
    /// Explain in words the status of a key, the reason for the status, and the remedy.
    Why(KeyArgs),
}

#[derive(Debug, Args)]
pub(crate) struct KeysListArgs {
    #[command(flatten)]
    inspect: InspectArgs,
    /// The name of the stream.
    stream: String,
    /// List only the keys with this status.
    #[arg(long, value_parser = status_parser())]
    status: Option<KeyStatus>,
    /// List only the keys that begin with this prefix.
    #[arg(long, default_value = "")]
    prefix: String,
    /// Maximum number of rows.
    #[arg(long, default_value_t = 1_000)]
    limit: usize,
    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct KeyArgs {
    #[command(flatten)]
    inspect: InspectArgs,
    /// The name of the stream.
    stream: String,
    /// The key that the command shows or explains.
    key: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl KeysCommand {
    pub(crate) fn run(self) -> Result<ExitCode, CommandError> {
        let runtime = crate::runtime::new()?;
        runtime.block_on(async {
            match self {
                Self::List(args) => list(args).await,
                Self::Show(args) => show_key(args, false).await,
                Self::Why(args) => show_key(args, true).await,
            }
        })
    }
}

async fn list(args: KeysListArgs) -> Result<ExitCode, CommandError> {
    let target = args.inspect.open_target(&args.stream).await?;
    if args.json {
        print_rows(&args, &target, JsonRow::line).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let head = format!("{:<32} {:<9} {:>12} {:>9}  {}\n", "KEY", "STATUS", "NEXT", "HELD", "WHY");
    show::text(&head)?;
    if print_rows(&args, &target, line).await? {
        show::text(&format!(
            "only {} keys are listed, and more may exist: use --limit, --status or --prefix\n",
            args.limit
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints a row for each key that `args` selects, at most `args.limit` rows. Returns whether more such keys may exist.
async fn print_rows<F: RowForm<KeyRow>>(
    args: &KeysListArgs,
    target: &InspectTarget,
    line: impl Fn(&F) -> String,
) -> Result<bool, CommandError> {
    let mut filter = KeyFilter {
        status: args.status,
        prefix: args.prefix.clone(),
        cursor: None,
        limit: PAGE_ROWS,
        scan_limit: None,
    };
    let mut left = args.limit;
    while left > 0 {
        filter.limit = PAGE_ROWS.min(left);
        let page = target.keys(&args.stream, &filter).await?;
        // A page of a store in Redis may have more rows than requested.
        let rows = &page.rows[..left.min(page.rows.len())];
        left -= rows.len();
        show::text(&rows.iter().map(&line).collect::<String>())?;
        filter.cursor = page.cursor;
        if filter.cursor.is_none() {
            return Ok(rows.len() < page.rows.len());
        }
    }
    Ok(true)
}

fn line(row: &KeyRow) -> String {
    if let Some(error) = &row.error {
        return format!("{:<32} {:<9} {:>12} {:>9}  {error}\n", row.key, row.status, "", "");
    }
    let failure = row.trouble.as_ref();
    let why = failure.map(|failure| format!("{}: {}", failure.cause, failure.error));
    format!(
        "{:<32} {:<9} {:>12} {:>9}  {}\n",
        row.key,
        row.status,
        row.next,
        row.held.count,
        why.unwrap_or_default()
    )
}

/// Returns a parser of statuses. The help of the command lists the valid statuses.
fn status_parser() -> impl TypedValueParser<Value = KeyStatus> {
    PossibleValuesParser::new(KeyStatus::ALL.map(KeyStatus::name))
        .try_map(|name| view::parse_status(&name))
}

async fn show_key(args: KeyArgs, why: bool) -> Result<ExitCode, CommandError> {
    let target = args.inspect.open_target(&args.stream).await?;
    if args.json || !why {
        let row: JsonRow = read_key(&args, &target, why).await?;
        row.print(args.json)?;
    } else {
        let row: KeyRow = read_key(&args, &target, why).await?;
        show::text(&why::explain(&row, &target, &args.stream, &args.key).await?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the row of the key. If all events of a key became dead letters, the key may have no record. With `why`, the
/// error for a key without a record therefore also states the number of the key's dead letters.
async fn read_key<F: RowForm<KeyRow>>(
    args: &KeyArgs,
    target: &InspectTarget,
    why: bool,
) -> Result<F, CommandError> {
    let error = match target.key(&args.stream, &args.key).await {
        Err(CommandError::Failed(error)) if why => error,
        row => return row,
    };
    let letters = why::letters_text(target, &args.stream, &args.key).await?;
    Err(CommandError::Failed(match letters {
        Some(letters) => anyhow::anyhow!("{error}; {letters}"),
        None => error,
    }))
}
