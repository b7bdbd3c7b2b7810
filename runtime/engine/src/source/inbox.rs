//! Events received over HTTP for a stream whose source reads from the broker. The events wait in queues in the store.
//! The inbox publishes a copy of each event to the stream's exchange. It removes the event from the store when the
//! broker has confirmed this copy, and the copies of all events that the inbox read earlier. The broker routes the copy
//! to its queue for the partition of the event's key. While the broker does not accept events, the inbox passes events
//! early: directly to the driver of their partition.
//!
//! The record of a key contains the key's partition. Only the broker determines the partition of a key without a
//! record. If a stream has several partitions, the events of such keys therefore wait in a separate queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ordain_core::{Event, EventParts, LetterContent};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use super::unconfirmed::UnconfirmedEvents;
use crate::source::{QueueOptions, read_queue};
use ordain_amqp::{BrokerError, ExchangeProducer, TopologyGate};
use ordain_cloudevents::{AckProgress, DecodedDelivery, SourceHandle};
use ordain_store::Partition;
use ordain_util::backoff::Backoff;
use ordain_util::failure_timer::FailureTimer;
use ordain_util::log_throttle::LogThrottle;

/// Maximum number of early events that wait for the sequencer. Early events are events that the inbox passes to the
/// driver before the broker delivers them.
const EARLY_EVENT_LIMIT: usize = 64;
/// Delays between two attempts to publish to a broker that is unavailable or refuses events.
const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));
const WARN_INTERVAL: Duration = Duration::from_secs(30);

/// Returns the queue of events without a known partition. The queue's number follows the numbers of the stream's
/// partitions.
pub fn unrouted_queue(stream: &Arc<str>, partitions: u32) -> Partition {
    Partition { stream: Arc::clone(stream), number: partitions }
}

/// The inbox of a partition. The inbox publishes to the broker the events that arrived over HTTP. While the broker does
/// not accept events, the inbox also passes events to the driver early.
#[derive(Debug)]
pub struct Inbox {
    early_events: mpsc::Receiver<Arc<Event>>,
    is_broker_unavailable: Arc<AtomicBool>,
    relays: Vec<JoinHandle<()>>,
}

impl Inbox {
    /// Starts to publish the events of a partition's queue (`routed`), and of the queue of events without a known
    /// partition (`unrouted`). While the broker does not accept events, passes at most `early_limit` events of the
    /// partition's queue to the driver early. The limit exists because the sequencer must recognise the copies of these
    /// events when the broker delivers them. Never passes events without a known partition early. `gate` is closed
    /// while the broker refuses the exchange or the queues of a new stream. Meanwhile, the inbox neither publishes
    /// events nor passes them early, for two reasons. First, the exchange of a new stream may belong to another
    /// program. Second, early events would leave data of the stream in the store, and a later start could then treat
    /// the stream as known.
    pub fn start(
        routed: QueueOptions,
        unrouted: Option<QueueOptions>,
        early_limit: usize,
        gate: &TopologyGate,
        producer: impl Fn() -> ExchangeProducer,
    ) -> Self {
        let (early_sender, early_events) = mpsc::channel(EARLY_EVENT_LIMIT);
        let is_broker_unavailable = Arc::<AtomicBool>::default();
        let relay = |queue, early_limit| {
            let relay = IngressRelay {
                queue,
                gate: gate.clone(),
                producer: producer(),
                early_sender: early_sender.clone(),
                early_limit,
                early_left: early_limit,
                is_broker_unavailable: Arc::clone(&is_broker_unavailable),
                throttle: LogThrottle::new(WARN_INTERVAL),
                failures: FailureTimer::default(),
            };
            tokio::spawn(relay.run())
        };
        let relays = unrouted.map(|queue| relay(queue, 0)).into_iter();
        let relays = relays.chain([relay(routed, early_limit)]).collect();
        Self { early_events, is_broker_unavailable, relays }
    }

    /// Returns the next early event. The broker delivers a copy of the event later.
    pub async fn next(&mut self) -> Option<Arc<Event>> {
        self.early_events.recv().await
    }

    /// Returns whether the inbox waits for the broker after a failure to publish.
    pub fn is_broker_unavailable(&self) -> bool {
        self.is_broker_unavailable.load(Ordering::Relaxed)
    }

    /// Stops the inbox, and waits until the readers have removed the published events from the queues. The wait has a
    /// time limit.
    pub async fn end(self) {
        drop(self.early_events);
        for relay in self.relays {
            // A panic of the task is already logged.
            let _ = relay.await;
        }
    }
}

struct IngressRelay {
    queue: QueueOptions,
    gate: TopologyGate,
    producer: ExchangeProducer,
    early_sender: mpsc::Sender<Arc<Event>>,
    /// The initial value of `early_left`, and its value after the broker has confirmed all events that the inbox has
    /// read.
    early_limit: usize,
    early_left: usize,
    is_broker_unavailable: Arc<AtomicBool>,
    throttle: LogThrottle,
    /// Runs while the broker does not accept all events.
    failures: FailureTimer,
}

impl IngressRelay {
    async fn run(mut self) {
        let early_sender = self.early_sender.clone();
        let mut backoff = RETRY_BACKOFF;
        tokio::select! {
            // The retries of the start log each refusal.
            () = self.gate.wait_open(drop) => {}
            () = early_sender.closed() => return,
        }
        while !early_sender.is_closed() {
            let (published, reason) = self.publish().await;
            if let Some(reason) = reason {
                self.failures.record_failure();
                warn(&mut self.throttle, &self.queue.partition, &reason);
            }
            if published > 0 {
                backoff.reset();
            }
            self.set_broker_unavailable(true);
            tokio::select! {
                () = self.pass_early_events(&mut backoff) => {}
                () = early_sender.closed() => {}
            }
            self.set_broker_unavailable(false);
        }
    }

    fn set_broker_unavailable(&self, is_unavailable: bool) {
        // A relay publishes the events of one queue. Only the relay of the partition's queue reports the state of the
        // broker to the driver. The relay of the events without a known partition has the limit 0, because no driver
        // can process these events early.
        if self.early_limit > 0 {
            self.is_broker_unavailable.store(is_unavailable, Ordering::Relaxed);
        }
    }

    /// Publishes waiting and new events until publishing fails or the inbox ends. Returns the number of confirmed
    /// events before the first unconfirmed event and, after a failure, the reason. Publishing fails in three cases:
    /// - The broker is unavailable.
    /// - The broker refuses all events of an attempt, and the limits of unconfirmed events leave no room for another
    ///   batch of events.
    /// - The reader of the queue in the store fails.
    async fn publish(&mut self) -> (u64, Option<String>) {
        // Only the acknowledged events count as used: when publishing fails, the inbox drops all other events from
        // memory.
        let options = QueueOptions { used: Some(Arc::default()), ..self.queue.clone() };
        let SourceHandle { mut deliveries, failure, acknowledge, task: ended, .. } =
            read_queue(options);
        // The limit exists because the sequencer must later recognise the copies of early events. A queue whose events
        // are never passed early needs no limit.
        let repeat_limit = if self.early_limit == 0 { usize::MAX } else { self.early_limit };
        let mut unconfirmed = UnconfirmedEvents::new(repeat_limit);
        let mut failed = None;
        let publish_all = async {
            let mut backoff = RETRY_BACKOFF;
            let mut retry_at = Instant::now();
            loop {
                let retries = tokio::select! {
                    batch = deliveries.recv(), if unconfirmed.has_room() => {
                        let Some(batch) = batch else { break };
                        unconfirmed.extend(batch.items.into_iter().map(|(delivered, _)| into_event(delivered)));
                        false
                    }
                    () = sleep_until(retry_at), if unconfirmed.has_refused() => true,
                };
                let (indexes, events) = unconfirmed.to_publish(retries);
                let (accepted, error) = self.producer.try_publish(&events).await;
                let through = unconfirmed.confirm(&indexes, &accepted);
                if unconfirmed.is_empty() {
                    self.early_left = self.early_limit;
                }
                if let Some(acknowledge) = &acknowledge {
                    acknowledge.send_replace(AckProgress { subscription_epoch: 0, through });
                }
                let refused = accepted.iter().filter(|accepted| !**accepted).count();
                let reason = match error {
                    None if refused == 0 => {
                        if !events.is_empty()
                            && !unconfirmed.has_refused()
                            && let Some(seconds) = self.failures.recover()
                        {
                            tracing::info!(
                                stream = &*self.queue.partition.stream,
                                seconds,
                                "publishing of events over HTTP to the broker works again"
                            );
                        }
                        continue;
                    }
                    None => self.producer.refusal_reason(refused),
                    Some(
                        BrokerError::Refused { reason, .. }
                        | BrokerError::LoginRefused { reason, .. },
                    ) => reason,
                    Some(BrokerError::Unavailable(reason)) => {
                        failed = Some(reason);
                        break;
                    }
                };
                if refused == accepted.len() && !unconfirmed.has_room() {
                    failed = Some(reason);
                    break;
                }
                self.failures.record_failure();
                warn(&mut self.throttle, &self.queue.partition, &reason);
                if retries {
                    backoff.advance();
                    for event in unconfirmed.take_early_events(&mut self.early_left) {
                        let _ = self.early_sender.send(event).await;
                    }
                }
                if retry_at <= Instant::now() {
                    retry_at = Instant::now() + backoff.delay();
                }
            }
        };
        let is_stopped = tokio::select! {
            () = publish_all => false,
            () = self.early_sender.closed() => true,
        };
        drop((deliveries, acknowledge));
        if let Some(ended) = ended {
            // Wait until the reader has removed the published events. A panic is already logged.
            let _ = ended.await;
        }
        if failed.is_none() && !is_stopped {
            failed = failure.await.ok().map(|error| error.to_string());
        }
        (unconfirmed.through(), failed)
    }

    /// Waits until the broker becomes available. Meanwhile, passes at most `early_left` events to the driver.
    async fn pass_early_events(&mut self, backoff: &mut Backoff) {
        let Self { queue, producer, early_sender, early_left, .. } = self;
        let used = Arc::<AtomicU64>::default();
        let options = QueueOptions { used: Some(Arc::clone(&used)), ..queue.clone() };
        let mut source = (*early_left > 0).then(|| read_queue(options));
        let broker_available = async {
            loop {
                sleep(backoff.next_delay()).await;
                if producer.check_connection().await.is_ok() {
                    break;
                }
            }
        };
        let pass_all = async {
            if let Some(source) = &mut source {
                while *early_left > 0
                    && let Some(batch) = source.deliveries.recv().await
                {
                    for (delivered, _) in batch.items {
                        if *early_left == 0 {
                            break;
                        }
                        if let Ok(event) = delivered {
                            if early_sender.send(Arc::new(event)).await.is_err() {
                                return;
                            }
                            *early_left -= 1;
                        }
                        used.fetch_add(1, Ordering::SeqCst);
                    }
                }
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = broker_available => {}
            () = pass_all => {}
        }
        if let Some(SourceHandle { deliveries, acknowledge, task: Some(ended), .. }) = source {
            drop((deliveries, acknowledge));
            // Wait for the reader to end, because a running reader could take a notification that is meant for the next
            // reader. A panic is already logged.
            let _ = ended.await;
        }
    }
}

fn warn(throttle: &mut LogThrottle, partition: &Partition, reason: &str) {
    if throttle.allow() {
        tracing::warn!(
            stream = &*partition.stream,
            "events over HTTP not published to the broker: {reason}; Ordain keeps them in the store and tries again"
        );
    }
}

/// Returns the event of a delivery. Unreadable bytes become an event without a key, which the stream turns into a dead
/// letter.
fn into_event(delivered: DecodedDelivery) -> Event {
    let letter = match delivered {
        Ok(event) => return event,
        Err(letter) => letter,
    };
    tracing::error!(
        "the store has an unreadable event that arrived over HTTP: {}; publishing its bytes to the broker, so that the \
         stream turns the event into a dead letter",
        letter.error
    );
    let data = match &letter.content {
        LetterContent::Raw(bytes) => bytes.clone(),
        LetterContent::Event(_) | LetterContent::Nothing => bytes::Bytes::new(),
    };
    let id = letter.origin.unwrap_or_default();
    Event::new(&EventParts { id: &id, kind: "unreadable", data: &data, ..EventParts::default() })
}
