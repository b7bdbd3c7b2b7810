//! A client of a broker, as those who use Ordain have one: publishes events, and takes messages.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures_util::StreamExt as _;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
    QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, Consumer, ExchangeKind};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::time::timeout;

/// How long nothing may come before there is nothing more.
const QUIET: Duration = Duration::from_mins(1);
/// How long nothing may come before what has come is looked at.
const PAUSE: Duration = Duration::from_secs(1);
/// What comes no further apart is acknowledged together.
const TOGETHER: Duration = Duration::from_millis(100);
/// Messages published before their confirms are waited for.
const OUTSTANDING: usize = 2_000;

/// A connection with one channel. Every method blocks.
pub struct Client {
    runtime: Runtime,
    connection: Connection,
    channel: Channel,
}

/// One to be published.
pub struct Outgoing {
    /// Its routing key.
    pub routing_key: String,
    /// Its properties and headers.
    pub properties: BasicProperties,
    /// Its body.
    pub body: Vec<u8>,
}

impl Client {
    /// Connects.
    pub fn connect(url: &str) -> Result<Self> {
        let runtime = Runtime::new()?;
        let (connection, channel) = runtime.block_on(async {
            let connection = Connection::connect(url, ConnectionProperties::default()).await?;
            let channel = connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            anyhow::Ok((connection, channel))
        })?;
        Ok(Self { runtime, connection, channel })
    }

    /// Declares a durable quorum queue.
    pub fn queue(&self, name: &str) -> Result<()> {
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        self.queue_with(name, arguments)
    }

    /// Declares a durable queue with arguments.
    pub fn queue_with(&self, name: &str, arguments: FieldTable) -> Result<()> {
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let declared = self.channel.queue_declare(name.into(), options, arguments);
        self.runtime.block_on(declared)?;
        Ok(())
    }

    /// Deletes a queue, with its messages.
    pub fn delete_queue(&self, name: &str) -> Result<()> {
        let deleted = self.channel.queue_delete(name.into(), QueueDeleteOptions::default());
        self.runtime.block_on(deleted)?;
        Ok(())
    }

    /// Declares a durable exchange.
    pub fn exchange(&self, name: &str, kind: ExchangeKind) -> Result<()> {
        let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let declared =
            self.channel.exchange_declare(name.into(), kind, options, FieldTable::default());
        Ok(self.runtime.block_on(declared)?)
    }

    /// Binds a queue to an exchange.
    pub fn bind(&self, queue: &str, exchange: &str, key: &str) -> Result<()> {
        let (options, nothing) = (QueueBindOptions::default(), FieldTable::default());
        let bound =
            self.channel.queue_bind(queue.into(), exchange.into(), key.into(), options, nothing);
        Ok(self.runtime.block_on(bound)?)
    }

    /// Publishes, and waits until the broker has each. What it refuses, as it does while a queue has
    /// no leader, is published again.
    pub fn publish(&self, exchange: &str, messages: &[Outgoing]) -> Result<()> {
        let started = Instant::now();
        self.runtime.block_on(async {
            let mut left: Vec<&Outgoing> = messages.iter().collect();
            while !left.is_empty() {
                ensure!(started.elapsed() < QUIET, "{} messages are refused", left.len());
                let mut refused = Vec::new();
                for part in left.chunks(OUTSTANDING) {
                    refused.extend(self.publish_once(exchange, part).await?);
                }
                left = refused;
            }
            Ok(())
        })
    }

    /// Those that were refused.
    async fn publish_once<'a>(
        &self,
        exchange: &str,
        messages: &[&'a Outgoing],
    ) -> Result<Vec<&'a Outgoing>> {
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let mut confirms = Vec::new();
        for Outgoing { routing_key, properties, body } in messages {
            let (exchange, key) = (exchange.into(), routing_key.as_str().into());
            let sent = self.channel.basic_publish(exchange, key, options, body, properties.clone());
            confirms.push(sent.await?);
        }
        let mut refused = Vec::new();
        for (confirm, message) in confirms.into_iter().zip(messages) {
            let confirm = confirm.await?;
            if !confirm.is_ack() {
                refused.push(*message);
            }
            ensure!(confirm.take_message().is_none(), "a message has no queue");
        }
        Ok(refused)
    }

    /// So many messages of a queue, which are acknowledged: together where they come together, since a
    /// channel that is closed with many acknowledgements on their way to a quorum queue drops some, and
    /// what they were for comes again.
    pub fn take(&self, queue: &str, count: usize) -> Result<Vec<Delivery>> {
        self.runtime.block_on(async {
            // What comes beyond them goes back with the end of the channel.
            let (channel, mut consumer) = self.consume(queue, Some(OUTSTANDING as u16)).await?;
            let (mut taken, mut acknowledged) = (Vec::<Delivery>::new(), 0);
            let mut last = Instant::now();
            while taken.len() < count {
                match timeout(TOGETHER, consumer.next()).await {
                    Ok(Some(delivery)) => {
                        taken.push(delivery?);
                        last = Instant::now();
                    }
                    Err(_) if last.elapsed() < QUIET => {}
                    _ => {
                        bail!("{} messages came to {queue}, and {count} were to come", taken.len())
                    }
                }
                let open = taken.len() - acknowledged;
                let pauses = last.elapsed() >= TOGETHER || open >= OUTSTANDING / 2;
                if open > 0 && (pauses || taken.len() == count) {
                    let last = taken.last().expect("one is open");
                    last.ack(BasicAckOptions { multiple: true }).await?;
                    acknowledged = taken.len();
                }
            }
            channel.close(200, "done".into()).await?;
            Ok(taken)
        })
    }

    /// The messages of a queue, until none comes for a while, acknowledged.
    pub fn take_all(&self, queue: &str) -> Result<Vec<Delivery>> {
        self.runtime.block_on(async {
            let (channel, mut consumer) = self.consume(queue, None).await?;
            let mut taken = Vec::new();
            while let Ok(Some(delivery)) = timeout(PAUSE, consumer.next()).await {
                let delivery: Delivery = delivery?;
                taken.push(delivery);
            }
            if let Some(last) = taken.last() {
                last.ack(BasicAckOptions { multiple: true }).await?;
            }
            channel.close(200, "done".into()).await?;
            Ok(taken)
        })
    }

    /// Takes so many messages of a queue and loses some, by their place in it; the others go back by its
    /// exchange. How many are lost.
    pub fn lose(
        &self,
        queue: &str,
        exchange: &str,
        count: usize,
        is_lost: impl Fn(usize) -> bool,
    ) -> Result<usize> {
        let taken = self.take(queue, count)?.into_iter().enumerate();
        let left = taken.filter(|(at, _)| !is_lost(*at)).map(|(_, it)| Outgoing {
            routing_key: it.routing_key.to_string(),
            properties: it.properties,
            body: it.data,
        });
        let left: Vec<Outgoing> = left.collect();
        self.publish(exchange, &left)?;
        Ok(count - left.len())
    }

    /// Becomes the consumer of a queue, takes one message when there is one, and keeps it.
    pub fn hold(&self, queue: &str) -> Result<(Channel, Consumer)> {
        self.runtime.block_on(self.consume(queue, Some(1)))
    }

    /// A consumer on a channel of its own; without a prefetch it gets all that there is.
    async fn consume(&self, queue: &str, prefetch: Option<u16>) -> Result<(Channel, Consumer)> {
        let channel = self.connection.create_channel().await?;
        if let Some(prefetch) = prefetch {
            channel.basic_qos(prefetch, BasicQosOptions::default()).await?;
        }
        let (options, nothing) = (BasicConsumeOptions::default(), FieldTable::default());
        let consumer = channel.basic_consume(queue.into(), "".into(), options, nothing).await?;
        Ok((channel, consumer))
    }

    /// Gives back what [`Self::hold`] has.
    pub fn release(&self, (channel, _): (Channel, Consumer)) -> Result<()> {
        Ok(self.runtime.block_on(channel.close(200, "done".into()))?)
    }

    /// Ends in order.
    pub fn close(self) -> Result<()> {
        Ok(self.runtime.block_on(self.connection.close(200, "done".into()))?)
    }
}

/// A line of a file of CloudEvents as a message: the key is the routing key, the body the data.
pub fn from_line(line: &str) -> Result<Outgoing> {
    #[derive(serde::Deserialize)]
    struct Line<'a> {
        id: String,
        subject: String,
        sequence: Option<Value>,
        #[serde(default)]
        endofsequence: bool,
        r#type: String,
        #[serde(borrow)]
        data: &'a RawValue,
    }
    let line: Line<'_> = serde_json::from_str(line).with_context(|| line.to_owned())?;
    let mut headers = FieldTable::default();
    if let Some(sequence) = line.sequence {
        let text = sequence.as_str().map_or_else(|| sequence.to_string(), str::to_owned);
        headers.insert("X-Sequence-ID".into(), AMQPValue::LongString(text.into()));
    }
    if line.endofsequence {
        headers.insert("X-End-Of-Sequence".into(), AMQPValue::Boolean(true));
    }
    Ok(Outgoing {
        routing_key: line.subject,
        properties: BasicProperties::default()
            .with_message_id(line.id.into())
            .with_type(line.r#type.into())
            .with_content_type("application/json".into())
            .with_delivery_mode(2)
            .with_headers(headers),
        body: line.data.get().as_bytes().to_vec(),
    })
}

/// A message of a sink as a file sink would have written it, as far as checks look at it.
pub fn to_line(delivery: &Delivery) -> Result<String> {
    let properties = &delivery.properties;
    let id = properties.message_id().as_ref().context("an id")?.to_string();
    let data: Value = serde_json::from_slice(&delivery.data)?;
    Ok(json!({ "id": id, "subject": header(delivery, "X-Key"), "data": data }).to_string())
}

/// A header of a message that is a text.
pub fn header(delivery: &Delivery, name: &str) -> Option<String> {
    let headers = delivery.properties.headers().as_ref()?;
    match headers.inner().get(name)? {
        AMQPValue::LongString(text) => Some(text.to_string()),
        other => Some(format!("{other:?}")),
    }
}
