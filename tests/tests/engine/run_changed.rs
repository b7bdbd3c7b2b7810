//! Tests of a configuration that changes while the store has data. The host must reject a change if events could take
//! effect twice, or if messages would never be published.

use std::fs::File;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ordain_tests::host::Home;
use ordain_tests::http::{admin, metric};
use ordain_tests::log::{by_key, in_turn, line};
use ordain_tests::service::{FILE_LIMIT, Service};
use ordain_tests::tally;
use serde_json::{Value, json};

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
        ensure!(log.contains(word), "the log lacks {word:?}: {log}");
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

/// Returns a home whose events are committed, but whose messages are not published. The host cannot append to the file
/// of the sink, because the file has reached the size limit.
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
        let address = admin(&mut service)?;
        let pending = metric(address, "ordain_outbox_pending")?;
        ensure!(pending.is_some_and(|pending| pending > 0), "{pending:?}: {}", service.stderr());
        service.signal(signal)?;
        let signaled_at = Instant::now();
        let status = service.wait()?;
        ensure!(status.success(), "{status}: {}", service.stderr());
        ensure!(
            signaled_at.elapsed() < Duration::from_secs(10),
            "after {:?}",
            signaled_at.elapsed()
        );
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
            "add the stream again, at least until the messages are published",
        ];
        refused(&home, config, 1, &words)?;
    }
    home.write("ordain.toml", CONFIG)?;
    published(&home, &events)?;
    home.write("ordain.toml", renamed.replace("events.ndjson", "none.ndjson"))?;
    home.run_once()?;
    Ok(())
}

/// A stream holds an event, and is then removed from the configuration. The other streams must run, and the commands
/// must still show the key. When the configuration has the stream again, the held event must take effect.
#[test]
fn removed_stream_keeps_its_held_event() -> Result<()> {
    let events = [2, 1].map(|sequence| line("k", sequence, &json!({ "n": sequence })));
    let home = home(&events[..1])?;
    let report = home.run_once()?;
    ensure!(report["held"]["parked_keys"] == 1, "{report}");
    let others = in_turn(1, 2);
    home.write("others.ndjson", others.join("\n") + "\n")?;
    let renamed = CONFIG.replace("streams.cases", "streams.others");
    home.write("ordain.toml", renamed.replace("events.ndjson", "others.ndjson"))?;
    ensure!(home.run_once()?["settled"] == 2);
    let keys = home.rows(&["keys", "list", "cases", "--json"])?;
    ensure!(keys.len() == 1 && keys[0]["key"] == "k", "{keys:?}");
    ensure!(keys[0]["status"] == "parked" && keys[0]["held"]["count"] == 1, "{keys:?}");
    let why = home.printed(&["keys", "why", "cases", "k"])?;
    ensure!(why.starts_with("key k: parked at event 1\n"), "{why}");

    home.write("ordain.toml", CONFIG)?;
    home.append("events.ndjson", events[1].clone() + "\n")?;
    ensure!(home.run_once()?["settled"] == 2);
    tally::check(&by_key(&[&others[..], &events[..]].concat())?, &home.read("out.ndjson"))
}

/// Between the runs, the sink begins and ends to number its messages, and its path becomes a link to the same file. The
/// file must have each message once.
#[test]
fn changed_sink_loses_and_repeats_nothing() -> Result<()> {
    let events = in_turn(3, 5);
    let home = home(&[])?;
    std::os::unix::fs::symlink("out.ndjson", home.path("link.ndjson"))?;
    let path = "path = \"out.ndjson\"";
    let numbered = CONFIG.replace(path, &format!("{path}\nsequenced = true"));
    let linked = CONFIG.replace("out.ndjson", "link.ndjson");
    let both = numbered.replace("out.ndjson", "link.ndjson");
    let configs = [CONFIG, &numbered, &linked, &both, CONFIG];
    for (config, part) in configs.into_iter().zip(events.chunks(3)) {
        home.write("ordain.toml", config)?;
        home.append("events.ndjson", part.join("\n") + "\n")?;
        let report = home.run_once()?;
        ensure!(report["settled"] == 3 && report["delivered"] == 3, "{config}: {report}");
    }
    tally::check(&by_key(&events)?, &home.read("out.ndjson"))
}

/// Checks that the host publishes all messages when it can write to the file of the sink again.
fn published(home: &Home, events: &[String]) -> Result<()> {
    // Removes the file, because it is as long as the limit.
    std::fs::remove_file(home.path("out.ndjson"))?;
    home.run_once()?;
    tally::check(&by_key(events)?, &home.read("out.ndjson"))
}

/// The host must recognise a file regardless of the working directory, of the spelling of the path, and of links in the
/// path. A run must resume where the previous run ended, and an invalid line must have one dead letter.
#[test]
fn spelling_of_paths_does_not_matter() -> Result<()> {
    let fifo = CONFIG.replace("sequenced", "fifo").replace("first = 1\n", "");
    let events = in_turn(2, 3);
    let home = home(&events)?;
    home.append("events.ndjson", "no event\n")?;
    home.write("ordain.toml", &fifo)?;
    let report = home.run_once()?;
    ensure!(report["settled"] == 6 && report["dead_total"] == 1, "{report}");
    let folder = home.path("");
    let link = tempfile::tempdir()?;
    std::os::unix::fs::symlink(&folder, link.path().join("link"))?;
    let runs = [
        (folder.clone(), "./ordain.toml".into()),
        (folder.parent().context("a parent")?.to_owned(), home.path("ordain.toml")),
        (link.path().to_owned(), "link/ordain.toml".into()),
    ];
    let spellings = ["events.ndjson".into(), "./events.ndjson".into(), home.path("events.ndjson")];
    for (directory, config) in &runs {
        for path in &spellings {
            let path = path.display().to_string();
            home.write("ordain.toml", fifo.replace("events.ndjson", &path))?;
            let mut command = home.ordain(&["--log", "warn", "run", "--once", "--json"])?;
            let output = command.arg(config).current_dir(directory).output()?;
            let log = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success() && !log.contains("from its beginning"), "{log}");
            let report: Value = serde_json::from_slice(&output.stdout)?;
            ensure!(report["delivered"] == 0, "{path} {}: {report}", config.display());
        }
    }
    // A copy at another path has a new first byte, so the host reads all lines again. The invalid line gets no second
    // dead letter.
    let copy = std::fs::read_to_string(home.path("events.ndjson"))?;
    home.write("copy.ndjson", format!(" {copy}"))?;
    home.write("ordain.toml", fifo.replace("events.ndjson", "copy.ndjson"))?;
    let report = home.run_once()?;
    ensure!(report["duplicates"] == 6 && report["settled"] == 0, "{report}");
    ensure!(home.rows(&["dead", "list", "cases", "--json"])?.len() == 1);
    ensure!(home.lines("out.ndjson") == 6);
    Ok(())
}

/// The store has data of a stream but no checkpoint, because the stream read standard input before. The first run with
/// the file must log that the checkpoint is missing; the second run must not log this.
#[test]
fn missing_checkpoint_is_logged() -> Result<()> {
    let events = in_turn(2, 3);
    let home = home(&events)?;
    let stdin = CONFIG.replace("events.ndjson", "-");
    home.write("ordain.toml", &stdin)?;
    let mut command = home.ordain(&["--log", "warn", "run", "--once"])?;
    let output = command.stdin(File::open(home.path("events.ndjson"))?).output()?;
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success() && !log.contains("no checkpoint"), "{log}");
    home.write("ordain.toml", CONFIG)?;
    for is_logged in [true, false] {
        let output = home.output(&["--log", "warn", "run", "--once"])?;
        let log = String::from_utf8_lossy(&output.stderr);
        ensure!(log.contains("no checkpoint of a file") == is_logged, "{log}");
    }
    ensure!(home.lines("out.ndjson") == 6);
    Ok(())
}
