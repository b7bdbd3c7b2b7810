//! Tests of two sinks that feed one stream. The messages of both sinks share one number range per key, and the numbers
//! follow the order in which the handler emitted the messages.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use ordain_tests::host::Home;
use ordain_tests::log::{line, text};
use ordain_tests::service::Service;
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
/// The second stream must have executed each message once, and must not wait for a missing number.
#[test]
fn messages_of_both_sinks_are_numbered_once() -> Result<()> {
    let home = Home::new(&["faulty", "tally"], CONFIG)?;
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let mut lines = Vec::new();
    let mut keys = BTreeMap::<String, u64>::new();
    for sequence in 1..=400 {
        for key in 0..10 {
            let sink = if rng.random() { "p" } else { "q" };
            // The type of the message names the event that caused the message.
            let data = json!({ "do": "emit", "sink": sink, "type": format!("{sequence}") });
            lines.push(line(&format!("k{key}"), sequence, &data));
            *keys.entry(format!("k{key}")).or_default() += 1;
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
        let key = row["key"].as_str().unwrap_or_default();
        ensure!(keys.get(key).is_some_and(|count| row["next"] == count + 1), "{row}");
    }
    ensure!(rows.len() == keys.len() && home.lines("tally.ndjson") == lines.len());
    let dead = home.rows(&["dead", "list", "second", "--json"])?;
    ensure!(dead.is_empty(), "{dead:?}");
    Ok(())
}
