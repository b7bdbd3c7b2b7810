//! The settings, the events, the handler version and the results that the tests of the sequencer share.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use ordain_config::{LoadedConfig, PartitionParams};
use ordain_core::{
    EventParts, FileDigest, HandlerOutcome, Input, Rollout, SequencerSettings, StateUpdate, Turn,
    TurnResult,
};

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

pub(super) fn event_parts() -> EventParts<'static> {
    EventParts { key: "a", id: "1", kind: "test", ..EventParts::default() }
}

pub(super) fn version() -> Arc<Rollout> {
    Rollout::first("tally@1.0.0", FileDigest([0; 32]))
}

pub(super) fn turn_without_messages(turn: &Turn) -> Input {
    let effect = HandlerOutcome::Effect { messages: Vec::new(), complete: false };
    Input::TurnDone(TurnResult {
        token: turn.token,
        rollout: version(),
        outcomes: vec![effect; turn.events.len()],
        state: StateUpdate::Keep,
        failure: None,
    })
}
