//! Measures the WebAssembly instances of the handler `orders`: the time of their first call, their memory, and the
//! least memory that the setting `plugins.memory` must allow.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use ordain_core::{AttemptToken, Event, EventParts, HandlerOutcome, StateUpdate, Turn};
use ordain_wasm::{
    Handler, HandlerEngine, HandlerLimits, HandlerSettings, InlineExecutor, InstancePolicy,
    PluginFolder, StreamContext,
};
use serde::{Deserialize, Serialize};

use super::order_data;
use crate::events::{amount_cents, kind};
use crate::process::own_mib;
use crate::report::median;

/// Number of new instances whose first call is measured, after the same number of unmeasured instances.
const FIRST_CALLS: u64 = 50;
/// Number of instances whose memory is measured, after one unmeasured instance. All of them are in memory at the same
/// time.
const INSTANCES: usize = 9;
/// Number of events that each instance has executed when its memory is measured, and their size in bytes.
const MEMORY_EVENTS: u64 = 1_000;
const MEMORY_EVENT_BYTES: usize = 1_000;
/// Number of events that must take effect with the least memory: by default, the host replaces an instance after this
/// number of events (`plugins.instance_events`).
const LIMIT_EVENTS: u64 = 10_000;
/// The highest memory limit that the search tries.
const HIGHEST_LIMIT_MIB: usize = 1_024;
/// The memory limit of all other measurements.
const SUFFICIENT_MIB: usize = 256;
const MIB: usize = 1 << 20;

#[derive(Debug, clap::Args)]
pub(crate) struct InstancesSide {
    /// Folder that contains the handler
    #[arg(long)]
    plugins: PathBuf,
}

/// The figures that the side prints as a JSON object.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct InstanceFigures {
    pub(super) first_call_us: f64,
    pub(super) instance_mib: f64,
}

impl InstancesSide {
    pub(crate) fn run(&self) -> Result<()> {
        let figures = InstanceFigures {
            instance_mib: instance_mib(&self.plugins)?,
            first_call_us: first_call_us(&self.plugins)?,
        };
        println!("{}", serde_json::to_string(&figures)?);
        Ok(())
    }
}

/// An engine with the handler `orders`.
struct LoadedHandler {
    engine: Arc<HandlerEngine>,
    handler: Arc<Handler>,
}

impl LoadedHandler {
    /// Loads the handler from the cache in the folder `plugins`.
    fn load(plugins: &Path, instance: InstancePolicy, memory_mib: usize) -> Result<Self> {
        let engine = HandlerEngine::new(HandlerSettings {
            workers: 1,
            instance,
            cache: Some(plugins.join(".cache")),
            limits: HandlerLimits { memory: memory_mib * MIB, ..HandlerLimits::default() },
            ..HandlerSettings::default()
        })?;
        let folder = PluginFolder::scan(plugins)?;
        let handler = engine.load(folder.highest("orders").context("no handler `orders`")?)?;
        Ok(Self { engine, handler })
    }

    fn executor(&self) -> InlineExecutor {
        let stream = StreamContext::new("orders", ["receipts"]);
        InlineExecutor::new(&self.engine, Arc::clone(&self.handler), stream)
    }
}

fn first_call_us(plugins: &Path) -> Result<f64> {
    let loaded = LoadedHandler::load(plugins, InstancePolicy::Fresh, SUFFICIENT_MIB)?;
    let mut executor = loaded.executor();
    execute(&mut executor, FIRST_CALLS, MEMORY_EVENT_BYTES)?;
    let started = Instant::now();
    execute(&mut executor, FIRST_CALLS, MEMORY_EVENT_BYTES)?;
    Ok(started.elapsed().as_secs_f64() * 1e6 / FIRST_CALLS as f64)
}

/// Returns the memory that one more instance adds. Before each instance, the process may release memory that loading
/// has used. The result is therefore the median over several instances.
fn instance_mib(plugins: &Path) -> Result<f64> {
    let loaded = LoadedHandler::load(plugins, InstancePolicy::Reused, SUFFICIENT_MIB)?;
    let mut executors = Vec::new();
    let mut memory = Vec::new();
    for _ in 0..=INSTANCES {
        let mut executor = loaded.executor();
        execute(&mut executor, MEMORY_EVENTS, MEMORY_EVENT_BYTES)?;
        executors.push(executor);
        memory.push(own_mib()?);
    }
    let added = memory.windows(2).map(|pair| pair[1] - pair[0]).collect();
    median(added).context("a median of no instances")
}

/// Returns the least memory limit in whole MiB with which [`LIMIT_EVENTS`] events, each with `size` bytes of data, take
/// effect at the first try. The search doubles the limit until it suffices, then halves the range. The search finds the
/// least limit, because a handler that runs under a limit also runs under each higher limit.
pub(super) fn least_memory_mib(plugins: &Path, size: usize) -> Result<f64> {
    let try_limit = |mib| -> Result<()> {
        let loaded = LoadedHandler::load(plugins, InstancePolicy::Reused, mib)?;
        execute(&mut loaded.executor(), LIMIT_EVENTS, size)
    };
    let mut too_low = 0;
    let mut sufficient = 1;
    while let Err(error) = try_limit(sufficient) {
        ensure!(sufficient < HIGHEST_LIMIT_MIB, "{sufficient} MiB do not suffice: {error:#}");
        too_low = sufficient;
        sufficient *= 2;
    }
    while sufficient - too_low > 1 {
        let middle = usize::midpoint(too_low, sufficient);
        match try_limit(middle) {
            Ok(()) => sufficient = middle,
            Err(_) => too_low = middle,
        }
    }
    Ok(sufficient as f64)
}

/// Executes the first `count` events of an order, each with `size` bytes of data. Returns an error if an event does not
/// take effect.
fn execute(executor: &mut InlineExecutor, count: u64, size: usize) -> Result<()> {
    let mut state: Option<Bytes> = None;
    let mut data = String::new();
    for sequence in 1..=count {
        data.clear();
        order_data::write(&mut data, size, sequence, amount_cents(sequence));
        let event = Event::new(&EventParts {
            key: "order",
            id: "1",
            kind: kind(sequence),
            source: "/bench",
            content_type: "application/json",
            sequence: Some(sequence),
            data: data.as_bytes(),
            ..EventParts::default()
        });
        let done = executor.run(Turn {
            token: AttemptToken { lane: 0, serial: 0 },
            key: "order".into(),
            state: state.clone(),
            events: vec![(sequence, Arc::new(event))],
            fresh: false,
            bytes: usize::MAX,
        });
        let [HandlerOutcome::Effect { .. }] = done.outcomes[..] else {
            bail!("event {sequence} failed: {:?}, {:?}", done.outcomes, done.failure)
        };
        if let StateUpdate::Put(after) = done.state {
            state = Some(after);
        }
    }
    Ok(())
}
