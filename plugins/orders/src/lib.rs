//! The lifecycle of an order. Each key is an order.
//!
//! The part of an event's type after the last dot names the new status: `order.paid` makes the order *paid*. The valid
//! steps are:
//!
//! | status | next status |
//! |---|---|
//! | no order | created |
//! | created | paid, or cancelled (ends the key) |
//! | paid | packed, cancelled |
//! | packed | shipped, cancelled |
//! | shipped | delivered |
//! | delivered | refunded (ends the key) |
//! | cancelled after it was paid | refunded (ends the key) |
//!
//! A created order can also be updated, any number of times: `order.updated` changes the amount and keeps the status.
//!
//! The handler rejects all other events. The reason of the rejection names the valid steps, or states that only a
//! created order that is not yet paid can be updated. A delivered order can still be refunded. The handler therefore
//! keeps the order until an event refunds it, or until the producer marks an event as the last event of the order
//! (`end-of-sequence`).
//!
//! The data is empty or a JSON object. `order.created` and `order.updated` require the field `amount_cents`, a whole
//! number of at least 0. The handler ignores all other fields, and the amount in all other events. It rejects any event
//! with an invalid `amount_cents`.
//!
//! The handler emits a message to the sink `receipts` when an order is paid, shipped, delivered, cancelled or refunded,
//! and when an update changes its amount. The type of the message is `order.STATUS` or `order.updated`; the data is
//! `{"order": KEY, "status": …, "amount_cents": …}`.

use ordain_sdk::prelude::*;

/// The sink of all messages.
const SINK: &str = "receipts";

/// The step that keeps the status of an order.
const UPDATED_STEP: &str = "updated";

/// The fields of an event's data that the handler reads.
#[derive(Deserialize)]
struct Details {
    amount_cents: Option<u64>,
}

/// The state of a key. A step that ends the order removes the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Order {
    status: Status,
    amount_cents: u64,
}

#[derive(Serialize)]
struct Receipt<'a> {
    order: &'a str,
    status: Status,
    amount_cents: u64,
}

/// The status of an order, and the step that leads to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Created,
    Paid,
    Packed,
    Shipped,
    Delivered,
    Cancelled,
    Refunded,
}

use Status::{Cancelled, Created, Delivered, Packed, Paid, Refunded, Shipped};

const ALL: [Status; 7] = [Created, Paid, Packed, Shipped, Delivered, Cancelled, Refunded];

impl Status {
    fn name(self) -> &'static str {
        match self {
            Created => "created",
            Paid => "paid",
            Packed => "packed",
            Shipped => "shipped",
            Delivered => "delivered",
            Cancelled => "cancelled",
            Refunded => "refunded",
        }
    }

    /// Returns the status to which an event of this type leads; `None` if the type names no status.
    fn of(kind: &str) -> Option<Self> {
        let name = step(kind);
        ALL.into_iter().find(|status| status.name() == name)
    }

    /// Returns the type of the message that the handler emits for this status; `None` if it emits no message.
    fn receipt(self) -> Option<&'static str> {
        match self {
            Created | Packed => None,
            Paid => Some("order.paid"),
            Shipped => Some("order.shipped"),
            Delivered => Some("order.delivered"),
            Cancelled => Some("order.cancelled"),
            Refunded => Some("order.refunded"),
        }
    }
}

/// Returns the step that the type of an event names.
fn step(kind: &str) -> &str {
    kind.rsplit('.').next().unwrap_or(kind)
}

/// Returns whether a step is in the table in the documentation of this crate.
fn may_become(from: Option<Status>, to: Status) -> bool {
    match from {
        None => to == Created,
        Some(Created) => matches!(to, Paid | Cancelled),
        Some(Paid) => matches!(to, Packed | Cancelled),
        Some(Packed) => matches!(to, Shipped | Cancelled),
        Some(Shipped) => to == Delivered,
        Some(Delivered | Cancelled) => to == Refunded,
        Some(Refunded) => false,
    }
}

/// Returns whether a step ends the order: the step refunds the order, or cancels it before payment.
fn ends(from: Option<Status>, to: Status) -> bool {
    to == Refunded || (from == Some(Created) && to == Cancelled)
}

fn handle(event: Event<Option<Details>>, order: Option<Order>) -> Result<Outcome<Order>> {
    if step(&event.kind) == UPDATED_STEP {
        return update(&event, order);
    }
    let from = order.map(|order| order.status);
    let to = Status::of(&event.kind).ok_or_else(|| unknown(&event.kind))?;
    if !may_become(from, to) {
        return Err(impossible(from, to));
    }
    let amount_cents = match order {
        Some(order) => order.amount_cents,
        None => event
            .data
            .and_then(|details| details.amount_cents)
            .or_reject("creating an order requires \"amount_cents\" in the data")?,
    };

    let ended = ends(from, to);
    let receipt = to.receipt().map(|kind| {
        let receipt = Receipt { order: &event.key, status: to, amount_cents };
        let last = ended || event.end_of_sequence;
        Message::json(SINK, kind, &receipt).end_of_sequence(last)
    });
    let outcome = if ended {
        Outcome::delete().complete()
    } else {
        Outcome::put(Order { status: to, amount_cents })
    };
    Ok(outcome.emit_all(receipt))
}

fn update(event: &Event<Option<Details>>, order: Option<Order>) -> Result<Outcome<Order>> {
    let Some(Order { status: Created, amount_cents: before }) = order else {
        return Err(Failure::reject("only a created order that is not yet paid can be updated"));
    };
    let amount_cents = event
        .data
        .as_ref()
        .and_then(|details| details.amount_cents)
        .or_reject("updating an order requires \"amount_cents\" in the data")?;
    if amount_cents == before {
        return Ok(Outcome::keep());
    }
    let receipt = Receipt { order: &event.key, status: Created, amount_cents };
    let message =
        Message::json(SINK, "order.updated", &receipt).end_of_sequence(event.end_of_sequence);
    Ok(Outcome::put(Order { status: Created, amount_cents }).emit(message))
}

ordain_sdk::handler!(handle);

#[cold]
fn unknown(kind: &str) -> Failure {
    Failure::reject(format!(
        "{kind:?} is not a step of an order: the type must end in {}",
        any_of(ALL.into_iter())
    ))
}

#[cold]
fn impossible(from: Option<Status>, to: Status) -> Failure {
    let right = any_of(ALL.into_iter().filter(|status| may_become(from, *status)));
    let to = to.name();
    Failure::reject(match from {
        None => format!("an order that does not exist cannot be {to}: it must be {right} first"),
        Some(from) => {
            format!("an order that is {} cannot be {to}: it can be {right}", from.name())
        }
    })
}

fn any_of(choices: impl Iterator<Item = Status>) -> String {
    choices.map(Status::name).collect::<Vec<_>>().join(" or ")
}

#[cfg(test)]
mod tests;
