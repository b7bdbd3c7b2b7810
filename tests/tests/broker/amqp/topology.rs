//! Tests of exchanges and queues that other programs remove or replace while a stream runs.

use anyhow::{Context as _, Result, ensure};
use lapin::ExchangeKind;
use lapin::types::FieldTable;
use ordain_tests::amqp::from_line;
use ordain_tests::http::{admin, get};
use ordain_tests::log::{in_turn, line};
use ordain_tests::rig::{Rig, config};
use ordain_tests::service::{RUN_WITH_SHORT_WAITS, Service, wait_until};
use serde_json::json;

/// Returns the number of differences that the host has found.
fn changes(service: &mut Service) -> Result<u64> {
    let metrics = get(admin(service)?, "/metrics")?.body;
    let rows = metrics.lines().filter(|row| row.starts_with("ordain_topology_changes_total{"));
    Ok(rows.filter_map(|row| row.rsplit(' ').next()?.parse::<u64>().ok()).sum())
}

const ADMIN: &str = "[admin]\nlisten = \"127.0.0.1:0\"\n";

/// Producers often declare their exchange. A new exchange has no bindings, and the broker reports nothing.
#[test]
fn bindings_of_a_replaced_exchange_are_declared_again() -> Result<()> {
    for stream in ["", "ordering = \"fifo\""] {
        let rig = Rig::with("", stream, "")?;
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        rig.until_declared()?;
        let lines = in_turn(5, 20);
        let (first, second) = lines.split_at(50);
        rig.publish(first)?;
        rig.until_empty()?;
        rig.client.delete_exchange("cases")?;
        rig.client.exchange("cases", ExchangeKind::Fanout)?;
        rig.until_declared()?;
        rig.publish(second)?;
        rig.check(&lines)?;
        service.end()?;
    }
    Ok(())
}

/// Producers get an error while the exchange is missing.
#[test]
fn missing_exchange_is_declared_again_and_reported() -> Result<()> {
    let rig = Rig::with(ADMIN, "", "partitions = 4")?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    rig.until_declared()?;
    rig.client.delete_exchange("cases")?;
    service.until_says("exchange missing: declared again")?;
    rig.until_declared()?;
    let lines = in_turn(20, 10);
    rig.publish(&lines)?;
    rig.check(&lines)?;
    ensure!(changes(&mut service)? > 0);
    service.end()
}

/// A queue in another form is consumed, because a `sequenced` stream notices lost events by itself.
#[test]
fn queue_in_another_form_is_reported() -> Result<()> {
    let rig = Rig::with(ADMIN, "", "")?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    rig.until_declared()?;
    rig.client.delete_queue("cases")?;
    rig.client.queue_with("cases", FieldTable::default())?;
    service.until_says("topology not as configured")?;
    service.until_says("inequivalent arg")?;
    wait_until("a count", || Ok(changes(&mut service)? > 0))?;
    service.end()
}

/// The events of the removed queue are lost. New events must not get their numbers.
#[test]
fn fifo_stream_stops_if_its_queue_is_replaced() -> Result<()> {
    let rig = Rig::with("", "ordering = \"fifo\"", "")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    rig.publish(&in_turn(3, 10))?;
    rig.client.take("out", 30)?;
    rig.until_empty()?;
    rig.client.delete_queue("cases")?;
    let replaced = rig.client.queue_with("cases", FieldTable::default());
    replaced.with_context(|| service.stderr())?;
    let status = service.wait().with_context(|| service.stderr())?;
    let log = service.stderr();
    ensure!(status.code() == Some(1), "{status}: {log}");
    ensure!(log.contains("was removed while the stream ran"), "{log}");
    Ok(())
}

/// A refusal lasts until an operator acts. One line would be lost among others.
#[test]
fn refused_subscription_is_reported_repeatedly() -> Result<()> {
    let rig = Rig::new()?;
    rig.rabbit.add_user("other", "guest", ".*")?;
    let url = rig.rabbit.url().replace("guest:guest", "other:guest");
    rig.home.write("ordain.toml", config(&url, "", "", ""))?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    rig.until_declared()?;
    let lines = in_turn(3, 10);
    rig.publish(&lines)?;
    rig.check(&lines)?;
    rig.rabbit.change_password("other", "rotated")?;
    rig.rabbit.close_connections()?;
    let path = service.stderr_path();
    service.until("two warnings of the refusal", || {
        let log = std::fs::read_to_string(&path).unwrap_or_default();
        let is_refusal =
            |line: &&str| line.contains("queue not consumed") && line.contains("ACCESS_REFUSED");
        log.lines().filter(is_refusal).count() >= 2
    })?;
    rig.rabbit.change_password("other", "guest")?;
    service.until_says("queue consumed again")?;
    service.end()
}

/// RabbitMQ 4 delivers messages by priority, so that a `fifo` stream would take them in another order.
#[test]
fn priorities_in_a_fifo_stream_are_reported() -> Result<()> {
    let rig = Rig::with("", "ordering = \"fifo\"", "")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let mut message = from_line(&line("a", 1, &json!({ "n": 1 })))?;
    message.properties = message.properties.with_priority(9);
    rig.client.publish("cases", &[message])?;
    service.until_says("message with a priority")?;
    rig.client.take("out", 1)?;
    service.end()
}
