//! A ledger in three stages (streams). Each stage receives the transactions of a key one after the other, as they
//! follow each other in the ledger. On this page, an *order* is always a purchase.
//!
//! 1. *Ledger*, keyed by ledger: an event `ledger.batch` contains many transactions of many orders. The handler emits
//!    the transactions one after the other. The key of each emitted message is the order of the transaction.
//! 2. *Account*, keyed by order: an event `transaction` changes the balance of the order, and the handler emits a
//!    posting for the month of the transaction.
//! 3. *Statement*, keyed by order and month: the handler adds up the amounts of the events `posting`. When the handler
//!    receives `month.closed`, it emits the statement of the month.
//!
//! One component implements all stages and selects the stage by the type of an event. Two sequenced sinks connect the
//! three streams, so the events of each key in the second and third stage have numbers without gaps.
//!
//! | event | data | emitted to the sink |
//! |---|---|---|
//! | `ledger.batch` | `{"transactions": [{"order", "month", "cents", "last"?}]}` | `transactions`: type `transaction`, key `ORDER` |
//! | `transaction` | `{"month", "cents"}` | `postings`: types `posting` and `month.closed`, key `ORDER/MONTH` |
//! | `posting` | `{"cents", "balance"}` | |
//! | `month.closed` | `{"order", "month"}` | `statements`: type `statement`, key `ORDER` |
//!
//! Months are texts that sort by time, such as `2026-03`. The second stage closes a month of an order in two cases: at
//! the first transaction of a later month, and at the transaction with `last`. The transaction with `last` also ends
//! the key of the order.

mod account;
mod batch;
mod statement;

use ordain_sdk::prelude::*;

use account::Account;
use batch::Ledger;
use statement::Statement;

/// The state of a key. Each stage uses one variant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ledger(Ledger),
    Account(Account),
    Statement(Statement),
}

#[expect(clippy::needless_pass_by_value, reason = "a handler has this form")]
fn handle(event: Event<Raw>, state: Option<State>) -> Result<Outcome<State>> {
    match (event.kind.as_str(), state) {
        ("ledger.batch", None) => batch::walk(&event, Ledger::default()),
        ("ledger.batch", Some(State::Ledger(ledger))) => batch::walk(&event, ledger),
        ("transaction", None) => account::post(&event, Account::default()),
        ("transaction", Some(State::Account(account))) => account::post(&event, account),
        ("posting", None) => statement::add(&event, None),
        ("posting", Some(State::Statement(statement))) => statement::add(&event, Some(statement)),
        ("month.closed", Some(State::Statement(statement))) => statement::close(&event, &statement),
        (kind, state) => Err(Failure::reject(format!(
            "an event {kind:?} is invalid for {}: see the table in the handler's documentation",
            match state {
                None => "a key without earlier events",
                Some(State::Ledger(_)) => "a key of a ledger",
                Some(State::Account(_)) => "a key of an order",
                Some(State::Statement(_)) => "a key of a month",
            }
        ))),
    }
}

ordain_sdk::handler!(handle);

#[cfg(test)]
mod tests;
