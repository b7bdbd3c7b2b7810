//! Tests of a Redis that goes back in time while messages between three streams wait in it.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ordain_servers::Redis;
use ordain_tests::host::Home;
use ordain_tests::http;
use ordain_tests::ledger::Ledger;
use ordain_tests::log::text;
use ordain_tests::queue::waiting_events;
use ordain_tests::service::{Service, wait_until};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

use super::support::check_stages;

const SHARDS: u32 = 2;

/// Creates a home with three streams (stages). The messages of each stage are the events of the next stage. The second
/// stage is slow, so its events wait in the store.
fn home(redis: &Redis) -> Result<Home> {
    let config = format!(
        r#"
[store]
kind = "redis"
url = "{}"
shards = {SHARDS}
[streams]
ledgers = {{ handler = "ledger", source = {{ kind = "file", path = "ledger.ndjson" }} }}
orders = {{ handler = "ledger", source = {{ kind = "stream", prefetch = 2 }} }}
months = {{ handler = "ledger", source = {{ kind = "stream" }} }}
[sinks]
transactions = {{ kind = "stream", stream = "orders", sequenced = true }}
postings = {{ kind = "stream", stream = "months", sequenced = true }}
statements = {{ kind = "file", path = "-", sequenced = true }}
"#,
        redis.url()
    );
    let home = Home::new(&["ledger"], &config)?;
    home.write("ledger.ndjson", "")?;
    Ok(home)
}

fn waiting(redis: &Redis) -> Result<u64> {
    let mut all = 0;
    for shard in 0..SHARDS {
        all += waiting_events(redis, "orders", shard)?;
    }
    Ok(all)
}

/// Returns the published statements, each once. After the store has gone back in time, the host may publish a statement
/// again.
fn statements(service: &Service) -> Result<Vec<Value>> {
    let mut statements = BTreeMap::new();
    let out = service.stdout();
    for line in out.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        let statement: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        let id = statement["id"].as_str().context("an id")?.to_owned();
        let other = statements.insert(id, statement.clone());
        ensure!(
            other.is_none_or(|earlier| earlier == statement),
            "another statement under the id of {statement}"
        );
    }
    Ok(statements.into_values().collect())
}

/// Waits until all statements are published, and checks the statements. Ends the host, and checks the state of each
/// stage.
fn finish(home: &Home, ledger: &Ledger, mut service: Service) -> Result<()> {
    // The time limit applies to each statement, and not to all statements together. The second stage is slow: it
    // commits two events at a time, and each commit waits for the server's disk.
    let mut published = 0;
    while published < ledger.statements() {
        let another = wait_until("another statement", || {
            let before = std::mem::replace(&mut published, statements(&service)?.len());
            Ok(published > before)
        });
        another.with_context(|| service.stderr())?;
    }
    ledger.check(statements(&service)?.iter().map(|statement| statement["data"].clone()))?;
    service.end()?;
    check_stages(home, ledger)
}

/// The store loses messages between the first and the second stage. The first stage must send them again, although no
/// new input arrives.
#[test]
fn lost_messages_are_assigned_again() -> Result<()> {
    let redis = Redis::start(&[])?;
    let home = home(&redis)?;
    let mut service = Service::start(&home, &["run"])?;
    // The process must have its claims before the snapshot, because a process ends if the store loses a claim of the
    // process.
    http::ready(&mut service)?;
    let ledger = Ledger::new(11, 4_000, 100, 50);
    let (some, rest) = ledger.batches.split_at(ledger.batches.len() / 2);
    home.append("ledger.ndjson", text(some))?;
    wait_until("waiting messages", || Ok(waiting(&redis)? > 500))?;
    let early = redis.snapshot()?;
    home.append("ledger.ndjson", text(rest))?;
    wait_until("the end of the first stage", || {
        let rows = home.rows(&["keys", "list", "ledgers", "--json"])?;
        Ok(rows.first().is_some_and(|row| row["status"] == "completed"))
    })?;
    let waits = waiting(&redis)?;
    ensure!(waits > 500, "only {waits} messages wait: the rollback would lose nothing");
    redis.go_back(&early)?;
    service.until_says("writing them again from memory")?;
    finish(&home, &ledger, service)
}

/// The store goes back in time several times, while all stages are busy. No message may be lost, and no event may take
/// effect twice.
#[test]
fn rollbacks_lose_and_repeat_nothing() -> Result<()> {
    for seed in 0..2 {
        let redis = Redis::start(&[])?;
        let home = home(&redis)?;
        let mut service = Service::start(&home, &["run"])?;
        // The process must have its claims before the first snapshot, because a process ends if the store loses a claim
        // of the process.
        http::ready(&mut service)?;
        let ledger = Ledger::new(seed, 4_000, 200, 25);
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut early = redis.snapshot()?;
        for part in ledger.batches.chunks(ledger.batches.len().div_ceil(8)) {
            home.append("ledger.ndjson", text(part))?;
            std::thread::sleep(Duration::from_millis(rng.random_range(50..600)));
            if rng.random_bool(0.6) {
                redis.go_back(&early)?;
            } else {
                early = redis.snapshot()?;
            }
        }
        finish(&home, &ledger, service)?;
    }
    Ok(())
}
