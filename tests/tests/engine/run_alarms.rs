//! Tests of a process's warnings about parked keys and dead letters, and of the summary at its end. The number of
//! warnings is limited, even if many events fail.

use anyhow::{Context as _, Result, ensure};
use ordain_tests::faulty;
use ordain_tests::host::Home;
use ordain_tests::log::{line, text};
use ordain_tests::plugins::plugin;
use ordain_tests::printed::run_all;
use ordain_tests::service::Service;
use serde_json::json;

#[test]
fn each_failure_and_the_end_of_the_run_are_logged() -> Result<()> {
    let home = Home::new(&["faulty"], faulty::CONFIG)?;
    let events = [
        line("a key", 1, &json!({ "do": "trap" })),
        line("a key", 2, &json!({ "do": "emit" })),
        line("refused", 1, &json!({ "do": "reject", "reason": "not\r\u{202e}this" })),
        "no JSON".to_owned(),
        line("fine", 1, &json!({ "do": "emit" })),
    ];
    home.write("events.ndjson", events.join("\n") + "\n")?;
    let mut service = Service::start(&home, &["run"])?;
    service.until_says("processing partitions: no process has owned them before")?;
    service.until_says("ready: stream cases receives events from file ")?;
    service.until("a message", || home.lines("out.ndjson") == 1)?;
    let count_lines =
        |word: &str| home.read("stderr").lines().filter(|line| line.contains(word)).count();
    service.until("all three warnings", || count_lines("WARN") == 3)?;
    ensure!(count_lines("see `ordain keys why cases 'a key'`") == 1, "{}", service.stderr());
    ensure!(count_lines("event=1 cause=\"trap\" error=trap: ") == 1, "{}", service.stderr());
    ensure!(count_lines("cause=\"rejected\" error=not\\r\\u202ethis") == 1, "{}", service.stderr());
    ensure!(count_lines("cause=\"unreadable\"") == 1, "{}", service.stderr());
    service.end()?;
    let end = home.read("stderr").lines().last().unwrap_or_default().to_owned();
    for word in ["ended", "delivered=5", "settled=1", "dead=2", "messages=1"] {
        ensure!(end.contains(word), "{word} is not in {end}");
    }

    // The next run does not report the same failures again.
    let output = home.output(&["run", "--once"])?;
    let log = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && !log.contains("WARN"), "{log}");
    Ok(())
}

/// The test changes a line of the file, so the next run reads the file from its beginning. The invalid line already has
/// a dead letter, so this run must not report a new dead letter.
#[test]
fn repeated_invalid_line_is_reported_once() -> Result<()> {
    let home = Home::new(&["faulty"], faulty::CONFIG)?;
    let run_with_last = |key: &str| -> Result<String> {
        let event = |key: &str| line(key, 1, &json!({ "do": "emit" }));
        let lines = [event("first"), "no JSON".to_owned(), event(key)];
        home.write("events.ndjson", lines.join("\n") + "\n")?;
        let output = home.output(&["run", "--once"])?;
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{log}");
        Ok(log)
    };
    let log = run_with_last("one")?;
    ensure!(log.matches("new dead letter").count() == 1, "{log}");
    let log = run_with_last("two")?;
    ensure!(log.contains("reading the file at this path from its beginning"), "{log}");
    ensure!(!log.contains("new dead letter"), "{log}");
    ensure!(home.lines("out.ndjson") == 3, "{}", home.read("out.ndjson"));
    Ok(())
}

/// The summary of the lines that the host did not log must contain commands that list the keys and dead letters of the
/// stream.
#[test]
fn many_failures_are_summarized() -> Result<()> {
    let home = Home::new(&["faulty"], faulty::CONFIG)?;
    let event = |key: usize| line(&format!("k{key}"), 1, &json!({ "do": "trap" }));
    let refused = line("refused", 1, &json!({ "do": "reject" }));
    let lines: Vec<String> = (0..100).map(event).chain([refused]).collect();
    home.write("events.ndjson", text(&lines))?;
    let output = home.output(&["run", "--once", "--json"])?;
    let log = String::from_utf8_lossy(&output.stderr);
    let logged = log.matches("key parked: ").count() + log.matches("new dead letter: ").count();
    ensure!(logged == 20, "{log}");
    let summary = "81 more lines about keys and dead letters were not logged: ";
    let summary =
        log.lines().find(|line| line.contains(summary)).with_context(|| log.to_string())?;
    ensure!(summary.contains("stream=\"cases\""), "{summary}");
    let outputs = run_all(&home, summary)?;
    for (command, right, count) in [
        ("ordain keys list cases --status parked", "\nk", 100),
        ("ordain keys list cases --status waiting", "\nk", 0),
        ("ordain dead list cases", "\nrefused ", 1),
    ] {
        let shown = outputs.iter().find(|(printed, _)| printed == command);
        let (_, shown) = shown.with_context(|| format!("{command} is not in {summary}"))?;
        ensure!(shown.matches(right).count() == count, "{command}: {shown}");
    }
    ensure!(outputs.len() == 3, "{outputs:?}");
    Ok(())
}

/// Another version of the handler accepts the event at which the key is parked. The run must log that it has retried
/// the key.
#[test]
fn retried_key_is_reported() -> Result<()> {
    let home = Home::new(&["faulty"], &faulty::CONFIG.replace("[sinks.faulty]", "[sinks.tally]"))?;
    home.write("events.ndjson", line("a key", 1, &json!({ "do": "trap" })) + "\n")?;
    let run = || -> Result<String> {
        let output = home.output(&["--log", "info", "run", "--once"])?;
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{log}");
        Ok(log)
    };
    let log = run()?;
    ensure!(log.contains("key parked: ") && !log.contains("retried parked keys"), "{log}");
    std::fs::copy(plugin("tally")?, home.path("plugins/faulty@1.0.0.wasm"))?;
    let log = run()?;
    let reported = log.lines().find(|line| line.contains("retried parked keys: "));
    let reported = reported.unwrap_or_default();
    ensure!(reported.contains("version=\"faulty@1.0.0\" keys=1"), "{log}");
    ensure!(home.lines("out.ndjson") == 1, "{}", home.read("out.ndjson"));
    Ok(())
}

/// A key stops at a missing event: the key is parked, or waits without a time limit. When the event arrives, the host
/// must log that the key continues.
#[test]
fn key_that_continues_after_a_gap_is_reported() -> Result<()> {
    for (on_exhausted, stopped) in
        [("park", "key parked: "), ("wait", "missing events not received: ")]
    {
        let gap = format!(
            "handler = \"faulty\"\n\
             gap = {{ timeout = \"1ms\", attempts = 1, on_exhausted = \"{on_exhausted}\" }}"
        );
        let home = Home::new(&["faulty"], &faulty::CONFIG.replace("handler = \"faulty\"", &gap))?;
        let event = |sequence| line("a key", sequence, &json!({ "do": "emit" })) + "\n";
        home.write("events.ndjson", event(2))?;
        let mut service = Service::start(&home, &["run"])?;
        service.until_says(stopped)?;
        home.append("events.ndjson", event(1))?;
        service.until("the messages", || home.lines("out.ndjson") == 2)?;
        let continues = "missing event received: the key continues";
        service.until_says(continues)?;
        let log = service.stderr();
        let reported = log.lines().find(|line| line.contains(continues)).unwrap_or_default();
        ensure!(reported.contains("key=a key event=1"), "{on_exhausted}: {log}");
        service.end()?;
    }
    Ok(())
}
