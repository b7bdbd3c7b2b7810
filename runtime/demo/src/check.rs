//! Executes every order of the input with a naive implementation, and compares the result with the output of the host.
//! This module must not share code with the host.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::Value;

use crate::orders::{StepEffect, apply, step};

/// Maximum number of listed differences.
const LISTED_LIMIT: usize = 10;

/// The key and the sequence of an event.
type EventName = (String, u64);

/// The status and the amount of a receipt.
type Receipt = (String, u64);

/// The counts of the input, and of the result that the host must have.
#[derive(Debug, Default, Serialize)]
pub(crate) struct InputCounts {
    pub(crate) lines: u64,
    pub(crate) orders: usize,
    pub(crate) repeated: u64,
    pub(crate) out_of_order: u64,
    pub(crate) with_effect: u64,
    pub(crate) rejected: u64,
    pub(crate) receipts: u64,
}

/// The result that the host must have.
#[derive(Debug, Default)]
pub(crate) struct Expectation {
    pub(crate) counts: InputCounts,
    /// The receipts of each order, in their order.
    receipts: BTreeMap<String, Vec<Receipt>>,
    /// The events that must be dead letters.
    refused: BTreeSet<EventName>,
}

impl Expectation {
    /// Reads the events, and executes each order from its first event to its last.
    pub(crate) fn from_events(path: &Path) -> Result<Self> {
        let mut expected = Self::default();
        // For each order, the step (the last part of the type) and the amount of each event, by sequence.
        let mut orders: BTreeMap<String, BTreeMap<u64, (String, u64)>> = BTreeMap::new();
        for event in lines(path)? {
            let event = event?;
            let counts = &mut expected.counts;
            counts.lines += 1;
            let sequence: u64 = text(&event, "sequence")?.parse()?;
            let amount = event["data"]["amount_cents"].as_u64().unwrap_or(0);
            let events = orders.entry(text(&event, "subject")?).or_default();
            let is_late = events.keys().next_back().is_some_and(|last| *last > sequence);
            let content = (step(&text(&event, "type")?).to_owned(), amount);
            if events.insert(sequence, content).is_some() {
                counts.repeated += 1;
            } else if is_late {
                counts.out_of_order += 1;
            }
        }
        expected.counts.orders = orders.len();
        for (key, events) in orders {
            expected.execute(key, &events)?;
        }
        Ok(expected)
    }

    fn execute(&mut self, key: String, events: &BTreeMap<u64, (String, u64)>) -> Result<()> {
        let mut status = None;
        let mut amount = 0;
        let mut has_ended = false;
        let mut receipts = Vec::new();
        for (at, (sequence, (to, cents))) in events.iter().enumerate() {
            ensure!(
                *sequence == at as u64 + 1,
                "event {} of order {key} is missing in the input",
                at + 1
            );
            let effect = if has_ended { StepEffect::Refused } else { apply(status, to) };
            let StepEffect::Accepted { receipt, ended } = effect else {
                self.refused.insert((key.clone(), *sequence));
                self.counts.rejected += 1;
                continue;
            };
            self.counts.with_effect += 1;
            if status.is_none() {
                amount = *cents;
            }
            if receipt {
                receipts.push((to.clone(), amount));
            }
            status = Some(to.as_str());
            has_ended = ended;
        }
        self.counts.receipts += receipts.len() as u64;
        self.receipts.insert(key, receipts);
        Ok(())
    }

    /// Compares the output of the host with this expectation: the file with the receipts, and the dead letters. Returns
    /// the differences; none if the output is correct.
    pub(crate) fn differences(&self, receipts: &Path, letters: &[Value]) -> Result<Vec<String>> {
        let mut differences = Vec::new();
        let mut ids = HashSet::new();
        let mut found: BTreeMap<String, Vec<Receipt>> = BTreeMap::new();
        for receipt in lines(receipts)? {
            let receipt = receipt?;
            let id = text(&receipt, "id")?;
            let data = &receipt["data"];
            let amount = data["amount_cents"].as_u64().context("a receipt without an amount")?;
            found.entry(text(data, "order")?).or_default().push((text(data, "status")?, amount));
            if let Some(repeated) = ids.replace(id) {
                differences.push(format!("receipt {repeated} was written twice"));
            }
        }
        let keys: BTreeSet<&String> = self.receipts.keys().chain(found.keys()).collect();
        for key in keys {
            let none = Vec::new();
            let expected = self.receipts.get(key).unwrap_or(&none);
            let written = found.get(key).unwrap_or(&none);
            if expected != written {
                differences.push(format!(
                    "order {key}: the receipts must be {expected:?}, but are {written:?}"
                ));
            }
        }
        let dead = letters.iter().map(event_name).collect::<Result<BTreeSet<EventName>>>()?;
        for (key, sequence) in self.refused.difference(&dead) {
            differences.push(format!("event {sequence} of order {key} must be a dead letter"));
        }
        for (key, sequence) in dead.difference(&self.refused) {
            differences.push(format!("event {sequence} of order {key} must not be a dead letter"));
        }
        let more = differences.len().saturating_sub(LISTED_LIMIT);
        differences.truncate(LISTED_LIMIT);
        if more > 0 {
            differences.push(format!("and {more} more differences"));
        }
        Ok(differences)
    }
}

fn event_name(letter: &Value) -> Result<EventName> {
    let sequence = letter["sequence"].as_u64().context("a dead letter without a sequence")?;
    Ok((text(letter, "key")?, sequence))
}

fn lines(path: &Path) -> Result<impl Iterator<Item = Result<Value>>> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    Ok(BufReader::new(file).lines().map(|line| Ok(serde_json::from_str(&line?)?)))
}

fn text(value: &Value, field: &str) -> Result<String> {
    let text = value[field].as_str().with_context(|| format!("no {field} in {value}"))?;
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests;
