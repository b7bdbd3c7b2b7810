//! Tests of two streams that write to the same two sinks, while the test kills the process. Each message must be in its
//! file once, and in order.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ordain_tests::host::Home;
use ordain_tests::log::line;
use ordain_tests::seed::kill_seed;
use ordain_tests::service::Service;
use ordain_tests::tally;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

/// The commits are very small, so that a kill often leaves messages that are committed but not published.
const CONFIG: &str = r#"
[runtime]
batch = 3
run_ahead = 12

[streams.left]
handler = "faulty"
source = { kind = "file", path = "left.ndjson" }

[streams.right]
handler = "faulty"
source = { kind = "file", path = "right.ndjson" }

[sinks.both]
kind = "file"
path = "both.ndjson"

[sinks.some]
kind = "file"
path = "some.ndjson"
"#;

const KEYS: u64 = 7;
const EVENTS: u64 = 300;
const KILLS: u32 = 40;

/// Returns the sink of the messages of an event. Every fifth event of a key has no messages.
fn sink(sequence: u64) -> Option<&'static str> {
    match sequence % 5 {
        0 => None,
        1 | 2 => Some("some"),
        _ => Some("both"),
    }
}

fn events() -> Result<String> {
    let mut text = String::new();
    for sequence in 1..=EVENTS {
        for key in 0..KEYS {
            let data = match sink(sequence) {
                Some(sink) => json!({ "do": "emit", "sink": sink, "messages": 2 }),
                None => json!({ "do": "ok" }),
            };
            writeln!(text, "{}", line(&format!("k{key}"), sequence, &data))?;
        }
    }
    Ok(text)
}

/// The messages of a file, by stream and key. Each message is described by its sequence and its index, in the order of
/// the file.
type Content = BTreeMap<(String, String), Vec<(u64, u64)>>;

fn content(text: &str) -> Result<Content> {
    let mut content = Content::new();
    for line in text.lines() {
        let message: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        let id: Vec<&str> = message["id"].as_str().context("an id")?.split('/').collect();
        let [stream, key, _, sequence, index] = id[..] else {
            anyhow::bail!("the id {id:?} does not have five parts")
        };
        let place = content.entry((stream.to_owned(), key.to_owned())).or_default();
        place.push((sequence.parse()?, index.parse()?));
    }
    Ok(content)
}

/// Checks that the file of a sink begins with `other`, the data that the file contained at the first start. Also checks
/// that each message of the sink follows once, and in order.
fn check_after(home: &Home, name: &str, other: &str) -> Result<()> {
    let wanted: Vec<(u64, u64)> = (1..=EVENTS)
        .filter(|sequence| sink(*sequence) == Some(name))
        .flat_map(|sequence| [(sequence, 0), (sequence, 1)])
        .collect();
    let text = home.read(&format!("{name}.ndjson"));
    let own = text.strip_prefix(other).and_then(|rest| match other {
        "" => Some(rest),
        _ => rest.strip_prefix('\n'),
    });
    let content =
        content(own.with_context(|| format!("{name}: the file does not begin with {other:?}"))?)?;
    ensure!(
        content.len() == 2 * KEYS as usize,
        "{name}: wrong streams and keys: {:?}",
        content.keys()
    );
    for (place, got) in content {
        ensure!(got == wanted, "{name}: {place:?} has {got:?}");
    }
    Ok(())
}

fn check(home: &Home, name: &str) -> Result<()> {
    check_after(home, name, "")
}

/// The file of a sink contains data of another program. This data does not end with a line end. The test kills the
/// process as soon as the process has written to the file. Each message must be in the file once, in order, and on a
/// line of its own.
#[test]
fn kills_after_data_without_a_line_end_lose_and_repeat_nothing() -> Result<()> {
    const OTHER_DATA: &str = "data of another program";
    for _ in 0..5 {
        let home = Home::new(&["faulty"], CONFIG)?;
        for stream in ["left", "right"] {
            home.write(&format!("{stream}.ndjson"), events()?)?;
        }
        home.write("some.ndjson", OTHER_DATA)?;
        let mut service = Service::start(&home, &["run"])?;
        service.until("a message", || home.read("some.ndjson").len() > OTHER_DATA.len())?;
        service.kill()?;
        home.run_once()?;
        check_after(&home, "some", OTHER_DATA)?;
        check(&home, "both")?;
    }
    Ok(())
}

#[test]
fn kills_between_commit_and_publication_lose_and_repeat_nothing() -> Result<()> {
    let mut rng = ChaCha8Rng::seed_from_u64(kill_seed()?);
    let home = Home::new(&["faulty"], CONFIG)?;
    for stream in ["left", "right"] {
        home.write(&format!("{stream}.ndjson"), events()?)?;
    }
    // Both streams together have twice as many events as the file `left.ndjson`. Two fifths of these events have two
    // messages each for the sink `both`.
    let all = home.lines("left.ndjson") * 2 * 2 * 2 / 5;
    let mut left_over = 0;
    for kill in 1..=KILLS {
        let mut service = Service::start(&home, &["run"])?;
        // The kills are spread evenly over the output, so the last kill comes close to the end of the output.
        let some = all * kill as usize / (KILLS as usize + 1);
        service.until("messages", || home.lines("both.ndjson") >= some)?;
        std::thread::sleep(Duration::from_micros(rng.random_range(0..2_000)));
        let log = service.stderr();
        left_over += u32::from(log.contains("committed and did not publish"));
        service.kill()?;
    }
    println!("{left_over} of {KILLS} starts published messages of an earlier process");
    ensure!(left_over > 0, "no kill left a committed message unpublished");
    home.run_once()?;
    check(&home, "both")?;
    check(&home, "some")
}

/// Two processes with different stores have the same sink file. Without a lock, each process would overwrite messages
/// of the other process.
#[test]
fn sink_file_of_another_process_is_refused() -> Result<()> {
    let first = Home::new(&["tally"], tally::CONFIG)?;
    first.write("events.ndjson", "")?;
    let mut service = Service::start(&first, &["run"])?;
    let out = first.path("out.ndjson");
    service.until("the sink file", || out.exists())?;
    let path = format!("path = \"{}\"", out.display());
    let config = tally::CONFIG.replace("path = \"out.ndjson\"", &path);
    let second = Home::new(&["tally"], &config)?;
    second.write("events.ndjson", line("k", 1, &json!({})) + "\n")?;
    let output = second.output(&["run", "--once"])?;
    let log = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(75), "{}: {log}", output.status);
    ensure!(log.contains("has locked this file"), "{log}");
    service.end()?;
    second.run_once()?;
    ensure!(first.lines("out.ndjson") == 1);
    Ok(())
}
