//! Executes every order of the input with a naive implementation, and compares the result with the output of the host.
//! This module must not share code with the host.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use super::orders::{StepEffect, apply, step};

/// The counts of the input and the output, and the differences that the check found.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) lines: u64,
    pub(crate) keys: usize,
    pub(crate) repeats: u64,
    pub(crate) reordered: u64,
    pub(crate) effects: u64,
    pub(crate) rejected: u64,
    pub(crate) receipts: u64,
    /// The differences; empty if the output is correct.
    pub(crate) wrong: Vec<String>,
}

/// Maximum number of listed differences.
const LISTED_LIMIT: usize = 10;

#[derive(Debug, Default)]
struct Order {
    /// The step (the last part of the type) and the amount of each event, by sequence.
    events: BTreeMap<u64, (String, u64)>,
    /// The status and the amount of each receipt, in the order of the file.
    receipts: Vec<(String, u64)>,
}

pub(crate) fn check(events: &Path, receipts: &Path, letters: &[Value]) -> Result<Verdict> {
    let mut verdict = Verdict::default();
    let mut orders: BTreeMap<String, Order> = BTreeMap::new();
    for line in lines(events)? {
        let event = line?;
        verdict.lines += 1;
        let key = text(&event, "subject")?;
        let sequence: u64 = text(&event, "sequence")?.parse()?;
        let amount = event["data"]["amount_cents"].as_u64().unwrap_or(0);
        let known = &mut orders.entry(key).or_default().events;
        if known.keys().next_back().is_some_and(|last| *last > sequence)
            && !known.contains_key(&sequence)
        {
            verdict.reordered += 1;
        }
        let content = (step(&text(&event, "type")?).to_owned(), amount);
        if known.insert(sequence, content).is_some() {
            verdict.repeats += 1;
        }
    }
    verdict.keys = orders.len();

    let mut ids = HashSet::new();
    for line in lines(receipts)? {
        let receipt = line?;
        verdict.receipts += 1;
        let id = text(&receipt, "id")?;
        if !ids.insert(id.clone()) {
            verdict.wrong.push(format!("receipt {id} was written twice"));
        }
        let key = text(&receipt["data"], "order")?;
        let status = text(&receipt["data"], "status")?;
        let amount = receipt["data"]["amount_cents"].as_u64();
        let order = orders.get_mut(&key).with_context(|| {
            format!("a receipt names order {key}, which the input does not contain")
        })?;
        order.receipts.push((status, amount.unwrap_or(0)));
    }

    let mut refused = BTreeSet::new();
    for (key, order) in &orders {
        replay(key, order, &mut refused, &mut verdict);
    }
    let dead: BTreeSet<(String, u64)> = letters
        .iter()
        .filter_map(|letter| {
            Some((letter["key"].as_str()?.to_owned(), letter["sequence"].as_u64()?))
        })
        .collect();
    for (key, sequence) in refused.symmetric_difference(&dead) {
        verdict.wrong.push(format!(
            "order {key}, event {sequence}: the event {} a dead letter",
            if dead.contains(&(key.clone(), *sequence)) {
                "is, but must not be,"
            } else {
                "must be, but is not,"
            }
        ));
    }
    let more = verdict.wrong.len().saturating_sub(LISTED_LIMIT);
    verdict.wrong.truncate(LISTED_LIMIT);
    if more > 0 {
        verdict.wrong.push(format!("and {more} more differences"));
    }
    Ok(verdict)
}

/// Executes the events of an order from the first to the last, and compares the receipts. Adds the counts and the
/// differences to `verdict`, and the events that the handler must reject to `refused`.
fn replay(key: &str, order: &Order, refused: &mut BTreeSet<(String, u64)>, verdict: &mut Verdict) {
    let mut status = None;
    let mut amount = 0;
    let mut ended = false;
    let mut expected = Vec::new();
    for (at, (sequence, (to, cents))) in order.events.iter().enumerate() {
        if *sequence != at as u64 + 1 {
            verdict.wrong.push(format!("event {} of order {key} is missing in the input", at + 1));
            return;
        }
        let done = if ended { StepEffect::Refused } else { apply(status, to) };
        let StepEffect::Accepted { receipt, ended: ends } = done else {
            refused.insert((key.to_owned(), *sequence));
            verdict.rejected += 1;
            continue;
        };
        verdict.effects += 1;
        if status.is_none() {
            amount = *cents;
        }
        if receipt {
            expected.push((to.clone(), amount));
        }
        status = Some(to.as_str());
        ended = ends;
    }
    if expected != order.receipts {
        verdict.wrong.push(format!(
            "order {key}: the receipts must be {expected:?}, but are {:?}",
            order.receipts
        ));
    }
}

fn lines(path: &Path) -> Result<impl Iterator<Item = Result<Value>>> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    Ok(BufReader::new(file).lines().map(|line| Ok(serde_json::from_str(&line?)?)))
}

fn text(value: &Value, field: &str) -> Result<String> {
    let text = value[field].as_str().with_context(|| format!("no {field} in {value}"))?;
    Ok(text.to_owned())
}
