//! Tests of streams whose settings name the places of the key, id, type and time of their events.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use ordain_servers::{Rabbit, RabbitOptions};
use ordain_tests::amqp::{Outgoing, from_line};
use ordain_tests::log::{by_key, in_turn};
use ordain_tests::rig::Rig;
use ordain_tests::service::Service;
use ordain_tests::tally;
use serde_json::{Value, json};

const TASK_PLACES: &str = "key = \"data:/order\", id = \"property:correlation_id\", type = \"header:task\", \
                           time = \"data:/sent\"";

/// Returns a message as a task queue sends it: the routing key is the same for all tasks, there is no `message_id`, and
/// only the body names the order.
fn task(id: &str, order: &Value) -> Outgoing {
    let mut headers = FieldTable::default();
    headers.insert("task".into(), AMQPValue::LongString("orders.pay".into()));
    let properties =
        BasicProperties::default().with_correlation_id(id.into()).with_headers(headers);
    let body = json!({ "order": order, "sent": 1_764_072_000_125_u64 });
    Outgoing { routing_key: "tasks".to_owned(), properties, body: body.to_string().into_bytes() }
}

/// The handler rejects every event, so the dead letters show the events.
#[test]
fn values_are_read_from_the_named_places() -> Result<()> {
    let rig = Rig::with("", "ordering = \"fifo\"", TASK_PLACES)?;
    rig.home.write("ordain.toml", rig.home.read("ordain.toml").replace("tally", "faulty"))?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let orders = [json!("o-1"), json!(17), json!("o-1"), Value::Null];
    let ids = ["t-1", "t-2", "t-1", "t-3"];
    let messages: Vec<_> = ids.iter().zip(&orders).map(|(id, order)| task(id, order)).collect();
    rig.client.publish("cases", &messages)?;
    rig.until_empty()?;
    service.end()?;
    let letters = rig.home.rows(&["dead", "list", "cases", "--json"])?;
    let by_key: BTreeMap<&str, &Value> =
        letters.iter().filter_map(|letter| Some((letter["key"].as_str()?, letter))).collect();
    ensure!(letters.len() == 3 && by_key.len() == 3, "{letters:?}");
    for (key, id) in [("o-1", "t-1"), ("17", "t-2")] {
        let letter = by_key.get(key).context("a letter")?;
        ensure!(letter["cause"] == "rejected", "{letter}");
        let event = &letter["event"];
        ensure!(event["id"] == id && event["type"] == "orders.pay", "{event}");
        ensure!(event["time"] == "2025-11-25T12:00:00.125Z", "{event}");
        let headers = json!([["task", "orders.pay"], ["property:correlation_id", id]]);
        ensure!(event["headers"] == headers, "{event}");
    }
    let without = by_key.get("").context("a letter without a key")?;
    ensure!(without["cause"] == "no-key", "{without}");
    let error = "there is no key: the data at \"/order\" must contain the key";
    ensure!(without["error"] == error, "{without}");
    Ok(())
}

fn with_key_in_header(lines: &[String]) -> Result<Vec<Outgoing>> {
    let message = |(index, line): (usize, &String)| -> Result<Outgoing> {
        let mut outgoing = from_line(line)?;
        let key = std::mem::replace(&mut outgoing.routing_key, format!("route-{index}"));
        let mut headers = outgoing.properties.headers().clone().unwrap_or_default();
        headers.insert("case".into(), AMQPValue::LongString(key.into()));
        outgoing.properties = outgoing.properties.with_headers(headers);
        Ok(outgoing)
    };
    lines.iter().enumerate().map(message).collect()
}

/// With several partitions, the exchange hashes the header that contains the key. All events of a key are in one
/// partition, although their routing keys differ.
#[test]
fn key_in_header_chooses_the_partition() -> Result<()> {
    let rig = Rig::with("", "", "partitions = 4, key = \"header:case\"")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let lines = in_turn(12, 20);
    rig.client.publish("cases", &with_key_in_header(&lines)?)?;
    rig.check(&lines)?;
    rig.until_empty()?;
    service.end()?;
    ensure!(!service.stderr().contains("keys moved here"), "{}", service.stderr());
    Ok(())
}

/// When the broker starts, it assigns the hashes to the queues anew, in an order that changes from start to start. Keys
/// can therefore change their partition. The events must still take effect once and in order, and the host must name
/// the moved keys.
#[test]
fn restart_of_the_broker_loses_and_repeats_nothing() -> Result<()> {
    let mut rig = Rig::with_private_broker("", "", "partitions = 12, key = \"header:case\"")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_bound("cases", &["cases.9"])?;
    rig.until_declared()?;
    rig.rabbit.sync()?;
    let lines = in_turn(60, 4);
    let (before, after) = lines.split_at(120);
    rig.client.publish("cases", &with_key_in_header(before)?)?;
    let mut out = Vec::new();
    rig.take(&mut out, before.len())?;
    rig.until_empty()?;
    rig.rabbit.restart()?;
    rig.reconnect()?;
    rig.client.publish("cases", &with_key_in_header(after)?)?;
    rig.take(&mut out, lines.len())?;
    rig.until_empty()?;
    tally::check(&by_key(&lines)?, &out.join("\n"))?;
    service.end()?;
    let log = service.stderr();
    let moved = log.matches("keys moved here").count();
    ensure!(moved == 0 || log.contains("after a restart of the broker"), "{log}");
    ensure!(rig.home.rows(&["dead", "list", "cases", "--json"])?.is_empty(), "{log}");
    Ok(())
}

/// Without the plugin of the exchange type, the error names the plugin.
#[test]
fn missing_plugin_for_a_key_in_a_header_is_refused() -> Result<()> {
    let rabbit = Rabbit::with(&RabbitOptions::new().without_plugins())?;
    let rig = Rig::on(rabbit, "", "", "partitions = 4, key = \"header:case\"")?;
    let output = rig.home.output(&["check", "--connect"])?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(78), "{:?}: {errors}", output.status);
    ensure!(
        errors.contains("rabbitmq-plugins enable rabbitmq_consistent_hash_exchange"),
        "{errors}"
    );
    Ok(())
}
