//! Finds queues and exchanges that take events from a stream with several partitions. The stream's exchange divides its
//! messages among all its destinations, so a foreign destination receives all events of some keys. Also finds second
//! bindings of the stream's own queues, because an exchange of type `x-modulus-hash` divides its messages among
//! bindings.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::routes::{ExchangeAnswer, Routes};
use super::topology_finding::{TopologyFinding, partition_of};
use super::{QueueWarning, SettingEffect};
use crate::run::management::{BindingAnswer, ManagementApi};
use ordain_config::{LoadedConfig, SourceConfig, partition_queue};

/// The type of exchange that sends each message to only one of its bindings, by a hash of the routing key. Two bindings
/// of one queue count as two bindings.
const MODULUS_TYPE: &str = "x-modulus-hash";
/// The types of exchanges that send each message to only one of their destinations, by a hash of a part of the message.
const DIVIDING_TYPES: [&str; 2] = [MODULUS_TYPE, "x-consistent-hash"];
#[derive(Debug)]
pub(super) struct PartitionedExchange {
    stream: Arc<str>,
    name: String,
    queues: BTreeSet<String>,
}

impl PartitionedExchange {
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

    /// Returns the bindings of the stream's queues to the exchange, except one binding of each queue. The exception is
    /// the binding that Ordain declares, if the queue has this binding.
    fn repeated_bindings(
        &self,
        bindings: &[BindingAnswer],
        unbind_command: impl Fn(&BindingAnswer) -> String,
    ) -> Vec<TopologyFinding> {
        let Self { stream, name, queues } = self;
        let is_own = |binding: &&BindingAnswer| {
            binding.source == *name
                && !binding.leads_to_exchange()
                && queues.contains(&binding.destination)
        };
        let mut own: Vec<&BindingAnswer> = bindings.iter().filter(is_own).collect();
        own.sort_by_key(|binding| !binding.is_plain());
        let mut bound = BTreeSet::new();
        own.retain(|binding| !bound.insert(&binding.destination));
        let describe = |binding: &BindingAnswer| {
            let text = format!(
                "the exchange {name:?} divides its messages among its bindings, and the queue {:?} of stream {stream} \
                 is bound to it more than once. When a binding is added or removed, most keys move to another \
                 partition. The events of these keys that wait in the old partition may then be executed after newer \
                 events. Stop the producers, wait until the queues of the stream are empty, and remove the additional \
                 binding: {}",
                binding.destination,
                unbind_command(binding)
            );
            TopologyFinding {
                partition: partition_of(stream, 0),
                warning: QueueWarning { effect: SettingEffect::Reordering, text },
                fault: None,
                concerns_stream: true,
                is_error: true,
            }
        };
        own.into_iter().map(describe).collect()
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
                 is bound to it too. All events of some keys reach only this {kind}, and not the stream. Remove the \
                 binding: {}. Then publish the events again that the {kind} has received. If another program needs a \
                 copy of all events, the producers must publish to a new exchange. Name the new exchange in `bind` of \
                 the stream, and bind the {kind} to it",
                binding.destination,
                unbind_command(binding)
            );
            TopologyFinding {
                partition: partition_of(stream, 0),
                warning: QueueWarning { effect: SettingEffect::Loss, text },
                fault: None,
                concerns_stream: true,
                is_error: true,
            }
        };
        bindings.iter().filter(is_foreign).map(describe).collect()
    }
}

pub(super) fn divides_messages(exchange: &ExchangeAnswer) -> bool {
    DIVIDING_TYPES.contains(&&*exchange.kind)
}

/// Returns the bindings that must not lead from `exchanges`: bindings to foreign destinations, and, from an exchange of
/// type `x-modulus-hash`, second bindings of the stream's queues. Omits exchanges of types that send a copy of each
/// message to each destination. Also omits second bindings from an exchange of type `x-consistent-hash`. Such a binding
/// does not change the partition of any message. In addition, RabbitMQ 3.10 routes no messages to the queue after the
/// removal of such a binding.
pub(super) fn unneeded_bindings(
    api: &ManagementApi,
    exchanges: &[PartitionedExchange],
    routes: &Routes,
) -> Vec<TopologyFinding> {
    let command = |binding: &BindingAnswer| api.unbind_command(binding);
    let mut found = Vec::new();
    for exchange in exchanges {
        let is_same = |answer: &&ExchangeAnswer| answer.name == exchange.name;
        let Some(answer) = routes.exchanges.iter().find(is_same) else { continue };
        if divides_messages(answer) {
            found.extend(exchange.foreign_destinations(&routes.bindings, command));
        }
        if answer.kind == MODULUS_TYPE {
            found.extend(exchange.repeated_bindings(&routes.bindings, command));
        }
    }
    found
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
            // In an earlier configuration, the stream had more partitions, so the exchange has a binding to the queue
            // `orders.2`.
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
        let command = |binding: &BindingAnswer| {
            format!("unbind {} {}", binding.destination_type, binding.destination)
        };
        let found = exchanges[0].foreign_destinations(&bindings, command);
        let commands = ["queue orders.2", "exchange orders.1", "queue audit"];
        assert_eq!(found.len(), commands.len(), "{found:?}");
        for (finding, command) in found.iter().zip(commands) {
            let words = format!("Remove the binding: unbind {command}. ");
            assert!(finding.warning.text.contains(&words), "{finding:?}");
            assert_eq!(finding.partition, partition_of(&"orders".into(), 0));
        }
        assert!(exchanges[0].repeated_bindings(&bindings, command).is_empty());
    }

    #[test]
    fn one_binding_of_each_queue_is_needed() {
        let exchange = PartitionedExchange {
            stream: "orders".into(),
            name: "shop".to_owned(),
            queues: ["orders.0", "orders.1"].map(str::to_owned).into(),
        };
        let bindings: Vec<BindingAnswer> = [
            ("shop", "orders.0", "more", "queue"),
            ("shop", "orders.0", "~", "queue"),
            // A binding with an empty routing key and with arguments.
            ("shop", "orders.0", "~rnJaMg", "queue"),
            ("shop", "orders.1", "only", "queue"),
            ("shop", "orders.1", "x", "exchange"),
            ("other", "orders.1", "~", "queue"),
            ("shop", "audit", "~", "queue"),
        ]
        .into_iter()
        .map(|(source, destination, properties, kind)| {
            let answer = json!({
                "source": source, "destination": destination, "destination_type": kind,
                "properties_key": properties,
            });
            serde_json::from_value(answer).expect("a binding")
        })
        .collect();
        let found = exchange.repeated_bindings(&bindings, |binding| format!("unbind {binding:?}"));
        let keys = ["more", "~rnJaMg"];
        assert_eq!(found.len(), keys.len(), "{found:?}");
        for (finding, key) in found.iter().zip(keys) {
            let text = &finding.warning.text;
            assert!(text.contains("orders.0") && text.contains(&format!("{key:?}")), "{text}");
        }
    }
}
