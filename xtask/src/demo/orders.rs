//! What `plugins/orders` is documented to do, written a second time for the check.

/// The last part of an event's type.
pub(crate) fn step(kind: &str) -> &str {
    kind.rsplit('.').next().unwrap_or(kind)
}

/// What one step does to an order that stands at `from`.
pub(crate) enum Done {
    /// It goes there; it says whether a receipt is written, and whether the order ends.
    Went { receipt: bool, ended: bool },
    /// It is impossible.
    Refused,
}

/// The table in the documentation of `plugins/orders`.
pub(crate) fn apply(from: Option<&str>, to: &str) -> Done {
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
        return Done::Refused;
    }
    let receipt = !matches!(to, "created" | "packed");
    let ended = to == "refunded" || (from, to) == (Some("created"), "cancelled");
    Done::Went { receipt, ended }
}
