//! Drives the partitions of a configuration from the start of a run to its end. `PreparedRun::drive_all` contains the
//! steps in their order.

mod broker;
mod files;
mod management;
mod partition_factory;
mod partition_manager;
mod partition_start;
mod policies;
mod refusals;
mod report;
mod rollout;
mod sequenced_sinks;
mod share;
mod source_start;
mod status;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::error::Error as _;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, LocalBoxFuture};
use ordain_amqp::{BrokerEndpoint, BrokerError, TopologyError};
use ordain_config::numbering::{self, NumberingError};
use ordain_config::{ConfigError, LoadedConfig, SourceConfig};
use ordain_store::{InstanceId, InstanceInfo, Partition, Store, StoreError};
use ordain_util::log_throttle::LogThrottle;
use ordain_util::shutdown::shutdown_requested;
use ordain_util::wait::shortened;
use ordain_wasm::{HandlerRegistry, LoadError, WorkerPool};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};

use crate::driver::{DriverError, LossCounts};
use crate::membership::{Heartbeat, release_leases_of_dead_processes};
use crate::replay;
use crate::sink::{OutboxPublisher, PublisherError, Sinks};
use crate::source::{QueueNotifiers, watch_accepted_events};

use management::ManagementApi;
use partition_manager::PartitionManager;
use rollout::RolloutController;

pub use broker::{inspect as inspect_broker, unbind_former};
pub use files::check_files;
pub use ordain_amqp::SampledMessage;
pub use report::{HeldTotals, RunReport};
pub use status::{BrokerWait, RunPhase, RunStatus};

/// Time limit for each of two steps at the end of a run: to leave the membership, and to wait for the end of the outbox
/// publisher.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

const SERVER_CHECK_INTERVAL: Duration = Duration::from_mins(5);
/// How often the run checks whether the connection to the store broke.
const SERVER_WATCH_INTERVAL: Duration = Duration::from_secs(5);

/// A function that ends the intake of events over HTTP. If the run failed, the argument is the text of the error. After
/// a failed run, the intake must also reject the events of requests in progress.
pub type EndIntake<'a> = Box<dyn FnOnce(Option<String>) -> BoxFuture<'a, ()> + 'a>;

/// The reason why a run could not start, or ended early.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The configuration is invalid, or names a file that cannot be used now, for example because the file is missing,
    /// or because its disk is full or read-only.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A handler cannot be used.
    #[error(transparent)]
    Handler(#[from] LoadError),
    /// The store failed, is unavailable, is in use, or does not fit the configuration.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A thread cannot be started.
    #[error("a thread cannot be started: {0}")]
    Thread(io::Error),
    /// The driver of a partition failed.
    #[error("stream {stream}")]
    Driver {
        /// The stream of the partition.
        stream: Arc<str>,
        /// The error of the driver.
        source: DriverError,
    },
    /// A run with `--once` lacks the handler version for a stream's events.
    #[error(
        "stream {stream}: {reason}. --once cannot end without this version of the handler. Copy the file of this \
         version from the folder of another process, or stop the processes that have this version"
    )]
    VersionMissing {
        /// The stream whose handler version is missing.
        stream: Arc<str>,
        /// The reason why this process lacks the version.
        reason: String,
    },
    /// The broker refused a request, or is unavailable.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The outbox publisher failed: it cannot publish a committed message, or the store failed.
    #[error(transparent)]
    Publisher(#[from] PublisherError),
    /// The outbox publisher panicked.
    #[error(
        "bug in Ordain: the outbox publisher stopped; the next start publishes the committed messages"
    )]
    PublisherGone,
    /// A part of the host panicked.
    #[error("bug in Ordain: {0}")]
    Panic(tokio::task::JoinError),
}

impl From<TopologyError> for RunError {
    fn from(error: TopologyError) -> Self {
        match error {
            TopologyError::Broker(error) => error.into(),
            TopologyError::Store(error) => error.into(),
        }
    }
}

impl From<NumberingError> for RunError {
    fn from(error: NumberingError) -> Self {
        match error {
            NumberingError::Config(error) => error.into(),
            NumberingError::Store(error) => error.into(),
        }
    }
}

impl RunError {
    /// Returns whether the cause is an invalid configuration or handler, or a store or broker that does not fit the
    /// configuration.
    pub fn is_configuration(&self) -> bool {
        match self {
            Self::Broker(error) => !error.may_pass(),
            Self::Config(error) => !error.is_temporary(),
            Self::Handler(LoadError { is_temporary: false, .. })
            | Self::Store(StoreError::Unusable(_)) => true,
            _ => false,
        }
    }

    /// Returns whether the error may be temporary. In this case, the same start may succeed later.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Broker(error) => error.may_pass(),
            Self::Config(error) => error.is_temporary(),
            Self::Store(StoreError::Unavailable(_) | StoreError::InUse(_))
            | Self::VersionMissing { .. }
            | Self::Handler(LoadError { is_temporary: true, .. }) => true,
            _ => false,
        }
    }
}

/// Rejects sources that never end, because a run with `--once` waits for the end of every source.
pub fn check_once_sources(loaded: &LoadedConfig) -> Result<(), ConfigError> {
    for (name, stream) in &loaded.config.streams {
        if let SourceConfig::Amqp(_) | SourceConfig::Http(_) = stream.source {
            let message = "a queue has no end, and --once waits for the end of every source: run without --once, or \
                           use a configuration whose sources are all of kind \"file\" or \"stream\"";
            return Err(loaded.setting_error(&format!("streams.{name}.source"), message));
        }
    }
    Ok(())
}

/// Returns whether the configuration has a stream that receives its events from other streams. Such a stream may
/// receive events until the partitions of all streams are idle.
fn has_stream_source(loaded: &LoadedConfig) -> bool {
    loaded.config.streams.values().any(|stream| matches!(stream.source, SourceConfig::Stream(_)))
}

/// A run that is ready to start: the store fits the configuration, the files of sources were checked, and the files of
/// sinks are open.
pub struct PreparedRun<'a> {
    loaded: &'a LoadedConfig,
    once: bool,
    handlers: &'a Arc<HandlerRegistry>,
    store: &'a Arc<dyn Store>,
    status: &'a Arc<RunStatus>,
    id: InstanceId,
    broker: Option<Arc<BrokerEndpoint>>,
    sinks: Sinks,
    notifiers: Arc<QueueNotifiers>,
}

impl<'a> PreparedRun<'a> {
    /// Releases the leases of dead processes on this machine, checks that the store fits the configuration, checks the
    /// files of sources, and opens the files of sinks.
    ///
    /// This method and [`Self::drive`] return boxed futures, so that the compiler generates the machine code of these
    /// futures in this crate. Without the box, the compiler would generate this code in the crate that awaits the
    /// future, and would repeat this work at each change of that crate.
    pub fn prepare(
        loaded: &'a LoadedConfig,
        once: bool,
        handlers: &'a Arc<HandlerRegistry>,
        store: &'a Arc<dyn Store>,
        status: &'a Arc<RunStatus>,
    ) -> LocalBoxFuture<'a, Result<Self, RunError>> {
        Box::pin(async move {
            let id = InstanceId::random();
            release_leases_of_dead_processes(&**store).await?;
            partition_start::check_backlog(loaded, store, id).await?;
            numbering::check(loaded, &**store, id).await?;
            let broker = BrokerEndpoint::of(loaded);
            broker::record_new_streams(loaded, store, id).await?;
            let mut sinks = files::open_sinks(loaded, &**store, status).await?;
            let notifiers = Arc::default();
            sequenced_sinks::add_sequenced_sinks(loaded, store, &notifiers, &mut sinks);
            Ok(Self { loaded, once, handlers, store, status, id, broker, sinks, notifiers })
        })
    }

    /// Returns the notifiers that wake the readers of this process when this process adds entries to queues in the
    /// store.
    pub fn notifiers(&self) -> &Arc<QueueNotifiers> {
        &self.notifiers
    }

    /// Runs until `shutdown` becomes true. With `once`, also ends when every source has ended and every event is
    /// settled or held in the store. The report of a run with `once` includes the number of held events. A service (a
    /// run without `once`) does not count the held events, because the count reads the record of every key in the
    /// store.
    ///
    /// After the drivers have ended, and before the process leaves the membership, this method calls `end_intake`. If
    /// the run ends during its start, because of a shutdown or an error, the method also calls `end_intake`. If the
    /// store fails permanently, the method drops the drivers and calls `end_intake`. At its start, a run with
    /// `end_intake` waits for the broker without a time limit. A run without `end_intake` waits for at most
    /// `BROKER_START_TIMEOUT`.
    pub fn drive(
        self,
        shutdown: watch::Receiver<bool>,
        mut end_intake: Option<EndIntake<'a>>,
    ) -> LocalBoxFuture<'a, Result<RunReport, RunError>> {
        Box::pin(async move {
            let store = self.store;
            let report = tokio::select! {
                biased;
                error = store.failed() => Err(error.into()),
                report = self.drive_all(shutdown, &mut end_intake) => report,
            };
            // A run that ended during its start, or because of a failed store, has not ended the intake yet.
            if let Some(end_intake) = end_intake {
                end_intake(failure_text(&report)).await;
            }
            report
        })
    }

    async fn drive_all(
        self,
        mut shutdown: watch::Receiver<bool>,
        end_intake: &mut Option<EndIntake<'a>>,
    ) -> Result<RunReport, RunError> {
        let Self { loaded, once, handlers, store, id, broker, mut sinks, .. } = self;
        let Self { status, notifiers, .. } = self;
        let accepted = Arc::clone(&notifiers);
        let partition_counts = loaded.config.partition_counts();
        let losses = |queue: &Partition| losses_of(queue, &partition_counts, status);
        let mode = broker::StartMode { id, once, accepts_events: end_intake.is_some() };
        let broker::PreparedBroker { consumer_tag, gates, monitors } = tokio::select! {
            prepared = broker::prepare(
                loaded, store, broker.as_ref(), mode, status, &notifiers, &mut sinks
            ) => prepared?,
            () = shutdown_requested(&mut shutdown) => return Ok(RunReport::default()),
        };
        let pool = WorkerPool::start(&handlers.engine).map_err(RunError::Thread)?;
        let (committed, batches) =
            mpsc::channel(partition_start::unpublished_batch_limit(&loaded.config));
        let (commands, command_receiver) = mpsc::channel(1);
        policies::report_unread_settings(loaded);
        let management = broker.as_ref().and_then(|broker| ManagementApi::of(loaded, broker));
        let policies =
            policies::QueuePolicies::of(loaded, management.as_ref(), Some(&consumer_tag));
        let factory = partition_factory::PartitionFactory {
            loaded,
            once,
            store,
            pool: &pool,
            handlers,
            broker,
            consumer_tag,
            management,
            replay_limits: replay::ReplayLimits::of(&loaded.config),
            notifiers,
            may_end: watch::Sender::new(!once || !has_stream_source(loaded)),
            consumers: RefCell::default(),
            gates,
            committed_batches: committed,
            publisher_commands: commands,
        };
        let publisher = OutboxPublisher::new(
            Arc::clone(store),
            sinks,
            partition_start::backlog_bytes_limit(&loaded.config),
            status.published_counts(),
        );
        let mut publishing = JoinSet::new();
        publishing.spawn(publisher.run(batches, command_receiver));

        let lease = Duration::from_millis(loaded.config.runtime.lease.0);
        let info = InstanceInfo {
            offers: handlers.offered_builds(),
            refused_streams: refusals::refused_streams(&monitors),
            ..InstanceInfo::of_this_process(loaded.config.partition_counts(), once)
        };
        let mut heartbeat = tokio::select! {
            heartbeat = Heartbeat::start(store, id, info, lease) => heartbeat?,
            () = shutdown_requested(&mut shutdown) => {
                // Remove the instance, because the store may already list it as a member.
                let _ = tokio::time::timeout(LEAVE_TIMEOUT, store.remove_instance(id)).await;
                return Ok(RunReport::default());
            }
        };
        status.set_lease(heartbeat.lease_until());
        let membership = heartbeat.membership();
        let versions = RolloutController::new(loaded, store, handlers, membership.clone());
        let partitions = async {
            numbering::check(loaded, &**store, id).await?;
            PartitionManager::new(&factory, status, &mut heartbeat).run(shutdown).await
        };
        let unpublished = tokio::select! {
            unpublished = partitions => unpublished,
            Some(ended) = publishing.join_next() => publisher_result(ended).map(|()| 0),
            error = versions.run(once) => Err(error),
            () = watch_store_servers(store) => Ok(0),
            () = policies::watch(policies, status) => Ok(0),
            () = refusals::watch(loaded, factory.broker.as_ref(), monitors, &membership) => Ok(0),
            () = watch_accepted_events(store, &accepted, losses) => Ok(0),
        };
        if unpublished.is_err() {
            // This instance no longer drives any partition. The next owner of each partition publishes the messages
            // that this instance left unpublished.
            publishing.shutdown().await;
        }
        if let Some(end_intake) = end_intake.take() {
            end_intake(failure_text(&unpublished)).await;
        }
        // Leave the membership even after a failed run, so that the other instances need not wait until the leases
        // expire.
        heartbeat.stop().await;
        let forgotten = tokio::time::timeout(LEAVE_TIMEOUT, store.remove_instance(id)).await;
        let unpublished = unpublished?;
        forgotten.unwrap_or(Ok(()))?;
        // The outbox publisher ends when all senders of its channels are dropped.
        drop(factory);
        end_publishing(publishing, unpublished).await?;
        store.flush().await?;
        let held = if once { Some(HeldTotals::count(&**store).await?) } else { None };
        Ok(RunReport { stats: status.total_stats(), held })
    }
}

/// Ends the outbox publisher. `unpublished` is the number of messages that the drivers have left unpublished.
async fn end_publishing(
    mut publishing: JoinSet<Result<(), PublisherError>>,
    unpublished: usize,
) -> Result<(), RunError> {
    // Even if the drivers have left no message unpublished, the outbox publisher may still have messages of
    // partitions whose drivers had not started yet.
    let ended = match unpublished {
        0 => tokio::time::timeout(LEAVE_TIMEOUT, publishing.join_next()).await.ok(),
        _ => None,
    };
    if let Some(ended) = ended {
        ended.map_or(Ok(()), publisher_result)?;
    } else {
        tracing::warn!(
            messages = (unpublished > 0).then_some(unpublished),
            "committed messages left unpublished: the store keeps the messages, and the next start, or another \
             instance, publishes them"
        );
    }
    // Stop the outbox publisher, although the broker has possibly not confirmed all messages. The next owner of
    // each partition publishes the unconfirmed messages again.
    publishing.abort_all();
    Ok(())
}

/// Returns the text of the error, with its causes, if a run has failed.
fn failure_text<T>(result: &Result<T, RunError>) -> Option<String> {
    let error = result.as_ref().err()?;
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    Some(text)
}

/// Returns the counts of the losses of a queue. The queue of events without a known partition has the number that
/// follows the highest partition number. The metrics of partition 0 count the losses of this queue.
fn losses_of(
    queue: &Partition,
    partition_counts: &BTreeMap<String, u32>,
    status: &RunStatus,
) -> Arc<LossCounts> {
    let is_unrouted = partition_counts.get(&*queue.stream) == Some(&queue.number);
    let number = if is_unrouted { 0 } else { queue.number };
    let partition = Partition { number, ..queue.clone() };
    Arc::clone(&status.partition(&partition).losses)
}

/// Checks the settings of the store's servers regularly, and soon after a connection to the store broke. Never returns.
async fn watch_store_servers(store: &Arc<dyn Store>) {
    let mut disconnects = store.disconnects();
    let mut checked_at = Instant::now();
    let mut is_due = false;
    let mut throttle = LogThrottle::new(shortened(SERVER_CHECK_INTERVAL));
    loop {
        tokio::time::sleep(shortened(SERVER_WATCH_INTERVAL)).await;
        let before = std::mem::replace(&mut disconnects, store.disconnects());
        is_due |= disconnects != before || checked_at.elapsed() >= shortened(SERVER_CHECK_INTERVAL);
        if !is_due {
            continue;
        }
        match store.check_servers().await {
            Ok(finding) => {
                is_due = false;
                checked_at = Instant::now();
                if let Some(words) = finding {
                    tracing::error!("store may lose data: {words}");
                }
            }
            // The check stays due, so the next pass of the loop repeats the check. The check may fail several times,
            // for example until a replica becomes the master.
            Err(error) if throttle.allow() => {
                tracing::warn!(
                    "settings of the store's servers not checked: {error}; Ordain repeats the check"
                );
            }
            Err(_) => {}
        }
    }
}

fn publisher_result(ended: Result<Result<(), PublisherError>, JoinError>) -> Result<(), RunError> {
    Ok(ended.map_err(|_| RunError::PublisherGone)??)
}
