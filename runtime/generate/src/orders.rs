//! Order lifecycles, as the handler `orders` accepts them.

use super::random::SeededRandom;

/// The status of an order, and the step that led to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OrderStatus {
    Created,
    Paid,
    Packed,
    Shipped,
    Delivered,
    Cancelled,
    Refunded,
}

use OrderStatus::{Cancelled, Created, Delivered, Packed, Paid, Refunded, Shipped};

const ALL_STATUSES: [OrderStatus; 7] =
    [Created, Paid, Packed, Shipped, Delivered, Cancelled, Refunded];

impl OrderStatus {
    fn kind(self) -> &'static str {
        match self {
            Created => "order.created",
            Paid => "order.paid",
            Packed => "order.packed",
            Shipped => "order.shipped",
            Delivered => "order.delivered",
            Cancelled => "order.cancelled",
            Refunded => "order.refunded",
        }
    }

    fn may_become(from: Option<Self>, to: Self) -> bool {
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
}

/// Percentage of orders that are cancelled before payment.
const UNPAID_PERCENT: u64 = 6;
/// Percentage of paid orders that are cancelled before packing, and of packed orders that are cancelled before
/// shipping.
const CANCELLED_PERCENT: u64 = 3;
/// Percentage of delivered orders that are returned and refunded.
const RETURNED_PERCENT: u64 = 8;

/// The state of an order.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct OrderState {
    status: Option<OrderStatus>,
}

/// One step of an order.
#[derive(Debug, Clone, Copy)]
pub(super) struct OrderStep {
    pub(super) kind: &'static str,
    /// True if the handler must reject the step.
    pub(super) impossible: bool,
    /// True if the order has no more steps.
    pub(super) last: bool,
    /// Random number that determines the details of the data.
    pub(super) detail: u64,
}

impl OrderState {
    /// Returns the next step of the order. With the probability `impossible`, the step is invalid and leaves the order
    /// unchanged.
    pub(super) fn step(&mut self, random: &mut SeededRandom, impossible: f64) -> OrderStep {
        // This function draws the same number of random numbers for each step, so that an invalid step does not change
        // the random numbers of later steps.
        let impossible = random.chance(impossible);
        let dice = random.below(100);
        let choice = random.next();
        let detail = random.next();
        if impossible {
            let wrong =
                ALL_STATUSES.into_iter().filter(|to| !OrderStatus::may_become(self.status, *to));
            let wrong: Vec<OrderStatus> = wrong.collect();
            let status = wrong[(choice % wrong.len() as u64) as usize];
            return OrderStep { kind: status.kind(), impossible, last: false, detail };
        }
        let from = self.status;
        let to = match from {
            None => Created,
            Some(Created) if dice < UNPAID_PERCENT => Cancelled,
            Some(Created) => Paid,
            Some(Paid | Packed) if dice < CANCELLED_PERCENT => Cancelled,
            Some(Paid) => Packed,
            Some(Packed) => Shipped,
            Some(Shipped) => Delivered,
            Some(Delivered | Cancelled | Refunded) => Refunded,
        };
        self.status = Some(to);
        let last = match to {
            Refunded => true,
            Cancelled => from == Some(Created),
            Delivered => dice >= RETURNED_PERCENT,
            _ => false,
        };
        OrderStep { kind: to.kind(), impossible, last, detail }
    }
}

/// Appends the data of a step without its closing brace.
pub(super) fn data(step: OrderStep, out: &mut Vec<u8>) {
    use std::io::Write;
    let pick = |choices: [&'static str; 4]| choices[(step.detail % 4) as usize];
    // Writing to memory cannot fail.
    let _ = match step.kind {
        "order.created" => {
            let amount = step.detail % 50_000 + 100;
            let items = step.detail % 7 + 1;
            write!(out, "{{\"amount_cents\":{amount},\"items\":{items}")
        }
        "order.paid" => {
            write!(out, "{{\"by\":\"{}\"", pick(["card", "transfer", "invoice", "cash"]))
        }
        "order.packed" => write!(out, "{{\"parcels\":{}", step.detail % 3 + 1),
        "order.shipped" => {
            write!(out, "{{\"with\":\"{}\"", pick(["post", "courier", "freight", "bike"]))
        }
        "order.delivered" => {
            write!(out, "{{\"to\":\"{}\"", pick(["door", "shop", "locker", "neighbour"]))
        }
        _ => write!(out, "{{\"why\":\"{}\"", pick(["late", "broken", "wrong", "unwanted"])),
    };
}
