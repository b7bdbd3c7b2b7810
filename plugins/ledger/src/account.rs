//! The second stage of the ledger: changes the balance of an order with each transaction.

use ordain_sdk::prelude::*;

use crate::State;

#[derive(Deserialize)]
struct Transaction {
    month: String,
    cents: i64,
}

/// The state of an order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Account {
    balance: i64,
    transactions: u64,
    /// The open month; empty before the first transaction.
    month: String,
}

#[derive(Serialize)]
struct Posting {
    cents: i64,
    balance: i64,
}

#[derive(Serialize)]
struct MonthClosed<'a> {
    order: &'a str,
    month: &'a str,
}

pub(crate) fn post(event: &Event<Raw>, mut account: Account) -> Result<Outcome<State>> {
    let Transaction { month, cents } = event.data.json()?;
    if month < account.month {
        return Err(Failure::reject(format!(
            "a transaction of {month} after {} began: the transactions are out of order",
            account.month
        )));
    }
    let mut messages = Vec::new();
    if !account.month.is_empty() && month > account.month {
        messages.push(closed(event, &account.month));
    }
    account.balance = account.balance.checked_add(cents).or_reject("the account is full")?;
    account.transactions += 1;
    let posting = Posting { cents, balance: account.balance };
    messages.push(Message::json("postings", "posting", &posting).key(name(&event.key, &month)));
    if event.end_of_sequence {
        messages.push(closed(event, &month));
    }
    account.month = month;
    Ok(Outcome::put(State::Account(account)).emit_all(messages))
}

/// Returns the message that closes a month of an order.
fn closed(event: &Event<Raw>, month: &str) -> Message {
    let closed = MonthClosed { order: &event.key, month };
    let message = Message::json("postings", "month.closed", &closed);
    message.key(name(&event.key, month)).end_of_sequence(true)
}

fn name(order: &str, month: &str) -> String {
    format!("{order}/{month}")
}
