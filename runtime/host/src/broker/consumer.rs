//! The consumer of one partition's queue: takes deliveries in batches and acknowledges them
//! cumulatively.
//!
//! Deliveries of a channel are numbered by the broker from 1 on. When the channel is lost, whatever
//! ended it, all that was not acknowledged comes again on the next one. So each channel is a
//! generation: its deliveries are told apart from those before, and an acknowledgement that belongs
//! to an earlier one means nothing any more.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use lapin::message::Delivery;
use lapin::options::{BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, Consumer};
use ordain_core::{DeadLetter, Event, LetterContent, LetterId, digest};
use rand::RngExt as _;
use serde_json::{Value, json};
use tokio::sync::watch as latest;
use tokio::sync::{mpsc, oneshot};

use super::connect::{Broker, BrokerError};
use super::decode::{Decoder, OF_THE_QUEUE};
use super::subscription::{Ended, Subscription};
use super::topology::Topology;
use super::value::table;
use super::watch::{Flow, watch};
use super::window::Window;
use crate::driver::Shared;
use crate::source::{Acknowledged, Deliveries, READ_AHEAD, Source};

/// Between two tries to come back, from and to; the next one comes after up to twice as long.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// For all that it takes to consume again.
const SUBSCRIBE: Duration = Duration::from_secs(20);
/// For the last acknowledgement and the end of the channel.
const FAREWELL: Duration = Duration::from_secs(2);

/// What to consume.
#[derive(Debug)]
pub struct ConsumerOptions {
    /// Where the queue is.
    pub broker: Arc<Broker>,
    /// What the stream needs there.
    pub topology: Topology,
    /// The partition.
    pub partition: u32,
    /// The stream, as it is named in messages.
    pub stream: Arc<str>,
    /// Deliveries that are not acknowledged, at most.
    pub prefetch: u16,
    /// What those that are not taken yet may take of memory, in bytes, about.
    pub memory: usize,
    /// Makes events of them.
    pub decoder: Decoder,
    /// A queue that has gone may not be made again: its events had no numbers of their own.
    pub must_be_there: bool,
    /// Where it is shown how many messages wait in the queue.
    pub progress: Arc<Shared>,
}

/// Starts to consume. It goes on through whatever befalls the connection, until nobody takes its
/// deliveries any more.
pub fn start(options: ConsumerOptions) -> Source {
    let (deliver, deliveries) = mpsc::channel(READ_AHEAD);
    let (fail, failure) = oneshot::channel();
    let (acknowledge, acknowledged) = latest::channel(Acknowledged::default());
    let ended = tokio::spawn(async move {
        if let Err(error) = run(&options, &deliver, acknowledged).await {
            // Nobody listens when the process is ending: then it does not matter.
            let _ = fail.send(io::Error::other(error));
        }
    });
    Source { deliveries, failure, acknowledge: Some(acknowledge), ended: Some(ended) }
}

async fn run(
    options: &ConsumerOptions,
    deliver: &mpsc::Sender<Deliveries>,
    mut acknowledged: latest::Receiver<Acknowledged>,
) -> Result<(), BrokerError> {
    let queue = options.topology.queue(options.partition);
    let (mut generation, mut wait, mut lost) = (0, BACKOFF.0, false);
    let mut window = Window::new(options.prefetch, options.memory);
    loop {
        generation += 1;
        let (flow, since) = (Flow::default(), Instant::now());
        let mut reached = false;
        let session = async {
            let subscribed = subscribe(options, &queue, window.now(), generation > 1);
            let (connection, channel, consumer) = in_time(&queue, subscribed).await?;
            reached = true;
            if std::mem::take(&mut lost) {
                tracing::info!(stream = &*options.stream, queue, "consuming again");
            }
            let subscription = Subscription::new(options, generation, &channel, &flow, &mut window);
            let ended = tokio::select! {
                ended = subscription.run(consumer, deliver, &mut acknowledged) => ended,
                error = watch(options, &connection, &queue, &flow) => Err(error),
            };
            options.progress.set_lag(None);
            farewell(&connection, &channel).await;
            ended
        };
        let error = match session.await {
            Ok(Ended::Done) => return Ok(()),
            Ok(Ended::Resized) => continue,
            Err(error) => error,
        };
        if let BrokerError::Refused(_) = &error
            && options.must_be_there
        {
            return Err(error);
        }
        lost = true;
        if reached || generation == 1 || wait == BACKOFF.0 {
            tracing::warn!(
                stream = &*options.stream, queue, %error,
                "the queue is not consumed at the moment; it is tried again"
            );
        } else {
            tracing::debug!(queue, %error, "still not consuming");
        }
        // What is lost at once, and has brought nothing, may go on like that.
        if flow.taken() > 0 || since.elapsed() > BACKOFF.1 {
            wait = BACKOFF.0;
        }
        let jitter = rand::rng().random_range(0.5..1.0);
        tokio::select! {
            () = tokio::time::sleep(wait.mul_f64(jitter)) => {}
            () = deliver.closed() => return Ok(()),
        }
        wait = (2 * wait).min(BACKOFF.1);
    }
}

/// A queue without a leader, which a broker may have after a crash, answers nothing.
async fn in_time<T>(
    queue: &str,
    work: impl Future<Output = Result<T, BrokerError>>,
) -> Result<T, BrokerError> {
    tokio::time::timeout(SUBSCRIBE, work).await.unwrap_or_else(|_| {
        Err(BrokerError::Away(format!(
            "the queue {queue:?} does not answer: if that lasts, start the broker again"
        )))
    })
}

/// A channel on which the queue is consumed.
async fn subscribe(
    options: &ConsumerOptions,
    queue: &str,
    prefetch: u16,
    again: bool,
) -> Result<(Connection, Channel, Consumer), BrokerError> {
    let ConsumerOptions { broker, topology, stream, partition, must_be_there, .. } = options;
    let connection = broker.connect(&format!("ordain {stream} {partition}")).await?;
    let open = async || {
        let channel = connection.create_channel().await?;
        channel.basic_qos(prefetch, BasicQosOptions::default()).await?;
        let (options, nothing) = (BasicConsumeOptions::default(), FieldTable::default());
        let consumer = channel.basic_consume(queue.into(), "".into(), options, nothing).await?;
        Ok((channel, consumer))
    };
    match open().await.map_err(|error| broker.error(&error)) {
        Ok((channel, consumer)) => Ok((connection, channel, consumer)),
        // What is there is used as it is. What has gone is made again, with its bindings.
        Err(BrokerError::Refused(_)) if again && !must_be_there => {
            topology.prepare(broker, &connection, false).await?;
            let (channel, consumer) = open().await.map_err(|error| broker.error(&error))?;
            Ok((connection, channel, consumer))
        }
        Err(error) => Err(error),
    }
}

/// Gives back what is not acknowledged, by ending the channel in order.
async fn farewell(connection: &Connection, channel: &Channel) {
    let ended = tokio::time::timeout(FAREWELL, async {
        channel.close(200, "done".into()).await?;
        connection.close(200, "done".into()).await
    });
    // Where it fails there is nobody to be told.
    let _ = ended.await;
}

/// The event of a delivery, or the dead letter of one that is none.
pub(super) fn decode(
    options: &ConsumerOptions,
    delivery: &Delivery,
) -> Result<Event, Box<DeadLetter>> {
    options.decoder.decode(delivery).map_err(|error| {
        // Of a body that is larger than an event may be, the beginning is kept, as of a line of a file.
        let (body, rest) = beginning(&delivery.data, options.decoder.event_size);
        let raw: Bytes = whole(delivery, body).into();
        let tag = if rest.is_empty() { digest(&raw) } else { digest(&raw) ^ digest(rest) };
        Box::new(DeadLetter {
            id: LetterId {
                key: error.key.unwrap_or_default().into(),
                sequence: error.sequence.unwrap_or_default(),
                tag,
            },
            cause: error.cause,
            error: error.message,
            origin: Some(format!("queue {}", options.topology.queue(options.partition))),
            version: None,
            content: LetterContent::Raw(raw),
        })
    })
}

/// So many bytes of a body, or a few less where it is text, and the rest.
fn beginning(body: &[u8], limit: usize) -> (&[u8], &[u8]) {
    let limit = std::str::from_utf8(body).map_or(limit, |text| text.floor_char_boundary(limit));
    body.split_at(limit.min(body.len()))
}

/// A message with all that came with it and the body that is kept, as JSON.
fn whole(delivery: &Delivery, body: &[u8]) -> Vec<u8> {
    let properties = &delivery.properties;
    let text =
        |property: &Option<lapin::types::ShortString>| property.as_ref().map(ToString::to_string);
    let (body, coding) = match std::str::from_utf8(body) {
        Ok(text) => (text.to_owned(), "text"),
        Err(_) => (STANDARD.encode(body), "base64"),
    };
    let mut headers = properties.headers().as_ref().map(table);
    if let Some(headers) = headers.as_mut().and_then(Value::as_object_mut) {
        // The same message always gives the same letter.
        headers.retain(|name, _| !OF_THE_QUEUE.contains(&name.as_str()));
    }
    let message = json!({
        "exchange": delivery.exchange.as_str(),
        "routing_key": delivery.routing_key.as_str(),
        "properties": {
            "content_type": text(properties.content_type()),
            "content_encoding": text(properties.content_encoding()),
            "delivery_mode": properties.delivery_mode(),
            "priority": properties.priority(),
            "correlation_id": text(properties.correlation_id()),
            "reply_to": text(properties.reply_to()),
            "expiration": text(properties.expiration()),
            "message_id": text(properties.message_id()),
            "timestamp": properties.timestamp(),
            "type": text(properties.kind()),
            "user_id": text(properties.user_id()),
            "app_id": text(properties.app_id()),
        },
        "headers": headers,
        "body": body,
        "body_coding": coding,
        "body_size": delivery.data.len(),
    });
    message.to_string().into_bytes()
}
