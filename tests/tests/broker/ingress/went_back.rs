//! Tests of a Redis that goes back in time while events wait in it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use ordain_servers::Redis;
use ordain_tests::host::Home;
use ordain_tests::http;
use ordain_tests::log::line;
use ordain_tests::rig::{Rig, config};
use ordain_tests::service::{Service, wait_until};
use serde_json::{Value, json};

use super::support::{SECTIONS, ingress, into_file, post_all};

/// The number of events of each name: more than the host prefetches.
const EVENTS: usize = 3_000;

/// Returns events of separate keys, so that a line of the output identifies the event that took effect.
fn events(name: &str) -> Vec<String> {
    (0..EVENTS).map(|at| line(&format!("{name}{at}"), 1, &json!({ "n": at }))).collect()
}

/// Returns how many events of each name took effect, and checks that no event took effect twice. A message may be
/// published again.
fn effects(service: &Service) -> Result<BTreeMap<char, usize>> {
    let mut ids = BTreeSet::new();
    let mut counts = BTreeMap::new();
    for line in service.stdout().split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        let message: Value = serde_json::from_str(line).context("a message")?;
        ensure!(message["data"]["count"] == 1, "twice: {line}");
        let name = message["subject"].as_str().and_then(|subject| subject.chars().next());
        if ids.insert(message["id"].to_string()) {
            *counts.entry(name.context("a key")?).or_default() += 1;
        }
    }
    Ok(counts)
}

/// After the server went back, new events get numbers of earlier events. The host does not mistake any of them for the
/// earlier event with its number, and it counts the events that were lost unread.
#[test]
fn events_accepted_after_rollback_take_effect() -> Result<()> {
    let redis = Redis::start(&[])?;
    let home = Home::new(
        &["tally"],
        &format!(
            "{SECTIONS}[store]\nkind = \"redis\"\nurl = \"{}\"\nshards = 2\n\
             [streams.cases]\nhandler = \"tally\"\nordering = \"fifo\"\n\
             source = {{ kind = \"http\", prefetch = 5 }}\n\
             [sinks.tally]\nkind = \"file\"\npath = \"-\"\n",
            redis.url()
        ),
    )?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ingress(&mut service)?;
    // The stream is slow, so that most of these events wait.
    post_all(address, &events("a"))?;
    let early = redis.snapshot()?;
    post_all(address, &events("b"))?;
    redis.go_back(&early)?;
    post_all(address, &events("c"))?;
    wait_until("the effects of all events that the server has", || {
        let counts = effects(&service)?;
        Ok(counts.get(&'a') == Some(&EVENTS) && counts.get(&'c') == Some(&EVENTS))
    })?;
    service.until_says("the store went back in time")?;
    let admin = http::admin(&mut service)?;
    let taken = *effects(&service)?.get(&'b').unwrap_or(&0) as u64;
    let metrics = http::get(admin, "/metrics")?.body;
    let lost = metrics.lines().filter(|line| line.starts_with("ordain_events_lost_total{"));
    let lost = lost.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum::<u64>();
    ensure!(
        lost > 0 && lost + taken == EVENTS as u64,
        "{lost} were counted as lost, {taken} took effect"
    );
    service.end()
}

/// The inbox (events over HTTP for a stream of the broker) is in the store too. The server goes back while the broker is
/// down and events wait in the inbox.
#[test]
fn inbox_events_accepted_after_rollback_take_effect() -> Result<()> {
    let redis = Redis::start(&[])?;
    let rig = Rig::alone("", "", "")?;
    let store = format!("[store]\nkind = \"redis\"\nurl = \"{}\"\nshards = 2\n", redis.url());
    let text = config(&rig.rabbit.url(), &format!("{SECTIONS}{store}"), "", "");
    let home = Home::new(&["tally"], &into_file(&text, "-"))?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ingress(&mut service)?;
    rig.until_declared()?;
    rig.rabbit.stop()?;
    post_all(address, &events("a"))?;
    let early = redis.snapshot()?;
    post_all(address, &events("b"))?;
    redis.go_back(&early)?;
    post_all(address, &events("c"))?;
    rig.rabbit.restart()?;
    wait_until("the effects of all events that the server has", || {
        let counts = effects(&service)?;
        Ok(counts.get(&'a') == Some(&EVENTS) && counts.get(&'c') == Some(&EVENTS))
    })?;
    let metrics = http::get(http::admin(&mut service)?, "/metrics")?.body;
    let lost = metrics.lines().filter(|line| line.starts_with("ordain_events_lost_total{"));
    let lost = lost.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum::<u64>();
    let taken = *effects(&service)?.get(&'b').unwrap_or(&0) as u64;
    ensure!(
        lost + taken >= EVENTS as u64,
        "{lost} were counted as lost, {taken} took effect: {}",
        service.stderr()
    );
    service.end()
}
