//! Tests of the ways in which a handler can fail. The key must stop or continue as configured, and other keys must
//! continue. `ordain keys why` must report the failure and the setting that applies.

use anyhow::{Context, Result, ensure};
use ordain_tests::host::Home;
use ordain_tests::log::line;
use ordain_tests::service::Service;
use serde_json::{Value, json};

const CONFIG: &str = r#"
[plugins]
timeout = "150ms"
memory = "16MiB"
state_size = "64KiB"
messages = 10
messages_size = "256KiB"

[streams.cases]
handler = "faulty"
source = { kind = "file", path = "events.ndjson" }
retry = { attempts = 3, backoff = "1ms..5ms" }

[sinks.faulty]
kind = "file"
path = "out.ndjson"
"#;

/// Returns a row for each key. The row has the key, the instruction to the handler in the key's first event, and the
/// words that `ordain keys why` must print.
fn parking() -> Vec<(&'static str, Value, &'static [&'static str])> {
    vec![
        ("trap", json!({ "do": "trap" }), &["(trap)", "unreachable", "faulty::handle"]),
        ("panic", json!({ "do": "panic", "text": "ouch" }), &["(error)", "ouch", "lib.rs"]),
        ("exit", json!({ "do": "exit" }), &["(error)", "exited with code 1"]),
        ("recurse", json!({ "do": "recurse" }), &["(trap)", "stack"]),
        ("loop", json!({ "do": "loop" }), &["150ms", "`plugins.timeout`", "after attempt 3"]),
        ("sleep", json!({ "do": "sleep", "ms": 3_600_000 }), &["150ms", "plugins.timeout"]),
        ("hoard", json!({ "do": "allocate", "mib": 100 }), &["plugins.memory", "16 MiB"]),
        ("state", json!({ "do": "put", "bytes": 65_537 }), &["plugins.state_size", "64 KiB"]),
        ("many", json!({ "do": "emit", "messages": 11 }), &["11", "plugins.messages", "10"]),
        (
            "large",
            json!({ "do": "emit", "messages": 3, "bytes": 100_000 }),
            &["plugins.messages_size", "256 KiB"],
        ),
        ("nowhere", json!({ "do": "emit", "sink": "nowhere" }), &["`nowhere`", "`faulty`"]),
        (
            "retry",
            json!({ "do": "retry", "reason": "busy" }),
            &["(retry)", "busy", "attempt 3, the last that `retry.attempts`"],
        ),
        ("after", json!({ "do": "fail-after", "bytes": 100, "messages": 2 }), &["(error)"]),
    ]
}

fn events(keys: &[(&str, Value)]) -> String {
    let mut lines: Vec<String> = keys.iter().map(|(key, data)| line(key, 1, data)).collect();
    for sequence in 2..=3 {
        lines.extend(keys.iter().map(|(key, _)| line(key, sequence, &json!({ "do": "emit" }))));
    }
    lines.join("\n") + "\n"
}

fn why(home: &Home, key: &str) -> Result<String> {
    home.printed(&["keys", "why", "cases", key])
}

fn messages(home: &Home, key: &str) -> usize {
    home.read("out.ndjson").matches(&format!(r#""id":"cases/{key}/"#)).count()
}

#[test]
fn failing_key_stops_alone_and_its_cause_is_shown() -> Result<()> {
    let home = Home::new(&["faulty"], CONFIG)?;
    let parking = parking();
    let mut keys: Vec<(&str, Value)> =
        parking.iter().map(|(key, data, _)| (*key, data.clone())).collect();
    for fine in ["fine", "well"] {
        keys.push((fine, json!({ "do": "emit" })));
    }
    keys.push(("reject", json!({ "do": "reject", "reason": "not this one" })));
    keys.push(("unknown", json!({ "do": "nothing known" })));
    home.write("events.ndjson", events(&keys))?;
    let report = home.run_once()?;
    assert_eq!(report["held"]["parked_keys"], parking.len());
    assert_eq!(report["held"]["events"], 3 * parking.len());
    assert_eq!(report["dead"], json!({ "rejected": 2 }));
    for (key, _, words) in &parking {
        let why = why(&home, key)?;
        ensure!(why.starts_with(&format!("key {key}: parked at event 1")), "{why}");
        for word in *words {
            ensure!(why.contains(word), "{why}\nlacks {word:?}");
        }
        ensure!(why.contains("held in the store: 3 events between 1 and 3"), "{why}");
        ensure!(messages(&home, key) == 0, "{key}: a failed attempt published a message");
    }
    for (key, expected) in [("fine", 3), ("well", 3), ("reject", 2), ("unknown", 2)] {
        assert_eq!(messages(&home, key), expected, "{key}");
    }
    let rejected = home.rows(&["dead", "list", "cases", "--key", "reject", "--json"])?;
    ensure!(rejected.len() == 1, "{rejected:?}");
    ensure!(
        rejected[0]["cause"] == "rejected" && rejected[0]["error"] == "not this one",
        "{rejected:?}"
    );
    ensure!(
        rejected[0]["event"]["data"]["do"] == "reject",
        "the dead letter must contain the whole event: {rejected:?}"
    );
    ensure!(rejected[0]["version"].to_string().contains("faulty+"), "{rejected:?}");
    // Another run must change nothing.
    let again = home.run_once()?;
    assert_eq!(again["held"], report["held"]);
    assert_eq!(again["settled"], 0);
    Ok(())
}

#[test]
fn failing_events_are_skipped_if_configured() -> Result<()> {
    let skip = CONFIG.replace("attempts = 3,", "attempts = 3, on_exhausted = \"skip\",");
    let home = Home::new(&["faulty"], &skip)?;
    let parking = parking();
    let keys: Vec<(&str, Value)> =
        parking.iter().map(|(key, data, _)| (*key, data.clone())).collect();
    home.write("events.ndjson", events(&keys))?;
    let report = home.run_once()?;
    assert_eq!(report["dead_total"], parking.len());
    assert_eq!(report["held"]["events"], 0);
    let letters = home.rows(&["dead", "list", "cases", "--json"])?;
    for (key, _, _) in &parking {
        assert_eq!(messages(&home, key), 2, "{key}");
        let letter = letters.iter().find(|letter| letter["key"] == **key).context("a letter")?;
        ensure!(letter["sequence"] == 1 && letter["event"]["sequence"] == 1, "{letter}");
    }
    Ok(())
}

#[test]
fn failing_key_does_not_block_others() -> Result<()> {
    let home = Home::new(&["faulty"], CONFIG)?;
    home.write("events.ndjson", events(&[("loop", json!({ "do": "loop" }))]))?;
    let mut service = Service::start(&home, &["run"])?;
    for round in 1..=20 {
        home.append("events.ndjson", line("fine", round, &json!({ "do": "emit" })) + "\n")?;
        service.until("the message", || messages(&home, "fine") == round as usize)?;
    }
    service.end()?;
    // The signal may have interrupted any try of the event. The next run makes the remaining tries, and parks the key.
    home.run_once()?;
    ensure!(
        why(&home, "loop")?.starts_with("key loop: parked at event 1"),
        "{}",
        why(&home, "loop")?
    );
    assert_eq!((messages(&home, "fine"), messages(&home, "loop")), (20, 0));
    Ok(())
}
