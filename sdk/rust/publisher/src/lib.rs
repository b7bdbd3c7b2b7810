//! Publishes events to a stream of Ordain from a Rust program.
//!
//! In a `sequenced` stream, the store keeps each event for replay, and gives an event without a sequence the next
//! number of its key. Publishing succeeds once the broker (or the store, for a source of kind `stream`) has confirmed
//! the event. Within the stream's `retain` (24 hours by default), the program may publish the event again under the
//! same id and source, for example after a crash. The event then keeps its number, and the stream executes it once.
//!
//! ```no_run
//! use ordain_publisher::{Event, Publisher};
//!
//! #[derive(serde::Serialize)]
//! struct Paid {
//!     cents: u64,
//! }
//!
//! # async fn publish() -> Result<(), ordain_publisher::Error> {
//! // The configuration of the host, or another configuration with the same store, broker and stream.
//! let mut publisher = Publisher::open("ordain.toml", "orders").await?;
//! let paid = Event::json("order-17", "order.paid", &Paid { cents: 1_200 })?.id("payment-4711");
//! let receipts = publisher.publish(&[paid]).await?;
//! println!("order-17 is paid by its event {:?}", receipts[0].sequence);
//! publisher.close().await
//! # }
//! ```
//!
//! Publish many events in one call if possible: this is faster, because the broker receives and confirms the events
//! together. The store must be in Redis, which the host and the producers can use at the same time. An embedded store
//! belongs to one process: use `ordain publish` while the host is stopped, or `[ingress]` while the host runs.
//!
//! The publisher requires a Tokio runtime.

mod error;
mod event;

use std::path::Path;
use std::sync::Arc;

use ordain_config::{LoadedConfig, StoreConfig};
use ordain_publish::{self as publish, PublishError};
use ordain_store::{AssignItemReply, Store, StoreError};
use ordain_store_redis::RedisStore;

pub use error::Error;
pub use event::Event;

/// A publisher of events to one stream.
pub struct Publisher {
    inner: publish::StreamPublisher,
    event_size: usize,
}

/// The result of publishing an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// Number of the event within its key; `None` in a `fifo` stream, which numbers events itself.
    pub sequence: Option<u64>,
    /// True if this call published the event for the first time. False if the event was published before. The
    /// `sequence` of a repeat is the number that the event got the first time. In a `fifo` stream the value is always
    /// true, because the stream itself recognises repeats.
    pub is_new: bool,
}

impl Publisher {
    /// Opens the store and the broker of a stream, according to an Ordain configuration. Declares the stream's exchange
    /// and queues if they are missing. If the store is unavailable, waits for it for at most half a minute. Repeats a
    /// failed attempt to reach the broker for half a minute. If the broker accepts a connection but does not answer, a
    /// single attempt can take two minutes.
    ///
    /// # Errors
    /// Fails in these cases:
    ///
    /// - The configuration is invalid or does not contain the stream.
    /// - The store is an embedded store.
    /// - The stream does not accept published events.
    /// - For a stream of the configuration, the store has data that was written with another value of `ordering`,
    ///   `first` or `partitions`, or another process runs the stream with another value of one of these settings.
    /// - The store or the broker was unavailable for half a minute.
    /// - The broker refuses access, or refuses to declare the exchange or a queue.
    pub async fn open(config: impl AsRef<Path>, stream: &str) -> Result<Self, Error> {
        let loaded = LoadedConfig::load(config.as_ref())?;
        let event_size = loaded.config.runtime.event_size.bytes();
        let inner = publish::StreamPublisher::open(&loaded, stream, store(&loaded)).await?;
        Ok(Self { inner, event_size })
    }

    /// Publishes events in the given order. When the method returns successfully, the broker (or the store, for a
    /// source of kind `stream`) has confirmed all events. Returns a receipt for each event.
    ///
    /// # Errors
    /// [`Error::Event`] names the event that is invalid or that the store refused; the events before this event are
    /// published. If the store refused the event, later events of other keys may be published too. [`Error::Away`]
    /// means that the store or broker was unavailable for half a minute, or that the queue of the stream was full for
    /// half a minute. In this case, some of the events may be published. After these errors, the program can publish
    /// the same events again: Ordain recognises the events that are already published. [`Error::Failed`] can mean that
    /// the store lost events of this publisher, and refuses to number one of them when the publisher repeats them. The
    /// error then names the next step.
    pub async fn publish(&mut self, events: &[Event]) -> Result<Vec<Receipt>, Error> {
        let mut packed = Vec::with_capacity(events.len());
        let mut wrong = None;
        for (at, event) in events.iter().enumerate() {
            match event.pack(self.event_size) {
                Ok(event) => packed.push(Arc::new(event)),
                Err(words) => {
                    wrong = Some(Error::Event { at, words });
                    break;
                }
            }
        }
        let assigned = self.inner.publish(&packed).await.map_err(|stopped| stopped.error)?;
        match wrong {
            Some(wrong) => Err(wrong),
            None => Ok(assigned.into_iter().map(receipt(self.inner.is_numbered())).collect()),
        }
    }

    /// Lets the store assign lost numbers a second time. Use this method only after the store has lost data, and only
    /// to publish the lost events again. Open a publisher and call this method. Then publish all lost events in the
    /// same order and with the same ids, and close the publisher. Publish new events afterwards, with another
    /// publisher.
    ///
    /// Without this method, [`Self::publish`] refuses an event if the stream has events of its key with higher numbers
    /// than the store has given. After a call of this method, the store gives such an event the next number of its key
    /// if the stream has the same event under this number. The stream then recognises the repeat. Otherwise,
    /// [`Self::publish`] refuses the event.
    pub fn reuse_lost_numbers(&mut self) {
        self.inner.reuse_lost_numbers();
    }

    /// Closes the publisher.
    ///
    /// # Errors
    /// Fails if the store has failed or is unavailable, or if it lost events of this publisher and refuses to number
    /// one of them when the publisher repeats them. All events for which [`Self::publish`] returned a receipt stay
    /// published, except events that were only in the store and that the store has lost.
    pub async fn close(self) -> Result<(), Error> {
        Ok(self.inner.close().await?)
    }
}

/// Opens the Redis store of a configuration. Returns an error for an embedded store, because an embedded store belongs
/// to one process.
async fn store(loaded: &LoadedConfig) -> Result<Arc<dyn Store>, StoreError> {
    match &loaded.config.store {
        StoreConfig::Redis(redis) => {
            Ok(Arc::new(RedisStore::open(redis.options(Some(publish::RETRY_TIMEOUT))).await?))
        }
        StoreConfig::Embedded(_) => Err(StoreError::Unusable(format!(
            "{} has an embedded store, which belongs to one process. To publish from a program, set [store] kind = \
             \"redis\". Otherwise use `ordain publish` while the host is stopped, or POST the events to the [ingress] \
             of the host",
            loaded.file.display()
        ))),
    }
}

fn receipt(is_numbered: bool) -> impl Fn(AssignItemReply) -> Receipt {
    move |assigned| Receipt {
        sequence: is_numbered.then_some(assigned.sequence()),
        is_new: matches!(assigned, AssignItemReply::New(_)),
    }
}

impl From<PublishError> for Error {
    fn from(error: PublishError) -> Self {
        match error {
            PublishError::Event { at, words } => Self::Event { at, words },
            PublishError::Refused(words) => Self::Failed(words),
            PublishError::Full(words) => Self::Away(words),
            PublishError::Stream(words) => Self::Configuration(words),
            PublishError::Config(error) => Self::configuration(error),
            PublishError::Store(error) => error.into(),
            PublishError::Broker(error) => error.into(),
        }
    }
}
