//! Tests of runs that resume reading a file at the last checkpoint. Between the runs, the file grows or is replaced. In
//! one test, two streams read the same file.

use anyhow::{Result, ensure};
use ordain_tests::host::Home;
use ordain_tests::log::{by_key, in_turn, text};
use ordain_tests::service::Service;
use ordain_tests::tally;
use serde_json::Value;

/// Ends a service that prints its report in JSON. Returns the report.
fn end(mut service: Service) -> Result<Value> {
    service.end()?;
    Ok(serde_json::from_str(&service.stdout())?)
}

#[test]
fn growing_file_is_followed() -> Result<()> {
    let lines = in_turn(10, 30);
    let home = Home::new(&["tally"], tally::CONFIG)?;
    home.write("events.ndjson", text(&lines[..100]))?;
    let mut service = Service::start(&home, &["run", "--json"])?;
    service.until("the first 100 messages", || home.lines("out.ndjson") == 100)?;
    home.append("events.ndjson", text(&lines[100..200]))?;
    service.until("the appended events", || home.lines("out.ndjson") == 200)?;
    // While the host follows a file, it reads a line only after the line ending has been written.
    let (start, rest) = lines[200].split_at(40);
    home.append("events.ndjson", start)?;
    std::thread::sleep(std::time::Duration::from_millis(300));
    home.append("events.ndjson", format!("{rest}\n{}", lines[201]))?;
    service.until("the line that has ended", || home.lines("out.ndjson") == 201)?;
    let report = end(service)?;
    assert_eq!((report["delivered"].as_u64(), report["dead_total"].as_u64()), (Some(201), Some(0)));

    // The next run begins with the incomplete line.
    home.append("events.ndjson", "\n".to_owned() + &text(&lines[202..]))?;
    let report = home.run_once()?;
    assert_eq!((report["delivered"].as_u64(), report["duplicates"].as_u64()), (Some(99), Some(0)));
    assert_eq!(home.run_once()?["delivered"], 0);
    tally::check(&by_key(&lines)?, &home.read("out.ndjson"))
}

#[test]
fn another_file_is_read_from_its_beginning() -> Result<()> {
    let lines = in_turn(10, 30);
    let home = Home::new(&["tally"], tally::CONFIG)?;
    home.write("events.ndjson", text(&lines[..200]))?;
    assert_eq!(home.run_once()?["delivered"], 200);
    // Replaces the file by a longer file that begins with other bytes. The host reads it from its beginning.
    home.replace("events.ndjson", "\n".to_owned() + &text(&lines[..220]))?;
    let report = home.run_once()?;
    assert_eq!((report["settled"].as_u64(), report["duplicates"].as_u64()), (Some(20), Some(200)));
    // Replaces the file by a copy with appended lines. The host reads only the new lines.
    home.replace("events.ndjson", "\n".to_owned() + &text(&lines[..250]))?;
    let report = home.run_once()?;
    assert_eq!((report["settled"].as_u64(), report["duplicates"].as_u64()), (Some(30), Some(0)));
    // Replaces the file by a shorter file with the last ten events and ten new events.
    home.replace("events.ndjson", text(&lines[240..260]))?;
    let report = home.run_once()?;
    assert_eq!((report["settled"].as_u64(), report["duplicates"].as_u64()), (Some(10), Some(10)));
    // Overwrites the file with new events only.
    home.write("events.ndjson", text(&lines[260..]))?;
    let report = home.run_once()?;
    assert_eq!((report["settled"].as_u64(), report["duplicates"].as_u64()), (Some(40), Some(0)));
    tally::check(&by_key(&lines)?, &home.read("out.ndjson"))
}

#[test]
fn run_after_a_kill_resumes_near_the_last_event() -> Result<()> {
    let lines = in_turn(10, 3_000);
    let home = Home::new(&["tally"], tally::CONFIG)?;
    home.write("events.ndjson", text(&lines[..29_000]))?;
    let mut service = Service::start(&home, &["run"])?;
    service.until("all messages", || home.lines("out.ndjson") == 29_000)?;
    // The test kills the host soon after its start. But the host has already written a checkpoint, because it writes a
    // checkpoint after a certain number of acknowledged events, even if little time has passed.
    service.kill()?;
    home.append("events.ndjson", text(&lines[29_000..]))?;
    let report = home.run_once()?;
    let delivered = report["delivered"].as_u64().unwrap_or_default();
    println!("{delivered} of {} events delivered after the kill", lines.len());
    ensure!((1_000..7_000).contains(&delivered), "{report}");
    assert_eq!(report["settled"], 1_000);
    tally::check(&by_key(&lines)?, &home.read("out.ndjson"))
}

#[test]
fn two_streams_read_one_file_independently() -> Result<()> {
    let lines = in_turn(5, 20);
    let home = Home::new(&["tally"], tally::CONFIG)?;
    home.write("events.ndjson", text(&lines))?;
    assert_eq!(home.run_once()?["delivered"], 100);
    let second = r#"
[streams.others]
handler = "tally"
source = { kind = "file", path = "events.ndjson" }
"#;
    home.write("ordain.toml", second.to_owned() + tally::CONFIG)?;
    let report = home.run_once()?;
    assert_eq!((report["settled"].as_u64(), report["duplicates"].as_u64()), (Some(100), Some(0)));
    let output = home.read("out.ndjson");
    let of = |stream: &str| -> String {
        let source = format!(r#""source":"/ordain/{stream}""#);
        output
            .lines()
            .filter(|line| line.contains(&source))
            .map(|line| line.to_owned() + "\n")
            .collect()
    };
    for stream in ["cases", "others"] {
        tally::check(&by_key(&lines)?, &of(stream))?;
    }
    Ok(())
}

/// The host writes checkpoints while it reads events. After a crash at any moment, the next run must read at most
/// `REPEATS_LIMIT` settled events again: the prefetch plus the number of events between two checkpoints.
#[test]
fn crash_repeats_few_events() -> Result<()> {
    const REPEATS_LIMIT: u64 = 4_000 + 1_024;
    let lines = in_turn(1_000, 200);
    let home = Home::new(&["tally"], tally::CONFIG)?;
    home.write("events.ndjson", text(&lines))?;
    let mut killed = 0;
    for step in 1..8 {
        let mut service = Service::start(&home, &["run", "--once", "--json"])?;
        let enough = step * 20_000 + step * 997;
        service.until("the messages before the kill", || home.lines("out.ndjson") >= enough)?;
        if service.is_running()? {
            service.kill()?;
            killed += 1;
        }
    }
    let report = home.run_once()?;
    let again = report["duplicates"].as_u64().unwrap_or(u64::MAX);
    println!(
        "killed {killed} times; the run after the last kill read {again} settled events again"
    );
    ensure!(killed > 0 && again <= REPEATS_LIMIT, "{report}");
    tally::check(&by_key(&lines)?, &home.read("out.ndjson"))
}
