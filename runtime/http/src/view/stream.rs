//! The rows of streams, with the handler versions that execute their events.

use std::sync::Arc;

use ordain_core::{Build, OrderingMode, OverflowPolicy};
use serde::{Deserialize, Serialize};

use super::{BoundedRows, RowText};
use ordain_config::{LoadedConfig, SourceConfig, StreamConfig};
use ordain_store::{QueueRecords, Store, StoreError};
use ordain_util::source_health::SourceState;
use ordain_wasm::ActivationResult;

/// The page of all streams.
#[derive(Debug, Serialize, Deserialize)]
pub struct StreamsPage<L = BoundedRows<StreamRow>> {
    /// A row for each stream that is configured or has data in the store.
    pub streams: L,
}

/// The handler version of a stream.
#[derive(Debug, Clone, Default)]
pub struct StreamVersion {
    /// The version that the rollout (the stored choice of a handler version) names, even if this process lacks this
    /// version. If no rollout was read from the store: the highest usable version in the folder of handlers, or `None`.
    pub build: Option<Build>,
    /// The number of the rollout; `None` if no rollout was read from the store.
    pub rollout: Option<u64>,
    /// The reason why this process lacks the version. The keys in the stream's partitions of this process then wait.
    /// `None` if this process has the version.
    pub missing: Option<String>,
}

impl From<ActivationResult> for StreamVersion {
    fn from(activation: ActivationResult) -> Self {
        let (rollout, missing) = match activation {
            Ok(active) => (Some(Arc::clone(&active.rollout)), None),
            Err(missing) => (missing.rollout, Some(missing.reason)),
        };
        let number = rollout.as_ref().map(|rollout| rollout.number);
        Self { build: rollout.map(|rollout| rollout.build.clone()), rollout: number, missing }
    }
}

/// The state of a stream's intake: whether the stream receives events, and the reason if it does not.
#[derive(Debug, Clone, Default)]
pub struct StreamIntake {
    /// `false` if at least one partition receives no events; `None` if unknown.
    pub consuming: Option<bool>,
    /// The reason why one of the partitions receives no events; present only if `consuming` is `false`.
    pub reason: Option<String>,
}

impl StreamIntake {
    /// Returns the intake of a stream. `states` are the states of its partitions in this process. `losses` are the
    /// losses of the stream's queues that no operator has acknowledged, each with its partition and a description.
    pub fn of(states: impl IntoIterator<Item = SourceState>, losses: &[(u32, String)]) -> Self {
        let mut intake = Self::default();
        for state in states {
            match state {
                SourceState::Inactive => {}
                SourceState::Consuming => {
                    intake.consuming.get_or_insert(true);
                }
                SourceState::Retrying { reason }
                | SourceState::LoginRefused { reason, .. }
                | SourceState::RoutingFault { reason, .. }
                | SourceState::Unreadable { reason, .. }
                | SourceState::Stopped { reason } => {
                    intake = Self { consuming: Some(false), reason: Some(reason) };
                }
            }
        }
        if let Some((_, reason)) = losses.first() {
            intake = Self { consuming: Some(false), reason: Some(reason.clone()) };
        }
        intake
    }
}

/// Returns the losses of a stream's queues that no operator has acknowledged, each with its partition.
pub async fn queue_losses(
    loaded: &LoadedConfig,
    store: &Arc<dyn Store>,
    stream: &str,
) -> Result<Vec<(u32, String)>, StoreError> {
    match loaded.config.streams.get_key_value(stream) {
        Some((name, config))
            if matches!(config.source, SourceConfig::Amqp(_))
                && config.ordering == OrderingMode::Fifo =>
        {
            QueueRecords::new(store, &name.shared()).losses(config.source.partitions()).await
        }
        _ => Ok(Vec::new()),
    }
}

/// A partition that an operator has resumed.
#[derive(Debug, Serialize, Deserialize)]
pub struct ResumedRow {
    /// The number of the partition within the stream, from 0.
    pub partition: u32,
    /// The reason of the stop. It describes the loss of the queue, or the messages that cannot be read.
    pub reason: RowText,
}

impl ResumedRow {
    /// Builds the row of a partition from its number and the reason of its stop.
    pub fn of((partition, reason): &(u32, String)) -> Self {
        Self { partition: *partition, reason: reason.clone().into() }
    }
}

/// The result of resuming a stream.
#[derive(Debug, Serialize, Deserialize)]
pub struct ResumedPage<L = BoundedRows<ResumedRow>> {
    /// The resumed partitions. Empty if no partition of the stream was stopped.
    pub resumed: L,
}

/// A binding that was removed.
#[derive(Debug, Serialize, Deserialize)]
pub struct BindingRow {
    /// The description of the binding: it names the exchange from which the binding takes messages, and the queue or
    /// exchange to which the binding leads.
    pub binding: RowText,
}

impl BindingRow {
    /// Builds the row of a binding.
    pub fn of(binding: &impl ToString) -> Self {
        Self { binding: binding.to_string().into() }
    }
}

/// The result of removing the bindings of earlier configurations.
#[derive(Debug, Serialize, Deserialize)]
pub struct UnboundPage<L = BoundedRows<BindingRow>> {
    /// The removed bindings.
    pub unbound: L,
}

/// A stream, with the state of its intake and its handler version.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamRow {
    /// `false` if a partition receives no events from the source. Absent if all partitions receive events, or if their
    /// state is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consuming: Option<bool>,
    /// The SHA-256 of the file of the handler version; `None` if `handler` is `None`.
    pub digest: Option<RowText>,
    /// The number of the rollout (the stored choice of a handler version); `None` if no rollout was read from the
    /// store.
    pub generation: Option<u64>,
    /// The handler version that the rollout names or, without a rollout, the highest usable version in the folder of
    /// handlers; `None` if no version is known.
    pub handler: Option<RowText>,
    /// The reason why the process lacks the handler version; `None` if the process has the version, or if the row does
    /// not come from a running process.
    pub missing: Option<RowText>,
    /// The reason why one of the partitions receives no events. Absent unless `consuming` is `false`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<RowText>,
    /// `true` if a switch to another handler version makes the stream retry the keys that are parked (stopped) because
    /// of a failure. `None` if the stream is not configured.
    pub retry_on_new_version: Option<bool>,
    /// The kind of the stream's source, such as `amqp`; `None` if the stream is not configured.
    pub source: Option<RowText>,
    /// The limit on the events of a blocked key in the store. At this limit, the partition of the key accepts no more
    /// events. Absent if the stream is not configured, or if events above the limit become dead letters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spill_limit: Option<u64>,
    /// The name of the stream.
    pub stream: RowText,
}

/// Returns the value of [`StreamRow::spill_limit`] for a configured stream.
pub fn pausing_spill_limit(stream: &StreamConfig) -> Option<u64> {
    (stream.overflow == OverflowPolicy::Pause).then_some(stream.spill_limit)
}

impl StreamRow {
    /// Builds the row of a stream. If `configured` is `None`, the stream exists only in the store.
    pub fn of(
        name: &str,
        configured: Option<(&StreamConfig, StreamVersion)>,
        intake: StreamIntake,
    ) -> Self {
        let (stream, executing) = configured.unzip();
        let StreamVersion { build, rollout: generation, missing } = executing.unwrap_or_default();
        Self {
            consuming: intake.consuming.filter(|consuming| !consuming),
            digest: build.as_ref().map(|build| build.digest.to_string().into()),
            generation,
            handler: build.as_ref().map(|build| (&*build.version).into()),
            missing: missing.map(RowText::from),
            reason: intake.reason.map(RowText::from),
            retry_on_new_version: stream.map(|stream| stream.retry.on_new_version),
            source: stream.map(|stream| stream.source.kind().into()),
            spill_limit: stream.and_then(pausing_spill_limit),
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
            to_json(&StreamRow::of("a", None, StreamIntake::default())),
            "{\"digest\":null,\"generation\":null,\"handler\":null,\"missing\":null,\
             \"retry_on_new_version\":null,\"source\":null,\"stream\":\"a\"}"
        );
    }
}
