//! Tests of a stream without sequences. The host must execute its events in the order of arrival, and recognise
//! repeated events by their ids.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ordain_tests::host::Home;
use ordain_tests::http::{LINES_TYPE, ingress, post};
use ordain_tests::log::{by_key, in_turn};
use ordain_tests::seed::kill_seed;
use ordain_tests::service::Service;
use ordain_tests::tally;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

const CONFIG: &str = r#"
[streams.cases]
handler = "tally"
ordering = "fifo"
source = { kind = "file", path = "events.ndjson" }

[sinks.tally]
kind = "file"
path = "out.ndjson"
"#;

const FILE_SOURCE: &str = "source = { kind = \"file\", path = \"events.ndjson\" }";

/// The input repeats each line whose index is a multiple of this number.
const REPEAT_INTERVAL_LINES: usize = 7;
/// The distance between a line and its repeat, in lines.
const REPEAT_DISTANCE_LINES: usize = 200;

/// Returns lines with sequences. The test compares the output with these lines.
fn numbered() -> Vec<String> {
    in_turn(120, 60)
}

/// Returns the lines of `numbered` without their sequences, and with repeats of some lines.
fn disturbed(numbered: &[String]) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for (index, line) in numbered.iter().enumerate() {
        let mut event: Value = serde_json::from_str(line)?;
        event.as_object_mut().expect("an event is an object").remove("sequence");
        lines.push((index, event.to_string()));
    }
    let repeats: Vec<_> = lines
        .iter()
        .step_by(REPEAT_INTERVAL_LINES)
        .map(|(index, line)| (index + REPEAT_DISTANCE_LINES, line.clone()))
        .collect();
    lines.extend(repeats);
    // The sort is stable, so a repeat comes directly after the line with the same index.
    lines.sort_by_key(|(index, _)| *index);
    Ok(lines.into_iter().map(|(_, line)| line).collect())
}

#[test]
fn repeats_are_recognized_by_id_across_runs() -> Result<()> {
    let numbered = numbered();
    let text = disturbed(&numbered)?.join("\n") + "\n";
    let home = Home::new(&["tally"], CONFIG)?;
    home.write("events.ndjson", &text)?;
    let report = home.run_once()?;
    assert_eq!(report["settled"], numbered.len());
    assert_eq!(report["duplicates"], numbered.len().div_ceil(REPEAT_INTERVAL_LINES));
    let out = home.read("out.ndjson");
    tally::check(&by_key(&numbered)?, &out)?;

    // Replaces the file by a copy with the same content. The checkpoint still applies to the copy.
    home.replace("events.ndjson", &text)?;
    assert_eq!(home.run_once()?["delivered"], 0);
    // Replaces the file by another file with the same events. The checkpoint does not apply, but the store still has
    // the ids of the events.
    home.replace("events.ndjson", format!("\n{text}"))?;
    let report = home.run_once()?;
    assert_eq!(report["settled"], 0);
    assert_eq!(
        report["duplicates"],
        numbered.len() + numbered.len().div_ceil(REPEAT_INTERVAL_LINES)
    );
    assert_eq!(home.read("out.ndjson"), out);
    assert!(home.rows(&["dead", "list", "cases", "--json"])?.is_empty());
    Ok(())
}

#[test]
fn ten_kills_lose_and_repeat_nothing() -> Result<()> {
    let numbered = numbered();
    let home = Home::new(&["tally"], CONFIG)?;
    home.write("events.ndjson", disturbed(&numbered)?.join("\n") + "\n")?;
    let mut rng = ChaCha8Rng::seed_from_u64(kill_seed()?);
    let mut unfinished = 0;
    for _ in 0..10 {
        let mut child = home.start()?;
        std::thread::sleep(Duration::from_micros(rng.random_range(0..300_000)));
        unfinished += u32::from(child.try_wait()?.is_none());
        child.kill()?;
        child.wait()?;
    }
    println!("{unfinished} of 10 runs were killed before their end");
    home.run_once()?;
    tally::check(&by_key(&numbered)?, &home.read("out.ndjson"))
}

fn event(source: &str, id: &str, n: u64) -> Value {
    json!({
        "specversion": "1.0", "id": id, "source": source, "type": "test", "subject": "k",
        "data": { "n": n },
    })
}

/// Returns the lines of five events of several sources, some with the same id. The last two events differ in source and
/// id, but for both, the source followed by the id is the text `/d12`.
fn events_of_sources() -> String {
    let events = [
        event("/a", "1", 1),
        event("/b", "1", 1),
        event("/c", "1", 3),
        event("/d1", "2", 4),
        event("/d", "12", 4),
    ];
    events.map(|event| format!("{event}\n")).concat()
}

/// The source and the id together identify an event, so events of different sources with the same id are different
/// events.
#[test]
fn same_id_from_another_source_is_another_event() -> Result<()> {
    let home = Home::new(&["tally"], CONFIG)?;
    let text = events_of_sources();
    home.write("events.ndjson", &text)?;
    let report = home.run_once()?;
    assert_eq!((&report["settled"], &report["duplicates"]), (&5.into(), &0.into()));
    home.append("events.ndjson", &text)?;
    let conflict = event("/b", "1", 9);
    home.append("events.ndjson", format!("{conflict}\n"))?;
    let report = home.run_once()?;
    assert_eq!((&report["settled"], &report["duplicates"]), (&0.into(), &5.into()));
    let letters = home.rows(&["dead", "list", "cases", "--json"])?;
    assert_eq!((letters.len(), &letters[0]["cause"]), (1, &"conflict".into()));
    assert_eq!(home.lines("out.ndjson"), 5);
    Ok(())
}

/// A library may send an event again in another form of JSON. The test uses `data_base64`, because this attribute
/// preserves the form of the JSON.
#[test]
fn other_form_of_json_is_a_repeat() -> Result<()> {
    let home = Home::new(&["tally"], CONFIG)?;
    let line = |data: &str| {
        let mut event = event("/a", "1", 1);
        let members = event.as_object_mut().expect("an object");
        members.remove("data");
        members.insert("data_base64".into(), STANDARD.encode(data).into());
        format!("{event}\n")
    };
    home.write("events.ndjson", line(r#"{"n":1,"name":"Köln"}"#))?;
    let report = home.run_once()?;
    assert_eq!((&report["settled"], &report["duplicates"]), (&1.into(), &0.into()));
    home.append("events.ndjson", line("{ \"name\": \"K\\u00f6ln\",\n \"n\": 1 }"))?;
    let report = home.run_once()?;
    assert_eq!((&report["settled"], &report["duplicates"]), (&0.into(), &1.into()));
    assert!(home.rows(&["dead", "list", "cases", "--json"])?.is_empty());
    home.append("events.ndjson", line(r#"{"n":1,"name":"Koln"}"#))?;
    home.run_once()?;
    let letters = home.rows(&["dead", "list", "cases", "--json"])?;
    assert_eq!((letters.len(), &letters[0]["cause"]), (1, &"conflict".into()));
    Ok(())
}

#[test]
fn same_id_from_another_source_is_another_event_over_http() -> Result<()> {
    let http = CONFIG.replace(FILE_SOURCE, "source = { kind = \"http\" }");
    let home = Home::new(&["tally"], &format!("[ingress]\nlisten = \"127.0.0.1:0\"\n{http}"))?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ingress(&mut service)?;
    let last = event("/a", "last", 5);
    // The first two requests contain the same five events. The last event arrives after all repeats.
    for body in [events_of_sources(), events_of_sources(), format!("{last}\n")] {
        let answer = post(address, LINES_TYPE, &body)?;
        ensure!(answer.status == 202, "{answer:?}");
    }
    service.until("all messages", || home.lines("out.ndjson") >= 6)?;
    service.end()?;
    ensure!(home.lines("out.ndjson") == 6, "{}", home.read("out.ndjson"));
    ensure!(home.rows(&["dead", "list", "cases", "--json"])?.is_empty());
    Ok(())
}

#[test]
fn same_id_from_another_source_is_another_published_event() -> Result<()> {
    for ordering in ["fifo", "sequenced"] {
        let config = CONFIG
            .replace(FILE_SOURCE, "source = { kind = \"stream\" }")
            .replace("\"fifo\"", &format!("\"{ordering}\""));
        let home = Home::new(&["tally"], &config)?;
        home.write("events.ndjson", events_of_sources())?;
        home.write("again.ndjson", events_of_sources())?;
        let publish = |file: &str| home.rows(&["publish", "cases", file, "--json"]);
        let rows = publish("events.ndjson")?;
        ensure!(rows[0]["published"] == 5 && rows[0]["known"] == 0, "{ordering}: {rows:?}");
        publish("again.ndjson")?;
        let report = home.run_once()?;
        ensure!(report["settled"] == 5 && report["dead_total"] == 0, "{ordering}: {report}");
        ensure!(home.lines("out.ndjson") == 5, "{ordering}: {}", home.read("out.ndjson"));
    }
    Ok(())
}

/// Two events have the same id, sequence and content, but come from different sources. Both are in conflict with an
/// earlier event, and each must have a dead letter of its own.
#[test]
fn conflicting_events_of_two_sources_have_two_dead_letters() -> Result<()> {
    let home = Home::new(&["tally"], &CONFIG.replace("fifo", "sequenced"))?;
    let events = [("/a", 1), ("/b", 2), ("/c", 2)].map(|(source, n)| {
        let mut event = event(source, "1", n);
        event["sequence"] = 1.into();
        format!("{event}\n")
    });
    home.write("events.ndjson", events.concat())?;
    home.run_once()?;
    let letters = home.rows(&["dead", "list", "cases", "--json"])?;
    let sources: BTreeSet<&str> =
        letters.iter().filter_map(|letter| letter["event"]["source"].as_str()).collect();
    ensure!(sources == BTreeSet::from(["/b", "/c"]), "{letters:?}");
    ensure!(letters.iter().all(|letter| letter["cause"] == "conflict"), "{letters:?}");
    Ok(())
}
