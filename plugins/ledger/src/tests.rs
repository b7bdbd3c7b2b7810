//! Tests of each stage alone, and of all three stages with a small ledger.

use std::collections::BTreeMap;

use ordain_sdk::testing::{Runner, json};

use super::*;

fn data(message: &Message) -> serde_json::Value {
    message.data.json().unwrap()
}

#[test]
fn batch_is_split_in_order() {
    let mut run = Runner::new(handle);
    let batch = json!({"transactions": [
        {"order": "a", "month": "2026-01", "cents": 500},
        {"order": "b", "month": "2026-01", "cents": -20, "last": true},
        {"order": "a", "month": "2026-02", "cents": 7},
    ]});
    let outcome = run.event("ledger.batch", batch.clone()).unwrap();
    let keys: Vec<_> =
        outcome.messages.iter().map(|message| message.key.as_deref().unwrap()).collect();
    assert_eq!(keys, ["a", "b", "a"]);
    assert!(
        outcome
            .messages
            .iter()
            .all(|message| message.sink == "transactions" && message.kind == "transaction")
    );
    assert_eq!(data(&outcome.messages[1]), json!({"month": "2026-01", "cents": -20}));
    assert!(outcome.messages[1].end_of_sequence && !outcome.messages[2].end_of_sequence);
    run.event("ledger.batch", batch).unwrap();
    let State::Ledger(ledger) = run.state().unwrap() else { panic!("a ledger") };
    assert_eq!(ledger, serde_json::from_value(json!({"transactions": 6, "cents": 974})).unwrap());
}

#[test]
fn later_month_closes_the_previous_month() {
    let mut run = Runner::new(handle);
    let first = run.event("transaction", json!({"month": "2026-01", "cents": 500})).unwrap();
    assert_eq!(data(&first.messages[0]), json!({"cents": 500, "balance": 500}));
    let second = run.event("transaction", json!({"month": "2026-03", "cents": -100})).unwrap();
    let [closed, posted] = &second.messages[..] else { panic!("two messages") };
    assert_eq!(
        (closed.kind.as_str(), closed.key.as_deref()),
        ("month.closed", Some("key/2026-01"))
    );
    assert!(closed.end_of_sequence && !posted.end_of_sequence);
    assert_eq!(posted.key.as_deref(), Some("key/2026-03"));
    let early = run.event("transaction", json!({"month": "2026-02", "cents": 1}));
    assert!(matches!(early, Err(Failure::Reject(why)) if why.contains("after 2026-03 began")));
    let mut last = run.next_event("transaction", json!({"month": "2026-03", "cents": 1}));
    last.end_of_sequence = true;
    let last = run.send(last).unwrap();
    let kinds: Vec<_> = last.messages.iter().map(|message| message.kind.as_str()).collect();
    assert_eq!(kinds, ["posting", "month.closed"]);
}

#[test]
fn statement_adds_up_postings() {
    let mut run = Runner::new(handle);
    run.event("posting", json!({"cents": 50, "balance": 150})).unwrap();
    run.event("posting", json!({"cents": -30, "balance": 120})).unwrap();
    let wrong = run.event("posting", json!({"cents": 1, "balance": 200}));
    assert!(matches!(wrong, Err(Failure::Reject(why)) if why.contains("missing or out of order")));
    let closed = run.event("month.closed", json!({"order": "a", "month": "2026-01"})).unwrap();
    let expected = json!({"order": "a", "month": "2026-01", "opening": 100, "credits": 50,
        "debits": -30, "postings": 2, "closing": 120});
    assert_eq!(data(&closed.messages[0]), expected);
    assert_eq!(closed.messages[0].key.as_deref(), Some("a"));
    assert!(closed.complete && run.ended());
}

#[test]
fn event_of_another_stage_is_rejected() {
    let mut run = Runner::new(handle);
    let closed = run.event("month.closed", json!({"order": "a", "month": "2026-01"}));
    assert!(matches!(closed, Err(Failure::Reject(why)) if why.contains("without earlier events")));
    run.event("transaction", json!({"month": "2026-01", "cents": 5})).unwrap();
    for kind in ["ledger.batch", "posting", "other"] {
        let refused = run.event(kind, json!({}));
        assert!(matches!(refused, Err(Failure::Reject(why)) if why.contains("of an order")));
    }
    assert!(matches!(run.event("transaction", Raw::from("{")), Err(Failure::Reject(_))));
}

/// Passes the messages of each stage to the next stage. Each key of each stage has its own runner.
#[test]
fn three_stages_emit_statements() {
    let mut ledger = Runner::new(handle);
    let mut accounts = BTreeMap::new();
    let mut months = BTreeMap::new();
    let mut statements = Vec::new();
    let transactions: Vec<_> = (0..60)
        .map(|at: u32| {
            let order = format!("order-{}", at % 3);
            let month = format!("2026-{:02}", 1 + at / 20);
            json!({"order": order, "month": month, "cents": i64::from(at) - 25, "last": at >= 57})
        })
        .collect();
    for batch in transactions.chunks(10) {
        let out = ledger.event("ledger.batch", json!({"transactions": batch})).unwrap();
        for message in out.messages {
            let key = message.key.clone().unwrap();
            let account = accounts.entry(key.clone()).or_insert_with(|| Runner::new(handle));
            let mut event = account.next_event(&message.kind, message.data);
            event.key = key;
            event.end_of_sequence = message.end_of_sequence;
            for message in account.send(event).unwrap().messages {
                let month =
                    months.entry(message.key.unwrap()).or_insert_with(|| Runner::new(handle));
                statements.extend(month.event(&message.kind, message.data).unwrap().messages);
            }
        }
    }
    assert_eq!(statements.len(), 9);
    assert!(accounts.values().all(Runner::ended) && months.values().all(Runner::ended));
    let sum = |name: &str| -> i64 {
        statements.iter().map(|statement| data(statement)[name].as_i64().unwrap()).sum()
    };
    assert_eq!(sum("credits") + sum("debits"), (0..60).map(|at| at - 25).sum::<i64>());
    assert_eq!(sum("postings"), 60);
}
