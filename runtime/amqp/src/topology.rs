//! The exchange, queues and bindings of a stream. This module declares them if they are missing, or, with `declare =
//! false`, only checks that they exist.
//!
//! All declared queues of a stream are quorum queues with a single active consumer. If the broker drops messages from
//! these queues, for example because of a policy that limits their length, it moves the messages to a separate queue.

use futures_util::future::try_join_all;
use lapin::options::{
    ExchangeBindOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::protocol::{AMQPErrorKind, AMQPHardError};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ErrorKind, ExchangeKind};

use super::connect::{BrokerEndpoint, BrokerError};
use ordain_config::{AmqpSourceConfig, ExchangeBinding};

/// The exchange type that distributes messages over queues by a fixed hash of the routing key. The plugin
/// `rabbitmq_sharding` provides it.
const SHARDING_EXCHANGE_TYPE: &str = "x-modulus-hash";
/// The argument that limits how often a queue delivers a message before it drops the message.
const DELIVERY_LIMIT_ARGUMENT: &str = "x-delivery-limit";
/// An exchange type that exists from RabbitMQ 4.0 on.
const VERSION_4_EXCHANGE_TYPE: &str = "x-local-random";

/// A difference between the broker and the topology of a stream, found while the stream runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TopologyChange {
    /// The queue was missing. It has been declared again with its bindings.
    QueueMissing(String),
    /// The exchange was missing. It has been declared again with its bindings.
    ExchangeMissing(String),
    /// The queue or the exchange cannot be declared: it exists in another form, or the user lacks a right.
    Refused(String),
}

/// The exchange, queues and bindings that a stream needs.
#[derive(Debug, Clone)]
pub struct Topology {
    exchange: Option<String>,
    queue: String,
    partitions: u32,
    bind: Vec<ExchangeBinding>,
    declare: bool,
}

impl Topology {
    /// Returns the topology of a source's configuration.
    pub fn of(source: &AmqpSourceConfig) -> Self {
        Self {
            exchange: source.exchange.as_ref().map(|exchange| exchange.0.clone()),
            queue: source.queue.0.clone(),
            partitions: source.partitions,
            bind: source.bind.clone(),
            declare: source.declare,
        }
    }

    /// Returns whether Ordain declares the queues.
    pub fn is_declared(&self) -> bool {
        self.declare
    }

    /// Returns the name of a partition's queue.
    pub fn queue(&self, partition: u32) -> String {
        if self.partitions == 1 {
            self.queue.clone()
        } else {
            format!("{}.{partition}", self.queue)
        }
    }

    /// Declares the missing exchange, queues and bindings, or checks that they exist. With `known`, all queues must
    /// already exist, because a missing queue means that its messages are lost.
    pub async fn prepare(
        &self,
        broker: &BrokerEndpoint,
        connection: &Connection,
        known: bool,
    ) -> Result<(), BrokerError> {
        if !self.declare || known {
            for partition in 0..self.partitions {
                self.check_queue(broker, connection, partition).await?;
            }
        }
        if !self.declare {
            return self.check_exchange(broker, connection).await;
        }
        let is_limited = broker.has_default_delivery_limit(&self.queue).await?;
        let failed = |error| broker.error(&error);
        let channel = connection.create_channel().await.map_err(failed)?;
        self.declare_dropped(&channel).await.map_err(failed)?;
        for partition in 0..self.partitions {
            self.declare_queue(&channel, partition, is_limited).await.map_err(|error| {
                with_advice(broker.error(&error), &self.queue(partition), "queue")
            })?;
        }
        if let Some(exchange) = &self.exchange {
            self.declare_exchange(&channel, exchange)
                .await
                .map_err(|error| with_advice(broker.error(&error), exchange, "exchange"))?;
        }
        channel.close(200, "done".into()).await.map_err(failed)
    }

    /// Binds a partition's queue to the exchange. With `may_declare`, also checks the form of the queue, and declares a
    /// missing queue again. Without it, a missing queue is an error, and the form is not checked: a check could declare a
    /// queue that has just been removed.
    pub(super) async fn restore_queue(
        &self,
        broker: &BrokerEndpoint,
        connection: &Connection,
        partition: u32,
        may_declare: bool,
    ) -> Result<Option<TopologyChange>, BrokerError> {
        if !self.declare {
            return Ok(None);
        }
        let queue = self.queue(partition);
        let channel = connection.create_channel().await.map_err(|error| broker.error(&error))?;
        if may_declare {
            let is_limited = broker.has_default_delivery_limit(&self.queue).await?;
            if let Err(error) = self.declare_queue(&channel, partition, is_limited).await {
                return refused(with_advice(broker.error(&error), &queue, "queue")).map(Some);
            }
        } else {
            self.check_queue(broker, connection, partition).await?;
        }
        if let Some(exchange) = &self.exchange
            && let Err(error) = self.bind_queue(&channel, exchange, partition).await
        {
            return refused(with_advice(broker.error(&error), exchange, "exchange")).map(Some);
        }
        Ok(None)
    }

    /// Declares the exchange and the bindings again if they have disappeared since the start of the stream. An exchange
    /// that another program has removed and declared again has no bindings, and drops all messages; the broker does not
    /// report that. Uses a connection of its own, because a refused exchange type closes the connection.
    pub(super) async fn restore_exchange(
        &self,
        broker: &BrokerEndpoint,
        stream: &str,
    ) -> Result<Vec<TopologyChange>, BrokerError> {
        let mut changes = Vec::new();
        let Some(exchange) = self.exchange.as_ref().filter(|_| self.declare) else {
            return Ok(changes);
        };
        let connection = match broker.connect(&format!("ordain {stream} topology")).await {
            Ok(connection) => connection,
            Err(error) => return refused(error).map(|change| vec![change]),
        };
        match self.check_exchange(broker, &connection).await {
            Err(BrokerError::Refused(words)) if words.contains("NOT_FOUND") => {
                changes.push(TopologyChange::ExchangeMissing(exchange.clone()));
            }
            Err(error @ BrokerError::Unavailable(_)) => return Err(error),
            Ok(()) | Err(BrokerError::Refused(_)) => {}
        }
        let declared = async {
            let channel = connection.create_channel().await?;
            self.declare_dropped(&channel).await?;
            self.declare_exchange(&channel, exchange).await
        };
        if let Err(error) = declared.await {
            changes.push(refused(with_advice(broker.error(&error), exchange, "exchange"))?);
        }
        // The declarations are done, so an error of the connection does not matter.
        let _ = connection.close(200, "done".into()).await;
        Ok(changes)
    }

    /// Checks that a partition's queue exists. The error names the queue.
    async fn check_queue(
        &self,
        broker: &BrokerEndpoint,
        connection: &Connection,
        partition: u32,
    ) -> Result<(), BrokerError> {
        let failed = |error| broker.error(&error);
        let channel = connection.create_channel().await.map_err(failed)?;
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let queue = self.queue(partition);
        let found = channel.queue_declare(queue.as_str().into(), options, FieldTable::default());
        match found.await.map_err(failed) {
            Ok(_) => channel.close(200, "done".into()).await.map_err(failed),
            Err(BrokerError::Refused(words)) => Err(BrokerError::Refused(format!(
                "the queue {queue:?} is required and cannot be used: {words}"
            ))),
            Err(error) => Err(error),
        }
    }

    async fn check_exchange(
        &self,
        broker: &BrokerEndpoint,
        connection: &Connection,
    ) -> Result<(), BrokerError> {
        let Some(exchange) = &self.exchange else { return Ok(()) };
        let failed = |error| broker.error(&error);
        let channel = connection.create_channel().await.map_err(failed)?;
        let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
        let found = channel.exchange_declare(
            exchange.as_str().into(),
            self.exchange_kind(),
            options,
            FieldTable::default(),
        );
        match found.await.map_err(failed) {
            Ok(()) => channel.close(200, "done".into()).await.map_err(failed),
            Err(BrokerError::Refused(words)) => Err(BrokerError::Refused(format!(
                "the exchange {exchange:?} is required and cannot be used: {words}"
            ))),
            Err(error) => Err(error),
        }
    }

    fn exchange_kind(&self) -> ExchangeKind {
        if self.partitions == 1 {
            ExchangeKind::Fanout
        } else {
            ExchangeKind::Custom(SHARDING_EXCHANGE_TYPE.to_owned())
        }
    }

    fn dropped_name(&self) -> String {
        format!("{}.dropped", self.queue)
    }

    /// Declares the exchange and the queue that receive the messages that the broker drops from other queues.
    async fn declare_dropped(&self, channel: &Channel) -> lapin::Result<()> {
        let name = self.dropped_name();
        let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let kind = ExchangeKind::Fanout;
        let nothing = FieldTable::default;
        channel.exchange_declare(name.as_str().into(), kind, durable, nothing()).await?;
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), long_string("quorum"));
        channel.queue_declare(name.as_str().into(), durable, arguments).await?;
        let options = QueueBindOptions::default();
        let queue = name.as_str().into();
        let exchange = name.as_str().into();
        channel.queue_bind(queue, exchange, "".into(), options, nothing()).await
    }

    async fn declare_queue(
        &self,
        channel: &Channel,
        partition: u32,
        is_limited: bool,
    ) -> lapin::Result<()> {
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), long_string("quorum"));
        arguments.insert("x-single-active-consumer".into(), AMQPValue::Boolean(true));
        arguments.insert("x-dead-letter-exchange".into(), long_string(&self.dropped_name()));
        if is_limited {
            arguments.insert(DELIVERY_LIMIT_ARGUMENT.into(), AMQPValue::LongInt(-1));
        }
        let queue = self.queue(partition);
        channel.queue_declare(queue.as_str().into(), durable, arguments).await.map(drop)
    }

    async fn bind_queue(
        &self,
        channel: &Channel,
        exchange: &str,
        partition: u32,
    ) -> lapin::Result<()> {
        let queue = self.queue(partition);
        let options = QueueBindOptions::default();
        let nothing = FieldTable::default();
        channel
            .queue_bind(queue.as_str().into(), exchange.into(), "".into(), options, nothing)
            .await
    }

    /// Declares the exchange, and binds its queues before anything routes messages to the exchange.
    async fn declare_exchange(&self, channel: &Channel, exchange: &str) -> lapin::Result<()> {
        let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let nothing = FieldTable::default;
        channel.exchange_declare(exchange.into(), self.exchange_kind(), durable, nothing()).await?;
        // The bindings follow each other at once: an exchange that divides its messages must not do so for long among a
        // part of the queues.
        let partitions = 0..self.partitions;
        try_join_all(partitions.map(|partition| self.bind_queue(channel, exchange, partition)))
            .await?;
        for ExchangeBinding { exchange: from, routing_key } in &self.bind {
            let from = from.0.as_str().into();
            let key = routing_key.0.as_str().into();
            let options = ExchangeBindOptions::default();
            channel.exchange_bind(exchange.into(), from, key, options, nothing()).await?;
        }
        Ok(())
    }
}

/// Returns a refusal as a topology change, and any other error as an error.
fn refused(error: BrokerError) -> Result<TopologyChange, BrokerError> {
    match error {
        BrokerError::Refused(words) => Ok(TopologyChange::Refused(words)),
        away @ BrokerError::Unavailable(_) => Err(away),
    }
}

fn long_string(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

/// Adds advice to a refusal: for a queue or exchange that exists in another form, and for a missing plugin.
fn with_advice(error: BrokerError, name: &str, what: &str) -> BrokerError {
    let BrokerError::Refused(words) = error else { return error };
    let advice = if words.contains("NOT_FOUND") {
        "declare what is missing, or remove it from the configuration"
    } else if words.contains("inequivalent") && words.contains(DELIVERY_LIMIT_ARGUMENT) {
        "it was declared under a version before RabbitMQ 4.0, and later versions set a delivery limit on \
         it: consume its messages, remove it, and start again"
    } else if words.contains("inequivalent") {
        "remove it, use another name, or use it as it is with declare = false"
    } else if words.contains(SHARDING_EXCHANGE_TYPE) {
        "more than one partition needs a plugin that is part of RabbitMQ: `rabbitmq-plugins enable \
         rabbitmq_sharding`"
    } else {
        "declare it by hand and set declare = false, or give the user the permission"
    };
    BrokerError::Refused(format!("the {what} {name:?} cannot be declared: {words}; {advice}"))
}

/// Returns whether the broker sets a default delivery limit on each queue whose declaration does not exclude a limit.
/// RabbitMQ does so from 4.0 on. Earlier versions lose the messages of a queue whose declaration excludes a limit. This
/// client has no access to the broker's version, so the function declares an exchange of a type that only exists from
/// 4.0 on.
pub(super) async fn has_default_delivery_limit(
    broker: &BrokerEndpoint,
    queue: &str,
) -> Result<bool, BrokerError> {
    let connection = broker.connect("ordain: which version").await?;
    let channel = connection.create_channel().await.map_err(|error| broker.error(&error))?;
    let options = ExchangeDeclareOptions { auto_delete: true, ..ExchangeDeclareOptions::default() };
    let kind = ExchangeKind::Custom(VERSION_4_EXCHANGE_TYPE.to_owned());
    let name = format!("{queue}.version.{:016x}", rand::random::<u64>());
    let declared =
        channel.exchange_declare(name.as_str().into(), kind, options, FieldTable::default()).await;
    match declared {
        Ok(()) => {
            let options = lapin::options::ExchangeDeleteOptions::default();
            // If the deletion fails, the exchange disappears with the broker's next restart.
            let _ = channel.exchange_delete(name.as_str().into(), options).await;
            let _ = connection.close(200, "done".into()).await;
            Ok(true)
        }
        Err(error) if is_unknown_kind(&error) => Ok(false),
        Err(error) => match broker.error(&error) {
            BrokerError::Refused(words) => Err(BrokerError::Refused(format!(
                "an exchange `{queue}.version.*`, whose type reveals the broker's version, cannot be declared: \
                 {words}. To fix this, allow the user to configure names that begin with {queue:?}, or declare \
                 everything by hand and set declare = false"
            ))),
            away @ BrokerError::Unavailable(_) => Err(away),
        },
    }
}

fn is_unknown_kind(error: &lapin::Error) -> bool {
    let ErrorKind::ProtocolError(error) = error.kind() else { return false };
    matches!(error.kind(), AMQPErrorKind::Hard(AMQPHardError::COMMANDINVALID))
}
