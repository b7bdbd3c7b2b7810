//! Tests of three streams (stages) in one process with the embedded store. The messages of each stage are the events of
//! the next stage.

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

/// Returns a configuration in which events pass from a file through three streams to another file. If `sequenced` is
/// true, the sinks between the streams number their messages.
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

/// Checks that there are exactly `right` statements, that no two statements are equal, and that the numbers of each
/// order are consecutive from 1 on.
fn check_numbers(statements: &[Value], right: usize) -> Result<()> {
    let rows = statements.iter().map(|statement| {
        let part = |name: &str| Some(statement[name].as_str()?.to_owned());
        let number = part("sequence").and_then(|digits| digits.parse().ok());
        part("subject").zip(number).zip(part("id")).map(|((key, number), id)| (key, number, id))
    });
    let rows: Vec<_> = rows.collect::<Option<_>>().context("subject, sequence and id")?;
    let keys = without_holes(rows)?;
    ensure!(keys.values().sum::<u64>() == right as u64 && statements.len() == right);
    Ok(())
}

#[test]
fn run_ends_after_all_stages() -> Result<()> {
    let home = Home::new(&["ledger"], &config("sequenced", true))?;
    let ledger = ledger(1);
    home.write("ledger.ndjson", text(&ledger.batches))?;
    let report = home.run_once()?;
    let events: u64 = ledger.orders().values().chain(ledger.months().values()).sum();
    ensure!(report["settled"] == events + ledger.batches.len() as u64, "{report}");
    ensure!(report["held"]["events"] == 0 && report["duplicates"] == 0, "{report}");
    let statements = statements(&home)?;
    ledger.check(statements.iter().map(|statement| statement["data"].clone()))?;
    check_numbers(&statements, ledger.statements())?;
    check_stages(&home, &ledger)?;
    let report = home.run_once()?;
    ensure!(report["delivered"] == 0, "{report}");
    Ok(())
}

/// Appends the input in parts. Starts a process after each part, and kills it soon afterwards.
fn run_with_kills(home: &Home, ledger: &Ledger, seed: u64) -> Result<()> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    home.write("ledger.ndjson", "")?;
    for part in ledger.batches.chunks(ledger.batches.len().div_ceil(12)) {
        home.append("ledger.ndjson", text(part))?;
        // Kills each process only after its handler is active.
        let mut service = Service::start(home, &["run"])?;
        service.until_says("handler version active")?;
        std::thread::sleep(Duration::from_millis(rng.random_range(0..120)));
        service.kill()?;
    }
    Ok(())
}

#[test]
fn killed_process_numbers_each_statement_once() -> Result<()> {
    let home = Home::new(&["ledger"], &config("sequenced", true))?;
    let ledger = ledger(2);
    run_with_kills(&home, &ledger, 2)?;
    home.run_once()?;
    let statements = statements(&home)?;
    ledger.check(statements.iter().map(|statement| statement["data"].clone()))?;
    check_numbers(&statements, ledger.statements())?;
    check_stages(&home, &ledger)
}

/// The sinks between the streams assign no numbers. Each `fifo` stream numbers its events itself, and must recognise
/// repeated events by their ids.
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
    run_with_kills(&home, &ledger, 3)?;
    home.run_once()?;
    let statements = statements(&home)?;
    ledger.check(statements.iter().map(|statement| statement["data"].clone()))?;
    check_stages(&home, &ledger)
}

/// Each queue has room for only about 100 messages. If a queue is full, the previous stage must wait, and must continue
/// later, so that all events take effect. `full_queue.rs` tests that a stage waits.
#[test]
fn full_queue_delays_previous_stage() -> Result<()> {
    let config = config("sequenced", true)
        .replace("{ kind = \"stream\" }", "{ kind = \"stream\", queue = 100, prefetch = 50 }");
    let home = Home::new(&["ledger"], &config)?;
    let ledger = ledger(4);
    home.write("ledger.ndjson", text(&ledger.batches))?;
    home.run_once()?;
    let statements = statements(&home)?;
    ledger.check(statements.iter().map(|statement| statement["data"].clone()))?;
    check_stages(&home, &ledger)
}

/// An event that a stage rejects must become a dead letter of this stage. All stages must continue with the other
/// events.
#[test]
fn rejected_event_stays_in_its_stage() -> Result<()> {
    let home = Home::new(&["ledger"], &config("sequenced", true))?;
    let mut ledger = ledger(5);
    // The second stage rejects the transactions of the batch with the index 60, because their month is earlier than the
    // month of the transactions before them.
    let batches = std::mem::take(&mut ledger.batches);
    let broken: Vec<String> = batches
        .iter()
        .enumerate()
        .map(|(at, batch)| match at {
            60 => batch.replace("2026-04", "2025-04"),
            _ => batch.clone(),
        })
        .collect();
    home.write("ledger.ndjson", text(&broken))?;
    let report = home.run_once()?;
    ensure!(report["dead"]["rejected"].as_u64() > Some(50), "{report}");
    ensure!(report["held"]["events"] == 0, "{report}");
    let letters = home.rows(&["dead", "list", "orders", "--json", "--limit", "1000"])?;
    let by_key: BTreeMap<String, usize> =
        letters.iter().fold(BTreeMap::new(), |mut all, letter| {
            *all.entry(letter["key"].to_string()).or_default() += 1;
            all
        });
    ensure!(by_key.len() > 30, "{by_key:?}");
    Ok(())
}
