//! Adds the sinks of kind `stream`, whose messages the store queues, and enables numbering by the store for the file
//! sinks whose messages need numbers. The module `files` adds the file sinks, and the module `broker` adds the
//! exchanges.

use std::sync::Arc;

use crate::sink::Sinks;
use crate::source::QueueNotifiers;
use ordain_config::NumberingPolicy;
use ordain_config::{LoadedConfig, SinkConfig};
use ordain_store::Store;

pub(super) fn add_sequenced_sinks(
    loaded: &LoadedConfig,
    store: &Arc<dyn Store>,
    notifiers: &Arc<QueueNotifiers>,
    sinks: &mut Sinks,
) {
    for (name, sink) in &loaded.config.sinks {
        let policy = NumberingPolicy::for_sink(&loaded.config, name, sink, store.shards());
        let Some(policy) = policy else { continue };
        match sink {
            SinkConfig::Stream(_) => {
                sinks.add_sequenced(name, policy, None, store, notifiers);
            }
            SinkConfig::File(_) => sinks.enable_numbering(name, policy, store, notifiers),
            SinkConfig::Amqp(_) => {}
        }
    }
}
