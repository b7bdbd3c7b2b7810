//! Publishes events into a stream. In a `sequenced` stream, the store gives a number to each event that has none. The
//! store also retains the events of such a stream for replay, within the limits `retain` and `retain_events`. If the
//! stream reads from the broker, the broker confirms each event; otherwise the store does.
//!
//! In a `sequenced` stream, the store remembers the id of each event for the time of the setting `retain`. If a
//! producer publishes the same event again within this time, the event keeps its number, and the stream accepts the
//! event only once.

mod assign;
mod history;
pub mod incident;
mod writer;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use ordain_core::{Event, OrderingMode};

use ordain_amqp::{BrokerEndpoint, BrokerError, ExchangeProducer, PREPARE_TIMEOUT, Topology};
use ordain_config::numbering::{self, NumberingError};
use ordain_config::{
    AmqpSourceConfig, ConfigError, LoadedConfig, NumberingPolicy, ResourceName, RoutingKeyTemplate,
    SourceConfig, StoreConfig, StreamConfig,
};
use ordain_store::{
    AssignItem, AssignItemReply, InstanceId, Mark, MarkConditions, NumberingSettings, Store,
    StoreError,
};
use ordain_util::command::PrintedCommand;
use ordain_util::log_throttle::LogThrottle;
use ordain_util::wait::shortened;
use tokio::time::timeout;

use assign::ROLLBACK_RETRY_LIMIT;
pub use assign::{AssignError, AssignResult, EventAssigner, QueuedEntries};
use history::PublishedCalls;
pub use writer::QueueWriter;

/// The time for which a publisher retries calls to an unreachable store or broker, also while the publisher opens. With
/// a store in Redis, a publisher also waits for at most this time until a full queue has room.
pub const RETRY_TIMEOUT: Duration = Duration::from_secs(30);
/// Delay between two attempts to declare the exchange and the queues while the broker is unavailable.
const BROKER_RETRY_DELAY: Duration = Duration::from_millis(500);
/// Minimum time between two warnings that the broker is unavailable.
const WARN_INTERVAL: Duration = Duration::from_secs(5);
/// The next step if the store lost the number of an event. The text does not name the cause of the loss, because a
/// refused event does not show that the store went back in time.
const REUSE_ADVICE: &str = "publish all lost events again before any new event, in the same order and with the same \
                            ids. Use the option `--reuse-lost-numbers` of the command `publish` (in a program: \
                            `Publisher::reuse_lost_numbers`)";
/// The section of the documentation about the loss of numbers.
const LOST_NUMBERS_GUIDE: &str = "docs/guide/producers.md, \"Lost numbers\"";
/// Time limit for closing the connection that declared the exchange and the queues.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The reason why events were not published. After a failed call, [`PartialPublishError::assigned`] shows which events
/// are published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The broker refused a request, or is unreachable.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// An event is invalid, or the store refused the event, for example because an event with the same id and other
    /// content was published before. All earlier events of the call are published. No later event of the same key is
    /// published.
    #[error("{words}")]
    Event {
        /// The index of the event in the call.
        at: usize,
        /// The fault, and how to correct it.
        words: String,
    },
    /// The store lost events of this publisher. The publisher repeated these events, and the store refused to number
    /// one of them. The text names the event, the reason and the next step.
    #[error("{0}")]
    Refused(String),
    /// The queue of the stream is full, and stayed full until the time limit. With an embedded store, the time limit is
    /// 0.
    #[error("{0}")]
    Full(String),
    /// The stream is not in the configuration, or the configuration does not allow publishing to it.
    #[error("{0}")]
    Stream(String),
}

/// A publish call that failed, with the result for each event.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct PartialPublishError {
    /// The result for each event. An event with a refusal ([`AssignItemReply::is_refused`]) is not published. An event
    /// with `AfterConflict` is not published, or the publisher does not know whether the event is published.
    pub assigned: Vec<AssignItemReply>,
    /// The reason why the call failed.
    pub error: PublishError,
}

impl From<NumberingError> for PublishError {
    fn from(error: NumberingError) -> Self {
        match error {
            NumberingError::Config(error) => error.into(),
            NumberingError::Store(error) => error.into(),
        }
    }
}

/// A publisher of events into one stream.
pub struct StreamPublisher {
    stream: Arc<str>,
    store: Arc<dyn Store>,
    /// The assigner, which writes the events to the store, and its recent calls. If the store loses the events of a
    /// call, the publisher repeats the call. `None` if the events do not pass through the store.
    assigner: Option<(EventAssigner, PublishedCalls)>,
    /// Publishes to the exchange of the stream; `None` if the stream has no exchange.
    producer: Option<ExchangeProducer>,
    /// A stream that receives the events and has a time in the setting `key_ttl`; `None` if no such stream exists. With
    /// this setting, the stream forgets a key that gets no events for this time, even if the key has not ended.
    expiring_stream: Option<Arc<str>>,
}

impl StreamPublisher {
    /// Opens a publisher for a stream of a configuration. Validates the configuration, and then awaits `store`, the
    /// future that opens the configuration's store. If the source of the stream is of kind `amqp`, connects to the
    /// broker, and declares the stream's exchange and queues if they are missing. If the source has the setting
    /// `declare = false`, only checks that the exchange and the queues exist. While the broker is unavailable, retries
    /// for up to [`RETRY_TIMEOUT`].
    pub fn open<'a>(
        loaded: &'a LoadedConfig,
        stream: &'a str,
        store: impl Future<Output = Result<Arc<dyn Store>, StoreError>> + Send + 'a,
    ) -> BoxFuture<'a, Result<Self, PublishError>> {
        Box::pin(Self::open_with(loaded, stream, Box::pin(store)))
    }

    async fn open_with(
        loaded: &LoadedConfig,
        stream: &str,
        store: BoxFuture<'_, Result<Arc<dyn Store>, StoreError>>,
    ) -> Result<Self, PublishError> {
        loaded.check_supported()?;
        let (name, config) = find(loaded, stream)?;
        let stream = name.shared();
        let cannot =
            |words: &str| PublishError::Stream(format!("the events of stream {stream} {words}"));
        match &config.source {
            SourceConfig::Amqp(AmqpSourceConfig { exchange: None, .. }) => {
                return Err(cannot(
                    "come from a queue, and the stream names no exchange to publish to: set `source.exchange`",
                ));
            }
            SourceConfig::File(_) => {
                return Err(cannot("come from a file: append lines to the file"));
            }
            SourceConfig::Http(_) => {
                return Err(cannot("come over HTTP: send them to the ingress"));
            }
            SourceConfig::Amqp(_) | SourceConfig::Stream(_) => {}
        }
        let store = store.await.map_err(explain_in_use)?;
        numbering::check(loaded, &*store, InstanceId::random()).await?;
        let is_numbered = config.ordering == OrderingMode::Sequenced;
        let (policy, producer) = match &config.source {
            SourceConfig::Stream(_) => {
                (NumberingPolicy::to_stream(name, config, is_numbered, store.shards()), None)
            }
            SourceConfig::Amqp(source) => {
                let exchange = source.exchange.as_ref().map_or("", |exchange| exchange.0.as_str());
                let policy = if is_numbered {
                    Some(NumberingPolicy::for_producers(loaded, exchange)?)
                } else {
                    None
                };
                (policy, Some(open_producer(loaded, &stream, source, config.ordering).await?))
            }
            SourceConfig::File(_) | SourceConfig::Http(_) => (None, None),
        };
        let readers = match &config.source {
            SourceConfig::Amqp(AmqpSourceConfig { exchange: Some(exchange), .. }) => {
                loaded.config.exchange_readers(&exchange.0).collect()
            }
            _ => loaded.config.streams.get_key_value(&*stream).into_iter().collect::<Vec<_>>(),
        };
        let forgets = readers.into_iter().find(|(_, reader)| reader.key_ttl.0.is_some());
        let forgets = forgets.map(|(name, _)| name.shared());
        // With an embedded store, waiting until a full queue has room is useless: no other process can make room,
        // because only one process at a time can open the store.
        let is_alone = matches!(loaded.config.store, StoreConfig::Embedded(_));
        let patience = if is_alone { Duration::ZERO } else { shortened(RETRY_TIMEOUT) };
        let assigner = policy.map(|policy| {
            let assigner = EventAssigner {
                writer: Arc::new(QueueWriter::new(store.shards())),
                store: Arc::clone(&store),
                policy,
                full_timeout: patience,
                reuses_lost_numbers: false,
            };
            let history = PublishedCalls::new(&assigner, &stream);
            (assigner, history)
        });
        Ok(Self { stream, store, assigner, producer, expiring_stream: forgets })
    }

    /// Publishes events, each event after the earlier events of its key. When the call returns successfully, all events
    /// are durable and confirmed. For each event, returns its number and whether the event is new. If the store does
    /// not number the events, each event counts as new and has the number 0: the stream itself then numbers the events
    /// and recognises repeats.
    pub fn publish<'a>(
        &'a mut self,
        events: &'a [Arc<Event>],
    ) -> BoxFuture<'a, Result<Vec<AssignItemReply>, PartialPublishError>> {
        Box::pin(self.publish_all(events))
    }

    async fn publish_all(
        &mut self,
        events: &[Arc<Event>],
    ) -> Result<Vec<AssignItemReply>, PartialPublishError> {
        let wrong =
            events.iter().enumerate().find_map(|(at, event)| Some((at, self.fault(event)?)));
        let right = &events[..wrong.as_ref().map_or(events.len(), |(at, _)| *at)];
        let (mut assigned, failed) = match &mut self.assigner {
            None => (vec![AssignItemReply::New(0); right.len()], None),
            Some((assigner, history)) => assign_events(assigner, history, right).await,
        };
        let failed = failed.map(|error| not_assigned(&self.stream, error));
        // The publisher must send every event to which the store gave a number, because otherwise the key of the event
        // would have a gap.
        let is_numbered = self.is_numbered();
        let has_number = |result: &AssignItemReply| {
            matches!(result, AssignItemReply::New(_) | AssignItemReply::Known(_))
        };
        let sent = if let Some(producer) = &mut self.producer {
            let numbered =
                right.iter().zip(&assigned).filter(|(_, result)| has_number(result)).map(
                    |(event, result)| {
                        if is_numbered {
                            (Arc::new(event.numbered_by_store()), Some(result.sequence()))
                        } else {
                            (Arc::clone(event), None)
                        }
                    },
                );
            producer.publish(&numbered.collect::<Vec<_>>()).await.map_err(PublishError::from)
        } else {
            self.store.flush().await.map_err(PublishError::from)
        };
        if let Err(error) = sent {
            // The publisher does not know which of the events the broker or the store has, so each event gets the
            // result `AfterConflict`.
            return Err(PartialPublishError {
                assigned: vec![AssignItemReply::AfterConflict; events.len()],
                error,
            });
        }
        let reuses =
            self.assigner.as_ref().is_some_and(|(assigner, _)| assigner.reuses_lost_numbers);
        let refused = assigned.iter().position(|result| result.is_refused());
        let reason = |at: usize| refusal_message(&self.stream, &right[at], assigned[at], reuses);
        let refused = refused.map(|at| (at, reason(at)));
        let event = |(at, words)| PublishError::Event { at, words };
        assigned.resize(events.len(), AssignItemReply::AfterConflict);
        match failed.or_else(|| refused.or(wrong).map(event)) {
            Some(error) => Err(PartialPublishError { assigned, error }),
            None => Ok(assigned),
        }
    }

    /// Returns the fault of an invalid event, and `None` for a valid event. The publisher checks an event before the
    /// store numbers it, because a numbered event that cannot be published would leave a gap.
    fn fault(&self, event: &Event) -> Option<String> {
        if self.producer.as_ref().is_some_and(ExchangeProducer::is_routed)
            && let Some(words) = RoutingKeyTemplate::length_error(event.key())
        {
            return Some(words);
        }
        let numbers = self.numbers()?;
        let Some(sequence) = event.sequence() else {
            return self.expiring_stream.as_ref().map(|stream| {
                format!(
                    "the event has no sequence, and the store cannot number it. streams.{stream}.key_ttl can remove a \
                     key, but the store would continue the numbers of the removed key. Set key_ttl to \"off\", or let \
                     the producer number its events"
                )
            });
        };
        NumberingPolicy::sequence_error(numbers.first, sequence)
    }

    /// Permits the store to give lost numbers to the repeated events. Call this method only after the store went back
    /// in time and lost numbers, and only to publish the lost events again. Publish all lost events, in the same order
    /// and with the same ids, before any new event.
    ///
    /// After the loss, a stream that reads the events may have an event of a key with a higher sequence than the store
    /// knows. The store then refuses an event of this key, unless this method was called. After this call, the store
    /// gives the event the next number of its key if the stream has the same event under this number. The stream then
    /// recognises the repeat. The store refuses the event if the stream has a different event under this number, or no
    /// longer has the digest of its event. (The setting `digests` limits the number of digests.)
    pub fn reuse_lost_numbers(&mut self) {
        if let Some((assigner, _)) = &mut self.assigner {
            assigner.reuses_lost_numbers = true;
        }
    }

    /// Returns whether the store numbers the events before the stream receives them.
    pub fn is_numbered(&self) -> bool {
        self.numbers().is_some()
    }

    fn numbers(&self) -> Option<NumberingSettings> {
        self.assigner.as_ref()?.0.policy.rules.numbering
    }

    /// Returns the name of the stream.
    pub fn stream(&self) -> &Arc<str> {
        &self.stream
    }

    /// Returns the store of the configuration.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Returns the number of times that this publisher detected that the store had gone back in time.
    pub fn rewinds(&self) -> u64 {
        self.assigner.as_ref().map_or(0, |(_, history)| history.rewinds())
    }

    /// Writes a mark (a named record) into each shard (slice of the store). Does not write to a shard that has gone
    /// back in time. A shard has gone back in time if it lacks the newest event that this publisher wrote to the shard.
    /// A shard has also gone back in time if its mark of this name differs from the mark in `before`. `before` is the
    /// result of [`MarkStore::mark_in_shards`](ordain_store::MarkStore::mark_in_shards). After a success, this method
    /// replaces all marks in `before` with the new mark. Returns whether all shards have the new mark.
    pub async fn put_mark(
        &self,
        mark: &Mark,
        before: &mut Vec<Option<Bytes>>,
    ) -> Result<bool, PublishError> {
        let mut behind = MarkConditions { before, ..MarkConditions::default() };
        if let Some((assigner, history)) = &self.assigner {
            behind.destination = Some(&assigner.policy.destination);
            behind.witnesses = history.witnesses();
        }
        let is_put = self.store.put_mark_in_shards(mark, &behind).await?;
        if is_put {
            before.fill(Some(mark.value.clone()));
        }
        Ok(is_put)
    }

    /// Writes lost events again: events that this publisher wrote to the store, and that the store no longer has.
    /// Writes only the lost events that are still in the memory of the publisher.
    pub async fn restore(&mut self) -> Result<(), PublishError> {
        if let Some((assigner, history)) = &mut self.assigner {
            let restored = history.put_lost_again(assigner).await;
            restored.map_err(|error| not_assigned(&self.stream, error))?;
        }
        Ok(())
    }

    /// Closes the publisher. First writes lost events again, as [`Self::restore`] does.
    pub async fn close(mut self) -> Result<(), PublishError> {
        self.restore().await?;
        self.store.flush().await?;
        if let Some(producer) = self.producer {
            producer.close().await;
        }
        Ok(())
    }
}

fn not_assigned(stream: &str, error: AssignError) -> PublishError {
    match error {
        AssignError::Store(error) => error.into(),
        AssignError::RolledBack => StoreError::RolledBack.into(),
        AssignError::Refused(words) => PublishError::Refused(words),
        AssignError::Full => PublishError::Full(format!(
            "the queue of stream {stream} has reached the limit `source.queue`: let the stream consume events, then \
             publish again"
        )),
    }
}

/// Writes events to the store, after all earlier events of the publisher. If the store has lost some of the earlier
/// events, first writes the lost events again.
async fn assign_events(
    assigner: &EventAssigner,
    history: &mut PublishedCalls,
    events: &[Arc<Event>],
) -> (Vec<AssignItemReply>, Option<AssignError>) {
    let mut numbers = vec![AssignItemReply::AfterConflict; events.len()];
    if let Err(failed) = history.restore(assigner).await {
        return (numbers, Some(failed));
    }
    let is_numbered = assigner.policy.rules.numbering.is_some();
    for _ in 0..ROLLBACK_RETRY_LIMIT {
        // If the store numbers the events, each try writes all events again, because the store recognises the events
        // that it has. If the store does not number the events, it would queue a repeated event twice. A later try then
        // writes only the events that are not queued yet.
        let is_open = |at: &usize| is_numbered || numbers[*at] == AssignItemReply::AfterConflict;
        let indexes: Vec<usize> = (0..events.len()).filter(is_open).collect();
        let items: Vec<AssignItem> = indexes.iter().map(|at| assigner.item(&events[*at])).collect();
        let reuses = assigner.reuses_lost_numbers;
        let mut result = assigner.assign_behind(&items, &history.witnesses(), reuses).await;
        for (at, now) in indexes.iter().zip(&result.assigned) {
            numbers[*at] = match (numbers[*at], *now) {
                (AssignItemReply::New(_), AssignItemReply::Known(number)) => {
                    AssignItemReply::New(number)
                }
                (_, now) => now,
            };
        }
        let failed = result.error.take();
        let is_put = |now: &AssignItemReply| {
            matches!(now, AssignItemReply::New(_) | AssignItemReply::Known(_))
        };
        let (written, replies) =
            items.into_iter().zip(result.assigned).filter(|(_, now)| is_put(now)).unzip();
        history.add(
            assigner,
            written,
            AssignResult { assigned: replies, entries: result.entries, ..AssignResult::default() },
        );
        if !matches!(failed, Some(AssignError::RolledBack)) {
            return (numbers, failed);
        }
        if let Err(failed) = history.put_lost_again(assigner).await {
            return (numbers, Some(failed));
        }
    }
    (numbers, Some(AssignError::RolledBack))
}

/// Returns a random id of 128 bits. In practice, this function never returns the same id twice.
pub fn new_id() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// Returns the reason why the store refused an event, and the next step. `reuses` is true if the caller published the
/// event again after a loss ([`StreamPublisher::reuse_lost_numbers`]).
fn refusal_message(stream: &str, event: &Event, reply: AssignItemReply, reuses: bool) -> String {
    let key = event.key();
    match reply {
        AssignItemReply::KeyEnded if reuses => format!(
            "key {key:?} has ended, and Ordain cannot check whether the stream has settled this event, because the \
             stream keeps only the digests of the newest events of a key (setting `digests`). If the event was \
             published before the end of the key, the stream has settled it: publish the other lost events without this event. \
             If the event is new, publish it when `complete_ttl` has passed since the end of the key"
        ),
        AssignItemReply::KeyEnded => format!(
            "key {key:?} has ended: if the event is new, publish it when `complete_ttl` has passed since the end of \
             the key. If the store has lost data (for example by a failover or a restored backup), {REUSE_ADVICE}"
        ),
        AssignItemReply::UnprovenRepeat(sequence) => format!(
            "the store cannot give this event its earlier sequence again, for one of three reasons. The stream has \
             executed another event as sequence {sequence} of key {key:?}. Or the stream has executed more than \
             `digests` (a setting) later events of the key, so it no longer knows which event had this sequence. Or \
             it has not executed the event yet. With `--reuse-lost-numbers`, publish only the lost events: all of \
             them, in their order, from the first lost event of each key. If this event is a lost event, wait until \
             the stream has executed all waiting events, and publish this event again. For the other cases, see \
             {LOST_NUMBERS_GUIDE}"
        ),
        AssignItemReply::NumberedElsewhere(next) => format!(
            "the stream has events of key {key:?} up to sequence {last}, with sequences that the store did not give, \
             or gave and then lost. Find out which of three cases applies. First case: the sequence {last} is a \
             mistake (check with {why}). Then do not use the next sequence, but give this event its right sequence. \
             Second case: the store has lost data (for example by a failover or a restored backup). Then \
             {REUSE_ADVICE}. If this event is new, publish it afterwards and without the option. In this case, only a \
             new event may get the sequence {next}, and only as described in {LOST_NUMBERS_GUIDE}: a lost event would \
             take effect twice under this sequence. Third case: another producer numbers the events of this key. Then \
             let this producer number this event too. Or, if no other event will ever get the sequence {next}, publish \
             this event with the sequence {next}",
            last = next - 1,
            why = PrintedCommand::new("keys why").argument(stream).argument(key)
        ),
        _ => conflict_message(event, reply),
    }
}

/// Returns the reason why an event is in conflict with an earlier event, and how to correct it.
fn conflict_message(event: &Event, reply: AssignItemReply) -> String {
    let key = event.key();
    let sequence = reply.sequence();
    let (what, right) = match event.sequence() {
        Some(sequence) => (format!("sequence {sequence}"), "sequence"),
        None => (format!("the id {:?}", event.id()), "id"),
    };
    format!(
        "{what} of key {key:?} already belongs to another event, with other content (sequence {sequence}): give the \
         new event another {right}"
    )
}

fn find<'a>(
    loaded: &'a LoadedConfig,
    stream: &str,
) -> Result<(&'a ResourceName, &'a StreamConfig), PublishError> {
    let streams = &loaded.config.streams;
    let found = streams.iter().find(|(name, _)| ***name == *stream);
    found.ok_or_else(|| {
        let known: Vec<&str> = streams.keys().map(|name| &**name).collect();
        PublishError::Stream(format!(
            "stream {stream:?} is not in {}; its streams are: {}",
            loaded.file.display(),
            known.join(", ")
        ))
    })
}

/// Extends the error of a store that another process uses. The added text states that only one process at a time can
/// open an embedded store, and names the remedy.
fn explain_in_use(error: StoreError) -> StoreError {
    match error {
        StoreError::InUse(words) => StoreError::InUse(format!(
            "{words}. Only one process at a time can open an embedded store; with [store] kind = \"redis\", events \
             can be published while the stream runs"
        )),
        error => error,
    }
}

/// Declares the exchange and the queues of a stream (with the setting `declare = false`, checks that they exist), and
/// creates the producer that publishes to the exchange.
async fn open_producer(
    loaded: &LoadedConfig,
    stream: &str,
    source: &AmqpSourceConfig,
    ordering: OrderingMode,
) -> Result<ExchangeProducer, PublishError> {
    let broker = BrokerEndpoint::of(loaded).expect(
        "the check of the configuration requires [broker] for a source of \
                                                    kind `amqp`",
    );
    prepare_exchange(&broker, stream, source).await?;
    let exchange = source.exchange.as_ref().map_or("", |exchange| exchange.0.as_str());
    Ok(ExchangeProducer::new(
        &broker,
        stream,
        exchange,
        &source.locations(),
        ordering == OrderingMode::Fifo,
        shortened(RETRY_TIMEOUT),
    ))
}

/// Declares the exchange and the queues of a stream (with the setting `declare = false`, checks that they exist).
/// Retries while the broker is unavailable, for up to [`RETRY_TIMEOUT`].
async fn prepare_exchange(
    broker: &BrokerEndpoint,
    stream: &str,
    source: &AmqpSourceConfig,
) -> Result<(), BrokerError> {
    let mut throttle = LogThrottle::new(WARN_INTERVAL);
    let mut retry_until = None;
    loop {
        let reason = match try_prepare_exchange(broker, stream, source).await {
            Err(BrokerError::Unavailable(reason)) => reason,
            done => return done,
        };
        // The declaration of a queue that does not answer can take minutes, so the time limit begins with the first
        // error.
        let now = Instant::now();
        if now >= *retry_until.get_or_insert(now + shortened(RETRY_TIMEOUT)) {
            return Err(BrokerError::Unavailable(reason));
        }
        // Before the next attempt, the broker may be upgraded.
        broker.forget_version();
        if throttle.allow() {
            tracing::warn!("broker unavailable: {reason}; waiting for it to become available");
        }
        tokio::time::sleep(BROKER_RETRY_DELAY).await;
    }
}

async fn try_prepare_exchange(
    broker: &BrokerEndpoint,
    stream: &str,
    source: &AmqpSourceConfig,
) -> Result<(), BrokerError> {
    let connection = broker.connect(&format!("ordain publish {stream}")).await?;
    let topology = Topology::of(source);
    let prepared = topology.prepare(broker, &connection, false, PREPARE_TIMEOUT);
    broker.within(PREPARE_TIMEOUT, prepared).await?;
    // The exchange and the queues exist now, so an error on close does not matter.
    let _ = timeout(CLOSE_TIMEOUT, connection.close(200, "done".into())).await;
    Ok(())
}
