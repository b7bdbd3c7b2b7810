//! Tests of queues of type stream, which the host must refuse.

use anyhow::{Result, ensure};
use lapin::ExchangeKind;
use lapin::types::{AMQPValue, FieldTable};
use ordain_tests::amqp::from_line;
use ordain_tests::log::in_turn;
use ordain_tests::rig::{Rig, config};
use ordain_tests::service::{RUN_WITH_SHORT_WAITS, Service};

use super::super::support::{ADMIN, FIFO, declare_exchange_and_queue, declare_queue, log_in};
use super::until_not_ready;

const STREAM_REFUSED: &str = "is of type stream, which keeps acknowledged messages";

/// Declares a queue of type stream. `max_age` is the value of the argument `x-max-age`, which only this type can have.
fn declare_stream_queue(rig: &Rig, name: &str, max_age: Option<&str>) -> Result<()> {
    let text = |text: &str| AMQPValue::LongString(text.into());
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), text("stream"));
    if let Some(max_age) = max_age {
        arguments.insert("x-max-age".into(), text(max_age));
    }
    rig.client.queue_with(name, arguments)
}

/// A queue of type stream would deliver only messages that are published after the start of the host, so the host must
/// refuse such a queue.
#[test]
fn queue_of_type_stream_is_refused() -> Result<()> {
    for (ordering, max_age) in [("", Some("1D")), ("", None), (FIFO, Some("1D")), (FIFO, None)] {
        let rig = Rig::with(ADMIN, ordering, "declare = false")?;
        rig.client.exchange("cases", ExchangeKind::Fanout)?;
        declare_stream_queue(&rig, "cases", max_age)?;
        rig.client.bind("cases", "cases", "")?;
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        service.until_says(STREAM_REFUSED)?;
        until_not_ready(&mut service)?;
        rig.publish(&in_turn(3, 10))?;
        std::thread::sleep(std::time::Duration::from_secs(2));
        ensure!(rig.client.take_all("out")?.is_empty(), "an event took effect");
        service.end()?;
    }
    Ok(())
}

/// Starts a rig without declarations. The user of the host may only read the queue and write to the sink's exchange, so
/// the broker does not show the form of the queue to the host.
fn rig_of_reader(user: &str) -> Result<Rig> {
    let rig = Rig::with(ADMIN, "", "declare = false")?;
    rig.rabbit.add_user(user, "guest", "^$")?;
    rig.rabbit.set_rights(user, ["^$", "^out$", "^cases$"])?;
    log_in(&rig, user, ADMIN, "", "declare = false")?;
    rig.client.exchange("cases", ExchangeKind::Fanout)?;
    Ok(rig)
}

/// The broker does not show the type of the queue to the host. The host must nevertheless recognise a queue of type
/// stream, either by its first message, or because the queue has messages and delivers none of them. No event may take
/// effect.
#[test]
fn queue_of_type_stream_is_refused_without_the_right_to_declare() -> Result<()> {
    for (user, has_backlog) in [("reader", false), ("late-reader", true)] {
        let rig = rig_of_reader(user)?;
        declare_stream_queue(&rig, "cases", None)?;
        rig.client.bind("cases", "cases", "")?;
        let lines = in_turn(3, 10);
        if has_backlog {
            rig.publish(&lines)?;
        }
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        let log = service.stderr_path();
        service.until("the refusal of the queue", || {
            // The queue delivers only messages that arrive after the subscription.
            if !has_backlog {
                rig.publish(&lines[..1]).expect("a confirm");
            }
            std::fs::read_to_string(&log).is_ok_and(|log| log.contains(STREAM_REFUSED))
        })?;
        until_not_ready(&mut service)?;
        ensure!(rig.client.take_all("out")?.is_empty(), "an event took effect");
        service.end()?;
    }
    Ok(())
}

/// A shovel has moved messages from a queue of type stream to another queue, and the messages keep the header of their
/// former queue. The host must consume them, although the broker does not show the type of the new queue.
#[test]
fn messages_from_a_queue_of_type_stream_are_consumed() -> Result<()> {
    for (user, kind) in [("mover", "classic"), ("quorum-mover", "quorum")] {
        let rig = rig_of_reader(user)?;
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString(kind.into()));
        arguments.insert("x-single-active-consumer".into(), AMQPValue::Boolean(true));
        declare_queue(&rig, arguments)?;
        let lines = in_turn(3, 10);
        let mut messages = Vec::new();
        for (offset, line) in (0..).zip(&lines) {
            let mut message = from_line(line)?;
            let mut headers = message.properties.headers().clone().unwrap_or_default();
            headers.insert("x-stream-offset".into(), AMQPValue::LongLongInt(offset));
            message.properties = message.properties.with_headers(headers);
            messages.push(message);
        }
        rig.client.publish("cases", &messages)?;
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        rig.check(&lines)?;
        rig.until_empty()?;
        ensure!(!service.stderr().contains(STREAM_REFUSED), "{}", service.stderr());
        service.end()?;
    }
    Ok(())
}

/// The broker truncates the texts of its errors about a queue with a long name. The host must nevertheless recognise
/// that the queue is of type stream.
#[test]
fn queue_of_type_stream_with_a_long_name_is_refused() -> Result<()> {
    let rig = Rig::with(ADMIN, "", "declare = false")?;
    let name = "q".repeat(200);
    let text = config(&rig.rabbit.url(), ADMIN, "", "declare = false");
    rig.home
        .write("ordain.toml", text.replace("queue = \"cases\"", &format!("queue = \"{name}\"")))?;
    rig.client.exchange("cases", ExchangeKind::Fanout)?;
    declare_stream_queue(&rig, &name, Some("1D"))?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    service.until_says(STREAM_REFUSED)?;
    service.end()
}

/// While the host runs, another program replaces a queue by a queue of type stream. The host must check the type again.
#[test]
fn queue_replaced_by_a_stream_is_refused() -> Result<()> {
    let rig = Rig::with(ADMIN, "", "declare = false")?;
    declare_exchange_and_queue(&rig, FieldTable::default())?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    let lines = in_turn(3, 10);
    rig.publish(&lines)?;
    rig.check(&lines)?;
    rig.client.delete_queue("cases")?;
    declare_stream_queue(&rig, "cases", Some("1D"))?;
    service.until_says(STREAM_REFUSED)?;
    service.end()
}
