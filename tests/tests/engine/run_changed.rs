//! Tests of a configuration that changes while the store has data. The host must reject a change if events could take
//! effect twice, or if messages would never be published.

use std::fs::File;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use ordain_tests::host::Home;
use ordain_tests::log::{by_key, in_turn};
use ordain_tests::service::{FILE_LIMIT, Service};
use ordain_tests::tally;

const CONFIG: &str = r#"
[runtime]
shutdown_grace = "1h"

[streams.cases]
handler = "tally"
source = { kind = "file", path = "events.ndjson" }
ordering = "sequenced"
first = 1

[sinks.tally]
kind = "file"
path = "out.ndjson"
"#;

fn home(events: &[String]) -> Result<Home> {
    let home = Home::new(&["tally"], CONFIG)?;
    home.write("events.ndjson", events.join("\n") + "\n")?;
    Ok(home)
}

/// Checks that a start with `config` fails with the exit code `code`, and that the log contains all of `words`.
fn refused(home: &Home, config: &str, code: i32, words: &[&str]) -> Result<()> {
    home.write("ordain.toml", config)?;
    let output = home.output(&["--log", "warn", "run", "--once"])?;
    let log = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(code), "{}: {log}", output.status);
    for word in words {
        ensure!(log.contains(word), "without {word:?}: {log}");
    }
    Ok(())
}

#[test]
fn changed_numbering_is_refused() -> Result<()> {
    let home = home(&in_turn(3, 3))?;
    let zero = CONFIG.replace("first = 1", "first = 0");
    let fifo = CONFIG.replace("sequenced", "fifo").replace("first = 1\n", "");
    // The store has no events yet, so every change is allowed.
    home.write("events.ndjson", "")?;
    for config in [&zero, &fifo, CONFIG] {
        home.write("ordain.toml", config)?;
        home.run_once()?;
    }
    home.write("events.ndjson", in_turn(3, 3).join("\n"))?;
    assert_eq!(home.run_once()?["settled"], 9);
    let back = "restore the value, give the stream another name, or give the store another folder";
    let first = ["ordain.toml:9: streams.cases.first:", "written with first = 1;", back];
    refused(&home, &zero, 78, &first)?;
    let ordering =
        ["ordain.toml:8: streams.cases.ordering:", "written with ordering = \"sequenced\";", back];
    refused(&home, &fifo, 78, &ordering)?;
    assert_eq!(home.lines("out.ndjson"), 9);
    // A stream with another name has its own numbers, so its settings may differ.
    home.write("ordain.toml", fifo.replace("streams.cases", "streams.others"))?;
    assert_eq!(home.run_once()?["settled"], 9);
    home.write("ordain.toml", CONFIG)?;
    assert_eq!(home.run_once()?["delivered"], 0);
    Ok(())
}

/// Returns a home whose events are committed but not published: the file of the sink has reached the size limit, so it
/// accepts no message.
fn unpublished(events: &[String]) -> Result<Home> {
    let home = home(events)?;
    File::create(home.path("out.ndjson"))?.set_len(FILE_LIMIT)?;
    let mut service = Service::start_limited(&home, &["run"])?;
    until_sink_failure_reported(&home, &mut service)?;
    let log = service.stderr();
    ensure!(log.contains("out.ndjson") && log.contains("free disk space"), "{log}");
    service.kill()?;
    Ok(home)
}

/// Waits until the host reports that it cannot write to the sink.
fn until_sink_failure_reported(home: &Home, service: &mut Service) -> Result<()> {
    let words = "sink not writable";
    service.until(words, || home.read("stderr").contains(words))
}

#[test]
fn start_that_cannot_publish_ends_on_a_signal() -> Result<()> {
    let events = in_turn(1, 5);
    let home = unpublished(&events)?;
    for signal in ["TERM", "INT"] {
        let mut service = Service::start_limited(&home, &["run"])?;
        until_sink_failure_reported(&home, &mut service)?;
        service.signal(signal)?;
        let asked = Instant::now();
        let status = service.wait()?;
        ensure!(status.success(), "{status}: {}", service.stderr());
        ensure!(asked.elapsed() < Duration::from_secs(10), "after {:?}", asked.elapsed());
        let log = service.stderr();
        ensure!(log.contains("committed messages left unpublished"), "{log}");
    }
    published(&home, &events)
}

#[test]
fn removed_stream_with_messages_is_refused() -> Result<()> {
    let events = in_turn(1, 5);
    let home = unpublished(&events)?;
    home.write("none.ndjson", "")?;
    let renamed = CONFIG.replace("streams.cases", "streams.others");
    for config in [&renamed, &renamed.replace("events.ndjson", "none.ndjson")] {
        let words = [
            "messages of stream \"cases\"",
            "add the stream again, at least until they are published",
        ];
        refused(&home, config, 1, &words)?;
    }
    home.write("ordain.toml", CONFIG)?;
    published(&home, &events)?;
    home.write("ordain.toml", renamed.replace("events.ndjson", "none.ndjson"))?;
    home.run_once()?;
    Ok(())
}

/// Checks that all messages are published when there is space again.
fn published(home: &Home, events: &[String]) -> Result<()> {
    // Removes the file, because it is as long as the limit.
    std::fs::remove_file(home.path("out.ndjson"))?;
    home.run_once()?;
    tally::check(&by_key(events)?, &home.read("out.ndjson"))
}
