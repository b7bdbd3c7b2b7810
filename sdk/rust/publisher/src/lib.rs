//! Publish events into a stream of Ordain, from a program in Rust.
//!
//! An event gets the next number of its key from the store, is kept there for replay, and counts when the
//! broker has confirmed it. Published again under the same id, after a crash for example, it keeps its number, and
//! the stream takes it once: as long as the stream's `retain` says (24 hours by default).
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
//! // The configuration that the host runs, or one with the same store, broker and stream.
//! let mut publisher = Publisher::open("ordain.toml", "orders").await?;
//! let paid = Event::json("order-17", "order.paid", &Paid { cents: 1_200 })?.id("payment-4711");
//! let receipts = publisher.publish(&[paid]).await?;
//! println!("order-17 is paid by its event {:?}", receipts[0].sequence);
//! publisher.close().await
//! # }
//! ```
//!
//! Many events are published best many at a time: they go out together, and are confirmed together. The store
//! must be in Redis, which host and producers can have at once. An embedded store belongs to one process: there
//! `ordain publish` publishes while the host is stopped, and `[ingress]` while it runs.
//!
//! It runs within tokio.

mod error;
mod event;

use std::path::Path;
use std::sync::Arc;

use ordain_config::{Loaded, StoreConfig};
use ordain_publish::{self as publish, PublishError};
use ordain_store::{Assigned, Store, StoreError};
use ordain_store_redis::Redis;

pub use error::Error;
pub use event::Event;

/// Publishes events into one stream.
pub struct Publisher {
    inner: publish::Publisher,
    event_size: usize,
}

/// What became of an event that is published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// Its number within its key; `None` in a `fifo` stream, which numbers itself.
    pub sequence: Option<u64>,
    /// Whether it was published for the first time. One that was published before has the number that
    /// it got then. In a `fifo` stream always true: there the stream knows repeats, and no producer.
    pub is_new: bool,
}

impl Publisher {
    /// Opens the store and the broker of a stream, as a configuration of Ordain says. Its exchange and its
    /// queues are made where they are not there.
    ///
    /// # Errors
    /// The configuration is wrong or has no such stream; the stream cannot be published into; its store is
    /// another process's, or store or broker were not reached within half a minute.
    pub async fn open(config: impl AsRef<Path>, stream: &str) -> Result<Self, Error> {
        let loaded = Loaded::load(config.as_ref()).map_err(Error::configuration)?;
        let event_size = loaded.config.runtime.event_size.bytes();
        let inner = publish::Publisher::open(&loaded, stream, store(&loaded)).await?;
        Ok(Self { inner, event_size })
    }

    /// Publishes events in this order. When it returns, all of them are durable in the store and confirmed by
    /// the broker; there is a receipt for each.
    ///
    /// # Errors
    /// [`Error::Event`] names the event that is wrong; those before it are published. [`Error::Away`]: store or
    /// broker are out of reach, or as many events wait for the stream as may, for half a minute; what is published
    /// then is not told. After any error the same events may be published again: what is published already is
    /// known.
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

    /// Ends in order.
    ///
    /// # Errors
    /// The store has failed. What was published is published.
    pub async fn close(self) -> Result<(), Error> {
        Ok(self.inner.close().await?)
    }
}

/// Opens the store of a configuration.
async fn store(loaded: &Loaded) -> Result<Arc<dyn Store>, StoreError> {
    match &loaded.config.store {
        StoreConfig::Redis(redis) => {
            Ok(Arc::new(Redis::open(redis.options(Some(publish::PATIENCE))).await?))
        }
        StoreConfig::Embedded(_) => Err(StoreError::Unusable(format!(
            "{} has an embedded store, which belongs to one process: set [store] kind = \"redis\" to publish \
             from a program, or use `ordain publish` while the host is stopped, or POST the events to its [ingress]",
            loaded.file.display()
        ))),
    }
}

fn receipt(is_numbered: bool) -> impl Fn(Assigned) -> Receipt {
    move |assigned| Receipt {
        sequence: is_numbered.then_some(assigned.sequence()),
        is_new: matches!(assigned, Assigned::New(_)),
    }
}

impl From<PublishError> for Error {
    fn from(error: PublishError) -> Self {
        match error {
            PublishError::Event { at, words } => Self::Event { at, words },
            PublishError::Full(words) => Self::Away(words),
            PublishError::Stream(words) => Self::Configuration(words),
            PublishError::Config(error) => Self::configuration(error),
            PublishError::Store(error) => error.into(),
            PublishError::Broker(error) => error.into(),
        }
    }
}
