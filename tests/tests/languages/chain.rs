//! Runs a chain of three streams whose handlers are in Python, TypeScript and Rust, and kills the process on the way.
//! Each handler is the example `tally` of its SDK: each message contains a hash of all events of a key up to this
//! message, and the next stage hashes this message. The last messages are thus right only if each event took effect
//! once and in order in each of the stages.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ordain_tests::host::Home;
use ordain_tests::log::{Line, by_key, disturb, line, text};
use ordain_tests::service::Service;
use ordain_tests::tally;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use super::language::{JAVASCRIPT, Language, PYTHON, RUST};

/// The handlers in Python and TypeScript emit to the sink with the name of the stream, and the handler in Rust emits to
/// the sink `tally`.
const CONFIG: &str = r#"
[store]
kind = "embedded"
path = "store"

[streams.first]
handler = "tally-python"
source = { kind = "file", path = "events.ndjson" }

[streams.second]
handler = "tally-typescript"
source = { kind = "stream" }

[streams.third]
handler = "tally-rust"
source = { kind = "stream" }

[sinks.first]
kind = "stream"
stream = "second"
sequenced = true

[sinks.second]
kind = "stream"
stream = "third"
sequenced = true

[sinks.tally]
kind = "file"
path = "out.ndjson"
"#;

const STAGES: [(&str, Language); 3] =
    [("tally-python", PYTHON), ("tally-typescript", JAVASCRIPT), ("tally-rust", RUST)];

/// The keys of the first stage. Each stage but the last distributes the messages of a key among `PARTS` keys.
const KEYS: usize = 12;
const EVENTS_PER_KEY: u64 = 600;
const PARTS: u64 = 3;

/// The number of parts of the input. The test kills the process once in each part.
const KILLS: usize = 10;

/// The seed of the times at which the process is killed.
const SEED: u64 = 37;

/// The events of a stage, by key and sequence.
type StageEvents = BTreeMap<String, BTreeMap<u64, Line>>;

#[test]
fn chain_of_three_languages_is_exact_after_kills() -> Result<()> {
    let home = Home::new(&[], CONFIG)?;
    for (handler, language) in STAGES {
        let component = language.component("tally")?;
        std::fs::copy(&component, home.path(&format!("plugins/{handler}.wasm")))
            .with_context(|| format!("{} cannot be copied", component.display()))?;
    }
    // The first start compiles the handlers, which may take long on a busy machine.
    home.write("events.ndjson", "")?;
    home.run_once()?;

    let events = events();
    let mut appended = 0;
    let mut interrupted = [0; STAGES.len()];
    let mut rng = ChaCha8Rng::seed_from_u64(SEED);
    for part in events.chunks(events.len().div_ceil(KILLS)) {
        home.append("events.ndjson", text(&disturb(part, 200, 10, SEED)))?;
        appended += part.len() as u64;
        run_and_kill(&home, &mut rng, part.len())?;
        for (count, is_unfinished) in interrupted.iter_mut().zip(unfinished(&home, appended)?) {
            *count += usize::from(is_unfinished);
        }
    }
    println!("{KILLS} kills; the stages had unfinished events after {interrupted:?} of them");
    ensure!(interrupted.iter().all(|count| *count > 0), "the kills came too late: {interrupted:?}");

    let report = home.run_once()?;
    ensure!(report["held"]["events"] == 0, "{report}");
    let first = by_key(&events)?;
    let second = messages(&first);
    let third = messages(&second);
    for (stream, expected) in [("first", &first), ("second", &second), ("third", &third)] {
        let letters = home.rows(&["dead", "list", stream, "--json", "--limit", "10"])?;
        ensure!(letters.is_empty(), "{stream}: {letters:?}");
        let events = expected.values().map(BTreeMap::len).sum::<usize>();
        ensure!(settled(&home, stream)? == events as u64, "{stream}: not {events} events");
    }
    tally::check(&third, &home.read("out.ndjson"))
}

fn events() -> Vec<String> {
    let keys = |sequence| (0..KEYS).map(move |key| (format!("Konto ☃ {key}"), sequence));
    let all = (1..=EVENTS_PER_KEY).flat_map(keys);
    all.map(|(key, sequence)| line(&key, sequence, &json!({ "n": sequence, "text": "💥" })))
        .collect()
}

/// Starts a process, and kills it after it has written a random number of messages.
fn run_and_kill(home: &Home, rng: &mut ChaCha8Rng, new_events: usize) -> Result<()> {
    let goal = home.lines("out.ndjson") + rng.random_range(0..new_events / 2);
    let mut service = Service::start(home, &["run"])?;
    service.until("more messages", || home.lines("out.ndjson") > goal)?;
    std::thread::sleep(Duration::from_millis(rng.random_range(0..40)));
    service.kill()
}

/// Returns for each stage whether it has executed fewer events than the stage before it. The first stage has received
/// `appended` events.
fn unfinished(home: &Home, appended: u64) -> Result<[bool; STAGES.len()]> {
    let [first, second, third] = ["first", "second", "third"].map(|stream| settled(home, stream));
    let [first, second, third] = [first?, second?, third?];
    Ok([first < appended, second < first, third < second])
}

/// Returns the number of events of a stream that have taken effect.
fn settled(home: &Home, stream: &str) -> Result<u64> {
    let rows = home.rows(&["keys", "list", stream, "--json", "--limit", "1000000"])?;
    let events = rows.iter().map(|row| Some(row["next"].as_u64()? - 1));
    events.sum::<Option<u64>>().context("the column next")
}

/// Returns the messages that a stage emits for these events, as the events of the next stage.
fn messages(events: &StageEvents) -> StageEvents {
    let mut emitted = StageEvents::new();
    for (key, events) in events {
        let mut hash = tally::FIRST_HASH;
        for (count, event) in (1..).zip(events.values()) {
            hash = tally::hash(hash, event);
            let to = format!("{key}/{}", event.sequence % PARTS);
            let of_key = emitted.entry(to.clone()).or_default();
            let sequence = of_key.len() as u64 + 1;
            let data = format!(
                r#"{{"key":{},"sequence":{},"count":{count},"hash":"{hash:016x}"}}"#,
                Value::from(&**key),
                event.sequence
            );
            let kind = "tally".to_owned();
            of_key.insert(sequence, Line { key: to, sequence, kind, data, end: false });
        }
    }
    emitted
}
