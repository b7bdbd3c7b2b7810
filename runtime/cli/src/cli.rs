//! The command line: its commands, and how their results become exit codes.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, value_parser};

use crate::{
    check, completions, dead, demo, instances, keys, logs, new, plugins, project, publish, run,
    streams,
};

use crate::store::{StoreAccess, open_store};
use ordain_config::known_streams;
use ordain_config::{ConfigError, DEFAULT_FILE, LoadedConfig};
use ordain_demo::DemoArgs;
use ordain_engine::run::RunError;
use ordain_generate::{GenerateArgs, generate};
use ordain_store::{Store, StoreError};
use ordain_util::command::set_config_option;
use ordain_util::text::print_lossy;
use ordain_util::wait::{shorten, shortened};
use ordain_wasm::{COMPILE_COMMAND, CompileLimits, HandlerSetupError, LoadError, run_compiler};

/// Runs WebAssembly handlers over streams of events.
///
/// Handlers run in order within a key, and in parallel across keys. Each event takes effect exactly once.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true)]
pub(crate) struct OrdainCli {
    #[command(subcommand)]
    command: OrdainCommand,
    /// Divisor that shortens the waiting times for brokers and stores. For tests.
    #[arg(long, hide = true, default_value = "1", value_parser = value_parser!(u32).range(1..=100))]
    wait_divisor: u32,
    /// Format of the log on standard error.
    #[arg(long, global = true, default_value = "text")]
    log_format: logs::LogFormat,
    /// Filter of the log, for example `debug` or `ordain=debug,info`. Default: `info`, and `error` for `dev` and
    /// `test`.
    #[arg(long, global = true, env = "ORDAIN_LOG")]
    log: Option<String>,
}

/// The filter of the log, if the command line has none.
const DEFAULT_LOG: &str = "info";
/// The filter of the log for commands that print the log lines of handlers with the outcomes of events.
const PROJECT_LOG: &str = "error";

#[derive(Debug, Subcommand)]
enum OrdainCommand {
    /// Demonstrate Ordain: process disordered events, kill the process several times, and check the result.
    ///
    /// The demo generates events of orders in a temporary folder, runs a handler on these events as a child process, and
    /// kills this process three times with SIGKILL. At the end, the demo compares the output with an independent
    /// calculation. The exit code is 1 if the output is incorrect.
    Demo(DemoArgs),
    /// Create a project: a handler with its tests, sample events and a configuration.
    New(new::NewArgs),
    /// Build the handlers of a project after each change, run them over events, and print the outcome of each event.
    ///
    /// The events come from a file, from standard input or over HTTP. The command runs the engine of `run` with a
    /// temporary store, and reaches no server. After each build, every key begins anew.
    Dev(project::DevArgs),
    /// Run the scripted tests of a project: files of events, each followed by the expected outcome.
    ///
    /// Exits with 1 if an outcome differs from its expectation.
    Test(project::TestArgs),
    /// Run the streams of a configuration.
    Run(run::RunArgs),
    /// Check a configuration and its handlers without running them.
    Check(check::CheckArgs),
    /// Publish events to a stream.
    ///
    /// In a `sequenced` stream, the store numbers the events that have no number, and keeps all events for replay. The
    /// store or the broker confirms each event.
    ///
    /// You can repeat the command after a crash: published events keep their numbers and take effect once. To repeat
    /// the command for a single event (`--key`), name the id of the event with `--id`.
    Publish(publish::PublishArgs),
    /// Generate events for trials, tests and measurements. The same seed generates the same events.
    Generate(GenerateArgs),
    /// Inspect keys: the status of each key, and the reason for the status.
    #[command(subcommand)]
    Keys(keys::KeysCommand),
    /// Inspect streams, resume a stream that has stopped, and remove old bindings.
    #[command(subcommand)]
    Streams(streams::StreamsCommand),
    /// Inspect dead letters.
    #[command(subcommand)]
    Dead(dead::DeadCommand),
    /// Inspect handlers.
    #[command(subcommand)]
    Plugins(plugins::PluginsCommand),
    /// Show the processes that share the streams, and the partitions that each process owns.
    Instances(instances::InstancesArgs),
    /// Print the completions for a shell, or the manual page.
    Completions(completions::CompletionsArgs),
    /// Compile a handler from standard input into a cache. Other commands start this command as a child process.
    #[command(name = COMPILE_COMMAND, hide = true)]
    Compile(CompileArgs),
}

#[derive(Debug, Args)]
struct CompileArgs {
    /// The folder of the cache.
    cache: PathBuf,
    /// The name of the handler.
    handler: String,
    /// Limit of processor time, in seconds.
    #[arg(long)]
    seconds: u64,
    /// Limit of memory, in bytes.
    #[arg(long)]
    memory: u64,
    /// Run at low priority.
    #[arg(long)]
    polite: bool,
}

/// The option that selects the configuration of a command.
#[derive(Debug, Args)]
pub(crate) struct ConfigArg {
    /// The configuration file.
    #[arg(long, value_name = "FILE", default_value = DEFAULT_FILE)]
    config: PathBuf,
}

impl ConfigArg {
    pub(crate) fn load(&self) -> Result<LoadedConfig, CommandError> {
        load(&self.config)
    }
}

/// The configuration file of `run` or `check`. The command line names the file as an argument, or with the option
/// `--config`, as for the other commands.
#[derive(Debug, Args)]
pub(crate) struct FileArg {
    /// The configuration file.
    #[arg(default_value = DEFAULT_FILE, conflicts_with = "option")]
    config: PathBuf,
    /// The configuration file, as an option.
    #[arg(long = "config", value_name = "FILE")]
    option: Option<PathBuf>,
}

impl FileArg {
    pub(crate) fn load(&self) -> Result<LoadedConfig, CommandError> {
        load(self.option.as_ref().unwrap_or(&self.config))
    }
}

/// Loads the configuration of this process. The commands that the process prints use the same configuration.
fn load(file: &Path) -> Result<LoadedConfig, CommandError> {
    let loaded = LoadedConfig::load(file)?;
    set_config_option(loaded.config_option());
    Ok(loaded)
}

/// Time for which a command retries an unavailable store. The time is short, because an operator waits for the command.
const STORE_RETRY_TIMEOUT: Duration = Duration::from_secs(10);

/// Opens the store for a command that inspects the store, or that acts on a stream (`ordain streams resume` and
/// `unbind`).
pub(crate) async fn open_to_read(loaded: &LoadedConfig) -> Result<Arc<dyn Store>, CommandError> {
    loaded.check_supported()?;
    Ok(open_store(loaded, Some(shortened(STORE_RETRY_TIMEOUT)), StoreAccess::Read).await?)
}

/// Opens the store to read a stream. Returns an error if the stream is not configured and has no data in the store.
pub(crate) async fn open_stream(
    loaded: &LoadedConfig,
    stream: &str,
) -> Result<Arc<dyn Store>, CommandError> {
    let store = open_to_read(loaded).await?;
    let known = known_streams(loaded, &*store).await?;
    if known.iter().any(|known| known == stream) {
        return Ok(store);
    }
    Err(CommandError::Failed(anyhow::anyhow!(
        "stream {stream:?} does not exist, neither in {} nor in its store; existing streams: {}",
        loaded.file.display(),
        known
            .iter()
            .map(|known| ordain_util::text::escape_invisible(known))
            .collect::<Vec<_>>()
            .join(", ")
    )))
}

/// The failure of a command. Each variant has its own exit code, which a shell or a service manager can check.
#[derive(Debug)]
pub(crate) enum CommandError {
    /// A failure that belongs to neither of the other variants.
    Failed(anyhow::Error),
    /// The configuration or a handler is invalid: a restart does not help (`EX_CONFIG`).
    Config(anyhow::Error),
    /// A required service is unavailable: a restart may help (`EX_TEMPFAIL`).
    Unavailable(anyhow::Error),
}

impl CommandError {
    /// Returns the error of any variant.
    pub(crate) fn reason(&self) -> &anyhow::Error {
        match self {
            Self::Failed(error) | Self::Config(error) | Self::Unavailable(error) => error,
        }
    }
}

/// Exit code of a command that failed for a reason that has no exit code of its own. The two constants below are the
/// exit codes `EX_CONFIG` and `EX_TEMPFAIL` of sysexits.h.
pub(crate) const EXIT_FAILED: u8 = 1;
pub(crate) const EXIT_CONFIG: u8 = 78;
pub(crate) const EXIT_UNAVAILABLE: u8 = 75;

impl OrdainCli {
    /// Runs the command, logs the error of a failed command, writes the rest of the log, and returns the exit code of
    /// the process.
    pub(crate) fn run(self) -> ExitCode {
        let has_own_output = matches!(self.command, OrdainCommand::Dev(_) | OrdainCommand::Test(_));
        let default_log = if has_own_output { PROJECT_LOG } else { DEFAULT_LOG };
        let log = self.log.as_deref().unwrap_or(default_log);
        if let Err(error) = logs::start(self.log_format, log) {
            print_lossy(&format!("error: {error}"));
            return ExitCode::from(2);
        }
        let is_run = matches!(self.command, OrdainCommand::Run(_));
        let _writer = is_run.then(|| logs::start_writer(self.log_format));
        shorten(self.wait_divisor);
        let result = match self.command {
            OrdainCommand::Demo(args) => demo::run(args),
            OrdainCommand::New(args) => args.run(),
            OrdainCommand::Dev(args) => args.run(),
            OrdainCommand::Test(args) => args.run(),
            OrdainCommand::Run(args) => args.run(self.log_format),
            OrdainCommand::Check(args) => args.run(),
            OrdainCommand::Publish(args) => args.run(),
            OrdainCommand::Generate(args) => {
                generate(&args).map(|()| ExitCode::SUCCESS).map_err(CommandError::Failed)
            }
            OrdainCommand::Keys(command) => command.run(),
            OrdainCommand::Streams(command) => command.run(),
            OrdainCommand::Dead(command) => command.run(),
            OrdainCommand::Plugins(command) => command.run(),
            OrdainCommand::Instances(args) => args.run(),
            OrdainCommand::Completions(args) => args.run(),
            OrdainCommand::Compile(CompileArgs { cache, handler, seconds, memory, polite }) => {
                let timeout = Duration::from_secs(seconds);
                Ok(run_compiler(&cache, &handler, CompileLimits { timeout, memory }, polite))
            }
        };
        let (error, code) = match result {
            Ok(code) => return code,
            Err(CommandError::Failed(error)) => (error, EXIT_FAILED),
            Err(CommandError::Config(error)) => (error, EXIT_CONFIG),
            Err(CommandError::Unavailable(error)) => (error, EXIT_UNAVAILABLE),
        };
        if is_broken_pipe(&error) {
            // The program that reads the output has closed the pipe, as `head` does when it has enough lines. The
            // command has then succeeded.
            return ExitCode::SUCCESS;
        }
        logs::log_final_error(self.log_format, &format!("{error:#}"));
        ExitCode::from(code)
    }
}

pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

impl From<ConfigError> for CommandError {
    fn from(error: ConfigError) -> Self {
        if error.is_temporary() {
            Self::Unavailable(error.into())
        } else {
            Self::Config(error.into())
        }
    }
}

impl From<RunError> for CommandError {
    fn from(error: RunError) -> Self {
        if error.is_configuration() {
            Self::Config(error.into())
        } else if error.may_pass() {
            Self::Unavailable(error.into())
        } else {
            Self::Failed(error.into())
        }
    }
}

impl From<HandlerSetupError> for CommandError {
    fn from(error: HandlerSetupError) -> Self {
        match error {
            HandlerSetupError::Config(error) => error.into(),
            HandlerSetupError::Handler(LoadError { is_temporary: false, .. }) => {
                Self::Config(error.into())
            }
            HandlerSetupError::Handler(LoadError { is_temporary: true, .. }) => {
                Self::Unavailable(error.into())
            }
            HandlerSetupError::Engine(_) => Self::Failed(error.into()),
        }
    }
}

impl From<StoreError> for CommandError {
    fn from(error: StoreError) -> Self {
        RunError::from(error).into()
    }
}

impl From<std::io::Error> for CommandError {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error.into())
    }
}

impl From<anyhow::Error> for CommandError {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}
