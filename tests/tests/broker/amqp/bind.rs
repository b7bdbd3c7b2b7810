//! Tests of exchanges that are bound to the exchange of a stream.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use lapin::ExchangeKind;
use ordain_servers::Rabbit;
use ordain_tests::amqp::{Client, Outgoing, from_line};
use ordain_tests::http::{admin, metric};
use ordain_tests::log::{by_key, in_turn};
use ordain_tests::rig::Rig;
use ordain_tests::service::{RUN_WITH_SHORT_WAITS, Service, wait_until};
use ordain_tests::tally;

use super::support::log_in;

/// Publishes to three exchanges in turn: the stream's exchange, and two exchanges that forward messages to it. The
/// exchange `feed` forwards all messages, and the exchange `some` only the messages with the routing key `k1`.
fn publish(rig: &Rig, lines: &[String]) -> Result<()> {
    let mut messages: BTreeMap<&str, Vec<Outgoing>> = BTreeMap::new();
    for (number, line) in lines.iter().enumerate() {
        let message = from_line(line)?;
        let exchange = match number % 3 {
            0 => "cases",
            _ if message.routing_key == "k1" => "some",
            _ => "feed",
        };
        messages.entry(exchange).or_default().push(message);
    }
    messages.iter().try_for_each(|(exchange, messages)| rig.client.publish(exchange, messages))
}

fn bound_queues_receive_matching_events(partitions: u64) -> Result<()> {
    let rabbit = Rabbit::shared()?;
    let client = Client::connect(&rabbit.url())?;
    client.exchange("feed", ExchangeKind::Topic)?;
    client.exchange("some", ExchangeKind::Direct)?;
    let bind = "[{ exchange = \"feed\" }, { exchange = \"some\", routing_key = \"k1\" }]";
    let source = format!("partitions = {partitions}, bind = {bind}");
    let rig = Rig::on(rabbit, "", "", &source)?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    rig.until_bound("feed", &["cases"])?;
    rig.until_bound("some", &["cases"])?;
    // The number of keys is not a multiple of three, so the events of each key reach the stream through several
    // exchanges.
    let lines = in_turn(61, 9);
    publish(&rig, &lines)?;
    rig.check(&lines)?;
    rig.until_empty()?;
    service.end()?;

    // The host has ended. Events that are published now must arrive in the queue of their key's partition.
    let rows = rig.home.rows(&["keys", "list", "cases", "--json"])?;
    let row = |row: &serde_json::Value| {
        Some((row["key"].as_str()?.to_owned(), row["partition"].as_u64()?))
    };
    let keys: BTreeMap<String, u64> = rows.iter().filter_map(row).collect();
    ensure!(keys.len() == 61, "{rows:?}");
    ensure!(
        (0..partitions).all(|number| keys.values().any(|partition| *partition == number)),
        "{keys:?}"
    );
    publish(&rig, &lines)?;
    let mut left = lines.len();
    for partition in 0..partitions {
        let queue = if partitions == 1 { "cases".to_owned() } else { format!("cases.{partition}") };
        for delivery in rig.client.take_all(&queue)? {
            let key = delivery.routing_key.as_str();
            ensure!(keys.get(key) == Some(&partition), "{key} in {queue}, before {keys:?}");
            left = left.checked_sub(1).context("more events arrived than were published")?;
        }
    }
    ensure!(left == 0, "{left} events are in no queue");
    Ok(())
}

#[test]
fn bound_exchanges_feed_one_queue() -> Result<()> {
    bound_queues_receive_matching_events(1)
}

#[test]
fn bound_exchanges_feed_four_queues() -> Result<()> {
    bound_queues_receive_matching_events(4)
}

const BIND_FEED: &str = "bind = [{ exchange = \"feed\" }]";

/// Creates a rig with a stream that receives all messages of the exchange `feed`, which exists already.
fn rig_with_feed() -> Result<Rig> {
    let rig = Rig::with("", "", BIND_FEED)?;
    rig.client.exchange("feed", ExchangeKind::Topic)?;
    Ok(rig)
}

/// Publishes lines of a file as events to the exchange `feed`, and receives the messages that the host publishes for
/// these events. Adds the messages to `out`.
fn feed(rig: &Rig, lines: &[String], out: &mut Vec<String>) -> Result<()> {
    let messages: Vec<Outgoing> =
        lines.iter().map(|line| from_line(line)).collect::<Result<_>>()?;
    rig.client.publish("feed", &messages)?;
    let count = out.len() + lines.len();
    rig.take(out, count)
}

/// Deletes the exchange `feed`, and declares it again without its bindings.
fn replace_feed(rig: &Rig) -> Result<()> {
    rig.client.delete_exchange("feed")?;
    rig.client.exchange("feed", ExchangeKind::Topic)
}

fn topology_changes(service: &mut Service) -> Result<u64> {
    Ok(metric(admin(service)?, "ordain_topology_changes_total")?.unwrap_or(0))
}

/// If another program declares a deleted exchange of `bind` again, the new exchange has no bindings, and the broker
/// does not report this to the host. The host must bind the exchange again, and report the loss. Without the broker's
/// management API, the host cannot detect the removal of a single binding. It must nevertheless restore a removed
/// binding, because from time to time, it declares all bindings again.
#[test]
fn replaced_exchange_of_bind_is_bound_again_and_reported() -> Result<()> {
    let rig = rig_with_feed()?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    rig.until_declared()?;
    rig.until_bound("feed", &["cases"])?;
    let lines = in_turn(5, 20);
    let mut parts = lines.chunks(25);
    let mut next = || parts.next().context("no part of the events is left");
    let mut out = Vec::new();
    feed(&rig, next()?, &mut out)?;
    ensure!(topology_changes(&mut service)? == 0, "{}", service.stderr());

    rig.until_marked("feed")?;
    replace_feed(&rig)?;
    let replaced = "exchange removed and declared again by another program:";
    service.until_lines(1, &[replaced, "exchange=\"feed\""])?;
    wait_until("a counted change", || Ok(topology_changes(&mut service)? > 0))?;
    rig.until_bound("feed", &["cases"])?;
    feed(&rig, next()?, &mut out)?;
    rig.until_marked("feed")?;
    service.end()?;

    // This time, the exchange is replaced while no host runs.
    replace_feed(&rig)?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    service.until_says("declared it again while no process of Ordain checked it")?;
    rig.until_bound("feed", &["cases"])?;
    feed(&rig, next()?, &mut out)?;

    rig.client.unbind_exchange("cases", "feed", "#")?;
    rig.client.unbind("cases", "cases", "")?;
    let last = next()?;
    let first_of_last = [from_line(&last[0])?];
    wait_until("the bindings", || rig.client.try_publish("feed", &first_of_last))?;
    feed(&rig, last, &mut out)?;
    tally::check(&by_key(&lines)?, &out.join("\n"))?;
    service.end()
}

/// The parts of the error about a missing exchange.
const FEED_MISSING: [&str; 3] = [
    "topology not as configured",
    "no exchange 'feed'",
    "declare the missing queue or exchange, or remove it from the configuration",
];

/// Another program removes the exchange of `bind`, and declares it again after the broker has refused the binding. The
/// host must repeat the binding within seconds, and must report no error.
#[test]
fn exchange_of_bind_that_returns_within_seconds_is_no_error() -> Result<()> {
    let mut rig = rig_with_feed()?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_bound("feed", &["cases"])?;
    rig.client.delete_exchange("feed")?;
    // The host checks the topology after each new connection. Each check opens a connection of its own.
    let checks = |rig: &Rig| rig.rabbit.opened_connections("cases topology");
    let before = checks(&rig);
    rig.rabbit.close_connections()?;
    wait_until("a repeated check of the topology", || Ok(checks(&rig) >= before + 2))?;
    rig.reconnect()?;
    rig.client.exchange("feed", ExchangeKind::Topic)?;
    rig.until_bound("feed", &["cases"])?;
    let lines = in_turn(3, 5);
    let mut out = Vec::new();
    feed(&rig, &lines, &mut out)?;
    tally::check(&by_key(&lines)?, &out.join("\n"))?;
    let log = service.stderr();
    ensure!(!log.contains(FEED_MISSING[0]), "{log}");
    service.end()
}

/// Another program removes the exchange of `bind`. While the exchange is missing, the host must report an error that
/// names the exchange. When the exchange exists again, the host must bind it again.
#[test]
fn exchange_of_bind_that_stays_away_is_an_error() -> Result<()> {
    let rig = rig_with_feed()?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    rig.until_bound("feed", &["cases"])?;
    rig.client.delete_exchange("feed")?;
    service.until_lines(1, &FEED_MISSING)?;
    wait_until("a counted change", || Ok(topology_changes(&mut service)? > 0))?;
    rig.client.exchange("feed", ExchangeKind::Topic)?;
    rig.until_bound("feed", &["cases"])?;
    service.end()
}

/// The user of the host has no right to write to the exchange of `bind`, so the broker refuses the marker of this
/// exchange. The stream must receive the messages of the exchange, and the log must report that the exchange has no
/// marker.
#[test]
fn refused_marker_of_an_exchange_of_bind_is_reported() -> Result<()> {
    let rig = rig_with_feed()?;
    rig.rabbit.add_user("feedless", "guest", ".*")?;
    rig.rabbit.set_rights("feedless", [".*", "^(cases|out)", ".*"])?;
    log_in(&rig, "feedless", "", "", BIND_FEED)?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    service.until_says("exchange without a marker: the broker refused the marker")?;
    service.until_says("and to write to the exchange \"feed\"")?;
    let lines = in_turn(3, 5);
    let mut out = Vec::new();
    feed(&rig, &lines, &mut out)?;
    tally::check(&by_key(&lines)?, &out.join("\n"))?;
    ensure!(topology_changes(&mut service)? == 0, "{}", service.stderr());
    service.end()
}
