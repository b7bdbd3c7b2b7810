//! The consumer of one partition's queue: receives deliveries in batches and acknowledges them cumulatively.
//!
//! The broker numbers the deliveries of a channel from 1. When a channel is lost, the next channel delivers all
//! unacknowledged messages again. Each channel therefore has a subscription epoch (a number), which distinguishes its
//! deliveries from the deliveries of earlier channels. The consumer ignores an acknowledgement of an earlier epoch.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lapin::options::{BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, Consumer};
use ordain_core::OrderingMode;
use tokio::sync::watch as latest;
use tokio::sync::{mpsc, oneshot};

use super::connect::BrokerError;
use super::consumer_options::ConsumerOptions;
use super::prefetch::AdaptivePrefetch;
use super::queue_monitor::{ConsumerProgress, monitor_queue, record_change};
use super::subscription::{Subscription, SubscriptionEnd};
use super::topology::TopologyChange;
use ordain_cloudevents::{AckProgress, DeliveryBatch, READ_AHEAD_BATCHES, SourceHandle};
use ordain_util::backoff::Backoff;
use ordain_util::log_throttle::LogThrottle;
use ordain_util::wait::shortened;

/// Longest delay before the next subscription. A subscription that lasts longer than this delay counts as successful.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(10);
/// Delays between subscriptions that fail.
const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), MAX_RETRY_DELAY);
/// Time between two warnings that a queue is not consumed.
const WARN_INTERVAL: Duration = Duration::from_secs(30);
/// Time limit for all steps of a subscription.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit for the last acknowledgement and the end of the channel.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Starts a consumer. The consumer reconnects after every failure, until the receiver of its deliveries is dropped.
pub fn start(options: ConsumerOptions) -> SourceHandle {
    let (deliver, deliveries) = mpsc::channel(READ_AHEAD_BATCHES);
    let (fail, failure) = oneshot::channel();
    let (acknowledge, acknowledged) = latest::channel(AckProgress::default());
    let task = tokio::spawn(async move {
        if let Err(error) = run(&options, &deliver, acknowledged).await {
            // The receiver is gone when the process is ending; the error does not matter then.
            let _ = fail.send(io::Error::other(error));
        }
    });
    let acknowledge = Some(acknowledge);
    let task = Some(task);
    SourceHandle { deliveries, failure, acknowledge, task, is_fed_locally: false }
}

async fn run(
    options: &ConsumerOptions,
    deliver: &mpsc::Sender<DeliveryBatch>,
    mut acknowledged: latest::Receiver<AckProgress>,
) -> Result<(), BrokerError> {
    let queue = options.topology.queue(options.partition);
    let mut subscription_epoch = 0;
    let mut lost = false;
    let mut is_queue_lost = false;
    let mut was_subscribed = false;
    let mut throttle = LogThrottle::new(shortened(WARN_INTERVAL));
    let mut backoff = RETRY_BACKOFF;
    let is_fifo = options.decoder.ordering == OrderingMode::Fifo;
    let memory = if is_fifo { usize::MAX } else { options.memory };
    let mut prefetch =
        AdaptivePrefetch::new(options.prefetch, memory, Arc::clone(&options.last_prefetch));
    loop {
        tokio::select! {
            () = options.ownership.wait_active() => {}
            () = deliver.closed() => return Ok(()),
        }
        if options.ownership.is_lost() {
            return Ok(());
        }
        subscription_epoch += 1;
        let progress = ConsumerProgress::default();
        let since = Instant::now();
        let session = async {
            let subscribed = subscribe(options, &queue, prefetch.current(), subscription_epoch > 1);
            let (connection, channel, consumer) =
                with_subscribe_timeout(&queue, subscribed).await?;
            was_subscribed = true;
            // New events of a `fifo` stream would get the numbers of the lost ones.
            if is_queue_lost {
                return Err(queue_was_removed(&queue));
            }
            if std::mem::take(&mut lost) {
                tracing::info!(stream = &*options.stream, queue, "queue consumed again");
            }
            let subscription = Subscription::new(
                options,
                &queue,
                subscription_epoch,
                &channel,
                &progress,
                &mut prefetch,
            );
            let ended = tokio::select! {
                ended = subscription.run(consumer, deliver, &mut acknowledged) => ended,
                error = monitor_queue(options, &connection, &queue, &progress) => Err(error),
                () = options.ownership.wait_inactive() => Ok(SubscriptionEnd::Suspended),
            };
            options.lag.set(None);
            close(&connection, &channel).await;
            ended
        };
        let error = match session.await {
            Ok(SubscriptionEnd::Done) => return Ok(()),
            Ok(SubscriptionEnd::Resized | SubscriptionEnd::Suspended) => continue,
            Ok(SubscriptionEnd::Cancelled) => {
                is_queue_lost = is_fifo && options.topology.is_declared() && {
                    // From 4.3 on, RabbitMQ also ends a consumer that does not acknowledge a delivery in time.
                    let queue = &options.topology.queue(options.partition);
                    !options.broker.has_default_delivery_limit(queue).await.unwrap_or(true)
                };
                if is_fifo && !is_queue_lost {
                    tracing::error!(
                        stream = &*options.stream,
                        queue,
                        "subscription ended by the broker: if another program has removed the queue and declared it \
                         again, its events are lost, and new events get the numbers of the lost events; publish \
                         again the events that have not taken effect"
                    );
                }
                BrokerError::Unavailable(
                    "the broker has ended the subscription: was the queue removed?".to_owned(),
                )
            }
            Err(error) => error,
        };
        if let BrokerError::Refused(words) = &error
            && is_fifo
        {
            let was_removed = was_subscribed && words.contains("NOT_FOUND");
            return Err(if was_removed { queue_was_removed(&queue) } else { error });
        }
        let is_first = !std::mem::replace(&mut lost, true);
        if throttle.allow() || is_first {
            tracing::warn!(
                stream = &*options.stream, queue, %error,
                "queue not consumed; retrying"
            );
        }
        // A subscription that is lost at once without a delivery may fail the same way again.
        if progress.received() > 0 || since.elapsed() > MAX_RETRY_DELAY {
            backoff.reset();
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.next_jittered()) => {}
            () = deliver.closed() => return Ok(()),
        }
    }
}

/// The error that ends a `fifo` stream after the removal of its queue, even if the queue has been declared again.
fn queue_was_removed(queue: &str) -> BrokerError {
    BrokerError::Refused(format!(
        "the queue {queue:?} was removed while the stream ran, so its events are lost: publish again the events that \
         have not taken effect, and start again"
    ))
}

/// Limits the time of a subscription's steps. A queue without a leader never responds, for example after a crash of the
/// broker.
async fn with_subscribe_timeout<T>(
    queue: &str,
    work: impl Future<Output = Result<T, BrokerError>>,
) -> Result<T, BrokerError> {
    tokio::time::timeout(SUBSCRIBE_TIMEOUT, work).await.unwrap_or_else(|_| {
        Err(BrokerError::Unavailable(format!(
            "the queue {queue:?} does not answer; if that persists, restart the broker"
        )))
    })
}

/// Opens a channel that consumes the queue.
async fn subscribe(
    options: &ConsumerOptions,
    queue: &str,
    prefetch: u16,
    is_resubscription: bool,
) -> Result<(Connection, Channel, Consumer), BrokerError> {
    let ConsumerOptions { broker, topology, stream, partition, decoder, .. } = options;
    let connection = broker.connect(&format!("ordain {stream} {partition}")).await?;
    let open = async || {
        let channel = connection.create_channel().await?;
        channel.basic_qos(prefetch, BasicQosOptions::default()).await?;
        let options = BasicConsumeOptions::default();
        let nothing = FieldTable::default();
        let consumer = channel.basic_consume(queue.into(), "".into(), options, nothing).await?;
        Ok((channel, consumer))
    };
    match open().await.map_err(|error| broker.error(&error)) {
        Ok((channel, consumer)) => Ok((connection, channel, consumer)),
        // An existing queue is used as it is. A queue that has disappeared is declared again with its bindings,
        // unless its events had no sequences of their own.
        Err(BrokerError::Refused(reason))
            if is_resubscription && decoder.ordering == OrderingMode::Sequenced =>
        {
            topology.prepare(broker, &connection, false).await?;
            let (channel, consumer) = open().await.map_err(|error| broker.error(&error))?;
            if reason.contains("NOT_FOUND") {
                let change = TopologyChange::QueueMissing(queue.to_owned());
                record_change(options, &change, &mut LogThrottle::new(WARN_INTERVAL));
            }
            Ok((connection, channel, consumer))
        }
        Err(error) => Err(error),
    }
}

/// Closes the channel and the connection. The broker then returns unacknowledged deliveries to the queue.
async fn close(connection: &Connection, channel: &Channel) {
    let ended = tokio::time::timeout(CLOSE_TIMEOUT, async {
        channel.close(200, "done".into()).await?;
        connection.close(200, "done".into()).await
    });
    // An error does not matter: the broker notices the closed connection.
    let _ = ended.await;
}
