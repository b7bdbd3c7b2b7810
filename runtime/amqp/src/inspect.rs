//! Inspects the broker of a configuration for `ordain check --connect`. This module must not change anything in the
//! broker.

use lapin::Connection;

use super::connect::{BrokerEndpoint, BrokerError};
use super::exchange::check_sink_exchange;
use super::topology::Topology;
use ordain_config::{LoadedConfig, SinkConfig, SourceConfig};
use ordain_util::finding::Finding;

/// The major and minor number of the oldest supported version of RabbitMQ.
const OLDEST_VERSION: (u64, u64) = (3, 10);

/// The finding about `consumer_timeout`, a setting of the broker that no client can read.
const HIDDEN_TIMEOUT: &str = "a client cannot read the broker's consumer_timeout. Check with `rabbitmqctl environment` \
     that it is more than twice the sum of spill_after and plugins.timeout";

/// Appends findings about the broker, and about each queue and exchange of the configuration. Does not retry a failed
/// connection. Creates, binds and consumes nothing. If the caller drops the future, the findings made so far remain.
pub async fn inspect_broker(
    broker: &BrokerEndpoint,
    loaded: &LoadedConfig,
    findings: &mut Vec<Finding>,
) {
    if let Err(error) = inspect_all(broker, loaded, findings).await {
        findings.push(finding_of(&error));
    }
}

async fn inspect_all(
    broker: &BrokerEndpoint,
    loaded: &LoadedConfig,
    findings: &mut Vec<Finding>,
) -> Result<(), BrokerError> {
    let greeting = broker.greeting().await?;
    let version = greeting.rabbitmq_version();
    findings.push(Finding::note(format!("{broker}: {}", greeting.name())));
    if version.is_none_or(|version| version < OLDEST_VERSION) {
        findings.push(Finding::warning(format!(
            "Ordain needs RabbitMQ {}.{} or later",
            OLDEST_VERSION.0, OLDEST_VERSION.1
        )));
    }
    let connection = broker.connect("ordain check").await?;
    findings.push(Finding::note(broker.describe_login()));
    let inspected = inspect_objects(broker, loaded, &connection, version, findings).await;
    // The inspection is done, so an error of the connection does not matter.
    let _ = connection.close(200, "done".into()).await;
    inspected
}

async fn inspect_objects(
    broker: &BrokerEndpoint,
    loaded: &LoadedConfig,
    connection: &Connection,
    version: Option<(u64, u64)>,
    findings: &mut Vec<Finding>,
) -> Result<(), BrokerError> {
    for (name, stream) in &loaded.config.streams {
        let SourceConfig::Amqp(source) = &stream.source else { continue };
        Topology::of(source).inspect(name, broker, connection, version, findings).await?;
    }
    for (name, sink) in &loaded.config.sinks {
        let SinkConfig::Amqp(sink) = sink else { continue };
        if sink.is_default_exchange() {
            let note =
                format!("the sink {name} publishes to the default exchange, which always exists");
            findings.push(Finding::note(note));
            continue;
        }
        let exchange = &sink.exchange.0;
        match check_sink_exchange(broker, connection, name, exchange).await {
            Ok(()) => findings.push(Finding::note(format!(
                "the exchange {exchange:?} of the sink {name} exists"
            ))),
            Err(error @ BrokerError::Refused { .. }) => findings.push(finding_of(&error)),
            Err(error) => return Err(error),
        }
    }
    findings.push(Finding::note(HIDDEN_TIMEOUT));
    Ok(())
}

fn finding_of(error: &BrokerError) -> Finding {
    if error.may_pass() {
        Finding::unavailable(error.to_string())
    } else {
        Finding::error(error.to_string())
    }
}
