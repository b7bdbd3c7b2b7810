//! Opens the store of a side's configuration.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use ordain_config::{Loaded, StoreConfig};
use ordain_store::Store;
use ordain_store_embedded::{Embedded, Options};
use ordain_store_redis::Redis;

/// Opens the store that a configuration names, as `ordain` does.
pub(crate) async fn open_store(
    loaded: &Loaded,
    patience: Option<Duration>,
) -> Result<Arc<dyn Store>> {
    match &loaded.config.store {
        StoreConfig::Embedded(embedded) => {
            Ok(Arc::new(Embedded::open(Options::new(&*embedded.path))?))
        }
        StoreConfig::Redis(redis) => Ok(Arc::new(Redis::open(redis.options(patience)).await?)),
    }
}
