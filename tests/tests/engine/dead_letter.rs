//! Dead letters are forwarded to a sink exactly once each, even if the process is killed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ordain_tests::host::Home;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

const CONFIG: &str = r#"
[streams.faults]
handler = "faulty"
source = { kind = "file", path = "events.ndjson" }
gap = { on_exhausted = "skip" }
retry = { on_exhausted = "skip" }
dead_letter = "dead"

[sinks.dead]
kind = "file"
path = "dead.ndjson"
"#;

/// The number of keys. Each has eight events and one letter of each kind.
const KEYS: usize = 400;

fn event(key: usize, sequence: u64, data: &Value) -> String {
    json!({
        "specversion": "1.0", "id": format!("{key}-{sequence}"), "source": "/test", "type": "test",
        "subject": format!("key {key}"), "sequence": sequence.to_string(), "data": data,
    })
    .to_string()
}

/// Returns the lines of the input. Event 2 is rejected, 3 traps, 5 is missing, 6 arrives with two different contents,
/// and 8 is the last one. Then follow an event after the end, an event without a sequence, and a line that is no event.
fn lines() -> Vec<String> {
    let mut lines = Vec::new();
    let mut add = |data: &dyn Fn(usize) -> String| lines.extend((0..KEYS).map(data));
    let told = |command: &str| json!({ "do": command });
    add(&|key| event(key, 1, &told("ok")));
    add(&|key| event(key, 2, &json!({ "do": "reject", "reason": "no, thank you" })));
    add(&|key| event(key, 3, &told("trap")));
    add(&|key| event(key, 4, &told("ok")));
    add(&|key| event(key, 6, &told("ok")));
    add(&|key| event(key, 6, &told("state")));
    add(&|key| event(key, 7, &told("ok")));
    add(&|key| event(key, 8, &told("complete")));
    add(&|key| event(key, 9, &told("ok")));
    add(&|key| event(key, 1, &told("ok")).replace("sequence", "sequel"));
    add(&|key| format!("line of {key}"));
    lines
}

const CAUSES: [&str; 7] =
    ["after-end", "conflict", "gap", "no-sequence", "rejected", "trap", "unreadable"];

/// Checks that the sink has exactly the letters of the store, each once, and one letter per key for each cause.
fn check(home: &Home) -> Result<()> {
    let mut stored = BTreeSet::new();
    for row in home.rows(&["dead", "list", "faults", "--json", "--limit", "100000"])? {
        let key = row["key"].as_str().context("a key")?.replace(' ', "%20");
        let id = row["id"].as_str().context("an id")?;
        stored.insert(format!("faults/{key}/dead/{}", id.replace('-', "/")));
    }
    let mut forwarded = BTreeSet::new();
    let mut causes: BTreeMap<String, usize> = BTreeMap::new();
    for line in home.read("dead.ndjson").lines() {
        let letter: Value = serde_json::from_str(line)?;
        let id = letter["id"].as_str().context("an id")?.to_owned();
        ensure!(forwarded.insert(id), "twice: {line}");
        let cause = letter["deadcause"].as_str().context("a cause")?;
        *causes.entry(cause.to_owned()).or_default() += 1;
        let right = match cause {
            "rejected" => letter["deaderror"] == "no, thank you" && letter["deadsequence"] == "2",
            "trap" => {
                let version = letter["deadversion"].as_str().unwrap_or_default();
                version.starts_with("faulty+") && letter["data"]["do"] == "trap"
            }
            "gap" => letter["deadsequence"] == "5" && letter["type"] == "ordain.dead-letter",
            "conflict" => letter["data"]["do"] == "state" && letter["deadsource"] == "/test",
            "after-end" => letter["deadsequence"] == "9",
            "no-sequence" => letter["deadid"].is_string() && letter["sequel"] == "1",
            "unreadable" => {
                letter["data_base64"].is_string()
                    && letter["deadorigin"].as_str().is_some_and(|origin| origin.contains("line"))
            }
            _ => false,
        };
        ensure!(right, "{line}");
    }
    ensure!(forwarded == stored, "{} forwarded, {} stored", forwarded.len(), stored.len());
    let expected: BTreeMap<String, usize> = CAUSES.map(|cause| (cause.to_owned(), KEYS)).into();
    ensure!(causes == expected, "{causes:?}");
    Ok(())
}

#[test]
fn each_dead_letter_is_forwarded_once() -> Result<()> {
    let home = Home::new(&["faulty"], CONFIG)?;
    home.write("events.ndjson", lines().join("\n") + "\n")?;
    let report = home.run_once()?;
    assert_eq!(report["dead_total"], CAUSES.len() * KEYS);
    check(&home)?;
    // Every event is known, so that the next run forwards nothing.
    home.run_once()?;
    check(&home)
}

#[test]
fn each_dead_letter_is_forwarded_once_despite_kills() -> Result<()> {
    let home = Home::new(&["faulty"], CONFIG)?;
    home.write("events.ndjson", lines().join("\n") + "\n")?;
    let calm = Instant::now();
    home.run_once()?;
    // This run also compiles the handler, so that it takes longer than every later one.
    let whole = calm.elapsed();
    std::fs::remove_dir_all(home.path("ordain-data"))?;
    std::fs::remove_file(home.path("dead.ndjson"))?;

    let seed: u64 = match std::env::var("ORDAIN_KILL_SEED") {
        Ok(seed) => seed.parse()?,
        Err(_) => rand::random(),
    };
    println!("seed of the moments: {seed} (ORDAIN_KILL_SEED={seed} uses it again)");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    for _ in 0..10 {
        let mut child = home.start()?;
        std::thread::sleep(Duration::from_micros(
            rng.random_range(0..whole.as_micros() as u64 / 2),
        ));
        child.kill()?;
        child.wait()?;
    }
    home.run_once()?;
    check(&home)
}

#[test]
fn undefined_dead_letter_sink_is_refused() -> Result<()> {
    let config = CONFIG.replace("[sinks.dead]", "[sinks.deaf]");
    let home = Home::new(&[], &config)?;
    let output = home.ordain(&["check"])?.env("RUST_BACKTRACE", "1").output()?;
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(78), "{log}");
    assert!(log.contains("ordain.toml:7: streams.faults.dead_letter"), "{log}");
    assert!(!log.contains("backtrace"), "{log}");
    assert!(log.contains("sink \"dead\" is not defined; did you mean \"deaf\"?"), "{log}");
    Ok(())
}
