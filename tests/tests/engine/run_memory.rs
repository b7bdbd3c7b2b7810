//! Tests of `memory_budget`, which limits the memory for large events, states and handler results, regardless of their
//! number.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ordain_tests::host::Home;
use ordain_tests::service::Service;
use serde_json::Value;

/// The setting `memory_budget`, in MiB.
const BUDGET_MIB: u64 = 32;
/// The size of an event or a state, in bytes. The size is close to the default limit of an event and of a state, which
/// is 1 MiB.
const VALUE_BYTES: usize = 1_000_000;
/// The memory that the process may use in addition to the budget, in MiB. The storage engine uses most of this memory,
/// for data that the engine has not yet written to its files. The rest is for events that are in progress when the
/// budget is full.
const OVERHEAD_MIB: u64 = 352;
/// The memory that the process may use in addition to the budget, in MiB, if the messages of each event have 4 MiB in
/// total. Several copies of the messages exist at one time: in the handler's memory, as messages, as a record, in the
/// journal, and as text for the sink.
const OUTCOMES_OVERHEAD_MIB: u64 = 608;

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

type Line = (&'static str, u64, String);

/// Returns a home with a handler and events for this handler. For each row of `rounds`, the input has one event of each
/// key.
fn home_with(handler: &str, keys: u64, rounds: &[Line]) -> Result<Home> {
    let home = Home::new(&[handler], &CONFIG.replace("HANDLER", handler))?;
    let mut events = BufWriter::new(File::create(home.path("events.ndjson"))?);
    for (round, (kind, sequence, data)) in rounds.iter().enumerate() {
        for key in 0..keys {
            writeln!(
                events,
                r#"{{"specversion":"1.0","id":"{round}-{key}","source":"/t","type":"{kind}","subject":"key-{key}","sequence":{sequence},"data":{data}}}"#
            )?;
        }
    }
    events.into_inner().context("cannot write the events")?;
    Ok(home)
}

/// Runs a handler over rounds of events. Checks that the peak memory of the process is at most the sum of the budget
/// and `overhead_mib`.
fn within_budget(handler: &str, keys: u64, rounds: &[Line], overhead_mib: u64) -> Result<()> {
    let home = home_with(handler, keys, rounds)?;
    let run = ["--log", "warn", "run", "--once", "--json"];
    let mut service = Service::start(&home, &run)?;
    let peak = service.peak_memory()? >> 10;
    let report: Value = serde_json::from_str(&service.stdout())?;
    let expected = keys * rounds.len() as u64;
    ensure!(report["settled"] == expected, "not all of {expected} events are settled: {report}");
    println!("{handler}: {peak} MiB");
    ensure!(peak <= BUDGET_MIB + overhead_mib, "{peak} MiB with a budget of {BUDGET_MIB} MiB");
    Ok(())
}

/// For each key, a large event waits in memory for a missing event.
#[test]
fn large_events_stay_within_the_budget() -> Result<()> {
    // The text is random, because the store would compress other text.
    let mut random = 1_u64;
    let mut digit = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        char::from(b' ' + 3 + (random >> 60) as u8)
    };
    let large: String = (0..VALUE_BYTES).map(|_| digit()).collect();
    within_budget(
        "probe",
        1_000,
        &[("noop", 2, format!("\"{large}\"")), ("noop", 1, "0".into())],
        OVERHEAD_MIB,
    )
}

/// Each key has a large state. The second event of many keys makes the host load the state again.
#[test]
fn large_states_stay_within_the_budget() -> Result<()> {
    let put = format!(r#"{{"do":"put","bytes":{VALUE_BYTES}}}"#);
    within_budget(
        "faulty",
        1_000,
        &[("t", 1, put), ("t", 2, r#"{"do":"state"}"#.into())],
        OVERHEAD_MIB,
    )
}

/// Each event emits many messages, 4 MiB in total.
#[test]
fn large_messages_stay_within_the_budget() -> Result<()> {
    let emit = r#"{"do":"emit","messages":900,"bytes":4500}"#;
    within_budget("faulty", 512, &[("t", 1, emit.into())], OUTCOMES_OVERHEAD_MIB)
}

/// Memory is full, so lanes evict, reload and write states while turns and loads wait. A kill at any moment must lose
/// and repeat nothing.
#[test]
fn kills_with_full_memory_lose_and_repeat_nothing() -> Result<()> {
    const ROUND: u64 = 300;
    let put = format!(r#"{{"do":"put","bytes":{VALUE_BYTES}}}"#);
    let state = || r#"{"do":"state"}"#.to_owned();
    let rounds = [("t", 1, put), ("t", 2, state()), ("t", 3, state())];
    let home = home_with("faulty", ROUND, &rounds)?;
    for round in 0..8 {
        let mut run = home.start()?;
        std::thread::sleep(Duration::from_millis(40 + 35 * round));
        run.kill()?;
        run.wait()?;
    }
    home.run_once()?;
    let mut seen = BTreeMap::<String, Vec<String>>::new();
    for line in home.read("out.ndjson").lines() {
        let message: Value = serde_json::from_str(line)?;
        ensure!(message["data"]["bytes"] == VALUE_BYTES, "{message}");
        let key = message["subject"].as_str();
        let id = message["id"].as_str();
        let id = id.context("an id")?.rsplit('/').nth(1).context("a sequence")?.to_owned();
        seen.entry(key.context("a key")?.to_owned()).or_default().push(id);
    }
    ensure!(seen.len() as u64 == ROUND, "{} keys", seen.len());
    ensure!(seen.values().all(|sequences| sequences == &["2", "3"]), "{seen:?}");
    Ok(())
}
