//! Tests of keys that were parked because their handler failed. The host must retry them with another version of the
//! handler.

use std::fs;

use anyhow::{Context, Result, ensure};
use ordain_servers::Redis;
use ordain_tests::host::Home;
use ordain_tests::plugins::plugin;
use serde_json::json;

const CONFIG: &str = r#"
[streams.work]
handler = "faulty"
source = { kind = "file", path = "events.ndjson" }

[sinks.tally]
kind = "file"
path = "out.ndjson"
"#;

/// The number of keys. A page of the host's search for parked keys has fewer keys, so the search needs several pages.
const KEYS: usize = 700;
const EVENTS: usize = 4;
/// A part of the log line that the host writes at the level `debug` when it searches the store for parked keys.
const SEARCH: &str = "searching for parked keys to retry";

/// Returns the events of all keys. Event 2 of every key makes the handler trap.
fn lines() -> String {
    let mut lines = String::new();
    for sequence in 1..=EVENTS {
        for key in 0..KEYS {
            let command = if sequence == 2 { "trap" } else { "ok" };
            let event = json!({
                "specversion": "1.0", "id": format!("{key}-{sequence}"), "source": "/test",
                "type": "test", "subject": format!("{key}"), "sequence": sequence.to_string(),
                "data": { "do": command },
            });
            lines += &format!("{event}\n");
        }
    }
    lines
}

/// Runs the host until the end of the file. Returns the report, and whether the run searched the store for parked keys.
fn run(home: &Home) -> Result<(serde_json::Value, bool)> {
    let output = home.output(&["--log", "ordain=debug", "run", "--once", "--json"])?;
    let log = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{log}");
    // With a store in Redis, the sink writes the messages to standard output. The report is then at the end of the log.
    let writes_to_output = home.read("ordain.toml").contains("path = \"-\"");
    let report = if writes_to_output {
        let start = log.rfind("\n{").context("a report")?;
        serde_json::from_str(&log[start..])?
    } else {
        serde_json::from_slice(&output.stdout)?
    };
    Ok((report, log.contains(SEARCH)))
}

#[test]
fn parked_keys_are_retried_under_another_version() -> Result<()> {
    let home = Home::new(&[], CONFIG)?;
    fs::copy(plugin("faulty")?, home.path("plugins/faulty@1.0.0.wasm"))?;
    home.write("events.ndjson", lines())?;
    let (report, _) = run(&home)?;
    assert_eq!(report["held"]["parked_keys"], KEYS, "{report}");
    let (report, searched) = run(&home)?;
    assert_eq!(report["held"]["parked_keys"], KEYS, "{report}");
    assert!(!searched, "a run with the same version must not search");

    // The new version is a handler that accepts every event.
    fs::copy(plugin("tally")?, home.path("plugins/faulty@2.0.0.wasm"))?;
    let (report, searched) = run(&home)?;
    assert!(searched);
    assert_eq!(report["settled"], KEYS * (EVENTS - 1), "{report}");
    assert_eq!(report["held"]["events"], 0, "{report}");
    let active = home.rows(&["keys", "list", "work", "--status", "active", "--json"])?;
    assert_eq!(active.len(), KEYS);
    assert!(active.iter().all(|row| row["next"] == EVENTS + 1));
    assert!(active.iter().all(|row| row["version"] == "faulty@2.0.0"));
    assert_eq!(home.read("out.ndjson").lines().count(), KEYS * (EVENTS - 1));

    let (report, searched) = run(&home)?;
    assert_eq!((report["settled"].as_u64(), searched), (Some(0), false), "{report}");
    Ok(())
}

/// Redis loses the rollout that made the old version execute the events. The next start assigns the number of this
/// rollout to another version. The keys that the old version parked must be retried under a rollout with a higher
/// number.
#[test]
fn parked_keys_are_retried_under_a_rollout_number_that_was_assigned_twice() -> Result<()> {
    let redis = Redis::start(&[])?;
    let store = format!("[store]\nkind = \"redis\"\nurl = \"{}\"\n", redis.url());
    let home = Home::new(&[], &format!("{store}{}", CONFIG.replace("out.ndjson", "-")))?;
    fs::copy(plugin("faulty")?, home.path("plugins/faulty@1.0.0.wasm"))?;
    home.write("events.ndjson", lines())?;
    let (report, _) = run(&home)?;
    assert_eq!(report["held"]["parked_keys"], KEYS, "{report}");
    redis.command(&["DEL", "ordain:{0}:versions"])?;
    fs::copy(plugin("tally")?, home.path("plugins/faulty@2.0.0.wasm"))?;
    let (report, searched) = run(&home)?;
    assert!(searched);
    assert_eq!(report["held"]["events"], 0, "{report}");
    let active = home.rows(&["keys", "list", "work", "--status", "active", "--json"])?;
    assert_eq!(active.len(), KEYS);
    let is_newer = |row: &serde_json::Value| row["version_generation"].as_u64() > Some(1);
    assert!(active.iter().all(|row| row["version"] == "faulty@2.0.0" && is_newer(row)));
    Ok(())
}

#[test]
fn parked_keys_stay_parked_if_retries_are_disabled() -> Result<()> {
    let config = CONFIG.replace("\"faulty\"", "\"faulty\"\nretry = { on_new_version = false }");
    let home = Home::new(&[], &config)?;
    fs::copy(plugin("faulty")?, home.path("plugins/faulty@1.0.0.wasm"))?;
    home.write("events.ndjson", lines())?;
    run(&home)?;
    fs::copy(plugin("tally")?, home.path("plugins/faulty@2.0.0.wasm"))?;
    let (report, _) = run(&home)?;
    assert_eq!(report["held"]["parked_keys"], KEYS, "{report}");
    // After a change of the setting, the same version retries the keys.
    home.write("ordain.toml", CONFIG)?;
    let (report, _) = run(&home)?;
    assert_eq!(report["held"]["parked_keys"], 0, "{report}");
    Ok(())
}
