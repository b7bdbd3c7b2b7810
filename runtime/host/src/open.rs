//! Opens what a configuration names, for whoever runs streams and for those who only publish into them:
//! the store, the broker; and whether the data of a store were written with the same settings.

pub mod numbering;
mod passage;

use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use crate::broker::{Broker, BrokerError};
use crate::config::{ConfigError, Loaded, StoreConfig};
use crate::store::embedded::{self, Embedded};
use crate::store::redis::{self, Redis};
use crate::store::{Store, StoreError};

pub use passage::Passage;

/// The broker notices a process that stands still after two to three of its heartbeats: before the lease
/// has run out, or its successor would wait longer than for that.
const LEASE_PARTS: u64 = 5;

/// Why something cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The broker refused something, or is out of reach.
    #[error(transparent)]
    Broker(#[from] BrokerError),
}

/// Opens the store of a configuration. What is asked of one that is out of reach is asked again for
/// so long, or for ever.
pub async fn open_store(
    loaded: &Loaded,
    patience: Option<Duration>,
) -> Result<Arc<dyn Store>, StoreError> {
    let dead_ttl = loaded.config.store.dead_ttl().0;
    match &loaded.config.store {
        StoreConfig::Embedded(embedded) => {
            let mut options = embedded::Options::new(&*embedded.path);
            options.cache = embedded.cache.0;
            options.dead_ttl = dead_ttl;
            let opened = tokio::task::spawn_blocking(move || Embedded::open(options)).await;
            let opened = opened.unwrap_or_else(|error| resume_unwind(error.into_panic()));
            Ok(Arc::new(opened?))
        }
        StoreConfig::Redis(redis) => {
            let options = redis::Options {
                address: redis.url.clone(),
                prefix: redis.prefix.to_string(),
                shards: redis.shards,
                replicas: redis.durability.replicas(),
                dead_ttl,
                patience,
                shift: Arc::default(),
            };
            Ok(Arc::new(Redis::open(options).await?))
        }
    }
}

/// The broker, if one is configured.
pub fn broker(loaded: &Loaded) -> Result<Option<Arc<Broker>>, ConfigError> {
    let Some(config) = &loaded.config.broker else { return Ok(None) };
    let heartbeat = config.heartbeat.map_or(loaded.config.runtime.lease.0 / LEASE_PARTS, |it| it.0);
    let broker = Broker::new(config.url.0.expose(), Duration::from_millis(heartbeat));
    let broker = broker.map_err(|words| loaded.error("broker.url", words))?;
    Ok(Some(Arc::new(broker)))
}
