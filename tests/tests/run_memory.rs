//! `memory_budget` bounds what large events, states and outcomes take, whatever there is of them.

use std::fs::File;
use std::io::{BufWriter, Write};

use anyhow::{Context, Result, ensure};
use ordain_tests::host::Home;
use ordain_tests::service::Service;
use serde_json::Value;

/// The budget, in MiB.
const BUDGET: u64 = 32;
/// Bytes of each event, state or outcome.
const SIZE: usize = 512 << 10;
/// Keys, each with one of that size: 1 GiB.
const KEYS: u64 = 2_048;
/// What the process takes apart from the budget, in MiB: what is under way when it is full, and
/// above all the store's engine, with what it has not written to its files yet.
const ELSE: u64 = 352;

const CONFIG: &str = r#"
[runtime]
memory_budget = "32MiB"
workers = 2

[store]
kind = "embedded"
cache = "8MiB"

[streams.cases]
handler = "HANDLER"
source = { kind = "file", path = "events.ndjson" }

[sinks.faulty]
kind = "file"
path = "out.ndjson"
"#;

/// One event: type, sequence, data.
type Line = (&'static str, u64, String);

/// Runs a handler over rounds of events, each round over all keys.
fn within_budget(handler: &str, rounds: &[Line]) -> Result<()> {
    let home = Home::new(&[handler], &CONFIG.replace("HANDLER", handler))?;
    let mut events = BufWriter::new(File::create(home.path("events.ndjson"))?);
    for (round, (kind, sequence, data)) in rounds.iter().enumerate() {
        for key in 0..KEYS {
            writeln!(
                events,
                r#"{{"specversion":"1.0","id":"{round}-{key}","source":"/t","type":"{kind}","subject":"key-{key}","sequence":{sequence},"data":{data}}}"#
            )?;
        }
    }
    events.into_inner().context("the events are written")?;
    let run = ["--log", "warn", "run", "--once", "--json"];
    let mut service = Service::start(&home, &run)?;
    let peak = service.peak_memory()? >> 10;
    let report: Value = serde_json::from_str(&service.stdout())?;
    let expected = KEYS * rounds.len() as u64;
    ensure!(report["settled"] == expected, "{report}, and {expected} events");
    println!("{handler}: {peak} MiB");
    ensure!(peak <= BUDGET + ELSE, "{peak} MiB with a budget of {BUDGET} MiB");
    Ok(())
}

/// Each key has a large event in memory that waits for the one before it.
#[test]
fn large_events() -> Result<()> {
    let large = format!("\"{}\"", "x".repeat(SIZE));
    within_budget("probe", &[("noop", 2, large), ("noop", 1, "0".into())])
}

/// Each key has a large state, and is called again with it.
#[test]
fn large_states() -> Result<()> {
    let put = format!(r#"{{"do":"put","bytes":{SIZE}}}"#);
    within_budget("faulty", &[("t", 1, put), ("t", 2, r#"{"do":"state"}"#.into())])
}

/// Each event emits many messages at once.
#[test]
fn large_outcomes() -> Result<()> {
    let emit = format!(r#"{{"do":"emit","messages":512,"bytes":{}}}"#, SIZE / 512);
    within_budget("faulty", &[("t", 1, emit)])
}
