//! `ordain run`: runs the streams of a configuration.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio::sync::watch;

use super::logs::LogFormat;
use crate::cli::{CommandError, EXIT_FAILED, EXIT_UNAVAILABLE, FileArg};
use crate::signals::{EndSignal, EndSignals};
use crate::store::{StoreAccess, open_store};
use crate::{status, totals};
use ordain_config::{LoadedConfig, StoreConfig};
use ordain_engine::run::{
    EndIntake, PreparedRun, RunError, RunReport, RunStatus, check_once_sources,
};
use ordain_http::admin::AdminListener;
use ordain_http::ingress::IngressListener;
use ordain_store::Store;
use ordain_util::command::{admin_option, set_process_option};
use ordain_util::shutdown::shutdown_requested;
use ordain_util::text::print_lossy;
use ordain_wasm::HandlerRegistry;

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    config: FileArg,
    /// Exit when every source has ended, and every event is settled (ended with or without effect) or held (waits in
    /// the store). All sources must be of kind `file` or `stream`, because sources of kind `amqp` and `http` have no
    /// end.
    #[arg(long)]
    once: bool,
    /// With --once: exit with 1 if an event became a dead letter or is held, or if a key is blocked (waits for an event
    /// or a retry, or is parked).
    #[arg(long, requires = "once")]
    strict: bool,
    /// Print the report as JSON to standard output. If a sink writes to standard output, print the report to standard
    /// error.
    #[arg(long)]
    json: bool,
}

impl RunArgs {
    pub(crate) fn run(self, log: LogFormat) -> Result<ExitCode, CommandError> {
        let loaded = self.config.load()?;
        let runtime = crate::runtime::new()?;
        let report = runtime.block_on(self.run_to_end(&loaded));
        let (report, code) = match report {
            Ok(Some(ended)) => {
                runtime.shutdown_timeout(Duration::from_millis(100));
                ended
            }
            cut_short => {
                // If the tokio runtime shut down now, tasks that are still running would panic. Without a shutdown, the
                // tasks end with the process.
                std::mem::forget(runtime);
                return cut_short.map(|_| ExitCode::from(EXIT_FAILED));
            }
        };
        self.print_report(&report, &loaded, log)?;
        let failed = self.strict && report.has_problems();
        Ok(if failed { ExitCode::from(EXIT_FAILED) } else { code })
    }

    /// Prints the report:
    ///
    /// - With `--json`: as JSON to standard output. If a sink writes messages to standard output, as JSON to standard
    ///   error.
    /// - With `--once` but without `--json`: to standard error, as JSON if the log is JSON, otherwise as text.
    /// - With neither `--json` nor `--once`: not at all.
    ///
    /// Without `--once`, also logs the totals.
    fn print_report(
        &self,
        report: &RunReport,
        loaded: &LoadedConfig,
        log: LogFormat,
    ) -> std::io::Result<()> {
        if self.json && !loaded.config.writes_standard_output() {
            super::show::json(&report.json(), true)?;
        } else if self.json || (self.once && log == LogFormat::Json) {
            print_lossy(&report.json().to_string());
        } else if self.once {
            print_lossy(report.text().trim_end());
        }
        if !self.once {
            totals::log("run ended: totals of the run", &report.stats);
        }
        Ok(())
    }

    /// Runs the streams until the run ends by itself or a signal ends it, and returns the report and the exit code.
    /// Returns `None` if the run did not end in time after a signal: the grace period elapsed, or a second signal
    /// (SIGTERM, SIGINT or SIGQUIT) arrived.
    async fn run_to_end(
        &self,
        loaded: &LoadedConfig,
    ) -> Result<Option<(RunReport, ExitCode)>, CommandError> {
        let figures = Arc::<RunStatus>::default();
        let (stop, shutdown) = watch::channel(false);
        let mut run = std::pin::pin!(run(loaded, self.once, shutdown, &figures));
        let mut signals = EndSignals::new()?;
        let shown = Arc::clone(&figures);
        let status = tokio::spawn(async move { status::show(&shown).await });
        let counted = Arc::clone(&figures);
        let totals = tokio::spawn(async move { totals::log_changes(&counted).await });
        let grace = loaded.config.runtime.shutdown_grace.duration();
        let result = tokio::select! {
            result = &mut run => result.map(|report| Some((report, ExitCode::SUCCESS))),
            signal = signals.any() => {
                let code = if signal.is_stop { 0 } else { EXIT_UNAVAILABLE };
                let report = shut_down(signal, &stop, run, grace, &mut signals).await;
                report.map(|report| Some((report?, ExitCode::from(code))))
            }
        };
        status.abort();
        totals.abort();
        result
    }
}

/// Runs the streams until `shutdown` becomes true. With `once`, the run also ends when two conditions hold: every
/// source has ended, and every event is settled (ended with or without effect) or held (waits in the store). Starts the
/// admin listener, loads the handlers, opens the store and runs the engine, in this order.
async fn run(
    loaded: &LoadedConfig,
    once: bool,
    shutdown: watch::Receiver<bool>,
    figures: &Arc<RunStatus>,
) -> Result<RunReport, CommandError> {
    loaded.check_supported()?;
    for warning in loaded.warnings() {
        tracing::warn!("risky setting: {warning}");
    }
    if once {
        check_once_sources(loaded)?;
    }
    let admin = AdminListener::listen(loaded, once, figures, &shutdown).await?;
    let admin_url = admin.as_ref().map(AdminListener::url);
    // If the store is embedded, a command finds this process by itself.
    if let (Some(url), StoreConfig::Redis(_)) = (admin_url, &loaded.config.store) {
        set_process_option(admin_option(url));
    }
    let report = start(loaded, once, admin_url, shutdown, figures).await;
    if let Some(admin) = admin {
        admin.end().await;
    }
    report
}

/// Loads the handlers, opens the store, and runs the engine. If `shutdown` becomes true before the store is open,
/// returns an empty report.
async fn start(
    loaded: &LoadedConfig,
    once: bool,
    admin_url: Option<&str>,
    mut shutdown: watch::Receiver<bool>,
    figures: &Arc<RunStatus>,
) -> Result<RunReport, CommandError> {
    // The compilation of a handler takes seconds, so a shutdown does not wait for its end.
    let to_load = loaded.clone();
    let loading = tokio::task::spawn_blocking(move || ordain_wasm::load_handlers(&to_load));
    let handlers = tokio::select! {
        handlers = loading => Arc::new(handlers.map_err(RunError::Panic)??),
        () = shutdown_requested(&mut shutdown) => return Ok(RunReport::default()),
    };
    figures.set_handlers(&handlers);
    let store = tokio::select! {
        store = open_store(loaded, None, StoreAccess::Write { admin_url }) => store?,
        () = shutdown_requested(&mut shutdown) => return Ok(RunReport::default()),
    };
    let durability = store.durability();
    if durability.is_at_risk {
        tracing::warn!("{}", durability.description);
    } else {
        tracing::info!("{}", durability.description);
    }
    figures.set_store(&store);
    let report = drive(loaded, once, &handlers, &store, shutdown, figures).await;
    figures.release_store();
    report
}

/// Runs the partitions and, without `once`, the ingress (the listener that accepts events over HTTP), until the run
/// ends.
async fn drive(
    loaded: &LoadedConfig,
    once: bool,
    handlers: &Arc<HandlerRegistry>,
    store: &Arc<dyn Store>,
    shutdown: watch::Receiver<bool>,
    figures: &Arc<RunStatus>,
) -> Result<RunReport, CommandError> {
    let run = tokio::select! {
        biased;
        error = store.failed() => return Err(error.into()),
        run = PreparedRun::prepare(loaded, once, handlers, store, figures) => run?,
    };
    // With `once`, there is no ingress, because a run that accepts events over HTTP would never end. Without `once`,
    // the ingress listens before the process connects to the broker, so that producers can send events even if the
    // broker is unavailable.
    let ingress = if once {
        None
    } else {
        IngressListener::listen(loaded, store, run.notifiers(), figures, &shutdown).await?
    };
    let end_intake =
        ingress.map(|ingress| Box::new(|failure| ingress.end(failure)) as EndIntake<'_>);
    Ok(run.drive(shutdown, end_intake).await?)
}

/// Requests the shutdown, and waits until the run has ended, the grace period elapses, or a second signal (SIGTERM,
/// SIGINT or SIGQUIT) arrives. Returns `None` if the run has not ended.
async fn shut_down(
    signal: EndSignal,
    stop: &watch::Sender<bool>,
    run: impl Future<Output = Result<RunReport, CommandError>>,
    grace: Duration,
    signals: &mut EndSignals,
) -> Result<Option<RunReport>, CommandError> {
    tracing::info!(
        ?grace,
        signal = signal.name,
        "shutting down: finishing and committing running events; a second signal ends the process now"
    );
    if !signal.is_stop {
        tracing::warn!(
            signal = signal.name,
            "unexpected signal: the process ends as after SIGTERM, but with exit code {EXIT_UNAVAILABLE}, so that a \
             supervisor starts it again"
        );
    }
    stop.send_replace(true);
    tokio::select! {
        result = run => Ok(Some(result?)),
        () = tokio::time::sleep(grace) => {
            tracing::warn!(
                ?grace,
                "shutdown incomplete: `runtime.shutdown_grace` elapsed, so the process ends now; the next start, or \
                 another instance, executes the uncommitted events again and publishes the unpublished messages"
            );
            Ok(None)
        }
        _ = signals.stop() => Ok(None),
    }
}
