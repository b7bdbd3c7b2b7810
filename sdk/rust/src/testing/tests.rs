//! Tests of the runner, and of the calls that it makes to a handler.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::*;
use crate::{Message, OrFail};

#[derive(Deserialize)]
struct Add {
    add: u64,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, Default)]
struct Sum {
    sum: u64,
}

#[allow(clippy::needless_pass_by_value, reason = "a handler's shape")]
fn sum(event: Event<Add>, state: Option<Sum>) -> Result<Outcome<Sum>> {
    let Sum { sum } = state.unwrap_or_default();
    let sum = sum.checked_add(event.data.add).or_reject("the sum is full")?;
    match event.kind.as_str() {
        "busy" => Err(Failure::retry_after(7, "busy")),
        "forget" => Ok(Outcome::delete()),
        "look" => Ok(Outcome::keep().emit(Message::json("out", "looked", &sum))),
        "last" => Ok(Outcome::put(Sum { sum }).complete()),
        _ => Ok(Outcome::put(Sum { sum })),
    }
}

crate::handler!(sum);

/// A state that cannot be written as JSON.
#[derive(Serialize, Deserialize)]
struct Pairs(BTreeMap<(u8, u8), u8>);

#[allow(clippy::unnecessary_wraps, reason = "a handler's shape")]
fn pairs(_: Event<()>, _: Option<Pairs>) -> Result<Outcome<Pairs>> {
    Ok(Outcome::put(Pairs(BTreeMap::from([((1, 2), 3)]))))
}

#[test]
fn events_produce_outcomes_and_a_state() {
    let mut run = Runner::new(sum);
    run.event("add", json!({"add": 2})).unwrap();
    run.event("add", json!({"add": 3, "more": "is ignored"})).unwrap();
    let looked = run.event("look", json!({"add": 0})).unwrap();
    assert_eq!(looked.messages, [Message::json("out", "looked", &5)]);
    assert_eq!(looked.state, Change::Keep);
    assert_eq!(run.state(), Some(Sum { sum: 5 }));

    assert!(run.event("last", json!({"add": 1})).unwrap().complete);
    assert!(run.ended());
}

#[test]
fn rejection_settles_and_retry_does_not() {
    let mut run = Runner::new(sum);
    assert_eq!(run.event("busy", json!({"add": 1})), Err(Failure::retry_after(7, "busy")));
    assert_eq!(run.next_event("add", ()).sequence, 1);

    run.event("add", json!({"add": u64::MAX})).unwrap();
    let refused = run.event("add", json!({"add": 1}));
    assert_eq!(refused, Err(Failure::reject("the sum is full")));
    assert_eq!(run.next_event("add", ()).sequence, 3);
    assert_eq!(run.state(), Some(Sum { sum: u64::MAX }));

    run.event("forget", json!({"add": 0})).unwrap();
    assert_eq!(run.state(), None);
}

#[test]
fn undecodable_data_is_rejected_with_its_fault() {
    let mut run = Runner::new(sum);
    let Err(Failure::Reject(reason)) = run.event("add", json!({"ad": 1})) else { panic!() };
    assert_eq!(
        reason,
        "the data of this event of type \"add\" (8 bytes of \"application/json\") cannot be decoded: missing field \
         `add` at line 1 column 8"
    );
    assert!(run.event("add", Raw::from("")).unwrap_err().reason().contains("invalid type: null"));
}

#[test]
#[should_panic(expected = "the state of this key (5 bytes) cannot be decoded")]
fn undecodable_state_panics() {
    let _ = Runner::new(sum).with_state("abc").event("add", json!({"add": 1}));
}

#[test]
#[should_panic(expected = "the new state cannot be encoded")]
fn unencodable_state_panics() {
    let _ = Runner::new(pairs).event("odd", ());
}

#[test]
#[should_panic(expected = "the key has ended before event 2")]
fn ended_key_accepts_no_event() {
    let mut run = Runner::new(sum);
    let mut last = run.next_event("add", json!({"add": 1}));
    last.end_of_sequence = true;
    run.send(last).unwrap();
    let _ = run.event("add", json!({"add": 1}));
}
