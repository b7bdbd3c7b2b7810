//! The broker of a configuration: declares or checks the exchanges and queues of streams and sinks, before anything
//! else starts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ordain_core::OrderingMode;

use super::RunError;
use crate::sink::Sinks;
use crate::source::QueueNotifiers;
use ordain_amqp::{BrokerEndpoint, BrokerError, ExchangeSink, Topology};
use ordain_config::NumberingPolicy;
use ordain_config::{LoadedConfig, SinkConfig, SourceConfig};
use ordain_store::Store;
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
        let prepare = async || {
            let connection = broker.connect(&format!("ordain {name}")).await?;
            topology.prepare(broker, &connection, is_known).await?;
            // The declarations are done, so an error of the connection does not matter.
            let _ = connection.close(200, "done".into()).await;
            Ok(())
        };
        retry_until_available(until, prepare).await?;
    }
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
