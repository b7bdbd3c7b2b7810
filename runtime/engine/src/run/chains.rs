//! Adds the sinks whose messages pass through the store, except exchanges, which need a broker.

use std::sync::Arc;

use crate::sink::Outlets;
use crate::source::Feeds;
use ordain_config::Passage;
use ordain_config::{Loaded, Sink};
use ordain_store::Store;

/// Adds the sinks that are streams, and numbers the sinks of lines that need it.
pub(super) fn add(
    loaded: &Loaded,
    store: &Arc<dyn Store>,
    feeds: &Arc<Feeds>,
    outlets: &mut Outlets,
) {
    for (name, sink) in &loaded.config.sinks {
        let passage = Passage::of_sink(&loaded.config, name, sink, store.shards());
        let Some(passage) = passage else { continue };
        match sink {
            Sink::Stream(_) => {
                outlets.add_chain(name, passage, None, store, feeds);
            }
            Sink::File(_) => outlets.number(name, passage, store, feeds),
            Sink::Amqp(_) => {}
        }
    }
}
