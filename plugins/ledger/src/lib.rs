//! A ledger in three stages, which keep the order of its transactions.
//!
//! 1. *Ledger*, keyed by ledger: an event `ledger.batch` contains many transactions of many orders. The
//!    handler emits them in order, each under the key of its order.
//! 2. *Account*, keyed by order: an event `transaction` changes the balance, and the handler emits a posting to the
//!    month of the transaction.
//! 3. *Statement*, keyed by order and month: the handler adds up the events `posting`, and emits the statement at the
//!    event `month.closed`.
//!
//! One component implements all stages and selects the stage by the type of an event. Two sequenced sinks connect the
//! three streams, so that the events of each key of the second and third stage have numbers without gaps.
//!
//! | event | data | emitted to the sink |
//! |---|---|---|
//! | `ledger.batch` | `{"transactions": [{"order", "month", "cents", "last"?}]}` | `transactions`, as `transaction` under the order |
//! | `transaction` | `{"month", "cents"}` | `postings`, as `posting` under `ORDER/MONTH` |
//! | `posting` | `{"cents", "balance"}` | |
//! | `month.closed` | `{"order", "month"}` | `statements`, as `statement` under the order |
//!
//! Months are texts that sort in order of time, such as `2026-03`. A month is closed by the first
//! transaction of a later month, or by the transaction marked `last`, which ends its order.

mod account;
mod batch;
mod statement;

use ordain_sdk::prelude::*;

use account::Account;
use batch::Ledger;
use statement::Statement;

/// The state of a key, of any stage.
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
