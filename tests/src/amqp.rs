//! A client of the broker, like the programs that users of Ordain write. The client publishes events and receives
//! messages.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures_util::StreamExt as _;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, ExchangeDeclareOptions, ExchangeDeleteOptions, ExchangeUnbindOptions,
    QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions, QueuePurgeOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, Consumer,
    ExchangeKind,
};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::time::timeout;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(5);
/// [`Client::take`] fails after this time without a message, and [`Client::publish`] repeats rejected messages for this
/// time.
const QUIET_TIMEOUT: Duration = Duration::from_mins(1);
/// [`Client::take_all`] stops after this time without a message.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);
/// [`Client::take_all`] acknowledges this number of messages together.
const ACK_COUNT: usize = 500;
/// The longest time between two deliveries that the client acknowledges together.
const ACK_DELAY: Duration = Duration::from_millis(100);
/// The limit of unconfirmed messages and of the prefetch.
const CONFIRM_LIMIT: usize = 2_000;

/// A connection with a channel for declarations and publishing. Every method blocks the thread until the broker has
/// answered.
pub struct Client {
    runtime: Runtime,
    connection: Connection,
    channel: Channel,
}

/// A message that [`Client::publish`] sends to an exchange.
pub struct Outgoing {
    /// The routing key. Unless the setting `key` of a stream names a header, the routing key is the key of the event.
    pub routing_key: String,
    /// The AMQP properties, including the headers.
    pub properties: BasicProperties,
    /// The body, which contains the data of the event.
    pub body: Vec<u8>,
}

impl Client {
    /// Connects to the broker at `url`, and opens a channel with confirms.
    pub fn connect(url: &str) -> Result<Self> {
        let runtime = Runtime::new()?;
        let opened = runtime.block_on(async { timeout(CONNECT_TIMEOUT, open(url)).await });
        let (connection, channel) =
            opened.context("the broker did not open a connection and a channel in time")??;
        Ok(Self { runtime, connection, channel })
    }

    /// Declares a durable quorum queue.
    pub fn queue(&self, name: &str) -> Result<()> {
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        self.queue_with(name, arguments)
    }

    /// Declares a durable queue with arguments, which determine for example its type and its limits.
    pub fn queue_with(&self, name: &str, arguments: FieldTable) -> Result<()> {
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let declared = self.channel.queue_declare(name.into(), options, arguments);
        self.runtime.block_on(declared)?;
        Ok(())
    }

    /// Deletes a queue and its messages.
    pub fn delete_queue(&self, name: &str) -> Result<()> {
        let deleted = self.channel.queue_delete(name.into(), QueueDeleteOptions::default());
        self.runtime.block_on(deleted)?;
        Ok(())
    }

    /// Removes the messages that wait in a queue. Messages that a consumer has received but not acknowledged remain.
    pub fn purge_queue(&self, name: &str) -> Result<()> {
        let purged = self.channel.queue_purge(name.into(), QueuePurgeOptions::default());
        self.runtime.block_on(purged)?;
        Ok(())
    }

    /// Declares a durable exchange.
    pub fn exchange(&self, name: &str, kind: ExchangeKind) -> Result<()> {
        self.exchange_with(name, kind, FieldTable::default())
    }

    /// Declares a durable exchange with arguments, for example with an alternate exchange.
    pub fn exchange_with(
        &self,
        name: &str,
        kind: ExchangeKind,
        arguments: FieldTable,
    ) -> Result<()> {
        let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let declared = self.channel.exchange_declare(name.into(), kind, options, arguments);
        Ok(self.runtime.block_on(declared)?)
    }

    /// Deletes an exchange and its bindings.
    pub fn delete_exchange(&self, name: &str) -> Result<()> {
        let deleted = self.channel.exchange_delete(name.into(), ExchangeDeleteOptions::default());
        Ok(self.runtime.block_on(deleted)?)
    }

    /// Binds a queue to an exchange, with the binding key `key`.
    pub fn bind(&self, queue: &str, exchange: &str, key: &str) -> Result<()> {
        let options = QueueBindOptions::default();
        let nothing = FieldTable::default();
        let bound =
            self.channel.queue_bind(queue.into(), exchange.into(), key.into(), options, nothing);
        Ok(self.runtime.block_on(bound)?)
    }

    /// Removes the binding with the binding key `key` between a queue and an exchange.
    pub fn unbind(&self, queue: &str, exchange: &str, key: &str) -> Result<()> {
        let nothing = FieldTable::default();
        let unbound = self.channel.queue_unbind(queue.into(), exchange.into(), key.into(), nothing);
        Ok(self.runtime.block_on(unbound)?)
    }

    /// Removes the binding of the exchange `to` to the exchange `from` that has the binding key `key`.
    pub fn unbind_exchange(&self, to: &str, from: &str, key: &str) -> Result<()> {
        let options = ExchangeUnbindOptions::default();
        let nothing = FieldTable::default();
        let unbound =
            self.channel.exchange_unbind(to.into(), from.into(), key.into(), options, nothing);
        Ok(self.runtime.block_on(unbound)?)
    }

    /// Publishes messages, and waits until the broker confirms each of them. Publishes a rejected message again,
    /// because the broker rejects messages for a moment while a quorum queue has no leader. Fails if a message is
    /// unroutable, or if the broker still rejects messages after a minute.
    pub fn publish(&self, exchange: &str, messages: &[Outgoing]) -> Result<()> {
        let started = Instant::now();
        self.runtime.block_on(async {
            let mut left: Vec<&Outgoing> = messages.iter().collect();
            while !left.is_empty() {
                ensure!(
                    started.elapsed() < QUIET_TIMEOUT,
                    "the broker still rejects {} messages",
                    left.len()
                );
                let mut refused = Vec::new();
                for part in left.chunks(CONFIRM_LIMIT) {
                    let answers = self.publish_once(exchange, part).await?;
                    for (answer, message) in answers.into_iter().zip(part) {
                        if !answer.is_ack() {
                            refused.push(*message);
                        }
                        if let Some(returned) = answer.take_message() {
                            bail!(
                                "the broker returned a message to the exchange {exchange:?} that no queue receives: \
                                 {} {}",
                                returned.reply_code,
                                returned.reply_text
                            );
                        }
                    }
                }
                left = refused;
            }
            Ok(())
        })
    }

    /// Publishes messages without retries. Returns whether the broker confirmed all messages and returned none of them
    /// as unroutable. Fails if the broker closes the connection or the channel, or if a confirm is missing after five
    /// seconds. Even if this function fails or returns false, some of the messages may be in a queue.
    pub fn try_publish(&self, exchange: &str, messages: &[Outgoing]) -> Result<bool> {
        let messages: Vec<&Outgoing> = messages.iter().collect();
        let answers = self.runtime.block_on(async {
            timeout(CONFIRM_TIMEOUT, self.publish_once(exchange, &messages)).await
        });
        let answers = answers.context("the broker did not confirm the messages in time")??;
        let is_accepted = |answer: Confirmation| answer.is_ack() && answer.take_message().is_none();
        Ok(answers.into_iter().all(is_accepted))
    }

    /// Returns the broker's answer to each message, without retries.
    async fn publish_once(
        &self,
        exchange: &str,
        messages: &[&Outgoing],
    ) -> Result<Vec<Confirmation>> {
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let mut confirms = Vec::new();
        for Outgoing { routing_key, properties, body } in messages {
            let exchange = exchange.into();
            let key = routing_key.as_str().into();
            let sent = self.channel.basic_publish(exchange, key, options, body, properties.clone());
            confirms.push(sent.await?);
        }
        let mut answers = Vec::new();
        for confirm in confirms {
            answers.push(confirm.await?);
        }
        Ok(answers)
    }

    /// Receives `count` messages of a queue and acknowledges them. One acknowledgement covers all messages that arrive
    /// together. With an acknowledgement for each message, many acknowledgements could still be on their way to a
    /// quorum queue when the client closes the channel. The queue would drop some of them, and the broker would deliver
    /// their messages again.
    pub fn take(&self, queue: &str, count: usize) -> Result<Vec<Delivery>> {
        self.take_counted(queue, count, |_| Ok(true))
    }

    /// Receives messages as [`Self::take`] does, until `is_counted` has returned `true` for `count` messages. Do not
    /// call [`Self::take`] several times instead: the end of each call requeues messages, and the next call could
    /// receive later messages before the requeued messages.
    pub fn take_counted(
        &self,
        queue: &str,
        count: usize,
        mut is_counted: impl FnMut(&Delivery) -> Result<bool>,
    ) -> Result<Vec<Delivery>> {
        self.runtime.block_on(async {
            // When the channel is closed, the broker requeues the deliveries beyond `count`. RabbitMQ 4 drops a message
            // that it has requeued 20 times. The prefetch therefore limits the deliveries beyond `count`.
            let prefetch = count.min(CONFIRM_LIMIT) as u16;
            let (channel, mut consumer) = self.consume(queue, Some(prefetch)).await?;
            let mut taken = Vec::<Delivery>::new();
            let mut acknowledged = 0;
            let mut counted = 0;
            let mut last = Instant::now();
            while counted < count {
                match timeout(ACK_DELAY, consumer.next()).await {
                    Ok(Some(delivery)) => {
                        let delivery = delivery?;
                        counted += usize::from(is_counted(&delivery)?);
                        taken.push(delivery);
                        last = Instant::now();
                    }
                    Err(_) if last.elapsed() < QUIET_TIMEOUT => {}
                    _ => {
                        bail!("{counted} counted messages arrived from the queue {queue} instead of {count}")
                    }
                }
                let open = taken.len() - acknowledged;
                let pauses = last.elapsed() >= ACK_DELAY || open >= CONFIRM_LIMIT / 2;
                if open > 0 && (pauses || counted == count) {
                    let last = taken.last().expect("at least one unacknowledged delivery");
                    last.ack(BasicAckOptions { multiple: true }).await?;
                    acknowledged = taken.len();
                }
            }
            channel.close(200, "done".into()).await?;
            Ok(taken)
        })
    }

    /// Receives and acknowledges the messages of a queue until the queue has no ready message and no message arrives
    /// for a second.
    pub fn take_all(&self, queue: &str) -> Result<Vec<Delivery>> {
        self.runtime.block_on(async {
            let mut taken: Vec<Delivery> = Vec::new();
            loop {
                let (channel, mut consumer) = self.consume(queue, None).await?;
                let mut unacknowledged = 0;
                loop {
                    let next = timeout(IDLE_TIMEOUT, consumer.next()).await.ok().flatten();
                    let is_last = next.is_none();
                    if let Some(delivery) = next {
                        taken.push(delivery?);
                        unacknowledged += 1;
                    }
                    // The broker delivers only a limited number of messages that the client has not acknowledged.
                    if unacknowledged == ACK_COUNT || (is_last && unacknowledged > 0) {
                        let newest = taken.last().context("an unacknowledged message")?;
                        newest.ack(BasicAckOptions { multiple: true }).await?;
                        unacknowledged = 0;
                    }
                    if is_last {
                        break;
                    }
                }
                // When the channel closes, the broker requeues the messages that have not reached the client.
                channel.close(200, "done".into()).await?;
                if self.ready_messages(queue).await? == 0 {
                    return Ok(taken);
                }
            }
        })
    }

    /// Receives `count` messages of a queue, drops some of them, and publishes the others to an exchange. `is_lost`
    /// gets the index of a message, from 0, and returns whether to drop the message. Returns the number of dropped
    /// messages.
    pub fn lose(
        &self,
        queue: &str,
        exchange: &str,
        count: usize,
        is_lost: impl Fn(usize) -> bool,
    ) -> Result<usize> {
        let taken = self.take(queue, count)?.into_iter().enumerate();
        let left = taken.filter(|(at, _)| !is_lost(*at)).map(|(_, delivery)| Outgoing {
            routing_key: delivery.routing_key.to_string(),
            properties: delivery.properties,
            body: delivery.data,
        });
        let left: Vec<Outgoing> = left.collect();
        self.publish(exchange, &left)?;
        Ok(count - left.len())
    }

    /// Consumes a queue with a prefetch of 1: receives one message, if the queue has one, and does not acknowledge it.
    pub fn hold(&self, queue: &str) -> Result<(Channel, Consumer)> {
        self.hold_up_to(queue, 1)
    }

    /// Consumes a queue with this prefetch: receives at most `prefetch` messages, and does not acknowledge them.
    pub fn hold_up_to(&self, queue: &str, prefetch: u16) -> Result<(Channel, Consumer)> {
        self.runtime.block_on(self.consume(queue, Some(prefetch)))
    }

    /// Counts the messages that no consumer has received.
    async fn ready_messages(&self, queue: &str) -> Result<u32> {
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let channel = self.connection.create_channel().await?;
        let found = channel.queue_declare(queue.into(), options, FieldTable::default()).await?;
        channel.close(200, "done".into()).await?;
        Ok(found.message_count())
    }

    /// Uses a separate channel. Without a prefetch, only the broker limits the number of unacknowledged deliveries.
    async fn consume(&self, queue: &str, prefetch: Option<u16>) -> Result<(Channel, Consumer)> {
        let channel = self.connection.create_channel().await?;
        if let Some(prefetch) = prefetch {
            channel.basic_qos(prefetch, BasicQosOptions::default()).await?;
        }
        let options = BasicConsumeOptions::default();
        let nothing = FieldTable::default();
        let consumer = channel.basic_consume(queue.into(), "".into(), options, nothing).await?;
        Ok((channel, consumer))
    }

    /// Closes the channel of [`Self::hold`] or [`Self::hold_up_to`], so that the broker requeues the messages.
    pub fn release(&self, (channel, _): (Channel, Consumer)) -> Result<()> {
        Ok(self.runtime.block_on(channel.close(200, "done".into()))?)
    }

    /// Closes the connection, and waits until the broker has confirmed the close.
    pub fn close(self) -> Result<()> {
        Ok(self.runtime.block_on(self.connection.close(200, "done".into()))?)
    }
}

async fn open(url: &str) -> Result<(Connection, Channel)> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    Ok((connection, channel))
}

/// Converts a line of a file, which is a CloudEvent, into a message: the key becomes the routing key, and the data
/// becomes the body. The id and the type become properties. The sequence and the attribute `endofsequence` become
/// headers.
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

/// Converts a message of a sink into the line that a file sink would write, with only the fields that the tests check.
pub fn to_line(delivery: &Delivery) -> Result<String> {
    let properties = &delivery.properties;
    let id = properties.message_id().as_ref().context("an id")?.to_string();
    let data: Value = serde_json::from_slice(&delivery.data)?;
    Ok(json!({ "id": id, "subject": header(delivery, "X-Key"), "data": data }).to_string())
}

/// Returns the value of a header of a message: a text unchanged, and any other value in its debug form.
pub fn header(delivery: &Delivery, name: &str) -> Option<String> {
    let headers = delivery.properties.headers().as_ref()?;
    match headers.inner().get(name)? {
        AMQPValue::LongString(text) => Some(text.to_string()),
        other => Some(format!("{other:?}")),
    }
}
