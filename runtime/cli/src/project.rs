//! `ordain dev` and `ordain test`: run the handlers of a project for its developer.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use tokio::runtime::Runtime;

use crate::cli::{CommandError, EXIT_FAILED};
use crate::signals::EndSignals;
use ordain_config::{DEFAULT_FILE, LoadedConfig};
use ordain_engine::run::RunError;
use ordain_project::{DevRun, EventInput, Printer, ProjectError, TestRun, state_folder};
use ordain_util::text::print_lossy;

/// The exit code of a process that SIGINT has ended, as shells report it.
const EXIT_INTERRUPTED: u8 = 130;

/// The folder of a project.
#[derive(Debug, Args)]
struct ProjectArg {
    /// The folder of the project, or its configuration file.
    #[arg(default_value = ".")]
    project: PathBuf,
}

impl ProjectArg {
    fn config(&self) -> PathBuf {
        if self.project.is_dir() { self.project.join(DEFAULT_FILE) } else { self.project.clone() }
    }
}

#[derive(Debug, Args)]
pub(crate) struct DevArgs {
    #[command(flatten)]
    project: ProjectArg,
    /// The file of the events, or `-` for standard input. Default: the setting `dev.events`, or else standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "http")]
    events: Option<PathBuf>,
    /// Accept the events over HTTP at this address, such as 127.0.0.1:7071.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "once")]
    http: Option<SocketAddr>,
    /// Build once, run the events once, and exit. Exits with 1 if the build failed or a handler had a fault.
    #[arg(long)]
    once: bool,
    /// Keep the states of all keys between builds, and between two starts of this command.
    #[arg(long)]
    keep: bool,
    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    #[command(flatten)]
    project: ProjectArg,
    /// Run only this file. You can repeat the option. Default: all files `*.ndjson` in the folder `dev.tests`.
    #[arg(long = "file", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Write the actual outcomes into the files, in place of the expectations that are not met or are missing.
    #[arg(long)]
    update: bool,
    /// Do not run the build command.
    #[arg(long)]
    no_build: bool,
    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
}

impl DevArgs {
    pub(crate) fn run(self) -> Result<ExitCode, CommandError> {
        let config = self.project.config();
        let events = match (self.events, self.http) {
            (_, Some(address)) => EventInput::Http(address),
            (Some(file), None) if file.as_os_str() == "-" => EventInput::Stdin,
            (Some(file), None) => EventInput::File(file),
            (None, None) => EventInput::Configured,
        };
        let run = DevRun {
            state: state_folder(&config, "dev"),
            config,
            events,
            once: self.once,
            keep: self.keep,
            printer: Printer::new(self.json),
        };
        let is_right = until_signal(run.run())?;
        Ok(is_right.map_or(ExitCode::from(EXIT_INTERRUPTED), exit_code))
    }
}

impl TestArgs {
    pub(crate) fn run(self) -> Result<ExitCode, CommandError> {
        let config = self.project.config();
        let project = LoadedConfig::load(&config)?;
        let run = TestRun {
            project: &project,
            files: self.files,
            state: state_folder(&config, "test"),
            update: self.update,
            builds: !self.no_build,
            printer: Printer::new(self.json),
        };
        let totals = until_signal(run.run())?;
        Ok(totals.map_or(ExitCode::from(EXIT_INTERRUPTED), |totals| exit_code(totals.failed == 0)))
    }
}

fn exit_code(is_right: bool) -> ExitCode {
    if is_right { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FAILED) }
}

/// Runs a command until it ends or a signal arrives. Returns `None` after a signal.
fn until_signal<T>(
    command: impl Future<Output = Result<T, ProjectError>>,
) -> Result<Option<T>, CommandError> {
    let runtime = crate::runtime::new()?;
    let result = runtime.block_on(async {
        let mut signals = EndSignals::new()?;
        tokio::select! {
            result = command => Ok(Some(result?)),
            _ = signals.any() => Ok(None),
        }
    });
    end(runtime);
    result
}

/// Leaves the tasks of the runtime to the end of the process, because running tasks would panic at a shutdown.
fn end(runtime: Runtime) {
    std::mem::forget(runtime);
}

impl From<ProjectError> for CommandError {
    fn from(error: ProjectError) -> Self {
        match error {
            ProjectError::Config(error) => error.into(),
            ProjectError::Handler(error) => error.into(),
            ProjectError::Run(error) => RunError::into(error),
            ProjectError::Stdio(error) => error.into(),
            ProjectError::Build { ref output, .. } if !output.is_empty() => {
                print_lossy(output.trim_end());
                Self::Failed(error.into())
            }
            error => Self::Failed(error.into()),
        }
    }
}
