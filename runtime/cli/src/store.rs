//! Opens or inspects the store of a configuration.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use ordain_config::{LoadedConfig, StoreConfig};
use ordain_store::{Store, StoreError};
use ordain_store_embedded::{EmbeddedOptions, EmbeddedStore};
use ordain_store_redis::RedisStore;
use ordain_util::finding::{Finding, InspectedServer};

/// The use of a store by a command.
#[derive(Debug, Clone, Copy)]
pub(crate) enum StoreAccess<'a> {
    /// The command reads, or acts on a stream at the request of an operator. The command opens the store for a short
    /// time.
    Read,
    /// The command runs streams or publishes events.
    Write {
        /// The URL of the admin listener of this process; `None` if the process has no admin listener. A command that
        /// runs in another process finds this URL in the folder of an embedded store.
        admin_url: Option<&'a str>,
    },
}

/// Opens the store of a configuration. While the server of a Redis store is unavailable, the store retries requests for
/// `patience`. If `patience` is `None`, the store retries without a time limit. An embedded store has no server, and
/// ignores `patience`.
pub(crate) async fn open_store(
    loaded: &LoadedConfig,
    patience: Option<Duration>,
    access: StoreAccess<'_>,
) -> Result<Arc<dyn Store>, StoreError> {
    match &loaded.config.store {
        StoreConfig::Embedded(embedded) => {
            let mut options = EmbeddedOptions::new(&*embedded.path);
            options.cache_bytes = embedded.cache.0;
            options.dead_ttl = embedded.dead_ttl.0;
            options.reads_only = matches!(access, StoreAccess::Read);
            if let StoreAccess::Write { admin_url } = access {
                options.admin_url = admin_url.map(str::to_owned);
            }
            let opened = tokio::task::spawn_blocking(move || EmbeddedStore::open(options)).await;
            let opened = opened.unwrap_or_else(|error| resume_unwind(error.into_panic()));
            Ok(Arc::new(opened?))
        }
        StoreConfig::Redis(redis) => {
            let mut options = redis.options(patience);
            options.reads_only = matches!(access, StoreAccess::Read);
            Ok(Arc::new(RedisStore::open(options).await?))
        }
    }
}

/// Inspects the store of a configuration, and changes nothing in the store. The inspection takes at most `limit`. Does
/// not open an embedded store: opening changes the folder, and a running process may have the folder open.
pub(crate) async fn inspect_store(loaded: &LoadedConfig, limit: Duration) -> InspectedServer {
    match &loaded.config.store {
        StoreConfig::Embedded(embedded) => {
            let address = embedded.path.display().to_string();
            let note = format!("{address}: an embedded store has no server to connect to");
            InspectedServer { role: "store", address, findings: vec![Finding::note(note)] }
        }
        StoreConfig::Redis(redis) => {
            let options = redis.options(Some(limit));
            let inspection =
                async |findings: &mut Vec<Finding>| RedisStore::inspect(options, findings).await;
            InspectedServer::inspect("store", redis.url.to_string(), limit, inspection).await
        }
    }
}
