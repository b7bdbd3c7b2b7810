//! Tests of messages that the host reports: messages with a priority, messages that the broker has dropped, and
//! messages whose keys have moved to another partition.

use anyhow::{Context as _, Result, ensure};
use lapin::types::AMQPValue;
use ordain_tests::alerts;
use ordain_tests::amqp::from_line;
use ordain_tests::http::{admin, get, metric};
use ordain_tests::log::{in_turn, line};
use ordain_tests::rig::Rig;
use ordain_tests::service::{RUN_WITH_SHORT_WAITS, Service};
use serde_json::json;

use super::super::support::{ADMIN, FIFO};

const HAS_PRIORITY: &str = "message with a priority";

/// RabbitMQ 4 delivers messages with a higher priority first, so a `fifo` stream may execute them before earlier
/// messages. The host must report such a message, also if it waited in the queue when the host started, but not the
/// default priority 0. A `sequenced` stream restores the order, so the host must not report its messages.
#[test]
fn priorities_in_a_fifo_stream_are_reported() -> Result<()> {
    for (ordering, priority, is_backlog, is_reported) in [
        (FIFO, 9, false, true),
        (FIFO, 9, true, true),
        (FIFO, 0, true, false),
        ("", 9, true, false),
    ] {
        let rig = Rig::with("", ordering, "")?;
        let mut service = Service::start(&rig.home, &["run"])?;
        rig.until_declared()?;
        if is_backlog {
            service.end()?;
        }
        let lines = in_turn(1, 2);
        let mut messages = lines.iter().map(|line| from_line(line)).collect::<Result<Vec<_>>>()?;
        let later = messages.last_mut().context("a later message")?;
        later.properties = std::mem::take(&mut later.properties).with_priority(priority);
        rig.client.publish("cases", &messages)?;
        if is_backlog {
            service = Service::start(&rig.home, &["run"])?;
        }
        if is_reported {
            service.until_says(HAS_PRIORITY)?;
            rig.client.take("out", 2)?;
        } else {
            rig.check(&lines)?;
        }
        service.end()?;
        let log = service.stderr();
        ensure!(log.contains(HAS_PRIORITY) == is_reported, "{ordering} {priority}: {log}");
    }
    Ok(())
}

/// Each subscription reports only its first message with a priority.
#[test]
fn priority_is_reported_once_for_each_subscription() -> Result<()> {
    let mut rig = Rig::with("", FIFO, "")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    for (subscriptions, lines) in (1..).zip(in_turn(2, 20).chunks(20)) {
        if subscriptions > 1 {
            rig.rabbit.close_connections()?;
            service.until_says("queue consumed again")?;
            rig.reconnect()?;
        }
        let mut messages = lines.iter().map(|line| from_line(line)).collect::<Result<Vec<_>>>()?;
        for message in &mut messages {
            message.properties = std::mem::take(&mut message.properties).with_priority(9);
        }
        rig.client.publish("cases", &messages)?;
        rig.until_empty()?;
        let log = service.stderr();
        ensure!(log.matches(HAS_PRIORITY).count() == subscriptions, "{log}");
    }
    service.end()
}

/// An exchange divides its messages among four queues. It sends most keys to another queue if another program binds a
/// fifth queue, or if the messages have additional routing keys in the header `CC`. The host must report that keys
/// change their partition.
#[test]
fn keys_that_change_their_partition_are_reported() -> Result<()> {
    for has_further_keys in [false, true] {
        let rig = Rig::with(ADMIN, "", "partitions = 4")?;
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        rig.until_declared()?;
        let lines = in_turn(50, 4);
        let (first, rest) = lines.split_at(100);
        rig.publish(first)?;
        rig.client.take("out", first.len())?;
        let address = admin(&mut service)?;
        let earlier = get(address, "/metrics")?.body;
        if has_further_keys {
            let keys = AMQPValue::FieldArray(vec![AMQPValue::LongString("audit".into())].into());
            let mut messages = Vec::new();
            for line in rest {
                let mut message = from_line(line)?;
                let mut headers = message.properties.headers().clone().unwrap_or_default();
                headers.insert("CC".into(), keys.clone());
                message.properties = message.properties.with_headers(headers);
                messages.push(message);
            }
            rig.client.publish("cases", &messages)?;
        } else {
            rig.client.queue("audit")?;
            rig.client.bind("audit", "cases", "")?;
            rig.publish(rest)?;
        }
        service.until_says("keys moved here from another partition")?;
        service.until_says("expected only after a change of the routing keys")?;
        let moved = metric(address, "ordain_keys_moved_total")?;
        ensure!(moved > Some(0), "{moved:?}");
        let firing = alerts::firing(&earlier, &get(address, "/metrics")?.body)?;
        ensure!(firing.contains("OrdainKeysMoved"), "{firing:?}");
        service.end()?;
    }
    Ok(())
}

/// If a policy or an argument makes a queue drop messages, the broker moves them to the exchange `cases.dropped`. The
/// host must report them, because the stream never receives them.
#[test]
fn dropped_messages_are_reported() -> Result<()> {
    for ordering in ["", FIFO] {
        let rig = Rig::with(ADMIN, ordering, "")?;
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        rig.until_declared()?;
        // The test publishes to `cases.dropped` itself, as the broker does with a dropped message.
        rig.publish(&in_turn(1, 1))?;
        rig.client.take("out", 1)?;
        let message = from_line(&line("a", 1, &json!({ "n": 1 })))?;
        rig.client.publish("cases.dropped", &[message])?;
        service.until_says("broker has dropped messages of this stream")?;
        let address = admin(&mut service)?;
        service.until("the metric", || {
            let page = get(address, "/metrics").map(|page| page.body).unwrap_or_default();
            page.contains("ordain_dropped_messages{stream=\"cases\",partition=\"0\"} 1")
        })?;
        let page = get(address, "/metrics")?.body;
        let firing = alerts::firing(&page, &page)?;
        ensure!(firing.contains("OrdainMessagesDropped"), "{firing:?}");
        service.end()?;
    }
    Ok(())
}
