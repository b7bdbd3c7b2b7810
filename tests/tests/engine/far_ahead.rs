//! Tests of events that arrive too far ahead of the first missing event, or whose key already holds the maximum number
//! of events. Ordain writes these events into dead letters. When the missing event arrives, Ordain takes the events out
//! of the dead letters and executes them, so no producer has to send them again.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use anyhow::{Context, Result, ensure};
use ordain_servers::Redis;
use ordain_tests::host::Home;
use ordain_tests::http::{LINES_TYPE, admin, ingress, metric, post};
use ordain_tests::log::{by_key, line, text};
use ordain_tests::service::Service;
use ordain_tests::tally;
use serde_json::{Value, json};

const SINK: &str = "[sinks.tally]\nkind = \"file\"\npath = \"out.ndjson\"\n";

/// Returns the home of a stream that reads a file. `stream` contains settings of the stream.
fn home(stream: &str) -> Result<Home> {
    let source = "source = { kind = \"file\", path = \"events.ndjson\" }";
    Home::new(
        &["tally"],
        &format!("[streams.cases]\nhandler = \"tally\"\n{source}\n{stream}\n{SINK}"),
    )
}

/// Returns the home of a stream as [`home`] does. The sink is the standard output.
fn home_with_stdout(stream: &str) -> Result<Home> {
    let home = home(stream)?;
    let config = home.read("ordain.toml").replace("path = \"out.ndjson\"", "path = \"-\"");
    home.write("ordain.toml", config)?;
    Ok(home)
}

fn redis_store(redis: &Redis) -> String {
    format!("[store]\nkind = \"redis\"\nurl = \"{}\"\n", redis.url())
}

/// Writes the lines to the input, and runs the host once. Returns the report.
fn run_first(home: &Home, lines: &[String]) -> Result<Value> {
    home.write("events.ndjson", text(lines))?;
    home.run_once()
}

/// Appends the lines to the input, and runs the host once. Returns the report.
fn run_more(home: &Home, lines: &[String]) -> Result<Value> {
    home.append("events.ndjson", text(lines))?;
    home.run_once()
}

fn event(sequence: u64) -> String {
    line("k", sequence, &json!({ "n": sequence }))
}

fn last_event(sequence: u64) -> Result<String> {
    let mut last: Value = serde_json::from_str(&event(sequence))?;
    last["endofsequence"] = true.into();
    Ok(last.to_string())
}

fn first_and(later: RangeInclusive<u64>) -> Vec<String> {
    [1].into_iter().chain(later).map(event).collect()
}

fn events(range: RangeInclusive<u64>) -> Vec<String> {
    range.map(event).collect()
}

fn expect_effects(home: &Home, lines: &[String]) -> Result<()> {
    tally::check(&by_key(lines)?, &home.read("out.ndjson"))
}

fn row(home: &Home) -> Result<Value> {
    home.rows(&["keys", "show", "cases", "k", "--json"])?.pop().context("a row")
}

fn why(home: &Home) -> Result<String> {
    home.printed(&["keys", "why", "cases", "k"])
}

fn letters(home: &Home) -> Result<Vec<Value>> {
    home.rows(&["dead", "list", "cases", "--json", "--limit", "100000"])
}

/// Event 2 arrives only in the second run, and the events after 300 in the third run. All events must take effect.
/// `store` contains the section `[store]` of the configuration. The sink is the standard output, which works with the
/// embedded store and with Redis.
fn expect_all_after_gap(store: &str) -> Result<()> {
    let home = home_with_stdout(&format!("{NARROW_GAP_SETTING}\n{store}"))?;
    let mut output = String::new();
    let mut run = || -> Result<(Value, String)> {
        let report = home.run_once_to("part.ndjson")?;
        output += &home.read("part.ndjson");
        Ok((report, output.clone()))
    };
    home.write("events.ndjson", text(&first_and(3..=300)))?;
    run()?;
    let words = why(&home)?;
    ensure!(words.starts_with("key k: parked at event 2\n"), "{words}");
    ensure!(
        words.contains(
            "\nwaiting until all earlier events are settled: events in the range from 103 to 300, "
        ),
        "{words}"
    );
    ensure!(words.contains("remedy: send event 2 again"), "{words}");
    ensure!(row(&home)?["ahead"] == json!({ "first": 103, "last": 300 }));

    home.append("events.ndjson", text(&events(2..=2)))?;
    let (report, output) = run()?;
    ensure!(report["settled"] == 299, "{report}");
    tally::check(&by_key(&events(1..=300))?, &output)?;
    ensure!(letters(&home)?.is_empty(), "dead letters are left");
    let ended = row(&home)?;
    ensure!(ended["ahead"] == Value::Null && ended["status"] == "active", "{ended}");
    let gaps = ended["gaps"].as_array().context("gaps")?;
    ensure!(gaps.len() == 1, "the gap history must have one gap: {ended}");
    ensure!(
        gaps[0]["first"] == 2 && gaps[0]["last"] == 2 && gaps[0]["end"] == "arrived",
        "{ended}"
    );

    home.append("events.ndjson", text(&events(301..=1_000)))?;
    let (_, output) = run()?;
    tally::check(&by_key(&events(1..=1_000))?, &output)?;
    ensure!(home.rows(&["keys", "list", "cases", "--status", "parked", "--json"])?.is_empty());
    Ok(())
}

/// A setting of the stream: an event is too far ahead if its sequence exceeds the sequence of the first missing event
/// by more than 100.
const NARROW_GAP_SETTING: &str = "gap = { timeout = \"200ms\", max_width = 100 }";

/// A setting of a stream that skips missing events soon. An event is too far ahead as with [`NARROW_GAP_SETTING`].
const SKIPPING_GAP_SETTING: &str =
    "gap = { timeout = \"20ms\", attempts = 1, max_width = 100, on_exhausted = \"skip\" }";

#[test]
fn events_far_ahead_take_effect_after_the_gap() -> Result<()> {
    expect_all_after_gap("")
}

#[test]
fn events_far_ahead_take_effect_after_the_gap_over_redis() -> Result<()> {
    let redis = Redis::start(&[])?;
    expect_all_after_gap(&redis_store(&redis))
}

/// Two events arrive too far ahead: event 300, and event 290 under another id. Later, another event with the sequence
/// 300 and the original event 290 arrive before their key reaches the letters, and take effect. The letter of event 300
/// must get the cause `conflict`. Event 290 has the same content as its letter, so its letter must disappear. `store`
/// contains the section `[store]` of the configuration.
fn expect_conflict_of_a_taken_sequence(store: &str) -> Result<()> {
    let home = home_with_stdout(&format!("{NARROW_GAP_SETTING}\n{store}"))?;
    let other = line("k", 300, &json!({ "n": "other" }));
    let renamed = event(290).replace("\"k-290\"", "\"another\"");
    home.write("events.ndjson", text(&[event(1), other, renamed]))?;
    home.run_once_to("part.ndjson")?;
    let mut output = home.read("part.ndjson");
    ensure!(only_letter_of(&home, 300)?["cause"] == "far-ahead");
    ensure!(only_letter_of(&home, 290)?["cause"] == "far-ahead");

    // Events 290 and 300 arrive while event 251 is missing. These two events are not too far ahead any more, so the key
    // holds them, and never searches for their letters.
    let mut lines = events(2..=250);
    lines.extend([300, 290].map(event));
    lines.extend(events(251..=289));
    lines.extend(events(291..=299));
    lines.extend(events(301..=305));
    home.append("events.ndjson", text(&lines))?;
    let report = home.run_once_to("part.ndjson")?;
    output += &home.read("part.ndjson");
    tally::check(&by_key(&events(1..=305))?, &output)?;
    ensure!(report["dead"]["conflict"] == 1, "{report}");
    let all = letters(&home)?;
    ensure!(all.len() == 1, "only the letter of event 300 must be left: {all:?}");
    let conflict = only_letter(&home, "conflict")?;
    ensure!(conflict["sequence"] == 300, "{conflict}");
    let id = conflict["id"].as_str().context("an id")?;
    let shown = home.printed(&["dead", "show", "cases", id, "--key", "k"])?;
    ensure!(shown.contains("other content: event 300 of the key"), "{shown}");
    ensure!(shown.contains("\"other\""), "the letter must contain its event: {shown}");
    let row = row(&home)?;
    ensure!(row["ahead"] == Value::Null && row["next"] == 306, "{row}");
    Ok(())
}

#[test]
fn letter_of_a_taken_sequence_becomes_a_conflict() -> Result<()> {
    expect_conflict_of_a_taken_sequence("")
}

#[test]
fn letter_of_a_taken_sequence_becomes_a_conflict_over_redis() -> Result<()> {
    let redis = Redis::start(&[])?;
    expect_conflict_of_a_taken_sequence(&redis_store(&redis))
}

#[test]
fn letter_beyond_the_end_of_its_key_says_so() -> Result<()> {
    let home = home(NARROW_GAP_SETTING)?;
    run_first(&home, &[event(1), event(300)])?;
    ensure!(only_letter_of(&home, 300)?["cause"] == "far-ahead");
    run_more(&home, &[last_event(2)?])?;
    ensure!(only_letter_of(&home, 300)?["cause"] == "after-end");
    let row = row(&home)?;
    ensure!(row["status"] == "completed" && row["ahead"] == Value::Null, "{row}");
    Ok(())
}

/// The key waits for the missing event without a time limit. The missing event arrives after a restart of the process.
/// The last event, which is a dead letter while the key waits, ends the key.
#[test]
fn waiting_key_takes_the_letters_and_ends() -> Result<()> {
    let home = home("gap = { timeout = \"200ms\", max_width = 100, on_exhausted = \"wait\" }")?;
    let mut lines = first_and(3..=299);
    lines.insert(5, last_event(300)?);
    let report = run_first(&home, &lines)?;
    ensure!(report["held"]["waiting_keys"] == 1, "{report}");
    let words = why(&home)?;
    ensure!(words.starts_with("key k: waiting for event 2\n"), "{words}");
    ensure!(words.contains("settled: events in the range from 103 to 300"), "{words}");
    let idle = home.output(&["run", "--once", "--strict"])?;
    ensure!(idle.status.code() == Some(1), "{idle:?}");

    lines.push(event(2));
    run_more(&home, &events(2..=2))?;
    expect_effects(&home, &lines)?;
    ensure!(row(&home)?["status"] == "completed" && row(&home)?["ahead"] == Value::Null);
    Ok(())
}

/// A key lacks no event. Then a single event arrives far ahead of the key's last event, and so shows that events are
/// missing.
#[test]
fn first_event_far_ahead_makes_a_gap() -> Result<()> {
    let home = home(NARROW_GAP_SETTING)?;
    let mut lines = events(1..=10);
    lines.push(event(500));
    run_first(&home, &lines)?;
    let words = why(&home)?;
    ensure!(words.starts_with("key k: parked at event 11\n"), "{words}");
    ensure!(words.contains("events 11 to 499 never arrived"), "{words}");
    ensure!(words.contains("settled: event 500, in a dead letter"), "{words}");
    run_more(&home, &events(11..=499))?;
    expect_effects(&home, &events(1..=500))?;
    ensure!(letters(&home)?.is_empty());
    Ok(())
}

/// A running process skips event 2. Later the producer leaves out more sequences than `gap.max_width`, and the process
/// skips these sequences too. But if the producer leaves out more than 100 times `gap.max_width`, the key is parked, so
/// that one wrong sequence does not make all valid events late.
#[test]
fn skipping_key_reaches_events_far_ahead() -> Result<()> {
    let home = home(SKIPPING_GAP_SETTING)?;
    let lines = first_and(3..=300);
    home.write("events.ndjson", text(&lines))?;
    let mut service = Service::start(&home, &["run"])?;
    let address = admin(&mut service)?;
    let mut expected = lines;
    let mut add = |service: &mut Service, more: Vec<String>| -> Result<()> {
        expected.extend(more.iter().cloned());
        home.append("events.ndjson", text(&more))?;
        let all = expected.len();
        service.until("all effects", || home.lines("out.ndjson") == all)
    };
    add(&mut service, Vec::new())?;
    add(&mut service, events(301..=600))?;
    add(&mut service, events(3_000..=3_200))?;
    home.append("events.ndjson", text(&events(1_000_000..=1_000_000)))?;
    service
        .until("a parked key", || matches!(metric(address, "ordain_parked_keys"), Ok(Some(1))))?;
    expect_effects(&home, &expected)?;
    service.end()?;
    let words = why(&home)?;
    ensure!(words.contains("more than 100 times `gap.max_width`"), "{words}");
    Ok(())
}

fn only_letter_of(home: &Home, sequence: u64) -> Result<Value> {
    let mut letters = letters(home)?;
    letters.retain(|letter| letter["sequence"] == sequence);
    ensure!(letters.len() == 1, "{sequence}: {letters:?}");
    letters.pop().context("a letter")
}

fn only_letter(home: &Home, cause: &str) -> Result<Value> {
    let mut letters = letters(home)?;
    letters.retain(|letter| letter["cause"] == cause);
    ensure!(letters.len() == 1, "{cause}: {letters:?}");
    letters.pop().context("a letter")
}

/// The producer jumps by 20 million numbers, and `gap.max_width` permits the jump. The event takes effect, and one dead
/// letter stands for all skipped numbers, also after a restart. An event of the skipped range that arrives late gets a
/// dead letter of its own. `store` contains the section `[store]` of the configuration.
fn expect_one_letter_of_a_wide_skip(store: &str) -> Result<()> {
    let gap = "gap = { timeout = \"20ms\", attempts = 2, backoff = \"1ms..1ms\", \
               max_width = 1000000000, on_exhausted = \"skip\" }";
    let config = format!(
        "[streams.cases]\nhandler = \"tally\"\nsource = {{ kind = \"http\" }}\n{gap}\n\
         dead_letter = \"graveyard\"\n[ingress]\nlisten = \"127.0.0.1:0\"\n\
         [sinks.tally]\nkind = \"file\"\npath = \"-\"\n\
         [sinks.graveyard]\nkind = \"file\"\npath = \"-\"\n{store}"
    );
    let home = Home::new(&["tally"], &config)?;
    let send = |service: &mut Service, sequence: u64| -> Result<()> {
        let answer = post(ingress(service)?, LINES_TYPE, &text(&[event(sequence)]))?;
        ensure!(answer.status == 202, "{answer:?}");
        Ok(())
    };
    let is_letter = |line: &&str| line.contains("\"deadcause\":");
    let mut service = Service::start(&home, &["run"])?;
    send(&mut service, 1)?;
    send(&mut service, 20_000_001)?;
    service.until("both effects and the letter", || home.lines("stdout") == 3)?;
    service.end()?;
    let mut output = home.read("stdout");
    let forwarded = output.lines().find(is_letter).context("a forwarded letter")?;
    let forwarded: Value = serde_json::from_str(forwarded)?;
    ensure!(forwarded["deadsequence"] == "2", "{forwarded}");
    ensure!(forwarded["deadlastsequence"] == "20000000", "{forwarded}");
    let range = only_letter(&home, "gap")?;
    ensure!(range["sequence"] == 2 && range["last_sequence"] == 20_000_000, "{range}");
    let list = home.printed(&["dead", "list", "cases"])?;
    ensure!(list.contains("events 2 to 20000000 never arrived"), "{list}");
    let id = range["id"].as_str().context("an id")?;
    let shown = home.printed(&["dead", "show", "cases", id, "--key", "k"])?;
    ensure!(shown.contains("\"last_sequence\": 20000000"), "{shown}");

    let mut service = Service::start(&home, &["run"])?;
    send(&mut service, 777)?;
    send(&mut service, 20_000_002)?;
    service.until("the effect and the letter of the late event", || home.lines("stdout") == 2)?;
    service.end()?;
    ensure!(only_letter(&home, "late")?["sequence"] == 777);
    ensure!(only_letter(&home, "gap")?["last_sequence"] == 20_000_000, "the range must stay");
    output += &home.read("stdout");
    let effects: Vec<&str> = output.lines().filter(|line| !is_letter(line)).collect();
    let events = [1, 20_000_001, 20_000_002].map(event);
    tally::check(&by_key(&events)?, &effects.join("\n"))
}

#[test]
fn wide_skip_writes_one_letter() -> Result<()> {
    expect_one_letter_of_a_wide_skip("")
}

#[test]
fn wide_skip_writes_one_letter_over_redis() -> Result<()> {
    let redis = Redis::start(&[])?;
    expect_one_letter_of_a_wide_skip(&redis_store(&redis))
}

/// All events are in the file at the start. At the end of the file, the host skips missing events immediately. But the
/// host must not skip an event that has arrived too far ahead and whose dead letter is not durable yet.
#[test]
fn skipping_run_once_reaches_events_far_ahead() -> Result<()> {
    for lines in [vec![500, 6_000], vec![6_000, 500, 500], vec![700, 500, 12_000, 6_000]] {
        let home = home(SKIPPING_GAP_SETTING)?;
        let mut sequences = vec![1, 2, 3];
        sequences.extend(&lines);
        let all: Vec<String> = sequences.iter().copied().map(event).collect();
        run_first(&home, &all)?;
        let words = format!("{lines:?}");
        expect_effects(&home, &all).context(words)?;
    }
    Ok(())
}

/// The key holds at most ten events. In the first home, the file lacks event 2; in the second home, event 2 is the last
/// line. The test repeats the runs, because the moments at which the dead letters become durable differ.
#[test]
fn run_once_skips_no_event_that_a_full_key_rejected() -> Result<()> {
    let full = "spill_limit = 10\noverflow = \"dead-letter\"";
    for _ in 0..20 {
        let skips =
            home(&format!("{full}\ngap = {{ timeout = \"20ms\", on_exhausted = \"skip\" }}"))?;
        run_first(&skips, &first_and(3..=200))?;
        expect_effects(&skips, &first_and(3..=200))?;

        let parks = home(full)?;
        let mut lines = first_and(3..=200);
        lines.push(event(2));
        run_first(&parks, &lines)?;
        expect_effects(&parks, &lines)?;
    }
    Ok(())
}

/// A key is parked at a wide gap. When an event arrives that makes the gap narrow enough, the key must continue, even
/// if other events of the key are still too far ahead.
#[test]
fn nearer_event_lets_a_skipping_key_continue() -> Result<()> {
    let home = home(SKIPPING_GAP_SETTING)?;
    let mut sequences = vec![1, 2, 3, 500, 20_000];
    run_first(&home, &sequences.iter().copied().map(event).collect::<Vec<_>>())?;
    let words = why(&home)?;
    ensure!(words.contains("events 501 to 19999 never arrived"), "{words}");
    ensure!(words.contains("more than 100 times `gap.max_width`"), "{words}");
    // The key skips at most 10,000 missing events (100 times `max_width`). From the missing event 501, event 10,400 is
    // within this limit, and event 20,000 is not. From event 10,401, event 20,000 is within the limit too.
    sequences.push(10_400);
    run_more(&home, &[event(10_400)])?;
    expect_effects(&home, &sequences.into_iter().map(event).collect::<Vec<_>>())
}

/// If a key holds the maximum number of events, Ordain writes each new event of the key into a dead letter. When the
/// key holds fewer events, Ordain takes these events out of the dead letters.
#[test]
fn events_of_a_full_key_take_effect_after_the_gap() -> Result<()> {
    let home = home("gap = { timeout = \"20ms\" }\nspill_limit = 10\noverflow = \"dead-letter\"")?;
    let report = run_first(&home, &first_and(3..=200))?;
    ensure!(report["dead"]["overflow"].as_u64() > Some(100), "{report}");
    ensure!(why(&home)?.contains("settled: events in the range from "));
    run_more(&home, &events(2..=2))?;
    expect_effects(&home, &events(1..=200))?;
    ensure!(letters(&home)?.is_empty());
    Ok(())
}

/// The stream has the default settings. A producer that sends events over HTTP sends one event of the key long after
/// the later events of the key.
#[test]
fn events_far_ahead_over_http_take_effect() -> Result<()> {
    let config = format!(
        "[ingress]\nlisten = \"127.0.0.1:0\"\n[streams.cases]\nhandler = \"tally\"\n\
         source = {{ kind = \"http\" }}\n{SINK}"
    );
    let home = Home::new(&["tally"], &config)?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ingress(&mut service)?;
    let send = |lines: &[String]| -> Result<()> {
        for part in lines.chunks(1_000) {
            let answer = post(address, LINES_TYPE, &text(part))?;
            ensure!(answer.status == 202, "{answer:?}");
        }
        Ok(())
    };
    send(&first_and(3..=25_000))?;
    send(&events(2..=2))?;
    send(&events(25_001..=30_000))?;
    service.until("all effects", || home.lines("out.ndjson") == 30_000)?;
    service.end()?;
    expect_effects(&home, &events(1..=30_000))?;
    ensure!(letters(&home)?.is_empty());
    Ok(())
}

/// A line that is no valid event, but names a key and a sequence, makes a gap in the key. `keys why` explains the gap
/// with this line.
#[test]
fn unreadable_event_explains_its_gap() -> Result<()> {
    let home = home("gap = { timeout = \"20ms\" }")?;
    let mut unreadable: BTreeMap<String, Value> = serde_json::from_str(&event(2))?;
    unreadable.insert("time".into(), "yesterday".into());
    let lines = [event(1), serde_json::to_string(&unreadable)?, event(3)];
    run_first(&home, &lines)?;
    let words = why(&home)?;
    ensure!(words.starts_with("key k: parked at event 2\n"), "{words}");
    let (_, rest) =
        words.split_once("event 2 arrived, but cannot be read: ").context(words.clone())?;
    let (_, rest) = rest.split_once("see `ordain ").context(words.clone())?;
    let (command, _) = rest.split_once('`').context(words.clone())?;
    let output = home.output(&command.split(' ').collect::<Vec<_>>())?;
    ensure!(String::from_utf8(output.stdout)?.contains("yesterday"), "{command}");
    Ok(())
}
