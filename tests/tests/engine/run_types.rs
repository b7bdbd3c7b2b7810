//! Tests of streams whose handler executes only some types of events.

use std::collections::{BTreeMap, HashSet};

use anyhow::{Context as _, Result, ensure};
use ordain_tests::host::Home;
use ordain_tests::http::{LINES_TYPE, ingress, metric, post, ready};
use ordain_tests::log::{Line, by_key, disturb, in_turn, line, text, unnumbered};
use ordain_tests::service::Service;
use ordain_tests::tally;
use serde_json::{Value, json};

/// A stream whose handler executes the types `order.*`, and whose other events go to the file `others.ndjson`.
const CONFIG: &str = r#"
[streams.cases]
handler = "tally"
types = ["order.*"]
other_types = "others"
source = { kind = "file", path = "events.ndjson" }

[sinks.tally]
kind = "file"
path = "out.ndjson"

[sinks.others]
kind = "file"
path = "others.ndjson"
"#;

const OTHER_TYPES: &str = "other_types = \"others\"\n";

type Events = BTreeMap<String, BTreeMap<u64, Line>>;

/// Returns lines as [`in_turn`] does. Every third event of a key has the type `payment.done`, and all others have the
/// type `order.new`.
fn mixed(keys: usize, events: u64) -> Result<Vec<String>> {
    let typed = |line: &String| -> Result<String> {
        let mut event: Value = serde_json::from_str(line)?;
        let sequence = event["sequence"].as_u64().context("a sequence")?;
        let is_other = sequence.is_multiple_of(3);
        event["type"] = if is_other { "payment.done" } else { "order.new" }.into();
        Ok(event.to_string())
    };
    in_turn(keys, events).iter().map(typed).collect()
}

fn divided(lines: &[String]) -> Result<(Events, Events)> {
    let mut handled = by_key(lines)?;
    let mut others = handled.clone();
    let is_handled = |event: &Line| event.kind.starts_with("order.");
    for events in handled.values_mut() {
        events.retain(|_, event| is_handled(event));
    }
    for events in others.values_mut() {
        events.retain(|_, event| !is_handled(event));
    }
    Ok((handled, others))
}

/// Checks that the file `others.ndjson` contains each of these events once, with its values, and in the order of its
/// key.
fn check_others(home: &Home, expected: &Events) -> Result<()> {
    let mut ids = HashSet::new();
    let mut found: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for line in home.read("others.ndjson").lines() {
        let message: Value = serde_json::from_str(line)?;
        ensure!(ids.insert(message["id"].to_string()), "an id occurs twice: {line}");
        ensure!(message["type"] == "payment.done", "{line}");
        ensure!(message["source"] == "/ordain/cases", "{line}");
        let key = message["subject"].as_str().context("a key")?;
        let number = message["data"]["n"].as_u64().context("a number")?;
        found.entry(key.to_owned()).or_default().push(number);
    }
    let sequences = |events: &BTreeMap<u64, Line>| events.keys().copied().collect::<Vec<_>>();
    let expected: BTreeMap<String, Vec<u64>> =
        expected.iter().map(|(key, events)| (key.clone(), sequences(events))).collect();
    ensure!(found == expected, "{found:?}");
    Ok(())
}

/// Without a sink, an event of another type only keeps its position in the order of its key.
#[test]
fn events_of_other_types_are_counted_and_are_no_gaps() -> Result<()> {
    let home = Home::new(&["tally"], &CONFIG.replace(OTHER_TYPES, ""))?;
    let mut lines = mixed(5, 9)?;
    let quiet = line("quiet", 1, &json!({})).replace("\"test\"", "\"payment.done\"");
    lines.push(quiet);
    home.write("events.ndjson", text(&disturb(&lines, 20, 5, 1)))?;
    let report = home.run_once()?;
    ensure!(report["settled"] == 30 && report["other_types"] == 16, "{report}");
    ensure!(report["dead_total"] == 0 && report["held"]["events"] == 0, "{report}");
    let (mut handled, _) = divided(&lines)?;
    handled.remove("quiet");
    tally::check(&handled, &home.read("out.ndjson"))?;
    ensure!(home.lines("others.ndjson") == 0, "{}", home.read("others.ndjson"));
    for row in home.rows(&["keys", "list", "cases", "--json"])? {
        let is_quiet = row["key"] == "quiet";
        let next = if is_quiet { 2 } else { 10 };
        ensure!(row["status"] == "active" && row["next"] == next, "{row}");
        ensure!((row["state_size"] == 0) == is_quiet, "{row}");
        ensure!(row["version"].is_null() == is_quiet, "{row}");
    }
    let why = home.printed(&["keys", "why", "cases", "quiet"])?;
    ensure!(why.contains("active: all events before event 2 are settled"), "{why}");
    ensure!(home.run_once()?["delivered"] == 0);
    Ok(())
}

/// The handler `faulty` rejects all these events.
#[test]
fn events_of_other_types_do_not_fail() -> Result<()> {
    let config = CONFIG.replace(OTHER_TYPES, "").replace("\"tally\"", "\"faulty\"");
    let home = Home::new(&["faulty"], &config)?;
    let lines = mixed(2, 6)?;
    home.write("events.ndjson", text(&lines))?;
    let report = home.run_once()?;
    ensure!(report["dead"] == json!({ "rejected": 8 }), "{report}");
    ensure!(report["settled"] == 0 && report["other_types"] == 4, "{report}");
    let letters = home.rows(&["dead", "list", "cases", "--json"])?;
    let types: HashSet<&str> =
        letters.iter().filter_map(|letter| letter["event"]["type"].as_str()).collect();
    ensure!(types == HashSet::from(["order.new"]), "{letters:?}");
    Ok(())
}

#[test]
fn events_of_other_types_go_to_the_sink_once_despite_kills() -> Result<()> {
    let home = Home::new(&["tally"], CONFIG)?;
    let lines = mixed(40, 300)?;
    let disturbed = disturb(&lines, 100, 10, 3);
    home.write("events.ndjson", "")?;
    for chunk in disturbed.chunks(disturbed.len().div_ceil(8)) {
        let before = home.lines("others.ndjson");
        home.append("events.ndjson", text(chunk))?;
        let mut service = Service::start(&home, &["run"])?;
        service.until("further messages", || home.lines("others.ndjson") > before)?;
        service.kill()?;
    }
    home.run_once()?;
    let (handled, others) = divided(&lines)?;
    tally::check(&handled, &home.read("out.ndjson"))?;
    check_others(&home, &others)?;
    ensure!(home.rows(&["dead", "list", "cases", "--json"])?.is_empty(), "dead letters");
    Ok(())
}

#[test]
fn events_of_other_types_over_http_are_accepted_and_counted() -> Result<()> {
    let source = "source = { kind = \"file\", path = \"events.ndjson\" }";
    let config = CONFIG.replace(source, "ordering = \"fifo\"\nsource = { kind = \"http\" }")
        + "[ingress]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n";
    let home = Home::new(&["tally"], &config)?;
    let mut service = Service::start(&home, &["run"])?;
    let events_address = ingress(&mut service)?;
    let admin_address = ready(&mut service)?;
    let lines = mixed(4, 12)?;
    let (handled, others) = divided(&lines)?;
    let body = text(&unnumbered(&lines)?);
    // The second request repeats all events.
    for _ in 0..2 {
        let answer = post(events_address, LINES_TYPE, &body)?;
        ensure!(answer.status == 202, "{answer:?}");
    }
    let count = |outcome: &str| {
        let name = format!("ordain_events_total{{stream=\"cases\",outcome=\"{outcome}\"}}");
        metric(admin_address, &name).ok().flatten()
    };
    service.until("the repeats", || count("duplicate") == Some(48))?;
    ensure!(count("other-type") == Some(16) && count("effect") == Some(32));
    ensure!(count("dead") == Some(0));
    let is_published = || home.lines("others.ndjson") >= 16 && home.lines("out.ndjson") >= 32;
    service.until("all messages", is_published)?;
    service.end()?;
    tally::check(&handled, &home.read("out.ndjson"))?;
    check_others(&home, &others)
}

#[test]
fn next_stream_executes_the_other_types() -> Result<()> {
    let others = "[sinks.others]\nkind = \"file\"\npath = \"others.ndjson\"\n";
    let chained = "[sinks.others]\nkind = \"stream\"\nstream = \"payments\"\nsequenced = true\n\
                   [streams.payments]\nhandler = \"tally\"\ntypes = [\"payment.*\"]\n\
                   source = { kind = \"stream\" }\n";
    let home = Home::new(&["tally"], &CONFIG.replace(others, chained))?;
    let lines = mixed(6, 30)?;
    home.write("events.ndjson", text(&lines))?;
    let report = home.run_once()?;
    ensure!(report["settled"] == 180 && report["other_types"] == 60, "{report}");
    let (handled, mut others) = divided(&lines)?;
    for events in others.values_mut() {
        let renumbered = events.values().cloned().zip(1..);
        let renumbered = renumbered.map(|(event, sequence)| (sequence, Line { sequence, ..event }));
        *events = renumbered.collect();
    }
    let out = home.read("out.ndjson");
    let of = |stream: &str| -> String {
        let source = format!("\"source\":\"/ordain/{stream}\"");
        out.lines()
            .filter(|line| line.contains(&source))
            .map(|line| line.to_owned() + "\n")
            .collect()
    };
    tally::check(&handled, &of("cases"))?;
    tally::check(&others, &of("payments"))
}
