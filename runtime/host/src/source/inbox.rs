//! Events over HTTP for a stream that has a queue of the broker. They wait in the store until a copy of
//! each is published to the stream's exchange, so that the broker brings it to whoever owns its key. While
//! the broker does not take them, the owner of their partition sees them all the same.
//!
//! The partition of a key is known by its job. Where there are several, events of keys without a job wait
//! apart: nobody but the broker knows where they belong.

use std::sync::Arc;
use std::time::Duration;

use ordain_core::{Event, EventParts, LetterContent};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::{Acknowledged, Delivered, QueueOptions, Source, read_queue};
use crate::broker::Producer;
use crate::store::Partition;
use crate::told::Told;

/// Events that are offered ahead of the sequencer.
const AHEAD: usize = 64;
/// Between two tries to reach a broker that is away, from and to: the longer it lasts, the fewer.
const AGAIN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));
/// Between two warnings.
const TELL_EVERY: Duration = Duration::from_secs(30);

/// The queue of events whose partition is not known, beside those of the partitions.
pub fn unplaced(stream: &Arc<str>, partitions: u32) -> Partition {
    Partition { stream: Arc::clone(stream), number: partitions }
}

/// The inbox of a partition.
#[derive(Debug)]
pub struct Inbox {
    offers: mpsc::Receiver<Arc<Event>>,
    relays: Vec<JoinHandle<()>>,
}

impl Inbox {
    /// Starts to publish what waits in the queue of a partition; and in that of unknown ones, of which
    /// nothing is offered.
    pub fn start(
        placed: QueueOptions,
        unplaced: Option<QueueOptions>,
        producer: impl Fn() -> Producer,
    ) -> Self {
        let (offer, offers) = mpsc::channel(AHEAD);
        let relay = |queue, is_offered| {
            let (offer, told) = (offer.clone(), Told::every(TELL_EVERY));
            let relay = Relay { queue, producer: producer(), offer, is_offered, told };
            tokio::spawn(relay.run())
        };
        let relays = unplaced.map(|queue| relay(queue, false)).into_iter();
        let relays = relays.chain([relay(placed, true)]).collect();
        Self { offers, relays }
    }

    /// The next event that the broker does not take at the moment. It comes from there as well, later.
    pub async fn next(&mut self) -> Option<Arc<Event>> {
        self.offers.recv().await
    }

    /// Waits until what is published is removed, which has a limit of its own.
    pub async fn end(self) {
        drop(self.offers);
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
    is_offered: bool,
    told: Told,
}

impl Relay {
    async fn run(mut self) {
        let offer = self.offer.clone();
        let mut wait = AGAIN.0;
        while !offer.is_closed() {
            let (published, reason) = self.publish().await;
            if let Some(reason) = reason
                && self.told.is_due()
            {
                let Partition { stream, .. } = &self.queue.partition;
                tracing::warn!(
                    stream = &**stream,
                    "what came over HTTP is not published at the moment, and waits in the store: {reason}"
                );
            }
            if published > 0 {
                wait = AGAIN.0;
            }
            tokio::select! {
                () = self.offer(&mut wait) => {}
                () = offer.closed() => {}
            }
        }
    }

    /// Publishes what waits and what comes, until that fails or the inbox is dropped. Tells how much it has
    /// published, and why it failed.
    async fn publish(&mut self) -> (u64, Option<String>) {
        let Source { mut deliveries, failure, acknowledge, ended, .. } =
            read_queue(self.queue.clone());
        let (mut published, mut failed) = (0, None);
        let all = async {
            while let Some(batch) = deliveries.recv().await {
                let events = batch.items.into_iter().map(|(delivered, _)| {
                    let event = whole(delivered);
                    let sequence = event.sequence();
                    (Arc::new(event), sequence)
                });
                let events: Vec<_> = events.collect();
                if let Err(error) = self.producer.publish(&events).await {
                    failed = Some(error.to_string());
                    break;
                }
                published += events.len() as u64;
                if let Some(acknowledge) = &acknowledge {
                    acknowledge.send_replace(Acknowledged { generation: 0, through: published });
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
        (published, failed)
    }

    /// Offers everything once, until the broker is there again.
    async fn offer(&mut self, wait: &mut Duration) {
        let Self { queue, producer, offer, is_offered, .. } = self;
        let back = async {
            loop {
                sleep(*wait).await;
                *wait = (2 * *wait).min(AGAIN.1);
                if producer.reach().await.is_ok() {
                    break;
                }
            }
        };
        let all = async {
            if *is_offered {
                let mut source = read_queue(queue.clone());
                while let Some(batch) = source.deliveries.recv().await {
                    for event in batch.items.into_iter().filter_map(|(event, _)| event.ok()) {
                        let _ = offer.send(Arc::new(event)).await;
                    }
                }
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = back => {}
            () = all => {}
        }
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
