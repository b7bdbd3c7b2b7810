//! The rows of streams, with the handler versions that execute their events.

use std::sync::Arc;

use ordain_core::Build;
use serde::{Deserialize, Serialize};

use super::{BoundedRows, RowText};
use ordain_config::StreamConfig;
use ordain_wasm::ActivationResult;

/// The page of all streams.
#[derive(Debug, Serialize, Deserialize)]
pub struct StreamsPage<L = BoundedRows<StreamRow>> {
    /// The rows.
    pub streams: L,
}

/// The handler version of a stream.
#[derive(Debug, Clone, Default)]
pub struct StreamVersion {
    /// The version that executes the events. If this process lacks that version, the version of the rollout (the stored
    /// choice of a handler version).
    pub build: Option<Build>,
    /// The number of the rollout; `None` if it was not read from the store.
    pub rollout: Option<u64>,
    /// The reason why this process lacks the version; all keys of the stream then wait. `None` if this process has the
    /// version.
    pub missing: Option<String>,
}

impl From<ActivationResult> for StreamVersion {
    fn from(chosen: ActivationResult) -> Self {
        let (decided, missing) = match chosen {
            Ok(active) => (Some(Arc::clone(&active.rollout)), None),
            Err(missing) => (missing.rollout, Some(missing.reason)),
        };
        let generation = decided.as_ref().map(|decided| decided.number);
        Self { build: decided.map(|decided| decided.build.clone()), rollout: generation, missing }
    }
}

/// A stream.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamRow {
    /// The SHA-256 of the handler's file.
    pub digest: Option<RowText>,
    /// The number of the rollout.
    pub generation: Option<u64>,
    /// The handler version.
    pub handler: Option<RowText>,
    /// The reason why the process lacks that version; `None` if the process has it.
    pub missing: Option<RowText>,
    /// `true` if another version retries the keys that are parked (stopped) because of a failure.
    pub retry_on_new_version: Option<bool>,
    /// The kind of the source.
    pub source: Option<RowText>,
    /// The name.
    pub stream: RowText,
}

impl StreamRow {
    /// Builds the row of a stream. If `configured` is `None`, the stream exists only in the store.
    pub fn of(name: &str, configured: Option<(&StreamConfig, StreamVersion)>) -> Self {
        let (stream, executing) = configured.unzip();
        let StreamVersion { build, rollout: generation, missing } = executing.unwrap_or_default();
        Self {
            digest: build.as_ref().map(|build| build.digest.to_string().into()),
            generation,
            handler: build.as_ref().map(|build| (&*build.version).into()),
            missing: missing.map(RowText::from),
            retry_on_new_version: stream.map(|stream| stream.retry.on_new_version),
            source: stream.map(|stream| stream.source.kind().into()),
            stream: name.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::to_json;

    #[test]
    fn members_have_their_names_and_order() {
        assert_eq!(
            to_json(&StreamRow::of("a", None)),
            "{\"digest\":null,\"generation\":null,\"handler\":null,\"missing\":null,\
             \"retry_on_new_version\":null,\"source\":null,\"stream\":\"a\"}"
        );
    }
}
