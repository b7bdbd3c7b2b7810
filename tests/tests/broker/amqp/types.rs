//! Tests of a queue that contains several types of events.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use lapin::ExchangeKind;
use lapin::message::Delivery;
use lapin::types::ShortString;
use ordain_tests::amqp::{Outgoing, from_line, header};
use ordain_tests::log::{Line, by_key, in_turn};
use ordain_tests::rig::Rig;
use ordain_tests::service::Service;
use ordain_tests::tally;

/// Returns the message of a line. Every second event of a key is a payment with the property `expiration`. The host
/// must not copy this property into the message of the sink, because the message would then expire.
fn outgoing(line: &str) -> Result<Outgoing> {
    let mut outgoing = from_line(line)?;
    let properties = outgoing.properties.clone();
    outgoing.properties = if is_payment(line)? {
        let properties = properties.with_type("payment.done".into());
        properties.with_expiration("3600000".into()).with_correlation_id("c-1".into())
    } else {
        properties.with_type("order.new".into())
    };
    Ok(outgoing)
}

fn is_payment(line: &str) -> Result<bool> {
    let event: serde_json::Value = serde_json::from_str(line)?;
    Ok(event["sequence"].as_u64().context("a sequence")?.is_multiple_of(2))
}

fn orders(lines: &[String]) -> Result<BTreeMap<String, BTreeMap<u64, Line>>> {
    let mut keys = by_key(lines)?;
    for events in keys.values_mut() {
        events.retain(|sequence, _| !sequence.is_multiple_of(2));
        for event in events.values_mut() {
            "order.new".clone_into(&mut event.kind);
        }
    }
    Ok(keys)
}

/// Checks a message of the exchange `others`. Returns its key and the number of its event.
fn payment(delivery: &Delivery) -> Result<(String, u64)> {
    let properties = &delivery.properties;
    let key = header(delivery, "X-Key").context("a key")?;
    ensure!(delivery.routing_key.as_str() == format!("payment.done.{key}"), "{delivery:?}");
    ensure!(properties.kind() == &Some(ShortString::from("payment.done")), "{properties:?}");
    ensure!(properties.correlation_id() == &Some(ShortString::from("c-1")), "{properties:?}");
    ensure!(properties.content_type() == &Some(ShortString::from("application/json")));
    ensure!(properties.expiration().is_none(), "{properties:?}");
    let data: serde_json::Value = serde_json::from_slice(&delivery.data)?;
    Ok((key, data["n"].as_u64().context("a number")?))
}

/// The handler executes the orders of a queue, and an exchange receives the payments. Although the test kills the host,
/// the exchange must receive each payment once, in the order of its key.
#[test]
fn exchange_receives_the_events_of_other_types() -> Result<()> {
    let sections = "[sinks.others]\nkind = \"amqp\"\nexchange = \"others\"\n\
                    routing_key = \"{type}.{key}\"\n";
    let rig = Rig::with(sections, "types = [\"order.*\"]\nother_types = \"others\"", "")?;
    rig.client.exchange("others", ExchangeKind::Topic)?;
    rig.client.queue("others")?;
    rig.client.bind("others", "others", "payment.#")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let lines = in_turn(20, 40);
    let messages = lines.iter().map(|line| outgoing(line)).collect::<Result<Vec<_>>>()?;
    let (first, second) = messages.split_at(messages.len() / 2);
    let mut out = Vec::new();
    rig.client.publish("cases", first)?;
    rig.take(&mut out, 1)?;
    service.kill()?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.client.publish("cases", second)?;

    // The host may publish a message twice, with the same id.
    let mut ids = Vec::new();
    let mut payments: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    rig.client.take_counted("others", lines.len() / 2, |delivery| {
        let (key, number) = payment(delivery)?;
        let id = delivery.properties.message_id().clone().context("an id")?;
        let is_new = !ids.contains(&id);
        if is_new {
            ids.push(id);
            payments.entry(key).or_default().push(number);
        }
        Ok(is_new)
    })?;
    let numbers: Vec<u64> = (1..=20).map(|number| 2 * number).collect();
    for key in 0..20 {
        let found = payments.get(&format!("k{key}"));
        ensure!(found == Some(&numbers), "k{key}: {found:?}");
    }
    rig.take(&mut out, lines.len() / 2)?;
    tally::check(&orders(&lines)?, &out.join("\n"))?;
    rig.until_empty()?;
    service.end()?;
    ensure!(rig.home.rows(&["dead", "list", "cases", "--json"])?.is_empty(), "dead letters");
    Ok(())
}

/// Without a sink, the host only acknowledges the events of other types. An event without a type counts as an event of
/// another type.
#[test]
fn events_of_other_types_are_acknowledged() -> Result<()> {
    let rig = Rig::with("", "ordering = \"fifo\"\ntypes = [\"order.*\"]", "")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let lines = in_turn(3, 4);
    let mut messages = lines.iter().map(|line| outgoing(line)).collect::<Result<Vec<_>>>()?;
    let mut untyped = from_line(&lines[0])?;
    untyped.properties = lapin::BasicProperties::default().with_message_id("untyped".into());
    messages.push(untyped);
    rig.client.publish("cases", &messages)?;
    let mut out = Vec::new();
    rig.take(&mut out, 6)?;
    tally::check(&orders(&lines)?, &out.join("\n"))?;
    rig.until_empty()?;
    service.end()?;
    ensure!(rig.client.take_all("out")?.is_empty(), "further messages");
    ensure!(rig.home.rows(&["dead", "list", "cases", "--json"])?.is_empty(), "dead letters");
    let log = service.stderr();
    ensure!(log.contains("other_types=7"), "{log}");
    Ok(())
}
