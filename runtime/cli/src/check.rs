//! `ordain check`: checks a configuration and its handlers, and with `--connect` also the servers. This module must not
//! open the store, change anything in a server, or run an event.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, value_parser};
use serde::Serialize;

use crate::cli::{CommandError, FileArg};
use crate::show::{self, JsonRow};
use crate::store::inspect_store;
use ordain_config::{ConfigError, ConfigProblem, LoadedConfig, StoreConfig, explain};
use ordain_engine::run::{SampledMessage, check_files, inspect_broker};
use ordain_http::view::{StreamIntake, StreamRow, StreamVersion};
use ordain_util::command::PrintedCommand;
use ordain_util::finding::{Finding, InspectedServer, Severity};
use ordain_util::wait::shortened;
use ordain_wasm::{CompilePriority, HandlerSetupError, MisnamedFile};
use ordain_wasm::{load_handlers, scan_folder};

/// Time limit for the inspection of one server.
const SERVER_TIMEOUT: Duration = Duration::from_secs(10);
/// Additional time for each partition of each stream, because each partition may have a queue that the command
/// inspects.
const PARTITION_TIMEOUT: Duration = Duration::from_millis(100);
/// Additional time for each partition with `--sample`.
const SAMPLE_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    config: FileArg,
    /// Check nothing, and print every setting with its meaning, its default and the reason for the default.
    #[arg(long)]
    explain: bool,
    /// Also connect to the store and the broker, and report everything that a start would refuse or warn about.
    ///
    /// The check changes nothing in the servers.
    ///
    /// Exits with 75 if a server cannot be reached, or if a server refuses a request temporarily. Exits with 78 if a
    /// start cannot succeed.
    #[arg(long, conflicts_with = "explain")]
    connect: bool,
    /// Also receive at most this number of messages of each queue that a stream reads. For each message, print how the
    /// stream would read it, or why the stream cannot read it.
    ///
    /// The messages remain in their queues. The broker marks them as redelivered, and a quorum queue counts the
    /// delivery towards its delivery limit. The command receives no messages of a queue that has consumers.
    ///
    /// Exits with 78 if no message of a queue can be read.
    #[arg(long, value_name = "MESSAGES", requires = "connect", value_parser = value_parser!(u16).range(1..=1_000))]
    sample: Option<u16>,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// The result of the command, as `--json` prints it.
#[derive(Default, Serialize)]
struct CheckReport {
    /// The errors of the configuration, its files and its handlers. Errors of servers are in `servers`.
    errors: Vec<ErrorRow>,
    /// The URL of the Redis store if the check has not connected to this store. `None` if the check has connected, or
    /// if the store is embedded.
    not_asked: Option<String>,
    /// Warnings about valid but risky settings: events can be lost or take effect twice, or the broker can close a
    /// channel.
    warnings: Vec<String>,
    /// The results for the servers, with `--connect`. For an embedded store, an entry notes that the store has no
    /// server.
    servers: Vec<ServerRow>,
    /// The messages of queues, with `--sample`.
    samples: Vec<SampledMessage>,
    streams: Vec<StreamRow>,
}

/// An error of the configuration, a file or a handler. The members `file`, `line` and `setting` describe where the
/// error is in the configuration. A member is `None` if the error does not state this value.
#[derive(Default, Serialize)]
struct ErrorRow {
    file: Option<String>,
    line: Option<usize>,
    setting: Option<String>,
    message: String,
}

impl CheckReport {
    /// Returns the report of a check that an error has ended.
    fn of_error(error: &anyhow::Error) -> Self {
        let config = error.chain().find_map(|cause| cause.downcast_ref::<ConfigError>());
        let errors = match config {
            Some(config) => {
                config.problems.iter().map(|problem| ErrorRow::of(config, problem)).collect()
            }
            None => vec![ErrorRow { message: format!("{error:#}"), ..ErrorRow::default() }],
        };
        Self { errors, ..Self::default() }
    }
}

impl ErrorRow {
    fn of(config: &ConfigError, problem: &ConfigProblem) -> Self {
        Self {
            file: Some(config.file.display().to_string()),
            line: Some(problem.line).filter(|line| *line > 0),
            setting: Some(problem.setting.clone()).filter(|setting| !setting.is_empty()),
            message: problem.message.clone(),
        }
    }
}

#[derive(Serialize)]
struct ServerRow {
    role: &'static str,
    address: String,
    findings: Vec<FindingRow>,
}

#[derive(Serialize)]
struct FindingRow {
    severity: &'static str,
    text: String,
}

impl From<&InspectedServer> for ServerRow {
    fn from(server: &InspectedServer) -> Self {
        let row = |finding: &Finding| FindingRow {
            severity: finding.severity.name(),
            text: finding.text.clone(),
        };
        Self {
            role: server.role,
            address: server.address.clone(),
            findings: server.findings.iter().map(row).collect(),
        }
    }
}

impl CheckArgs {
    pub(crate) fn run(self) -> Result<ExitCode, CommandError> {
        if self.explain {
            show::text(&explain())?;
            return Ok(ExitCode::SUCCESS);
        }
        let servers = self.check().inspect_err(|error| {
            if self.json {
                // Ignore a failure to print this report: the caller of this function also reports `error`.
                let _ = JsonRow::from(CheckReport::of_error(error.reason())).print(true);
            }
        })?;
        exit_result(&servers)
    }

    /// Makes the checks. Prints the result, unless the configuration or a handler is invalid. Returns the inspected
    /// servers.
    fn check(&self) -> Result<Vec<InspectedServer>, CommandError> {
        let loaded = self.config.load()?;
        loaded.check_supported()?;
        check_files(&loaded)?;
        let handlers = load_handlers(&loaded)?;
        // `run` ignores an unusable file if the handler has another, usable file. For each handler that a stream uses,
        // `check` reports every unusable file as an error. `check` also reports every file with an invalid name as an
        // error.
        let folder = scan_folder(&loaded)?;
        if let Some(MisnamedFile { path, reason }) = folder.misnamed.first() {
            return Err(CommandError::Config(anyhow::anyhow!("{}: {reason}", path.display())));
        }
        let used: BTreeSet<&str> =
            loaded.config.streams.values().map(|stream| &*stream.handler).collect();
        for file in used.iter().filter_map(|name| folder.handlers.get(*name)).flatten() {
            handlers
                .engine
                .load_in_child(file, CompilePriority::Normal)
                .map_err(HandlerSetupError::from)?;
        }
        let streams = loaded.config.streams.iter();
        let streams = streams.map(|(name, stream)| {
            let build = handlers.offered_build(&stream.handler);
            (name, stream, StreamVersion { build, ..StreamVersion::default() })
        });
        let warnings = loaded.warnings();
        let (servers, samples) =
            if self.connect { connect(&loaded, self.sample)? } else { (Vec::new(), Vec::new()) };
        let store = match &loaded.config.store {
            StoreConfig::Redis(redis) if !self.connect => Some(redis.url.to_string()),
            StoreConfig::Redis(_) | StoreConfig::Embedded(_) => None,
        };
        if self.json {
            let rows = streams.map(|(name, stream, executing)| {
                StreamRow::of(name, Some((stream, executing)), StreamIntake::default())
            });
            let found = CheckReport {
                errors: Vec::new(),
                not_asked: store,
                warnings,
                servers: servers.iter().map(ServerRow::from).collect(),
                samples,
                streams: rows.collect(),
            };
            JsonRow::from(found).print(true)?;
        } else {
            for (name, _, executing) in streams {
                let version = executing.build.map(|build| build.version).unwrap_or_default();
                show::text(&format!("stream {name}: handler {version}\n"))?;
            }
            show::text(&format!("{} is valid\n", loaded.file.display()))?;
            show::text(&lines(&servers, Severity::Note, ""))?;
            for sample in samples {
                show::text(&format!("{sample}\n"))?;
            }
            for warning in warnings {
                show::text(&format!("warning: {warning}\n"))?;
            }
            show::text(&lines(&servers, Severity::Warning, "warning: "))?;
            if let Some(store) = store {
                let command = PrintedCommand::new("check --connect");
                show::text(&format!(
                    "the store at {store} was not checked: {command} checks it\n"
                ))?;
            }
        }
        Ok(servers)
    }
}

/// Inspects the store and the broker at the same time. If `sample` is a number, also receives at most this number of
/// messages of each queue, and returns how the streams would read them.
fn connect(
    loaded: &LoadedConfig,
    sample: Option<u16>,
) -> Result<(Vec<InspectedServer>, Vec<SampledMessage>), CommandError> {
    let runtime = crate::runtime::new()?;
    let partitions: u32 = loaded.config.partition_counts().values().sum();
    let per_partition = PARTITION_TIMEOUT + sample.map_or(Duration::ZERO, |_| SAMPLE_TIMEOUT);
    let limit = shortened(SERVER_TIMEOUT + per_partition * partitions);
    let (store, broker) = runtime.block_on(async {
        tokio::join!(inspect_store(loaded, limit), inspect_broker(loaded, limit, sample))
    });
    // This shutdown does not wait for an unfinished lookup of a host name.
    runtime.shutdown_background();
    let (broker, samples) = broker.unzip();
    Ok(([Some(store), broker].into_iter().flatten().collect(), samples.unwrap_or_default()))
}

/// Returns the findings of one severity, one per line, each after `prefix` and the role of the server.
fn lines(servers: &[InspectedServer], severity: Severity, prefix: &str) -> String {
    let mut text = String::new();
    for server in servers {
        for finding in server.findings.iter().filter(|finding| finding.severity == severity) {
            text += &format!("{prefix}{}: {}\n", server.role, finding.text);
        }
    }
    text
}

/// Returns the error of the command if a server cannot be used. The text of the error has one line for each reason.
fn exit_result(servers: &[InspectedServer]) -> Result<ExitCode, CommandError> {
    let errors = lines(servers, Severity::Error, "");
    let unavailable = lines(servers, Severity::Unavailable, "");
    let reasons = anyhow::anyhow!("{}", format!("{errors}{unavailable}").trim_end().to_owned());
    if !errors.is_empty() {
        return Err(CommandError::Config(reasons));
    }
    if !unavailable.is_empty() {
        return Err(CommandError::Unavailable(reasons));
    }
    Ok(ExitCode::SUCCESS)
}
