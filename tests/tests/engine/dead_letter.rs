//! Tests of dead letters that the host forwards to a sink. The sink gets each dead letter exactly once, even if the
//! process is killed. If the store loses dead letters, the host writes them again under the same ids.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ordain_servers::{Redis, Snapshot, wait_for_command};
use ordain_tests::host::Home;
use ordain_tests::seed::kill_seed;
use ordain_tests::service::Service;
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

/// The number of keys. The input contains eleven lines of each key, and each key gets one dead letter of each cause.
const KEYS: usize = 400;

fn event(key: usize, sequence: u64, data: &Value) -> String {
    json!({
        "specversion": "1.0", "id": format!("{key}-{sequence}"), "source": "/test", "type": "test",
        "subject": format!("key {key}"), "sequence": sequence.to_string(), "data": data,
    })
    .to_string()
}

/// Returns the lines of the input. Each key gets seven dead letters from these lines:
///
/// - The handler rejects event 2.
/// - The handler traps at event 3.
/// - Event 5 is missing.
/// - Event 6 arrives twice, with different contents.
/// - Event 9 arrives after event 8 has completed the key.
/// - One more event has no sequence.
/// - One line is no event.
fn lines() -> Vec<String> {
    let mut lines = Vec::new();
    let mut add = |data: &dyn Fn(usize) -> String| lines.extend((0..KEYS).map(data));
    let command = |name: &str| json!({ "do": name });
    add(&|key| event(key, 1, &command("ok")));
    add(&|key| event(key, 2, &json!({ "do": "reject", "reason": "no, thank you" })));
    add(&|key| event(key, 3, &command("trap")));
    add(&|key| event(key, 4, &command("ok")));
    add(&|key| event(key, 6, &command("ok")));
    add(&|key| event(key, 6, &command("state")));
    add(&|key| event(key, 7, &command("ok")));
    add(&|key| event(key, 8, &command("complete")));
    add(&|key| event(key, 9, &command("ok")));
    add(&|key| event(key, 1, &command("ok")).replace("sequence", "sequel"));
    add(&|key| format!("line of {key}"));
    lines
}

const CAUSES: [&str; 7] =
    ["after-end", "conflict", "gap", "no-sequence", "rejected", "trap", "unreadable"];

/// Returns the ids of the dead letters in the store. Checks that no dead letter is listed twice.
fn stored(home: &Home) -> Result<BTreeSet<String>> {
    let mut stored = BTreeSet::new();
    for row in home.rows(&["dead", "list", "faults", "--json", "--limit", "100000"])? {
        let key = row["key"].as_str().context("a key")?.replace(' ', "%20");
        let id = row["id"].as_str().context("an id")?;
        let id = format!("faults/{key}/dead/{}", id.replace('-', "/"));
        ensure!(stored.insert(id), "a dead letter is listed twice: {row}");
    }
    Ok(stored)
}

/// Returns the published dead letters by id. Checks that no dead letter was published twice.
fn published(lines: &str) -> Result<BTreeMap<String, Value>> {
    let mut published = BTreeMap::new();
    for line in lines.lines() {
        let letter: Value = serde_json::from_str(line)?;
        let id = letter["id"].as_str().context("an id")?.to_owned();
        ensure!(
            published.insert(id, letter).is_none(),
            "a dead letter was published twice: {line}"
        );
    }
    Ok(published)
}

/// Checks that the sink has exactly the dead letters of the store, each once. Each key must have one dead letter of
/// each cause.
fn check(home: &Home) -> Result<()> {
    check_letters(home, &published(&home.read("dead.ndjson"))?)
}

/// Checks that `published` has exactly the dead letters of the store. Each key must have one dead letter of each cause.
fn check_letters(home: &Home, published: &BTreeMap<String, Value>) -> Result<()> {
    let stored = stored(home)?;
    let mut causes: BTreeMap<String, usize> = BTreeMap::new();
    for letter in published.values() {
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
        ensure!(right, "{letter}");
    }
    let forwarded = published.keys().eq(&stored);
    ensure!(forwarded, "{} forwarded, {} stored", published.len(), stored.len());
    let expected: BTreeMap<String, usize> = CAUSES.map(|cause| (cause.to_owned(), KEYS)).into();
    ensure!(causes == expected, "{causes:?}");
    Ok(())
}

/// Checks the groups of all dead letters: one group for each cause, because the errors of a cause differ at most in
/// numbers.
fn check_groups(home: &Home) -> Result<()> {
    let groups = home.rows(&["dead", "list", "faults", "--group", "--json"])?;
    let mut causes: Vec<&str> = groups.iter().filter_map(|group| group["cause"].as_str()).collect();
    causes.sort_unstable();
    ensure!(causes == CAUSES && groups.iter().all(|group| group["count"] == KEYS), "{groups:?}");
    let rejected = groups.iter().find(|group| group["cause"] == "rejected").context("a group")?;
    ensure!(rejected["reason"] == "no, thank you", "{rejected}");
    ensure!(rejected["version"].as_str().is_some_and(|version| version.starts_with("faulty+")));
    let [key, id] = ["key", "id"].map(|field| rejected["newest"][field].as_str());
    let [key, id] = [key.context("a key")?, id.context("an id")?];
    let shown = home.rows(&["dead", "show", "faults", id, "--key", key, "--json"])?;
    ensure!(shown[0]["error"] == rejected["newest"]["error"], "{shown:?}");

    let output = home.ordain(&["dead", "list", "faults", "--group"])?.output()?;
    let table = String::from_utf8(output.stdout)?;
    ensure!(table.lines().count() == 1 + 2 * CAUSES.len(), "{table}");
    ensure!(table.contains("     400  rejected     faulty+"), "{table}");
    Ok(())
}

#[test]
fn each_dead_letter_is_forwarded_once() -> Result<()> {
    let home = Home::new(&["faulty"], CONFIG)?;
    home.write("events.ndjson", lines().join("\n") + "\n")?;
    let report = home.run_once()?;
    assert_eq!(report["dead_total"], CAUSES.len() * KEYS);
    check(&home)?;
    check_groups(&home)?;
    // The next run must forward nothing, because every event is already settled.
    home.run_once()?;
    check(&home)
}

#[test]
fn each_dead_letter_is_forwarded_once_despite_kills() -> Result<()> {
    let home = Home::new(&["faulty"], CONFIG)?;
    home.write("events.ndjson", lines().join("\n") + "\n")?;
    let started = Instant::now();
    home.run_once()?;
    // The first run also compiles the handler, so it takes longer than every later run.
    let whole = started.elapsed();
    std::fs::remove_dir_all(home.path("ordain-data"))?;
    std::fs::remove_file(home.path("dead.ndjson"))?;

    let mut rng = ChaCha8Rng::seed_from_u64(kill_seed()?);
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

/// A host with a store in Redis. The host prints its dead letters to standard output.
struct LossyHost {
    redis: Redis,
    home: Home,
    service: Service,
    /// The data of the server at the time when the server had three of the seven dead letters of each key.
    early: Snapshot,
}

impl LossyHost {
    /// Starts the host, and waits until it has published all dead letters.
    fn start() -> Result<Self> {
        let redis = Redis::start(&[])?;
        let config = CONFIG
            .replace("gap = {", "gap = { timeout = \"10ms\", attempts = 1,")
            .replace("retry = {", "retry = { attempts = 2, backoff = \"1ms..5ms\",")
            .replace("dead.ndjson", "-");
        let store = format!("[store]\nkind = \"redis\"\nurl = \"{}\"\n", redis.url());
        let home = Home::new(&["faulty"], &format!("[runtime]\nlease = \"2s\"\n{store}{config}"))?;
        let lines = lines();
        // The first lines contain events 1 to 4 and event 6, but not the missing event 5. These events result in three
        // dead letters per key.
        let (first, rest) = lines.split_at(5 * KEYS);
        home.write("events.ndjson", first.join("\n") + "\n")?;
        let mut service = Service::start(&home, &["--log", "warn", "run"])?;
        service.until("the first dead letters", || home.lines("stdout") == 3 * KEYS)?;
        let early = redis.snapshot()?;
        home.append("events.ndjson", rest.join("\n") + "\n")?;
        service.until("all dead letters", || home.lines("stdout") == CAUSES.len() * KEYS)?;
        let lossy = Self { redis, home, service, early };
        check_letters(&lossy.home, &lossy.published()?)?;
        Ok(lossy)
    }

    fn published(&self) -> Result<BTreeMap<String, Value>> {
        published(&self.service.stdout())
    }

    /// Runs the host again until the end of the file. Returns the dead letters that this run publishes.
    fn published_by_the_next_run(&self) -> Result<BTreeMap<String, Value>> {
        self.home.run_once_to("next")?;
        published(&self.home.read("next"))
    }
}

/// The server loses the commits with four dead letters of each key, while the host is idle. The host must repeat these
/// commits. The store then has each dead letter once, under its old id, and the host publishes no dead letter again.
#[test]
fn lost_letters_are_written_again_and_not_published_again() -> Result<()> {
    let mut lossy = LossyHost::start()?;
    let before = stored(&lossy.home)?;
    lossy.redis.go_back(&lossy.early)?;
    wait_for_command("the repeated commits of the lost dead letters", || {
        let is_running = lossy.service.is_running()?;
        ensure!(is_running, "the host ended: {}", lossy.service.stderr());
        let is_repeated = lossy.service.stderr().contains("repeated from memory");
        Ok(is_repeated && stored(&lossy.home)? == before)
    })?;
    check_letters(&lossy.home, &lossy.published()?)?;
    lossy.service.end()?;
    check_letters(&lossy.home, &lossy.published()?)?;
    // The next owner may publish a dead letter again, but only under its old id.
    let mut all = lossy.published()?;
    all.extend(lossy.published_by_the_next_run()?);
    check_letters(&lossy.home, &all)
}

/// The server loses the commits with four dead letters of each key. The host was killed before, so it cannot repeat the
/// commits. The next host executes the events again, and each dead letter must get its old id.
#[test]
fn letters_lost_with_their_host_get_the_same_ids() -> Result<()> {
    let mut lossy = LossyHost::start()?;
    let before = stored(&lossy.home)?;
    lossy.service.kill()?;
    lossy.redis.go_back(&lossy.early)?;
    let lost = before.difference(&stored(&lossy.home)?).count();
    ensure!(lost == 4 * KEYS, "{lost} dead letters were lost");
    let again = lossy.published_by_the_next_run()?;
    ensure!(again.len() >= lost, "only {} of {lost} dead letters are published again", again.len());
    let mut all = lossy.published()?;
    all.extend(again);
    ensure!(stored(&lossy.home)? == before, "the ids differ from the ids before the loss");
    check_letters(&lossy.home, &all)
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
