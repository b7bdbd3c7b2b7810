//! In one process, over the embedded store.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ordain_tests::host::Home;
use ordain_tests::ledger::{Ledger, without_holes};
use ordain_tests::log::text;
use ordain_tests::service::Service;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

use super::support::{check_stages, ledger};

/// From a file through three streams to a file. The sinks between are numbered if the streams want it.
fn config(ordering: &str, sequenced: bool) -> String {
    format!(
        r#"
[store]
kind = "embedded"
path = "store"
[streams]
ledgers = {{ handler = "ledger", source = {{ kind = "file", path = "ledger.ndjson" }} }}
orders = {{ handler = "ledger", ordering = "{ordering}", source = {{ kind = "stream" }} }}
months = {{ handler = "ledger", ordering = "{ordering}", source = {{ kind = "stream" }} }}
[sinks]
transactions = {{ kind = "stream", stream = "orders", sequenced = {sequenced} }}
postings = {{ kind = "stream", stream = "months", sequenced = {sequenced} }}
statements = {{ kind = "file", path = "statements.ndjson", sequenced = true }}
"#
    )
}

fn statements(home: &Home) -> Result<Vec<Value>> {
    let file = home.read("statements.ndjson");
    file.lines().map(|line| serde_json::from_str(line).with_context(|| line.to_owned())).collect()
}

/// Each statement once in the file, under the numbers of its order.
fn check_numbers(statements: &[Value], right: usize) -> Result<()> {
    let rows = statements.iter().map(|it| {
        let part = |name: &str| Some(it[name].as_str()?.to_owned());
        let number = part("sequence").and_then(|it| it.parse().ok());
        part("subject").zip(number).zip(part("id")).map(|((key, number), id)| (key, number, id))
    });
    let rows: Vec<_> = rows.collect::<Option<_>>().context("subject, sequence and id")?;
    let keys = without_holes(rows)?;
    ensure!(keys.values().sum::<u64>() == right as u64 && statements.len() == right);
    Ok(())
}

#[test]
fn a_run_ends_when_all_stages_have() -> Result<()> {
    let home = Home::new(&["ledger"], &config("sequenced", true))?;
    let ledger = ledger(1);
    home.write("ledger.ndjson", text(&ledger.batches))?;
    let report = home.run_once()?;
    let events: u64 = ledger.orders().values().chain(ledger.months().values()).sum();
    ensure!(report["settled"] == events + ledger.batches.len() as u64, "{report}");
    ensure!(report["held"]["events"] == 0 && report["duplicates"] == 0, "{report}");
    let statements = statements(&home)?;
    ledger.check(statements.iter().map(|it| it["data"].clone()))?;
    check_numbers(&statements, ledger.statements())?;
    check_stages(&home, &ledger)?;
    // Nothing is left to do.
    let report = home.run_once()?;
    ensure!(report["delivered"] == 0, "{report}");
    Ok(())
}

/// Kills the process again and again, each time with more to do.
fn kill_on_the_way(home: &Home, ledger: &Ledger, seed: u64) -> Result<()> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    home.write("ledger.ndjson", "")?;
    for part in ledger.batches.chunks(ledger.batches.len().div_ceil(12)) {
        home.append("ledger.ndjson", text(part))?;
        // As long as it takes to have handlers and store, at least.
        let mut service = Service::start(home, &["run"])?;
        service.until_says("handler version active")?;
        std::thread::sleep(Duration::from_millis(rng.random_range(0..120)));
        service.kill()?;
    }
    Ok(())
}

/// With `kill -9` on the way, as often as it takes.
#[test]
fn killed_on_the_way() -> Result<()> {
    let home = Home::new(&["ledger"], &config("sequenced", true))?;
    let ledger = ledger(2);
    kill_on_the_way(&home, &ledger, 2)?;
    home.run_once()?;
    let statements = statements(&home)?;
    ledger.check(statements.iter().map(|it| it["data"].clone()))?;
    check_numbers(&statements, ledger.statements())?;
    check_stages(&home, &ledger)
}

/// Without numbers between the stages: the streams number themselves, by the ids of the messages.
#[test]
fn fifo_streams_need_no_numbers() -> Result<()> {
    let home = Home::new(&["ledger"], &config("fifo", false))?;
    let ledger = ledger(3);
    let text = home.read("ordain.toml");
    home.write(
        "ordain.toml",
        text.replace(
            "ledgers = { handler = \"ledger\",",
            "ledgers = { handler = \"ledger\", ordering = \"fifo\",",
        ),
    )?;
    kill_on_the_way(&home, &ledger, 3)?;
    home.run_once()?;
    let statements = statements(&home)?;
    ledger.check(statements.iter().map(|it| it["data"].clone()))?;
    check_stages(&home, &ledger)
}

/// A stage that is slower than the one before it lets that one wait, and nothing grows without end.
#[test]
fn a_full_queue_holds_its_feeder_back() -> Result<()> {
    let config = config("sequenced", true)
        .replace("{ kind = \"stream\" }", "{ kind = \"stream\", queue = 100, prefetch = 50 }");
    let home = Home::new(&["ledger"], &config)?;
    let ledger = ledger(4);
    home.write("ledger.ndjson", text(&ledger.batches))?;
    home.run_once()?;
    let statements = statements(&home)?;
    ledger.check(statements.iter().map(|it| it["data"].clone()))?;
    check_stages(&home, &ledger)
}

/// What a stage rejects is a dead letter there, and the stages go on without it.
#[test]
fn what_a_stage_rejects_stays_there() -> Result<()> {
    let home = Home::new(&["ledger"], &config("sequenced", true))?;
    let mut ledger = ledger(5);
    // The second half of the ledger comes from a month before: the handler rejects it.
    let batches = std::mem::take(&mut ledger.batches);
    let broken: Vec<String> = batches
        .iter()
        .enumerate()
        .map(|(at, it)| if at == 60 { it.replace("2026-04", "2025-04") } else { it.clone() })
        .collect();
    home.write("ledger.ndjson", text(&broken))?;
    let report = home.run_once()?;
    ensure!(report["dead"]["rejected"].as_u64() > Some(50), "{report}");
    ensure!(report["held"]["events"] == 0, "{report}");
    let letters = home.rows(&["dead", "list", "orders", "--json", "--limit", "1000"])?;
    let by_key: BTreeMap<String, usize> = letters.iter().fold(BTreeMap::new(), |mut all, it| {
        *all.entry(it["key"].to_string()).or_default() += 1;
        all
    });
    ensure!(by_key.len() > 30, "{by_key:?}");
    Ok(())
}
