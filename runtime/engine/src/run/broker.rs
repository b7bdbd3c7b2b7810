//! Prepares the broker of a configuration: declares or checks the exchanges and queues of streams and sinks, before the
//! process drives any partition.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ordain_core::OrderingMode;

use super::management::ManagementApi;
use super::{RunError, RunStatus, policies};
use crate::sink::Sinks;
use crate::source::QueueNotifiers;
use ordain_amqp::{
    Binding, BindingList, BrokerEndpoint, BrokerError, ExchangeSink, PREPARE_TIMEOUT,
    PreparedTopology, SampledMessage, Topology, TopologyError, TopologyRecord, consumer_tag,
    inspect_broker, no_delivery_limit_command, prepare_topology, sample_queues, unbind,
};
use ordain_config::NumberingPolicy;
use ordain_config::{LoadedConfig, SinkConfig, SourceConfig};
use ordain_store::{InstanceInfo, QueueRecords, Store};
use ordain_util::finding::InspectedServer;
use ordain_util::log_throttle::LogThrottle;

/// Maximum time that a start waits for a broker that is unavailable, if the process does not accept events over HTTP
/// during this wait.
pub(super) const BROKER_START_TIMEOUT: Duration = Duration::from_secs(30);
/// Delay before the process retries an action that failed because of the broker or the store.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// Time between two warnings about an action that the process retries during its start.
const WARN_INTERVAL: Duration = Duration::from_secs(5);

/// Declares or checks the exchanges and queues of streams, and opens the exchange sinks, as soon as the broker is
/// available. Waits for the broker for at most `timeout`, or without a limit if `timeout` is `None`. Records this wait
/// in `status`. Returns the tag of the consumers of this process; without a broker, an empty text.
pub(super) async fn prepare(
    loaded: &LoadedConfig,
    store: &Arc<dyn Store>,
    broker: Option<&Arc<BrokerEndpoint>>,
    timeout: Option<Duration>,
    status: &RunStatus,
    notifiers: &Arc<QueueNotifiers>,
    sinks: &mut Sinks,
) -> Result<Arc<str>, RunError> {
    let Some(broker) = broker else { return Ok(Arc::default()) };
    let known_streams = store.streams().await?;
    let until = timeout.map(|patience| Instant::now() + patience);
    let list = ManagementApi::of(loaded, broker).map(|api| api as Arc<dyn BindingList>);
    for (name, stream) in &loaded.config.streams {
        let SourceConfig::Amqp(source) = &stream.source else { continue };
        let topology = Topology::of(source);
        let records = QueueRecords::new(store, &name.shared());
        let is_fifo = stream.ordering == OrderingMode::Fifo;
        let is_known = known_streams.iter().any(|stream| **stream == **name);
        let prepare = async || {
            prepare_topology(&topology, broker, &records, is_fifo, is_known, list.as_ref()).await
        };
        let prepared = retry_until_available(broker, until, status, prepare).await?;
        report_prepared(loaded, broker, name, &prepared);
    }
    for (name, sink) in &loaded.config.sinks {
        let SinkConfig::Amqp(config) = sink else { continue };
        let open =
            async || ExchangeSink::open(name, config, broker).await.map_err(TopologyError::from);
        let opened = retry_until_available(broker, until, status, open).await?;
        match NumberingPolicy::for_sink(&loaded.config, name, sink, store.shards()) {
            Some(policy) => sinks.add_sequenced(name, policy, Some(opened), store, notifiers),
            None => sinks.add_exchange(name, opened),
        }
    }
    Ok(consumer_tag(store).await?)
}

/// Inspects the broker of a configuration, at most for the time `limit`, and changes nothing in the broker. If `sample`
/// is a number of messages, also receives this number of messages of each queue, and returns them to the queue. Returns
/// the findings, and the form in which a stream would read each message. Returns `None` if the configuration has no
/// broker.
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

/// Logs the problems that were found while a stream's topology (exchange, queues and bindings) was prepared.
fn report_prepared(
    loaded: &LoadedConfig,
    broker: &BrokerEndpoint,
    stream: &str,
    prepared: &PreparedTopology,
) {
    let PreparedTopology { limited_queues, former_bindings, error } = prepared;
    match error {
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
             with `ordain streams unbind {stream}{}`",
            ordain_util::command::config_option()
        );
    }
}

/// Retries an action while its error may be temporary. The retries end at the time `until`, or have no time limit if
/// `until` is `None`. Returns a permanent error at once. Records in `status` that the process waits for the broker.
async fn retry_until_available<T>(
    broker: &BrokerEndpoint,
    until: Option<Instant>,
    status: &RunStatus,
    work: impl AsyncFn() -> Result<T, TopologyError>,
) -> Result<T, TopologyError> {
    let mut throttle = LogThrottle::new(WARN_INTERVAL);
    loop {
        let error = match broker.within(PREPARE_TIMEOUT, work()).await {
            Err(error) if error.may_pass() => error,
            done => {
                status.end_broker_wait();
                return done;
            }
        };
        match &error {
            TopologyError::Broker(error) => status.begin_broker_wait(error),
            TopologyError::Store(_) => status.end_broker_wait(),
        }
        if until.is_some_and(|until| Instant::now() >= until) {
            return Err(match error {
                TopologyError::Broker(BrokerError::Unavailable(reason)) => {
                    let reason = format!(
                        "{reason}. The broker stayed unavailable: is RabbitMQ running at `broker.url`?"
                    );
                    BrokerError::Unavailable(reason).into()
                }
                error => error,
            });
        }
        // The next attempt may reach an upgraded broker.
        broker.forget_version();
        if throttle.allow() {
            match &error {
                TopologyError::Broker(BrokerError::Unavailable(reason)) => {
                    tracing::warn!("broker unavailable: {reason}; waiting for it");
                }
                TopologyError::Broker(
                    BrokerError::Refused { reason, .. } | BrokerError::LoginRefused { reason, .. },
                ) => {
                    tracing::warn!("request refused by the broker: {reason}; retrying");
                }
                TopologyError::Store(error) => {
                    tracing::warn!("records of queues and bindings unavailable: {error}; retrying");
                }
            }
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

/// Returns whether a stream is configured with a source in the broker.
pub(super) fn has_queue(loaded: &LoadedConfig, stream: &str) -> bool {
    let configured = loaded.config.streams.get(stream);
    configured.is_some_and(|stream| matches!(stream.source, SourceConfig::Amqp(_)))
}

/// Updates the former bindings in a stream's record. A former binding is a binding that only earlier configurations
/// needed. If the stream has no source in the broker any more, all its bindings become former bindings. A binding that
/// a configured stream needs is no former binding.
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

/// Removes the former bindings of a stream: the bindings that only earlier configurations needed. Removes all bindings
/// of the stream if the stream has no source in the broker any more. Keeps the bindings that another stream possibly
/// needs. Returns the removed bindings. The operator must first give all processes the new configuration, because a
/// process with an earlier configuration would declare the removed bindings again.
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
