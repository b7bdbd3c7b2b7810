//! A ledger with the transactions of many orders (purchases). The module also computes the results that the handler
//! `plugins/ledger` must produce, independently of the handler.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

const MONTHS: usize = 6;

/// The id of an order, and a month such as `2026-01`.
type Month = (String, String);

/// A ledger and its expected results.
#[derive(Debug)]
pub struct Ledger {
    /// The batches of transactions. Each batch is a CloudEvent, as a line of a file. The attribute `endofsequence` is
    /// true in the last batch, and false in the other batches.
    pub batches: Vec<String>,
    /// Each order has a statement for each month in which it has transactions.
    statements: BTreeMap<Month, Value>,
    orders: BTreeMap<String, u64>,
}

impl Ledger {
    /// Makes a ledger with `transactions` random transactions of at most `orders` orders. Each batch has `batch`
    /// transactions, and the last batch may have fewer.
    pub fn new(seed: u64, transactions: usize, orders: u32, batch: usize) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut all: Vec<Value> = (0..transactions)
            .map(|at| {
                let order = format!("order-{}", rng.random_range(0..orders));
                let month = format!("2026-{:02}", 1 + at * MONTHS / transactions);
                json!({"order": order, "month": month, "cents": rng.random_range(-5_000..5_000)})
            })
            .collect();
        let mut ended = BTreeSet::new();
        for transaction in all.iter_mut().rev() {
            if ended.insert(transaction["order"].to_string()) {
                transaction["last"] = true.into();
            }
        }
        let last = transactions.div_ceil(batch);
        let batches = (1..).zip(all.chunks(batch)).map(|(number, transactions)| {
            json!({
                "specversion": "1.0", "id": format!("batch-{number}"), "source": "/bank",
                "type": "ledger.batch", "subject": "main", "sequence": number.to_string(),
                "endofsequence": number == last, "data": {"transactions": transactions},
            })
            .to_string()
        });
        let (statements, orders) = add_up(&all);
        Self { batches: batches.collect(), statements, orders }
    }

    /// Returns the expected number of statements.
    pub fn statements(&self) -> usize {
        self.statements.len()
    }

    /// Checks the data of the received statements. The test must have received each expected statement exactly once.
    pub fn check(&self, came: impl IntoIterator<Item = Value>) -> Result<()> {
        let mut statements = BTreeMap::new();
        for data in came {
            let month = (text(&data, "order")?, text(&data, "month")?);
            let again = statements.insert(month.clone(), data);
            ensure!(again.is_none(), "the order and month {month:?} have two statements");
        }
        for (month, right) in &self.statements {
            let data = statements
                .get(month)
                .with_context(|| format!("the order and month {month:?} have no statement"))?;
            ensure!(
                data == right,
                "the statement of the order and month {month:?} is {data} instead of {right}"
            );
        }
        ensure!(statements.len() == self.statements.len(), "unexpected months have statements");
        Ok(())
    }

    /// Returns the expected number of events of each key of the second stage. The keys of this stage are the orders.
    pub fn orders(&self) -> BTreeMap<String, u64> {
        self.orders.clone()
    }

    /// Returns the expected number of events of each key of the third stage: one for each posting, and one for the
    /// close of the month. The keys of this stage are the pairs of an order and a month.
    pub fn months(&self) -> BTreeMap<String, u64> {
        let events = |data: &Value| data["postings"].as_u64().unwrap_or(0) + 1;
        let months = self.statements.iter();
        months.map(|((order, month), data)| (format!("{order}/{month}"), events(data))).collect()
    }
}

/// Computes the statement of each order and month, and the number of transactions of each order.
fn add_up(all: &[Value]) -> (BTreeMap<Month, Value>, BTreeMap<String, u64>) {
    let mut balances: BTreeMap<String, (i64, u64)> = BTreeMap::new();
    let mut months: BTreeMap<Month, [i64; 5]> = BTreeMap::new();
    for transaction in all {
        let [order, month] =
            ["order", "month"].map(|name| transaction[name].as_str().unwrap_or("").to_owned());
        let cents = transaction["cents"].as_i64().unwrap_or(0);
        let (balance, count) = balances.entry(order.clone()).or_default();
        let sums = months.entry((order, month)).or_insert([*balance, 0, 0, 0, 0]);
        *balance += cents;
        *count += 1;
        sums[if cents < 0 { 2 } else { 1 }] += cents;
        sums[3] += 1;
        sums[4] = *balance;
    }
    let statement = |((order, month), sums): (Month, [i64; 5])| {
        let [opening, credits, debits, postings, closing] = sums;
        let data = json!({
            "order": order, "month": month, "opening": opening, "credits": credits,
            "debits": debits, "postings": postings, "closing": closing,
        });
        ((order, month), data)
    };
    let orders = balances.into_iter().map(|(order, (_, count))| (order, count)).collect();
    (months.into_iter().map(statement).collect(), orders)
}

fn text(data: &Value, name: &str) -> Result<String> {
    let text = data[name].as_str().with_context(|| format!("no {name} in {data}"))?;
    Ok(text.to_owned())
}

/// Checks received messages, each given as key, number and id. The numbers of each key must begin at 1 and have no
/// holes. A message may arrive several times, but must then have the same key, number and id. Each number of a key must
/// belong to one id, and each id to one number of one key. Returns how many different messages each key has.
///
/// The order of arrival does not matter. The messages of a key may arrive out of order if several outboxes send them.
pub fn without_holes(
    came: impl IntoIterator<Item = (String, u64, String)>,
) -> Result<BTreeMap<String, u64>> {
    let mut keys = BTreeMap::<String, BTreeMap<u64, String>>::new();
    let mut ids = BTreeSet::new();
    for (key, number, id) in came {
        let known = keys.entry(key.clone()).or_default().entry(number).or_insert(id.clone());
        ensure!(*known == id, "number {number} of key {key} has the ids {known} and {id}");
        ids.insert(id);
    }
    for (key, numbers) in &keys {
        for (right, number) in (1..).zip(numbers.keys()) {
            ensure!(*number == right, "key {key} lacks number {right}");
        }
    }
    let all: usize = keys.values().map(BTreeMap::len).sum();
    ensure!(ids.len() == all, "{} messages have two numbers", all - ids.len());
    Ok(keys.into_iter().map(|(key, numbers)| (key, numbers.len() as u64)).collect())
}
