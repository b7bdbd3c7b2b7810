//! Tests of keys that the host parked because a handler exceeded a limit of the configuration. The host must retry such
//! a key after the limit has changed.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use ordain_tests::host::Home;
use ordain_tests::log::line;
use serde_json::{Value, json};

/// The handler's version never changes, and `on_new_version` is false, so only a changed limit can cause a retry.
const CONFIG: &str = r#"
[runtime]
event_size = "64KiB"

[plugins]
timeout = "100ms"
memory = "8MiB"
state_size = "1KiB"
messages = 2
messages_size = "70KiB"

[streams.work]
handler = "faulty"
source = { kind = "file", path = "events.ndjson" }
retry = { attempts = 2, backoff = "1ms..5ms", on_new_version = false }

[sinks.faulty]
kind = "file"
path = "out.ndjson"
"#;

const WITH_LATE_SINK: &str =
    "[sinks.late]\nkind = \"file\"\npath = \"late.ndjson\"\n\n[sinks.faulty]";

/// For each limit: a key with the limit's name, the command in the key's first event, and the old and the new text of a
/// setting. The command exceeds the limit, and the new text lifts the limit.
const CASES: [(&str, &str, &str, &str); 7] = [
    ("timeout", r#"{ "do": "sleep", "ms": 300 }"#, "100ms", "20s"),
    ("memory", r#"{ "do": "allocate", "mib": 12 }"#, "8MiB", "64MiB"),
    ("state_size", r#"{ "do": "put", "bytes": 1025 }"#, "1KiB", "2KiB"),
    ("messages", r#"{ "do": "emit", "messages": 3 }"#, "messages = 2", "messages = 3"),
    ("messages_size", r#"{ "do": "emit", "messages": 2, "bytes": 36500 }"#, "70KiB", "1MiB"),
    ("event_size", r#"{ "do": "emit", "bytes": 65500 }"#, "64KiB", "512KiB"),
    ("sinks", r#"{ "do": "emit", "sink": "late" }"#, "[sinks.faulty]", WITH_LATE_SINK),
];

fn home() -> Result<Home> {
    let home = Home::new(&["faulty"], CONFIG)?;
    let mut events = String::new();
    for (key, command, ..) in CASES {
        events += &format!("{}\n", line(key, 1, &serde_json::from_str(command)?));
        events += &format!("{}\n", line(key, 2, &json!({ "do": "ok" })));
    }
    home.write("events.ndjson", events)?;
    Ok(home)
}

/// Runs the host until the end of the file. Returns the parked keys.
fn run(home: &Home) -> Result<BTreeSet<String>> {
    home.run_once()?;
    let rows = home.rows(&["keys", "list", "work", "--status", "parked", "--json"])?;
    let keys = rows.iter().filter_map(|row| row["key"].as_str().map(str::to_owned));
    Ok(keys.collect())
}

fn show(home: &Home, key: &str) -> Result<Value> {
    let mut rows = home.rows(&["keys", "show", "work", key, "--json"])?;
    rows.pop().context("a row")
}

#[test]
fn key_is_retried_when_its_limit_has_changed() -> Result<()> {
    let home = home()?;
    let mut parked: BTreeSet<String> = CASES.map(|(key, ..)| key.to_owned()).into();
    ensure!(run(&home)? == parked);
    for (key, ..) in CASES {
        let row = show(&home, key)?;
        ensure!(row["trouble"]["limit"] == key, "{row}");
    }
    ensure!(run(&home)? == parked, "without a change, no key is retried");
    let mut config = CONFIG.to_owned();
    for (key, _, old, new) in CASES {
        config = config.replace(old, new);
        home.write("ordain.toml", &config)?;
        parked.remove(key);
        let left = run(&home)?;
        ensure!(left == parked, "after the change of {key}, the parked keys are {left:?}");
        let row = show(&home, key)?;
        ensure!(row["next"] == 3, "{row}");
    }
    Ok(())
}

/// The event exceeds the changed limit too. The host retries the event and parks the key again. Without another change,
/// the key stays parked.
#[test]
fn changed_limit_that_is_still_exceeded_parks_the_key_again() -> Result<()> {
    let home = home()?;
    let parked = run(&home)?;
    home.write("ordain.toml", CONFIG.replace("messages = 2", "messages = 1"))?;
    ensure!(run(&home)? == parked);
    let row = show(&home, "messages")?;
    ensure!(
        row["trouble"]["error"].as_str().is_some_and(|text| text.contains("allows 1")),
        "{row}"
    );
    ensure!(run(&home)? == parked);
    Ok(())
}
