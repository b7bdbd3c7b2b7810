//! Measures the crossing from the host into WebAssembly and back. There are two kinds of calls: a call of the first
//! kind does nothing; a call of the second kind parses 1 KB of JSON and returns this JSON as the state.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use ordain_core::{AttemptToken, Event, EventParts, HandlerOutcome, StateUpdate, Turn};
use ordain_wasm::{
    HandlerEngine, HandlerSettings, InlineExecutor, InstancePolicy, PluginFolder, StreamContext,
};

use crate::CommonArgs;
use crate::report::Row;

/// The instance policies, each with its name and the number of calls. A call with a fresh Wasm instance takes longer,
/// so the benchmark makes fewer such calls.
const CALLS: [(InstancePolicy, &str, usize); 2] =
    [(InstancePolicy::Reused, "reused", 200_000), (InstancePolicy::Fresh, "fresh", 20_000)];
/// Number of events in a turn.
const TURN: usize = 16;

pub(crate) fn rows(common: &CommonArgs) -> Result<Vec<Row>> {
    let fields: Vec<String> =
        (0..40).map(|at| format!("\"field{at}\":\"value {at:08}\"")).collect();
    let json = format!("{{{}}}", fields.join(","));
    ensure!((900..1200).contains(&json.len()), "the JSON has {} bytes, not about 1 KB", json.len());
    let cases = [("noop", "noop", ""), ("1 KB JSON", "json", &*json)];
    let mut rows = Vec::new();
    for (what, kind, data) in cases {
        for (policy, how, calls) in CALLS {
            let side = format!("call, {what}, {how}");
            eprintln!("{side}");
            let run = || row(common, &side, kind, data.as_bytes(), policy, calls);
            let runs: Result<Vec<Row>> = (0..common.runs).map(|_| run()).collect();
            rows.push(Row::median(&runs?));
        }
    }
    Ok(rows)
}

fn row(
    common: &CommonArgs,
    side: &str,
    kind: &str,
    data: &[u8],
    instance: InstancePolicy,
    calls: usize,
) -> Result<Row> {
    let cache = Some(common.plugins.canonicalize()?.join(".cache"));
    let engine =
        HandlerEngine::new(HandlerSettings { instance, cache, ..HandlerSettings::default() })?;
    let folder = PluginFolder::scan(&common.plugins)?;
    let handler = engine.load(folder.highest("probe").context("no handler `probe`")?)?;
    let mut caller = InlineExecutor::new(&engine, handler, StreamContext::new("bench", [""; 0]));
    let event = Arc::new(Event::new(&EventParts {
        key: "key",
        id: "1",
        kind,
        source: "/bench",
        content_type: "application/json",
        sequence: Some(1),
        data,
        ..EventParts::default()
    }));
    let turn = || Turn {
        token: AttemptToken { lane: 0, serial: 0 },
        key: "key".into(),
        state: None,
        events: (1..).take(TURN).map(|sequence| (sequence, Arc::clone(&event))).collect(),
        fresh: false,
        bytes: usize::MAX,
    };
    let done = caller.run(turn());
    let effect = |outcome: &HandlerOutcome| matches!(outcome, HandlerOutcome::Effect { .. });
    ensure!(done.outcomes.len() == TURN && done.outcomes.iter().all(effect), "{done:?}");
    ensure!(kind == "noop" || matches!(done.state, StateUpdate::Put(_)), "{done:?}");
    let started = Instant::now();
    for _ in 0..calls / TURN {
        caller.run(turn());
    }
    let took = started.elapsed();
    let calls = (calls / TURN * TURN) as f64;
    Ok(Row {
        side: side.to_owned(),
        events_per_s: calls / took.as_secs_f64(),
        ns_per_event: Some(took.as_nanos() as f64 / calls),
        ..Row::default()
    })
}
