//! The events of the CloudEvents conformance suite over HTTP, in binary and structured mode.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use ordain_tests::cloudevents_suite::{SuiteEvent, suite_events, suite_requests};
use ordain_tests::host::Home;
use ordain_tests::http::{Answer, admin, metric, send};
use ordain_tests::service::Service;

use super::support::{EVENT_TYPE, ingress, post_with};

fn post_binary(address: SocketAddr, path: &str, event: &SuiteEvent) -> Result<Answer> {
    let mut headers: Vec<String> =
        event.header_attributes().map(|(name, value)| format!("ce-{name}: {value}")).collect();
    let kind = event.attribute("datacontenttype");
    headers.extend((!kind.is_empty()).then(|| format!("content-type: {kind}")));
    let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
    post_with(address, path, &headers, &event.data)
}

/// The events have no key, so all events of a stream have one key. Events of the suite have equal ids, so each event
/// has a stream of its own. The handler rejects every event, so the dead letters show the events.
#[test]
fn events_of_the_cloudevents_suite_are_read() -> Result<()> {
    let events = suite_events()?;
    let requests = suite_requests()?;
    let count = 2 * events.len() + requests.len();
    let mut config = "[ingress]\nlisten = \"127.0.0.1:0\"\n[sinks.faulty]\nkind = \"file\"\n\
                      path = \"out.ndjson\"\n"
        .to_owned();
    for number in 0..count {
        config += &format!(
            "[streams.s{number}]\nhandler = \"faulty\"\nordering = \"fifo\"\n\
             source = {{ kind = \"http\", key = \"*\" }}\n"
        );
    }
    let home = Home::new(&["faulty"], &config)?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ingress(&mut service)?;
    let mut sent: Vec<&SuiteEvent> = Vec::new();
    let path = |number: usize| format!("/v1/streams/s{number}/events");
    for request in &requests {
        let head: Vec<String> = request
            .head
            .iter()
            .map(|line| line.replace("/someresource", &path(sent.len())))
            .map(|line| line.replace("Host: example.com", &format!("Host: {address}")))
            .collect();
        let head = head.join("\r\n") + "\r\nConnection: close\r\n\r\n";
        let answer = send(address, (head + &request.body).as_bytes())?;
        ensure!(answer.status == 202, "{request:?}: {answer:?}");
        sent.push(&request.event);
    }
    for event in &events {
        let answer = post_binary(address, &path(sent.len()), event)?;
        ensure!(answer.status == 202, "{event:?}: {answer:?}");
        sent.push(event);
        let kind = format!("content-type: {EVENT_TYPE}");
        let answer = post_with(address, &path(sent.len()), &[&kind], &event.structured()?)?;
        ensure!(answer.status == 202, "{event:?}: {answer:?}");
        sent.push(event);
    }
    let admin = admin(&mut service)?;
    service.until("a dead letter of each event", || {
        metric(admin, "ordain_dead_letters_total").ok().flatten() == Some(count as u64)
    })?;
    service.end()?;
    for (number, event) in sent.iter().enumerate() {
        let letters = home.rows(&["dead", "list", &format!("s{number}"), "--json"])?;
        ensure!(letters.len() == 1 && letters[0]["cause"] == "rejected", "{letters:?}");
        ensure!(letters[0]["key"] == "*", "{letters:?}");
        event.check(&letters[0]["event"])?;
    }
    Ok(())
}
