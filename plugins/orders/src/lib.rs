//! The life of an order, one key an order.
//!
//! An event's type names the status that it leads to, after its last dot: `order.paid` makes the
//! order *paid*. What may follow what:
//!
//! | the order is | it may become |
//! |---|---|
//! | not there yet | created |
//! | created | paid, or cancelled (ends the key) |
//! | paid | packed, cancelled |
//! | packed | shipped, cancelled |
//! | shipped | delivered |
//! | delivered | refunded (ends the key) |
//! | cancelled after it was paid | refunded (ends the key) |
//!
//! A created order may also be updated, as often as the customer likes: `order.updated` changes
//! its amount and not its status.
//!
//! Everything else is rejected with a reason that says what would be right. A delivered order
//! may come back, so it stays until the producer marks its last event with `end-of-sequence`.
//!
//! The data is JSON. `order.created` and `order.updated` need `amount_cents`, a whole number; all
//! other fields, and the data of the later events, are the producer's affair.
//!
//! A message goes to the sink `receipts` when an order is paid, shipped, delivered, cancelled or
//! refunded, and when an update changes its amount: type `order.STATUS` or `order.updated`, data
//! `{"order": KEY, "status": …, "amount_cents": …}`.

use ordain_sdk::prelude::*;

/// The sink of all messages.
const SINK: &str = "receipts";

/// The step that leaves an order where it is.
const UPDATED: &str = "updated";

/// What is read of an event's data.
#[derive(Deserialize)]
struct Details {
    amount_cents: Option<u64>,
}

/// The state of a key. An order that has ended leaves none.
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

/// Where an order stands, and the step that leads there.
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

    /// The status that events of this type lead to.
    fn of(kind: &str) -> Option<Self> {
        let name = step(kind);
        ALL.into_iter().find(|status| status.name() == name)
    }

    /// The type of the message that tells of it, where one does.
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

/// What an event's type says is done to the order.
fn step(kind: &str) -> &str {
    kind.rsplit('.').next().unwrap_or(kind)
}

/// The table at the top.
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

/// Whether nothing can follow: the money is back, or there never was any.
fn ends(from: Option<Status>, to: Status) -> bool {
    to == Refunded || (from == Some(Created) && to == Cancelled)
}

fn handle(event: Event<Option<Details>>, order: Option<Order>) -> Result<Outcome<Order>> {
    if step(&event.kind) == UPDATED {
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
            .or_reject("an order is created with \"amount_cents\" in its data")?,
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
        return Err(Failure::reject(
            "only an order that is created and not yet paid can be updated",
        ));
    };
    let amount_cents = event
        .data
        .as_ref()
        .and_then(|details| details.amount_cents)
        .or_reject("an order is updated with \"amount_cents\" in its data")?;
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
        "{kind:?} is no step of an order: its type should end in {}",
        any_of(ALL.into_iter())
    ))
}

#[cold]
fn impossible(from: Option<Status>, to: Status) -> Failure {
    let right = any_of(ALL.into_iter().filter(|status| may_become(from, *status)));
    let to = to.name();
    Failure::reject(match from {
        None => format!("there is no such order that could be {to}: first it has to be {right}"),
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
