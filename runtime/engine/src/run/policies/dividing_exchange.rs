//! Finds queues and exchanges that take events from a stream with several partitions. The stream's exchange divides its
//! messages among all its destinations, so a further destination receives all events of some keys.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::routes::Routes;
use super::topology_finding::{TopologyFinding, partition_of};
use super::{QueueWarning, SettingEffect};
use crate::run::management::{BindingAnswer, ManagementApi};
use ordain_config::{LoadedConfig, SourceConfig, partition_queue};

/// The types of exchanges that send each message to only one of their destinations, by a hash of a part of the message.
const DIVIDING_TYPES: [&str; 2] = ["x-modulus-hash", "x-consistent-hash"];
/// The exchange of a stream with several partitions.
#[derive(Debug)]
pub(super) struct PartitionedExchange {
    stream: Arc<str>,
    name: String,
    /// The queues of the stream.
    queues: BTreeSet<String>,
}

impl PartitionedExchange {
    /// Returns the exchanges of all streams with several partitions.
    pub(super) fn all(loaded: &LoadedConfig) -> Vec<Self> {
        let mut exchanges = Vec::new();
        for (stream, config) in &loaded.config.streams {
            let SourceConfig::Amqp(source) = &config.source else { continue };
            let Some(exchange) = source.exchange.as_ref().filter(|_| source.partitions > 1) else {
                continue;
            };
            let partitions = 0..source.partitions;
            let queue = |partition| partition_queue(&source.queue.0, source.partitions, partition);
            exchanges.push(Self {
                stream: stream.shared(),
                name: exchange.0.clone(),
                queues: partitions.map(queue).collect(),
            });
        }
        exchanges
    }

    /// Returns the destinations of the exchange, except the queues of the stream. The markers of Ordain are not among
    /// the destinations, because their bindings lead to the exchange.
    fn foreign_destinations(
        &self,
        bindings: &[BindingAnswer],
        unbind_command: impl Fn(&BindingAnswer) -> String,
    ) -> Vec<TopologyFinding> {
        let Self { stream, name, queues } = self;
        let is_foreign = |binding: &&BindingAnswer| {
            binding.source == *name
                && (binding.leads_to_exchange() || !queues.contains(&binding.destination))
        };
        let describe = |binding: &BindingAnswer| {
            let kind = if binding.leads_to_exchange() { "exchange" } else { "queue" };
            let text = format!(
                "the exchange {name:?} divides its messages among the queues of stream {stream}, and the {kind} {:?} \
                 is bound to it too: all events of some keys reach only this {kind}, and not the stream. \
                 Remove the binding: {}. Then publish the events again that the {kind} has received. If another \
                 program needs a copy of all events, let the producers publish to a further exchange, name that \
                 exchange in `bind` of the stream, and bind the {kind} to that exchange",
                binding.destination,
                unbind_command(binding)
            );
            TopologyFinding {
                partition: partition_of(stream, 0),
                warning: QueueWarning { effect: SettingEffect::LosesEvents, text },
                fault: None,
                is_error: true,
            }
        };
        bindings.iter().filter(is_foreign).map(describe).collect()
    }
}

/// Returns the foreign destinations of `exchanges`. Omits exchanges of types that send a copy of each message to each
/// destination.
pub(super) fn foreign_destinations(
    api: &ManagementApi,
    exchanges: &[PartitionedExchange],
    routes: &Routes,
) -> Vec<TopologyFinding> {
    let divides = |exchange: &&PartitionedExchange| {
        let mut same = routes.exchanges.iter().filter(|answer| answer.name == exchange.name);
        same.any(|answer| DIVIDING_TYPES.contains(&&*answer.kind))
    };
    let command = |binding: &BindingAnswer| api.unbind_command(binding);
    let dividing = exchanges.iter().filter(divides);
    dividing.flat_map(|exchange| exchange.foreign_destinations(&routes.bindings, command)).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;

    #[test]
    fn all_destinations_except_the_queues_of_the_stream_are_foreign() {
        let stream = |name: &str, settings: &str| {
            format!(
                "[streams.{name}]\nhandler = \"tally\"\n\
                 source = {{ kind = \"amqp\", queue = \"{name}\", {settings} }}\n"
            )
        };
        let text = format!(
            "[broker]\nurl = \"amqp://localhost\"\n{}{}",
            stream("orders", "exchange = \"shop\", partitions = 2"),
            stream("single", "exchange = \"single\""),
        );
        let loaded = LoadedConfig::parse(Path::new("ordain.toml"), &text, &|_| None);
        let exchanges = PartitionedExchange::all(&loaded.expect("a configuration"));
        assert_eq!(exchanges.len(), 1, "{exchanges:?}");
        let bindings: Vec<BindingAnswer> = [
            ("shop", "orders.0", "queue"),
            ("shop", "orders.1", "queue"),
            // The stream had more partitions before.
            ("shop", "orders.2", "queue"),
            ("shop", "orders.1", "exchange"),
            ("orders.x123456.marker", "shop", "exchange"),
            ("single", "audit", "queue"),
            ("shop", "audit", "queue"),
        ]
        .into_iter()
        .map(|(source, destination, kind)| {
            let answer =
                json!({ "source": source, "destination": destination, "destination_type": kind });
            serde_json::from_value(answer).expect("a binding")
        })
        .collect();
        let found = exchanges[0].foreign_destinations(&bindings, |binding| {
            format!("unbind {} {}", binding.destination_type, binding.destination)
        });
        let commands = ["queue orders.2", "exchange orders.1", "queue audit"];
        assert_eq!(found.len(), commands.len(), "{found:?}");
        for (finding, command) in found.iter().zip(commands) {
            let words = format!("Remove the binding: unbind {command}. ");
            assert!(finding.warning.text.contains(&words), "{finding:?}");
            assert_eq!(finding.partition, partition_of(&"orders".into(), 0));
        }
    }
}
