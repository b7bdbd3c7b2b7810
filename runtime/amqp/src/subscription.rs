//! A subscription to a queue: passes deliveries on and acknowledges them cumulatively.

use std::collections::VecDeque;

use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::BasicAckOptions;
use lapin::{Channel, Consumer};
use tokio::sync::mpsc;
use tokio::sync::watch as latest;

use super::connect::BrokerError;
use super::consumer_options::ConsumerOptions;
use super::unreadable::event;
use super::watch::ConsumerProgress;
use super::weight::weight;
use super::window::AdaptivePrefetch;
use ordain_cloudevents::{
    AckProgress, BATCH_BYTES, BATCH_EVENTS, DecodedDelivery, DeliveryBatch, FilePosition,
};

/// The reason why a subscription ended.
pub(super) enum SubscriptionEnd {
    /// The receiver of the deliveries is gone.
    Done,
    /// The window has changed. A consumer keeps the window with which it started. A new consumer on the same channel
    /// would receive newer messages before those that are on their way to the old one, so a new channel receives
    /// everything unacknowledged again, in order.
    Resized,
    /// Another process may own the queue by now.
    Suspended,
}

/// A channel on which a queue is consumed.
pub(super) struct Subscription<'a> {
    options: &'a ConsumerOptions,
    queue: &'a str,
    generation: u64,
    channel: &'a Channel,
    flow: &'a ConsumerProgress,
    window: &'a mut AdaptivePrefetch,
    /// Number of deliveries that have arrived.
    taken: u64,
    /// Number of acknowledged deliveries.
    done: u64,
    /// Deliveries that the receiver has not taken, and the size of each in bytes.
    held: VecDeque<(DecodedDelivery, usize)>,
    bytes: usize,
    /// The window, until the receiver has been notified of it.
    untold: Option<usize>,
}

impl<'a> Subscription<'a> {
    /// Creates the state of a new subscription.
    pub(super) fn new(
        options: &'a ConsumerOptions,
        queue: &'a str,
        generation: u64,
        channel: &'a Channel,
        flow: &'a ConsumerProgress,
        window: &'a mut AdaptivePrefetch,
    ) -> Self {
        window.begin();
        let untold = Some(window.now().into());
        Self {
            options,
            queue,
            generation,
            channel,
            flow,
            window,
            taken: 0,
            done: 0,
            held: VecDeque::new(),
            bytes: 0,
            untold,
        }
    }

    /// Passes deliveries on until the receiver is dropped, the window changes or the channel is lost. Accepts
    /// deliveries from the broker even while the receiver takes none, to know how much memory they need.
    pub(super) async fn run(
        mut self,
        consumer: Consumer,
        deliver: &mpsc::Sender<DeliveryBatch>,
        acknowledged: &mut latest::Receiver<AckProgress>,
    ) -> Result<SubscriptionEnd, BrokerError> {
        let failed = |error| self.options.broker.error(&error);
        let mut batches = consumer.ready_chunks(BATCH_EVENTS);
        loop {
            let may_come = self.taken - self.done < self.window.now().into();
            self.flow.set(self.taken, self.held.is_empty() && may_come);
            tokio::select! {
                biased;
                changed = acknowledged.changed() => {
                    let through = through(&acknowledged.borrow_and_update(), self.generation);
                    if through > self.done {
                        self.done = through;
                        acknowledge(self.channel, through).await.map_err(failed)?;
                    }
                    if changed.is_err() {
                        return Ok(SubscriptionEnd::Done);
                    }
                }
                room = deliver.reserve(), if !self.held.is_empty() => match room {
                    Ok(room) => room.send(self.batch()),
                    Err(_) => return Ok(SubscriptionEnd::Done),
                },
                batch = batches.next() => {
                    let Some(batch) = batch else {
                        return Err(BrokerError::Unavailable(
                            "the broker has ended the subscription: was the queue removed?"
                                .to_owned(),
                        ));
                    };
                    for delivery in batch {
                        self.hold(&delivery.map_err(failed)?)?;
                    }
                    // Each subscription must acknowledge something before the window changes, however sizes
                    // alternate.
                    let changes = self.done > 0 && self.window.change();
                    if changes || self.window.overflows(self.bytes) {
                        return Ok(SubscriptionEnd::Resized);
                    }
                }
            }
        }
    }

    fn hold(&mut self, delivery: &Delivery) -> Result<(), BrokerError> {
        self.taken += 1;
        if delivery.delivery_tag != self.taken {
            let number = self.taken;
            let tag = delivery.delivery_tag;
            let words = format!("the broker numbered delivery {number} as {tag}");
            return Err(BrokerError::Unavailable(words));
        }
        let headers = delivery.properties.headers().as_ref().map_or(0, weight);
        let bytes = delivery.data.len() + headers;
        self.window.note(bytes, delivery.redelivered);
        self.held.push_back((event(&self.options.decoder, self.queue, delivery), bytes));
        self.bytes += bytes;
        Ok(())
    }

    /// Removes the next batch from the deliveries that wait for the receiver.
    fn batch(&mut self) -> DeliveryBatch {
        let mut items = Vec::with_capacity(self.held.len().min(BATCH_EVENTS));
        let mut size = 0;
        while items.len() < BATCH_EVENTS && size < BATCH_BYTES {
            let Some((item, bytes)) = self.held.pop_front() else { break };
            items.push((item, FilePosition::default()));
            size += bytes;
        }
        self.bytes -= size;
        DeliveryBatch {
            generation: self.generation,
            items,
            window: self.untold.take(),
            ..DeliveryBatch::default()
        }
    }
}

fn through(acknowledged: &AckProgress, generation: u64) -> u64 {
    if acknowledged.generation == generation { acknowledged.through } else { 0 }
}

async fn acknowledge(channel: &Channel, through: u64) -> lapin::Result<()> {
    channel.basic_ack(through, BasicAckOptions { multiple: true }).await.map(drop)
}
