//! The effects that the messages of the handler `tally` show, and the check of the events that took effect.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ordain_tests::log::Line;
use ordain_tests::service::wait_until;
use ordain_tests::tally::{FIRST_HASH, hash};
use serde_json::Value;

use super::events::{Accepted, Sent};
use super::receiver::Receiver;
use super::ways::Way;

/// How long the round waits for late effects before it counts the lost events: longer than any poll or retry of the
/// host.
pub(crate) const SETTLE_TIME: Duration = Duration::from_secs(4);
/// The hashes in the messages, by key and by the number of events that the key's state had counted.
pub(crate) type Effects = BTreeMap<String, BTreeMap<u64, Vec<u64>>>;

/// Reads the messages of the hosts. Messages with the same id must have the same content.
pub(crate) fn effects<'a>(outputs: impl IntoIterator<Item = &'a str>) -> Result<Effects> {
    let mut effects = Effects::new();
    let mut ids = BTreeMap::new();
    for out in outputs {
        for line in out.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            let message: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
            let data = &message["data"];
            let id = message["id"].as_str().context("an id")?.to_owned();
            if let Some(before) = ids.insert(id, data.clone()) {
                ensure!(before == *data, "another message has the id of {line}");
                continue;
            }
            let hash = u64::from_str_radix(data["hash"].as_str().context("a hash")?, 16)?;
            let key = data["key"].as_str().context("a key")?.to_owned();
            let count = data["count"].as_u64().context("a count")?;
            effects.entry(key).or_default().entry(count).or_default().push(hash);
        }
    }
    Ok(effects)
}

/// The requirements on the effects of a round.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Demands {
    /// True if every event must have taken effect, even one that was accepted while the servers might lose it.
    pub(crate) wants_all: bool,
    /// How often a key may have lost its record and started again.
    pub(crate) resets: u32,
    /// True if the output must contain only the messages of the events, because no effect was lost.
    pub(crate) is_exact: bool,
    /// The way of the events.
    pub(crate) way: Way,
}

/// Checks that each event took effect at most once and in the order of its key, and that every event that must take
/// effect did. Returns how many events took effect.
pub(crate) fn count_taken(sent: &Sent, effects: &Effects, demands: Demands) -> Result<usize> {
    let mut all = 0;
    for (key, events) in sent {
        let of_key = effects.get(key);
        let taken = chain(key, events, of_key, demands)?;
        let messages: usize = of_key.into_iter().flatten().map(|(_, hashes)| hashes.len()).sum();
        ensure!(
            !demands.is_exact || messages == taken,
            "key {key}: {taken} events took effect, but the output has {messages} messages"
        );
        all += taken;
    }
    Ok(all)
}

/// Returns how many of a key's events took effect, which a chain of hashes in the messages shows. Messages of lost
/// effects may exist outside of the chain.
fn chain(
    key: &str,
    events: &[Accepted],
    effects: Option<&BTreeMap<u64, Vec<u64>>>,
    demands: Demands,
) -> Result<usize> {
    let none = BTreeMap::new();
    let effects = effects.unwrap_or(&none);
    let must = |event: &Accepted| event.is_safe || demands.wants_all;
    let received = |event: &Accepted| demands.way.received(key, event.number);
    let mut lines: Vec<Line> = events.iter().map(received).collect();
    let start = Link { taken: 0, count: 0, hash: FIRST_HASH, seen: 0, resets: 0 };
    // The longest chains are on top.
    let mut open = vec![start];
    let mut best = (0, 0);
    let mut whole = None;
    while let Some(link) = open.pop() {
        let rest = &events[link.seen..];
        if whole.is_some_and(|taken| link.taken + rest.len() <= taken) {
            continue;
        }
        best = best.max((link.seen, link.taken));
        if !rest.iter().any(must) {
            whole = whole.max(Some(link.taken));
        }
        if link.count > 0 && link.resets < demands.resets {
            open.push(Link { count: 0, hash: FIRST_HASH, resets: link.resets + 1, ..link });
        }
        let Some(hashes) = effects.get(&(link.count + 1)) else { continue };
        // Lost events are skipped.
        let until = rest.iter().position(must).map_or(events.len(), |at| link.seen + at + 1);
        let mut found = Vec::new();
        for (seen, line) in (link.seen + 1..).zip(&mut lines[link.seen..until]) {
            line.sequence = link.count + 1;
            let hash = hash(link.hash, line);
            let taken = link.taken + 1;
            if hashes.contains(&hash) {
                found.push(Link { taken, count: link.count + 1, hash, seen, ..link });
            }
            if found.len() == hashes.len() {
                break;
            }
        }
        open.extend(found.into_iter().rev());
    }
    let (seen, count) = best;
    whole.with_context(|| format!("key {key}: {count} took effect, but not {:?}", events.get(seen)))
}

/// The beginning of a chain.
#[derive(Debug, Clone, Copy)]
struct Link {
    /// How many events took effect.
    taken: usize,
    /// How many of these events the key's state had counted. `hash` is their hash.
    count: u64,
    hash: u64,
    /// How many events were examined.
    seen: usize,
    resets: u32,
}

/// The event counts of a round.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) accepted: usize,
    pub(crate) safe: usize,
    pub(crate) lost: usize,
}

/// Returns how many events took effect. Returns an error if an event has not taken effect although it must.
pub(crate) fn taken(hosts: &[Receiver], sent: &Sent, demands: Demands) -> Result<usize> {
    let outputs: Vec<String> = hosts.iter().map(Receiver::output).collect();
    count_taken(sent, &effects(outputs.iter().map(String::as_str))?, demands)
}

/// Waits until every event that must take effect has done so.
pub(crate) fn until_taken(hosts: &[Receiver], sent: &Sent, demands: Demands) -> Result<()> {
    let mut last = None;
    let arrived = wait_until("effects of all safe events", || {
        last = Some(taken(hosts, sent, demands));
        Ok(matches!(last, Some(Ok(_))))
    });
    arrived.with_context(|| format!("{last:?}"))
}

impl Counts {
    /// Makes the counts of a round with this number of effects.
    pub(crate) fn of(sent: &Sent, taken: usize) -> Self {
        let all = sent.values().flatten();
        let accepted = all.clone().count();
        Self { accepted, safe: all.filter(|event| event.is_safe).count(), lost: accepted - taken }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { accepted, safe, lost } = self;
        write!(
            f,
            "{accepted} events accepted, {safe} of them while no writes were lost, {lost} lost"
        )
    }
}
