//! `ordain dead`: prints dead letters.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::inspect::{InspectArgs, InspectTarget, RowForm};
use crate::cli::{CommandError, EXIT_FAILED};
use crate::show::{self, JsonRow};
use ordain_core::LetterId;
use ordain_http::view::{self, LetterRow};
use ordain_util::command::PrintedCommand;
use ordain_util::text::print_lossy;

/// Maximum number of rows that `ordain dead list` requests in one page.
const PAGE_ROWS: usize = 200;

#[derive(Debug, Subcommand)]
pub(crate) enum DeadCommand {
    /// List the dead letters of a stream: the stored copies of the events that ended without effect.
    List(DeadListArgs),
    /// Show a dead letter with its whole event.
    Show(DeadShowArgs),
}

#[derive(Debug, Args)]
pub(crate) struct DeadListArgs {
    #[command(flatten)]
    inspect: InspectArgs,
    /// The name of the stream.
    stream: String,
    /// List only the dead letters of this key.
    #[arg(long)]
    key: Option<String>,
    /// Maximum number of rows.
    #[arg(long, default_value_t = 1_000)]
    limit: usize,
    /// Print one JSON object per line, with the whole event.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DeadShowArgs {
    #[command(flatten)]
    inspect: InspectArgs,
    /// The name of the stream.
    stream: String,
    /// The id of the dead letter, as the command `dead list` prints it.
    id: String,
    /// The key of the event. Leave out this option for an event without a key.
    #[arg(long, default_value = "")]
    key: String,
    /// Print JSON on one line.
    #[arg(long)]
    json: bool,
}

impl DeadCommand {
    pub(crate) fn run(self) -> Result<ExitCode, CommandError> {
        let runtime = crate::runtime::new()?;
        runtime.block_on(async {
            match self {
                Self::List(args) => list(args).await,
                Self::Show(args) => show_letter(args).await,
            }
        })
    }
}

async fn list(args: DeadListArgs) -> Result<ExitCode, CommandError> {
    let target = args.inspect.open_target(&args.stream).await?;
    if args.json {
        print_rows(&args, &target, JsonRow::line).await?;
        return Ok(ExitCode::SUCCESS);
    }
    show::text(&format!("{:<24} {:<24} {:<12} {}\n", "KEY", "ID", "CAUSE", "WHY"))?;
    if print_rows(&args, &target, line).await? {
        show::text(&format!(
            "only {} dead letters are listed, and more may exist: use --limit or --key\n",
            args.limit
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints a row for each dead letter that `args` selects, at most `args.limit` rows. Returns whether more such letters
/// may exist.
async fn print_rows<F: RowForm<LetterRow>>(
    args: &DeadListArgs,
    target: &InspectTarget,
    line: impl Fn(&F) -> String,
) -> Result<bool, CommandError> {
    let mut cursor = None;
    let mut left = args.limit;
    while left > 0 {
        let key = args.key.as_deref();
        let limit = PAGE_ROWS.min(left);
        let page = target.letters(&args.stream, key, cursor.as_deref(), limit).await?;
        // A page of a store in Redis may have more rows than requested.
        let rows = &page.rows[..left.min(page.rows.len())];
        left -= rows.len();
        show::text(&rows.iter().map(&line).collect::<String>())?;
        cursor = page.cursor;
        if cursor.is_none() {
            return Ok(rows.len() < page.rows.len());
        }
    }
    Ok(true)
}

fn line(row: &LetterRow) -> String {
    let origin = row.origin.as_ref().map(|origin| format!(" ({origin})"));
    format!(
        "{:<24} {:<24} {:<12} {}{}\n",
        row.key,
        row.id,
        row.cause,
        row.error,
        origin.unwrap_or_default()
    )
}

async fn show_letter(args: DeadShowArgs) -> Result<ExitCode, CommandError> {
    let target = args.inspect.open_target(&args.stream).await?;
    if LetterId::parse(&args.key, &args.id).is_none() {
        print_lossy(&view::no_letter_id(&args.id, &args.stream, &target.option()));
        return Ok(ExitCode::from(2));
    }
    let letter: Option<JsonRow> = target.letter(&args.stream, &args.key, &args.id).await?;
    let Some(letter) = letter else {
        let missing = match &*args.key {
            "" => format!("dead letter {} without a key", args.id),
            key => format!("dead letter {} of key {key:?}", args.id),
        };
        print_lossy(&format!(
            "stream {} has no {missing}: {} lists the ids and keys; give the key with --key",
            args.stream,
            PrintedCommand::new("dead list").argument(&args.stream).with_place(&target.option())
        ));
        return Ok(ExitCode::from(EXIT_FAILED));
    };
    letter.print(args.json)?;
    Ok(ExitCode::SUCCESS)
}
