//! Events over HTTP for a stream that has a queue of the broker. They wait in the store until a copy of
//! each is published to the stream's exchange, so that the broker brings it to whoever owns its key. While
//! the broker does not take them, the owner of their partition sees them all the same.
//!
//! The partition of a key is known by its job. Where there are several, events of keys without a job wait
//! apart: nobody but the broker knows where they belong.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ordain_core::{Event, EventParts, LetterContent};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use super::unconfirmed::Unconfirmed;
use crate::source::{QueueOptions, read_queue};
use ordain_amqp::{BrokerError, Producer};
use ordain_cloudevents::{Acknowledged, Delivered, Source};
use ordain_store::Partition;
use ordain_util::backoff::Backoff;
use ordain_util::log_throttle::LogThrottle;

/// Events that are offered ahead of the sequencer.
const AHEAD: usize = 64;
/// Delays between two tries to reach a broker that is away: the longer it lasts, the fewer.
const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));
/// Time between two warnings that events are not published.
const WARN_INTERVAL: Duration = Duration::from_secs(30);

/// The queue of events whose partition is not known, beside those of the partitions.
pub fn unplaced(stream: &Arc<str>, partitions: u32) -> Partition {
    Partition { stream: Arc::clone(stream), number: partitions }
}

/// The inbox of a partition.
#[derive(Debug)]
pub struct Inbox {
    offered: mpsc::Receiver<Arc<Event>>,
    is_away: Arc<AtomicBool>,
    relays: Vec<JoinHandle<()>>,
}

impl Inbox {
    /// Starts to publish what waits in the queue of a partition; and in that of unknown ones, of which
    /// nothing is offered. Of the first, so many events are offered at most: their copies must be known
    /// when they come.
    pub fn start(
        placed: QueueOptions,
        unplaced: Option<QueueOptions>,
        offers: usize,
        producer: impl Fn() -> Producer,
    ) -> Self {
        let (offer, offered) = mpsc::channel(AHEAD);
        let is_away = Arc::<AtomicBool>::default();
        let relay = |queue, offers| {
            let relay = Relay {
                queue,
                producer: producer(),
                offer: offer.clone(),
                offers,
                left: offers,
                is_away: Arc::clone(&is_away),
                throttle: LogThrottle::new(WARN_INTERVAL),
            };
            tokio::spawn(relay.run())
        };
        let relays = unplaced.map(|queue| relay(queue, 0)).into_iter();
        let relays = relays.chain([relay(placed, offers)]).collect();
        Self { offered, is_away, relays }
    }

    /// The next event that the broker does not take at the moment. It comes from there as well, later.
    pub async fn next(&mut self) -> Option<Arc<Event>> {
        self.offered.recv().await
    }

    /// Whether the broker is away, as far as publishing tells.
    pub fn is_away(&self) -> bool {
        self.is_away.load(Ordering::Relaxed)
    }

    /// Waits until what is published is removed, which has a limit of its own.
    pub async fn end(self) {
        drop(self.offered);
        for relay in self.relays {
            // One that panicked has said so.
            let _ = relay.await;
        }
    }
}

struct Relay {
    queue: QueueOptions,
    producer: Producer,
    offer: mpsc::Sender<Arc<Event>>,
    /// Events that are offered at most, until all are confirmed; and how many of those are left.
    offers: usize,
    left: usize,
    is_away: Arc<AtomicBool>,
    throttle: LogThrottle,
}

impl Relay {
    async fn run(mut self) {
        let offer = self.offer.clone();
        let mut backoff = RETRY_BACKOFF;
        while !offer.is_closed() {
            let (published, reason) = self.publish().await;
            if let Some(reason) = reason {
                warn(&mut self.throttle, &self.queue.partition, &reason);
            }
            if published > 0 {
                backoff.reset();
            }
            self.tell_away(true);
            tokio::select! {
                () = self.offer(&mut backoff) => {}
                () = offer.closed() => {}
            }
            self.tell_away(false);
        }
    }

    fn tell_away(&self, away: bool) {
        // Of what belongs to no partition yet, nobody waits for the rest.
        if self.offers > 0 {
            self.is_away.store(away, Ordering::Relaxed);
        }
    }

    /// Publishes what waits and what comes, until the broker is away, takes nothing of much, or the inbox is
    /// dropped. Tells how much it has published, and why it failed.
    async fn publish(&mut self) -> (u64, Option<String>) {
        let Source { mut deliveries, failure, acknowledge, ended, .. } =
            read_queue(self.queue.clone());
        // Of a queue without offers nothing is known by its id alone.
        let most = if self.offers == 0 { usize::MAX } else { self.offers };
        let (mut unconfirmed, mut failed) = (Unconfirmed::new(most), None);
        let all = async {
            let mut backoff = RETRY_BACKOFF;
            let mut again = Instant::now();
            loop {
                let retries = tokio::select! {
                    batch = deliveries.recv(), if unconfirmed.has_room() => {
                        let Some(batch) = batch else { break };
                        unconfirmed.extend(batch.items.into_iter().map(|(it, _)| whole(it)));
                        false
                    }
                    () = sleep_until(again), if unconfirmed.has_refused() => true,
                };
                let (places, events) = unconfirmed.to_publish(retries);
                let (taken, error) = self.producer.try_publish(&events).await;
                let through = unconfirmed.confirm(&places, &taken);
                if unconfirmed.is_empty() {
                    self.left = self.offers;
                }
                if let Some(acknowledge) = &acknowledge {
                    acknowledge.send_replace(Acknowledged { generation: 0, through });
                }
                let refused = taken.iter().filter(|it| !**it).count();
                let reason = match error {
                    None if refused == 0 => continue,
                    None => self.producer.refusal(refused),
                    Some(BrokerError::Refused(reason)) => reason,
                    Some(BrokerError::Away(reason)) => {
                        failed = Some(reason);
                        break;
                    }
                };
                if refused == taken.len() && !unconfirmed.has_room() {
                    failed = Some(reason);
                    break;
                }
                warn(&mut self.throttle, &self.queue.partition, &reason);
                if retries {
                    backoff.advance();
                    for event in unconfirmed.take_offers(&mut self.left) {
                        let _ = self.offer.send(event).await;
                    }
                }
                if again <= Instant::now() {
                    again = Instant::now() + backoff.delay();
                }
            }
        };
        let is_over = tokio::select! {
            () = all => false,
            () = self.offer.closed() => true,
        };
        drop((deliveries, acknowledge));
        if let Some(ended) = ended {
            // It removes what is published; one that panicked has said so.
            let _ = ended.await;
        }
        if failed.is_none() && !is_over {
            failed = failure.await.ok().map(|error| error.to_string());
        }
        (unconfirmed.through(), failed)
    }

    /// Offers what it may once, until the broker is there again.
    async fn offer(&mut self, backoff: &mut Backoff) {
        let Self { queue, producer, offer, left, .. } = self;
        let mut source = (*left > 0).then(|| read_queue(queue.clone()));
        let back = async {
            loop {
                sleep(backoff.next_delay()).await;
                if producer.reach().await.is_ok() {
                    break;
                }
            }
        };
        let all = async {
            if let Some(source) = &mut source {
                while let Some(batch) = source.deliveries.recv().await {
                    let events = batch.items.into_iter().filter_map(|(event, _)| event.ok());
                    for event in events.take(*left) {
                        let _ = offer.send(Arc::new(event)).await;
                        *left -= 1;
                    }
                    if *left == 0 {
                        break;
                    }
                }
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = back => {}
            () = all => {}
        }
        if let Some(Source { deliveries, acknowledge, ended: Some(ended), .. }) = source {
            drop((deliveries, acknowledge));
            // Wait for the reader to end, so that it takes no notification meant for the next one. A panic is already logged.
            let _ = ended.await;
        }
    }
}

fn warn(throttle: &mut LogThrottle, partition: &Partition, reason: &str) {
    if throttle.allow() {
        tracing::warn!(
            stream = &*partition.stream,
            "what came over HTTP is not published at the moment, and waits in the store: {reason}"
        );
    }
}

/// What waits, as an event. Bytes that are none become one without a key, which is a dead letter where it
/// arrives.
fn whole(delivered: Delivered) -> Event {
    let letter = match delivered {
        Ok(event) => return event,
        Err(letter) => letter,
    };
    tracing::error!("{}: published as it is", letter.error);
    let data = match &letter.content {
        LetterContent::Raw(bytes) => bytes.clone(),
        LetterContent::Event(_) | LetterContent::Nothing => bytes::Bytes::new(),
    };
    let id = letter.origin.unwrap_or_default();
    Event::new(&EventParts { id: &id, kind: "unreadable", data: &data, ..EventParts::default() })
}
