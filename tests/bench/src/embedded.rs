//! `embedded`: measures whole runs of the host, which reads events from a file, executes them with the handler
//! `orders`, and writes messages to a file. Compares these runs with the side `bare`: one thread that only decodes
//! events, calls the handler and encodes messages.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use ordain_cloudevents::{EventDecoder, TextForm, encode};
use ordain_config::{LoadedConfig, PartitionParams};
use ordain_core::{
    AttemptToken, EmittedMessage, FileDigest, HandlerOutcome, Key, OrderingMode, Rollout,
    StateUpdate, Turn,
};
use ordain_store::OutboxMessage;
use ordain_wasm::{HandlerEngine, HandlerSettings, InlineExecutor, PluginFolder, StreamContext};
use serde_json::Value;

use crate::process::{Usage, measure};
use crate::report::{Report, Row};
use crate::{CommonArgs, events};

/// The sides of the host: name, number of keys, number of events.
const SIDES: [(&str, u64, u64); 3] =
    [("keys_10k", 10_000, 1_000_000), ("one_key", 1, 1_000_000), ("keys_1m", 1_000_000, 2_000_000)];
/// The side of the host whose events `bare` reads.
const BARE_SIDE: &str = "keys_10k";

const CONFIG: &str = r#"
[streams.orders]
handler = "orders"
source = { kind = "file", path = "events.ndjson" }

[sinks.receipts]
kind = "file"
path = "receipts.ndjson"
"#;

/// Returns the settings of a sequencer under the default configuration, which the sides of the host use.
pub(crate) fn default_settings() -> Result<ordain_core::SequencerSettings> {
    let loaded = LoadedConfig::parse(Path::new("ordain.toml"), CONFIG, &|_| None)?;
    let stream =
        loaded.config.streams.values().next().context("the configuration has no stream")?;
    let share = PartitionParams {
        partition: 0,
        stream_partitions: 1,
        process_partitions: 1,
        workers: loaded.config.workers(),
        version: Some(Rollout::first("bench@1.0.0", FileDigest([0; 32]))),
        seed: 1,
    };
    Ok(loaded.config.sequencer_settings(stream, &share))
}

pub(crate) fn bench(common: &CommonArgs) -> Result<Report> {
    let folder = tempfile::tempdir()?;
    let file = |name: &str| folder.path().join(format!("{name}.ndjson"));
    for (name, keys, number) in SIDES {
        eprintln!("writing {number} events of {keys} keys");
        events::write(&file(name), keys, number)?;
    }
    // The folder of the handlers also keeps their compiled code. So the measured time of a side contains the
    // compilation of a handler only if no earlier run has compiled this handler.
    let plugins = common.plugins.canonicalize()?;
    let mut rows: Vec<Vec<Row>> = vec![Vec::new(); 1 + SIDES.len()];
    for run in 1..=common.runs {
        eprintln!("run {run} of {}: bare", common.runs);
        rows[0].push(row("bare", SIDES[0].2, bare(&plugins, &file(BARE_SIDE))?));
        for (at, (name, keys, number)) in SIDES.into_iter().enumerate() {
            eprintln!("run {run} of {}: {name}", common.runs);
            let home = folder.path().join("home");
            let usage = host(common, &plugins, &home, &file(name), keys, number)?;
            rows[at + 1].push(row(name, number, usage));
            std::fs::remove_dir_all(&home)?;
        }
    }
    let report = Report::new("embedded", rows.iter().map(|runs| Row::median(runs)).collect());
    Ok(report
        .ratio("keys_10k", "bare")
        .ratio("one_key", "keys_10k")
        .ratio("keys_1m", "keys_10k")
        .note(
            "256 bytes of data per event; half of the events emit a message. Every row includes the start and \
             the end of the process. bare: one thread, no order, nothing durable.",
        ))
}

fn row(side: &str, events: u64, usage: Usage) -> Row {
    let millions = events as f64 / 1e6;
    Row {
        side: side.to_owned(),
        events_per_s: events as f64 / usage.seconds,
        cpu_s_per_million: Some(usage.cpu_seconds / millions),
        peak_mib: Some(usage.peak_mib),
        ..Row::default()
    }
}

fn bare(plugins: &Path, events: &Path) -> Result<Usage> {
    let out = events.with_extension("bare");
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["side", "bare", "--plugins"]).arg(plugins).arg("--events").arg(events);
    measure(command.arg("--out").arg(out))
}

/// Runs the host on a file of events to its end, in the new folder `home`. Returns an error if the host did not execute
/// all events, or did not write all messages.
pub(crate) fn host(
    common: &CommonArgs,
    plugins: &Path,
    home: &Path,
    events: &Path,
    keys: u64,
    number: u64,
) -> Result<Usage> {
    std::fs::create_dir(home)?;
    std::fs::hard_link(events, home.join("events.ndjson"))?;
    write_config(home, plugins)?;
    let report = home.join("report.json");
    let mut command = Command::new(common.ordain.canonicalize()?);
    command.current_dir(home).args(["run", "--once", "--json"]);
    command.stdout(File::create(&report)?).stderr(Stdio::null());
    let usage = measure(&mut command)?;
    // A run that executes only a part of the events would seem fast, so the benchmark checks the counts.
    let report: Value = serde_json::from_slice(&std::fs::read(&report)?)?;
    ensure!(
        report["settled"] == number,
        "the host settled {} of {number} events",
        report["settled"]
    );
    let receipts = BufReader::new(File::open(home.join("receipts.ndjson"))?).lines().count();
    // The handler emits a message for each event with an even sequence.
    let expected = (number / keys / 2) * keys;
    ensure!(
        receipts as u64 == expected,
        "the host wrote {receipts} messages instead of {expected}"
    );
    Ok(usage)
}

/// Writes the configuration of a host whose handlers are in the folder `plugins`.
pub(crate) fn write_config(home: &Path, plugins: &Path) -> Result<()> {
    let config = format!("[plugins]\ndir = \"{}\"\n{CONFIG}", plugins.display());
    Ok(std::fs::write(home.join("ordain.toml"), config)?)
}

/// Decodes events, calls the handler and encodes messages on one thread, with the states in memory.
#[derive(Debug, clap::Args)]
pub(crate) struct BareSide {
    /// Folder that contains the handlers
    #[arg(long)]
    plugins: PathBuf,
    /// File that contains the events
    #[arg(long)]
    events: PathBuf,
    /// File to which the side writes the messages
    #[arg(long)]
    out: PathBuf,
}

impl BareSide {
    pub(crate) fn run(&self) -> Result<()> {
        let settings = HandlerSettings {
            cache: Some(self.plugins.join(".cache")),
            ..HandlerSettings::default()
        };
        let engine = HandlerEngine::new(settings)?;
        let folder = PluginFolder::scan(&self.plugins)?;
        let handler = engine.load(folder.highest("orders").context("no handler `orders`")?)?;
        let mut caller =
            InlineExecutor::new(&engine, handler, StreamContext::new("orders", ["receipts"]));
        let decoder = EventDecoder::new(OrderingMode::Sequenced, 1 << 20);
        let mut states: HashMap<Key, Bytes> = HashMap::new();
        let mut input = BufReader::with_capacity(1 << 18, File::open(&self.events)?);
        let mut out = BufWriter::with_capacity(1 << 18, File::create(&self.out)?);
        let mut line = Vec::new();
        let mut encoded = Vec::new();
        while input.read_until(b'\n', &mut line)? > 0 {
            let event = decoder.decode(line.trim_ascii_end())?;
            line.clear();
            let key: Key = event.key().into();
            let sequence = event.sequence().context("an event has no sequence")?;
            let turn = Turn {
                token: AttemptToken { lane: 0, serial: 0 },
                key: Arc::clone(&key),
                state: states.get(&key).cloned(),
                events: vec![(sequence, Arc::new(event))],
                fresh: false,
                bytes: usize::MAX,
            };
            let done = caller.run(turn);
            match done.state {
                StateUpdate::Keep => {}
                StateUpdate::Put(state) => drop(states.insert(Arc::clone(&key), state)),
                StateUpdate::Delete => drop(states.remove(&key)),
            }
            let Some(HandlerOutcome::Effect { messages, .. }) = done.outcomes.into_iter().next()
            else {
                bail!("event {sequence} of {key} failed: {:?}", done.failure)
            };
            for (index, message) in (0..).zip(messages) {
                let emitted = EmittedMessage { sequence, index, event_digest: 0, message };
                let message = OutboxMessage { key: Arc::clone(&key), incarnation: 1, emitted };
                encoded.clear();
                encode("orders", &message, None, TextForm::Text, &mut encoded);
                out.write_all(&encoded)?;
            }
        }
        Ok(out.flush()?)
    }
}
