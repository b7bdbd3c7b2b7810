//! What a worker must know of the stream whose events it executes.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use super::guest::{LogTarget, log_to_tracing};

/// What a worker must know of a stream.
#[derive(Clone)]
pub struct StreamContext {
    pub(super) name: Arc<str>,
    sinks: BTreeSet<Arc<str>>,
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
            sinks: sinks.into_iter().map(Into::into).collect(),
            log: Arc::new(log_to_tracing),
        }
    }

    /// The same, writing somewhere else.
    #[must_use]
    pub fn with_log(self, log: LogTarget) -> Self {
        Self { log, ..self }
    }

    pub(super) fn knows(&self, sink: &str) -> bool {
        self.sinks.contains(sink)
    }

    pub(super) fn sinks(&self) -> impl Iterator<Item = &str> {
        self.sinks.iter().map(AsRef::as_ref)
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
