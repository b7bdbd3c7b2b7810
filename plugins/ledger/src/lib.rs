//! A ledger in three stages: the order of its transactions holds through all of them.
//!
//! 1. *Ledger*, keyed by ledger: an event `ledger.batch` brings many transactions of many orders. They
//!    are walked in order, and each goes on under the key of its order.
//! 2. *Account*, keyed by order: an event `transaction` changes the balance, and is posted to its month.
//! 3. *Statement*, keyed by order and month: events `posting` add up until `month.closed`, which makes
//!    the statement.
//!
//! One component does all three: the type of an event says which. The three streams that run it are
//! joined by two sequenced sinks, so that each key of the next stage has numbers without holes.
//!
//! | event | data | goes to the sink |
//! |---|---|---|
//! | `ledger.batch` | `{"transactions": [{"order", "month", "cents", "last"?}]}` | `transactions`, as `transaction` under the order |
//! | `transaction` | `{"month", "cents"}` | `postings`, as `posting` under `ORDER/MONTH` |
//! | `posting` | `{"cents", "balance"}` | |
//! | `month.closed` | `{"order", "month"}` | `statements`, as `statement` under the order |
//!
//! Months are texts that sort as they follow, such as `2026-03`. A month is closed by the first
//! transaction of a later one, or by the one marked `last`, which ends its order.

mod account;
mod batch;
mod statement;

use ordain_sdk::prelude::*;

use account::Account;
use batch::Ledger;
use statement::Statement;

/// The state of a key, whichever stage it is of.
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
            "an event {kind:?} is nothing for a key {}: see the table in the handler's documentation",
            match state {
                None => "that has had none",
                Some(State::Ledger(_)) => "of a ledger",
                Some(State::Account(_)) => "of an order",
                Some(State::Statement(_)) => "of a month",
            }
        ))),
    }
}

ordain_sdk::handler!(handle);

#[cfg(test)]
mod tests;
