//! Tests of message ids after Redis went back in time and a host started again. The host cannot repeat the lost events,
//! and assigns their sequences to other events.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ordain_servers::{Redis, Sentinel};
use ordain_tests::host::Home;
use ordain_tests::http;
use ordain_tests::log::{line, unnumbered};
use ordain_tests::service::{Service, wait_until};
use serde_json::{Value, json};

use super::support::{self, SECTIONS, ingress, post_all};

const KEYS: usize = 10;
/// The number of events of each key that the server still has after it went back in time.
const KEPT_EVENTS: u64 = 2;

/// Creates a home with a `fifo` stream and a store at `url`. `sections` precedes the other sections of the
/// configuration.
fn home(sections: &str, url: &str) -> Result<Home> {
    let config = format!(
        "{sections}{SECTIONS}[store]\nkind = \"redis\"\nurl = \"{url}\"\nshards = 2\n\
         [streams.cases]\nhandler = \"tally\"\nordering = \"fifo\"\n\
         source = {{ kind = \"http\" }}\n\
         [sinks.tally]\nkind = \"file\"\npath = \"-\"\n"
    );
    Home::new(&["tally"], &config)
}

/// Returns the events with these numbers for each of the keys. Each event has its own id and its own data.
fn events(numbers: RangeInclusive<u64>) -> Result<Vec<String>> {
    let event = |number| {
        (0..KEYS).map(move |key| line(&format!("k{key}"), number, &json!({ "n": number })))
    };
    unnumbered(&numbers.flat_map(event).collect::<Vec<_>>())
}

/// Returns the id of each message, and the sequence of the event that caused the message.
fn messages(service: &Service) -> Result<BTreeMap<String, u64>> {
    let message = |line: &str| -> Result<(String, u64)> {
        let message: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        let id = message["id"].as_str().context("an id")?.to_owned();
        Ok((id, message["data"]["sequence"].as_u64().context("a sequence")?))
    };
    let printed = service.stdout();
    printed.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(message).collect()
}

/// Returns the ids of the messages of all events that follow the kept events of their keys.
fn late_ids(service: &Service) -> Result<BTreeSet<String>> {
    let late = messages(service)?.into_iter().filter(|(_, sequence)| *sequence > KEPT_EVENTS);
    Ok(late.map(|(id, _)| id).collect())
}

fn post_kept(service: &mut Service) -> Result<()> {
    post_all(ingress(service)?, &events(1..=KEPT_EVENTS)?)?;
    let kept = KEPT_EVENTS as usize * KEYS;
    let done =
        wait_until("the effects of the kept events", || Ok(messages(service)?.len() == kept));
    done.with_context(|| service.stderr())
}

/// Posts `late`, which has two events of each key. Returns the ids of the messages of all late events.
fn post_late(service: &mut Service, late: &[String]) -> Result<BTreeSet<String>> {
    post_all(ingress(service)?, late)?;
    let all = 2 * KEYS;
    let taken =
        wait_until("the effects of the late events", || Ok(late_ids(service)?.len() >= all));
    taken.with_context(|| service.stderr())?;
    let ids = late_ids(service)?;
    ensure!(ids.len() == all, "{} messages instead of {all}: {}", ids.len(), service.stdout());
    Ok(ids)
}

/// Starts a host after the server went back in time, and posts two events of each key, which get the sequences of lost
/// events. No message of these events may have the id of a message in `before`, because a receiver would drop the new
/// message as a repeat.
fn check_new_ids(home: &Home, late: &[String], before: &BTreeMap<String, u64>) -> Result<()> {
    let mut service = Service::start(home, &["run"])?;
    let new = post_late(&mut service, late)?;
    service.end()?;
    let after = messages(&service)?;
    ensure!(after.values().all(|sequence| *sequence <= 4), "the server lost no event: {after:?}");
    let reused: Vec<&String> = new.iter().filter(|id| before.contains_key(*id)).collect();
    ensure!(reused.is_empty(), "{} of {} ids are reused: {reused:?}", reused.len(), new.len());
    Ok(())
}

/// The server loses two executed events of each key while the host is stopped. After the next start, other events get
/// the sequences of the lost events. The test has three cases: events with other ids, events with the same ids from
/// another source, and the lost events in another order.
#[test]
fn events_with_reused_numbers_have_new_message_ids() -> Result<()> {
    let redis = Redis::start(&[])?;
    // With a short lease, a start does not wait long for the lease that the snapshot contains. The host that ran at the
    // snapshot owned this lease.
    let home = home("[runtime]\nlease = \"2s\"\n", &redis.url())?;
    let mut service = Service::start(&home, &["run"])?;
    post_kept(&mut service)?;
    let early = redis.snapshot()?;
    let lost = events(3..=4)?;
    post_late(&mut service, &lost)?;
    service.end()?;
    let before = messages(&service)?;

    let other_source: Vec<String> =
        lost.iter().map(|line| line.replace("\"/tests\"", "\"/others\"")).collect();
    ensure!(other_source != lost, "the events have no other source");
    let other_order: Vec<String> = lost.iter().rev().cloned().collect();
    let inputs = [
        ("other ids", events(5..=6)?),
        ("another source", other_source),
        ("another order", other_order),
    ];
    for (difference, late) in inputs {
        redis.go_back(&early)?;
        check_new_ids(&home, &late, &before).context(difference)?;
    }
    Ok(())
}

/// A network split separates the master from the Sentinel. The host continues to write to this master, and makes more
/// commits than it keeps in memory. Then the Sentinel promotes the replica, which lacks these commits, so the host
/// ends. After the next start, other events get the sequences of the lost events.
#[test]
fn events_after_lost_commits_beyond_memory_have_new_message_ids() -> Result<()> {
    // The host keeps recent commits in memory. These commits occupy at most an eighth of the memory budget: 2 MiB of 16
    // MiB. Each event with its own key occupies more than 300 bytes.
    const EVENTS: usize = 20_000;
    // The Sentinel must not replace the master before the test requests the replacement, even if the many events take
    // minutes.
    const SILENCE_LIMIT: Duration = Duration::from_mins(10);
    let group = Sentinel::start()?;
    // The lease is longer than the split, so that the lease does not expire in the new master.
    let runtime = "[runtime]\nmemory_budget = \"16MiB\"\nlease = \"10m\"\n";
    let home = home(runtime, &group.url())?;
    let mut service = Service::start(&home, &["run"])?;
    // The replica must have the host's claim. If the new master lacked the claim, the host would end for that reason.
    http::ready(&mut service)?;
    post_kept(&mut service)?;
    group.down_after(SILENCE_LIMIT)?;
    let _cut_off = group.cut_off()?;
    post_late(&mut service, &events(3..=4)?)?;
    post_all(ingress(&mut service)?, &support::events("b", EVENTS))?;
    let all = 4 * KEYS + EVENTS;
    wait_until("the effects of all events", || Ok(service.stdout().lines().count() >= all))
        .with_context(|| service.stderr())?;
    group.replace_master()?;
    let status = service.wait()?;
    let log = service.stderr();
    let is_explained = log.contains("are lost, and this process has only commits from");
    ensure!(status.code() == Some(1) && is_explained, "{status}: {log}");
    check_new_ids(&home, &events(5..=6)?, &messages(&service)?)
}
