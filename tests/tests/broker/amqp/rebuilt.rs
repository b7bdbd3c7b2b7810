//! Tests of a `sequenced` stream whose virtual host is missing for a while, or is created anew without its content.

use anyhow::{Result, ensure};
use lapin::ExchangeKind;
use ordain_tests::http::{admin, get};
use ordain_tests::log::{by_key, in_turn};
use ordain_tests::rig::Rig;
use ordain_tests::service::{RUN_WITH_SHORT_WAITS, Service, wait_until};
use ordain_tests::tally;

/// Connects to a new virtual host, and declares the exchange and the queue of the sink, which the host never declares.
pub(super) fn declare_out(rig: &mut Rig) -> Result<()> {
    let declare = |rig: &Rig| {
        rig.client.exchange("out", ExchangeKind::Topic)?;
        rig.client.queue("out")?;
        rig.client.bind("out", "out", "#")
    };
    // Because of the deletion of the former virtual host, the broker may still close connections.
    wait_until("the queue of the sink", || Ok(rig.reconnect().is_ok() && declare(rig).is_ok()))
}

/// Publishes events, and waits until the host has published their messages and acknowledged their deliveries. Adds the
/// messages to `out`.
fn execute(rig: &Rig, lines: &[String], out: &mut Vec<String>) -> Result<()> {
    rig.publish(lines)?;
    let count = out.len() + lines.len();
    rig.take(out, count)?;
    rig.until_empty()
}

/// The virtual host is rebuilt twice: once while the host runs, and once while no host runs. Each time, the host must
/// declare its exchange and its queue again, log that the exchange was missing, and execute the events that are
/// published afterwards.
#[test]
fn stream_of_a_rebuilt_virtual_host_continues() -> Result<()> {
    let mut rig = Rig::new()?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    rig.until_bound("cases.marker", &["cases"])?;
    let lines = in_turn(3, 20);
    let (first, rest) = lines.split_at(20);
    let (second, third) = rest.split_at(20);
    let mut out = Vec::new();
    execute(&rig, first, &mut out)?;
    rig.rabbit.recreate_virtual_host()?;
    service.until_says("the events of the old queue are lost")?;
    service.until_says("exchange missing: declared again")?;
    declare_out(&mut rig)?;
    rig.until_declared()?;
    execute(&rig, second, &mut out)?;
    service.end()?;

    rig.rabbit.recreate_virtual_host()?;
    declare_out(&mut rig)?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    service.until_says("exchange missing at this start")?;
    rig.until_declared()?;
    execute(&rig, third, &mut out)?;
    tally::check(&by_key(&lines)?, &out.join("\n"))?;
    service.end()
}

/// While the virtual host is missing, the host must report the problem repeatedly, in the words of the broker, and must
/// not be ready. When the virtual host exists again, the host must continue.
#[test]
fn missing_virtual_host_is_reported_until_it_returns() -> Result<()> {
    let mut rig = Rig::new()?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    rig.until_declared()?;
    let lines = in_turn(3, 20);
    let (first, rest) = lines.split_at(30);
    let mut out = Vec::new();
    execute(&rig, first, &mut out)?;
    rig.rabbit.delete_virtual_host()?;
    service.until_lines(2, &["queue not consumed", "NOT_ALLOWED"])?;
    let address = admin(&mut service)?;
    let not_ready = get(address, "/readyz")?;
    ensure!(not_ready.status == 503, "{not_ready:?}");
    ensure!(not_ready.problem()?.contains("stream cases: no events have arrived from its source"));
    rig.rabbit.create_virtual_host()?;
    service.until_says("queue consumed again")?;
    declare_out(&mut rig)?;
    rig.until_declared()?;
    execute(&rig, rest, &mut out)?;
    service.until("readiness", || get(address, "/readyz").is_ok_and(|page| page.status == 200))?;
    tally::check(&by_key(&lines)?, &out.join("\n"))?;
    service.end()
}
