//! Tests of runs on a machine whose clock jumps, with the embedded store, and with a Redis server whose clock jumps.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Output;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use ordain_servers::{Clock, Options, Redis};
use ordain_tests::host::Home;
use ordain_tests::http::{LINES_TYPE, ingress, post, ready};
use ordain_tests::log::text;
use ordain_tests::service::Service;
use serde_json::{Value, json};

const MINUTE_S: i64 = 60;
const HOUR_S: i64 = 60 * MINUTE_S;
const DAY_S: i64 = 24 * HOUR_S;
const FILES: &str = "source = { kind = \"file\", path = \"events.ndjson\" }\n\
    [sinks.faulty]\nkind = \"file\"\npath = \"out.ndjson\"\n";
const AHEAD_WARNING: &str = "the machine's clock is far ahead of the store's time";
/// A part of the warning about a clock of a Redis server that is ahead.
const SERVER_AHEAD_WARNING: &str = "is far ahead of the store's time";
/// The number of keys that end before the clock jumps. At its start, the store removes only a part of these expired
/// records.
const KEYS: usize = 20_000;

/// Starts the host with a clock that is `seconds` seconds ahead of the system's clock, and waits until the host is
/// ready.
fn start(home: &Home, clock: &Clock, seconds: i64) -> Result<Service> {
    clock.set(seconds)?;
    let variables = clock.env();
    let env: Vec<(&str, PathBuf)> =
        variables.iter().map(|(name, value)| (name.as_str(), PathBuf::from(value))).collect();
    let mut service = Service::start_with(home, &["run"], &env)?;
    ready(&mut service)?;
    Ok(service)
}

/// Runs `ordain` with a clock that is `seconds` seconds ahead of the system's clock. The command must succeed.
fn output(home: &Home, clock: &Clock, seconds: i64, args: &[&str]) -> Result<Output> {
    clock.set(seconds)?;
    let output = home.ordain(args)?.envs(clock.env()).output()?;
    ensure!(output.status.success(), "{args:?}: {output:?}");
    Ok(output)
}

/// Posts events, which the host must accept.
fn send(address: SocketAddr, events: &[String]) -> Result<()> {
    let answer = post(address, LINES_TYPE, &text(events))?;
    ensure!(answer.status == 202, "{answer:?}");
    Ok(())
}

fn fifo_event(id: &str, command: &Value) -> String {
    json!({
        "specversion": "1.0", "id": id, "source": "/tests", "type": "test", "subject": "k",
        "data": command,
    })
    .to_string()
}

/// Returns an event that is the first and the last event of its key. `command` is the command for the handler.
fn only_event(key: &str, id: &str, command: &str) -> String {
    json!({
        "specversion": "1.0", "id": id, "source": "/tests", "type": "test", "subject": key,
        "sequence": "1", "endofsequence": true, "data": { "do": command },
    })
    .to_string()
}

/// The store follows a jump of the clock. The record of an ended key has then expired, so the host accepts another
/// event of this key. After a crash, the store's time must not go back to a time at which the record had not expired.
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
        send(address, part)?;
    }
    service.until("all messages", || home.lines("out.ndjson") == events.len())?;
    service.end()?;

    // In this run, the store detects the jump. In the next run, the clock is still ahead, which confirms the jump.
    start(&home, &clock, 2 * HOUR_S)?.end()?;
    let mut service = start(&home, &clock, 2 * HOUR_S + 11 * MINUTE_S)?;
    send(ingress(&mut service)?, &[only_event("k", "2", "loop")])?;
    service.kill()?;

    home.write("ordain.toml", config.replace("30s", "200ms"))?;
    let mut service = start(&home, &clock, 2 * HOUR_S + 12 * MINUTE_S)?;
    let letters = || home.rows(&["dead", "list", "cases", "--json"]);
    service.until("the dead letter", || letters().is_ok_and(|letters| !letters.is_empty()))?;
    let letters: Vec<Value> = letters()?;
    ensure!(letters.len() == 1 && letters[0]["cause"] == "timeout", "{letters:?}");
    service.end()
}

/// The clock is wrong during one of three runs, and during commands that only read. The store keeps the record of an
/// ended key for a week. The wrong clock must not shorten this time, so the repeats of the key's event must have no
/// effect.
#[test]
fn commands_under_a_wrong_clock_forget_no_key() -> Result<()> {
    let config = format!("[streams.cases]\nhandler = \"faulty\"\n{FILES}");
    let home = Home::new(&["faulty"], &config)?;
    let clock = Clock::new()?;
    let mut events = Vec::new();
    for seconds in [0, 8 * DAY_S, 0] {
        events.push(only_event("k", "1", "emit"));
        home.replace("events.ndjson", text(&events))?;
        let run = output(&home, &clock, seconds, &["run", "--once"])?;
        let log = String::from_utf8(run.stderr)?;
        ensure!(log.contains(AHEAD_WARNING) == (seconds > 0), "{seconds}: {log}");
        ensure!(home.lines("out.ndjson") == 1, "{seconds}: {}", home.read("out.ndjson"));
        for seconds in [8 * DAY_S, 0] {
            let keys = output(&home, &clock, seconds, &["keys", "list", "cases", "--json"])?;
            let row: Value = serde_json::from_slice(&keys.stdout)?;
            ensure!(row["key"] == "k" && row["status"] == "completed", "{seconds}: {row}");
        }
    }
    Ok(())
}

/// The clock is wrong for a while during a run. The store must forget neither a dead letter nor the id of an event.
/// After a restart, the host must still recognise the repeat of the event.
#[test]
fn jump_during_a_run_forgets_no_letter_and_no_id() -> Result<()> {
    let config = "[ingress]\nlisten = \"127.0.0.1:0\"\n\
        [streams.cases]\nhandler = \"faulty\"\nordering = \"fifo\"\nkey_ttl = \"1d\"\n\
        source = { kind = \"http\" }\n[sinks.faulty]\nkind = \"file\"\npath = \"out.ndjson\"\n";
    let home = Home::new(&["faulty"], config)?;
    let clock = Clock::new()?;
    let mut service = start(&home, &clock, 0)?;
    let address = ingress(&mut service)?;
    let emit = json!({ "do": "emit" });
    let letters = || home.rows(&["dead", "list", "cases", "--json"]);
    send(address, &[fifo_event("17", &emit), fifo_event("18", &json!({ "do": "reject" }))])?;
    service.until("the dead letter", || letters().is_ok_and(|letters| letters.len() == 1))?;
    // Dead letters expire after 30 days, and the key after one day.
    clock.set(40 * DAY_S)?;
    send(address, &[fifo_event("19", &emit)])?;
    service.until_says(AHEAD_WARNING)?;
    service.until("another message", || home.lines("out.ndjson") == 2)?;
    ensure!(letters()?.len() == 1, "the dead letter expired because of the wrong clock");
    clock.set(0)?;
    service.end()?;

    let mut service = start(&home, &clock, 0)?;
    let last = fifo_event("20", &json!({ "do": "emit", "type": "last" }));
    send(ingress(&mut service)?, &[fifo_event("17", &emit), last])?;
    service.until("the last message", || home.read("out.ndjson").contains("\"type\":\"last\""))?;
    ensure!(home.lines("out.ndjson") == 3, "{}", home.read("out.ndjson"));
    ensure!(letters()?.len() == 1, "the dead letter expired");
    service.end()
}

/// A machine without a battery for its clock may start with a time before 1970. The exit code must be 75, so that a
/// supervisor starts the host again until the clock is right.
#[test]
fn clock_before_1970_is_temporary() -> Result<()> {
    let config = format!("[streams.cases]\nhandler = \"faulty\"\n{FILES}");
    let home = Home::new(&["faulty"], &config)?;
    let clock = Clock::new()?;
    home.write("events.ndjson", text(&[only_event("a", "1", "emit")]))?;
    output(&home, &clock, 0, &["run", "--once"])?;
    home.append("events.ndjson", text(&[only_event("b", "2", "emit")]))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs().cast_signed();
    clock.set(-now - DAY_S)?;
    for args in [&["run", "--once"][..], &["keys", "list", "cases"]] {
        let refused = home.ordain(args)?.envs(clock.env()).output()?;
        let log = String::from_utf8_lossy(&refused.stderr);
        ensure!(refused.status.code() == Some(75) && log.contains("before 1970"), "{log}");
    }
    output(&home, &clock, 0, &["run", "--once"])?;
    ensure!(home.lines("out.ndjson") == 2, "{}", home.read("out.ndjson"));
    Ok(())
}

/// The clock of the Redis server is wrong during a run and during a restart. The store must forget neither an ended key
/// nor a dead letter, and each run that sees the wrong clock must log one warning.
#[test]
fn jump_of_the_redis_clock_forgets_no_key_and_no_letter() -> Result<()> {
    let clock = Clock::new()?;
    let redis = Redis::with(&Options::new().clock(&clock))?;
    let config = format!(
        "[ingress]\nlisten = \"127.0.0.1:0\"\n[store]\nkind = \"redis\"\nurl = \"{}\"\nshards = 1\n\
         [streams.cases]\nhandler = \"faulty\"\nsource = {{ kind = \"http\" }}\n\
         [sinks.faulty]\nkind = \"file\"\npath = \"-\"\n",
        redis.url()
    );
    let home = Home::new(&["faulty"], &config)?;
    let letters = || home.rows(&["dead", "list", "cases", "--json"]);
    let repeat = only_event("k", "1", "emit");
    let mut ended_keys = 0;
    // The wrong clock is 40 days ahead. Ended keys expire after seven days, dead letters after 30 days.
    for (round, offsets) in
        [[0, 40 * DAY_S], [40 * DAY_S, 40 * DAY_S], [40 * DAY_S, 0]].iter().enumerate()
    {
        clock.set(offsets[0])?;
        let mut service = Service::start(&home, &["run"])?;
        ready(&mut service)?;
        let address = ingress(&mut service)?;
        // The standard output contains only the messages of this run.
        let mut printed = 0;
        if round == 0 {
            send(address, &[repeat.clone(), only_event("rejected", "1", "reject")])?;
            service.until("the dead letter", || letters().is_ok_and(|rows| rows.len() == 1))?;
            ended_keys = 1;
            printed = 1;
        }
        for (half, offset) in offsets.iter().enumerate() {
            clock.set(*offset)?;
            // The last event shows that the host has processed the repeat before it.
            let last = only_event(&format!("k{round}-{half}"), "1", "emit");
            send(address, &[repeat.clone(), last])?;
            ended_keys += 1;
            printed += 1;
            service.until("all messages", || home.lines("stdout") >= printed)?;
            ensure!(home.lines("stdout") == printed, "{}", home.read("stdout"));
            ensure!(letters()?.len() == 1, "{round}: the dead letter expired");
            let keys = home.rows(&["keys", "list", "cases", "--json"])?;
            let ended = keys.iter().filter(|row| {
                row["key"].as_str().is_some_and(|key| key.starts_with('k'))
                    && row["status"] == "completed"
            });
            ensure!(ended.count() == ended_keys, "{round}: {keys:?}");
        }
        service.until_says(SERVER_AHEAD_WARNING)?;
        service.end()?;
        let warnings = service.stderr().matches(SERVER_AHEAD_WARNING).count();
        ensure!(warnings == 1, "{round}: {warnings} warnings: {}", service.stderr());
    }

    clock.set(0)?;
    let mut service = Service::start(&home, &["run"])?;
    ready(&mut service)?;
    send(ingress(&mut service)?, &[repeat, only_event("end", "1", "emit")])?;
    service.until("the last message", || home.lines("stdout") > 0)?;
    ensure!(home.lines("stdout") == 1, "{}", home.read("stdout"));
    ensure!(letters()?.len() == 1, "the dead letter expired");
    service.end()?;
    ensure!(!service.stderr().contains(SERVER_AHEAD_WARNING), "{}", service.stderr());
    Ok(())
}
