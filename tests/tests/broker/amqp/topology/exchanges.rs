//! Tests of exchanges that other programs remove, or replace by an exchange of the same or of another type.

use std::time::Duration;

use anyhow::{Result, ensure};
use lapin::ExchangeKind;
use ordain_servers::{Mode, Proxy};
use ordain_tests::alerts;
use ordain_tests::amqp::from_line;
use ordain_tests::http::{admin, get, metric, ready};
use ordain_tests::log::{in_turn, line};
use ordain_tests::rig::{Rig, config};
use ordain_tests::service::{RUN_WITH_SHORT_WAITS, Service, wait_until};
use serde_json::json;

use super::super::support::{ADMIN, FIFO, Halves, log_in};
use super::{changes, until_not_ready};

/// Deletes the exchange `cases`, and declares it again with the type `kind`, as another program does. Pauses the host
/// meanwhile, because a check between the two steps would find the exchange missing.
fn replace_exchange(rig: &Rig, service: &Service, kind: ExchangeKind) -> Result<()> {
    service.pause()?;
    rig.client.delete_exchange("cases")?;
    rig.client.exchange("cases", kind)?;
    service.resume()
}

/// If a producer declares a deleted exchange again, the new exchange has no bindings, and the broker does not report
/// this to the host. The host must declare the bindings again.
#[test]
fn bindings_of_a_replaced_exchange_are_declared_again() -> Result<()> {
    for stream in ["", FIFO] {
        let rig = Rig::with("", stream, "")?;
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        rig.until_declared()?;
        let lines = in_turn(5, 20);
        let (first, second) = lines.split_at(50);
        rig.publish(first)?;
        rig.until_empty()?;
        rig.until_marked("cases")?;
        replace_exchange(&rig, &service, ExchangeKind::Fanout)?;
        // For a moment, RabbitMQ 4.3 still lists the bindings of the deleted exchange.
        service.until_says("exchange removed and declared again by another program:")?;
        rig.until_declared()?;
        rig.publish(second)?;
        rig.check(&lines)?;
        service.end()?;
    }
    Ok(())
}

/// The host is killed as soon as the new exchange has its marker. When the new marker exists, no check can detect the
/// replacement any more. The host must therefore log the replacement before it declares the new marker. The link to the
/// broker is slow, so each later step of the check takes longer than the test needs to kill the host.
#[test]
fn replaced_exchange_is_logged_before_it_gets_a_marker() -> Result<()> {
    let rig = Rig::new()?;
    let proxy = Proxy::start(rig.rabbit.port())?;
    rig.home.write("ordain.toml", config(&rig.rabbit.url_at(proxy.port()), "", "", ""))?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    rig.until_declared()?;
    rig.until_marked("cases")?;
    service.pause()?;
    rig.client.delete_exchange("cases")?;
    rig.client.exchange("cases", ExchangeKind::Fanout)?;
    let has_marker = || anyhow::Ok(!rig.rabbit.bound_to_exchange("cases")?.is_empty());
    // For a moment, RabbitMQ 4.3 still lists the bindings of the deleted exchange.
    wait_until("an exchange without a marker", || Ok(!has_marker()?))?;
    proxy.set(Mode::Delay(Duration::from_millis(60)))?;
    service.resume()?;
    wait_until("the new marker", has_marker)?;
    service.kill()?;
    let log = service.stderr();
    ensure!(log.contains("exchange removed and declared again by another program:"), "{log}");
    Ok(())
}

/// Events are lost if they are published after the exchange was replaced and before the host declares the bindings
/// again. The log warns of this.
#[test]
fn replaced_exchange_is_reported() -> Result<()> {
    let rig = Rig::with(ADMIN, "", "")?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    rig.until_declared()?;
    rig.until_marked("cases")?;
    replace_exchange(&rig, &service, ExchangeKind::Fanout)?;
    service.until_says("exchange removed and declared again by another program:")?;
    wait_until("a counted change", || Ok(changes(&mut service)? > 0))?;
    rig.until_marked("cases")?;
    service.end()?;
    // This time, the exchange is replaced while no host runs.
    rig.client.delete_exchange("cases")?;
    rig.client.exchange("cases", ExchangeKind::Fanout)?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    service.until_says("declared it again while no process of Ordain checked it")?;
    rig.until_declared()?;
    let lines = in_turn(3, 10);
    rig.publish(&lines)?;
    rig.check(&lines)?;
    service.end()
}

/// While the exchange is missing, producers get an error. The host must declare the exchange again.
#[test]
fn missing_exchange_is_declared_again_and_reported() -> Result<()> {
    let rig = Rig::with(ADMIN, "", "partitions = 4")?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    rig.until_declared()?;
    let address = ready(&mut service)?;
    let earlier = get(address, "/metrics")?.body;
    rig.client.delete_exchange("cases")?;
    service.until_says("exchange missing: declared again")?;
    rig.until_declared()?;
    let lines = in_turn(20, 10);
    rig.publish(&lines)?;
    rig.check(&lines)?;
    ensure!(changes(&mut service)? > 0);
    let firing = alerts::firing(&earlier, &get(address, "/metrics")?.body)?;
    ensure!(firing.contains("OrdainTopologyChanged"), "{firing:?}");
    service.end()
}

/// Another program replaces the exchange by an exchange of another type. The new exchange routes no event to the queue,
/// because the binding of the queue matches only an empty routing key. The host must report the difference repeatedly,
/// and must not be ready. After an operator has deleted the exchange, the host declares it again and continues.
#[test]
fn exchange_of_another_type_is_reported_repeatedly() -> Result<()> {
    for ordering in ["", FIFO] {
        let rig = Rig::with(ADMIN, ordering, "")?;
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        rig.until_declared()?;
        rig.until_marked("cases")?;
        let halves = Halves::begin(&rig, in_turn(3, 10))?;
        rig.until_empty()?;
        replace_exchange(&rig, &service, ExchangeKind::Topic)?;
        let difference = "inequivalent arg 'type' for exchange 'cases'";
        service.until_lines(2, &["topology not as configured", difference])?;
        let lost =
            halves.second().iter().map(|line| from_line(line)).collect::<Result<Vec<_>>>()?;
        ensure!(!rig.client.try_publish("cases", &lost)?, "a queue has received each event");

        until_not_ready(&mut service)?;
        let address = admin(&mut service)?;
        let reason = "stream cases: the exchange in the broker has another type";
        let page = get(address, "/readyz")?;
        ensure!(page.problem()?.contains(reason), "{page:?}");
        let metrics = get(address, "/metrics")?.body;
        let row = "ordain_stream_consuming{stream=\"cases\",partition=\"0\"} 0";
        ensure!(metrics.contains(row), "{metrics}");
        ensure!(changes(&mut service)? >= 2);
        let url = format!("http://{address}");
        let listed = rig.home.printed(&["streams", "list", "--admin", &url])?;
        ensure!(listed.contains(difference), "{listed}");

        rig.client.delete_exchange("cases")?;
        service.until_says("exchange missing: declared again")?;
        service
            .until("readiness", || get(address, "/readyz").is_ok_and(|page| page.status == 200))?;
        rig.until_declared()?;
        halves.end(&rig)?;
        service.end()?;
    }
    Ok(())
}

/// After an upgrade of the broker, the plugin of the exchange type is missing, so the exchange routes no messages. The
/// host must name the plugin, and must not be ready until the broker supports the type again.
#[test]
fn exchange_of_an_unsupported_type_is_reported() -> Result<()> {
    let rig = Rig::with_private_broker(ADMIN, "", "partitions = 4")?;
    // This host checks the topology every three seconds.
    let mut service = Service::start(&rig.home, &["--wait-divisor=20", "run"])?;
    rig.until_declared()?;
    let halves = Halves::begin(&rig, in_turn(3, 10))?;
    let address = ready(&mut service)?;
    rig.rabbit.support_modulus_hash(false)?;
    let words = ["topology not as configured", "exchange type", "enable rabbitmq_sharding"];
    service.until_lines(1, &words)?;
    until_not_ready(&mut service)?;
    let page = get(address, "/readyz")?;
    ensure!(page.problem()?.contains("a type that the broker does not support"), "{page:?}");
    service.until("no partition that consumes", || {
        metric(address, "ordain_stream_consuming").is_ok_and(|consuming| consuming == Some(0))
    })?;
    rig.rabbit.support_modulus_hash(true)?;
    ready(&mut service)?;
    halves.end(&rig)?;
    service.end()
}

/// The exchange is removed while no host runs. The next start declares it again, and reports the loss.
#[test]
fn exchange_removed_before_a_start_is_reported() -> Result<()> {
    for source in ["", "partitions = 2"] {
        let rig = Rig::with("", "", source)?;
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        rig.until_marked("cases")?;
        service.end()?;
        rig.client.delete_exchange("cases")?;
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        service.until_says("exchange missing at this start")?;
        service.end()?;
    }
    Ok(())
}

/// The user of the host has no right to declare markers. The log must report that the broker refused the marker of the
/// exchange, and must name the rights that the host needs for the marker.
#[test]
fn refused_marker_of_the_exchange_is_reported() -> Result<()> {
    let rig = Rig::new()?;
    rig.rabbit.add_narrow_user("markerless")?;
    log_in(&rig, "markerless", ADMIN, "", "")?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    service.until_says("exchange without a marker: the broker refused the marker")?;
    service.until_says("ACCESS_REFUSED")?;
    service.until_says(
        "to configure and read exchanges whose names begin with the name of the queue",
    )?;
    service.until_says("and to write to the exchange \"cases\"")?;
    ensure!(changes(&mut service)? == 0);
    service.end()
}

/// If the exchange has another type than the configured type, it routes events of all partitions wrongly. Only the
/// consumer of partition 0 checks the exchange. Nevertheless, no partition may count as consuming, and no partition may
/// give up a missing event.
#[test]
fn exchange_of_another_type_concerns_all_partitions() -> Result<()> {
    const GAPS: &str = "spill_after = \"100ms\"\ngap = { timeout = \"50ms\", attempts = 2, \
                        backoff = \"10ms..20ms\", on_exhausted = \"skip\" }";
    const DIFFERENCE: &str = "inequivalent arg 'type' for exchange 'cases'";
    let rig = Rig::with(ADMIN, GAPS, "partitions = 4")?;
    // This host checks the topology every three seconds.
    let mut service = Service::start(&rig.home, &["--wait-divisor=20", "run"])?;
    rig.until_declared()?;
    rig.until_marked("cases")?;
    let address = ready(&mut service)?;
    ensure!(metric(address, "ordain_stream_consuming")? == Some(4), "{}", service.stderr());
    replace_exchange(&rig, &service, ExchangeKind::Topic)?;
    for partition in 0..4 {
        rig.client.bind(&format!("cases.{partition}"), "cases", &format!("key-{partition}"))?;
    }
    service.until_lines(1, &["topology not as configured", DIFFERENCE])?;
    service.until("no partition that consumes", || {
        metric(address, "ordain_stream_consuming").is_ok_and(|consuming| consuming == Some(0))
    })?;
    // Each partition receives the second event of a key, and the first event is missing.
    let keys: Vec<String> = (0..4).map(|partition| format!("key-{partition}")).collect();
    let of_keys = |sequence: u64| -> Vec<String> {
        keys.iter().map(|key| line(key, sequence, &json!({ "n": sequence }))).collect()
    };
    rig.publish(&of_keys(2))?;
    // The events wait in the store.
    rig.until_empty()?;
    // The test waits for two more checks of the topology. During this time, a key could give up its first event many
    // times.
    let reported = service.stderr().matches(DIFFERENCE).count();
    service.until_lines(reported + 2, &["topology not as configured", DIFFERENCE])?;
    ensure!(metric(address, "ordain_dead_letters_total")?.unwrap_or(0) == 0);
    rig.publish(&of_keys(1))?;
    rig.check(&[of_keys(1), of_keys(2)].concat())?;
    // A check that runs during the deletion can declare the exchange without logging that it was missing.
    rig.client.delete_exchange("cases")?;
    service.until("four partitions that consume", || {
        metric(address, "ordain_stream_consuming").is_ok_and(|consuming| consuming == Some(4))
    })?;
    ready(&mut service)?;
    service.end()
}
