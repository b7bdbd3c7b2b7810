//! Tests of a host that cannot repeat lost commits and ends: the record in its log states the commits that the store
//! had and no longer has.

use anyhow::{Context, Result, bail, ensure};
use jiff::Timestamp;
use ordain_servers::Redis;
use ordain_tests::host::Home;
use ordain_tests::http;
use ordain_tests::incident::{last_commit, records};
use ordain_tests::log::line;
use ordain_tests::service::{Service, wait_until};
use serde_json::{Value, json};

use super::support::{ONE, SECTIONS, ingress, post, post_all};

const SHARDS: u32 = 2;

/// Returns the configuration of one stream with events over HTTP.
fn config(redis: &Redis, runtime: &str) -> String {
    format!(
        "{SECTIONS}[runtime]\n{runtime}\n\
         [store]\nkind = \"redis\"\nurl = \"{}\"\nshards = {SHARDS}\n\
         [streams.cases]\nhandler = \"tally\"\nordering = \"fifo\"\nsource = {{ kind = \"http\" }}\n\
         [sinks.tally]\nkind = \"file\"\npath = \"-\"\n",
        redis.url()
    )
}

/// Returns events of separate keys.
fn events(name: &str, count: usize) -> Vec<String> {
    (0..count).map(|at| line(&format!("{name}{at}"), 1, &json!({ "n": at }))).collect()
}

/// Waits until the host has printed this number of messages.
fn until_effects(service: &Service, count: usize) -> Result<()> {
    let printed =
        wait_until("the effects of all events", || Ok(service.stdout().lines().count() >= count));
    printed.with_context(|| service.stderr())
}

/// Returns the number of the last commit of each shard.
fn last_commits(redis: &Redis) -> Result<Vec<u64>> {
    (0..SHARDS).map(|shard| last_commit(redis, shard, "cases")).collect()
}

/// Waits until the host has failed. Returns the data of the only record of lost commits, and the number of the record's
/// shard.
fn record_of_end(service: &mut Service) -> Result<(Value, usize)> {
    let status = service.wait()?;
    let log = service.stderr();
    ensure!(status.code() == Some(1), "{status}: {log}");
    let all = records(&log)?;
    let lost: Vec<&Value> =
        all.iter().filter(|record| record["type"] == "ordain.commits.lost").collect();
    let [record] = lost[..] else { bail!("not one record: {log}") };
    ensure!(record["source"] == "/ordain/cases" && record["subject"] == "partition/0", "{record}");
    let shard = record["data"]["shard"].as_u64().context("a shard")?;
    let error = format!("the store went back in time in shard {shard}");
    ensure!(log.contains(&error), "the record names another shard than the error: {log}");
    Ok((record["data"].clone(), shard as usize))
}

/// Redis loses everything, also the claim of the host. The record states all commits of the host in the shard, says that
/// the claim is lost too, and states no time.
#[test]
fn record_of_lost_claim_states_all_commits_of_the_host() -> Result<()> {
    let redis = Redis::start(&[])?;
    let home = Home::new(&["tally"], &config(&redis, "lease = \"2s\""))?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ingress(&mut service)?;
    post_all(address, &events("a", 40))?;
    until_effects(&service, 40)?;
    let last = last_commits(&redis)?;
    redis.command(&["FLUSHALL"])?;
    // The host may already reject this event. If it accepts the event, it soon finds the loss.
    let _ = post(address, ONE, &events("b", 1)[0]);
    let (data, shard) = record_of_end(&mut service)?;
    let last = last[shard];
    ensure!(last > 0, "the host had made no commit in shard {shard}");
    let right =
        json!({ "shard": shard, "commits": last, "first": 1, "last": last, "claim_lost": true });
    ensure!(data == right, "{data} is not {right}");
    Ok(())
}

/// Redis loses more commits than memory holds. The record states the first and the last of all lost commits of the
/// shard, their number, and a time before the first of them.
#[test]
fn record_of_commits_beyond_memory_states_all_lost_commits() -> Result<()> {
    // An eighth of the smallest memory budget is 2 MiB. Each event takes more than 300 bytes there.
    const LOST: usize = 20_000;
    let redis = Redis::start(&[])?;
    let home = Home::new(&["tally"], &config(&redis, "memory_budget = \"16MiB\""))?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ingress(&mut service)?;
    // A store that goes back to a time before the claim would have lost the claim too.
    http::ready(&mut service)?;
    let began = Timestamp::now().as_millisecond();
    post_all(address, &events("a", 40))?;
    until_effects(&service, 40)?;
    let before = last_commits(&redis)?;
    let early = redis.snapshot()?;
    let copied = Timestamp::now().as_millisecond();
    post_all(address, &events("b", LOST))?;
    until_effects(&service, 40 + LOST)?;
    let after = last_commits(&redis)?;
    redis.go_back(&early)?;
    let (mut data, shard) = record_of_end(&mut service)?;
    let since: Timestamp = data["since"].take().as_str().context("a time")?.parse()?;
    let since = since.as_millisecond();
    ensure!((began..=copied).contains(&since), "{began} to {copied}: {since}");
    let first = before[shard] + 1;
    let last = after[shard];
    let right = json!({
        "shard": shard, "commits": last + 1 - first, "first": first, "last": last,
        "claim_lost": false, "since": null,
    });
    ensure!(data == right, "{data} is not {right}");
    let words = format!("commits {first} to {last} are lost");
    wait_until("the error", || Ok(service.stderr().contains(&words)))
}
