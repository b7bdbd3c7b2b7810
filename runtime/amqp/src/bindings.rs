//! The bindings that Ordain declares for a stream, and their removal when the configuration no longer has them.

use std::fmt;

use lapin::options::{
    ExchangeBindOptions, ExchangeUnbindOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::FieldTable;
use lapin::{Channel, Connection};
use serde::{Deserialize, Serialize};

use super::connect::{BrokerEndpoint, BrokerError};

/// A binding that Ordain declares. The store keeps the bindings of each stream in this form.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DeclaredBinding {
    /// The exchange from which messages come.
    pub source: String,
    /// The queue or the exchange to which messages go.
    pub destination: String,
    /// True if the destination is a queue.
    pub to_queue: bool,
    /// The routing key.
    pub routing_key: String,
}

impl DeclaredBinding {
    /// Declares the binding. An existing binding does not change.
    pub(super) async fn declare(&self, channel: &Channel) -> lapin::Result<()> {
        let Self { source, destination, to_queue, routing_key } = self;
        let source = source.as_str().into();
        let destination = destination.as_str().into();
        let key = routing_key.as_str().into();
        let nothing = FieldTable::default();
        if *to_queue {
            let options = QueueBindOptions::default();
            channel.queue_bind(destination, source, key, options, nothing).await
        } else {
            let options = ExchangeBindOptions::default();
            channel.exchange_bind(destination, source, key, options, nothing).await
        }
    }

    /// Removes the binding. A missing binding, queue or exchange is no error.
    async fn remove(
        &self,
        broker: &BrokerEndpoint,
        connection: &Connection,
    ) -> Result<(), BrokerError> {
        let Self { source, destination, to_queue, routing_key } = self;
        // A refused request closes its channel.
        let channel = connection.create_channel().await.map_err(|error| broker.error(&error))?;
        let source = source.as_str().into();
        let destination = destination.as_str().into();
        let key = routing_key.as_str().into();
        let nothing = FieldTable::default();
        let removed = if *to_queue {
            channel.queue_unbind(destination, source, key, nothing).await
        } else {
            let options = ExchangeUnbindOptions::default();
            channel.exchange_unbind(destination, source, key, options, nothing).await
        };
        match removed.map_err(|error| broker.error(&error)) {
            Err(BrokerError::Refused(words)) if words.contains("NOT_FOUND") => Ok(()),
            result => result,
        }
    }

    /// Returns whether the queue of the binding exists.
    pub async fn has_destination(
        &self,
        broker: &BrokerEndpoint,
        connection: &Connection,
    ) -> Result<bool, BrokerError> {
        let channel = connection.create_channel().await.map_err(|error| broker.error(&error))?;
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let queue = self.destination.as_str().into();
        let found = channel.queue_declare(queue, options, FieldTable::default()).await;
        match found.map_err(|error| broker.error(&error)) {
            Ok(_) => Ok(true),
            Err(BrokerError::Refused(_)) => Ok(false),
            Err(error @ BrokerError::Unavailable(_)) => Err(error),
        }
    }
}

/// Removes bindings. Returns the bindings that the broker refuses to remove, each with the broker's reason.
pub async fn remove_bindings<'a>(
    bindings: &'a [DeclaredBinding],
    broker: &BrokerEndpoint,
    connection: &Connection,
) -> Result<Vec<(&'a DeclaredBinding, String)>, BrokerError> {
    let mut refused = Vec::new();
    for binding in bindings {
        match binding.remove(broker, connection).await {
            Ok(()) => {}
            Err(BrokerError::Refused(reason)) => refused.push((binding, reason)),
            Err(error @ BrokerError::Unavailable(_)) => return Err(error),
        }
    }
    Ok(refused)
}

impl fmt::Display for DeclaredBinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, destination, to_queue, routing_key } = self;
        let kind = if *to_queue { "queue" } else { "exchange" };
        write!(f, "from exchange {source:?} to {kind} {destination:?}")?;
        if routing_key.is_empty() { Ok(()) } else { write!(f, " with routing key {routing_key:?}") }
    }
}
