//! Tests of a new version of a handler in the plugins folder. From the next start on, the new version executes all
//! events. The host then automatically retries keys that were parked because the old version failed.

use std::fs;

use anyhow::{Result, ensure};
use ordain_tests::host::Home;
use ordain_tests::log::line;
use ordain_tests::plugins::plugin;
use ordain_tests::service::Service;
use serde_json::{Value, json};

const CONFIG: &str = r#"
[plugins]
timeout = "100ms"
messages = 10

[streams.cases]
handler = "faulty"
source = { kind = "file", path = "events.ndjson" }
gap = { timeout = "1ms", attempts = 1 }
retry = { attempts = 2, backoff = "1ms..5ms" }

[sinks.faulty]
kind = "file"
path = "old.ndjson"

[sinks.tally]
kind = "file"
path = "out.ndjson"
"#;

/// Instructions that make the handler fail, so that the host parks the key. Each row has the key, and the instruction
/// in the second event of this key. A new version can repair all these failures. The list contains neither `gap` nor
/// `reject`: a gap does not depend on the handler, and a rejection is final.
const FAILING_KEYS: [(&str, &str); 5] = [
    ("trap", r#"{ "do": "trap" }"#),
    ("panic", r#"{ "do": "panic" }"#),
    ("loop", r#"{ "do": "loop" }"#),
    ("many", r#"{ "do": "emit", "messages": 11 }"#),
    ("retry", r#"{ "do": "retry" }"#),
];

fn events() -> Result<String> {
    let mut lines = Vec::new();
    for (key, second) in FAILING_KEYS {
        lines.push(line(key, 1, &json!({ "do": "emit" })));
        lines.push(line(key, 2, &serde_json::from_str::<Value>(second)?));
        lines.push(line(key, 3, &json!({ "do": "emit" })));
    }
    lines.push(line("reject", 1, &json!({ "do": "reject" })));
    lines.push(line("gap", 2, &json!({ "do": "emit" })));
    Ok(lines.join("\n") + "\n")
}

fn parked(home: &Home) -> Result<Vec<String>> {
    let rows = home.rows(&["keys", "list", "cases", "--status", "parked", "--json"])?;
    Ok(rows.iter().filter_map(|row| row["key"].as_str()).map(str::to_owned).collect())
}

#[test]
fn keys_parked_for_failures_are_retried() -> Result<()> {
    let home = Home::new(&["faulty"], CONFIG)?;
    home.write("events.ndjson", events()?)?;
    home.run_once()?;
    assert_eq!(parked(&home)?, ["gap", "loop", "many", "panic", "retry", "trap"]);
    assert_eq!(home.lines("old.ndjson"), FAILING_KEYS.len());

    // Adds a new version under the same name. The new version accepts every event.
    fs::copy(plugin("tally")?, home.path("plugins/faulty@1.2.3.wasm"))?;
    let mut service = Service::start(&home, &["run"])?;
    let expected = 2 * FAILING_KEYS.len();
    service.until("the messages of the held events", || home.lines("out.ndjson") == expected)?;
    service.end()?;
    assert_eq!(parked(&home)?, ["gap"]);
    let rows = home.rows(&["keys", "list", "cases", "--status", "active", "--json"])?;
    let repaired = rows.iter().filter(|row| row["version"] == "faulty@1.2.3" && row["next"] == 4);
    ensure!(repaired.count() == FAILING_KEYS.len(), "{rows:?}");
    let report = home.run_once()?;
    assert_eq!((report["settled"].as_u64(), home.lines("out.ndjson")), (Some(0), expected));
    assert_eq!(home.rows(&["dead", "list", "cases", "--json"])?.len(), 1);
    Ok(())
}

#[test]
fn file_replaced_under_its_name_is_another_version() -> Result<()> {
    let home = Home::new(&["faulty"], CONFIG)?;
    home.write("events.ndjson", events()?)?;
    home.run_once()?;
    home.run_once()?;
    assert_eq!(parked(&home)?.len(), FAILING_KEYS.len() + 1, "the same file fails again");
    fs::copy(plugin("tally")?, home.path("plugins/faulty.wasm"))?;
    home.run_once()?;
    assert_eq!(parked(&home)?, ["gap"]);
    assert_eq!(home.lines("out.ndjson"), 2 * FAILING_KEYS.len());
    Ok(())
}
