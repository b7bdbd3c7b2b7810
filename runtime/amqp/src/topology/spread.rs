//! The form of a stream's exchange: how the exchange spreads the messages over the partitions of the stream. All
//! messages of a key must reach one partition, so the exchange hashes the part of a message that contains the key.

use lapin::ExchangeKind;
use lapin::types::FieldTable;
use ordain_config::HashedPart;

use super::{Topology, long_string, with_advice};
use crate::connect::{BrokerError, RefusalCause};

/// The type of an exchange that distributes messages over queues by a fixed hash of the routing key. The plugin
/// `rabbitmq_sharding` provides this type.
const SHARDING_EXCHANGE_TYPE: &str = "x-modulus-hash";
/// The type of an exchange that distributes messages over queues by a hash of a header or property, which an argument
/// of the exchange names. The plugin `rabbitmq_consistent_hash_exchange` provides this type.
const HASH_EXCHANGE_TYPE: &str = "x-consistent-hash";
/// The routing key of a binding from an exchange of type `x-consistent-hash`: the share of the queue. All queues have
/// the same share.
const QUEUE_SHARE: &str = "1";

impl Topology {
    /// Returns the argument of an exchange of type `x-consistent-hash`: its name and value. Returns `None` if the
    /// stream needs an exchange of another type.
    fn hash_argument(&self) -> Option<(&'static str, &str)> {
        if self.partitions == 1 {
            return None;
        }
        match &self.hashed {
            HashedPart::RoutingKey => None,
            HashedPart::Header(name) => Some(("hash-header", name.as_str())),
            HashedPart::Property(property) => Some(("hash-property", property.name())),
        }
    }

    pub(super) fn exchange_kind(&self) -> ExchangeKind {
        if self.partitions == 1 {
            return ExchangeKind::Fanout;
        }
        let custom = match self.hash_argument() {
            None => SHARDING_EXCHANGE_TYPE,
            Some(_) => HASH_EXCHANGE_TYPE,
        };
        ExchangeKind::Custom(custom.to_owned())
    }

    pub(super) fn exchange_arguments(&self) -> FieldTable {
        let mut arguments = FieldTable::default();
        if let Some((argument, value)) = self.hash_argument() {
            arguments.insert(argument.into(), long_string(value));
        }
        arguments
    }

    /// Returns the routing key of the bindings from the stream's exchange to its queues.
    pub(super) fn queue_binding_key(&self) -> &'static str {
        if self.hash_argument().is_some() { QUEUE_SHARE } else { "" }
    }

    pub(super) fn exchange_refusal(&self, error: BrokerError, exchange: &str) -> BrokerError {
        let Some((argument, value)) = self.hash_argument() else {
            return with_advice(error, exchange, "exchange");
        };
        let (cause, reason) = match error {
            BrokerError::Refused {
                cause: cause @ (RefusalCause::Unsupported | RefusalCause::OtherForm),
                reason,
            } => (cause, reason),
            other => return with_advice(other, exchange, "exchange"),
        };
        let advice = if cause == RefusalCause::Unsupported {
            "a stream with more than one partition and the key in a header or property needs a plugin that is part of \
             RabbitMQ: `rabbitmq-plugins enable rabbitmq_consistent_hash_exchange`"
                .to_owned()
        } else {
            format!(
                "the stream needs an exchange of type {HASH_EXCHANGE_TYPE} with the argument {argument} = {value:?}: \
                 choose another name in the configuration, and name the present exchange in `bind`. Or stop the \
                 producers and delete the exchange in the broker (messages that are published while it is missing are \
                 lost). Or, if the exchange sends all messages of a key to one queue, set declare = false to use the \
                 exchange as it is"
            )
        };
        let reason = format!("the exchange {exchange:?} cannot be declared: {reason}; {advice}");
        BrokerError::Refused { cause, reason }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ordain_config::{LoadedConfig, SourceConfig};

    use super::*;

    fn topology(source: &str) -> Topology {
        let text = format!(
            "[broker]\nurl = \"amqp://h\"\n[streams.a]\nhandler = \"h\"\nordering = \"fifo\"\n\
             source = {{ kind = \"amqp\", exchange = \"x\", queue = \"q\", {source} }}\n"
        );
        let loaded = LoadedConfig::parse(Path::new("ordain.toml"), &text, &|_| None);
        match &loaded.expect("a valid configuration").config.streams["a"].source {
            SourceConfig::Amqp(source) => Topology::of(source),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn exchange_hashes_the_place_of_the_key() {
        for (source, kind, argument, binding) in [
            ("partitions = 1", "", None, ""),
            ("key = \"header:order\"", "", None, ""),
            ("partitions = 4", "x-modulus-hash", None, ""),
            (
                "partitions = 4, key = \"header:order\"",
                "x-consistent-hash",
                Some(("hash-header", "order")),
                "1",
            ),
            (
                "partitions = 4, key = \"property:correlation_id\"",
                "x-consistent-hash",
                Some(("hash-property", "correlation_id")),
                "1",
            ),
        ] {
            let topology = topology(source);
            let kind = match kind {
                "" => ExchangeKind::Fanout,
                kind => ExchangeKind::Custom(kind.to_owned()),
            };
            assert_eq!(topology.exchange_kind(), kind, "{source}");
            let mut arguments = FieldTable::default();
            if let Some((name, value)) = argument {
                arguments.insert(name.into(), long_string(value));
            }
            assert_eq!(topology.exchange_arguments(), arguments, "{source}");
            assert_eq!(topology.queue_binding_key(), binding, "{source}");
            let first = topology.bindings().into_iter().next().expect("a binding");
            assert_eq!(first.routing_key, binding, "{source}");
        }
    }

    #[test]
    fn refusal_of_a_hash_exchange_names_the_next_step() {
        let refused = |source: &str, cause| {
            let error = BrokerError::Refused { cause, reason: "words".to_owned() };
            topology(source).exchange_refusal(error, "x").to_string()
        };
        let hash = "partitions = 4, key = \"header:order\"";
        let error = refused(hash, RefusalCause::Unsupported);
        assert!(error.contains("enable rabbitmq_consistent_hash_exchange"), "{error}");
        let error = refused(hash, RefusalCause::OtherForm);
        assert!(
            error.contains("type x-consistent-hash with the argument hash-header = \"order\""),
            "{error}"
        );
        assert!(error.contains("declare = false"), "{error}");
        let error = refused("partitions = 4", RefusalCause::Unsupported);
        assert!(error.contains("enable rabbitmq_sharding"), "{error}");
    }
}
