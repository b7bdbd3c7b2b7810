//! Tests of `overflow = "pause"` with a stopped key that has reached its limit of spilled events. A run with `--once`
//! must report the key and end. A service (a run without `--once`) must report the key, because all keys of its
//! partition wait.

use std::fs;

use anyhow::{Result, ensure};
use ordain_tests::alerts;
use ordain_tests::host::Home;
use ordain_tests::http::{LINES_TYPE, get, ingress, metric, post, ready, send_whole};
use ordain_tests::log::{by_key, line, text};
use ordain_tests::plugins::plugin;
use ordain_tests::printed::run_all;
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

/// The full key `a` stops the only partition, so event 2 of the key `b` waits too. The log, two metrics, the list of
/// streams and `keys why` must show this. With a higher limit, all events must take effect.
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
    // The reason in the list of streams contains a command.
    let outputs = run_all(&home, &home.printed(&["streams", "list"])?)?;
    let explains = |(_, shown): &(String, String)| shown.starts_with("key a: parked at event 1\n");
    ensure!(outputs.iter().any(explains), "{outputs:?}");
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

/// Another handler version accepts the event at which the full key has stopped. The log must show when the stream
/// continues.
#[test]
fn end_of_a_block_is_logged() -> Result<()> {
    let text_of_config = config("park", 2).replace("\"tally\"", "\"faulty\"");
    let home = Home::new(&["faulty"], &text_of_config)?;
    let event = |sequence, action| line("a", sequence, &json!({ "do": action }));
    let mut lines = vec![event(1, "trap")];
    lines.extend((2..=20).map(|sequence| event(sequence, "ok")));
    home.write("events.ndjson", text(&lines))?;
    let mut service = Service::start(&home, &["run"])?;
    service.until_says("stream blocked: key \"a\" is stopped at event 1, and ")?;
    ensure!(!service.stderr().contains("stream unblocked"), "{}", service.stderr());
    fs::copy(plugin("tally")?, home.path("plugins/faulty@1.0.0.wasm"))?;
    service.until_says("stream unblocked: the partition accepts events again")?;
    service.until("all messages", || home.lines("out.ndjson") == lines.len())?;
    service.end()
}

/// The stopped key `a` has reached `spill_limit`. Its later events over HTTP wait until the queue of the stream is full
/// too, so Ordain cannot accept event 1 of `a`. The answer must name the key, and `keys why` must name a remedy that
/// helps.
#[test]
fn full_key_over_http_has_a_remedy() -> Result<()> {
    let config = |rest: &str| {
        format!(
            "[ingress]\nlisten = \"127.0.0.1:0\"\n[streams.cases]\nhandler = \"tally\"\n\
             source = {{ kind = \"http\", prefetch = 4, queue = 20 }}\n\
             lane_buffer = 1\nspill_after = \"1ms\"\n\
             gap = {{ timeout = \"10ms\", attempts = 1 }}\n{rest}\n\
             [sinks.tally]\nkind = \"file\"\npath = \"out.ndjson\"\n"
        )
    };
    let event = |sequence: u64| line("a", sequence, &json!({ "n": sequence }));
    for remedy in ["spill_limit = 1000", "spill_limit = 2\noverflow = \"dead-letter\""] {
        let home = Home::new(&["tally"], &config("spill_limit = 2"))?;
        let mut service = Service::start(&home, &["run"])?;
        let events = ingress(&mut service)?;
        let mut accepted = Vec::new();
        let mut sequence = 2;
        let words = "the limit `source.queue`: try again. A partition of the stream receives no events: key \"a\" is \
                     stopped at event 1, and ";
        service.until("an answer that names the key", || {
            let Ok(answer) = post(events, LINES_TYPE, &(event(sequence) + "\n")) else {
                return false;
            };
            if answer.status == 202 {
                accepted.push(event(sequence));
                sequence += 1;
                return false;
            }
            answer.status == 429 && answer.problem().is_ok_and(|detail| detail.contains(words))
        })?;
        let answer = post(events, LINES_TYPE, &(event(1) + "\n"))?;
        ensure!(answer.status == 429 && answer.problem()?.contains(words), "{answer:?}");
        // A client that sends its whole request before it reads the answer must receive the answer too.
        let large = (1..=7).map(|n| line("large", n, &json!({ "n": "x".repeat(1_000_000) })));
        let large = text(&large.collect::<Vec<_>>());
        let request = format!(
            "POST /v1/streams/cases/events HTTP/1.1\r\nhost: {events}\r\nconnection: close\r\n\
             content-type: {LINES_TYPE}\r\ncontent-length: {}\r\n\r\n{large}",
            large.len()
        );
        let answer = send_whole(events, request.as_bytes())?;
        ensure!(answer.status == 429 && answer.problem()?.contains(words), "{answer:?}");
        let named =
            "remedy: raise `spill_limit`, or set `overflow = \"dead-letter\"`, and start Ordain ";
        let from_process = home.printed(&["keys", "why", "cases", "a"])?;
        service.end()?;
        let from_store = home.printed(&["keys", "why", "cases", "a"])?;
        for why in [&from_process, &from_store] {
            ensure!(why.contains(named) && why.contains("; then send event 1 again from"), "{why}");
        }

        home.write("ordain.toml", config(remedy))?;
        let mut service = Service::start(&home, &["run"])?;
        let events = ingress(&mut service)?;
        service.until("the missing event", || {
            post(events, LINES_TYPE, &(event(1) + "\n")).is_ok_and(|answer| answer.status == 202)
        })?;
        accepted.push(event(1));
        service.until("all messages", || home.lines("out.ndjson") == accepted.len())?;
        service.end()?;
        tally::check(&by_key(&accepted)?, &home.read("out.ndjson"))?;
    }
    Ok(())
}
