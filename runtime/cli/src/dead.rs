//! `ordain dead`: prints dead letters.

mod groups;

use std::io;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use groups::{LetterGroup, LetterGroups};

use super::inspect::{InspectArgs, InspectTarget, RowForm};
use crate::cli::{CommandError, EXIT_FAILED};
use crate::show::{self, JsonRow};
use ordain_core::LetterId;
use ordain_http::view::{self, LetterRow};
use ordain_util::command::PrintedCommand;
use ordain_util::text::print_lossy;

/// Maximum number of rows that `ordain dead list` requests in one page.
const PAGE_ROWS: usize = 200;
/// Maximum number of rows that `ordain dead list` prints by default.
const DEFAULT_LIMIT: usize = 1_000;

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
    /// Group the dead letters by cause, handler version and reason. Prints the number of letters in each group and the
    /// newest letter of the group. Numbers in the reasons count as equal.
    #[arg(long)]
    group: bool,
    /// Maximum number of dead letters. Default: 1,000; with --group, all dead letters.
    #[arg(long)]
    limit: Option<usize>,
    /// Print one JSON object per line. Without --group, each object contains the whole event.
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
    if args.group {
        return list_groups(&args, &target).await;
    }
    let limit = args.limit.unwrap_or(DEFAULT_LIMIT);
    if args.json {
        let print =
            |rows: &[JsonRow]| show::text(&rows.iter().map(JsonRow::line).collect::<String>());
        read_rows(&args, limit, &target, print).await?;
        return Ok(ExitCode::SUCCESS);
    }
    show::text(&format!("{:<24} {:<24} {:<12} {}\n", "KEY", "ID", "CAUSE", "WHY"))?;
    let print = |rows: &[LetterRow]| show::text(&rows.iter().map(line).collect::<String>());
    if read_rows(&args, limit, &target, print).await? {
        show::text(&format!(
            "only {limit} dead letters are listed, and more may exist: use --limit or --key\n"
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn list_groups(
    args: &DeadListArgs,
    target: &InspectTarget,
) -> Result<ExitCode, CommandError> {
    let mut groups = LetterGroups::default();
    let limit = args.limit.unwrap_or(usize::MAX);
    let more_may_exist = read_rows(args, limit, target, |rows: &[LetterRow]| {
        for row in rows {
            groups.add(row);
        }
        Ok(())
    })
    .await?;
    let (groups, ungrouped) = groups.finish();
    if args.json {
        let lines = groups.into_iter().map(|group| JsonRow::from(group).line());
        show::text(&lines.collect::<String>())?;
        return Ok(ExitCode::SUCCESS);
    }
    show::text(&format!("{:>8}  {:<12} {:<24} {}\n", "COUNT", "CAUSE", "VERSION", "WHY"))?;
    show::text(&groups.iter().map(group_lines).collect::<String>())?;
    if ungrouped > 0 {
        show::text(&format!("{ungrouped} dead letters have further reasons\n"))?;
    }
    if more_may_exist {
        show::text(&format!(
            "only {limit} dead letters were read, and more may exist: use --limit\n"
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn group_lines(group: &LetterGroup) -> String {
    let LetterGroup { count, cause, version, reason, newest } = group;
    let version = version.as_deref().unwrap_or("-");
    let key =
        if newest.key.is_empty() { "no key".to_owned() } else { format!("key {:?}", newest.key) };
    format!(
        "{count:>8}  {cause:<12} {version:<24} {reason}\n{:>8}  newest: {}, {key}, id {}\n",
        "", newest.at, newest.id
    )
}

/// Reads the dead letters that `args` selects, at most `limit`, in pages. Passes the rows of each page to `receive`.
/// Returns whether more such letters may exist.
async fn read_rows<F: RowForm<LetterRow>>(
    args: &DeadListArgs,
    limit: usize,
    target: &InspectTarget,
    mut receive: impl FnMut(&[F]) -> io::Result<()>,
) -> Result<bool, CommandError> {
    let mut cursor = None;
    let mut left = limit;
    while left > 0 {
        let key = args.key.as_deref();
        let limit = PAGE_ROWS.min(left);
        let page = target.letters(&args.stream, key, cursor.as_deref(), limit).await?;
        // A page of a store in Redis may have more rows than requested.
        let rows = &page.rows[..left.min(page.rows.len())];
        left -= rows.len();
        receive(rows)?;
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
