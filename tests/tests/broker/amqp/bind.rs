//! Tests of exchanges that are bound to the exchange of a stream.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use lapin::ExchangeKind;
use ordain_servers::Rabbit;
use ordain_tests::amqp::{Client, Outgoing, from_line};
use ordain_tests::log::in_turn;
use ordain_tests::rig::Rig;
use ordain_tests::service::Service;

/// Publishes events to three exchanges in turn: the stream's exchange, and two exchanges that forward messages to the
/// stream's exchange. The exchange `feed` forwards all messages, and the exchange `some` only the messages with the
/// routing key `k1`.
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
