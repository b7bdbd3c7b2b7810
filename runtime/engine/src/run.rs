//! A run: drives every partition of a configuration from its begin to its end. Read [`Run::drive`] from
//! top to bottom.

mod broker;
mod chains;
mod figures;
mod files;
mod owning;
mod report;
mod share;
mod sources;
mod starting;
mod streams;
mod versions;

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, LocalBoxFuture};
use ordain_amqp::{Broker, BrokerError};
use ordain_config::numbering::{self, NumberingError};
use ordain_config::{ConfigError, Loaded, Source};
use ordain_store::{About, InstanceId, Store, StoreError};
use ordain_util::shutdown::asked_to_stop;
use ordain_util::wait::shortened;
use ordain_wasm::{Handlers, LoadError, Pool};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};

use crate::driver::DriverError;
use crate::instance::{Heart, bury};
use crate::replay;
use crate::sink::{Publisher, PublisherError};
use crate::source::Feeds;

use files::Files;
use owning::Owning;
use versions::Versions;

pub use figures::{Figures, Phase};
pub use files::check_files;
pub use report::{Held, Report};

/// For the last word to the store, and for the end of the publisher.
const LEAVE: Duration = Duration::from_secs(1);

/// Why a run could not start, or ended before its time.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A handler cannot be used.
    #[error(transparent)]
    Handler(#[from] LoadError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A thread cannot be started.
    #[error("a thread cannot be started: {0}")]
    Thread(io::Error),
    /// A partition stopped.
    #[error("stream {stream}")]
    Driver {
        /// The stream.
        stream: Arc<str>,
        /// Why.
        source: DriverError,
    },
    /// A run that waits for its end has not what is to execute the events of a stream.
    #[error(
        "stream {stream}: {reason}. --once cannot end without it: give it what other processes have, or end \
         those that have it"
    )]
    Missing {
        /// The stream.
        stream: Arc<str>,
        /// Why it is not here.
        reason: String,
    },
    /// The broker refused something, or is out of reach.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// Publishing stopped.
    #[error(transparent)]
    Publisher(#[from] PublisherError),
    /// The publisher panicked.
    #[error(
        "a bug of the host: the publisher ended; what is committed is published at the next start"
    )]
    PublisherGone,
    /// A part of the host panicked.
    #[error("a bug of the host: {0}")]
    Panic(tokio::task::JoinError),
}

impl From<NumberingError> for RunError {
    fn from(error: NumberingError) -> Self {
        match error {
            NumberingError::Config(error) => error.into(),
            NumberingError::Store(error) => error.into(),
        }
    }
}

impl RunError {
    /// Whether the configuration or a handler is to blame, not the running.
    pub fn is_configuration(&self) -> bool {
        matches!(
            self,
            Self::Config(_)
                | Self::Handler(LoadError { may_pass: false, .. })
                | Self::Store(StoreError::Unusable(_))
                | Self::Broker(BrokerError::Refused(_))
        )
    }

    /// Whether the same start may succeed later.
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            Self::Store(StoreError::Unavailable(_) | StoreError::InUse(_))
                | Self::Missing { .. }
                | Self::Handler(LoadError { may_pass: true, .. })
                | Self::Broker(BrokerError::Away(_))
        )
    }
}

/// Refuses a source that never ends, for a run that waits for the end of each.
pub fn check_ends(loaded: &Loaded) -> Result<(), ConfigError> {
    for (name, stream) in &loaded.config.streams {
        if let Source::Amqp(_) | Source::Http(_) = stream.source {
            let message = "a queue has no end, for which --once waits: leave --once out, or give a \
                           configuration whose sources are all of kind \"file\" or \"stream\"";
            return Err(loaded.error(&format!("streams.{name}.source"), message));
        }
    }
    Ok(())
}

/// Whether any stream is, so that others may have something for it until all have come to rest.
fn is_fed_from_here(loaded: &Loaded) -> bool {
    loaded.config.streams.values().any(|stream| matches!(stream.source, Source::Stream(_)))
}

/// A run that is about to begin: its store fits the configuration, and its files are open.
pub struct Run<'a> {
    loaded: &'a Loaded,
    once: bool,
    handlers: &'a Arc<Handlers>,
    store: &'a Arc<dyn Store>,
    figures: &'a Arc<Figures>,
    id: InstanceId,
    broker: Option<Arc<Broker>>,
    files: Files,
    feeds: Arc<Feeds>,
}

impl<'a> Run<'a> {
    /// Checks that the store fits the configuration, and opens the files.
    ///
    /// Like [`Self::drive`] it is a boxed future, so that this crate has its machine code. That of any other
    /// future is made where the future is awaited, with each change of the program.
    pub fn prepare(
        loaded: &'a Loaded,
        once: bool,
        handlers: &'a Arc<Handlers>,
        store: &'a Arc<dyn Store>,
        figures: &'a Arc<Figures>,
    ) -> LocalBoxFuture<'a, Result<Self, RunError>> {
        Box::pin(async move {
            let id = InstanceId::random();
            bury(&**store).await?;
            streams::check_left_overs(loaded, &**store, id).await?;
            numbering::check(loaded, &**store, id).await?;
            let broker = Broker::of(loaded)?;
            let mut files = Files::open(loaded, &**store).await?;
            let feeds = Arc::default();
            chains::add(loaded, store, &feeds, &mut files.outlets);
            Ok(Self { loaded, once, handlers, store, figures, id, broker, files, feeds })
        })
    }

    /// Where those who put events into queues of the store notify the readers of this process.
    pub fn feeds(&self) -> &Arc<Feeds> {
        &self.feeds
    }

    /// Runs until `shutdown` becomes true or, with `once`, until every source has ended and every
    /// event is settled or held. With `once` the report counts the events that are held, which reads
    /// every key of the store; the end of a service must not wait for that.
    ///
    /// `end_intake` ends the intake of events over HTTP. It runs once no partition is driven, before the
    /// process leaves the others. A run with an intake waits for its broker without a limit.
    pub fn drive(
        self,
        shutdown: watch::Receiver<bool>,
        end_intake: Option<BoxFuture<'a, ()>>,
    ) -> LocalBoxFuture<'a, Result<Report, RunError>> {
        Box::pin(self.drive_all(shutdown, end_intake))
    }

    async fn drive_all(
        self,
        mut shutdown: watch::Receiver<bool>,
        end_intake: Option<BoxFuture<'a, ()>>,
    ) -> Result<Report, RunError> {
        let Self { loaded, once, handlers, store, figures, id, broker, files, feeds } = self;
        let Files { sources, mut outlets } = files;
        let patience = if end_intake.is_some() { None } else { Some(shortened(broker::START)) };
        tokio::select! {
            prepared = broker::prepare(
                loaded, store, broker.as_ref(), patience, &feeds, &mut outlets
            ) => prepared?,
            () = asked_to_stop(&mut shutdown) => {
                if let Some(end_intake) = end_intake {
                    end_intake.await;
                }
                return Ok(Report::default());
            }
        }
        let pool = Pool::start(&handlers.engine).map_err(RunError::Thread)?;
        let (committed, batches) = mpsc::channel(streams::unpublished(&loaded.config));
        let (questions, asked) = mpsc::channel(1);
        let starting = starting::Starting {
            loaded,
            once,
            store,
            pool: &pool,
            handlers,
            sources: sources.into(),
            broker,
            hosts: replay::Hosts::of(&loaded.config),
            feeds,
            may_end: watch::Sender::new(!once || !is_fed_from_here(loaded)),
            last_windows: RefCell::default(),
            committed,
            questions,
        };
        let publisher = Publisher::new(Arc::clone(store), outlets, streams::room(&loaded.config));
        let mut publishing = JoinSet::new();
        publishing.spawn(publisher.run(batches, asked));

        let lease = Duration::from_millis(loaded.config.runtime.lease.0);
        let about = About {
            offers: handlers.offers(),
            ..About::this(loaded.config.partition_counts(), once)
        };
        let mut heart = tokio::select! {
            heart = Heart::start(store, id, about, lease) => heart?,
            () = asked_to_stop(&mut shutdown) => {
                // It may be known by now.
                let _ = tokio::time::timeout(LEAVE, store.forget(id)).await;
                return Ok(Report::default());
            }
        };
        let versions = Versions::new(loaded, store, handlers, heart.membership());
        let owning = async {
            numbering::check(loaded, &**store, id).await?;
            Owning::new(&starting, figures, &mut heart).run(shutdown).await
        };
        let unpublished = tokio::select! {
            unpublished = owning => unpublished,
            Some(ended) = publishing.join_next() => publisher_ended(ended).map(|()| 0),
            error = versions.run(once) => Err(error),
        };
        if unpublished.is_err() {
            // It has nothing any more, and others publish it.
            publishing.shutdown().await;
        }
        if let Some(end_intake) = end_intake {
            end_intake.await;
        }
        // Others need not wait for the lease to run out, however this one ends.
        heart.stop().await;
        let left = tokio::time::timeout(LEAVE, store.forget(id)).await;
        let unpublished = unpublished?;
        left.unwrap_or(Ok(()))?;
        // The publisher ends when nobody can give it anything.
        drop(starting);
        // There may also be messages of partitions that were only on their way.
        let ended = match unpublished {
            0 => tokio::time::timeout(LEAVE, publishing.join_next()).await.ok(),
            _ => None,
        };
        if let Some(ended) = ended {
            ended.map_or(Ok(()), publisher_ended)?;
        } else {
            tracing::warn!(
                messages = (unpublished > 0).then_some(unpublished),
                "not all that is committed is published: it is kept, and the next start goes on with it"
            );
        }
        // What it still waits for is left to the next start.
        publishing.abort_all();
        store.flush().await?;
        let held = if once { Some(Held::count(&**store).await?) } else { None };
        Ok(Report { stats: figures.sum(), held })
    }
}

fn publisher_ended(ended: Result<Result<(), PublisherError>, JoinError>) -> Result<(), RunError> {
    Ok(ended.map_err(|_| RunError::PublisherGone)??)
}
