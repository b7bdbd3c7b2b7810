//! Tests of `overflow = "pause"` with a stopped key that has reached its limit of spilled events. A run with `--once`
//! must report the key and end. A service (a run without `--once`) must report the key, because all keys of its
//! partition wait.

use anyhow::{Result, ensure};
use ordain_tests::alerts;
use ordain_tests::host::Home;
use ordain_tests::http::{get, metric, ready};
use ordain_tests::log::{by_key, line, text};
use ordain_tests::service::Service;
use ordain_tests::tally;
use serde_json::json;

fn config(on_exhausted: &str, spill_limit: u32) -> String {
    format!(
        r#"
[streams.cases]
handler = "tally"
source = {{ kind = "file", path = "events.ndjson", prefetch = 4 }}
spill_limit = {spill_limit}
lane_buffer = 1
spill_after = "1ms"
gap = {{ timeout = "10ms", attempts = 1, on_exhausted = "{on_exhausted}" }}

[sinks.tally]
kind = "file"
path = "out.ndjson"
"#
    )
}

#[test]
fn full_key_ends_the_run() -> Result<()> {
    for on_exhausted in ["park", "wait"] {
        let home = Home::new(&["tally"], &config(on_exhausted, 2))?;
        // Before event 1 of `a`, more events of `a` arrive than the store may hold for a key.
        let order = (2..=9).map(|sequence| ("a", sequence)).chain([("b", 1), ("a", 1)]);
        let lines: Vec<String> = order.map(|(key, n)| line(key, n, &json!({ "n": n }))).collect();
        home.write("events.ndjson", lines.join("\n") + "\n")?;

        let run = home.output(&["run", "--once"])?;
        let stderr = String::from_utf8_lossy(&run.stderr);
        assert_eq!(run.status.code(), Some(1), "{on_exhausted}: {stderr}");
        for words in ["\"a\" is stopped at event 1", "`spill_limit`", "`overflow = \"pause\"`"] {
            assert!(stderr.contains(words), "{on_exhausted}: {words:?} in {stderr}");
        }

        home.write("ordain.toml", config(on_exhausted, 100))?;
        home.run_once()?;
        tally::check(&by_key(&lines)?, &home.read("out.ndjson"))?;
    }
    Ok(())
}

/// The full key `a` stops the only partition of the stream, so event 2 of the key `b` waits too. The log, two metrics,
/// the list of streams and `keys why` must show this. With a higher limit, all events must take effect.
#[test]
fn full_key_of_a_service_is_reported() -> Result<()> {
    let home = Home::new(&["tally"], &config("park", 2))?;
    // Before event 1 of `a`, more events of `a` arrive than the store may hold for a key.
    let order = [("b", 1)].into_iter().chain((2..=20).map(|sequence| ("a", sequence)));
    let order = order.chain([("b", 2), ("a", 1)]);
    let lines: Vec<String> = order.map(|(key, n)| line(key, n, &json!({ "n": n }))).collect();
    home.write("events.ndjson", text(&lines))?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ready(&mut service)?;
    let full = || metric(address, "ordain_full_keys").ok().flatten();
    service.until("the full key", || full() == Some(1))?;
    service.until_says("stream blocked: key \"a\" is stopped at event 1, and ")?;
    ensure!(
        metric(address, "ordain_stream_consuming")? == Some(0),
        "a blocked source must not count as consuming"
    );
    let page = get(address, "/metrics")?.body;
    let firing = alerts::firing(&page, &page)?;
    for alert in ["OrdainKeyFull", "OrdainStreamNotConsuming"] {
        ensure!(firing.contains(alert), "{alert} is not in {firing:?}");
    }
    // The process can still serve its other streams.
    ensure!(get(address, "/readyz")?.status == 200, "{}", service.stderr());
    let reason = "key \"a\" is stopped at event 1, and ";
    let streams = get(address, "/v1/streams")?.json()?;
    let row = &streams["streams"][0];
    let shown = row["reason"].as_str().unwrap_or_default();
    ensure!(row["consuming"] == false && shown.starts_with(reason), "{streams}");
    for key in ["a", "b"] {
        let why = String::from_utf8(home.output(&["keys", "why", "cases", key])?.stdout)?;
        let line = format!("a partition of the stream receives no events: {reason}");
        ensure!(why.contains(&line) && why.contains("`ordain keys why cases a`"), "{why}");
    }
    ensure!(home.lines("out.ndjson") == 1, "{}", home.read("out.ndjson"));
    service.end()?;

    home.write("ordain.toml", config("park", 100))?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ready(&mut service)?;
    service.until("all messages", || home.lines("out.ndjson") == lines.len())?;
    ensure!(metric(address, "ordain_full_keys")? == Some(0), "a key still counts as full");
    service.end()?;
    tally::check(&by_key(&lines)?, &home.read("out.ndjson"))
}
