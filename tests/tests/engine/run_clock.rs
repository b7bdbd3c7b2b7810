//! Tests of runs with the embedded store on a machine whose clock jumps.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use ordain_servers::Clock;
use ordain_tests::host::Home;
use ordain_tests::http::{LINES, ingress, post, ready};
use ordain_tests::log::text;
use ordain_tests::service::Service;
use serde_json::{Value, json};

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
/// The number of keys that end before the clock jumps. At its start, the store removes only a part of these expired
/// records.
const KEYS: usize = 20_000;

/// Starts the host with a clock that is ahead of the system by this number of seconds.
fn start(home: &Home, clock: &Clock, seconds: i64) -> Result<Service> {
    clock.set(seconds)?;
    let variables = clock.env();
    let env: Vec<(&str, PathBuf)> =
        variables.iter().map(|(name, value)| (name.as_str(), PathBuf::from(value))).collect();
    let mut service = Service::start_with(home, &["run"], &env)?;
    ready(&mut service)?;
    Ok(service)
}

/// Returns an event that is the first and the last event of its key. `command` is the command for the handler.
fn only_event(key: &str, id: &str, command: &str) -> String {
    json!({
        "specversion": "1.0", "id": id, "source": "/tests", "type": "test", "subject": key,
        "sequence": "1", "endofsequence": true, "data": { "do": command },
    })
    .to_string()
}

/// The store follows a jump of the clock and then accepts an event, because the record of the ended key has expired.
/// After a crash, the store's clock must not go back to a time at which the record had not expired.
#[test]
fn time_of_accepted_event_survives_crash() -> Result<()> {
    let config = "[ingress]\nlisten = \"127.0.0.1:0\"\n[plugins]\ntimeout = \"30s\"\n\
        [streams.cases]\nhandler = \"faulty\"\nsource = { kind = \"http\" }\ncomplete_ttl = \"1h\"\n\
        retry = { attempts = 1, on_exhausted = \"skip\" }\n\
        [sinks.faulty]\nkind = \"file\"\npath = \"out.ndjson\"\n";
    let home = Home::new(&["faulty"], config)?;
    let clock = Clock::new()?;
    let mut service = start(&home, &clock, 0)?;
    let address = ingress(&mut service)?;
    let mut events: Vec<String> =
        (0..KEYS).map(|number| only_event(&format!("other{number}"), "1", "emit")).collect();
    events.push(only_event("k", "1", "emit"));
    for part in events.chunks(1_000) {
        let answer = post(address, LINES, &text(part))?;
        ensure!(answer.status == 202, "{answer:?}");
    }
    service.until("all messages", || home.lines("out.ndjson") == events.len())?;
    service.end()?;

    // This run sees the jump, and the next run confirms it.
    start(&home, &clock, 2 * HOUR)?.end()?;
    let mut service = start(&home, &clock, 2 * HOUR + 11 * MINUTE)?;
    let event = [only_event("k", "2", "loop")];
    let answer = post(ingress(&mut service)?, LINES, &text(&event))?;
    ensure!(answer.status == 202, "{answer:?}");
    service.kill()?;

    home.write("ordain.toml", config.replace("30s", "200ms"))?;
    let mut service = start(&home, &clock, 2 * HOUR + 12 * MINUTE)?;
    let letters = || home.rows(&["dead", "list", "cases", "--json"]);
    service.until("the letter", || letters().is_ok_and(|letters| !letters.is_empty()))?;
    let letters: Vec<Value> = letters()?;
    ensure!(letters.len() == 1 && letters[0]["cause"] == "timeout", "{letters:?}");
    service.end()
}
