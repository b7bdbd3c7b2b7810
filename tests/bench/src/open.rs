//! Opens the store of a side's configuration.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use ordain_config::{LoadedConfig, StoreConfig};
use ordain_store::Store;
use ordain_store_embedded::{EmbeddedOptions, EmbeddedStore};
use ordain_store_redis::RedisStore;

/// Opens the store of a configuration, as `ordain` does. `retry_timeout` limits the time for which a Redis store
/// retries a call.
pub(crate) async fn open_store(
    loaded: &LoadedConfig,
    retry_timeout: Option<Duration>,
) -> Result<Arc<dyn Store>> {
    match &loaded.config.store {
        StoreConfig::Embedded(embedded) => {
            Ok(Arc::new(EmbeddedStore::open(EmbeddedOptions::new(&*embedded.path))?))
        }
        StoreConfig::Redis(redis) => {
            Ok(Arc::new(RedisStore::open(redis.options(retry_timeout)).await?))
        }
    }
}
