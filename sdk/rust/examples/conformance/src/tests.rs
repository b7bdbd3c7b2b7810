//! Tests of the handler without WebAssembly.

use ordain_sdk::testing::{Runner, json};

use super::*;

#[test]
fn state_is_kept_as_bytes() -> Result<()> {
    let mut run = Runner::new(handle);
    assert_eq!(run.event("get", json!(null)), Err(Failure::reject("no state")));
    run.event("put", Raw::from([0xff, 0x00]))?;
    let outcome = run.event("get", json!(null))?;
    assert_eq!(outcome.messages[0].data, Raw::from([0xff, 0x00]));
    run.event("delete", json!(null))?;
    assert_eq!(run.state(), None);
    Ok(())
}

#[test]
fn sum_is_kept_and_emitted() -> Result<()> {
    let mut run = Runner::new(handle);
    run.event("add", json!({ "amount": 3 }))?;
    let outcome = run.event("add", json!({ "amount": -5 }))?;
    assert_eq!(outcome.messages[0].data, Raw::from(r#"{"total":-2}"#));
    let failure = run.event("add", json!({ "amount": "no" })).expect_err("data of another type");
    assert!(failure.reason().contains("cannot be decoded"), "{failure:?}");
    Ok(())
}

#[test]
#[should_panic(expected = "the state of this key (6 bytes) cannot be decoded")]
fn state_of_another_form_is_a_fault() {
    let _ =
        Runner::new(handle).with_state(Raw::from("no sum")).event("add", json!({ "amount": 3 }));
}

#[test]
fn number_of_messages_is_in_the_data() -> Result<()> {
    let messages = Runner::new(handle).event("many", json!({ "messages": 2 }))?.messages;
    let keys: Vec<_> = messages.iter().filter_map(|message| message.key.as_deref()).collect();
    assert_eq!((messages.len(), keys[1].ends_with("/1")), (2, true), "{keys:?}");
    Ok(())
}

#[test]
fn unknown_type_is_rejected() {
    let failed = Runner::new(handle).event("no such type", json!(null));
    assert_eq!(failed, Err(Failure::reject("unknown type no such type")));
}
