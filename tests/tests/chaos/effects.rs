//! Effects of events, read from the messages of the handler `tally`, and a check of the events that took effect.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ordain_tests::log::Line;
use ordain_tests::service::wait_until;
use ordain_tests::tally::{FIRST_HASH, hash};
use serde_json::Value;

use super::events::{AcceptedEvent, SentEvents};
use super::receiver::Receiver;
use super::routes::Route;

/// How long a round waits for late effects before it counts the lost events. Most polling intervals and retry delays of
/// the host are shorter, but not all: for example, a host queries the Sentinels every five seconds. If the number of
/// lost events contradicts the reports of the hosts, the round therefore waits longer ([`EffectsWait`]).
pub(crate) const RECOUNT_INTERVAL: Duration = Duration::from_secs(4);
/// How long a round waits for late effects if the number of lost events contradicts the reports of the hosts. This time
/// is twice the longest retry delay of a host (30 seconds).
const LATE_EFFECTS_TIMEOUT: Duration = Duration::from_mins(1);
/// The hashes in the messages, for each key and each count. Each message contains a count: the number of events that
/// the key's state had counted when the handler emitted the message. If the store lost writes, several messages of a
/// key may have the same count.
pub(crate) type Effects = BTreeMap<String, BTreeMap<u64, Vec<u64>>>;
/// The number of events that took effect, for each key.
pub(crate) type EffectCounts = BTreeMap<String, usize>;

/// Reads the messages in the outputs of the hosts. Returns an error if two messages have the same id and different
/// content.
fn effects<'a>(outputs: impl IntoIterator<Item = &'a str>) -> Result<Effects> {
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

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Demands {
    /// True if every event must have taken effect, even an event that a host accepted while the servers could lose
    /// writes.
    pub(crate) wants_all: bool,
    /// The largest number of times that a key may have lost its key record and started again with an empty state.
    pub(crate) resets: u32,
    /// True if no effect can have been lost. The output must then contain exactly one message for each event that took
    /// effect.
    pub(crate) is_exact: bool,
    pub(crate) route: Route,
}

/// Checks that each event took effect at most once and in order, and that every event that must take effect has done
/// so. Returns how many events of each key took effect.
fn count_taken(sent: &SentEvents, effects: &Effects, demands: Demands) -> Result<EffectCounts> {
    let mut all = EffectCounts::new();
    for (key, events) in sent {
        let of_key = effects.get(key);
        let taken = count_effects(key, events, of_key, demands)?;
        let messages: usize = of_key.into_iter().flatten().map(|(_, hashes)| hashes.len()).sum();
        ensure!(
            !demands.is_exact || messages == taken,
            "key {key}: {taken} events took effect, but the output has {messages} messages"
        );
        all.insert(key.clone(), taken);
    }
    Ok(all)
}

/// Returns how many of a key's events took effect. The hash in each message depends on the event and on the hash in the
/// message before it, so the messages of all effects form a chain. Messages outside of this chain belong to effects
/// that the store has lost.
fn count_effects(
    key: &str,
    events: &[AcceptedEvent],
    effects: Option<&BTreeMap<u64, Vec<u64>>>,
    demands: Demands,
) -> Result<usize> {
    let none = BTreeMap::new();
    let effects = effects.unwrap_or(&none);
    let must = |event: &AcceptedEvent| event.is_safe || demands.wants_all;
    let received = |event: &AcceptedEvent| demands.route.received(key, event.number);
    let mut lines: Vec<Line> = events.iter().map(received).collect();
    let start = PartialChain { taken: 0, count: 0, hash: FIRST_HASH, seen: 0, resets: 0 };
    // `open` is a stack. The chain that skips the fewest events is on top, and so is examined first.
    let mut open = vec![start];
    let mut best = start;
    let mut whole = None;
    while let Some(partial) = open.pop() {
        let rest = &events[partial.seen..];
        if whole.is_some_and(|taken| partial.taken + rest.len() <= taken) {
            continue;
        }
        if (partial.seen, partial.taken) > (best.seen, best.taken) {
            best = partial;
        }
        if !rest.iter().any(must) {
            whole = whole.max(Some(partial.taken));
        }
        if partial.count > 0 && partial.resets < demands.resets {
            open.push(PartialChain {
                count: 0,
                hash: FIRST_HASH,
                resets: partial.resets + 1,
                ..partial
            });
        }
        let Some(hashes) = effects.get(&(partial.count + 1)) else { continue };
        // The chain can continue with the next event that must have taken effect, or with any event in `rest` before
        // it. The chain then skips the earlier events in `rest`, because these events may be lost.
        let until = rest.iter().position(must).map_or(events.len(), |at| partial.seen + at + 1);
        let mut found = Vec::new();
        for (seen, line) in (partial.seen + 1..).zip(&mut lines[partial.seen..until]) {
            line.sequence = partial.count + 1;
            let hash = hash(partial.hash, line);
            let taken = partial.taken + 1;
            if hashes.contains(&hash) {
                found.push(PartialChain { taken, count: partial.count + 1, hash, seen, ..partial });
            }
            if found.len() == hashes.len() {
                break;
            }
        }
        open.extend(found.into_iter().rev());
    }
    whole.with_context(|| {
        let PartialChain { taken, seen, .. } = best;
        let after = after(best, effects, &mut lines);
        format!("key {key}: {taken} events took effect, but not {:?}; {after}", events.get(seen))
    })
}

/// Describes the messages after a chain that cannot continue.
fn after(chain: PartialChain, effects: &BTreeMap<u64, Vec<u64>>, lines: &mut [Line]) -> String {
    let next = chain.count + 1;
    let Some(hashes) = effects.get(&next) else {
        let newest = effects.last_key_value().map(|(count, _)| count);
        return format!(
            "the output has no message with the count {next}; the newest count is {newest:?}"
        );
    };
    let mut found = Vec::new();
    for (number, line) in (1..).zip(lines) {
        line.sequence = next;
        if hashes.contains(&hash(chain.hash, line)) {
            found.push(number);
        }
    }
    format!(
        "{} messages have the count {next}, and after the last of these events they can only be of the events {found:?}",
        hashes.len()
    )
}

/// The first part of a possible chain.
#[derive(Debug, Clone, Copy)]
struct PartialChain {
    /// The number of events in the chain, all of which took effect.
    taken: usize,
    /// The number of events that the key's state has counted since its last reset. `hash` is the hash after these
    /// events.
    count: u64,
    hash: u64,
    /// The number of examined events: the events in the chain and the skipped events.
    seen: usize,
    resets: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) accepted: usize,
    /// The number of safe events ([`AcceptedEvent::is_safe`]): the target accepted them while the servers could not
    /// lose writes.
    pub(crate) safe: usize,
    /// The number of accepted events without an effect. In `operator.rs`, events that wait in the store do not count.
    pub(crate) lost: usize,
}

pub(crate) fn effects_of(hosts: &[Receiver]) -> Result<Effects> {
    let outputs: Vec<String> = hosts.iter().map(Receiver::output).collect();
    effects(outputs.iter().map(String::as_str))
}

/// Returns how many events of each key took effect. Returns an error if an event that must take effect has not taken
/// effect.
pub(crate) fn taken(
    hosts: &[Receiver],
    sent: &SentEvents,
    demands: Demands,
) -> Result<EffectCounts> {
    count_taken(sent, &effects_of(hosts)?, demands)
}

pub(crate) fn until_taken(hosts: &[Receiver], sent: &SentEvents, demands: Demands) -> Result<()> {
    let mut last = None;
    let arrived = wait_until("effects of all safe events", || {
        last = Some(taken(hosts, sent, demands));
        Ok(matches!(last, Some(Ok(_))))
    });
    arrived.with_context(|| format!("{last:?}"))
}

/// The wait until no more events take effect. An event that still waits must not count as lost.
pub(crate) struct EffectsWait {
    counts: Option<EffectCounts>,
    /// The time of the last change of `counts`.
    changed_at: Instant,
}

impl EffectsWait {
    pub(crate) fn start() -> Self {
        Self { counts: None, changed_at: Instant::now() }
    }

    /// Returns whether the wait is over. The caller passes the present counts every [`RECOUNT_INTERVAL`]. The wait
    /// continues while the counts change. When the counts are the same as at the previous call, `compare` compares them
    /// with the reports of the hosts. If `compare` fails, events may still wait, so the wait continues. Returns the
    /// error of `compare` if the counts have not changed for [`LATE_EFFECTS_TIMEOUT`].
    pub(crate) fn is_over(
        &mut self,
        counts: &EffectCounts,
        compare: impl FnOnce() -> Result<()>,
    ) -> Result<bool> {
        if self.counts.as_ref() != Some(counts) {
            self.counts = Some(counts.clone());
            self.changed_at = Instant::now();
            return Ok(false);
        }
        match compare() {
            Ok(()) => Ok(true),
            Err(error) if self.changed_at.elapsed() > LATE_EFFECTS_TIMEOUT => Err(error),
            Err(_) => Ok(false),
        }
    }
}

impl Counts {
    /// Returns the counts of a round in which the events in `taken` took effect.
    pub(crate) fn of(sent: &SentEvents, taken: &EffectCounts) -> Self {
        let all = sent.values().flatten();
        let taken: usize = taken.values().sum();
        let accepted = all.clone().count();
        Self { accepted, safe: all.filter(|event| event.is_safe).count(), lost: accepted - taken }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { accepted, safe, lost } = self;
        write!(
            f,
            "{accepted} events accepted, {safe} of them while the servers could lose no writes, {lost} lost"
        )
    }
}
