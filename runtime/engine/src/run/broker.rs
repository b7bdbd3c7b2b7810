//! Prepares the broker of a configuration: declares or checks the exchanges and queues of streams and sinks, before the
//! process drives any partition.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::try_join_all;
use ordain_core::OrderingMode;
use tokio::time::Instant;

use super::management::ManagementApi;
use super::{RunError, RunStatus, policies};
use crate::sink::Sinks;
use crate::source::QueueNotifiers;
use ordain_amqp::{
    Binding, BindingList, BrokerEndpoint, BrokerError, ExchangeSink, PREPARE_TIMEOUT,
    PreparedTopology, SampledMessage, Topology, TopologyError, TopologyRecord, consumer_tag,
    inspect_broker, no_delivery_limit_command, prepare_timeout, prepare_topology, sample_queues,
    unbind,
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
/// available. Prepares all streams concurrently, so that a queue that does not answer delays no other stream. After the
/// first error of a stream or sink, waits for the broker for at most `patience`, or without a limit if `patience` is
/// `None`. Records this wait in `status`. Returns the tag of the consumers of this process; without a broker, an empty
/// text.
pub(super) async fn prepare(
    loaded: &LoadedConfig,
    store: &Arc<dyn Store>,
    broker: Option<&Arc<BrokerEndpoint>>,
    patience: Option<Duration>,
    status: &RunStatus,
    notifiers: &Arc<QueueNotifiers>,
    sinks: &mut Sinks,
) -> Result<Arc<str>, RunError> {
    let Some(broker) = broker else { return Ok(Arc::default()) };
    let known_streams = store.streams().await?;
    let list = ManagementApi::of(loaded, broker).map(|api| api as Arc<dyn BindingList>);
    let throttle = Mutex::new(LogThrottle::new(WARN_INTERVAL));
    let retries = StartRetries { broker, patience, status, throttle };
    let streams = loaded.config.streams.iter().filter_map(|(name, stream)| match &stream.source {
        SourceConfig::Amqp(source) => Some((name, stream.ordering, Topology::of(source))),
        _ => None,
    });
    let preparations = streams.map(|(name, ordering, topology)| {
        let records = QueueRecords::new(store, &name.shared());
        let is_known = known_streams.iter().any(|stream| **stream == **name);
        let (retries, list) = (&retries, list.as_ref());
        async move {
            let is_fifo = ordering == OrderingMode::Fifo;
            let prepare = async || {
                prepare_topology(&topology, broker, &records, is_fifo, is_known, list).await
            };
            let prepared = retries.run(prepare_timeout(&topology), prepare).await?;
            report_prepared(loaded, broker, name, &prepared);
            Ok::<(), TopologyError>(())
        }
    });
    try_join_all(preparations).await?;
    for (name, sink) in &loaded.config.sinks {
        let SinkConfig::Amqp(config) = sink else { continue };
        let open =
            async || ExchangeSink::open(name, config, broker).await.map_err(TopologyError::from);
        let opened = retries.run(PREPARE_TIMEOUT, open).await?;
        match NumberingPolicy::for_sink(&loaded.config, name, sink, store.shards()) {
            Some(policy) => sinks.add_sequenced(name, policy, Some(opened), store, notifiers),
            None => sinks.add_exchange(name, opened),
        }
    }
    let tag = async || consumer_tag(store).await.map_err(TopologyError::from);
    let tag = retries.run(PREPARE_TIMEOUT, tag).await?;
    status.end_broker_wait();
    Ok(tag)
}

/// Inspects the broker of a configuration, at most for the time `limit`, and changes nothing in the broker. If `sample`
/// is a number, also receives at most this number of messages of each queue, and returns the messages to the queue. The
/// result contains the findings, and how the streams would read the messages. Returns `None` if the configuration has
/// no broker.
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

/// The retries of the actions of a start.
struct StartRetries<'a> {
    broker: &'a BrokerEndpoint,
    /// The time for which each action is retried, from its first error on. `None` means no limit.
    patience: Option<Duration>,
    status: &'a RunStatus,
    /// Limits the warnings that the broker is unavailable, because all concurrent actions have this error at the same
    /// time.
    throttle: Mutex<LogThrottle>,
}

impl StartRetries<'_> {
    /// Retries an action while its error may be temporary. Returns a permanent error at once. `limit` is the time limit
    /// of each attempt. Records in the status that the process waits for the broker; the caller ends this wait.
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
            // Before the next attempt, the broker may be upgraded.
            self.broker.forget_version();
            self.warn(&error, &mut throttle);
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }

    /// Logs the error of an attempt. `throttle` limits the warnings that concern only one action.
    fn warn(&self, error: &TopologyError, throttle: &mut LogThrottle) {
        match error {
            TopologyError::Broker(BrokerError::Unavailable(reason)) => {
                if self.throttle.lock().unwrap_or_else(PoisonError::into_inner).allow() {
                    tracing::warn!("broker unavailable: {reason}; waiting for it");
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
                    tracing::warn!("records of queues and bindings unavailable: {error}; retrying");
                }
            }
        }
    }
}

/// Describes an error that has lasted until the end of the retries.
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

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Returns the result of an action whose first attempts fail after the time `attempt`.
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
