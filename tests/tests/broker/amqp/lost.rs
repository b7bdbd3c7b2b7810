//! Tests of a broker that disappears and returns while events are in flight.

use std::ops::RangeInclusive;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use lapin::types::{AMQPValue, FieldTable};
use ordain_tests::http::{admin, get, metric, ready};
use ordain_tests::log::{by_key, in_turn, line};
use ordain_tests::printed::run_all;
use ordain_tests::rig::Rig;
use ordain_tests::service::{RUN_WITH_SHORT_WAITS, Service, wait_until};
use ordain_tests::tally;
use serde_json::{Value, json};

use super::support::{ADMIN, FIFO, Halves, declare_exchange_and_queue, declare_queue, rig_of_user};

fn disturbance_loses_nothing(mut rig: Rig, disturb: impl Fn(&mut Rig) -> Result<()>) -> Result<()> {
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let lines = in_turn(50, 60);
    let (first, second) = lines.split_at(lines.len() / 2);
    rig.publish(first)?;
    disturb(&mut rig)?;
    ensure!(service.is_running()?, "{}", service.stderr());
    rig.reconnect()?;
    let ended =
        rig.publish(second).and_then(|()| rig.check(&lines)).and_then(|()| rig.until_empty());
    ended.with_context(|| describe(&rig, &service))?;
    service.end()
}

/// Describes the state for the error text of a failed test.
fn describe(rig: &Rig, service: &Service) -> String {
    format!("{:?}\n{}\n{}", rig.rabbit.queues(), service.stderr(), rig.rabbit.log_tail())
}

/// Creates a user of the broker with all rights, starts a host with this user, and waits until the queue has its
/// marker.
fn start_as(user: &str) -> Result<(Rig, Service)> {
    let rig = rig_of_user(user, "", "")?;
    let service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    rig.until_bound("cases.marker", &["cases"])?;
    Ok((rig, service))
}

#[test]
fn broker_shutdown_loses_nothing() -> Result<()> {
    disturbance_loses_nothing(Rig::with_private_broker("", "", "")?, |rig| {
        rig.rabbit.stop()?;
        sleep(Duration::from_secs(2));
        rig.rabbit.restart()
    })
}

#[test]
fn broker_crash_loses_nothing() -> Result<()> {
    disturbance_loses_nothing(Rig::with_private_broker("", "", "")?, |rig| rig.rabbit.restart())
}

#[test]
fn closed_connections_lose_nothing() -> Result<()> {
    disturbance_loses_nothing(Rig::new()?, |rig| {
        for _ in 0..5 {
            rig.rabbit.close_connections()?;
            sleep(Duration::from_millis(300));
        }
        Ok(())
    })
}

#[test]
fn paused_broker_loses_nothing() -> Result<()> {
    disturbance_loses_nothing(Rig::with_private_broker("", "", "")?, |rig| {
        rig.rabbit.pause()?;
        sleep(Duration::from_secs(12));
        rig.rabbit.resume()
    })
}

/// The broker accepts no messages because of its memory limit. The messages must wait, and no message may be lost.
#[test]
fn alarm_about_the_memory_loses_nothing() -> Result<()> {
    disturbance_loses_nothing(Rig::with_private_broker("", "", "")?, |rig| {
        rig.rabbit.limit_memory(0.00001)?;
        sleep(Duration::from_secs(3));
        rig.rabbit.limit_memory(0.4)
    })
}

#[test]
fn alarm_about_the_disk_loses_nothing() -> Result<()> {
    disturbance_loses_nothing(Rig::with_private_broker("", "", "")?, |rig| {
        rig.rabbit.need_free_disk(1 << 60)?;
        sleep(Duration::from_secs(3));
        rig.rabbit.need_free_disk(1 << 20)
    })
}

/// The broker accepts no messages when the host starts and when the host ends. Each start must consume the queue, each
/// end must be clean, and the messages must wait in the store. After the alarm, all messages must be published.
#[test]
fn host_starts_and_ends_while_the_broker_blocks_publishing() -> Result<()> {
    const EVENTS: u64 = 30;
    for ordering in ["", FIFO] {
        let rig = Rig::with_private_broker("", ordering, "")?;
        rig.home.write("ordain.toml", rig.home.read("ordain.toml").replace("tally", "faulty"))?;
        let mut service = Service::start(&rig.home, &["run"])?;
        rig.until_declared()?;
        service.end()?;
        // The broker reads some messages before it blocks a connection, so the messages must be large.
        let emits = json!({ "do": "emit", "bytes": 400_000 });
        rig.publish(&(1..=EVENTS).map(|number| line("k", number, &emits)).collect::<Vec<_>>())?;
        rig.rabbit.limit_memory(0.0)?;
        for _ in 0..2 {
            let mut service = Service::start(&rig.home, &["run"])?;
            service.until_says("publishing blocked by the broker")?;
            service.end()?;
        }
        rig.rabbit.limit_memory(0.4)?;
        let mut service = Service::start(&rig.home, &["run"])?;
        rig.client.take("out", usize::try_from(EVENTS)?)?;
        rig.until_empty()?;
        service.end()?;
    }
    Ok(())
}

/// The host declares a deleted queue again, with its binding. The producer publishes all events again, and
/// the host recognises events that already took effect.
#[test]
fn deleted_queue_is_declared_again() -> Result<()> {
    let rig = Rig::new()?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let lines = in_turn(20, 40);
    let (first, _) = lines.split_at(lines.len() / 2);
    rig.publish(first)?;
    rig.client.delete_queue("cases")?;
    rig.until_declared()?;
    rig.publish(&lines)?;
    rig.check(&lines).with_context(|| describe(&rig, &service))?;
    ensure!(service.is_running()?, "{}", service.stderr());
    service.end()
}

/// An operator may delete a queue because the broker was upgraded. Before the host declares the missing queue, it must
/// therefore test the version of the broker once more.
#[test]
fn version_is_tested_again_before_a_missing_queue_is_declared() -> Result<()> {
    for stream in ["", FIFO] {
        let rig = Rig::with("", stream, "")?;
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        rig.until_bound("cases.marker", &["cases"])?;
        let opened = || rig.rabbit.opened_connections("ordain: which version");
        let line = in_turn(1, 1);
        // The test deletes the queue only after the host has subscribed to it. Before the subscription, the host's
        // newest test of the version would be too recent, and the host would declare the queue without another test.
        rig.publish(&line)?;
        rig.until_empty()?;
        for _ in 0..2 {
            let tests = opened();
            // If the host has tested the version just before the deletion, it declares the queue without another test
            // of the version. In this case, delete the queue again. Delete only a queue that is declared and bound: if
            // RabbitMQ 3.10 deletes a quorum queue during the declaration of the queue, RabbitMQ may refuse all later
            // declarations of the queue.
            let tested = wait_until("a further test of the version", || {
                if rig.rabbit.bound("cases")?.iter().any(|name| name == "cases") {
                    rig.client.delete_queue("cases")?;
                }
                Ok(opened() > tests)
            });
            tested.with_context(|| describe(&rig, &service))?;
            rig.until_declared().with_context(|| describe(&rig, &service))?;
            // A `fifo` stream without its queue stops, and does not consume the new queue.
            if stream.is_empty() {
                rig.publish(&line)?;
                rig.until_empty().with_context(|| describe(&rig, &service))?;
            }
        }
        service.end()?;
    }
    Ok(())
}

/// Another program repeatedly deletes the queue, and immediately declares it again. RabbitMQ may then move the host's
/// consumer to the new queue.
#[test]
fn replaced_queue_is_consumed() -> Result<()> {
    let rig = Rig::new()?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    rig.until_declared()?;
    let lines = in_turn(5, 15);
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    arguments.insert("x-single-active-consumer".into(), AMQPValue::Boolean(true));
    arguments
        .insert("x-dead-letter-exchange".into(), AMQPValue::LongString("cases.dropped".into()));
    let mut out = Vec::new();
    for part in lines.chunks(5) {
        rig.client.delete_queue("cases")?;
        declare_queue(&rig, arguments.clone())?;
        rig.publish(part)?;
        let count = out.len() + part.len();
        rig.take(&mut out, count).with_context(|| describe(&rig, &service))?;
    }
    tally::check(&by_key(&lines)?, &out.join("\n"))?;
    service.until_says("the events of the old queue are lost")?;
    service.end()
}

/// Another program replaces the queue, and the broker then refuses the marker of the new queue. The host must report
/// the loss of the old queue nevertheless.
#[test]
fn loss_is_reported_without_a_new_marker() -> Result<()> {
    let (rig, mut service) = start_as("marker")?;
    service.pause()?;
    rig.rabbit.limit_declarations("marker", r"^cases(\.dropped|\.version\..*)?$")?;
    rig.client.delete_queue("cases")?;
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    declare_queue(&rig, arguments)?;
    service.resume()?;
    service.until_says("queue without a marker")?;
    service.until_says("the events of the old queue are lost")?;
    let lines = in_turn(5, 10);
    rig.publish(&lines)?;
    rig.check(&lines)?;
    service.end()
}

/// The user of the host loses the right to declare the marker, and the queue keeps its marker. Another program then
/// replaces the queue. The host must report the loss and consume the new queue. When the user has the right again, the
/// next subscription must declare the marker.
#[test]
fn replaced_queue_is_consumed_without_the_right_to_a_marker() -> Result<()> {
    let (mut rig, mut service) = start_as("withdrawn")?;
    rig.rabbit.limit_declarations("withdrawn", r"^cases(\.dropped|\.version\..*)?$")?;
    rig.rabbit.close_connections()?;
    rig.reconnect()?;
    service.until_says("queue consumed again")?;
    service.pause()?;
    rig.client.delete_queue("cases")?;
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    declare_queue(&rig, arguments)?;
    service.resume()?;
    service.until_says("the events of the old queue are lost")?;
    service.until_says("queue without a marker")?;
    let halves = Halves::begin(&rig, in_turn(5, 10))?;
    rig.rabbit.limit_declarations("withdrawn", ".*")?;
    rig.rabbit.close_connections()?;
    rig.reconnect()?;
    rig.until_bound("cases.marker", &["cases"])?;
    halves.end(&rig).with_context(|| describe(&rig, &service))?;
    service.end()
}

/// The host has lost the right to declare its deleted queue again. No subscription succeeds, so the host must report
/// the loss when it ends: the next owner of the partition may find a queue, and cannot detect the loss.
#[test]
fn loss_is_reported_at_the_end_of_the_host() -> Result<()> {
    let (rig, mut service) = start_as("undeclaring")?;
    rig.rabbit.limit_declarations("undeclaring", "^$")?;
    let opened = || rig.rabbit.opened_connections("ordain cases 0");
    let before = opened();
    rig.client.delete_queue("cases")?;
    // Each subscription opens a connection, so a second new connection shows that the first of the two subscriptions
    // has failed.
    wait_until("two further connections", || Ok(opened() >= before + 2))?;
    service.end()?;
    let log = service.stderr();
    ensure!(log.contains("the events of the old queue are lost"), "{log}");
    Ok(())
}

/// Declares the queue `cases` in the form in which the host declares it, and binds the queue to the exchange `cases`.
fn declare_queue_as_host(rig: &Rig) -> Result<()> {
    let mut arguments = FieldTable::default();
    let text = |text: &str| AMQPValue::LongString(text.into());
    arguments.insert("x-queue-type".into(), text("quorum"));
    arguments.insert("x-single-active-consumer".into(), AMQPValue::Boolean(true));
    arguments.insert("x-dead-letter-exchange".into(), text("cases.dropped"));
    if rig.rabbit.version()? >= (4, 0) {
        arguments.insert("x-delivery-limit".into(), AMQPValue::LongInt(-1));
    }
    declare_queue(rig, arguments)
}

/// While no host runs, the queue with waiting events is deleted. In a second case, the queue is also declared again in
/// the same form. The next start must report and count the loss once, and must consume the new queue. A later start
/// must not report the loss again.
#[test]
fn queue_lost_before_a_start_is_reported() -> Result<()> {
    const LOST_WORDS: &str = "queue removed while no process of Ordain consumed it";
    for is_replaced in [false, true] {
        let rig = Rig::with(ADMIN, "", "")?;
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        rig.until_declared()?;
        let halves = Halves::begin(&rig, in_turn(3, 10))?;
        rig.until_empty()?;
        ensure!(!service.stderr().contains(LOST_WORDS), "{}", service.stderr());
        service.end()?;

        rig.publish(halves.second())?;
        rig.client.delete_queue("cases")?;
        if is_replaced {
            declare_queue_as_host(&rig)?;
        }
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        service.until_lines(1, &[LOST_WORDS, "stream=\"cases\"", "`ordain keys list cases`"])?;
        let address = ready(&mut service)?;
        rig.until_declared()?;
        halves.end(&rig)?;
        let changes = metric(address, "ordain_topology_changes_total")?;
        let log = service.stderr();
        ensure!(changes == Some(1) && log.matches(LOST_WORDS).count() == 1, "{changes:?}: {log}");
        let lost = log.lines().find(|line| line.contains(LOST_WORDS)).context("the loss")?;
        let outputs = run_all(&rig.home, lost)?;
        let [(_, keys)] = &outputs[..] else { bail!("{outputs:#?} of {lost}") };
        for key in ["\nk0 ", "\nk1 ", "\nk2 "] {
            ensure!(keys.contains(key), "no key {key:?} in {keys}");
        }
        rig.until_empty()?;
        service.end()?;

        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        rig.publish(&[line("later", 1, &json!({ "n": 1 }))])?;
        rig.client.take("out", 1)?;
        ensure!(!service.stderr().contains(LOST_WORDS), "{}", service.stderr());
        service.end()?;
    }
    Ok(())
}

/// The marker of the queue disappears, as if the queue had been deleted. The host must subscribe again, and give the
/// queue a new marker.
#[test]
fn lost_marker_renews_the_subscription() -> Result<()> {
    let rig = Rig::new()?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    rig.until_declared()?;
    let halves = Halves::begin(&rig, in_turn(5, 10))?;
    rig.client.delete_exchange("cases.marker")?;
    service.until_says("was deleted and declared again")?;
    service.until_says("queue consumed again")?;
    rig.until_bound("cases.marker", &["cases"])?;
    halves.end(&rig).with_context(|| describe(&rig, &service))?;
    service.end()
}

/// Another program is the single active consumer of the queue, so the broker delivers no messages to the host. The host
/// must report this, and must not report the queue as consumed after each new subscription. When the other program ends
/// its subscription, the host must process all events.
#[test]
fn queue_held_by_another_consumer_is_reported() -> Result<()> {
    let rig = Rig::new()?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    service.end()?;

    let held = rig.client.hold("cases")?;
    let lines = in_turn(5, 20);
    rig.publish(&lines)?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    service.until_says("delivers none to this process")?;
    let address = admin(&mut service)?;
    service
        .until("unreadiness", || get(address, "/readyz").is_ok_and(|page| page.status == 503))?;
    // Several subscriptions follow one another. None of them receives a message.
    let path = service.stderr_path();
    service.until("three subscriptions without a delivery", || {
        let page = get(address, "/readyz").expect("an answer");
        assert!(page.status == 503, "{page:?}");
        let metrics = get(address, "/metrics").map(|page| page.body).unwrap_or_default();
        assert!(metrics.contains(NOT_CONSUMING), "{metrics}");
        let reason = "delivers none to this process";
        let log = std::fs::read_to_string(&path).unwrap_or_default();
        log.lines().filter(|line| line.contains(reason)).count() >= 3
    })?;
    ensure!(!service.stderr().contains("queue consumed again"), "{}", service.stderr());
    rig.client.release(held)?;
    rig.check(&lines)?;
    service.until_says("queue consumed again")?;
    is_consumed(&mut service)?;
    service.end()
}

/// The queue becomes empty while another program is its consumer. No event then waits for the host, so the host reports
/// no fault any more.
#[test]
fn queue_emptied_by_another_consumer_counts_as_consumed() -> Result<()> {
    let rig = Rig::with("", FIFO, "")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    service.end()?;
    let held = rig.client.hold("cases")?;
    rig.publish(&in_turn(1, 3))?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    service.until_says("delivers none to this process")?;
    let address = admin(&mut service)?;
    let metrics = get(address, "/metrics")?.body;
    ensure!(metrics.contains(NOT_CONSUMING), "{metrics}");
    rig.client.purge_queue("cases")?;
    service.until_says("queue consumed again")?;
    is_consumed(&mut service)?;
    rig.client.release(held)?;
    service.end()
}

const NOT_CONSUMING: &str = "ordain_stream_consuming{stream=\"cases\",partition=\"0\"} 0";

fn is_consumed(service: &mut Service) -> Result<()> {
    let address = admin(service)?;
    service.until("readiness", || get(address, "/readyz").is_ok_and(|page| page.status == 200))?;
    let metrics = get(address, "/metrics")?.body;
    ensure!(!metrics.contains(NOT_CONSUMING), "{metrics}");
    Ok(())
}

/// The queue allows several active consumers, and another program consumes it too. The host must report this, because
/// the host does not receive the events that the broker delivers to the other consumer.
#[test]
fn another_consumer_of_the_queue_is_reported() -> Result<()> {
    let rig = Rig::with("", "", "declare = false")?;
    declare_exchange_and_queue(&rig, FieldTable::default())?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    let lines = in_turn(5, 20);
    rig.publish(&lines)?;
    rig.check(&lines)?;
    let held = rig.client.hold("cases")?;
    service.until_says("queue has another consumer")?;
    rig.client.release(held)?;
    service.end()
}

/// The host prefetches only the number of large events that fits into memory, and the configured number of small
/// events. All of the large events together would occupy 240 MB in the host.
#[test]
fn large_events_stay_within_memory() -> Result<()> {
    let small = "[runtime]\nmemory_budget = \"16MiB\"\nevent_size = \"1MiB\"\n";
    let rig = Rig::with(small, "", "")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    service.kill()?;
    let text = "x".repeat(500_000);
    let of = |numbers: RangeInclusive<u64>, data: Value| -> Vec<String> {
        let keys = |number| (1..=40).map(move |key| (format!("k{key}"), number));
        numbers.flat_map(keys).map(|(key, number)| line(&key, number, &data)).collect()
    };
    let large = of(1..=12, json!({ "n": text }));
    let small = of(13..=62, json!({ "n": 1 }));
    rig.publish(&large)?;
    rig.publish(&small)?;
    let mut service = Service::start(&rig.home, &["run"])?;
    let lines = [large, small].concat();
    rig.check(&lines)?;
    rig.until_empty()?;
    service.signal("TERM")?;
    let peak = service.peak_memory()?;
    println!("at most {} MiB", peak >> 10);
    ensure!(peak < 260 << 10, "{peak} KiB");
    Ok(())
}

/// The queue drops an event after three failed deliveries. While the host processes its events, it is killed five times.
/// Each event waits longer for its turn than a start takes, but no event fails three times.
#[test]
fn kills_under_load_use_up_no_delivery_limit() -> Result<()> {
    let rig = Rig::with("", "", "")?;
    rig.rabbit.set_policy("^cases$", r#"{"delivery-limit":3}"#)?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let lines = in_turn(50, 200);
    let mut out = Vec::new();
    for (number, lines_of_round) in lines.chunks(lines.len() / 5).enumerate() {
        rig.publish(lines_of_round)?;
        rig.take(&mut out, number * lines.len() / 5 + 200)?;
        service.kill()?;
        service = Service::start(&rig.home, &["run"])?;
    }
    rig.take(&mut out, lines.len())?;
    tally::check(&by_key(&lines)?, &out.join("\n"))?;
    rig.until_empty()?;
    let dropped = rig.rabbit.queues()?.remove("cases.dropped");
    ensure!(dropped.is_none_or(|dropped| dropped == (0, 0)), "{dropped:?}");
    service.end()
}

/// Event sizes and the prefetch change often. If the host returns events to the broker, the broker delivers them again
/// in order, so the host never detects a gap.
#[test]
fn changing_sizes_keep_order() -> Result<()> {
    let small = "[runtime]\nmemory_budget = \"16MiB\"\nevent_size = \"1MiB\"\n";
    let stream = "gap = { timeout = \"100ms\", backoff = \"20ms..100ms\" }";
    let rig = Rig::with(small, stream, "")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    service.kill()?;
    let text = "x".repeat(300_000);
    let lines: Vec<String> = (1..=100)
        .flat_map(|number| (1..=20).map(move |key| (format!("k{key}"), number)))
        .map(|(key, number)| match number % 20 {
            0 | 1 => line(&key, number, &json!({ "n": text })),
            _ => line(&key, number, &json!({ "n": number })),
        })
        .collect();
    rig.publish(&lines)?;
    let mut service = Service::start(&rig.home, &["run"])?;
    let address = ready(&mut service)?;
    rig.check(&lines)?;
    rig.until_empty()?;
    let figures = get(address, "/metrics")?.body;
    let rounds: Vec<&str> =
        figures.lines().filter(|row| row.starts_with("ordain_gap_rounds_total{")).collect();
    ensure!(!rounds.is_empty() && rounds.iter().all(|row| row.ends_with(" 0")), "{rounds:?}");
    service.end()
}

/// After a kill, the broker delivers all unacknowledged events again in their order, regardless of the prefetch of the
/// next process. A `fifo` stream numbers events by this order.
#[test]
fn fifo_stream_keeps_order_after_kills() -> Result<()> {
    let rig = Rig::with("", FIFO, "prefetch = 2000")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let lines = in_turn(3, 2_000);
    rig.publish(&lines)?;
    for wait in [20, 700, 750, 800] {
        sleep(Duration::from_millis(wait));
        service.kill()?;
        service = Service::start(&rig.home, &["run"])?;
    }
    rig.check(&lines)?;
    rig.until_empty()?;
    service.end()
}
