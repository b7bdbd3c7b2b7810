//! A producer's side: events into a stream, numbered by the store where they have no number, kept for
//! replay, and confirmed.
//!
//! What is published again is known by its id, as long as `retain` says: it keeps its number, and the
//! stream takes it once.

mod assign;
mod history;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use ordain_core::{Event, Ordering};

use ordain_amqp::{Broker, BrokerError, Producer, Topology};
use ordain_config::numbering::{self, NumberingError};
use ordain_config::{
    AmqpSource, ConfigError, Loaded, Name, Passage, RoutingKey, Source, StoreConfig, Stream,
};
use ordain_store::{Assigned, InstanceId, Item, Numbers, Store, StoreError};
use ordain_util::wait::shortened;

pub use assign::{Assigner, Assignment, NotAssigned, Put};
use history::PublishHistory;

/// How long a store or a broker that is out of reach is asked.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// How often events are put again if the store goes back in time again and again.
const REWIND_ATTEMPTS: usize = 5;

/// Why events were not published. Those before the one that is named are.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The broker refused something, or is out of reach.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// One of the events is wrong, or in conflict with one that was published before. Those before it are
    /// published; nothing behind it of its key is.
    #[error("{words}")]
    Event {
        /// Which of the events.
        at: usize,
        /// What is wrong, and what would be right.
        words: String,
    },
    /// As many events wait for the stream as may, and nobody takes any. Those before are published.
    #[error("{0}")]
    Full(String),
    /// The stream cannot be published to.
    #[error("{0}")]
    Stream(String),
}

/// What was done before it stopped.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Stopped {
    /// One for each event: `Behind` and `Conflict` are not published, or nobody knows whether they are.
    pub assigned: Vec<Assigned>,
    /// Why.
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

/// Publishes events into one stream.
pub struct Publisher {
    stream: Arc<str>,
    store: Arc<dyn Store>,
    /// The way through the store, if they take it.
    assigner: Option<(Assigner, PublishHistory)>,
    /// The way into its exchange, where it has one.
    producer: Option<Producer>,
    /// A stream that gets its events and forgets keys that have not ended.
    forgets: Option<Arc<str>>,
}

impl Publisher {
    /// Opens what a stream of a configuration needs: its store, and its exchange, which is made where it
    /// is not there, with its queues. `store` opens the configuration's store; it runs once the
    /// configuration is known to be right.
    pub fn open<'a>(
        loaded: &'a Loaded,
        stream: &'a str,
        store: impl Future<Output = Result<Arc<dyn Store>, StoreError>> + Send + 'a,
    ) -> BoxFuture<'a, Result<Self, PublishError>> {
        Box::pin(Self::open_with(loaded, stream, Box::pin(store)))
    }

    async fn open_with(
        loaded: &Loaded,
        stream: &str,
        store: BoxFuture<'_, Result<Arc<dyn Store>, StoreError>>,
    ) -> Result<Self, PublishError> {
        loaded.unsupported()?;
        let (name, config) = find(loaded, stream)?;
        let stream = name.shared();
        let cannot =
            |words: &str| PublishError::Stream(format!("the events of stream {stream} {words}"));
        match &config.source {
            Source::Amqp(AmqpSource { exchange: None, .. }) => {
                return Err(cannot(
                    "come to a queue, and no exchange is named to publish to: `source.exchange`",
                ));
            }
            Source::File(_) => return Err(cannot("come from a file: append lines to it")),
            Source::Http(_) => return Err(cannot("come over HTTP: post them there")),
            Source::Amqp(_) | Source::Stream(_) => {}
        }
        let store = store.await.map_err(in_use)?;
        numbering::check(loaded, &*store, InstanceId::random()).await?;
        let is_numbered = config.ordering == Ordering::Sequenced;
        let (passage, producer) = match &config.source {
            Source::Stream(_) => {
                (Passage::to_stream(name, config, is_numbered, store.shards()), None)
            }
            Source::Amqp(source) => {
                let exchange = source.exchange.as_ref().map_or("", |it| it.0.as_str());
                let passage =
                    if is_numbered { Some(Passage::of_producers(loaded, exchange)?) } else { None };
                (passage, Some(producer(loaded, &stream, source, config.ordering).await?))
            }
            Source::File(_) | Source::Http(_) => (None, None),
        };
        let readers = match &config.source {
            Source::Amqp(AmqpSource { exchange: Some(exchange), .. }) => {
                loaded.config.readers(&exchange.0).collect()
            }
            _ => loaded.config.streams.get_key_value(&*stream).into_iter().collect::<Vec<_>>(),
        };
        let forgets = readers.into_iter().find(|(_, it)| it.key_ttl.0.is_some());
        let forgets = forgets.map(|(name, _)| name.shared());
        // Nobody else has an embedded store, who could make room.
        let is_alone = matches!(loaded.config.store, StoreConfig::Embedded(_));
        let patience = if is_alone { Duration::ZERO } else { shortened(PATIENCE) };
        let assigner = passage.map(|passage| {
            let assigner = Assigner { store: Arc::clone(&store), passage, patience };
            let history = PublishHistory::new(&assigner);
            (assigner, history)
        });
        Ok(Self { stream, store, assigner, producer, forgets })
    }

    /// Publishes events, each behind those of its key. When it returns all are durable and confirmed.
    /// Tells of each whether it is new, and its number; 0 where the stream numbers itself, and knows
    /// repeats itself.
    pub fn publish<'a>(
        &'a mut self,
        events: &'a [Arc<Event>],
    ) -> BoxFuture<'a, Result<Vec<Assigned>, Stopped>> {
        Box::pin(self.publish_all(events))
    }

    async fn publish_all(&mut self, events: &[Arc<Event>]) -> Result<Vec<Assigned>, Stopped> {
        let wrong =
            events.iter().enumerate().find_map(|(at, event)| Some((at, self.wrong(event)?)));
        let right = &events[..wrong.as_ref().map_or(events.len(), |(at, _)| *at)];
        let (mut assigned, failed) = match &mut self.assigner {
            None => (vec![Assigned::New(0); right.len()], None),
            Some((assigner, history)) => put(assigner, history, right).await,
        };
        let failed = failed.map(|error| not_assigned(&self.stream, error));
        // Whatever has a number is sent, or there would be a hole.
        let is_numbered = self.is_numbered();
        let has_number = |it: &Assigned| matches!(it, Assigned::New(_) | Assigned::Known(_));
        let sent = if let Some(producer) = &mut self.producer {
            let numbered = right
                .iter()
                .zip(&assigned)
                .filter(|(_, it)| has_number(it))
                .map(|(event, it)| (Arc::clone(event), is_numbered.then_some(it.sequence())));
            producer.publish(&numbered.collect::<Vec<_>>()).await.map_err(PublishError::from)
        } else {
            self.store.flush().await.map_err(PublishError::from)
        };
        if let Err(error) = sent {
            // Nobody knows what of it is there.
            return Err(Stopped { assigned: vec![Assigned::Behind; events.len()], error });
        }
        let conflict = assigned.iter().position(|it| matches!(it, Assigned::Conflict(_)));
        let conflict = conflict.map(|at| (at, in_conflict(&right[at], assigned[at].sequence())));
        let event = |(at, words)| PublishError::Event { at, words };
        assigned.resize(events.len(), Assigned::Behind);
        match failed.or_else(|| conflict.or(wrong).map(event)) {
            Some(error) => Err(Stopped { assigned, error }),
            None => Ok(assigned),
        }
    }

    /// What is wrong with an event, before it has a number: one that could not be published afterwards
    /// would leave a hole.
    fn wrong(&self, event: &Event) -> Option<String> {
        if self.producer.as_ref().is_some_and(Producer::is_routed)
            && let Some(words) = RoutingKey::wrong(event.key())
        {
            return Some(words);
        }
        let numbers = self.numbers()?;
        let Some(sequence) = event.sequence() else {
            return self.forgets.as_ref().map(|stream| {
                format!(
                    "it has no sequence, and streams.{stream}.key_ttl lets keys be forgotten that are counted \
                     on here: set it to \"off\", or let the producer count"
                )
            });
        };
        Passage::wrong(numbers.first, sequence)
    }

    /// Whether its events have numbers before they get there.
    pub fn is_numbered(&self) -> bool {
        self.numbers().is_some()
    }

    fn numbers(&self) -> Option<Numbers> {
        self.assigner.as_ref()?.0.passage.rules.numbers
    }

    /// The stream.
    pub fn stream(&self) -> &Arc<str> {
        &self.stream
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Ends in order. Puts again the events that the store has lost since they were published.
    pub async fn close(mut self) -> Result<(), PublishError> {
        if let Some((assigner, history)) = &mut self.assigner
            && !history.check(assigner).await.map_err(|error| not_assigned(&self.stream, error))?
        {
            let again = history.put_again(assigner).await;
            again.map_err(|error| not_assigned(&self.stream, error))?;
        }
        self.store.flush().await?;
        if let Some(producer) = self.producer {
            producer.close().await;
        }
        Ok(())
    }
}

fn not_assigned(stream: &str, error: NotAssigned) -> PublishError {
    match error {
        NotAssigned::Store(error) => error.into(),
        NotAssigned::WentBack => StoreError::WentBack.into(),
        NotAssigned::Full => PublishError::Full(format!(
            "as many events wait for stream {stream} as may (`source.queue`): let it run, then run this again"
        )),
    }
}

/// Puts events into the store, behind those that were put before: if the store has lost some of these, it gets them
/// again first.
async fn put(
    assigner: &Assigner,
    history: &mut PublishHistory,
    events: &[Arc<Event>],
) -> (Vec<Assigned>, Option<NotAssigned>) {
    let mut assigned = vec![Assigned::Behind; events.len()];
    if let Err(failed) = history.restore(assigner).await {
        return (assigned, Some(failed));
    }
    let is_numbered = assigner.passage.rules.numbers.is_some();
    for _ in 0..REWIND_ATTEMPTS {
        // The store recognises numbered events that it has, and queues others again.
        let is_open = |at: &usize| is_numbered || assigned[*at] == Assigned::Behind;
        let places: Vec<usize> = (0..events.len()).filter(is_open).collect();
        let items: Vec<Item> = places.iter().map(|at| assigner.item(&events[*at])).collect();
        let mut result = assigner.assign_behind(&items, &history.witnesses()).await;
        for (at, now) in places.iter().zip(&result.assigned) {
            assigned[*at] = match (assigned[*at], *now) {
                (Assigned::New(_), Assigned::Known(number)) => Assigned::New(number),
                (_, now) => now,
            };
        }
        let failed = result.failed.take();
        let is_put = |now: &Assigned| matches!(now, Assigned::New(_) | Assigned::Known(_));
        let (kept, now) =
            items.into_iter().zip(result.assigned).filter(|(_, now)| is_put(now)).unzip();
        history.add(
            assigner,
            kept,
            Assignment { assigned: now, put: result.put, ..Assignment::default() },
        );
        if !matches!(failed, Some(NotAssigned::WentBack)) {
            return (assigned, failed);
        }
        if let Err(failed) = history.put_again(assigner).await {
            return (assigned, Some(failed));
        }
    }
    (assigned, Some(NotAssigned::WentBack))
}

/// An id that no other event has.
pub fn new_id() -> String {
    format!("{:032x}", rand::random::<u128>())
}

fn in_conflict(event: &Event, sequence: u64) -> String {
    let (what, right) = match event.sequence() {
        Some(sequence) => (format!("sequence {sequence}"), "sequence"),
        None => (format!("the id {:?}", event.id()), "id"),
    };
    let key = event.key();
    format!(
        "{what} of key {key:?} was published before with other content (as sequence {sequence}): another \
         event needs another {right}"
    )
}

fn find<'a>(loaded: &'a Loaded, stream: &str) -> Result<(&'a Name, &'a Stream), PublishError> {
    let streams = &loaded.config.streams;
    let found = streams.iter().find(|(name, _)| ***name == *stream);
    found.ok_or_else(|| {
        let known: Vec<&str> = streams.keys().map(|name| &**name).collect();
        PublishError::Stream(format!(
            "there is no stream {stream:?} in {}; there are: {}",
            loaded.file.display(),
            known.join(", ")
        ))
    })
}

/// Who else has the store, and what helps.
fn in_use(error: StoreError) -> StoreError {
    match error {
        StoreError::InUse(words) => StoreError::InUse(format!(
            "{words}. One process at a time has an embedded store; with [store] kind = \"redis\" events \
             are published while the stream runs"
        )),
        error => error,
    }
}

/// The way into the exchange of a stream.
async fn producer(
    loaded: &Loaded,
    stream: &str,
    source: &AmqpSource,
    ordering: Ordering,
) -> Result<Producer, PublishError> {
    let broker = Broker::of(loaded)?.expect("a source of a broker is checked to have one");
    let connection = broker.connect(&format!("ordain publish {stream}")).await?;
    Topology::of(source).prepare(&broker, &connection, false).await?;
    // What was asked for is done, whatever becomes of the connection.
    let _ = connection.close(200, "done".into()).await;
    let exchange = source.exchange.as_ref().map_or("", |it| it.0.as_str());
    Ok(Producer::new(
        &broker,
        exchange,
        &source.key,
        ordering == Ordering::Fifo,
        shortened(PATIENCE),
    ))
}
