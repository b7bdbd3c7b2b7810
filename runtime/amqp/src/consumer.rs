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
use rand::RngExt as _;
use tokio::sync::watch as latest;
use tokio::sync::{mpsc, oneshot};

use super::connect::{Broker, BrokerError};
use super::decode::Decoder;
use super::subscription::{Ended, Subscription};
use super::topology::Topology;
use super::watch::{Flow, watch};
use super::window::{LastWindow, Window};
use ordain_cloudevents::{Acknowledged, Deliveries, READ_AHEAD, Source};
use ordain_store::Tenure;
use ordain_util::gauge::Waiting;

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
    /// What those that are not taken yet may take of memory, in bytes, about. A `fifo` stream has
    /// `prefetch` ahead whatever that takes: a smaller window would bring what an earlier process
    /// gave back in another order, and by that order its events are numbered.
    pub memory: usize,
    /// The last one that a consumer of the stream in this process found right.
    pub last_window: LastWindow,
    /// Makes events of them.
    pub decoder: Decoder,
    /// In which it is consumed. While that is suspended the queue is given back.
    pub tenure: Arc<Tenure>,
    /// Where it is shown how many messages wait in the queue.
    pub lag: Arc<Waiting>,
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
    let (acknowledge, ended) = (Some(acknowledge), Some(ended));
    Source { deliveries, failure, acknowledge, ended, is_fed_from_here: false }
}

async fn run(
    options: &ConsumerOptions,
    deliver: &mpsc::Sender<Deliveries>,
    mut acknowledged: latest::Receiver<Acknowledged>,
) -> Result<(), BrokerError> {
    let queue = options.topology.queue(options.partition);
    let (mut generation, mut wait, mut lost) = (0, BACKOFF.0, false);
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
        let mut reached = false;
        let session = async {
            let subscribed = subscribe(options, &queue, window.now(), generation > 1);
            let (connection, channel, consumer) = in_time(&queue, subscribed).await?;
            reached = true;
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
        lost = true;
        if reached || wait == BACKOFF.0 {
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
