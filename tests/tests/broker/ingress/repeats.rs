//! Tests of events that a producer posts again over HTTP: in another form, or with other content under the same
//! sequence. The module also tests events that arrive after the end of their key.

use std::net::SocketAddr;
use std::sync::Barrier;

use anyhow::{Result, ensure};
use ordain_tests::host::Home;
use ordain_tests::http::Answer;
use ordain_tests::log::{by_key, line};
use ordain_tests::service::Service;
use ordain_tests::tally;
use serde_json::{Value, json};

use super::support::{EVENT_TYPE, LINES_TYPE, ingress, post, post_with};

const CONFIG: &str = r#"
[ingress]
listen = "127.0.0.1:0"

[streams.cases]
handler = "tally"
source = { kind = "http" }

[sinks.tally]
kind = "file"
path = "out.ndjson"
"#;

/// The number of requests that the test sends at the same time, for each of two contents.
const CONCURRENT_REQUESTS: usize = 20;

fn post_data(address: SocketAddr, data: &str, headers: &[&str]) -> Result<Answer> {
    let event = [
        "ce-specversion: 1.0",
        "ce-id: k-1",
        "ce-source: /tests",
        "ce-type: test",
        "ce-subject: k",
        "ce-sequence: 1",
    ];
    post_with(address, "/v1/streams/cases/events", &[&event[..], headers].concat(), data)
}

/// A library may send an event again in another form of the same JSON, with another content type, with a time, or in
/// another content mode. The host must accept each of these requests as a repeat, and must refuse other content.
#[test]
fn event_in_another_form_is_a_repeat() -> Result<()> {
    let home = Home::new(&["tally"], CONFIG)?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ingress(&mut service)?;
    let json_type = "content-type: application/json";
    let first = r#"{"a":1,"b":"x"}"#;
    for (data, headers) in [
        (first, &[json_type][..]),
        ("{\"a\":1, \"b\":\"x\"}", &[json_type]),
        ("{\"a\":1,\"b\":\"x\"}\n", &[json_type]),
        ("{ \"b\": \"\\u0078\",\r\n \"a\": 1 }", &[json_type]),
        (first, &["content-type: application/json; charset=utf-8"]),
        (first, &[json_type, "ce-time: 2026-01-31T12:00:00Z"]),
    ] {
        let answer = post_data(address, data, headers)?;
        ensure!(answer.status == 202, "{data} {headers:?}: {answer:?}");
    }
    let event: Value = serde_json::from_str(&line("k", 1, &serde_json::from_str(first)?))?;
    let answer = post(address, EVENT_TYPE, &serde_json::to_string_pretty(&event)?)?;
    ensure!(answer.status == 202, "{answer:?}");
    for other in [r#"{"a":1.0,"b":"x"}"#, r#"{"a":1,"b":"X"}"#, r#"{"a":1}"#] {
        let answer = post_data(address, other, &[json_type])?;
        let detail = answer.json()?["errors"][0].clone();
        ensure!(answer.status == 409 && detail["sequence"] == 1, "{other}: {answer:?}");
    }
    // The effect of the last event shows that the host has processed all earlier events.
    let last = line("last", 1, &json!({ "n": 1 }));
    ensure!(post(address, EVENT_TYPE, &last)?.status == 202);
    service.until("the last effect", || home.read("out.ndjson").contains("\"last\""))?;
    service.end()?;
    ensure!(home.lines("out.ndjson") == 2, "{}", home.read("out.ndjson"));
    ensure!(home.rows(&["dead", "list", "cases", "--json"])?.is_empty());
    Ok(())
}

/// Many clients post two different events with the same sequence at the same time. The host must accept all requests
/// with one of the two events, and must refuse all requests with the other event.
#[test]
fn concurrent_events_with_one_sequence_are_accepted_once() -> Result<()> {
    let home = Home::new(&["tally"], CONFIG)?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ingress(&mut service)?;
    let contents = [1, 2].map(|number| line("k", 1, &json!({ "n": number })));
    let clients = contents.len() * CONCURRENT_REQUESTS;
    let barrier = Barrier::new(clients);
    let post_at_once = |client: usize| -> Result<u16> {
        barrier.wait();
        Ok(post(address, EVENT_TYPE, &contents[client % contents.len()])?.status)
    };
    let statuses = std::thread::scope(|scope| -> Result<Vec<u16>> {
        let post_at_once = &post_at_once;
        let start = |client| scope.spawn(move || post_at_once(client));
        let started: Vec<_> = (0..clients).map(start).collect();
        started.into_iter().map(|client| client.join().expect("no panic")).collect()
    })?;
    let answers = |content: usize, status: u16| {
        let of_content = statuses.iter().skip(content).step_by(contents.len());
        of_content.filter(|found| **found == status).count()
    };
    let winner = usize::from(answers(1, 202) > 0);
    ensure!(answers(winner, 202) == CONCURRENT_REQUESTS, "{statuses:?}");
    ensure!(answers(1 - winner, 409) == CONCURRENT_REQUESTS, "{statuses:?}");
    service.until("the effect", || home.lines("out.ndjson") > 0)?;
    service.end()?;
    tally::check(&by_key(&contents[winner..=winner])?, &home.read("out.ndjson"))
}

/// One request contains two events of a key, each twice, and an event after the end of the key. The last event of the
/// key comes before its predecessor. The first two events must take effect once. The third event must become a dead
/// letter.
#[test]
fn request_with_repeats_and_an_event_after_the_end_is_accepted() -> Result<()> {
    let home = Home::new(&["tally"], CONFIG)?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ingress(&mut service)?;
    let event = |sequence: u64| line("k", sequence, &json!({ "n": sequence }));
    let last = event(2).replacen('{', "{\"endofsequence\":true,", 1);
    let lines = [event(1), last];
    let body =
        [&lines[1], &lines[0], &lines[0], &lines[1], &event(3)].map(|line| format!("{line}\n"));
    let answer = post(address, LINES_TYPE, &body.concat())?;
    ensure!(answer.status == 202, "{answer:?}");
    let letters = || home.rows(&["dead", "list", "cases", "--json"]);
    service.until("the dead letter", || letters().is_ok_and(|rows| rows.len() == 1))?;
    service.until("both effects", || home.lines("out.ndjson") == 2)?;
    service.end()?;
    let rows = letters()?;
    ensure!(rows.len() == 1 && rows[0]["cause"] == "after-end", "{rows:?}");
    ensure!(rows[0]["sequence"] == 3, "{rows:?}");
    tally::check(&by_key(&lines)?, &home.read("out.ndjson"))
}
