//! Tests of a host that ends because it cannot repeat commits that the store has lost. The record of the loss in the
//! log must state these commits.

use anyhow::{Context, Result, bail, ensure};
use jiff::Timestamp;
use ordain_servers::Redis;
use ordain_tests::host::Home;
use ordain_tests::http;
use ordain_tests::incident::{last_commit, records};
use ordain_tests::log::text;
use ordain_tests::service::{Service, wait_until};
use serde_json::{Value, json};

use super::support::{LINES_TYPE, SECTIONS, events, ingress, post, post_all};

const SHARDS: u32 = 2;

fn config(redis: &Redis, runtime: &str) -> String {
    format!(
        "{SECTIONS}[runtime]\n{runtime}\n\
         [store]\nkind = \"redis\"\nurl = \"{}\"\nshards = {SHARDS}\n\
         [streams.cases]\nhandler = \"tally\"\nordering = \"fifo\"\nsource = {{ kind = \"http\" }}\n\
         [sinks.tally]\nkind = \"file\"\npath = \"-\"\n",
        redis.url()
    )
}

/// Waits until the host has printed at least `count` messages.
fn until_effects(service: &Service, count: usize) -> Result<()> {
    let printed =
        wait_until("the effects of all events", || Ok(service.stdout().lines().count() >= count));
    printed.with_context(|| service.stderr())
}

fn last_commits(redis: &Redis) -> Result<Vec<u64>> {
    (0..SHARDS).map(|shard| last_commit(redis, shard, "cases")).collect()
}

/// Waits until the host has ended with exit code 1. Returns the data of the only record of lost commits in the log, and
/// the shard that the record names.
fn record_of_end(service: &mut Service) -> Result<(Value, usize)> {
    let status = service.wait()?;
    let log = service.stderr();
    ensure!(status.code() == Some(1), "{status}: {log}");
    let all = records(&log)?;
    let lost: Vec<&Value> =
        all.iter().filter(|record| record["type"] == "ordain.commits.lost").collect();
    let [record] = lost[..] else { bail!("the log must contain exactly one record: {log}") };
    ensure!(record["source"] == "/ordain/cases" && record["subject"] == "partition/0", "{record}");
    let shard = record["data"]["shard"].as_u64().context("a shard")?;
    let error = format!("the store went back in time in shard {shard}");
    ensure!(log.contains(&error), "the record names another shard than the error: {log}");
    Ok((record["data"].clone(), shard as usize))
}

/// Calls `lose`, which removes data from Redis, including a claim of the host. The host must end. The record of the
/// loss must state all commits of the host in one shard and the loss of the claim, and must state no time. Returns the
/// number of this shard.
fn check_lost_claim(lose: impl FnOnce(&Redis) -> Result<()>) -> Result<usize> {
    let redis = Redis::start(&[])?;
    let home = Home::new(&["tally"], &config(&redis, "lease = \"2s\""))?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ingress(&mut service)?;
    post_all(address, &events("a", 40))?;
    until_effects(&service, 40)?;
    let last = last_commits(&redis)?;
    lose(&redis)?;
    // The host may reject these events because it has already detected the loss. If the host accepts the events, it
    // writes to each shard and detects the loss.
    let _ = post(address, LINES_TYPE, &text(&events("b", 40)));
    let (data, shard) = record_of_end(&mut service)?;
    let last = last[shard];
    ensure!(last > 0, "the host had made no commit in shard {shard}");
    let right =
        json!({ "shard": shard, "commits": last, "first": 1, "last": last, "claim_lost": true });
    ensure!(data == right, "the record states {data}, not {right}");
    let words = "but the shard has lost the claim of this owner";
    ensure!(service.stderr().contains(words), "the error lacks {words:?}: {}", service.stderr());
    Ok(shard)
}

#[test]
fn record_of_lost_claim_states_all_commits_of_the_host() -> Result<()> {
    check_lost_claim(|redis| redis.command(&["FLUSHALL"]).map(drop)).map(drop)
}

/// Another program removes only the Redis key with the key records of one shard.
#[test]
fn host_ends_after_removal_of_the_key_records_of_a_shard() -> Result<()> {
    const SHARD: u32 = 1;
    let shard = check_lost_claim(|redis| {
        let removed = redis.command(&["DEL", &format!("ordain:{{{SHARD}}}:data:cases")])?;
        ensure!(removed.int() == Some(1), "the shard had no key records: {removed:?}");
        Ok(())
    })?;
    ensure!(shard == SHARD as usize, "the host found the loss in shard {shard}");
    Ok(())
}

/// Redis loses more commits than the host keeps in memory. The record must state the first and the last lost commit of
/// the shard, the number of lost commits, and a time before the first lost commit.
#[test]
fn record_of_commits_beyond_memory_states_all_lost_commits() -> Result<()> {
    // The host keeps recent commits in memory, so that it can repeat them. These commits occupy at most an eighth of
    // the memory budget: 2 MiB of 16 MiB. Each event occupies more than 300 bytes.
    const LOST_EVENTS: usize = 20_000;
    let redis = Redis::start(&[])?;
    let home = Home::new(&["tally"], &config(&redis, "memory_budget = \"16MiB\""))?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ingress(&mut service)?;
    // The host must have its claim before the snapshot. Otherwise the store would also lose the claim.
    http::ready(&mut service)?;
    let began = Timestamp::now().as_millisecond();
    post_all(address, &events("a", 40))?;
    until_effects(&service, 40)?;
    let before = last_commits(&redis)?;
    let early = redis.snapshot()?;
    let copied = Timestamp::now().as_millisecond();
    post_all(address, &events("b", LOST_EVENTS))?;
    until_effects(&service, 40 + LOST_EVENTS)?;
    let after = last_commits(&redis)?;
    redis.go_back(&early)?;
    let (mut data, shard) = record_of_end(&mut service)?;
    let since: Timestamp = data["since"].take().as_str().context("a time")?.parse()?;
    let since = since.as_millisecond();
    ensure!(
        (began..=copied).contains(&since),
        "the record's `since` is {since}, not between {began} and {copied}"
    );
    let first = before[shard] + 1;
    let last = after[shard];
    let right = json!({
        "shard": shard, "commits": last + 1 - first, "first": first, "last": last,
        "claim_lost": false, "since": null,
    });
    ensure!(data == right, "the record states {data}, not {right}");
    let words = format!("commits {first} to {last} are lost");
    wait_until("the error", || Ok(service.stderr().contains(&words)))
}
