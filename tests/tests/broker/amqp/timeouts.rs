//! Tests of deliveries that stay unacknowledged for longer than the broker's `consumer_timeout`. After this time, the
//! broker closes the channel of the consumer. From RabbitMQ 4.3 on, the broker ends the subscription instead.

use anyhow::{Result, ensure};
use ordain_servers::{Rabbit, RabbitOptions};
use ordain_tests::amqp::from_line;
use ordain_tests::log::{in_turn, line};
use ordain_tests::rig::Rig;
use ordain_tests::service::Service;
use serde_json::json;

/// The words of the log after a timeout: the broker names the reason before it closes a channel, but not before it ends
/// a subscription. Ordain then names the possible causes.
const TIMEOUT_REASONS: [&str; 2] = ["delivery acknowledgement", "(RabbitMQ 4.3 and later)"];

/// Returns a broker that closes a channel if a delivery stays unacknowledged for `seconds` seconds. The broker checks
/// the deliveries twice a second.
fn broker_with_consumer_timeout(seconds: u64) -> Result<Rabbit> {
    let limit = format!("consumer_timeout = {seconds}000");
    let options = RabbitOptions::new().line(&limit).parameter("channel_tick_interval", "500");
    Rabbit::shared_with(&options)
}

/// An event of a key is missing. Long before the timeout, the host must spill the later events of the key into the
/// store, and acknowledge their deliveries. The channel therefore stays open.
#[test]
fn waiting_key_is_acknowledged_before_consumer_timeout() -> Result<()> {
    let stream = "spill_after = \"500ms\"\ngap = { timeout = \"5m\" }";
    let rig = Rig::on(broker_with_consumer_timeout(15)?, "", stream, "")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let lines = in_turn(10, 40);
    rig.publish(&lines[1..])?;
    rig.until_empty()?;
    rig.publish(&lines[..1])?;
    rig.check(&lines)?;
    rig.until_empty()?;
    service.end()?;
    let log = service.stderr();
    ensure!(TIMEOUT_REASONS.iter().all(|reason| !log.contains(reason)), "{log}");
    Ok(())
}

/// With a long `spill_after`, the host does not spill the waiting events before the timeout, so the broker closes the
/// channel. No event may be lost.
#[test]
fn channel_closed_by_consumer_timeout_loses_nothing() -> Result<()> {
    let stream = "spill_after = \"10m\"\ngap = { timeout = \"5m\" }";
    let rig = Rig::on(broker_with_consumer_timeout(4)?, "", stream, "")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let lines = in_turn(10, 30);
    let (first, rest) = lines.split_at(200);
    rig.publish(&first[1..])?;
    service.until_any(&TIMEOUT_REASONS)?;
    rig.publish(rest)?;
    service.until_says("queue consumed again")?;
    rig.publish(&first[..1])?;
    rig.check(&lines)?;
    rig.until_empty()?;
    service.end()
}

/// The execution of one event takes longer than the timeout, so the broker closes the channel meanwhile, and delivers
/// the event again. The event still takes effect once, and before the later events of its key.
#[test]
fn handler_slower_than_consumer_timeout_loses_nothing() -> Result<()> {
    for ordering in ["sequenced", "fifo"] {
        let stream = format!(
            "ordering = \"{ordering}\"\nspill_after = \"10m\"\n\
             retry = {{ attempts = 1, on_exhausted = \"skip\" }}"
        );
        let sections = "[plugins]\ntimeout = \"10s\"\n";
        let rig = Rig::on(broker_with_consumer_timeout(4)?, sections, &stream, "")?;
        rig.home.write("ordain.toml", rig.home.read("ordain.toml").replace("tally", "faulty"))?;
        let mut service = Service::start(&rig.home, &["run"])?;
        rig.until_declared()?;
        // The host ends the execution of the first event at the time limit of the handler.
        let first = line("slow", 1, &json!({ "do": "loop" }));
        let later = (2..=5).map(|number| {
            line("slow", number, &json!({ "do": "emit", "type": number.to_string() }))
        });
        rig.publish(&[first].into_iter().chain(later).collect::<Vec<_>>())?;
        service.until_any(&TIMEOUT_REASONS)?;
        let messages = rig.client.take("out", 4)?;
        let kinds: Vec<String> = messages
            .iter()
            .filter_map(|message| message.properties.kind().as_ref().map(ToString::to_string))
            .collect();
        ensure!(kinds == ["2", "3", "4", "5"], "{ordering}: {kinds:?}");
        rig.until_empty()?;
        service.end()?;
        let letters = rig.home.rows(&["dead", "list", "cases", "--json"])?;
        ensure!(letters.len() == 1 && letters[0]["event"]["id"] == "slow-1", "{letters:?}");
    }
    Ok(())
}

/// A timeout must not stop a `fifo` stream. After the timeout, the broker redelivers events to which the host has
/// already assigned numbers.
#[test]
fn fifo_stream_continues_after_consumer_timeout() -> Result<()> {
    let stream = "ordering = \"fifo\"\nspill_after = \"10m\"\n\
                  retry = { attempts = 2, backoff = \"15s..20s\", on_exhausted = \"skip\" }";
    let rig = Rig::on(broker_with_consumer_timeout(4)?, "", stream, "")?;
    rig.home.write("ordain.toml", rig.home.read("ordain.toml").replace("tally", "faulty"))?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let event = |key, number, action| from_line(&line(key, number, &json!({ "do": action })));
    let slow = [event("slow", 1, "retry")?, event("slow", 2, "emit")?];
    rig.client.publish("cases", &slow)?;
    service.until_any(&TIMEOUT_REASONS)?;
    service.until_says("queue consumed again")?;
    rig.client.publish("cases", &[event("slow", 3, "emit")?, event("other", 1, "emit")?])?;
    let mut ids: Vec<String> = Vec::new();
    for message in rig.client.take("out", 3)? {
        ids.extend(message.properties.message_id().as_ref().map(ToString::to_string));
    }
    ids.sort();
    ids.dedup();
    ensure!(ids.len() == 3, "{ids:?}");
    rig.until_empty()?;
    service.end()?;
    let letters = rig.home.rows(&["dead", "list", "cases", "--json"])?;
    ensure!(letters.len() == 1 && letters[0]["event"]["id"] == "slow-1", "{letters:?}");
    let keys = rig.home.rows(&["keys", "list", "cases", "--json"])?;
    let next = |key: &str| keys.iter().find(|row| row["key"] == key).map(|row| row["next"].clone());
    ensure!(next("slow") == Some(json!(4)) && next("other") == Some(json!(2)), "{keys:?}");
    Ok(())
}
