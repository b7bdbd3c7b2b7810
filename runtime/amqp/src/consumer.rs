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

use lapin::options::{BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, Consumer};
use ordain_core::Ordering;
use tokio::sync::watch as latest;
use tokio::sync::{mpsc, oneshot};

use super::connect::BrokerError;
use super::consumer_options::ConsumerOptions;
use super::subscription::{Ended, Subscription};
use super::watch::{Flow, watch};
use super::window::Window;
use ordain_cloudevents::{Acknowledged, Deliveries, READ_AHEAD, Source};
use ordain_util::backoff::Backoff;

/// The longest delay before the next subscription. A subscription that lasts longer has worked.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(10);
/// Delays between subscriptions that fail.
const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), MAX_RETRY_DELAY);
/// For all that it takes to consume again.
const SUBSCRIBE: Duration = Duration::from_secs(20);
/// For the last acknowledgement and the end of the channel.
const FAREWELL: Duration = Duration::from_secs(2);

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
    let (acknowledge, ended) = (Some(acknowledge), Some(ended));
    Source { deliveries, failure, acknowledge, ended, is_fed_from_here: false }
}

async fn run(
    options: &ConsumerOptions,
    deliver: &mpsc::Sender<Deliveries>,
    mut acknowledged: latest::Receiver<Acknowledged>,
) -> Result<(), BrokerError> {
    let queue = options.topology.queue(options.partition);
    let (mut generation, mut lost) = (0, false);
    let mut backoff = RETRY_BACKOFF;
    let is_fifo = options.decoder.ordering == Ordering::Fifo;
    let memory = if is_fifo { usize::MAX } else { options.memory };
    let mut window = Window::new(options.prefetch, memory, Arc::clone(&options.last_window));
    loop {
        tokio::select! {
            () = options.tenure.on() => {}
            () = deliver.closed() => return Ok(()),
        }
        if options.tenure.is_over() {
            return Ok(());
        }
        generation += 1;
        let (flow, since) = (Flow::default(), Instant::now());
        let session = async {
            let subscribed = subscribe(options, &queue, window.now(), generation > 1);
            let (connection, channel, consumer) = in_time(&queue, subscribed).await?;
            if std::mem::take(&mut lost) {
                tracing::info!(stream = &*options.stream, queue, "consuming again");
            }
            let subscription =
                Subscription::new(options, &queue, generation, &channel, &flow, &mut window);
            let ended = tokio::select! {
                ended = subscription.run(consumer, deliver, &mut acknowledged) => ended,
                error = watch(options, &connection, &queue, &flow) => Err(error),
                () = options.tenure.off() => Ok(Ended::Suspended),
            };
            options.lag.set(None);
            farewell(&connection, &channel).await;
            ended
        };
        let error = match session.await {
            Ok(Ended::Done) => return Ok(()),
            Ok(Ended::Resized | Ended::Suspended) => continue,
            Err(error) => error,
        };
        if let BrokerError::Refused(_) = &error
            && is_fifo
        {
            return Err(error);
        }
        if std::mem::replace(&mut lost, true) {
            tracing::debug!(queue, %error, "still not consuming");
        } else {
            tracing::warn!(
                stream = &*options.stream, queue, %error,
                "the queue is not consumed at the moment; it is tried again"
            );
        }
        // What is lost at once, and has brought nothing, may go on like that.
        if flow.taken() > 0 || since.elapsed() > MAX_RETRY_DELAY {
            backoff.reset();
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.next_jittered()) => {}
            () = deliver.closed() => return Ok(()),
        }
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
    let ConsumerOptions { broker, topology, stream, partition, decoder, .. } = options;
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
        // What is there is used as it is. What has gone is made again, with its bindings, but not
        // where its events had no numbers of their own.
        Err(BrokerError::Refused(_)) if again && decoder.ordering == Ordering::Sequenced => {
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
