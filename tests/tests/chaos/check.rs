//! Checks from the host's output and from the store that every sent event took effect once and in order, is held, or is
//! a dead letter.

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

/// How long all messages may take after the last disturbance.
const PATIENCE: Duration = Duration::from_mins(3);
/// How long the gaps may take to end: longer than their replay rounds.
const GAPS: Duration = Duration::from_secs(8);
/// The number of events that an error names.
const FEW: usize = 5;

/// Waits until each expected message has arrived, and checks the results of the round. Returns the counts.
pub(crate) fn check(world: &mut World, plan: &Plan) -> Result<String> {
    // If an event of a key was never sent, the expected events of the key end before this event.
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
        world.look_after_hosts()?;
        repeats += take(world, &mut out)?;
        if started.elapsed() >= PATIENCE {
            let missing = missing(&expected, &out);
            bail!("{} of {settled} messages arrived, without those of {missing:?}", out.len());
        }
    }
    sleep(GAPS);
    wait_until("empty queues", || {
        let queues = world.rabbit().queues()?;
        Ok(queues.values().all(|left| *left == (0, 0)))
    })?;
    world.until_shared()?;
    world.stop_hosts()?;
    repeats += take(world, &mut out)?;
    // If the broker rejected a message, the host may have published it again after later messages. Each message must
    // have been made after its predecessor, which the hash in the message shows.
    let mut lines: Vec<(u64, &String)> =
        out.values().map(|message| (message.sequence, &message.line)).collect();
    lines.sort();
    let lines: Vec<&str> = lines.into_iter().map(|(_, line)| line.as_str()).collect();
    tally::check(&expected, &lines.join("\n"))?;

    keys(world, plan)?;
    letters(world, plan)?;
    world.go_on()?;
    let lost = plan.keys.values().filter(|key| key.lost.is_some()).count();
    Ok(format!(
        "{} keys, {settled} events with effect, {} of them found by replay, {lost} keys held, {} dead \
         letters, {repeats} messages came again",
        plan.keys.len(),
        plan.dropped.len(),
        plan.broken.len(),
    ))
}

/// A published message.
struct Message {
    key: String,
    sequence: u64,
    line: String,
}

/// Returns the first few events without a message, as `key/sequence`.
fn missing(
    expected: &BTreeMap<String, BTreeMap<u64, Line>>,
    out: &BTreeMap<String, Message>,
) -> Vec<String> {
    let came: BTreeSet<(&str, u64)> =
        out.values().map(|message| (message.key.as_str(), message.sequence)).collect();
    let events = expected
        .iter()
        .flat_map(|(key, events)| events.keys().map(|sequence| (key.as_str(), *sequence)));
    let missing = events.filter(|event| !came.contains(event)).take(FEW);
    missing.map(|(key, sequence)| format!("{key}/{sequence}")).collect()
}

/// Receives published messages, by id. Returns how many arrived again.
fn take(world: &mut World, out: &mut BTreeMap<String, Message>) -> Result<usize> {
    let mut repeats = 0;
    for delivery in world.take()? {
        let line = to_line(&delivery)?;
        let message: Value = serde_json::from_str(&line)?;
        let id = message["id"].as_str().context("an id")?.to_owned();
        let key = message["data"]["key"].as_str().context("a key")?.to_owned();
        let sequence = message["data"]["sequence"].as_u64().context("a sequence")?;
        // Each event results in one message under the same key, with the event's number.
        let number = header(&delivery, "X-Sequence-ID").context("a number")?;
        ensure!(number == sequence.to_string(), "number {number} of {line}");
        let message = Message { key, sequence, line: line.clone() };
        if let Some(Message { line: before, .. }) = out.insert(id.clone(), message) {
            ensure!(before == line, "two messages with the id {id}: {before} and {line}");
            repeats += 1;
        }
    }
    Ok(repeats)
}

/// Checks that each key of the round has completed, or waits at the expected sequence with all later events held.
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
            // Later events exist only if the lost event is not the last one.
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

/// Checks that each message that was not an event is a dead letter once, and that no other dead letters exist.
fn letters(world: &World, plan: &Plan) -> Result<()> {
    let listed = ["dead", "list", "cases", "--json", "--limit", "1000000"];
    let mut bodies = BTreeSet::new();
    for row in world.home().rows(&listed)? {
        // The dead letter of an unreadable message holds the whole message instead of an event.
        let raw = row["raw"]["body"].as_str().map(str::to_owned);
        let body = raw.unwrap_or_else(|| row["event"]["data"].to_string());
        ensure!(body.contains("broken"), "an event is a dead letter: {row}");
        ensure!(bodies.insert(body), "one message has two dead letters: {row}");
    }
    let missing: Vec<_> = plan.broken.keys().filter(|body| !bodies.contains(*body)).collect();
    ensure!(missing.is_empty(), "{missing:?} have no dead letters");
    Ok(())
}
