//! Tests of each step from each status, and of whole lifecycles.

use ordain_sdk::testing::{Runner, json};

use super::*;

/// The valid steps, written independently of the code. In the last row, the order was cancelled after it was paid.
const TABLE: [(Option<Status>, &[Status]); 8] = [
    (None, &[Created]),
    (Some(Created), &[Paid, Cancelled]),
    (Some(Paid), &[Packed, Cancelled]),
    (Some(Packed), &[Shipped, Cancelled]),
    (Some(Shipped), &[Delivered]),
    (Some(Delivered), &[Refunded]),
    (Some(Refunded), &[]),
    (Some(Cancelled), &[Refunded]),
];

fn step(from: Option<Status>, to: Status) -> (Result<Outcome<Raw>>, Option<Order>) {
    let mut run = Runner::new(handle);
    if let Some(status) = from {
        run = run.with_state(Order { status, amount_cents: 1200 });
    }
    let kind = format!("order.{}", to.name());
    let result = run.event(&kind, json!({"amount_cents": 1200, "pad": "xxxx"}));
    (result, run.state())
}

#[test]
fn only_valid_steps_are_accepted() {
    for (from, allowed) in TABLE {
        for to in ALL {
            let before = from.map(|status| Order { status, amount_cents: 1200 });
            let (result, after) = step(from, to);
            if allowed.contains(&to) {
                let ended = to == Refunded || (from, to) == (Some(Created), Cancelled);
                let outcome = result.unwrap();
                assert_eq!(outcome.complete, ended, "{from:?} to {to:?}");
                let expected = (!ended).then_some(Order { status: to, amount_cents: 1200 });
                assert_eq!(after, expected, "{from:?} to {to:?}");
                let receipts = usize::from(to != Created && to != Packed);
                assert_eq!(outcome.messages.len(), receipts, "{from:?} to {to:?}");
            } else {
                assert!(matches!(result, Err(Failure::Reject(_))), "{from:?} to {to:?}");
                assert_eq!(after, before, "{from:?} to {to:?}");
            }
        }
    }
}

#[test]
fn unpaid_order_can_be_updated() {
    let mut run = Runner::new(handle);
    run.event("order.created", json!({"amount_cents": 900})).unwrap();
    let same = run.event("order.updated", json!({"amount_cents": 900})).unwrap();
    assert_eq!(same.messages.len(), 0);
    let changed = run.event("order.updated", json!({"amount_cents": 950})).unwrap();
    let expected = r#"{"order":"key","status":"created","amount_cents":950}"#;
    assert_eq!(changed.messages[0].data, Raw::from(expected));
    assert_eq!(run.state(), Some(Order { status: Created, amount_cents: 950 }));
    run.event("order.paid", json!({})).unwrap();
    assert!(matches!(
        run.event("order.updated", json!({"amount_cents": 1})),
        Err(Failure::Reject(_))
    ));
}

#[test]
fn order_is_processed_from_creation_to_refund() {
    let mut run = Runner::new(handle);
    run.event("order.created", json!({"amount_cents": 900, "items": ["book"]})).unwrap();
    let paid = run.event("shop.order.paid", json!({"by": "card"})).unwrap();
    let [receipt] = &paid.messages[..] else { panic!("{paid:?}") };
    assert_eq!((receipt.sink.as_str(), receipt.kind.as_str()), ("receipts", "order.paid"));
    let expected = r#"{"order":"key","status":"paid","amount_cents":900}"#;
    assert_eq!(receipt.data, Raw::from(expected));
    run.event("packed", Raw::default()).unwrap();
    run.event("order.shipped", json!({})).unwrap();
    let delivered = run.event("order.delivered", json!({})).unwrap();
    assert!(!delivered.complete && !delivered.messages[0].end_of_sequence);
    let refunded = run.event("order.refunded", json!({"why": "broken"})).unwrap();
    assert!(refunded.complete && refunded.messages[0].end_of_sequence);
    assert_eq!(run.state(), None);
}

#[test]
fn last_event_ends_the_receipts() {
    let mut run = Runner::new(handle).with_state(Order { status: Shipped, amount_cents: 1 });
    let mut event = run.next_event("order.delivered", json!({}));
    event.end_of_sequence = true;
    assert!(run.send(event).unwrap().messages[0].end_of_sequence);
}

#[test]
fn state_is_small_json() {
    let outcome = step(None, Created).0.unwrap();
    let state = r#"{"status":"created","amount_cents":1200}"#;
    assert_eq!(outcome.state, Change::Put(state.into()));
}

#[test]
fn rejection_names_the_valid_steps() {
    let reason = |from, to| step(from, to).0.unwrap_err().reason().to_string();
    assert_eq!(
        reason(Some(Paid), Shipped),
        "an order that is paid cannot be shipped: it can be packed or cancelled"
    );
    assert_eq!(
        reason(None, Paid),
        "an order that does not exist cannot be paid: it must be created first"
    );

    let reason = |kind: &str, data| {
        Runner::new(handle).event(kind, Raw::from(data)).unwrap_err().reason().to_string()
    };
    assert_eq!(
        reason("order.lost", "{}"),
        "\"order.lost\" is not a step of an order: the type must end in created or paid or packed \
         or shipped or delivered or cancelled or refunded"
    );
    assert!(reason("order.created", "{}").contains("amount_cents"));
    assert!(reason("order.created", r#"{"amount_cents":-1}"#).contains("integer `-1`"));
    assert!(reason("order.created", "not JSON").contains("line 1 column 2"));
}
