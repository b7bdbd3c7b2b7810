//! The data of a stream that a worker needs to execute the stream's events.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::log_line::{LogTarget, ProgramLog};
use super::wire::MessageReply;
use ordain_config::{RoutingKeyTemplate, RoutingKeyValues};

/// The name and the sinks of a stream, and the target of its log lines.
#[derive(Clone)]
pub struct StreamContext {
    pub(super) name: Arc<str>,
    /// The configured sinks, each with its routing key template; `None` for a sink without a template.
    sinks: BTreeMap<Arc<str>, Option<RoutingKeyTemplate>>,
    pub(super) log: Arc<dyn LogTarget>,
}

impl StreamContext {
    /// Creates the context of a stream. The handler of the stream may emit to `sinks`, and its log lines go to the
    /// program's log.
    pub fn new<S: Into<Arc<str>>>(
        name: impl Into<Arc<str>>,
        sinks: impl IntoIterator<Item = S>,
    ) -> Self {
        Self {
            name: name.into(),
            sinks: sinks.into_iter().map(|sink| (sink.into(), None)).collect(),
            log: Arc::new(ProgramLog),
        }
    }

    /// Adds a sink whose messages get routing keys.
    #[must_use]
    pub fn with_routing_key(
        mut self,
        sink: impl Into<Arc<str>>,
        template: RoutingKeyTemplate,
    ) -> Self {
        self.sinks.insert(sink.into(), Some(template));
        self
    }

    /// Replaces the target of log lines.
    #[must_use]
    pub fn with_log(self, log: Arc<dyn LogTarget>) -> Self {
        Self { log, ..self }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn has_sink(&self, sink: &str) -> bool {
        self.sinks.contains_key(sink)
    }

    pub(super) fn sinks(&self) -> impl Iterator<Item = &str> {
        self.sinks.keys().map(AsRef::as_ref)
    }

    /// Returns the length of the routing key of a message, in bytes, if the routing key is too long. Returns `None`
    /// otherwise. `key` is the key of the message.
    pub(super) fn routing_key_too_long(&self, message: &MessageReply, key: &str) -> Option<usize> {
        let template = self.sinks.get(&*message.sink)?.as_ref()?;
        let headers = message.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let reply_to = template.reply_queue(headers);
        let kind = &message.kind;
        template.excessive_length(RoutingKeyValues { stream: &self.name, key, kind, reply_to })
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
