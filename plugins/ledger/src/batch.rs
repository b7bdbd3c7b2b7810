//! The first stage of the ledger: splits each batch into its transactions.

use ordain_sdk::prelude::*;

use crate::State;

#[derive(Deserialize)]
struct Batch {
    transactions: Vec<Transaction>,
}

#[derive(Deserialize)]
struct Transaction {
    order: String,
    month: String,
    cents: i64,
    /// True for the last transaction of its order.
    #[serde(default)]
    last: bool,
}

/// The totals of a ledger.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ledger {
    transactions: u64,
    cents: i64,
}

/// The data of the message that sends a transaction to its order.
#[derive(Serialize)]
struct TransactionMessage<'a> {
    month: &'a str,
    cents: i64,
}

pub(crate) fn walk(event: &Event<Raw>, mut ledger: Ledger) -> Result<Outcome<State>> {
    let batch: Batch = event.data.json()?;
    let mut messages = Vec::with_capacity(batch.transactions.len());
    for Transaction { order, month, cents, last } in &batch.transactions {
        ledger.transactions += 1;
        ledger.cents = ledger.cents.checked_add(*cents).or_reject("the ledger is full")?;
        let forwarded = TransactionMessage { month, cents: *cents };
        let message = Message::json("transactions", "transaction", &forwarded);
        messages.push(message.key(order).end_of_sequence(*last));
    }
    Ok(Outcome::put(State::Ledger(ledger)).emit_all(messages))
}
