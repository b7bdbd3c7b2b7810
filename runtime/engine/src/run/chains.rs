//! Adds the sinks whose messages pass through the store, except exchanges, which need a broker.

use std::sync::Arc;

use crate::sink::Sinks;
use crate::source::QueueNotifiers;
use ordain_config::NumberingPolicy;
use ordain_config::{LoadedConfig, SinkConfig};
use ordain_store::Store;

/// Adds the sinks that are streams, and enables numbering for the file sinks whose messages need numbers.
pub(super) fn add_sequenced_sinks(
    loaded: &LoadedConfig,
    store: &Arc<dyn Store>,
    feeds: &Arc<QueueNotifiers>,
    outlets: &mut Sinks,
) {
    for (name, sink) in &loaded.config.sinks {
        let passage = NumberingPolicy::for_sink(&loaded.config, name, sink, store.shards());
        let Some(passage) = passage else { continue };
        match sink {
            SinkConfig::Stream(_) => {
                outlets.add_sequenced(name, passage, None, store, feeds);
            }
            SinkConfig::File(_) => outlets.enable_numbering(name, passage, store, feeds),
            SinkConfig::Amqp(_) => {}
        }
    }
}
