//! The names of all streams: the configured streams, and the streams that are not configured but have data in the
//! store.

use ordain_store::{Store, StoreError};

use crate::LoadedConfig;

/// Returns the names of the streams that are configured or have data in the store, in alphabetical order.
pub async fn known_streams(
    loaded: &LoadedConfig,
    store: &dyn Store,
) -> Result<Vec<String>, StoreError> {
    let mut known: Vec<String> = loaded.config.streams.keys().map(ToString::to_string).collect();
    known.extend(store.streams().await?.iter().map(ToString::to_string));
    known.sort();
    known.dedup();
    Ok(known)
}
