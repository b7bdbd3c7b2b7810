//! A subscription to a queue: passes deliveries to their receiver and acknowledges them cumulatively.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::BasicAckOptions;
use lapin::{Channel, Consumer};
use tokio::sync::mpsc;
use tokio::sync::watch as latest;
use tokio::time::{sleep_until, timeout};

use super::connect::{BrokerError, is_state_error};
use super::consumer_options::ConsumerOptions;
use super::event_counts::EventCounts;
use super::held_messages::HeldMessages;
use super::prefetch::AdaptivePrefetch;
use super::queue_monitor::ConsumerProgress;
use super::unreadable::{batch_fault, decode_batch, decode_or_letter, fault};
use super::unreadable_run::ContactState;
use super::weight::{decoded_memory, memory};
use ordain_cloudevents::{
    AckProgress, BATCH_BYTES_LIMIT, BATCH_EVENTS_LIMIT, DecodedDelivery, DeliveryBatch,
    FilePosition,
};
use ordain_util::wait::shortened;

/// Time limit for the acknowledgements of earlier messages when a stream stops because of unreadable messages. Without
/// these acknowledgements, the broker would deliver the earlier messages again after the next start.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) enum SubscriptionEnd {
    /// The receiver of the deliveries, or the sender of the acknowledgements, was dropped.
    Done,
    /// The prefetch (maximum number of unacknowledged deliveries) has changed. A consumer keeps the prefetch with which
    /// it started. A new consumer on the same channel would first receive newer messages, because the broker redelivers
    /// the unacknowledged messages of the old consumer only after the channel is closed. Ordain therefore opens a new
    /// channel, on which the broker redelivers all unacknowledged messages in order.
    Resized,
    /// The ownership of the partition is suspended or has ended, so another process may own the partition by now.
    Suspended,
    /// The broker has ended the consumer: the queue was removed, or, from RabbitMQ 4.3 on, a delivery was not
    /// acknowledged in time.
    Cancelled,
    /// The type of the queue is unknown, and the first message has the header that a queue of type stream adds to its
    /// messages. A message that was moved to another queue keeps this header, so the caller must check the type.
    StreamSuspected,
    /// The stream leaves the messages in the queue. The text describes them and the next step for an operator.
    Unreadable(String),
}

/// A queue of type stream adds this header to each message.
const STREAM_OFFSET_HEADER: &str = "x-stream-offset";

pub(super) struct Subscription<'a> {
    options: &'a ConsumerOptions,
    queue: &'a str,
    epoch: u64,
    channel: &'a Channel,
    progress: &'a ConsumerProgress,
    prefetch: &'a mut AdaptivePrefetch,
    /// The unreadable messages that are held back: the last elements of `unsent`.
    held: HeldMessages<'a>,
    received: u64,
    acknowledged_count: u64,
    acknowledged_events: u64,
    /// The numbers of the events in the deliveries.
    event_counts: EventCounts,
    /// Events that the receiver has not taken, and the memory of each in bytes.
    unsent: VecDeque<(DecodedDelivery, usize)>,
    unsent_bytes: usize,
    /// The newest limit of unacknowledged events that a batch has reported to the receiver; `None` before the first
    /// batch.
    reported_limit: Option<usize>,
    /// The log already contains the first message with a priority.
    is_priority_reported: bool,
    /// The broker did not show the whole form of the queue, which may be of type stream.
    is_type_unknown: bool,
}

impl<'a> Subscription<'a> {
    pub(super) fn new(
        options: &'a ConsumerOptions,
        queue: &'a str,
        epoch: u64,
        channel: &'a Channel,
        progress: &'a ConsumerProgress,
        prefetch: &'a mut AdaptivePrefetch,
        contact: &'a mut ContactState,
    ) -> Self {
        prefetch.start_subscription();
        Self {
            options,
            queue,
            epoch,
            channel,
            progress,
            prefetch,
            held: HeldMessages::new(options, queue, contact),
            received: 0,
            acknowledged_count: 0,
            acknowledged_events: 0,
            event_counts: EventCounts::default(),
            unsent: VecDeque::new(),
            unsent_bytes: 0,
            reported_limit: None,
            is_priority_reported: false,
            is_type_unknown: false,
        }
    }

    /// Sets whether the type of the queue is unknown, because the broker did not show the whole form of the queue.
    pub(super) fn with_unknown_type(mut self, is_type_unknown: bool) -> Self {
        self.is_type_unknown = is_type_unknown;
        self
    }

    /// Passes deliveries to their receiver. Returns when the receiver or the sender of `acknowledged` is dropped, or
    /// the prefetch changes. Also returns when the broker ends the consumer, the queue seems to be of type stream, or
    /// the channel fails. Accepts deliveries from the broker even while the receiver takes none, to measure the memory
    /// that the deliveries need.
    pub(super) async fn run(
        mut self,
        consumer: Consumer,
        deliver: &mpsc::Sender<DeliveryBatch>,
        acknowledged: &mut latest::Receiver<AckProgress>,
    ) -> Result<SubscriptionEnd, BrokerError> {
        let broker = &self.options.broker;
        let failed = |error| broker.error(&error);
        let mut batches = consumer.ready_chunks(BATCH_EVENTS_LIMIT);
        loop {
            let has_room = self.received - self.acknowledged_count < self.prefetch.current().into();
            self.progress.set(self.received, self.sendable() == 0 && has_room);
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
                room = deliver.reserve(), if self.sendable() > 0 => match room {
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
                        self.buffer(delivery)?;
                        if self.held.is_at_limit() {
                            return self.stop(deliver, acknowledged).await;
                        }
                        // Deliveries above the memory limit reduce the prefetch immediately, even before an
                        // acknowledgement. The events of a batch may need much more memory than its message, so the
                        // loop decodes no more messages.
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
                    if self.is_prefetch_held() && let Some(end) = self.decide_about_held().await {
                        return Ok(end);
                    }
                }
                () = wait_until(self.held.decide_at()), if self.held.events() > 0 => {
                    if let Some(end) = self.decide_about_held().await {
                        return Ok(end);
                    }
                }
            }
        }
    }

    /// Returns the number of waiting events that may be sent to the receiver: all except the messages that are held
    /// back.
    fn sendable(&self) -> usize {
        self.unsent.len() - self.held.events()
    }

    /// Returns whether the receiver has acknowledged all events before the messages that are held back.
    fn has_settled_earlier(&self) -> bool {
        let held = self.held.events() as u64;
        self.acknowledged_events + held == self.event_counts.received()
    }

    /// Returns whether the messages that are held back use up the prefetch, so that no more messages can arrive.
    fn is_prefetch_held(&self) -> bool {
        let unacknowledged = self.received - self.acknowledged_count;
        self.held.events() > 0
            && self.has_settled_earlier()
            && unacknowledged >= self.prefetch.current().into()
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

    /// Decides about the unreadable messages that are held back: they become dead letters, the prefetch grows, or the
    /// stream stops. The caller calls this method when no message has arrived for a while, and when the held messages
    /// use up the prefetch. Returns the reason if the subscription must end, and `None` if it continues.
    async fn decide_about_held(&mut self) -> Option<SubscriptionEnd> {
        let is_prefetch_held = self.is_prefetch_held();
        if is_prefetch_held && self.prefetch.grow() {
            return Some(SubscriptionEnd::Resized);
        }
        self.held.decide(is_prefetch_held).await.map(SubscriptionEnd::Unreadable)
    }

    /// Stops the stream, and leaves the held messages in the queue. First waits, for a limited time, until the
    /// deliveries before the held messages are acknowledged.
    async fn stop(
        mut self,
        deliver: &mpsc::Sender<DeliveryBatch>,
        acknowledged: &mut latest::Receiver<AckProgress>,
    ) -> Result<SubscriptionEnd, BrokerError> {
        let settled = self.settle_earlier(deliver, acknowledged);
        match timeout(shortened(STOP_TIMEOUT), settled).await {
            Ok(Err(error)) => return Err(error),
            Ok(Ok(true)) | Err(_) => {}
            Ok(Ok(false)) => return Ok(SubscriptionEnd::Done),
        }
        Ok(SubscriptionEnd::Unreadable(self.held.report_stop()))
    }

    /// Waits until all deliveries before the held messages are acknowledged. Returns `false` if the receiver or the
    /// sender of `acknowledged` is dropped earlier.
    async fn settle_earlier(
        &mut self,
        deliver: &mpsc::Sender<DeliveryBatch>,
        acknowledged: &mut latest::Receiver<AckProgress>,
    ) -> Result<bool, BrokerError> {
        // Batches without events may have arrived.
        self.acknowledge_finished().await?;
        while !self.has_settled_earlier() {
            tokio::select! {
                changed = acknowledged.changed() => {
                    let through = acknowledged_through(&acknowledged.borrow_and_update(), self.epoch);
                    self.acknowledged_events = self.acknowledged_events.max(through);
                    self.acknowledge_finished().await?;
                    if changed.is_err() {
                        return Ok(false);
                    }
                }
                room = deliver.reserve(), if self.sendable() > 0 => match room {
                    Ok(room) => room.send(self.next_batch()),
                    Err(_) => return Ok(false),
                },
            }
        }
        Ok(true)
    }

    /// Returns whether a delivery shows that a queue of unknown type may be of type stream. The first delivery is
    /// sufficient for this check, because all messages of a queue of type stream have the header.
    fn is_stream_suspected(&self, delivery: &Delivery) -> bool {
        let headers = delivery.properties.headers().as_ref();
        self.is_type_unknown
            && self.received == 0
            && headers.is_some_and(|headers| headers.inner().contains_key(STREAM_OFFSET_HEADER))
    }

    fn buffer(&mut self, delivery: Delivery) -> Result<(), BrokerError> {
        self.received += 1;
        if delivery.delivery_tag != self.received {
            let number = self.received;
            let tag = delivery.delivery_tag;
            let reason = format!(
                "the broker sent delivery {number} of the channel with the delivery tag {tag}, but the tags must count \
                 the deliveries"
            );
            return Err(BrokerError::Unavailable(reason));
        }
        self.report_priority(&delivery);
        let options = self.options;
        let decoder = &options.decoder;
        let Some(events) = decode_batch(decoder, self.queue, &delivery) else {
            let read = decode_or_letter(decoder, self.queue, &delivery);
            let bytes = memory(&delivery, &read);
            self.event_counts.add(self.received, 1);
            self.prefetch.record(bytes, delivery.redelivered);
            match fault(&read) {
                None => self.held.end_run(),
                Some((cause, error)) => self.held.add(cause, error, 1, delivery),
            }
            self.push(read, bytes);
            return Ok(());
        };
        self.event_counts.add(self.received, events.len() as u64);
        self.prefetch.record(events.iter().map(decoded_memory).sum(), delivery.redelivered);
        match batch_fault(&events) {
            Some((cause, error)) => self.held.add(cause, error, events.len(), delivery),
            None if events.is_empty() => {}
            None => self.held.end_run(),
        }
        for event in events {
            let bytes = decoded_memory(&event);
            self.push(event, bytes);
        }
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

    /// Takes waiting events for the next batch to the receiver. The messages that are held back remain in `unsent`.
    fn next_batch(&mut self) -> DeliveryBatch {
        let limit = self.sendable().min(BATCH_EVENTS_LIMIT);
        let mut items = Vec::with_capacity(limit);
        let mut size = 0;
        while items.len() < limit && size < BATCH_BYTES_LIMIT {
            let Some((item, bytes)) = self.unsent.pop_front() else { break };
            items.push((item, FilePosition::default()));
            size += bytes;
        }
        self.unsent_bytes -= size;
        let event_limit =
            self.event_counts.event_limit(self.prefetch.current(), self.acknowledged_events);
        let reported_limit = self.reported_limit.replace(event_limit);
        DeliveryBatch {
            subscription_epoch: self.epoch,
            items,
            prefetch: (reported_limit != Some(event_limit)).then_some(event_limit),
            ..DeliveryBatch::default()
        }
    }
}

fn acknowledged_through(acknowledged: &AckProgress, epoch: u64) -> u64 {
    if acknowledged.subscription_epoch == epoch { acknowledged.through } else { 0 }
}

/// Waits until the time `at`, or forever if `at` is `None`.
async fn wait_until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

async fn acknowledge(channel: &Channel, through: u64) -> lapin::Result<()> {
    channel.basic_ack(through, BasicAckOptions { multiple: true }).await.map(drop)
}
