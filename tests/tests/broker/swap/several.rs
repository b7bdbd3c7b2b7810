//! Tests of handler versions in several processes with one store. The rollout in the store names the active version. A
//! process that lacks the file of this version must wait.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use ordain_servers::{Redis, wait_for_command, wait_until};
use ordain_tests::host::Home;
use ordain_tests::http;
use ordain_tests::log::{by_key, in_turn, line};
use ordain_tests::plugins::plugin_with_note;
use ordain_tests::rig::{Rig, config};
use ordain_tests::service::Service;
use ordain_tests::tally;
use serde_json::{Value, json};

use super::support::{copy, metric, remove, stream, until_runs};

/// Two hosts that share a store and a broker. Each host has its own plugins folder.
struct Pair {
    _redis: Redis,
    rig: Rig,
    homes: [Home; 2],
    services: [Service; 2],
}

impl Pair {
    /// Starts the servers and both hosts with version 1.0.0. Waits until each host owns two partitions.
    fn start() -> Result<Self> {
        let redis = Redis::start(&[])?;
        let store = format!("[store]\nkind = \"redis\"\nurl = \"{}\"\n", redis.url());
        let rig = Rig::with(&store, "", "partitions = 4")?;
        let text = config(&rig.rabbit.url(), &store, "", "partitions = 4");
        let home = || -> Result<Home> {
            let home = Home::new(&[], &text)?;
            copy(&home, "1.0.0")?;
            Ok(home)
        };
        let homes = [home()?, home()?];
        let mut first = Service::start(&homes[0], &["run"])?;
        rig.until_declared()?;
        until_runs(&mut first, "tally@1.0.0")?;
        let mut second = Service::start(&homes[1], &["run"])?;
        until_runs(&mut second, "tally@1.0.0")?;
        let mut pair = Self { _redis: redis, rig, homes, services: [first, second] };
        pair.until_shared()?;
        Ok(pair)
    }

    fn until_shared(&mut self) -> Result<()> {
        wait_for_command("two partitions of each host", || {
            let rows = self.rig.home.rows(&["instances", "--json"])?;
            let has = |row: &Value| row["partitions"].as_array().map(Vec::len);
            Ok(rows.len() == 2 && rows.iter().all(|row| has(row) == Some(2)))
        })
    }
}

/// At first, only one of two instances gets the file of a new version. The other instance must wait, and must report
/// this. When the other instance gets the file too, it must execute events with the new version. Finally, the test
/// removes both files, one after the other. The rollback must happen only when no instance offers the new version any
/// more.
#[test]
fn instance_without_new_version_waits() -> Result<()> {
    let mut pair = Pair::start()?;
    let lines = in_turn(20, 30);
    let mut out = Vec::new();
    pair.rig.publish(&lines[..200])?;
    pair.rig.take(&mut out, 200)?;

    copy(&pair.homes[0], "2.0.0")?;
    let [first, second] = &mut pair.services;
    until_runs(first, "tally@2.0.0")?;
    second.until_says("handler version missing")?;
    let seen = stream(second)?;
    ensure!(seen["handler"] == "tally@2.0.0", "{seen}");
    let missing = seen["missing"].as_str().context("a reason")?;
    ensure!(missing.contains("there is no file of this version"), "{missing}");
    let key = pair.rig.home.rows(&["keys", "list", "cases", "--json", "--limit", "1"])?;
    let key = key[0]["key"].as_str().context("a key")?;
    let url = format!("http://{}", http::admin(second)?);
    let why = pair.rig.home.output(&["keys", "why", "cases", key, "--admin", &url])?;
    let why = String::from_utf8(why.stdout)?;
    ensure!(
        why.contains(
            "all keys of the stream wait for a handler version: there is no file of this version"
        ),
        "{why}"
    );
    // The second host owns about half of the keys. The events of these keys wait for the version, and the metric counts
    // exactly these keys. The messages of all other keys must arrive.
    let waiting = keys_of(&pair.rig, second)?;
    ensure!(!waiting.is_empty() && waiting.len() < 20, "{waiting:?}");
    pair.rig.publish(&lines[200..400])?;
    let mut counted = 0.0;
    let exact = wait_until("the number of waiting keys", || {
        counted = waiting_keys(second, "version")?;
        Ok(counted as usize == waiting.len())
    });
    exact.with_context(|| format!("the metric counts {counted} keys instead of {waiting:?}"))?;
    pair.rig.take(&mut out, 200 + (20 - waiting.len()) * 10)?;
    for line in &out[200..] {
        let message: Value = serde_json::from_str(line)?;
        let key = message["subject"].as_str().context("a key")?;
        ensure!(!waiting.contains(key), "key {key} must wait: {line}");
    }
    let counted = waiting_keys(second, "version")?;
    ensure!(counted as usize == waiting.len(), "{counted} keys wait instead of {waiting:?}");
    ensure!(metric(first, "ordain_version_generation")? == Some(2));

    copy(&pair.homes[1], "2.0.0")?;
    until_runs(second, "tally@2.0.0")?;
    pair.rig.take(&mut out, 400)?;
    pair.rig.publish(&lines[400..])?;
    pair.rig.take(&mut out, lines.len())?;
    tally::check(&by_key(&lines)?, &out.join("\n"))?;
    pair.rig.until_empty()?;
    let rows = pair.rig.home.rows(&["keys", "list", "cases", "--json"])?;
    ensure!(
        rows.iter().all(|row| row["version"] == "tally@2.0.0" && row["version_generation"] == 2)
    );

    // The stream must not return to version 1.0.0 while an instance offers version 2.0.0.
    remove(&pair.homes[0], "2.0.0")?;
    let [first, second] = &mut pair.services;
    until_offers(&pair.rig, first, "tally@1.0.0")?;
    ensure!(
        stream(first)?["handler"] == "tally@2.0.0",
        "the other instance still offers the version"
    );
    remove(&pair.homes[1], "2.0.0")?;
    until_runs(first, "tally@1.0.0")?;
    until_runs(second, "tally@1.0.0")?;
    let more = in_turn(20, 40);
    pair.rig.publish(&more[lines.len()..])?;
    pair.rig.take(&mut out, more.len())?;
    tally::check(&by_key(&more)?, &out.join("\n"))
}

/// The only instance that has the active version dies. The death of this instance must cause no rollback: the other
/// instance waits, and the dead instance executes events again after its restart. A rollback happens when the waiting
/// instance restarts while no other instance runs.
#[test]
fn dead_instance_causes_no_rollback() -> Result<()> {
    let mut pair = Pair::start()?;
    copy(&pair.homes[0], "2.0.0")?;
    let [first, second] = &mut pair.services;
    until_runs(first, "tally@2.0.0")?;
    second.until_says("handler version missing")?;
    // The second instance restarts once before the first instance dies. This restart must cause no rollback either,
    // because the first instance offers the version.
    second.end()?;
    let mut second = Service::start(&pair.homes[1], &["run"])?;
    second.until_says("handler version missing")?;
    first.signal("KILL")?;
    first.wait()?;
    wait_for_command("the removal of the dead instance", || {
        Ok(pair.rig.home.rows(&["instances", "--json"])?.len() == 1)
    })?;
    std::thread::sleep(std::time::Duration::from_secs(2));
    ensure!(stream(&mut second)?["handler"] == "tally@2.0.0");
    // The dead instance starts again with its files, and executes events with the active version.
    let mut first = Service::start(&pair.homes[0], &["run"])?;
    until_runs(&mut first, "tally@2.0.0")?;
    first.end()?;
    ensure!(stream(&mut second)?["missing"].is_string());
    // If an instance without the active version starts while no other instance runs, the instance rolls the stream back
    // to a lower version.
    second.signal("TERM")?;
    second.wait()?;
    let mut second = Service::start(&pair.homes[1], &["run"])?;
    until_runs(&mut second, "tally@1.0.0")?;
    ensure!(stream(&mut second)?["generation"] == 3);
    let lines = in_turn(10, 10);
    pair.rig.publish(&lines)?;
    pair.rig.check(&lines)
}

/// `ordain run --once` must end with an error if another instance activates a version that is missing in the folder of
/// this process.
#[test]
fn once_run_ends_without_active_version() -> Result<()> {
    let redis = Redis::start(&[])?;
    let text = format!(
        "[runtime]\nlease = \"2s\"\n[store]\nkind = \"redis\"\nurl = \"{}\"\n\
         [streams.cases]\nhandler = \"faulty\"\nsource = {{ kind = \"file\", path = \"events.ndjson\" }}\n\
         retry = {{ attempts = 100, backoff = \"1s..1s\" }}\n\
         [sinks.faulty]\nkind = \"file\"\npath = \"-\"\n",
        redis.url()
    );
    let homes = [Home::new(&[], &text)?, Home::new(&[], &text)?];
    for (home, version) in homes.iter().zip(["1.0.0", "2.0.0"]) {
        let name = format!("plugins/faulty@{version}.wasm");
        home.write(&name, plugin_with_note("faulty", version)?)?;
        // The host retries this event for longer than the test lasts, so `run --once` does not end by itself.
        home.write("events.ndjson", line("a", 1, &json!({ "do": "retry" })))?;
    }
    let mut once = Service::start(&homes[0], &["run", "--once"])?;
    once.until_says("handler version active")?;
    let mut other = Service::start(&homes[1], &["run"])?;
    once.until_says("handler version missing")?;
    let status = once.wait()?;
    let log = once.stderr();
    ensure!(status.code() == Some(75), "{status}: {log}");
    ensure!(
        log.contains("faulty@2.0.0") && log.contains("--once cannot end without this version"),
        "{log}"
    );
    other.end()
}

/// An instance lacks the active version, and many events wait in this instance. The instance must still end cleanly and
/// hand over all partitions.
#[test]
fn waiting_instance_ends_cleanly_under_load() -> Result<()> {
    let mut pair = Pair::start()?;
    let lines = in_turn(200, 50);
    copy(&pair.homes[0], "2.0.0")?;
    let [first, second] = &mut pair.services;
    second.until_says("handler version missing")?;
    pair.rig.publish(&lines)?;
    wait_until("waiting keys", || Ok(waiting_keys(second, "version")? > 0.0))?;
    second.end()?;
    until_runs(first, "tally@2.0.0")?;
    pair.rig.check(&lines)?;
    pair.rig.until_empty()
}

/// Returns how many keys wait because of this cause, summed over all partitions.
fn waiting_keys(service: &mut Service, cause: &str) -> Result<f64> {
    let answer = http::get(http::admin(service)?, "/metrics")?;
    let label = format!("cause=\"{cause}\"");
    let lines = answer.body.lines().filter(|line| line.starts_with("ordain_blocked_keys{"));
    let values =
        lines.filter(|line| line.contains(&label)).filter_map(|line| line.rsplit_once(' '));
    Ok(values.filter_map(|(_, value)| value.parse::<f64>().ok()).sum())
}

fn until_offers(rig: &Rig, service: &Service, version: &str) -> Result<()> {
    wait_for_command(&format!("an offer of {version}"), || {
        Ok(instance(rig, service)?.is_some_and(|row| row["offers"]["cases"] == version))
    })
}

/// Returns the keys in the partitions that the process owns.
fn keys_of(rig: &Rig, service: &Service) -> Result<BTreeSet<String>> {
    let instance = instance(rig, service)?.context("the process is not an instance")?;
    let owned = instance["partitions"].as_array().context("partitions")?;
    let mut keys = BTreeSet::new();
    for row in rig.home.rows(&["keys", "list", "cases", "--json"])? {
        if owned.iter().any(|partition| partition["partition"] == row["partition"]) {
            keys.insert(row["key"].as_str().context("a key")?.to_owned());
        }
    }
    Ok(keys)
}

/// Returns the row of the process in the list of instances; `None` if the list does not contain the process.
fn instance(rig: &Rig, service: &Service) -> Result<Option<Value>> {
    let name = format!("/{}", service.id());
    let is_of_process =
        |row: &Value| row["name"].as_str().is_some_and(|found| found.ends_with(&name));
    Ok(rig.home.rows(&["instances", "--json"])?.into_iter().find(is_of_process))
}
