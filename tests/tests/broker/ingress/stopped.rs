//! A test of a Redis that goes back in time while no host runs. The host cannot detect the loss, and gives the
//! sequences of the lost events to new events.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use anyhow::{Context, Result, ensure};
use ordain_servers::Redis;
use ordain_tests::host::Home;
use ordain_tests::log::{line, unnumbered};
use ordain_tests::service::{Service, wait_until};
use serde_json::{Value, json};

use super::support::{SECTIONS, ingress, post_all};

const KEYS: usize = 10;
/// The number of events of each key that the server still has after it went back in time.
const KEPT: u64 = 2;

/// Returns the events with these numbers for each of the keys. Each event has an id and content of its own.
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

/// Returns the ids of the messages of all events that follow the kept events.
fn late_ids(service: &Service) -> Result<BTreeSet<String>> {
    let late = messages(service)?.into_iter().filter(|(_, sequence)| *sequence > KEPT);
    Ok(late.map(|(id, _)| id).collect())
}

/// Posts two more events of each key. Returns the ids of their messages.
fn post_late(service: &mut Service, numbers: RangeInclusive<u64>) -> Result<BTreeSet<String>> {
    post_all(ingress(service)?, &events(numbers)?)?;
    let all = 2 * KEYS;
    let taken =
        wait_until("the effects of the late events", || Ok(late_ids(service)?.len() >= all));
    taken.with_context(|| service.stderr())?;
    let ids = late_ids(service)?;
    ensure!(ids.len() == all, "{} messages, not {all}: {}", ids.len(), service.stdout());
    Ok(ids)
}

/// The server loses two executed events of each key while the host is stopped. After the next start, two other events
/// of each key get the sequences of the lost events. No message of these events may have the id of a message from
/// before the loss, because a receiver would drop the new message as a repeat.
#[test]
fn events_with_reused_numbers_have_new_message_ids() -> Result<()> {
    let redis = Redis::start(&[])?;
    let home = Home::new(
        &["tally"],
        &format!(
            "{SECTIONS}[store]\nkind = \"redis\"\nurl = \"{}\"\n\
             [streams.cases]\nhandler = \"tally\"\nordering = \"fifo\"\n\
             source = {{ kind = \"http\" }}\n\
             [sinks.tally]\nkind = \"file\"\npath = \"-\"\n",
            redis.url()
        ),
    )?;
    let mut service = Service::start(&home, &["run"])?;
    post_all(ingress(&mut service)?, &events(1..=KEPT)?)?;
    let kept = KEPT as usize * KEYS;
    wait_until("the effects of the kept events", || Ok(messages(&service)?.len() == kept))?;
    let early = redis.snapshot()?;
    post_late(&mut service, 3..=4)?;
    service.end()?;
    let before = messages(&service)?;

    redis.go_back(&early)?;
    service = Service::start(&home, &["run"])?;
    let new = post_late(&mut service, 5..=6)?;
    service.end()?;
    let after = messages(&service)?;
    ensure!(after.values().all(|sequence| *sequence <= 4), "the server lost no event: {after:?}");
    let reused: Vec<&String> = new.iter().filter(|id| before.contains_key(*id)).collect();
    ensure!(reused.is_empty(), "{} of {} ids are reused: {reused:?}", reused.len(), new.len());
    Ok(())
}
