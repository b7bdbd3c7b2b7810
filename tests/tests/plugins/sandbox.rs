//! Tests of the sandbox: the data of the environment that a handler can read, and the lines that a handler writes to
//! the log.

use anyhow::Result;
use ordain_core::{HandlerOutcome, Turn};
use ordain_tests::workers::{Workers, event, text, turn};
use serde_json::Value;

#[test]
fn handler_has_no_files_variables_arguments_or_sockets() -> Result<()> {
    let workers = Workers::faulty()?;
    for path in ["/", "/etc/passwd", "x", "."] {
        let probe = workers.report(&format!(r#"{{"do":"probe","path":"{path}"}}"#));
        let probe: Value = serde_json::from_str(&probe)?;
        assert_eq!(probe["arguments"], serde_json::json!([]));
        assert_eq!(probe["environment"], serde_json::json!([]));
        for tried in ["read", "write", "connect"] {
            assert_ne!(probe[tried], "allowed", "{tried} {path}");
        }
    }
    let udp = workers.report(r#"{"do":"probe","address":"[::1]:53"}"#);
    assert!(udp.contains("denied"), "{udp}");
    Ok(())
}

fn senses(workers: &Workers, turn: Turn) -> Result<Value> {
    let done = workers.run(turn);
    let [HandlerOutcome::Effect { messages, .. }] = done.outcomes.as_slice() else {
        panic!("{done:?}")
    };
    Ok(serde_json::from_str(&text(&messages[0]))?)
}

#[test]
fn clock_and_random_numbers_depend_on_the_event() -> Result<()> {
    const COMMAND: &str = r#"{"do":"senses"}"#;
    let workers = Workers::faulty()?;
    let first = senses(&workers, turn("a", &[COMMAND]))?;
    assert_eq!(first["time_ms"], 1_000_000_000_123_u64);
    assert!(first["monotonic_ns"].as_u64().is_some_and(|ns| (1..1_000_000).contains(&ns)));

    // Executes the event again in a used instance, and in a fresh instance.
    let again = senses(&workers, turn("a", &[COMMAND]))?;
    let fresh = senses(&workers, Turn { fresh: true, ..turn("a", &[COMMAND]) })?;
    assert_eq!(first["random"], again["random"]);
    assert_eq!(first, fresh);

    // Other events have other random numbers.
    let mut second = turn("a", &[""; 0]);
    second.events = vec![(2, event("a", 2, COMMAND.as_bytes()))];
    for other in [second, turn("b", &[COMMAND])] {
        assert_ne!(first["random"], senses(&workers, other)?["random"]);
    }
    Ok(())
}

#[test]
fn output_of_a_guest_is_logged_line_by_line() -> Result<()> {
    let workers = Workers::faulty()?;
    workers.command(r#"{"do":"print","out":"one\n","err":"two\nthree"}"#);
    workers.command(r#"{"do":"log","lines":2,"bytes":3,"level":"error"}"#);
    let lines = workers.lines();
    let lines: Vec<_> = lines.iter().map(|(level, _, text)| (&**level, &**text)).collect();
    let expected =
        [("INFO", "one"), ("WARN", "two"), ("WARN", "three"), ("ERROR", "xxx"), ("ERROR", "xxx")];
    assert_eq!(lines, expected);

    workers.run(turn("another", &[r#"{"do":"log","bytes":0}"#]));
    assert_eq!(workers.lines(), [("INFO".to_owned(), "another".to_owned(), String::new())]);

    workers.failure(r#"{"do":"panic","text":"ouch"}"#);
    assert!(workers.lines().iter().any(|(level, _, text)| level == "WARN" && text == "ouch"));
    Ok(())
}

#[test]
fn trace_of_an_event_continues_in_its_messages() -> Result<()> {
    let workers = Workers::faulty()?;
    let done = workers.command(r#"{"do":"emit","headers":1}"#);
    let [HandlerOutcome::Effect { messages, .. }] = done.outcomes.as_slice() else {
        panic!("{done:?}")
    };
    let headers: Vec<_> = messages[0].headers().collect();
    let expected = [("header-0", "0"), ("traceparent", "00-1-2-01"), ("Tracestate", "a=b")];
    assert_eq!(headers, expected);
    Ok(())
}
