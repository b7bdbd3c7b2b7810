//! Tests of `ordain keys why`, which reports why a key has stopped, and prints a remedy. A user can run the printed
//! commands unchanged.

use anyhow::{Context, Result, ensure};
use ordain_tests::host::Home;
use ordain_tests::log::line;
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
path = "out.ndjson"
"#;

/// The stopped keys. Each row has the key, the instruction to the handler in event 1 of the key, and the beginning of
/// the printed remedy. With an empty instruction, event 1 is missing.
const STOPPED_KEYS: [(&str, &str, &str); 6] = [
    ("trap", r#"{ "do": "trap" }"#, "fix the handler; then put another version of"),
    (
        "loop",
        r#"{ "do": "loop" }"#,
        "raise `plugins.timeout` and restart, or fix the handler and put",
    ),
    ("many", r#"{ "do": "emit", "messages": 11 }"#, "raise `plugins.messages` and restart, or"),
    (
        "lost",
        r#"{ "do": "emit", "sink": "x" }"#,
        "configure the sink and restart, or fix its name in the",
    ),
    ("again", r#"{ "do": "retry" }"#, "make the resource that the handler needs available"),
    ("gap", "", "send event 1 again from the producer, at any time; the gap closes"),
];

fn home() -> Result<Home> {
    let home = Home::new(&["faulty"], CONFIG)?;
    let mut lines = Vec::new();
    for (key, command, _) in STOPPED_KEYS {
        if !command.is_empty() {
            lines.push(line(key, 1, &serde_json::from_str::<Value>(command)?));
        }
        lines.push(line(key, 2, &json!({ "do": "emit" })));
    }
    home.write("events.ndjson", lines.join("\n"))?;
    Ok(home)
}

#[test]
fn printed_remedy_fits_the_cause() -> Result<()> {
    let home = home()?;
    home.run_once()?;
    for (key, _, remedy) in STOPPED_KEYS {
        let output = home.output(&["keys", "why", "cases", key])?;
        let text = String::from_utf8(output.stdout)?;
        ensure!(text.contains(&format!("remedy: {remedy}")), "{key}: {text}");
        let version = text.contains("under a higher version, such as faulty@1.0.0.wasm");
        ensure!(version == (key != "gap"), "{key}: {text}");
        let held = if key == "gap" { "event 2\n" } else { "2 events between 1 and 2\n" };
        ensure!(text.contains(&format!("held in the store: {held}")), "{key}: {text}");
    }
    Ok(())
}

#[test]
fn keys_with_a_late_first_event_are_explained() -> Result<()> {
    let home = home()?;
    let far = [("near", 5_000), ("far", 50_000)]
        .map(|(key, sequence)| line(key, sequence, &json!({ "do": "emit" })));
    home.write("events.ndjson", far.join("\n"))?;
    home.run_once()?;
    let near = home.output(&["keys", "why", "cases", "near"])?;
    let text = String::from_utf8(near.stdout)?;
    ensure!(text.contains("remedy: send events 1 to 4999 again from the producer, at"), "{text}");
    let far = home.output(&["keys", "why", "cases", "far"])?;
    let text = String::from_utf8(far.stdout)?;
    for words in [
        "key far: parked at event 1\n",
        "waiting until all earlier events are settled: event 50000, in a dead letter\n",
        "remedy: send events 1 to 49999 again from the producer, at",
        "dead letters: 1; see `ordain dead list cases --key=far`",
    ] {
        ensure!(text.contains(words), "{words}: {text}");
    }
    Ok(())
}

#[test]
fn report_prints_commands_that_can_be_run() -> Result<()> {
    let home = home()?;
    std::fs::rename(home.path("ordain.toml"), home.path("other.toml"))?;
    let output = home.output(&["--log", "warn", "run", "--once", "--config", "other.toml"])?;
    let report = String::from_utf8(output.stderr)?;
    let (_, rest) = report.split_once("6 keys parked: see `ordain ").context(report.clone())?;
    let (command, _) = rest.split_once('`').context("the end of the command")?;
    assert_eq!(command, "keys list cases --status parked --config other.toml");
    let output = home.output(&command.split(' ').collect::<Vec<_>>())?;
    assert_eq!(String::from_utf8(output.stdout)?.matches("parked").count(), STOPPED_KEYS.len());
    Ok(())
}
