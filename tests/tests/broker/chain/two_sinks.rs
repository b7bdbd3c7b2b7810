//! Tests of two sinks that feed one stream. The messages of both sinks share one number range per key, and the numbers
//! follow the order in which the handler emitted the messages.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ordain_tests::host::Home;
use ordain_tests::log::{Line, line, text};
use ordain_tests::service::Service;
use ordain_tests::tally;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;

const CONFIG: &str = r#"
[streams]
first = { handler = "faulty", source = { kind = "file", path = "events.ndjson" } }
second = { handler = "tally", source = { kind = "stream" } }
[sinks]
p = { kind = "stream", stream = "second", sequenced = true }
q = { kind = "stream", stream = "second", sequenced = true }
tally = { kind = "file", path = "tally.ndjson", sequenced = true }
"#;

/// The first stream emits the messages of each key to both sinks in a random order. The host is killed several times.
/// The second stream must have executed each message once, in the order of emission, and must not wait for a missing
/// number. The type of each message states the message's position in the order of emission. The handler `tally` hashes
/// the number and the type of each message.
#[test]
fn messages_of_both_sinks_are_numbered_once_in_order_of_emission() -> Result<()> {
    let home = Home::new(&["faulty", "tally"], CONFIG)?;
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let mut lines = Vec::new();
    let mut emitted = BTreeMap::<String, BTreeMap<u64, Line>>::new();
    for sequence in 1..=400 {
        for number in 0..10 {
            let sink = if rng.random() { "p" } else { "q" };
            let key = format!("k{number}");
            let kind = sequence.to_string();
            lines.push(line(&key, sequence, &json!({ "do": "emit", "sink": sink, "type": kind })));
            let message =
                Line { key: key.clone(), sequence, kind, data: String::new(), end: false };
            emitted.entry(key).or_default().insert(sequence, message);
        }
    }
    home.write("events.ndjson", text(&lines))?;
    for _ in 0..4 {
        let mut service = Service::start(&home, &["run"])?;
        service.until_says("handler version active")?;
        std::thread::sleep(Duration::from_millis(rng.random_range(0..60)));
        service.kill()?;
    }
    home.run_once()?;
    let rows = home.rows(&["keys", "list", "second", "--json"])?;
    for row in &rows {
        let key = row["key"].as_str().context("a key")?;
        ensure!(emitted.get(key).is_some_and(|events| row["next"] == events.len() + 1), "{row}");
    }
    ensure!(rows.len() == emitted.len() && home.lines("tally.ndjson") == lines.len());
    tally::check(&emitted, &home.read("tally.ndjson"))?;
    let dead = home.rows(&["dead", "list", "second", "--json"])?;
    ensure!(dead.is_empty(), "{dead:?}");
    Ok(())
}
