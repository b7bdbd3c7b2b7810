//! The events of the CloudEvents conformance suite over AMQP, in all modes of the AMQP binding. The examples in the
//! binding have the same attributes as the requests of the suite.

use anyhow::{Context as _, Result, ensure};
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use ordain_tests::amqp::Outgoing;
use ordain_tests::cloudevents_suite::{SuiteEvent, suite_events, suite_requests};
use ordain_tests::rig::Rig;
use ordain_tests::service::Service;

/// Returns an event in binary mode. The names of the headers begin with `prefix`.
fn binary(routing_key: &str, event: &SuiteEvent, prefix: &str) -> Outgoing {
    let mut headers = FieldTable::default();
    for (name, value) in event.header_attributes() {
        headers.insert(format!("{prefix}{name}").into(), AMQPValue::LongString(value.into()));
    }
    let mut properties = BasicProperties::default().with_headers(headers);
    let kind = event.attribute("datacontenttype");
    if !kind.is_empty() {
        properties = properties.with_content_type(kind.into());
    }
    let body = event.data.clone().into_bytes();
    Outgoing { routing_key: routing_key.to_owned(), properties, body }
}

fn structured(routing_key: &str, event: &SuiteEvent) -> Result<Outgoing> {
    Ok(Outgoing {
        routing_key: routing_key.to_owned(),
        properties: BasicProperties::default()
            .with_content_type("application/cloudevents+json; charset=utf-8".into()),
        body: event.structured()?.into_bytes(),
    })
}

/// The handler rejects every event, so the dead letters show the events. Each message has its own key, because events
/// of the suite have equal ids.
#[test]
fn events_of_the_cloudevents_suite_are_read() -> Result<()> {
    let rig = Rig::with("", "ordering = \"fifo\"", "")?;
    rig.home.write("ordain.toml", rig.home.read("ordain.toml").replace("tally", "faulty"))?;
    let mut events = suite_events()?;
    events.extend(suite_requests()?.into_iter().map(|request| request.event));
    let mut messages = Vec::new();
    let mut sent = Vec::new();
    for (number, event) in events.iter().enumerate() {
        for prefix in ["cloudEvents:", "cloudEvents_"] {
            let key = format!("{number} {prefix}");
            messages.push(binary(&key, event, prefix));
            sent.push((key, event));
        }
        let key = format!("{number} structured");
        messages.push(structured(&key, event)?);
        sent.push((key, event));
    }
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    rig.client.publish("cases", &messages)?;
    rig.until_empty()?;
    service.end()?;
    let letters = rig.home.rows(&["dead", "list", "cases", "--json"])?;
    ensure!(letters.len() == sent.len(), "{letters:?}");
    for (key, event) in sent {
        let letter = letters.iter().find(|letter| letter["key"] == key);
        let letter = letter.with_context(|| format!("no dead letter of {key}"))?;
        ensure!(letter["cause"] == "rejected", "{letter}");
        event.check(&letter["event"])?;
    }
    Ok(())
}
