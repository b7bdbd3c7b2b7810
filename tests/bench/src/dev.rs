//! `dev`: measures how long a person waits for `ordain dev`, in each language. Each side is a new project of a language.
//! The benchmark changes the handler of the project again and again, and measures the time from saving the file to the
//! first outcome with the change.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use ordain_tests::compilers::{native_commands, use_compilers};
use serde_json::Value;

use crate::CommonArgs;
use crate::report::{Report, Row, median};
use crate::sides::{Sides, medians};

/// The name of the project.
const NAME: &str = "account";
/// A part of the reason with which the handler of each template rejects an event. Each change replaces this part.
const REASON: &str = "the balance is only";
/// The maximum time for one outcome. The first build of a project in Rust takes the longest.
const OUTCOME_TIMEOUT: Duration = Duration::from_mins(5);

/// A language of `ordain new`, and the file of its template that contains the handler.
#[derive(Debug, Clone, Copy)]
struct Template {
    language: &'static str,
    handler: &'static str,
}

const TEMPLATES: [Template; 6] = [
    Template { language: "rust", handler: "src/lib.rs" },
    Template { language: "js", handler: "src/account.js" },
    Template { language: "ts", handler: "src/account.ts" },
    Template { language: "python", handler: "src/handler.py" },
    Template { language: "go", handler: "handler/handler.go" },
    Template { language: "c", handler: "src/account.c" },
];

#[derive(Debug, Args)]
pub(crate) struct DevArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    #[command(flatten)]
    sides: Sides,
    /// Number of changes of the handler in each run
    #[arg(long, default_value_t = 7)]
    changes: usize,
}

pub(crate) fn bench(args: &DevArgs) -> Result<Report> {
    let templates = args.sides.of(&TEMPLATES, |template| template.language)?;
    let rows = medians(
        args.common.runs,
        &templates,
        |template| template.language,
        |template| measure(args, template),
    )?;
    Ok(Report::new("dev", rows).note(
        "A new project of each language, as `ordain new` creates it. start ms: from the start of `ordain dev`, in a \
         project without a build, to the first outcome. p50 ms, longest ms: from saving a change of the handler to \
         the first outcome with this change. The packages of all languages are on the disk, so no time is spent on \
         downloads.",
    ))
}

fn measure(args: &DevArgs, template: Template) -> Result<Row> {
    let folder = tempfile::tempdir()?;
    let shell = Shell::new(&args.common)?;
    shell.run(folder.path(), &format!("ordain new --lang {} {NAME}", template.language))?;
    let project = folder.path().join(NAME);
    let readme = fs::read_to_string(project.join("README.md"))?;
    shell.run(&project, &native_commands(&readme).context("the README has no commands")?)?;

    let handler = project.join(template.handler);
    let source = fs::read_to_string(&handler)?;
    ensure!(source.contains(REASON), "{} does not contain {REASON:?}", handler.display());
    let started = Instant::now();
    let dev = DevCommand::start(&shell, &project)?;
    dev.until_reason(REASON)?;
    let start_ms = started.elapsed().as_secs_f64() * 1e3;
    let mut times_ms = Vec::new();
    for change in 1..=args.changes {
        // The command must have finished the former run, so that it waits for a change.
        dev.until_totals()?;
        let reason = format!("after {change} changes, the balance is only");
        let changed = source.replace(REASON, &reason);
        let saved = Instant::now();
        fs::write(&handler, changed)?;
        dev.until_reason(&reason)?;
        times_ms.push(saved.elapsed().as_secs_f64() * 1e3);
    }
    Ok(Row {
        side: template.language.to_owned(),
        start_ms: Some(start_ms),
        longest_ms: times_ms.iter().copied().reduce(f64::max),
        p50_ms: median(times_ms),
        ..Row::default()
    })
}

/// Runs commands with the compilers of all languages.
struct Shell {
    tools: PathBuf,
    ordain: PathBuf,
}

impl Shell {
    fn new(common: &CommonArgs) -> Result<Self> {
        // The components are in `plugins/languages`, beside the folder of the compilers.
        let target = common.plugins.canonicalize()?;
        let target = target.ancestors().nth(2).context("the components are in no target folder")?;
        Ok(Self { tools: target.join("languages"), ordain: common.ordain.canonicalize()? })
    }

    fn command(&self, folder: &Path, commands: &str) -> Result<Command> {
        let mut shell = Command::new("sh");
        shell.current_dir(folder).args(["-e", "-c", commands]).stdin(Stdio::null());
        use_compilers(&mut shell, &self.tools, &self.ordain)?;
        Ok(shell)
    }

    fn run(&self, folder: &Path, commands: &str) -> Result<()> {
        let output = self.command(folder, commands)?.output()?;
        let log = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}:\n{commands}\n{log}", output.status);
        Ok(())
    }
}

/// A running `ordain dev --json`, which ends when this value is dropped.
struct DevCommand {
    process: Child,
    rows: Receiver<Value>,
}

impl DevCommand {
    fn start(shell: &Shell, project: &Path) -> Result<Self> {
        let mut command = shell.command(project, "exec ordain dev --json")?;
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let stdout = process.stdout.take().context("standard output is no pipe")?;
        let (sender, rows) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let row = serde_json::from_str(&line).unwrap_or(Value::Null);
                if sender.send(row).is_err() {
                    return;
                }
            }
        });
        Ok(Self { process, rows })
    }

    /// Waits for the outcome of an event that the handler rejected for this reason.
    fn until_reason(&self, reason: &str) -> Result<()> {
        self.until(|row| {
            row["outcome"]["reject"].as_str().is_some_and(|found| found.starts_with(reason))
        })
        .with_context(|| format!("no event was rejected with {reason:?}"))
    }

    /// Waits for the last row of a run.
    fn until_totals(&self) -> Result<()> {
        self.until(|row| row["applied"].is_u64()).context("no run ended")
    }

    fn until(&self, is_wanted: impl Fn(&Value) -> bool) -> Result<()> {
        let deadline = Instant::now() + OUTCOME_TIMEOUT;
        while let Ok(row) =
            self.rows.recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            if is_wanted(&row) {
                return Ok(());
            }
        }
        bail!("`ordain dev` printed no such row within {OUTCOME_TIMEOUT:?}")
    }
}

impl Drop for DevCommand {
    fn drop(&mut self) {
        // An error means that the process has already ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
