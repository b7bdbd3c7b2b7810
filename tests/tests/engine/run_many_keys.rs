//! A million keys: lanes stay within their limit, and memory does not grow with the keys seen.

use std::fs::File;
use std::io::{BufWriter, Write};

use anyhow::{Context, Result, ensure};
use ordain_tests::host::Home;
use ordain_tests::service::Service;
use ordain_tests::tally;
use serde_json::Value;

const LANES: u64 = 10_000;

/// The caches of the store have a fixed size that few keys do not fill; so here they are small.
const LIMITS: &str = r#"
[runtime]
max_active_keys = 10_000

[store]
kind = "embedded"
cache = "8MiB"
"#;

/// With the limits of these tests.
fn config() -> String {
    format!("{LIMITS}{}", tally::CONFIG)
}

/// What the tables and the journal of the store hold in memory until they are full, which a
/// quarter of the keys does not reach.
const TABLES_KIB: u64 = 48 << 10;

/// Takes one event of each key; the most memory that the process had, in KiB.
fn peak(keys: u64) -> Result<u64> {
    let home = Home::new(&["tally"], &config())?;
    let mut events = BufWriter::new(File::create(home.path("events.ndjson"))?);
    for key in 0..keys {
        writeln!(
            events,
            r#"{{"specversion":"1.0","id":"{key}","source":"/t","type":"t","subject":"key-{key}","sequence":1,"data":{key}}}"#
        )?;
    }
    events.into_inner().context("the events are written")?;
    let mut service = Service::start(&home, &["--log", "warn", "run", "--once", "--json"])?;
    let peak = service.peak_memory()?;
    let report: Value = serde_json::from_str(&service.stdout())?;
    ensure!(report["settled"] == keys && report["messages"] == keys, "{report}");
    ensure!(home.lines("out.ndjson") as u64 == keys, "a message of each key");
    let lanes = report["lanes_peak"].as_u64().context("the most lanes")?;
    ensure!(lanes <= LANES, "{lanes} lanes at a time, and {LANES} are allowed");
    println!("{keys} keys: at most {lanes} lanes and {} MiB", peak >> 10);
    Ok(peak)
}

#[test]
fn a_million_keys() -> Result<()> {
    let quarter = peak(250_000)?;
    let all = peak(1_000_000)?;
    let allowed = quarter + quarter / 4 + TABLES_KIB;
    ensure!(all <= allowed, "{all} KiB for four times the keys of {quarter} KiB");
    Ok(())
}
