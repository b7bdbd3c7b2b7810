//! Tests of the records about queues and exchanges that the host keeps in the store. The host must not report an error
//! of the store as an error of the broker. A lost reply of the store must not hide the removal of an exchange.

use anyhow::{Result, ensure};
use ordain_servers::{Proxy, Redis};
use ordain_tests::http::ready;
use ordain_tests::rig::Rig;
use ordain_tests::service::{RUN_WITH_SHORT_WAITS, Service, wait_until};

use super::support::{FIFO, log_in};

/// The name of the record in the store that lists the exchanges of the stream that have a marker.
const MARKER_RECORD: &str = "amqp-exchange/cases";
/// A part of the Redis request with which the host records that the exchange has no marker: the record's name, and an
/// empty value.
const MARKER_REMOVAL: &str = "amqp-exchange/cases\r\n$0\r\n";

/// Returns the sections of a configuration with a store in Redis. With the section `[ingress]`, a start waits for the
/// broker without a time limit.
fn sections(redis_url: &str) -> String {
    format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n[ingress]\nlisten = \"127.0.0.1:0\"\n\
         [store]\nkind = \"redis\"\nurl = \"{redis_url}\"\n"
    )
}

/// Waits until the store has the record that the exchange has a marker.
fn until_marked(redis: &Redis) -> Result<()> {
    wait_until("the record of the marker", || {
        let record = redis.command(&["HGET", "ordain:{0}:marks", MARKER_RECORD])?;
        Ok(record.text() == Some("cases"))
    })
}

/// A starting host waits for the broker. When the broker becomes available, the store no longer answers. The host must
/// report that the store is unavailable, and must continue when the store answers again.
#[test]
fn silent_store_is_reported_while_queues_are_prepared() -> Result<()> {
    let redis = Redis::start(&[])?;
    let rig = Rig::with_private_broker(&sections(&redis.url()), FIFO, "")?;
    rig.rabbit.stop()?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    service.until_says("broker unavailable")?;
    redis.pause()?;
    rig.rabbit.restart()?;
    service.until_says(
        "cannot access the records of queues and bindings in the store: the store is unavailable: no answer within 2s",
    )?;
    redis.resume()?;
    ready(&mut service)?;
    service.end()
}

/// Another program has overwritten the record of a queue. The next start must end with an error about the store.
#[test]
fn damaged_record_of_a_queue_is_an_error_of_the_store() -> Result<()> {
    let redis = Redis::start(&[])?;
    let rig = Rig::with(&sections(&redis.url()), FIFO, "")?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    ready(&mut service)?;
    service.end()?;
    let record = ["HSET", "ordain:{0}:marks", "amqp-queue/cases/0", "{"];
    ensure!(redis.command(&record)?.int() == Some(0), "the host has written no record");
    let output = rig.home.output(&RUN_WITH_SHORT_WAITS)?;
    let log = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(1), "{:?}: {log}", output.status);
    ensure!(
        log.contains("the store contains a damaged value: the mark amqp-queue/cases/0"),
        "{log}"
    );
    ensure!(!log.contains("broker unavailable"), "{log}");
    Ok(())
}

/// The exchange is missing at a start. The host writes to the store that the exchange has no marker. The store executes
/// this write, but its replies are lost. The next attempt finds the new record, and so cannot detect that the exchange
/// was removed. The log must report the removal nevertheless.
#[test]
fn exchange_missing_at_a_start_is_reported_despite_lost_replies() -> Result<()> {
    let redis = Redis::start(&[])?;
    let proxy = Proxy::start(redis.port())?;
    let rig = Rig::with(&sections(&redis.url_at(proxy.port())), "", "")?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    until_marked(&redis)?;
    service.end()?;
    rig.client.delete_exchange("cases")?;
    proxy.lose_replies(u64::MAX, MARKER_REMOVAL);
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    service.until_says("exchange missing at this start")?;
    ready(&mut service)?;
    service.end()
}

/// The exchange is removed while the host runs without the right to declare the marker again. The host writes to the
/// store that the exchange has no marker. The store executes this write, but its replies are lost. The next check finds
/// the new record, and so cannot detect that the exchange was removed. The log must report the removal nevertheless.
#[test]
fn missing_exchange_is_reported_despite_lost_replies() -> Result<()> {
    let redis = Redis::start(&[])?;
    let proxy = Proxy::start(redis.port())?;
    let sections = sections(&redis.url_at(proxy.port()));
    let rig = Rig::with(&sections, "", "")?;
    rig.rabbit.add_user("unmarkable", "guest", ".*")?;
    log_in(&rig, "unmarkable", &sections, "", "")?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    until_marked(&redis)?;
    rig.rabbit.limit_declarations("unmarkable", r"^cases(\.dropped|\.version\..*)?$")?;
    proxy.lose_replies(u64::MAX, MARKER_REMOVAL);
    rig.client.delete_exchange("cases")?;
    service.until_says("exchange missing: declared again")?;
    service.end()
}
