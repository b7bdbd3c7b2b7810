//! Tests of events that arrive over HTTP for a stream whose source is RabbitMQ. Each event takes effect once, even if
//! it also arrives over RabbitMQ. A running host executes such events also while RabbitMQ is down.

use anyhow::{Result, ensure};
use ordain_servers::{Proxy, Rabbit, wait_until};
use ordain_tests::host::Home;
use ordain_tests::http;
use ordain_tests::log::{by_key, in_turn};
use ordain_tests::rig::{Rig, config};
use ordain_tests::service::{RUN_WITH_SHORT_WAITS, Service};
use ordain_tests::tally;

use super::support::{EVENT_TYPE, SECTIONS, inbox_events, ingress, into_file, post, post_all};

/// Calls `stop`, which makes the broker unavailable, and later `restore`, which makes the broker available again.
/// Between the two calls, events that arrive over HTTP must take effect. The stream has one partition, so the host can
/// process the events of all keys while the broker is unavailable.
fn check_broker_outage(
    stop: impl Fn(&Rabbit) -> Result<()>,
    restore: impl Fn(&Rabbit) -> Result<()>,
) -> Result<()> {
    let rig = Rig::with_private_broker("", "", "")?;
    let config_text = into_file(&config(&rig.rabbit.url(), SECTIONS, "", ""), "out.ndjson");
    let home = Home::new(&["tally"], &config_text)?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ingress(&mut service)?;
    rig.until_declared()?;
    let mut lines = in_turn(40, 20);
    // This event has the maximum number of extension attributes. When the host publishes the event from the inbox to
    // the exchange of the stream, the message must have all these attributes.
    for at in 0..128 {
        lines[10].insert_str(1, &format!("\"x{at}\":\"1\","));
    }
    let (first, rest) = lines.split_at(200);
    let (second, third) = rest.split_at(400);
    let until = |count: usize| {
        wait_until(&format!("{count} effects"), || Ok(home.lines("out.ndjson") >= count))
    };
    // Some events arrive both over HTTP and from the broker.
    post_all(address, first)?;
    rig.publish(&first[50..150])?;
    until(first.len())?;
    rig.until_empty()?;
    stop(&rig.rabbit)?;
    post_all(address, second)?;
    until(first.len() + second.len())?;
    // Without the broker, the host must still accept a repeated event, and must still reject a different event with the
    // same id.
    ensure!(post(address, EVENT_TYPE, &second[7])?.status == 202);
    ensure!(post(address, EVENT_TYPE, &second[7].replace("\"n\":", "\"m\":"))?.status == 409);
    restore(&rig.rabbit)?;
    post_all(address, third)?;
    until(lines.len())?;
    rig.until_empty()?;
    wait_until("an empty inbox", || inbox_events(&mut service).map(|count| count == 0))?;
    service.until_says("publishing of events over HTTP to the broker works again")?;
    let metrics = http::get(http::admin(&mut service)?, "/metrics")?.body;
    for line in ["{status=\"202\"} 5", "{status=\"409\"} 1"] {
        let line = format!("ordain_ingress_requests_total{line}");
        ensure!(metrics.lines().any(|row| row == line), "{line}: {metrics}");
    }
    service.end()?;
    tally::check(&by_key(&lines)?, &home.read("out.ndjson"))?;
    ensure!(home.rows(&["dead", "list", "cases", "--json"])?.is_empty(), "a dead letter exists");
    Ok(())
}

#[test]
fn broker_shutdown_delays_no_http_event() -> Result<()> {
    check_broker_outage(Rabbit::stop, Rabbit::restart)
}

#[test]
fn broker_crash_delays_no_http_event() -> Result<()> {
    check_broker_outage(Rabbit::kill, Rabbit::restart)
}

/// The broker is paused: its connections stay open, but it does not reply.
#[test]
fn paused_broker_delays_no_http_event() -> Result<()> {
    check_broker_outage(Rabbit::pause, Rabbit::resume)
}

/// The broker accepts no messages because of its memory limit. The host detects the problem after the time limit for
/// the first message, and then processes the events without the broker.
#[test]
fn blocked_publishing_keeps_no_http_event_waiting() -> Result<()> {
    check_broker_outage(|rabbit| rabbit.limit_memory(0.00001), |rabbit| rabbit.limit_memory(0.4))
}

/// The test silences the connection on which the inbox publishes events. The host must replace this connection within
/// the time limits of the waits below (a minute each). The client library alone would detect the silence only after ten
/// minutes.
#[test]
fn silent_connection_of_the_inbox_is_replaced() -> Result<()> {
    let rig = Rig::new()?;
    let proxy = Proxy::start(rig.rabbit.port())?;
    let sections = format!("[runtime]\nlease = \"10m\"\n{SECTIONS}");
    let config_text = config(&rig.rabbit.url_at(proxy.port()), &sections, "", "")
        .replace("[streams.cases]", "heartbeat = \"5m\"\n[streams.cases]");
    let home = Home::new(&["tally"], &into_file(&config_text, "out.ndjson"))?;
    let mut service = Service::start(&home, &RUN_WITH_SHORT_WAITS)?;
    let address = ingress(&mut service)?;
    rig.until_declared()?;
    let lines = in_turn(40, 20);
    let (first, rest) = lines.split_at(400);
    post_all(address, first)?;
    wait_until("the first effects", || Ok(home.lines("out.ndjson") >= first.len()))?;
    wait_until("an empty inbox", || inbox_events(&mut service).map(|count| count == 0))?;

    ensure!(proxy.silence("ordain publish") == 1, "the inbox does not have exactly one connection");
    post_all(address, rest)?;
    wait_until("all effects", || Ok(home.lines("out.ndjson") >= lines.len()))?;
    wait_until("an empty inbox", || inbox_events(&mut service).map(|count| count == 0))?;
    rig.until_empty()?;
    service.end()?;
    tally::check(&by_key(&lines)?, &home.read("out.ndjson"))
}

/// A process that starts while the broker is down must accept events over HTTP. The events must take effect when the
/// broker is available.
#[test]
fn process_starts_without_broker() -> Result<()> {
    let rig = Rig::with_private_broker("", "", "")?;
    let config_text = into_file(&config(&rig.rabbit.url(), SECTIONS, "", ""), "out.ndjson");
    let home = Home::new(&["tally"], &config_text)?;
    rig.rabbit.stop()?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ingress(&mut service)?;
    let lines = in_turn(10, 10);
    let (first, rest) = lines.split_at(50);
    post_all(address, first)?;
    service.end()?;
    let mut service = Service::start(&home, &["run"])?;
    post_all(ingress(&mut service)?, rest)?;
    rig.rabbit.restart()?;
    wait_until("all effects", || Ok(home.lines("out.ndjson") >= lines.len()))?;
    service.end()?;
    tally::check(&by_key(&lines)?, &home.read("out.ndjson"))
}
