//! The broker of a configuration: what streams and sinks need there is made or looked for before
//! anything else begins.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ordain_core::Ordering;

use super::RunError;
use crate::sink::Outlets;
use crate::source::Feeds;
use ordain_amqp::{AmqpSink, Broker, BrokerError, Topology};
use ordain_config::Passage;
use ordain_config::{Loaded, Sink, Source};
use ordain_store::Store;
use ordain_util::log_throttle::LogThrottle;

/// How long a start waits for a broker that does not answer, and without which it can do nothing.
pub(super) const START: Duration = Duration::from_secs(30);
/// Between two tries.
const RETRY: Duration = Duration::from_millis(500);
/// Time between two warnings that the broker is away.
const WARN_INTERVAL: Duration = Duration::from_secs(5);

/// Makes what streams need, and opens the sinks, as soon as the broker is there: within some time, or
/// whenever that is.
pub(super) async fn prepare(
    loaded: &Loaded,
    store: &Arc<dyn Store>,
    broker: Option<&Arc<Broker>>,
    patience: Option<Duration>,
    feeds: &Arc<Feeds>,
    outlets: &mut Outlets,
) -> Result<(), RunError> {
    let Some(broker) = broker else { return Ok(()) };
    let with_data = store.streams().await?;
    let until = patience.map(|it| Instant::now() + it);
    for (name, stream) in &loaded.config.streams {
        let Source::Amqp(source) = &stream.source else { continue };
        let topology = Topology::of(source);
        // Numbers that were given to events that are lost would be given again.
        let known = stream.ordering == Ordering::Fifo && with_data.iter().any(|it| **it == **name);
        let prepare = async || {
            let connection = broker.connect(&format!("ordain {name}")).await?;
            topology.prepare(broker, &connection, known).await?;
            // What was asked for is done, whatever becomes of the connection.
            let _ = connection.close(200, "done".into()).await;
            Ok(())
        };
        wait_for(until, prepare).await?;
    }
    for (name, sink) in &loaded.config.sinks {
        let Sink::Amqp(config) = sink else { continue };
        let opened = wait_for(until, async || AmqpSink::open(name, config, broker).await).await?;
        match Passage::of_sink(&loaded.config, name, sink, store.shards()) {
            Some(passage) => outlets.add_chain(name, passage, Some(opened), store, feeds),
            None => outlets.add_exchange(name, opened),
        }
    }
    Ok(())
}

/// Tries until then, or for ever, what only a broker that is not there yet keeps from working.
async fn wait_for<T>(
    until: Option<Instant>,
    work: impl AsyncFn() -> Result<T, BrokerError>,
) -> Result<T, BrokerError> {
    let mut throttle = LogThrottle::new(WARN_INTERVAL);
    loop {
        let reason = match work().await {
            Err(BrokerError::Away(reason)) if until.is_none_or(|it| Instant::now() < it) => reason,
            Err(BrokerError::Away(reason)) => {
                return Err(BrokerError::Away(format!(
                    "{reason}. It was waited for: is RabbitMQ running there (`broker.url`)?"
                )));
            }
            done => return done,
        };
        if throttle.allow() {
            tracing::warn!("the broker is not there yet, and is waited for: {reason}");
        }
        tokio::time::sleep(RETRY).await;
    }
}
