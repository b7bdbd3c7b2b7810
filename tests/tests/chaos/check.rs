//! Checks of the hosts' output and of the store after a round. Each sent event must have taken effect once and in
//! order, or wait in the store behind a missing event of its key. Each sent message that is not a valid event must be a
//! dead letter.

use std::collections::{BTreeMap, BTreeSet};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use ordain_servers::wait_until;
use ordain_tests::amqp::{header, to_line};
use ordain_tests::log::{Line, by_key};
use ordain_tests::tally;
use serde_json::Value;

use super::plan::Plan;
use super::world::World;

/// The longest time until all messages have arrived, counted from the last disturbance.
const ARRIVAL_TIMEOUT: Duration = Duration::from_mins(3);
/// The time for which the test waits after the last message, so that all gaps end. This time is longer than all replay
/// rounds of a gap.
const GAPS_END_DELAY: Duration = Duration::from_secs(8);
/// The largest number of missing events that an error lists.
const LISTED_LIMIT: usize = 5;

/// Waits until each expected message has arrived, and checks the results of the round. Returns a text that states how
/// many keys, events, dead letters and repeated messages the round had.
pub(crate) fn check(world: &mut World, plan: &Plan) -> Result<String> {
    // If one event of a key was never sent, the later events of the key take no effect.
    let mut expected = by_key(&plan.lines)?;
    for (name, key) in &plan.keys {
        if let Some(events) = expected.get_mut(name) {
            events.retain(|sequence, _| *sequence < key.next());
        }
    }
    expected.retain(|_, events| !events.is_empty());
    let settled: usize = expected.values().map(BTreeMap::len).sum();

    let mut out = BTreeMap::new();
    let mut repeats = 0;
    let started = Instant::now();
    while out.len() < settled {
        world.recover_hosts()?;
        repeats += take(world, &mut out)?;
        if started.elapsed() >= ARRIVAL_TIMEOUT {
            let missing = missing(&expected, &out);
            bail!(
                "{} of {settled} messages arrived; no message arrived for {missing:?}",
                out.len()
            );
        }
    }
    sleep(GAPS_END_DELAY);
    wait_until("empty queues", || {
        let queues = world.rabbit().queues()?;
        Ok(queues.values().all(|left| *left == (0, 0)))
    })?;
    world.until_shared()?;
    world.stop_hosts()?;
    repeats += take(world, &mut out)?;
    // If the broker rejected a message, the host publishes the message again. So the messages may arrive in another
    // order than the order in which the handler emitted them. The check therefore sorts the messages by sequence. The
    // hash in each message depends on the hash in the message before it, and so shows that the handler executed the
    // events in order.
    let mut lines: Vec<(u64, &String)> =
        out.values().map(|message| (message.sequence, &message.line)).collect();
    lines.sort();
    let lines: Vec<&str> = lines.into_iter().map(|(_, line)| line.as_str()).collect();
    tally::check(&expected, &lines.join("\n"))?;

    keys(world, plan)?;
    letters(world, plan)?;
    world.restart_hosts()?;
    let lost = plan.keys.values().filter(|key| key.lost.is_some()).count();
    Ok(format!(
        "{} keys, {settled} events with effect, {} of them found by replay, {lost} keys with \
         a lost event, {} dead letters, {repeats} repeated messages",
        plan.keys.len(),
        plan.dropped.len(),
        plan.broken.len(),
    ))
}

struct Message {
    key: String,
    sequence: u64,
    line: String,
}

/// Returns the first few events for which no message arrived, as `key/sequence`.
fn missing(
    expected: &BTreeMap<String, BTreeMap<u64, Line>>,
    out: &BTreeMap<String, Message>,
) -> Vec<String> {
    let arrived: BTreeSet<(&str, u64)> =
        out.values().map(|message| (message.key.as_str(), message.sequence)).collect();
    let events = expected
        .iter()
        .flat_map(|(key, events)| events.keys().map(|sequence| (key.as_str(), *sequence)));
    let missing = events.filter(|event| !arrived.contains(event)).take(LISTED_LIMIT);
    missing.map(|(key, sequence)| format!("{key}/{sequence}")).collect()
}

/// Receives published messages into `out`, which maps the id of a message to the message. Returns how many of these
/// messages had already arrived before.
fn take(world: &mut World, out: &mut BTreeMap<String, Message>) -> Result<usize> {
    let mut repeats = 0;
    for delivery in world.take()? {
        let line = to_line(&delivery)?;
        let message: Value = serde_json::from_str(&line)?;
        let id = message["id"].as_str().context("an id")?.to_owned();
        let key = message["data"]["key"].as_str().context("a key")?.to_owned();
        let sequence = message["data"]["sequence"].as_u64().context("a sequence")?;
        // The handler emits one message for each event. The `X-Sequence-ID` of the message must be the sequence of the
        // event. `tally::check` compares the keys.
        let number = header(&delivery, "X-Sequence-ID").context("a number")?;
        ensure!(
            number == sequence.to_string(),
            "the number {number} is not the sequence of {line}"
        );
        let message = Message { key, sequence, line: line.clone() };
        if let Some(Message { line: before, .. }) = out.insert(id.clone(), message) {
            ensure!(before == line, "two messages with the id {id}: {before} and {line}");
            repeats += 1;
        }
    }
    Ok(repeats)
}

/// Checks the state of each key of the round in the store. A key without a lost event has completed or waits for new
/// events. A key with a lost event waits at the sequence of this event, and the store holds all later events of the
/// key.
fn keys(world: &World, plan: &Plan) -> Result<()> {
    let listed = ["keys", "list", "cases", "--json", "--limit", "1000000"];
    let rows = world.home().rows(&listed)?;
    let rows: BTreeMap<&str, &Value> =
        rows.iter().filter_map(|row| Some((row["key"].as_str()?, row))).collect();
    for (name, key) in &plan.keys {
        let Some(row) = rows.get(name.as_str()) else {
            ensure!(key.events == 1 && key.lost.is_some(), "the store has no key {name}");
            continue;
        };
        let (status, held) = match (key.lost, key.is_ended) {
            // The key is parked only if an event after the lost event arrived, because only a later event shows the
            // gap.
            (Some(lost), _) if lost < key.events => ("parked", key.events - lost),
            (Some(_), _) | (None, false) => ("active", 0),
            (None, true) => ("completed", 0),
        };
        let right = row["next"] == key.next()
            && row["status"] == status
            && row["held"]["count"].as_u64().unwrap_or(0) == held;
        ensure!(right, "key {name} must be {status} at {} with {held} held: {row}", key.next());
    }
    Ok(())
}

/// Checks that the store has one dead letter for each sent message that was not a valid event, and no other dead
/// letters.
fn letters(world: &World, plan: &Plan) -> Result<()> {
    let listed = ["dead", "list", "cases", "--json", "--limit", "1000000"];
    let mut bodies = BTreeSet::new();
    for row in world.home().rows(&listed)? {
        // The dead letter of an unreadable message holds the original message instead of an event.
        let raw = row["raw"]["body"].as_str().map(str::to_owned);
        let body = raw.unwrap_or_else(|| row["event"]["data"].to_string());
        ensure!(body.contains("broken"), "an event is a dead letter: {row}");
        ensure!(bodies.insert(body), "one message has two dead letters: {row}");
    }
    let missing: Vec<_> = plan.broken.keys().filter(|body| !bodies.contains(*body)).collect();
    ensure!(missing.is_empty(), "{missing:?} have no dead letters");
    Ok(())
}
