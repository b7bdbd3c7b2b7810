//! A subscription to a queue: passes deliveries to their receiver and acknowledges them cumulatively.

use std::collections::VecDeque;

use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::BasicAckOptions;
use lapin::{Channel, Consumer};
use tokio::sync::mpsc;
use tokio::sync::watch as latest;

use super::connect::{BrokerError, is_state_error};
use super::consumer_options::ConsumerOptions;
use super::event_counts::EventCounts;
use super::prefetch::AdaptivePrefetch;
use super::queue_monitor::ConsumerProgress;
use super::unreadable::{decode_batch, decode_or_letter};
use super::weight::{decoded_memory, memory};
use ordain_cloudevents::{
    AckProgress, BATCH_BYTES_LIMIT, BATCH_EVENTS_LIMIT, DecodedDelivery, DeliveryBatch,
    FilePosition,
};

/// The reason why a subscription ended.
pub(super) enum SubscriptionEnd {
    /// The receiver of the deliveries, or the sender of the acknowledgements, was dropped.
    Done,
    /// The prefetch (maximum number of unacknowledged deliveries) has changed. A consumer keeps the prefetch with which
    /// it started. The broker would send newer messages to a new consumer on the same channel, and would send the
    /// unacknowledged messages of the old consumer again only after the channel is closed. Ordain therefore opens a new
    /// channel, which receives all unacknowledged messages again, in order.
    Resized,
    /// The ownership of the partition is suspended or has ended, so another process may own the partition by now.
    Suspended,
    /// The broker has ended the consumer: the queue was removed, or, from RabbitMQ 4.3 on, a delivery was not
    /// acknowledged in time.
    Cancelled,
    /// The type of the queue is unknown, and the first message has the header that a queue of type stream adds to its
    /// messages. A message that was moved to another queue keeps this header, so the caller must check the type.
    StreamSuspected,
}

/// The header that a queue of type stream adds to each message.
const STREAM_OFFSET_HEADER: &str = "x-stream-offset";

/// A channel on which a queue is consumed.
pub(super) struct Subscription<'a> {
    options: &'a ConsumerOptions,
    queue: &'a str,
    epoch: u64,
    channel: &'a Channel,
    progress: &'a ConsumerProgress,
    prefetch: &'a mut AdaptivePrefetch,
    /// Number of deliveries that have arrived.
    received: u64,
    /// Number of acknowledged deliveries.
    acknowledged_count: u64,
    /// Number of events that the receiver has acknowledged.
    acknowledged_events: u64,
    /// The numbers of the events in the deliveries.
    event_counts: EventCounts,
    /// Events that the receiver has not taken, and the memory of each in bytes.
    unsent: VecDeque<(DecodedDelivery, usize)>,
    unsent_bytes: usize,
    /// The current prefetch; `None` after the subscription has notified the receiver of this prefetch.
    unreported_prefetch: Option<usize>,
    /// True after the first message with a priority has been logged.
    is_priority_reported: bool,
    /// True if the queue may be of type stream, because the broker did not show the whole form of the queue.
    is_type_unknown: bool,
}

impl<'a> Subscription<'a> {
    /// Creates the state of a new subscription.
    pub(super) fn new(
        options: &'a ConsumerOptions,
        queue: &'a str,
        epoch: u64,
        channel: &'a Channel,
        progress: &'a ConsumerProgress,
        prefetch: &'a mut AdaptivePrefetch,
        is_type_unknown: bool,
    ) -> Self {
        prefetch.start_subscription();
        let unreported_prefetch = Some(prefetch.current().into());
        Self {
            options,
            queue,
            epoch,
            channel,
            progress,
            prefetch,
            received: 0,
            acknowledged_count: 0,
            acknowledged_events: 0,
            event_counts: EventCounts::default(),
            unsent: VecDeque::new(),
            unsent_bytes: 0,
            unreported_prefetch,
            is_priority_reported: false,
            is_type_unknown,
        }
    }

    /// Passes deliveries to their receiver until the receiver or the sender of `acknowledged` is dropped, the prefetch
    /// changes, the broker ends the consumer, the queue seems to be of type stream, or the channel fails. Accepts
    /// deliveries from the broker even while the receiver takes none, to measure the memory that the deliveries need.
    pub(super) async fn run(
        mut self,
        consumer: Consumer,
        deliver: &mpsc::Sender<DeliveryBatch>,
        acknowledged: &mut latest::Receiver<AckProgress>,
    ) -> Result<SubscriptionEnd, BrokerError> {
        let failed = |error| self.options.broker.error(&error);
        let mut batches = consumer.ready_chunks(BATCH_EVENTS_LIMIT);
        loop {
            let has_room = self.received - self.acknowledged_count < self.prefetch.current().into();
            self.progress.set(self.received, self.unsent.is_empty() && has_room);
            tokio::select! {
                biased;
                changed = acknowledged.changed() => {
                    let through = acknowledged_through(&acknowledged.borrow_and_update(), self.epoch);
                    self.acknowledged_events = self.acknowledged_events.max(through);
                    self.acknowledge_finished().await?;
                    if changed.is_err() {
                        return Ok(SubscriptionEnd::Done);
                    }
                }
                room = deliver.reserve(), if !self.unsent.is_empty() => match room {
                    Ok(room) => room.send(self.next_batch()),
                    Err(_) => return Ok(SubscriptionEnd::Done),
                },
                batch = batches.next() => {
                    let Some(batch) = batch else {
                        // On an open channel, only the broker can have ended the consumer.
                        if self.channel.status().connected() {
                            return Ok(SubscriptionEnd::Cancelled);
                        }
                        return Err(BrokerError::Unavailable("the channel was closed".to_owned()));
                    };
                    for delivery in batch {
                        let delivery = delivery.map_err(failed)?;
                        if self.is_stream_suspected(&delivery) {
                            return Ok(SubscriptionEnd::StreamSuspected);
                        }
                        self.buffer(&delivery)?;
                        // Deliveries above the memory limit reduce the prefetch at once, even before an
                        // acknowledgement. The events of the remaining batch may be much larger than its messages, so
                        // the loop decodes no further message.
                        if self.prefetch.shrink_if_over_limit(self.unsent_bytes) {
                            return Ok(SubscriptionEnd::Resized);
                        }
                    }
                    // A batch without events has arrived.
                    self.acknowledge_finished().await?;
                    // Adjust the prefetch only after an acknowledgement. Otherwise, with messages of alternating sizes,
                    // one subscription could follow another without any progress.
                    if self.acknowledged_count > 0 && self.prefetch.adjust() {
                        return Ok(SubscriptionEnd::Resized);
                    }
                }
            }
        }
    }

    /// Acknowledges the deliveries whose events are all acknowledged.
    async fn acknowledge_finished(&mut self) -> Result<(), BrokerError> {
        let through = self.event_counts.finished(self.acknowledged_events);
        if through <= self.acknowledged_count {
            return Ok(());
        }
        self.acknowledged_count = through;
        match acknowledge(self.channel, through).await {
            // The consumer is about to return the error that closed the channel.
            Err(error) if is_state_error(&error) => Ok(()),
            acknowledged => acknowledged.map_err(|error| self.options.broker.error(&error)),
        }
    }

    /// Returns whether a delivery shows that a queue of unknown type may be of type stream. The first delivery is
    /// sufficient for this check, because all messages of a queue of type stream have the header.
    fn is_stream_suspected(&self, delivery: &Delivery) -> bool {
        let headers = delivery.properties.headers().as_ref();
        self.is_type_unknown
            && self.received == 0
            && headers.is_some_and(|headers| headers.inner().contains_key(STREAM_OFFSET_HEADER))
    }

    fn buffer(&mut self, delivery: &Delivery) -> Result<(), BrokerError> {
        self.received += 1;
        if delivery.delivery_tag != self.received {
            let number = self.received;
            let tag = delivery.delivery_tag;
            let reason = format!("the broker sent delivery {number} with the delivery tag {tag}");
            return Err(BrokerError::Unavailable(reason));
        }
        self.report_priority(delivery);
        let decoder = &self.options.decoder;
        let Some(events) = decode_batch(decoder, self.queue, delivery) else {
            let decoded = decode_or_letter(decoder, self.queue, delivery);
            let bytes = memory(delivery, &decoded);
            self.event_counts.add(self.received, 1);
            self.push(decoded, bytes);
            self.prefetch.record(bytes, delivery.redelivered);
            return Ok(());
        };
        self.event_counts.add(self.received, events.len() as u64);
        let before = self.unsent_bytes;
        for decoded in events {
            let bytes = decoded_memory(&decoded);
            self.push(decoded, bytes);
        }
        self.prefetch.record(self.unsent_bytes - before, delivery.redelivered);
        Ok(())
    }

    fn push(&mut self, decoded: DecodedDelivery, bytes: usize) {
        self.unsent.push_back((decoded, bytes));
        self.unsent_bytes += bytes;
    }

    /// Logs the first message with a priority that this subscription receives, if the stream is a `fifo` stream
    /// (ordered by arrival).
    fn report_priority(&mut self, delivery: &Delivery) {
        let is_fifo = self.options.is_fifo();
        let has_priority = delivery.properties.priority().is_some_and(|priority| priority > 0);
        if is_fifo && has_priority && !std::mem::replace(&mut self.is_priority_reported, true) {
            tracing::warn!(
                stream = &*self.options.stream,
                queue = self.queue,
                "message with a priority: RabbitMQ 4 delivers this message before earlier messages, and a fifo stream \
                 executes events in the order of delivery; publish without a priority"
            );
        }
    }

    /// Removes the next batch from the deliveries that wait for the receiver.
    fn next_batch(&mut self) -> DeliveryBatch {
        let mut items = Vec::with_capacity(self.unsent.len().min(BATCH_EVENTS_LIMIT));
        let mut size = 0;
        while items.len() < BATCH_EVENTS_LIMIT && size < BATCH_BYTES_LIMIT {
            let Some((item, bytes)) = self.unsent.pop_front() else { break };
            items.push((item, FilePosition::default()));
            size += bytes;
        }
        self.unsent_bytes -= size;
        DeliveryBatch {
            subscription_epoch: self.epoch,
            items,
            prefetch: self.unreported_prefetch.take(),
            ..DeliveryBatch::default()
        }
    }
}

fn acknowledged_through(acknowledged: &AckProgress, epoch: u64) -> u64 {
    if acknowledged.subscription_epoch == epoch { acknowledged.through } else { 0 }
}

async fn acknowledge(channel: &Channel, through: u64) -> lapin::Result<()> {
    channel.basic_ack(through, BasicAckOptions { multiple: true }).await.map(drop)
}
