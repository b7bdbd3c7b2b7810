//! The documented behaviour of the handler, implemented independently for the check.

/// Returns the step of an event: the last part of its type, such as `paid` of `order.paid`.
pub(crate) fn step(kind: &str) -> &str {
    kind.rsplit('.').next().unwrap_or(kind)
}

pub(crate) enum StepEffect {
    /// The step is valid. `receipt` is true if the handler emits a receipt. `ended` is true if the order ends.
    Accepted { receipt: bool, ended: bool },
    /// The step is impossible, so the handler rejects the event.
    Refused,
}

/// Applies a step to an order with the status `from`, by the table in the documentation of `plugins/orders`.
pub(crate) fn apply(from: Option<&str>, to: &str) -> StepEffect {
    let possible = matches!(
        (from, to),
        (None, "created")
            | (Some("created"), "paid" | "cancelled")
            | (Some("paid"), "packed" | "cancelled")
            | (Some("packed"), "shipped" | "cancelled")
            | (Some("shipped"), "delivered")
            | (Some("delivered" | "cancelled"), "refunded")
    );
    if !possible {
        return StepEffect::Refused;
    }
    let receipt = !matches!(to, "created" | "packed");
    let ended = to == "refunded" || (from, to) == (Some("created"), "cancelled");
    StepEffect::Accepted { receipt, ended }
}
