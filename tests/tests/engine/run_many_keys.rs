//! A test with a million keys. The number of lanes must stay within its limit, and the memory must not grow with the
//! number of keys.

use std::fs::File;
use std::io::{BufWriter, Write};

use anyhow::{Context, Result, ensure};
use ordain_tests::host::Home;
use ordain_tests::service::Service;
use ordain_tests::tally;
use serde_json::Value;

/// The setting `max_active_keys`: the maximum number of lanes.
const LANES: u64 = 10_000;

/// The settings of the test. The cache of the store is so small that a quarter of the keys fills the cache. With a
/// larger cache, a run with all keys would use more memory only because of the cache.
const LIMITS: &str = r#"
[runtime]
max_active_keys = 10_000

[store]
kind = "embedded"
cache = "8MiB"
"#;

fn config() -> String {
    format!("{LIMITS}{}", tally::CONFIG)
}

/// The memory of the store's in-memory tables and journal when they are full, in KiB. A quarter of the keys does not
/// fill them, so a run with all keys may use this much more memory.
const TABLES_KIB: u64 = 48 << 10;

/// Runs a process with one event of each key. Returns the peak memory of the process, in KiB.
fn peak(keys: u64) -> Result<u64> {
    let home = Home::new(&["tally"], &config())?;
    let mut events = BufWriter::new(File::create(home.path("events.ndjson"))?);
    for key in 0..keys {
        writeln!(
            events,
            r#"{{"specversion":"1.0","id":"{key}","source":"/t","type":"t","subject":"key-{key}","sequence":1,"data":{key}}}"#
        )?;
    }
    events.into_inner().context("cannot write the events")?;
    let mut service = Service::start(&home, &["--log", "warn", "run", "--once", "--json"])?;
    let peak = service.peak_memory()?;
    let report: Value = serde_json::from_str(&service.stdout())?;
    ensure!(report["settled"] == keys && report["messages"] == keys, "{report}");
    ensure!(
        home.lines("out.ndjson") as u64 == keys,
        "the sink's file must have one message of each key"
    );
    let lanes = report["lanes_peak"].as_u64().context("the report has no `lanes_peak`")?;
    ensure!(lanes <= LANES, "{lanes} lanes at one time, more than {LANES}");
    println!("{keys} keys: at most {lanes} lanes and {} MiB", peak >> 10);
    Ok(peak)
}

#[test]
fn million_keys_need_bounded_memory() -> Result<()> {
    let quarter = peak(250_000)?;
    let all = peak(1_000_000)?;
    let allowed = quarter + quarter / 4 + TABLES_KIB;
    ensure!(all <= allowed, "{all} KiB for all keys, but {quarter} KiB for a quarter of the keys");
    Ok(())
}
