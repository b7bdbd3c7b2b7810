//! A file of events that does not only grow: nothing of it is lost or put together wrongly, and
//! whoever did that is told what to do.

use std::fs::File;
use std::io::Write as _;
use std::time::Duration;

use anyhow::{Result, ensure};
use ordain_tests::host::Home;
use ordain_tests::log::{by_key, in_turn, line, text};
use ordain_tests::service::Service;
use ordain_tests::tally;
use serde_json::json;

/// Longer than the source waits between two looks.
const LOOKED: Duration = Duration::from_millis(500);

/// The followed file is `before`, then `change` is done to it: the service ends and says how the
/// file was changed, and the next start takes what is new.
fn followed(
    before: &[String],
    told: &str,
    after: &[String],
    change: impl FnOnce(&Home) -> Result<()>,
) -> Result<()> {
    let home = Home::new(&["tally"], tally::CONFIG)?;
    home.write("events.ndjson", text(before))?;
    let mut service = Service::start(&home, &["run"])?;
    service.until("what is there", || home.lines("out.ndjson") == before.len())?;
    change(&home)?;
    let status = service.wait()?;
    let log = service.stderr();
    ensure!(status.code() == Some(1), "{status}: {log}");
    ensure!(log.contains(&format!("the source failed: events.ndjson {told}")), "{log}");
    ensure!(log.contains("Start again"), "{log}");
    let report = home.run_once()?;
    ensure!(home.lines("out.ndjson") == before.len() + after.len(), "{report}");
    ensure!(report["dead_total"] == 0, "{report}");
    let all: Vec<String> = before.iter().chain(after).cloned().collect();
    tally::check(&by_key(&all)?, &home.read("out.ndjson"))
}

#[test]
fn cut() -> Result<()> {
    let lines = in_turn(10, 30);
    followed(&lines[..200], "was truncated to", &lines[200..], |home| {
        home.write("events.ndjson", text(&lines[200..]))
    })
}

#[test]
fn written_anew_and_longer() -> Result<()> {
    let lines = in_turn(10, 30);
    followed(&lines[..50], "was changed within", &lines[50..], |home| {
        home.write("events.ndjson", text(&lines[50..]))
    })
}

#[test]
fn cut_and_longer_before_the_next_look() -> Result<()> {
    // Of the same length, so that the first line is known only by its content.
    let lines: Vec<String> = (10..60).map(|n| line(&format!("k{n}"), 1, &json!(n))).collect();
    followed(&lines[..1], "was changed within", &lines[1..], |home| {
        let mut file = File::options().write(true).open(home.path("events.ndjson"))?;
        file.set_len(0)?;
        Ok(file.write_all(text(&lines[1..]).as_bytes())?)
    })
}

#[test]
fn a_half_line_is_taken_back() -> Result<()> {
    let lines = in_turn(1, 30);
    let told = "was c";
    followed(&lines[..20], told, &lines[20..], |home| {
        let whole = text(&lines[..20]).len() as u64;
        home.append("events.ndjson", &line("half", 1, &json!({}))[..60])?;
        std::thread::sleep(LOOKED);
        File::options().write(true).open(home.path("events.ndjson"))?.set_len(whole)?;
        home.append("events.ndjson", text(&lines[20..]))
    })
}

/// As those who rotate logs do: what is written to the old one until then is taken.
#[test]
fn another_file_in_its_place() -> Result<()> {
    let lines = in_turn(5, 10);
    followed(&lines[..20], "has been replaced by another file", &lines[20..], |home| {
        let (path, old) = (home.path("events.ndjson"), home.path("events.1"));
        std::fs::rename(&path, &old)?;
        std::thread::sleep(LOOKED);
        // The last one has no end.
        home.append("events.1", lines[20..30].join("\n"))?;
        home.write("events.ndjson", text(&lines[30..]))
    })
}

/// What a failing source delivered is taken before the end: the file has it no longer.
#[test]
fn what_waits_is_kept() -> Result<()> {
    let lines = in_turn(1, 10);
    let config =
        tally::CONFIG.replace("[sinks", "gap = { timeout = \"1h\" }\nspill_after = \"1s\"\n[sinks");
    let home = Home::new(&["tally"], &config)?;
    home.write("events.ndjson", text(&[&lines[..4], &lines[5..]].concat()))?;
    let mut service = Service::start(&home, &["run"])?;
    service.until("what is there", || home.lines("out.ndjson") == 4)?;
    home.write("events.ndjson", "")?;
    ensure!(service.wait()?.code() == Some(1), "{}", service.stderr());
    home.write("events.ndjson", text(&lines[4..5]))?;
    ensure!(home.run_once()?["settled"] == 6, "the events after the missing one were lost");
    tally::check(&by_key(&lines)?, &home.read("out.ndjson"))
}

/// Nobody looks while the file is written anew between two runs.
#[test]
fn between_two_runs() -> Result<()> {
    let lines = in_turn(10, 30);
    let home = Home::new(&["tally"], tally::CONFIG)?;
    home.write("events.ndjson", text(&lines[..100]))?;
    home.run_once()?;
    home.write("events.ndjson", text(&lines[100..]))?;
    assert_eq!(home.run_once()?["settled"], 200);
    tally::check(&by_key(&lines)?, &home.read("out.ndjson"))
}

#[test]
fn a_half_written_last_line_is_for_the_next_run() -> Result<()> {
    let lines = in_turn(1, 4);
    let home = Home::new(&["tally"], tally::CONFIG)?;
    let (half, rest) = lines[1].split_at(40);
    home.write("events.ndjson", format!("{}\n{half}", lines[0]))?;
    let output = home.output(&["run", "--once"])?;
    let log = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && log.contains("the next run reads it again"), "{log}");
    assert_eq!(home.lines("out.ndjson"), 1);

    // A whole one is taken, ended or not, and its end makes no other of it.
    home.append("events.ndjson", format!("{rest}\n{}", lines[2]))?;
    let report = home.run_once()?;
    assert_eq!((&report["settled"], &report["dead_total"]), (&2.into(), &0.into()));
    home.append("events.ndjson", format!("\n{}\n", lines[3]))?;
    let report = home.run_once()?;
    assert_eq!((&report["delivered"], &report["settled"]), (&1.into(), &1.into()));
    tally::check(&by_key(&lines)?, &home.read("out.ndjson"))
}
