//! The tag of Ordain's consumers in the broker. All processes with the same store use the same tag. By this tag, a
//! process distinguishes the consumers of these processes from the consumers of other programs, and from the consumers
//! of deployments with another store.

use std::sync::Arc;

use ordain_store::{SharedRecord, Store, StoreError};

use super::store_timeout::with_store_timeout;

/// The beginning of the tags of all consumers of Ordain.
pub const CONSUMER_TAG_PREFIX: &str = "ordain-";
const MARK_NAME: &str = "amqp-consumer-tag";

/// Returns the tag of the consumers of all processes that use the store. If the store has no tag yet, this function
/// writes a random tag. The tag is short, because the broker sends it with each delivery.
pub async fn consumer_tag(store: &Arc<dyn Store>) -> Result<Arc<str>, StoreError> {
    loop {
        let stored = SharedRecord::<String>::read(&**store, MARK_NAME.to_owned());
        let stored = with_store_timeout(stored).await?;
        if let Some(tag) = stored.record {
            return Ok(tag.into());
        }
        let tag = format!("{CONSUMER_TAG_PREFIX}{:016x}", rand::random::<u64>());
        if with_store_timeout(stored.replace(&**store, &tag)).await? {
            // Without this call, a crash could lose the tag. If consumers of this process then remained in the broker,
            // the next process would treat them as consumers of another program.
            with_store_timeout(store.flush()).await?;
            return Ok(tag.into());
        }
        // Another process has written its tag meanwhile.
    }
}
