//! `ordain keys`.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use ordain_core::{Cause, Job, Status};

use super::{ConfigArg, EXIT_FAILED, Failure, show};
use crate::store::{KeyFilter, KeyRow, Store};

/// Rows that are read at a time.
const PAGE: usize = 500;

#[derive(Debug, Subcommand)]
pub(super) enum KeysCommand {
    /// List the keys of a stream.
    List(ListArgs),
    /// Show everything about a key, its state included.
    Show(KeyArgs),
    /// Say in words where a key stands, why, and what helps.
    Why(KeyArgs),
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    config: ConfigArg,
    /// The stream.
    stream: String,
    /// Only keys with this status.
    #[arg(long, value_parser = parse_status)]
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
pub(super) struct KeyArgs {
    #[command(flatten)]
    config: ConfigArg,
    /// The stream.
    stream: String,
    /// The key.
    key: String,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

fn parse_status(text: &str) -> Result<Status, String> {
    let all =
        [Status::Active, Status::Waiting, Status::Retrying, Status::Parked, Status::Completed];
    all.into_iter()
        .find(|status| show::status(*status) == text)
        .ok_or_else(|| format!("one of {}", all.map(show::status).join(", ")))
}

impl KeysCommand {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
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
    let store = args.config.open(&args.stream).await?;
    let mut filter = KeyFilter {
        status: args.status,
        prefix: args.prefix,
        cursor: None,
        limit: PAGE.min(args.limit.max(1)),
    };
    if !args.json {
        let head =
            format!("{:<32} {:<9} {:>12} {:>9}  {}\n", "KEY", "STATUS", "NEXT", "HELD", "WHY");
        show::text(&head)?;
    }
    let mut left = args.limit;
    while left > 0 {
        let page = store.keys(&args.stream, &filter).await?;
        let mut text = String::new();
        for row in page.rows.iter().take(left) {
            left -= 1;
            if args.json {
                text.push_str(&show::key(row, None).to_string());
            } else {
                text.push_str(&line(row));
            }
            text.push('\n');
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

fn line(row: &KeyRow) -> String {
    let key = show::clean(&row.key);
    match &row.job {
        Err(error) => {
            format!("{key:<32} {:<9} {:>12} {:>9}  {}", "corrupt", "", "", show::clean(error))
        }
        Ok(job) => {
            let why = job
                .trouble
                .as_ref()
                .map(|trouble| format!("{}: {}", trouble.cause, show::clean(&trouble.error)));
            format!(
                "{key:<32} {:<9} {:>12} {:>9}  {}",
                show::status(job.status),
                job.next,
                job.spilled.count,
                why.unwrap_or_default()
            )
        }
    }
}

async fn key(args: KeyArgs, why: bool) -> Result<ExitCode, Failure> {
    let store = args.config.open(&args.stream).await?;
    let KeyArgs { stream, key, .. } = &args;
    let Some((row, state)) = store.key(stream, key).await? else {
        eprintln!(
            "key {key:?} of stream {stream} has never been committed or held, or is forgotten"
        );
        return Ok(ExitCode::from(EXIT_FAILED));
    };
    if args.json || !why {
        let value = show::key(&row, state.as_ref());
        let text = if args.json { value.to_string() } else { format!("{value:#}") };
        show::text(&format!("{text}\n"))?;
    } else {
        show::text(&explain(&row, &*store, &args.stream).await?)?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn explain(row: &KeyRow, store: &dyn Store, stream: &str) -> Result<String, Failure> {
    let key = show::clean(&row.key);
    let job = match &row.job {
        Ok(job) => job,
        Err(error) => {
            return Ok(format!(
                "key {key}: its record cannot be read: {}\nIts events are dead-lettered with the \
                 cause `corrupt`.\n",
                show::clean(error)
            ));
        }
    };
    let mut text = format!("key {key}: {}\n", standing(job));
    if let Some(trouble) = &job.trouble {
        text += &format!("why: {} ({})", show::clean(&trouble.error), trouble.cause);
        text += &format!(", since {}", show::time(trouble.since));
        if let Some(version) = &trouble.version {
            text += &format!(", under {version}");
        }
        text.push('\n');
    }
    if job.spilled.count > 0 {
        let spilled = &job.spilled;
        text += &format!(
            "held in the store: {} events between {} and {}\n",
            spilled.count, spilled.first, spilled.last
        );
    }
    if let Some(at) = row.due_at {
        text += &format!("looked at again: {}\n", show::time(at));
    }
    let letters = store.letters(stream, Some(&row.key), None, PAGE).await?;
    if !letters.rows.is_empty() {
        let more = if letters.cursor.is_some() { " or more" } else { "" };
        text += &format!(
            "dead letters: {}{more}; see `ordain dead list {stream} --key {key}`\n",
            letters.rows.len()
        );
    }
    text += next_step(job);
    Ok(text)
}

fn standing(job: &Job) -> String {
    let next = job.next;
    match job.status {
        Status::Active => format!("everything before event {next} is settled; nothing is wrong"),
        Status::Waiting => format!("waits for event {next}, which has not come"),
        Status::Retrying => {
            format!("event {next} failed {} times and is tried again", job.attempts)
        }
        Status::Parked if job.trouble.as_ref().is_some_and(|it| was_tried_again(it.cause)) => {
            let last = job.attempts;
            format!(
                "parked at event {next} after try {last}, the last that `retry.attempts` allows"
            )
        }
        Status::Parked => format!("parked at event {next}"),
        Status::Completed => format!("ended with event {}", next.saturating_sub(1)),
    }
}

/// Whether an event that failed so is tried as often as the stream's setting says.
fn was_tried_again(cause: Cause) -> bool {
    matches!(cause, Cause::Retry | Cause::Timeout)
}

fn next_step(job: &Job) -> &'static str {
    match job.status {
        Status::Waiting => {
            "The missing event ends this at any time: let its producer send it again.\n"
        }
        Status::Parked
            if job.attempts == 0 && job.trouble.as_ref().is_some_and(|t| t.version.is_none()) =>
        {
            "The missing event ends this at any time: let its producer send it again.\n"
        }
        Status::Parked => {
            "A new version of the handler in the folder of plugins tries it again at the next start.\n"
        }
        Status::Active | Status::Retrying | Status::Completed => "",
    }
}
