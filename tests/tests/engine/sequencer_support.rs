//! The settings, the events and the handler version that the tests of the sequencer share.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use ordain_config::{LoadedConfig, PartitionParams};
use ordain_core::{EventParts, FileDigest, HandlerOutcome, Rollout, SequencerSettings};

/// Returns the settings of a stream that reads a file. `stream` contains additional settings of the stream. Sections of
/// the configuration may follow these settings.
pub(super) fn settings(stream: &str) -> Result<SequencerSettings> {
    let text = format!(
        "[streams.cases]\nhandler = \"tally\"\n\
         source = {{ kind = \"file\", path = \"events.ndjson\" }}\n{stream}\n"
    );
    let loaded = LoadedConfig::parse(Path::new("ordain.toml"), &text, &|_| None)?;
    let stream =
        loaded.config.streams.values().next().context("the configuration has no stream")?;
    let share = PartitionParams {
        partition: 0,
        stream_partitions: 1,
        process_partitions: 1,
        workers: 1,
        version: Some(version()),
        seed: 1,
    };
    Ok(loaded.config.sequencer_settings(stream, &share))
}

/// Returns the parts of an event of the key `a`, without a sequence.
pub(super) fn event_parts() -> EventParts<'static> {
    EventParts { key: "a", id: "1", kind: "test", ..EventParts::default() }
}

/// Returns the handler version that executes the events.
pub(super) fn version() -> Arc<Rollout> {
    Rollout::first("tally@1.0.0", FileDigest([0; 32]))
}

pub(super) fn effect_without_messages() -> HandlerOutcome {
    HandlerOutcome::Effect { messages: Vec::new(), complete: false }
}
