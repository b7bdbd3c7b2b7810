//! The exchange, queues and bindings of a stream: made where they are missing, or looked for.
//!
//! All of a stream's queues are quorum queues with a single active consumer. What the broker drops
//! of them all the same (a policy that limits their length, say) goes to a queue of its own.

use lapin::options::{
    ExchangeBindOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::protocol::{AMQPErrorKind, AMQPHardError};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ErrorKind, ExchangeKind};

use super::connect::{Broker, BrokerError};
use ordain_config::{AmqpSource, Bind};

/// Spreads routing keys over queues, always in the same way (plugin `rabbitmq_sharding`).
const SPREADING: &str = "x-modulus-hash";
/// How often a queue delivers a message before it drops it.
const DELIVERY_LIMIT: &str = "x-delivery-limit";
/// A kind of exchange that there is from RabbitMQ 4.0 on.
const OF_FOUR: &str = "x-local-random";

/// What a stream needs in the broker.
#[derive(Debug, Clone)]
pub struct Topology {
    exchange: Option<String>,
    queue: String,
    partitions: u32,
    bind: Vec<Bind>,
    declare: bool,
}

impl Topology {
    /// As configured.
    pub fn of(source: &AmqpSource) -> Self {
        Self {
            exchange: source.exchange.as_ref().map(|exchange| exchange.0.clone()),
            queue: source.queue.0.clone(),
            partitions: source.partitions,
            bind: source.bind.clone(),
            declare: source.declare,
        }
    }

    /// The queue of a partition.
    pub fn queue(&self, partition: u32) -> String {
        if self.partitions == 1 {
            self.queue.clone()
        } else {
            format!("{}.{partition}", self.queue)
        }
    }

    /// Makes what is missing, or looks for it. Queues of which `known` says so must be there: what
    /// was in them is lost with them.
    pub async fn prepare(
        &self,
        broker: &Broker,
        connection: &Connection,
        known: bool,
    ) -> Result<(), BrokerError> {
        if !self.declare || known {
            for partition in 0..self.partitions {
                self.look_for(broker, connection, partition).await?;
            }
        }
        if !self.declare {
            return self.look_for_exchange(broker, connection).await;
        }
        let is_limited = is_limited(broker, &self.queue).await?;
        let failed = |error| broker.error(&error);
        let channel = connection.create_channel().await.map_err(failed)?;
        self.declare_dropped(&channel).await.map_err(failed)?;
        for partition in 0..self.partitions {
            self.declare_queue(&channel, partition, is_limited).await.map_err(|error| {
                explained(broker.error(&error), &self.queue(partition), "queue")
            })?;
        }
        if let Some(exchange) = &self.exchange {
            self.declare_exchange(&channel, exchange)
                .await
                .map_err(|error| explained(broker.error(&error), exchange, "exchange"))?;
        }
        channel.close(200, "done".into()).await.map_err(failed)
    }

    /// A queue that is not there is an error that names it.
    async fn look_for(
        &self,
        broker: &Broker,
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
                "the queue {queue:?} is needed and cannot be used: {words}"
            ))),
            Err(error) => Err(error),
        }
    }

    async fn look_for_exchange(
        &self,
        broker: &Broker,
        connection: &Connection,
    ) -> Result<(), BrokerError> {
        let Some(exchange) = &self.exchange else { return Ok(()) };
        let failed = |error| broker.error(&error);
        let channel = connection.create_channel().await.map_err(failed)?;
        let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
        let found = channel.exchange_declare(
            exchange.as_str().into(),
            self.kind(),
            options,
            FieldTable::default(),
        );
        match found.await.map_err(failed) {
            Ok(()) => channel.close(200, "done".into()).await.map_err(failed),
            Err(BrokerError::Refused(words)) => Err(BrokerError::Refused(format!(
                "the exchange {exchange:?} is needed and cannot be used: {words}"
            ))),
            Err(error) => Err(error),
        }
    }

    fn kind(&self) -> ExchangeKind {
        if self.partitions == 1 {
            ExchangeKind::Fanout
        } else {
            ExchangeKind::Custom(SPREADING.to_owned())
        }
    }

    fn dropped(&self) -> String {
        format!("{}.dropped", self.queue)
    }

    /// Where the broker puts what it drops.
    async fn declare_dropped(&self, channel: &Channel) -> lapin::Result<()> {
        let name = self.dropped();
        let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let (kind, nothing) = (ExchangeKind::Fanout, FieldTable::default);
        channel.exchange_declare(name.as_str().into(), kind, durable, nothing()).await?;
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), text("quorum"));
        channel.queue_declare(name.as_str().into(), durable, arguments).await?;
        let options = QueueBindOptions::default();
        let (queue, exchange) = (name.as_str().into(), name.as_str().into());
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
        arguments.insert("x-queue-type".into(), text("quorum"));
        arguments.insert("x-single-active-consumer".into(), AMQPValue::Boolean(true));
        arguments.insert("x-dead-letter-exchange".into(), text(&self.dropped()));
        if is_limited {
            arguments.insert(DELIVERY_LIMIT.into(), AMQPValue::LongInt(-1));
        }
        let queue = self.queue(partition);
        channel.queue_declare(queue.as_str().into(), durable, arguments).await.map(drop)
    }

    /// The exchange, with the queues behind it before anything leads to it.
    async fn declare_exchange(&self, channel: &Channel, exchange: &str) -> lapin::Result<()> {
        let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let nothing = FieldTable::default;
        channel.exchange_declare(exchange.into(), self.kind(), durable, nothing()).await?;
        for partition in 0..self.partitions {
            let (queue, options) = (self.queue(partition), QueueBindOptions::default());
            let queue = queue.as_str().into();
            channel.queue_bind(queue, exchange.into(), "".into(), options, nothing()).await?;
        }
        for Bind { exchange: from, routing_key } in &self.bind {
            let (from, key) = (from.0.as_str().into(), routing_key.0.as_str().into());
            let options = ExchangeBindOptions::default();
            channel.exchange_bind(exchange.into(), from, key, options, nothing()).await?;
        }
        Ok(())
    }
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

/// What helps where something is there in another form, or the plugin is not.
fn explained(error: BrokerError, name: &str, what: &str) -> BrokerError {
    let BrokerError::Refused(words) = error else { return error };
    let advice = if words.contains("inequivalent") && words.contains(DELIVERY_LIMIT) {
        "it was made before RabbitMQ 4.0, and has a delivery limit since: take what is in it, \
         remove it, and start again"
    } else if words.contains("inequivalent") {
        "remove it, use another name, or use it as it is with declare = false"
    } else if words.contains(SPREADING) {
        "more than one partition needs a plugin that comes with RabbitMQ: `rabbitmq-plugins enable \
         rabbitmq_sharding`"
    } else {
        "make it by hand and set declare = false, or allow the user to"
    };
    BrokerError::Refused(format!("the {what} {name:?} cannot be declared: {words}. Here {advice}"))
}

/// Whether a queue has a delivery limit unless it says that it has none: from 4.0 on. Before, one
/// that says so loses its messages. A broker does not tell its version to this client.
async fn is_limited(broker: &Broker, queue: &str) -> Result<bool, BrokerError> {
    let connection = broker.connect("ordain: which version").await?;
    let channel = connection.create_channel().await.map_err(|error| broker.error(&error))?;
    let options = ExchangeDeclareOptions { auto_delete: true, ..ExchangeDeclareOptions::default() };
    let kind = ExchangeKind::Custom(OF_FOUR.to_owned());
    let name = format!("{queue}.version.{:016x}", rand::random::<u64>());
    let declared =
        channel.exchange_declare(name.as_str().into(), kind, options, FieldTable::default()).await;
    match declared {
        Ok(()) => {
            let options = lapin::options::ExchangeDeleteOptions::default();
            // It is gone with the next restart of the broker at the latest.
            let _ = channel.exchange_delete(name.as_str().into(), options).await;
            let _ = connection.close(200, "done".into()).await;
            Ok(true)
        }
        Err(error) if is_unknown_kind(&error) => Ok(false),
        Err(error) => match broker.error(&error) {
            BrokerError::Refused(words) => Err(BrokerError::Refused(format!(
                "an exchange `{queue}.version.*`, which tells by its kind what the broker can do, \
                 cannot be declared: {words}. Here allow the user to configure names that begin \
                 with {queue:?}, or make everything by hand and set declare = false"
            ))),
            away @ BrokerError::Away(_) => Err(away),
        },
    }
}

fn is_unknown_kind(error: &lapin::Error) -> bool {
    let ErrorKind::ProtocolError(error) = error.kind() else { return false };
    matches!(error.kind(), AMQPErrorKind::Hard(AMQPHardError::COMMANDINVALID))
}
