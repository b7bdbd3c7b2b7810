//! A test of a spilled event that cannot be read. Such an event must stop its key, and no other key.

use anyhow::{Result, ensure};
use ordain_servers::Redis;
use ordain_tests::host::Home;
use ordain_tests::log::{by_key, line, text};
use ordain_tests::service::Service;
use ordain_tests::tally;
use serde_json::{Value, json};

const CONFIG: &str = r#"
[streams.cases]
handler = "tally"
source = { kind = "file", path = "events.ndjson" }
gap = { timeout = "10ms", attempts = 1, on_exhausted = "wait" }

[sinks.tally]
kind = "file"
path = "-"
"#;

/// A Lua script that replaces the spilled event 2 of key `a` by a truncated copy, and keeps the original under another
/// name.
const DAMAGE_SCRIPT: &str = r"
local field = 'ea\0\0\0\0\0\0\0\2'
for _, name in ipairs(redis.call('KEYS', '*:data:cases')) do
  local event = redis.call('HGET', name, field)
  if event then
    redis.call('HSET', name, field, string.sub(event, 1, 20))
    redis.call('HSET', 'aside', 'name', name, 'event', event)
    return 'done'
  end
end
return 'the event is missing'";

const REPAIR_SCRIPT: &str = r"
local aside = redis.call('HMGET', 'aside', 'name', 'event')
redis.call('HSET', aside[1], 'ea\0\0\0\0\0\0\0\2', aside[2])
return 'done'";

const UNREADABLE: &str = "stored events of the key unreadable";

fn event(key: &str, sequence: u64) -> String {
    line(key, sequence, &json!({ "n": sequence }))
}

fn eval(redis: &Redis, script: &str) -> Result<()> {
    let reply = redis.command(&["EVAL", script, "0"])?;
    ensure!(reply.text() == Some("done"), "{reply:?}");
    Ok(())
}

fn letters(home: &Home) -> Result<Vec<Value>> {
    home.rows(&["dead", "list", "cases", "--json"])
}

/// Runs `ordain run --once`, which must end successfully. Returns its output and its log.
fn once(home: &Home) -> Result<(String, String)> {
    let mut run = Service::start(home, &["--log", "warn", "run", "--once"])?;
    let status = run.wait()?;
    ensure!(status.success(), "{status}: {}", run.stderr());
    Ok((run.stdout(), run.stderr()))
}

#[test]
fn unreadable_spilled_event_stops_only_its_key() -> Result<()> {
    let redis = Redis::start(&[])?;
    let store = format!("[store]\nkind = \"redis\"\nurl = \"{}\"\n", redis.url());
    let home = Home::new(&["tally"], &format!("{store}{CONFIG}"))?;
    let held = [event("a", 2), event("a", 3), event("b", 1)];
    home.write("events.ndjson", text(&held))?;
    let mut out = once(&home)?.0;
    eval(&redis, DAMAGE_SCRIPT)?;

    // A run that reads the damaged event must still end successfully, and must log the key, the event and the fault.
    let more = [event("a", 1), event("b", 2)];
    home.append("events.ndjson", text(&more))?;
    let (messages, log) = once(&home)?;
    for words in [UNREADABLE, "key=a ", "spilled event 2: "] {
        ensure!(log.matches(words).count() == 1, "the log must contain {words:?} once: {log}");
    }
    assert_eq!(
        messages.lines().count(),
        2,
        "the messages must be from event 1 of `a` and event 2 of `b`: {messages}"
    );
    out += &messages;
    assert_eq!(letters(&home)?, [] as [Value; 0]);

    // Later events of the key become dead letters. Other keys continue.
    let mut service = Service::start(&home, &["--log", "warn", "run"])?;
    let log = home.path("stderr");
    let report_count =
        || std::fs::read_to_string(&log).unwrap_or_default().matches(UNREADABLE).count();
    service.until("the log line of the key without a new event", || report_count() > 0)?;
    let lost = [event("a", 4), event("a", 5)];
    home.append("events.ndjson", text(&lost) + &text(&[event("b", 3)]))?;
    service.until("the message of the other key", || home.lines("stdout") == 1)?;
    let mut dead = Vec::new();
    service.until("both dead letters", || {
        dead = letters(&home).unwrap_or_default();
        dead.len() == 2
    })?;
    service.end()?;
    assert_eq!(report_count(), 1, "the fault is reported once while the key is in memory");
    out += &service.stdout();
    for (letter, sequence) in dead.iter().zip([4, 5]) {
        assert_eq!((&letter["key"], &letter["cause"]), (&json!("a"), &json!("corrupt")));
        let id = letter["id"].to_string();
        let error = letter["error"].to_string();
        ensure!(id.contains(&format!("{sequence}-")), "{letter}");
        ensure!(
            error.contains("the key's stored record or spilled events cannot be read"),
            "{letter}"
        );
        ensure!(error.contains("spilled event 2"), "{letter}");
    }

    // After the repair, the key continues.
    eval(&redis, REPAIR_SCRIPT)?;
    out += &once(&home)?.0;
    let all: Vec<String> = held.into_iter().chain(more).chain([event("b", 3)]).collect();
    tally::check(&by_key(&all)?, &out)
}
