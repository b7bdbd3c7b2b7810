//! `ordain run`: opens everything that the configuration names, drives every partition, and
//! closes it all again. Read [`run`] from top to bottom.

mod broker;
mod chains;
mod decide;
mod figures;
mod files;
mod handlers;
mod loading;
mod owning;
mod report;
mod share;
mod sources;
mod streams;
mod versions;

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};

use crate::admin::Admin;
use crate::broker::BrokerError;
use crate::config::{ConfigError, Loaded, Source};
use crate::driver::{DriverError, asked_to_stop};
use crate::ingress::Ingress;
use crate::instance::{About, Heart, bury};
use crate::open::{self, OpenError, numbering, open_store};
use crate::plugin::{EngineError, LoadError, Pool};
use crate::replay;
use crate::sink::{Publisher, PublisherError};
use crate::store::{InstanceId, Store, StoreError};

use files::Files;
use owning::Owning;
use versions::Versions;

pub use figures::{Figures, Phase};
pub use files::check_files;
pub use handlers::{Chosen, Handlers, Missing, VersionFeed};
pub use loading::{engine, folder, handlers};
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
    /// The engine of the handlers cannot start.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An address to listen at is another process's; the message says which setting to change.
    #[error(transparent)]
    AddressInUse(ConfigError),
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

impl From<OpenError> for RunError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Config(error) => error.into(),
            OpenError::Store(error) => error.into(),
            OpenError::Broker(error) => error.into(),
        }
    }
}

impl RunError {
    /// An address cannot be listened at; what to change.
    pub(crate) fn cannot_listen(
        loaded: &Loaded,
        section: &str,
        address: SocketAddr,
        error: &io::Error,
    ) -> Self {
        let taken = error.kind() == io::ErrorKind::AddrInUse;
        let why =
            if taken { "another process listens there".to_owned() } else { error.to_string() };
        let refused = loaded.error(
            &format!("{section}.listen"),
            format!(
                "cannot listen at {address}: {why}. Give `listen` of [{section}] another address; port 0 \
                 takes a free one: [{section}] listen = \"127.0.0.1:0\""
            ),
        );
        if taken { Self::AddressInUse(refused) } else { refused.into() }
    }

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
                | Self::AddressInUse(_)
                | Self::Missing { .. }
                | Self::Handler(LoadError { may_pass: true, .. })
                | Self::Broker(BrokerError::Away(_))
        )
    }
}

/// Runs until `shutdown` becomes true or, with `once`, until every source has ended and every
/// event is settled or held. With `once` the report tells what is held, which takes a look at
/// every key of the store; the end of a service must not wait for that.
pub async fn run(
    loaded: &Loaded,
    once: bool,
    shutdown: watch::Receiver<bool>,
    figures: &Arc<Figures>,
) -> Result<Report, RunError> {
    loaded.unsupported()?;
    if once {
        ends(loaded)?;
    }
    let admin = Admin::listen(loaded, once, figures, &shutdown).await?;
    let report = start(loaded, once, shutdown, figures).await;
    if let Some(admin) = admin {
        admin.end().await;
    }
    report
}

/// Refuses a source that never ends, for a run that waits for the end of each.
fn ends(loaded: &Loaded) -> Result<(), ConfigError> {
    for (name, stream) in &loaded.config.streams {
        if let Source::Amqp(_) | Source::Http(_) = stream.source {
            let message = "a queue has no end, for which --once waits: leave --once out, or give a \
                           configuration whose sources are all of kind \"file\"";
            return Err(loaded.error(&format!("streams.{name}.source"), message));
        }
    }
    Ok(())
}

/// Whether any stream is, so that others may have something for it until all have come to rest.
fn is_fed_from_here(loaded: &Loaded) -> bool {
    loaded.config.streams.values().any(|stream| matches!(stream.source, Source::Stream(_)))
}

/// Opens what is needed, and drives.
async fn start(
    loaded: &Loaded,
    once: bool,
    mut shutdown: watch::Receiver<bool>,
    figures: &Arc<Figures>,
) -> Result<Report, RunError> {
    // Compiling takes a while, and whoever asks for the end does not wait for it.
    let loading = loaded.clone();
    let loading = tokio::task::spawn_blocking(move || handlers(&loading));
    let handlers = tokio::select! {
        handlers = loading => Arc::new(handlers.map_err(RunError::Panic)??),
        () = asked_to_stop(&mut shutdown) => return Ok(Report::default()),
    };
    figures.loaded(&handlers);
    let store = tokio::select! {
        store = open_store(loaded, None) => store?,
        () = asked_to_stop(&mut shutdown) => return Ok(Report::default()),
    };
    let durability = store.durability();
    if durability.is_at_risk {
        tracing::warn!("{}", durability.words);
    } else {
        tracing::info!("{}", durability.words);
    }
    figures.opened(&store);
    let report = tokio::select! {
        biased;
        error = store.failed() => Err(error.into()),
        report = drive(loaded, once, &handlers, &store, shutdown, figures) => report,
    };
    figures.closes();
    report
}

/// Drives all partitions to their end.
async fn drive(
    loaded: &Loaded,
    once: bool,
    handlers: &Arc<Handlers>,
    store: &Arc<dyn Store>,
    mut shutdown: watch::Receiver<bool>,
    figures: &Arc<Figures>,
) -> Result<Report, RunError> {
    let id = InstanceId::random();
    bury(&**store).await?;
    streams::check_left_overs(loaded, &**store, id).await?;
    numbering::check(loaded, &**store, id).await?;
    let broker = open::broker(loaded)?;
    let Files { sources, mut outlets } = Files::open(loaded, &**store).await?;
    let feeds = Arc::default();
    chains::add(loaded, store, &feeds, &mut outlets);
    // Before the broker is there: events are taken while it is away.
    let ingress = if once {
        // Nothing that it could take would end.
        None
    } else {
        Ingress::listen(loaded, store, &feeds, figures, &shutdown).await?
    };
    let patience = if ingress.is_some() { None } else { Some(broker::START) };
    tokio::select! {
        prepared = broker::prepare(
            loaded, store, broker.as_ref(), patience, &feeds, &mut outlets
        ) => prepared?,
        () = asked_to_stop(&mut shutdown) => {
            if let Some(ingress) = ingress {
                ingress.end().await;
            }
            return Ok(Report::default());
        }
    }
    let pool = Pool::start(&handlers.engine).map_err(RunError::Thread)?;
    let (committed, batches) = mpsc::channel(streams::unpublished(&loaded.config));
    let (questions, asked) = mpsc::channel(1);
    let starting = streams::Starting {
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
    let about = About { offers: handlers.offers(), ..About::this(loaded, once) };
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
    if let Some(ingress) = ingress {
        ingress.end().await;
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

fn publisher_ended(ended: Result<Result<(), PublisherError>, JoinError>) -> Result<(), RunError> {
    Ok(ended.map_err(|_| RunError::PublisherGone)??)
}

/// The streams that are configured or that the store has data of, in order.
pub async fn known_streams(loaded: &Loaded, store: &dyn Store) -> Result<Vec<String>, StoreError> {
    let mut known: Vec<String> = loaded.config.streams.keys().map(ToString::to_string).collect();
    known.extend(store.streams().await?.iter().map(ToString::to_string));
    known.sort();
    known.dedup();
    Ok(known)
}
