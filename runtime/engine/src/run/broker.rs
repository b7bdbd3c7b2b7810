//! Prepares the broker of a configuration: declares or checks the exchanges and queues of streams and sinks, before the
//! process drives any partition.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::try_join_all;
use ordain_core::OrderingMode;
use tokio::time::Instant;

use super::management::ManagementApi;
use super::refusals::{RefusalMonitor, refusal};
use super::{RunError, RunStatus, policies};
use crate::sink::Sinks;
use crate::source::QueueNotifiers;
use ordain_amqp::{
    Binding, BindingList, BrokerEndpoint, BrokerError, ExchangeSink, PREPARE_TIMEOUT,
    PreparedTopology, SampledMessage, Topology, TopologyError, TopologyGate, TopologyRecord,
    consumer_tag, inspect_broker, no_delivery_limit_command, prepare_timeout, prepare_topology,
    sample_queues, unbind, with_store_timeout,
};
use ordain_config::NumberingPolicy;
use ordain_config::{LoadedConfig, SinkConfig, SourceConfig};
use ordain_store::{InstanceId, InstanceInfo, QueueRecords, Store, StoreError};
use ordain_util::command::PrintedCommand;
use ordain_util::finding::InspectedServer;
use ordain_util::log_throttle::LogThrottle;
use ordain_util::wait::shortened;

/// Maximum time that a start waits for a broker that is unavailable, if the process does not accept events over HTTP
/// during this wait.
const BROKER_START_TIMEOUT: Duration = Duration::from_secs(30);
/// Delay before the process retries an action that failed because of the broker or the store.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// Time between two warnings about an action that the process retries during its start.
const WARN_INTERVAL: Duration = Duration::from_secs(5);

/// The properties of a run on which its start depends.
#[derive(Debug, Clone, Copy)]
pub(super) struct StartMode {
    pub(super) id: InstanceId,
    /// True if the run ends when every source has ended.
    pub(super) once: bool,
    /// True if the process accepts events over HTTP during the start.
    pub(super) accepts_events: bool,
}

#[derive(Default)]
pub(super) struct PreparedBroker {
    /// An empty text without a broker.
    pub(super) consumer_tag: Arc<str>,
    /// The gates of the streams with a source in the broker. A gate is closed while the broker refuses the topology of
    /// a new stream.
    pub(super) gates: BTreeMap<Arc<str>, TopologyGate>,
    /// The monitors of these streams, which know whether the broker refuses the topology of a stream.
    pub(super) monitors: Vec<RefusalMonitor>,
}

/// Records which streams are new: the streams with a source in the broker and without data in the store. For each of
/// these streams, records that the broker has not accepted the stream yet. If another process can consume the stream,
/// the broker has already accepted the stream for that process. In this case, this function does not change the record
/// of the stream. The caller calls this function before the process accepts events over HTTP, because such events leave
/// data of the stream in the store.
pub(super) async fn record_new_streams(
    loaded: &LoadedConfig,
    store: &Arc<dyn Store>,
    id: InstanceId,
) -> Result<(), StoreError> {
    let with_data = store.streams().await?;
    let others = InstanceInfo::of_other_instances(&store.table().await?, id);
    for name in loaded.config.streams.keys() {
        let has_data = with_data.iter().any(|known| **known == **name);
        if has_queue(loaded, name) && !has_data && !is_accepted_by_any(&others, name) {
            let awaiting = |record: &mut TopologyRecord| record.awaits_acceptance = true;
            TopologyRecord::update(store, name, awaiting).await?;
        }
    }
    Ok(())
}

/// Declares or checks the exchanges and queues of streams, and opens the exchange sinks, as soon as the broker is
/// available. Prepares all streams concurrently, so that a queue that does not answer delays no other stream. After an
/// error that concerns the whole process, waits for the broker. The wait takes at most `BROKER_START_TIMEOUT`; if the
/// process accepts events over HTTP, the wait has no time limit. Records this wait in `status`. If the broker refuses a
/// new stream or a sink, the start continues: this stream or sink waits, and Ordain retries. But while other processes
/// run, such a refusal is an error. This process would take partitions from the other processes, but could not execute
/// the events or publish the messages of these partitions. The exception is a refused stream that another process can
/// consume: this process then starts, and takes no partitions of the stream. A run with `once` ends when all messages
/// are published. In such a run, a refused sink is also an error.
pub(super) async fn prepare(
    loaded: &LoadedConfig,
    store: &Arc<dyn Store>,
    broker: Option<&Arc<BrokerEndpoint>>,
    mode: StartMode,
    status: &RunStatus,
    notifiers: &Arc<QueueNotifiers>,
    sinks: &mut Sinks,
) -> Result<PreparedBroker, RunError> {
    let Some(broker) = broker else { return Ok(PreparedBroker::default()) };
    let list = ManagementApi::of(loaded, broker).map(|api| api as Arc<dyn BindingList>);
    let throttle = Mutex::new(LogThrottle::new(WARN_INTERVAL));
    let patience = (!mode.accepts_events).then(|| shortened(BROKER_START_TIMEOUT));
    let retries = StartRetries { broker, patience, status, throttle };
    let streams = StreamTopology::all(loaded, store, list.as_ref()).await?;
    let preparations = streams.into_iter().map(async |stream| {
        let prepare = async || {
            let mut prepared = stream.prepare(broker).await?;
            if !stream.is_known
                && prepared.error.is_some()
                && would_take_from_others(&others(store, mode.id).await?, stream.name())
                && let Some(error) = prepared.error.take()
            {
                return Err(TopologyError::from(error.into_refusal_while_others_run()));
            }
            Ok(prepared)
        };
        let prepared = retries.run(prepare_timeout(&stream.topology), prepare).await?;
        report_prepared(loaded, broker, stream.name(), &prepared, stream.is_known);
        let refusal = refusal(prepared.error.as_ref(), stream.is_known);
        Ok::<_, TopologyError>((stream, refusal))
    });
    let mut prepared = PreparedBroker::default();
    for (stream, refusal) in try_join_all(preparations).await? {
        let name = Arc::clone(stream.records.stream());
        let (monitor, gate) = RefusalMonitor::new(stream, refusal);
        prepared.gates.insert(name, gate);
        prepared.monitors.push(monitor);
    }
    for (name, sink) in &loaded.config.sinks {
        let SinkConfig::Amqp(config) = sink else { continue };
        let open = async || {
            let has_others = !others(store, mode.id).await?.is_empty();
            let opened = ExchangeSink::open(name, config, broker, mode.once || has_others).await;
            let described = |error: BrokerError| {
                if has_others { error.into_refusal_while_others_run() } else { error }
            };
            opened.map_err(|error| TopologyError::from(described(error)))
        };
        let opened = retries.run(PREPARE_TIMEOUT, open).await?;
        status.add_sink(name, opened.health());
        match NumberingPolicy::for_sink(&loaded.config, name, sink, store.shards()) {
            Some(policy) => sinks.add_sequenced(name, policy, Some(opened), store, notifiers),
            None => sinks.add_exchange(name, opened),
        }
    }
    let tag = async || consumer_tag(store).await.map_err(TopologyError::from);
    prepared.consumer_tag = retries.run(PREPARE_TIMEOUT, tag).await?;
    status.end_broker_wait();
    Ok(prepared)
}

/// Returns the other members.
async fn others(store: &Arc<dyn Store>, id: InstanceId) -> Result<Vec<InstanceInfo>, StoreError> {
    let table = with_store_timeout(store.table()).await?;
    Ok(InstanceInfo::of_other_instances(&table, id))
}

/// Returns whether any of these instances meets two conditions: the broker accepts the stream for the instance, and the
/// instance shares the partitions of the stream with other instances.
fn is_accepted_by_any(instances: &[InstanceInfo], stream: &str) -> bool {
    let accepts = |info: &InstanceInfo| info.accepted_streams().any(|accepted| accepted == stream);
    instances.iter().any(|info| !info.leaving && !info.alone && accepts(info))
}

/// Returns whether a start with a refused new stream would take partitions from the other instances `others`. If the
/// broker accepts the stream for another instance, the refused process gets no partitions of the stream.
fn would_take_from_others(others: &[InstanceInfo], stream: &str) -> bool {
    !others.is_empty() && !is_accepted_by_any(others, stream)
}

/// The topology of a stream that has a source in the broker.
pub(super) struct StreamTopology {
    ordering: OrderingMode,
    topology: Topology,
    records: QueueRecords,
    /// True if the store has data of the stream, and the stream does not wait for its first acceptance by the broker.
    /// Also true after the broker has accepted the stream for this process. A stream that is not known is new.
    pub(super) is_known: bool,
    list: Option<Arc<dyn BindingList>>,
}

impl StreamTopology {
    async fn all(
        loaded: &LoadedConfig,
        store: &Arc<dyn Store>,
        list: Option<&Arc<dyn BindingList>>,
    ) -> Result<Vec<Self>, StoreError> {
        let with_data = store.streams().await?;
        let mut streams = Vec::new();
        for (name, stream) in &loaded.config.streams {
            if let SourceConfig::Amqp(source) = &stream.source {
                let has_data = with_data.iter().any(|known| **known == **name);
                let record = TopologyRecord::read(store, name).await?;
                streams.push(Self {
                    ordering: stream.ordering,
                    topology: Topology::of(source),
                    records: QueueRecords::new(store, &name.shared()),
                    is_known: has_data && !record.awaits_acceptance,
                    list: list.cloned(),
                });
            }
        }
        Ok(streams)
    }

    pub(super) fn name(&self) -> &str {
        self.records.stream()
    }

    /// Returns whether a process has run the stream: the stream has data in the store, and the broker has accepted its
    /// topology.
    pub(super) async fn has_run(&self) -> Result<bool, StoreError> {
        let store = self.records.store();
        let with_data = store.streams().await?;
        let record = TopologyRecord::read(store, self.records.stream()).await?;
        Ok(with_data.iter().any(|known| **known == *self.name()) && !record.awaits_acceptance)
    }

    /// Prepares the topology within the time limit for a preparation.
    pub(super) async fn prepare_in_time(
        &self,
        broker: &BrokerEndpoint,
    ) -> Result<PreparedTopology, TopologyError> {
        // The operator may have upgraded the broker.
        broker.forget_version();
        broker.within(prepare_timeout(&self.topology), self.prepare(broker)).await
    }

    async fn prepare(&self, broker: &BrokerEndpoint) -> Result<PreparedTopology, TopologyError> {
        let Self { ordering, topology, records, is_known, list } = self;
        let is_fifo = *ordering == OrderingMode::Fifo;
        prepare_topology(topology, broker, records, is_fifo, *is_known, list.as_ref()).await
    }
}

/// Inspects the broker for at most the time `limit`, and changes nothing in it. Also receives at most `sample` messages
/// of each queue, and returns them to the queue. The result contains the findings, and shows how the streams would read
/// the messages. Returns `None` if the configuration has no broker.
pub async fn inspect(
    loaded: &LoadedConfig,
    limit: Duration,
    sample: Option<u16>,
) -> Option<(InspectedServer, Vec<SampledMessage>)> {
    let broker = BrokerEndpoint::of(loaded)?;
    let mut samples = Vec::new();
    let inspected =
        InspectedServer::inspect("broker", broker.to_string(), limit, async |findings| {
            inspect_broker(&broker, loaded, findings).await;
            policies::inspect(loaded, &broker, findings).await;
            if let Some(count) = sample {
                sample_queues(&broker, loaded, count, findings, &mut samples).await;
            }
        })
        .await;
    Some((inspected, samples))
}

/// Logs the problems that were found while a stream's topology (exchange, queues and bindings) was prepared. Does not
/// log the refusal of a new stream, because the retries log this refusal.
pub(super) fn report_prepared(
    loaded: &LoadedConfig,
    broker: &BrokerEndpoint,
    stream: &str,
    prepared: &PreparedTopology,
    is_known: bool,
) {
    let PreparedTopology { limited_queues, former_bindings, error } = prepared;
    match error.as_ref().filter(|_| is_known) {
        None => {}
        Some(BrokerError::Unavailable(reason)) => tracing::error!(
            stream,
            "topology not checked (exchange, queues and bindings): {reason}; the stream starts, and its consumers retry"
        ),
        Some(error) => tracing::error!(
            stream,
            "topology not as configured (exchange, queues or bindings): {error}; the stream starts, and its consumers \
             retry"
        ),
    }
    if !limited_queues.is_empty() {
        tracing::warn!(
            stream,
            queues = limited_queues.join(", "),
            "queue declared under RabbitMQ 3: RabbitMQ 4 delivers each message of the queue at most 20 times, and then \
             moves the message to the queue whose name ends with .dropped. Remove the limit with a policy: {}",
            no_delivery_limit_command(broker, stream, limited_queues)
        );
    }
    for binding in former_bindings {
        if is_shared(loaded, stream, binding) {
            continue;
        }
        tracing::warn!(
            stream,
            "binding of an earlier configuration may still deliver messages: {binding}; remove all such bindings \
             with {}",
            PrintedCommand::new("streams unbind").argument(stream)
        );
    }
}

/// The retries of actions at the start of a run.
struct StartRetries<'a> {
    broker: &'a BrokerEndpoint,
    /// The time for which an action is retried, from the first error of the action on. `None` means no limit.
    patience: Option<Duration>,
    status: &'a RunStatus,
    /// Limits the warnings about the unavailable broker, which all concurrent actions have at the same time.
    throttle: Mutex<LogThrottle>,
}

impl StartRetries<'_> {
    /// Retries an action while its error may be temporary. Returns a permanent error without a retry. `limit` is the
    /// time limit of each attempt. Records in the status that the process waits for the broker; the caller removes this
    /// record.
    async fn run<T>(
        &self,
        limit: Duration,
        work: impl AsyncFn() -> Result<T, TopologyError>,
    ) -> Result<T, TopologyError> {
        let mut throttle = LogThrottle::new(WARN_INTERVAL);
        let mut until = None;
        loop {
            let error = match self.broker.within(limit, work()).await {
                Err(error) if error.may_pass() => error,
                done => return done,
            };
            match &error {
                TopologyError::Broker(error) => self.status.begin_broker_wait(error),
                TopologyError::Store(_) => self.status.end_broker_wait(),
            }
            // The preparation of a stream whose queue does not answer can take minutes, so the time limit begins with
            // the first error.
            let now = Instant::now();
            until = until.or_else(|| Some(now + self.patience?));
            if until.is_some_and(|until| now >= until) {
                return Err(describe_lasting(error));
            }
            // The broker may be upgraded before the next attempt.
            self.broker.forget_version();
            self.warn(&error, &mut throttle);
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }

    /// Logs a warning about an error that is retried. `throttle` limits the warnings that concern only one action.
    fn warn(&self, error: &TopologyError, throttle: &mut LogThrottle) {
        match error {
            TopologyError::Broker(BrokerError::Unavailable(reason)) => {
                if self.throttle.lock().unwrap_or_else(PoisonError::into_inner).allow() {
                    tracing::warn!(
                        "broker unavailable: {reason}; waiting for it to become available"
                    );
                }
            }
            TopologyError::Broker(
                BrokerError::Refused { reason, .. } | BrokerError::LoginRefused { reason, .. },
            ) => {
                if throttle.allow() {
                    tracing::warn!("request refused by the broker: {reason}; retrying");
                }
            }
            TopologyError::Store(error) => {
                if throttle.allow() {
                    tracing::warn!(
                        "cannot access the records of queues and bindings in the store: {error}; retrying"
                    );
                }
            }
        }
    }
}

/// Describes an error that remains after all retries.
fn describe_lasting(error: TopologyError) -> TopologyError {
    match error {
        TopologyError::Broker(BrokerError::Unavailable(reason)) => {
            let reason = format!(
                "{reason}. The broker stayed unavailable: is RabbitMQ running at `broker.url`?"
            );
            BrokerError::Unavailable(reason).into()
        }
        error => error,
    }
}

/// Returns whether a stream is configured with a source in the broker.
pub(super) fn has_queue(loaded: &LoadedConfig, stream: &str) -> bool {
    let configured = loaded.config.streams.get(stream);
    configured.is_some_and(|stream| matches!(stream.source, SourceConfig::Amqp(_)))
}

/// Updates the former bindings in a stream's record. A former binding is a binding that only earlier configurations
/// needed. If the stream no longer has a source in the broker, all its bindings become former bindings. A binding that
/// any configured stream needs is not a former binding.
pub(super) fn update_record(loaded: &LoadedConfig, stream: &str, record: &mut TopologyRecord) {
    if !has_queue(loaded, stream) {
        record.replace_bindings(BTreeSet::new());
    }
    for configured in loaded.config.streams.values() {
        if let SourceConfig::Amqp(source) = &configured.source {
            let bindings = Topology::of(source).bindings();
            record.former.retain(|former| !bindings.contains(former));
        }
    }
}

/// Returns whether another stream possibly needs a binding, because the binding leads to the exchange of that stream.
fn is_shared(loaded: &LoadedConfig, stream: &str, binding: &Binding) -> bool {
    loaded.config.streams.iter().any(|(name, configured)| {
        let SourceConfig::Amqp(source) = &configured.source else { return false };
        **name != *stream && binding.leads_to_exchange(Topology::of(source).exchange())
    })
}

/// Removes the bindings that only earlier configurations of the stream needed. If the stream no longer has a source in
/// the broker, these are all its bindings. Keeps the bindings that another stream possibly needs. Returns the removed
/// bindings. The operator must first give all processes the new configuration, because a process with an earlier
/// configuration would restore the bindings.
pub async fn unbind_former(
    loaded: &LoadedConfig,
    store: &Arc<dyn Store>,
    stream: &str,
) -> Result<BTreeSet<Binding>, RunError> {
    let members = store.table().await?.members;
    let mut infos = members.values().map(|member| InstanceInfo::decode(&member.info));
    if !has_queue(loaded, stream)
        && let Some(other) = infos.find(|info| info.streams.contains_key(stream))
    {
        let words = format!(
            "the bindings of stream {stream} cannot be removed: the process {} runs this stream, but this \
             configuration has no stream {stream} with a source of kind = \"amqp\". Use the configuration of that \
             process",
            other.name
        );
        return Err(RunError::Config(loaded.setting_error("streams", words)));
    }
    let mut record = TopologyRecord::read(store, stream).await?;
    update_record(loaded, stream, &mut record);
    let mut removed = record.former;
    removed.retain(|former| !is_shared(loaded, stream, former));
    if !removed.is_empty() {
        let Some(broker) = BrokerEndpoint::of(loaded) else {
            let words = "the bindings are in a broker: configure [broker] to remove them";
            return Err(RunError::Config(loaded.setting_error("broker", words)));
        };
        unbind(&broker, &removed).await?;
    }
    TopologyRecord::update(store, stream, |record| {
        update_record(loaded, stream, record);
        record.former.retain(|former| !removed.contains(former));
    })
    .await?;
    store.flush().await?;
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn refused_start_takes_nothing_if_another_instance_can_consume_the_stream() {
        let streams = BTreeMap::from([("orders".to_owned(), 4)]);
        let accepted = InstanceInfo { streams, ..InstanceInfo::default() };
        let refused_streams = BTreeSet::from(["orders".to_owned()]);
        let refused = InstanceInfo { refused_streams, ..accepted.clone() };
        let leaving = InstanceInfo { leaving: true, ..accepted.clone() };
        let alone = InstanceInfo { alone: true, ..accepted.clone() };
        assert!(!would_take_from_others(&[], "orders"), "no other process runs");
        assert!(!would_take_from_others(&[refused.clone(), accepted.clone()], "orders"));
        assert!(would_take_from_others(&[accepted], "bills"), "no other process runs the stream");
        for other in [refused, leaving, alone] {
            assert!(would_take_from_others(std::slice::from_ref(&other), "orders"), "{other:?}");
        }
    }

    async fn retried(attempt: Duration, failures: u32) -> Result<u32, TopologyError> {
        let text = "[broker]\nurl = \"amqp://localhost\"\n[streams.a]\nhandler = \"h\"\n\
                    source = { kind = \"amqp\", exchange = \"a\", queue = \"a\" }\n";
        let loaded = LoadedConfig::parse(Path::new("ordain.toml"), text, &|_| None);
        let broker = BrokerEndpoint::of(&loaded.expect("a configuration")).expect("a broker");
        let status = RunStatus::default();
        let throttle = Mutex::new(LogThrottle::new(WARN_INTERVAL));
        let patience = Some(BROKER_START_TIMEOUT);
        let retries = StartRetries { broker: &broker, patience, status: &status, throttle };
        let attempts = AtomicU32::new(0);
        let work = async || {
            tokio::time::sleep(attempt).await;
            let number = attempts.fetch_add(1, Ordering::Relaxed);
            if number < failures {
                return Err(BrokerError::Unavailable("no answer".to_owned()).into());
            }
            Ok(number)
        };
        retries.run(PREPARE_TIMEOUT, work).await
    }

    #[tokio::test(start_paused = true)]
    async fn slow_first_attempt_leaves_time_for_a_retry() {
        assert_eq!(retried(Duration::from_mins(1), 1).await.expect("a retry"), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn retries_end_after_the_patience() {
        let error = retried(Duration::ZERO, u32::MAX).await.expect_err("no end");
        assert!(error.to_string().contains("is RabbitMQ running at `broker.url`?"), "{error}");
    }
}
