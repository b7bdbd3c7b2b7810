//! Tests of a file of events that a program truncates or rewrites while the host reads the file, or between two runs.
//! No event may be lost or mixed with another event, and the host must not end.

use std::fs::File;
use std::io::Write as _;
use std::time::Duration;

use anyhow::{Result, ensure};
use ordain_tests::host::Home;
use ordain_tests::log::{by_key, in_turn, line, text};
use ordain_tests::service::Service;
use ordain_tests::tally;
use serde_json::json;

/// The time after which the source has read the file again. This time is longer than the source's polling interval.
const REREAD_DELAY: Duration = Duration::from_millis(500);

/// Runs the host with a file that contains the lines `before`, and then calls `change`, which changes the file. The
/// host must log the words `reason`, and execute the new lines `after`.
fn expect_change_read(
    before: &[String],
    reason: &str,
    after: &[String],
    change: impl FnOnce(&Home) -> Result<()>,
) -> Result<()> {
    let home = Home::new(&["tally"], tally::CONFIG)?;
    home.write("events.ndjson", text(before))?;
    let mut service = Service::start(&home, &["run"])?;
    service
        .until("the messages of the first lines", || home.lines("out.ndjson") == before.len())?;
    change(&home)?;
    let all: Vec<String> = before.iter().chain(after).cloned().collect();
    service.until("the messages of the new lines", || home.lines("out.ndjson") == all.len())?;
    service.end()?;
    let log = service.stderr();
    ensure!(log.contains(reason), "{log}");
    let report = home.run_once()?;
    ensure!(report["settled"] == 0 && report["dead_total"] == 0, "{report}");
    tally::check(&by_key(&all)?, &home.read("out.ndjson"))
}

/// A part of the log line about a changed file, which the host reads from its beginning.
const CHANGED_FILE_WORDS: &str = "no longer begins with the lines that Ordain had read";

#[test]
fn truncated_file_is_read_from_its_beginning() -> Result<()> {
    let lines = in_turn(10, 30);
    expect_change_read(&lines[..200], CHANGED_FILE_WORDS, &lines[200..], |home| {
        home.write("events.ndjson", text(&lines[200..]))
    })
}

#[test]
fn file_rewritten_longer_is_read_from_its_beginning() -> Result<()> {
    let lines = in_turn(10, 30);
    expect_change_read(&lines[..50], CHANGED_FILE_WORDS, &lines[50..], |home| {
        home.write("events.ndjson", text(&lines[50..]))
    })
}

#[test]
fn file_truncated_and_longer_at_the_next_poll_is_read_from_its_beginning() -> Result<()> {
    // All lines have the same length, so the host can detect the change only by the content of the first line.
    let lines: Vec<String> = (10..60).map(|n| line(&format!("k{n}"), 1, &json!(n))).collect();
    expect_change_read(&lines[..1], CHANGED_FILE_WORDS, &lines[1..], |home| {
        let mut file = File::options().write(true).open(home.path("events.ndjson"))?;
        file.set_len(0)?;
        Ok(file.write_all(text(&lines[1..]).as_bytes())?)
    })
}

#[test]
fn removed_half_line_is_not_joined_to_the_next_line() -> Result<()> {
    let lines = in_turn(1, 30);
    expect_change_read(&lines[..20], "", &lines[20..], |home| {
        let whole = text(&lines[..20]).len() as u64;
        home.append("events.ndjson", &line("half", 1, &json!({}))[..60])?;
        std::thread::sleep(REREAD_DELAY);
        File::options().write(true).open(home.path("events.ndjson"))?.set_len(whole)?;
        home.append("events.ndjson", text(&lines[20..]))
    })
}

/// Events that the host has read wait for a missing event. The file is rewritten and no longer contains these events.
/// The host must keep them.
#[test]
fn waiting_events_of_a_truncated_file_are_kept() -> Result<()> {
    let lines = in_turn(1, 10);
    let config =
        tally::CONFIG.replace("[sinks", "gap = { timeout = \"1h\" }\nspill_after = \"1s\"\n[sinks");
    let home = Home::new(&["tally"], &config)?;
    home.write("events.ndjson", text(&[&lines[..4], &lines[5..]].concat()))?;
    let mut service = Service::start(&home, &["run"])?;
    service.until("the messages of the first lines", || home.lines("out.ndjson") == 4)?;
    home.write("events.ndjson", text(&lines[4..5]))?;
    service.until("the messages of all lines", || home.lines("out.ndjson") == 10)?;
    service.end()?;
    tally::check(&by_key(&lines)?, &home.read("out.ndjson"))
}

#[test]
fn file_rewritten_between_runs_is_read_from_its_beginning() -> Result<()> {
    let lines = in_turn(10, 30);
    let home = Home::new(&["tally"], tally::CONFIG)?;
    home.write("events.ndjson", text(&lines[..100]))?;
    home.run_once()?;
    home.write("events.ndjson", text(&lines[100..]))?;
    assert_eq!(home.run_once()?["settled"], 200);
    tally::check(&by_key(&lines)?, &home.read("out.ndjson"))
}

#[test]
fn incomplete_last_line_is_left_for_the_next_run() -> Result<()> {
    let lines = in_turn(1, 4);
    let home = Home::new(&["tally"], tally::CONFIG)?;
    let (half, rest) = lines[1].split_at(40);
    home.write("events.ndjson", format!("{}\n{half}", lines[0]))?;
    let output = home.output(&["run", "--once"])?;
    let log = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && log.contains("the next run reads it again"), "{log}");
    assert_eq!(home.lines("out.ndjson"), 1);

    // At the end of the file, a run with `--once` executes a complete event even without a line ending. A line ending
    // that is appended later must not make this event a second event.
    home.append("events.ndjson", format!("{rest}\n{}", lines[2]))?;
    let report = home.run_once()?;
    assert_eq!((&report["settled"], &report["dead_total"]), (&2.into(), &0.into()));
    home.append("events.ndjson", format!("\n{}\n", lines[3]))?;
    let report = home.run_once()?;
    assert_eq!((&report["delivered"], &report["settled"]), (&1.into(), &1.into()));
    tally::check(&by_key(&lines)?, &home.read("out.ndjson"))
}
