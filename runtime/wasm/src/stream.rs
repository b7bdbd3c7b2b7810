//! What a worker must know of the stream whose events it executes.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::log_line::{LogTarget, log_to_tracing};
use ordain_config::RoutingKey;

/// What a worker must know of a stream.
#[derive(Clone)]
pub struct StreamContext {
    pub(super) name: Arc<str>,
    /// With the routing keys of those that have them.
    sinks: BTreeMap<Arc<str>, Option<RoutingKey>>,
    pub(super) log: LogTarget,
}

impl StreamContext {
    /// A stream whose handler may emit to `sinks` and writes to the program's log.
    pub fn new<S: Into<Arc<str>>>(
        name: impl Into<Arc<str>>,
        sinks: impl IntoIterator<Item = S>,
    ) -> Self {
        Self {
            name: name.into(),
            sinks: sinks.into_iter().map(|sink| (sink.into(), None)).collect(),
            log: Arc::new(log_to_tracing),
        }
    }

    /// The same, with a sink whose messages get routing keys.
    #[must_use]
    pub fn with_routing_key(mut self, sink: impl Into<Arc<str>>, template: RoutingKey) -> Self {
        self.sinks.insert(sink.into(), Some(template));
        self
    }

    /// The same, writing somewhere else.
    #[must_use]
    pub fn with_log(self, log: LogTarget) -> Self {
        Self { log, ..self }
    }

    pub(super) fn knows(&self, sink: &str) -> bool {
        self.sinks.contains_key(sink)
    }

    pub(super) fn sinks(&self) -> impl Iterator<Item = &str> {
        self.sinks.keys().map(AsRef::as_ref)
    }

    /// Whether a message's routing key would be too long; how long it would be.
    pub(super) fn routing_key_too_long(&self, sink: &str, key: &str, kind: &str) -> Option<usize> {
        self.sinks.get(sink)?.as_ref()?.too_long(&self.name, key, kind)
    }
}

impl fmt::Debug for StreamContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamContext")
            .field("name", &self.name)
            .field("sinks", &self.sinks)
            .finish_non_exhaustive()
    }
}
