//! The broker of a configuration: declares or checks the exchanges and queues of streams and sinks, before anything
//! else starts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ordain_core::OrderingMode;

use super::RunError;
use crate::sink::Sinks;
use crate::source::QueueNotifiers;
use ordain_amqp::{
    BrokerEndpoint, BrokerError, DeclaredBinding, ExchangeSink, Topology, remove_bindings,
};
use ordain_config::NumberingPolicy;
use ordain_config::{LoadedConfig, SinkConfig, SourceConfig};
use ordain_store::{Mark, Store, StoreError};
use ordain_util::log_throttle::LogThrottle;

/// Maximum time that a start waits for a broker that does not answer, if the process can do nothing without the broker.
pub(super) const BROKER_START_TIMEOUT: Duration = Duration::from_secs(30);
/// Delay between two attempts.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// Time between two warnings that the broker is unavailable.
const WARN_INTERVAL: Duration = Duration::from_secs(5);

/// Declares the exchanges and queues of streams, and opens the exchange sinks, as soon as the broker is available.
/// Waits for the broker for at most `timeout`, or without a limit if `timeout` is `None`.
pub(super) async fn prepare(
    loaded: &LoadedConfig,
    store: &Arc<dyn Store>,
    broker: Option<&Arc<BrokerEndpoint>>,
    timeout: Option<Duration>,
    notifiers: &Arc<QueueNotifiers>,
    sinks: &mut Sinks,
) -> Result<(), RunError> {
    let Some(broker) = broker else { return Ok(()) };
    let known_streams = store.streams().await?;
    let until = timeout.map(|patience| Instant::now() + patience);
    for (name, stream) in &loaded.config.streams {
        let SourceConfig::Amqp(source) = &stream.source else { continue };
        let topology = Topology::of(source);
        // The sequences of lost events must not be assigned again.
        let is_known = stream.ordering == OrderingMode::Fifo
            && known_streams.iter().any(|stream| **stream == **name);
        let bindings = StreamBindings::read(store, name.shared(), &topology).await?;
        bindings.record_all(store).await?;
        let prepare = async || {
            let connection = broker.connect(&format!("ordain {name}")).await?;
            topology.prepare(broker, &connection, is_known).await?;
            let refused = remove_bindings(&bindings.removed, broker, &connection).await?;
            // The declarations are done, so an error of the connection does not matter.
            let _ = connection.close(200, "done".into()).await;
            Ok(refused)
        };
        let refused = retry_until_available(until, prepare).await?;
        bindings.record_removal(store, &refused).await?;
    }
    let check_unread = async || warn_of_unread_queues(loaded, broker, store, &known_streams).await;
    retry_until_available(until, check_unread).await??;
    for (name, sink) in &loaded.config.sinks {
        let SinkConfig::Amqp(config) = sink else { continue };
        let opened =
            retry_until_available(until, async || ExchangeSink::open(name, config, broker).await)
                .await?;
        match NumberingPolicy::for_sink(&loaded.config, name, sink, store.shards()) {
            Some(policy) => sinks.add_sequenced(name, policy, Some(opened), store, notifiers),
            None => sinks.add_exchange(name, opened),
        }
    }
    Ok(())
}

/// The bindings of a stream: the bindings of the current configuration, and the bindings of earlier configurations. The
/// store keeps a record of the bindings that Ordain has declared, because the broker does not distinguish them from
/// bindings of other programs.
struct StreamBindings {
    stream: Arc<str>,
    recorded: Vec<DeclaredBinding>,
    configured: Vec<DeclaredBinding>,
    /// The recorded bindings that the configuration no longer has.
    removed: Vec<DeclaredBinding>,
}

impl StreamBindings {
    async fn read(
        store: &Arc<dyn Store>,
        stream: Arc<str>,
        topology: &Topology,
    ) -> Result<Self, StoreError> {
        let recorded = recorded_bindings(store, &stream).await?;
        let configured = topology.bindings();
        // With `declare = false`, all bindings belong to the operator.
        let removed = recorded.iter().filter(|binding| !configured.contains(binding));
        let removed = removed.filter(|_| topology.is_declared()).cloned().collect();
        Ok(Self { stream, recorded, configured, removed })
    }

    /// Records the configured bindings in addition to the earlier bindings, before the broker has the configured
    /// bindings.
    async fn record_all(&self, store: &Arc<dyn Store>) -> Result<(), StoreError> {
        let new = self.configured.iter().filter(|binding| !self.recorded.contains(binding));
        let all: Vec<_> = self.recorded.iter().chain(new).cloned().collect();
        if all == self.recorded { Ok(()) } else { record(store, &self.stream, &all).await }
    }

    /// Records the configured bindings, and the earlier bindings that the broker refused to remove.
    async fn record_removal(
        &self,
        store: &Arc<dyn Store>,
        refused: &[(&DeclaredBinding, String)],
    ) -> Result<(), StoreError> {
        for binding in &self.removed {
            match refused.iter().find(|(other, _)| *other == binding) {
                None => tracing::info!(
                    stream = &*self.stream,
                    "binding {binding} removed: the configuration no longer has it"
                ),
                Some((_, reason)) => tracing::warn!(
                    stream = &*self.stream,
                    reason,
                    "binding {binding} not removed, although the configuration no longer has it: remove it by hand"
                ),
            }
        }
        if self.removed.len() == refused.len() {
            return Ok(());
        }
        let refused = refused.iter().map(|(binding, _)| *binding);
        let all: Vec<_> = self.configured.iter().chain(refused).cloned().collect();
        record(store, &self.stream, &all).await
    }
}

/// Records the bindings of a stream durably.
async fn record(
    store: &Arc<dyn Store>,
    stream: &str,
    bindings: &[DeclaredBinding],
) -> Result<(), StoreError> {
    // Names and routing keys are texts, which JSON can always contain.
    let value = serde_json::to_vec(bindings).unwrap_or_default();
    store.put_marks(&[Mark { name: bindings_mark(stream), value: value.into() }]).await?;
    store.flush().await
}

fn bindings_mark(stream: &str) -> String {
    format!("bindings/{stream}")
}

/// Reads the recorded bindings of a stream. An unreadable record counts as empty; the next record replaces it.
async fn recorded_bindings(
    store: &Arc<dyn Store>,
    stream: &str,
) -> Result<Vec<DeclaredBinding>, StoreError> {
    let value = store.mark(&bindings_mark(stream)).await?;
    Ok(value.and_then(|value| serde_json::from_slice(&value).ok()).unwrap_or_default())
}

/// Warns of queues that Ordain has declared and that no stream of this configuration reads.
async fn warn_of_unread_queues(
    loaded: &LoadedConfig,
    broker: &BrokerEndpoint,
    store: &Arc<dyn Store>,
    known_streams: &[Arc<str>],
) -> Result<Result<(), StoreError>, BrokerError> {
    let reads_queue = |stream: &str| {
        let configured = loaded.config.streams.get(stream);
        configured.is_some_and(|stream| matches!(stream.source, SourceConfig::Amqp(_)))
    };
    for stream in known_streams.iter().filter(|stream| !reads_queue(stream)) {
        let bindings = match recorded_bindings(store, stream).await {
            Ok(bindings) => bindings,
            Err(error) => return Ok(Err(error)),
        };
        let Some(binding) = bindings.iter().find(|binding| binding.to_queue) else { continue };
        let connection = broker.connect(&format!("ordain {stream}")).await?;
        let is_there = binding.has_destination(broker, &connection).await?;
        let _ = connection.close(200, "done".into()).await;
        if is_there {
            tracing::warn!(
                stream = &**stream,
                queue = binding.destination,
                exchange = binding.source,
                "queue not read by any stream of this configuration: it still receives messages; unless another \
                 process runs the stream, remove the queue"
            );
        }
    }
    Ok(Ok(()))
}

/// Retries an action while the action fails because the broker is unavailable, until a given time or without a time
/// limit. Returns any other error at once.
async fn retry_until_available<T>(
    until: Option<Instant>,
    work: impl AsyncFn() -> Result<T, BrokerError>,
) -> Result<T, BrokerError> {
    let mut throttle = LogThrottle::new(WARN_INTERVAL);
    loop {
        let reason = match work().await {
            Err(BrokerError::Unavailable(reason))
                if until.is_none_or(|until| Instant::now() < until) =>
            {
                reason
            }
            Err(BrokerError::Unavailable(reason)) => {
                return Err(BrokerError::Unavailable(format!(
                    "{reason}. The broker stayed unavailable: is RabbitMQ running there (`broker.url`)?"
                )));
            }
            done => return done,
        };
        if throttle.allow() {
            tracing::warn!("broker unavailable: {reason}; waiting for it");
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
}
