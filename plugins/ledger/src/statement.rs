//! The third stage of the ledger: adds up the postings that an order has in a month, and emits the statement of that
//! month.

use ordain_sdk::prelude::*;

use crate::State;

#[derive(Deserialize)]
struct Posting {
    cents: i64,
    balance: i64,
}

#[derive(Deserialize)]
struct MonthClosed {
    order: String,
    month: String,
}

/// The totals of one month of an order; all amounts in cents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Statement {
    /// The balance before the first posting.
    opening: i64,
    credits: i64,
    debits: i64,
    postings: u64,
    closing: i64,
}

#[derive(Serialize)]
struct Statements<'a> {
    order: &'a str,
    month: &'a str,
    #[serde(flatten)]
    statement: &'a Statement,
}

pub(crate) fn add(event: &Event<Raw>, statement: Option<Statement>) -> Result<Outcome<State>> {
    let Posting { cents, balance } = event.data.json()?;
    let before =
        balance.checked_sub(cents).or_reject("the balance before this posting is out of range")?;
    let mut statement = statement.unwrap_or(Statement {
        opening: before,
        credits: 0,
        debits: 0,
        postings: 0,
        closing: before,
    });
    if statement.closing != before {
        return Err(Failure::reject(format!(
            "a posting to a balance of {before} cents, but the balance is {}: postings are missing or out of order",
            statement.closing
        )));
    }
    let sum = if cents < 0 { &mut statement.debits } else { &mut statement.credits };
    *sum = sum.checked_add(cents).or_reject("the statement is full")?;
    statement.postings += 1;
    statement.closing = balance;
    Ok(Outcome::put(State::Statement(statement)))
}

pub(crate) fn close(event: &Event<Raw>, statement: &Statement) -> Result<Outcome<State>> {
    let MonthClosed { order, month } = event.data.json()?;
    let statement = Statements { order: &order, month: &month, statement };
    let message = Message::json("statements", "statement", &statement).key(&order);
    Ok(Outcome::delete().emit(message).complete())
}
