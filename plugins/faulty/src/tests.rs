//! Tests of the commands that do not end a native process.

use ordain_sdk::testing::{Runner, json};

use super::*;

#[test]
fn commands_have_their_effect() {
    let mut run = Runner::new(handle);
    run.event("x", json!({"do": "put", "bytes": 7})).unwrap();
    assert_eq!(run.state().unwrap(), Raw::from("xxxxxxx"));

    let state = run.event("x", json!({"do": "state"})).unwrap();
    assert_eq!(state.messages[0].data, Raw::from(r#"{"bytes":7}"#));

    let emit = json!({"do": "emit", "messages": 3, "bytes": 2, "headers": 1, "delay_ms": 5});
    let emitted = run.event("x", emit).unwrap().messages;
    assert_eq!(emitted.len(), 3);
    assert_eq!((&*emitted[2].data, emitted[2].delay_ms), (&b"xx"[..], Some(5)));
    assert_eq!(emitted[2].headers, [("header-0".to_string(), "0".to_string())]);
    let elsewhere = run.event("x", json!({"do": "emit", "sink": "nowhere"})).unwrap();
    assert_eq!(elsewhere.messages[0].sink, "nowhere");

    let mut request = run.next_event("x", json!({"do": "reply", "text": "yes", "sink": "replies"}));
    let reply_to = ("property:reply_to".to_string(), "queue".to_string());
    request.headers = vec![reply_to.clone(), ("tenant".to_string(), "blue".to_string())];
    let reply = run.send(request).unwrap().messages.remove(0);
    assert_eq!((reply.sink.as_str(), &*reply.data), ("replies", &b"yes"[..]));
    assert_eq!(reply.headers, [reply_to]);

    let publish = json!({"do": "publish", "text": "{}", "type": "t", "headers": {"a": "b"}});
    let published = run.event("x", publish).unwrap().messages.remove(0);
    assert_eq!(
        (published.kind.as_str(), published.content_type.as_str()),
        ("t", "application/json")
    );
    assert_eq!(published.headers, [("a".to_string(), "b".to_string())]);
    assert_eq!(published.data, Raw::from("{}"));

    run.event("x", json!({"do": "allocate", "mib": 1})).unwrap();
    run.event("x", json!({"do": "log", "lines": 2, "bytes": 3, "level": "warn"})).unwrap();
    run.event("x", json!({"do": "print", "out": "out\n", "err": "err\n"})).unwrap();
    run.event("x", json!({"do": "sleep", "ms": 1})).unwrap();
    run.event("x", json!({"do": "delete"})).unwrap();
    assert_eq!(run.state(), None);
    assert!(run.event("x", json!({"do": "complete"})).unwrap().complete);
}

#[test]
fn requested_failure_is_returned() {
    let mut run = Runner::new(handle);
    assert_eq!(run.event("x", json!({"do": "reject"})), Err(Failure::reject("requested")));
    let retry = run.event("x", json!({"do": "retry", "reason": "busy", "after_ms": 9}));
    assert_eq!(retry, Err(Failure::retry_after(9, "busy")));
    for odd in [json!({"do": "dance"}), json!({"do": "put"}), json!({})] {
        assert!(matches!(run.event("x", odd), Err(Failure::Reject(_))));
    }
}

#[test]
#[should_panic(expected = "ouch")]
fn panic_has_its_text() {
    let _ = Runner::new(handle).event("x", json!({"do": "panic", "text": "ouch"}));
}

#[test]
fn reports_are_emitted() {
    let mut run = Runner::new(handle);
    let mut calls = || run.event("x", json!({"do": "calls"})).unwrap().messages[0].data.clone();
    assert_ne!(calls(), calls());

    let senses = run.event("x", json!({"do": "senses"})).unwrap();
    assert!(senses.messages[0].data.starts_with(br#"{"time_ms":"#));

    let probe = json!({"do": "probe", "path": "/nowhere/x", "address": "no address"});
    let probe = run.event("x", probe).unwrap();
    let text = String::from_utf8_lossy(&probe.messages[0].data).into_owned();
    assert!(text.contains(r#""read":"No such file"#), "{text}");
    assert!(text.contains(r#""connect":"invalid socket address syntax""#), "{text}");
}
