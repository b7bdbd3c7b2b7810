//! A broker that goes away and comes back while events are under way.

use std::ops::RangeInclusive;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ordain_tests::http::{get, ready};
use ordain_tests::log::{in_turn, line};
use ordain_tests::rig::Rig;
use ordain_tests::service::{RUN_WITH_SHORT_WAITS, Service};
use serde_json::{Value, json};

/// Events come, something is done to the broker, more come, and all of them take effect once.
fn goes_on(mut rig: Rig, disturb: impl Fn(&mut Rig) -> Result<()>) -> Result<()> {
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
    ended.with_context(|| {
        format!("{:?}\n{}\n{}", rig.rabbit.queues(), service.stderr(), rig.rabbit.log_tail())
    })?;
    service.end()
}

#[test]
fn stopped_in_order_and_started_again() -> Result<()> {
    goes_on(Rig::alone("", "", "")?, |rig| {
        rig.rabbit.stop()?;
        sleep(Duration::from_secs(2));
        rig.rabbit.restart()
    })
}

#[test]
fn killed_and_started_again() -> Result<()> {
    goes_on(Rig::alone("", "", "")?, |rig| rig.rabbit.restart())
}

#[test]
fn connections_that_are_closed() -> Result<()> {
    goes_on(Rig::new()?, |rig| {
        for _ in 0..5 {
            rig.rabbit.close_connections()?;
            sleep(Duration::from_millis(300));
        }
        Ok(())
    })
}

#[test]
fn a_broker_that_stands_still() -> Result<()> {
    goes_on(Rig::alone("", "", "")?, |rig| {
        rig.rabbit.pause()?;
        sleep(Duration::from_secs(12));
        rig.rabbit.resume()
    })
}

/// The broker takes no messages for want of memory: they wait, and nothing is lost.
#[test]
fn a_broker_that_blocks() -> Result<()> {
    goes_on(Rig::alone("", "", "")?, |rig| {
        rig.rabbit.limit_memory(0.00001)?;
        sleep(Duration::from_secs(3));
        rig.rabbit.limit_memory(0.4)
    })
}

/// A queue that has gone is made again, with its binding. Its events come again from whoever has
/// them; those that took effect are known.
#[test]
fn a_queue_that_is_removed() -> Result<()> {
    let rig = Rig::new()?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let lines = in_turn(20, 40);
    let (first, _) = lines.split_at(lines.len() / 2);
    rig.publish(first)?;
    rig.client.delete_queue("cases")?;
    rig.until_declared()?;
    rig.publish(&lines)?;
    rig.check(&lines)?;
    ensure!(service.is_running()?, "{}", service.stderr());
    service.end()
}

/// A queue that has messages and delivers none is told of, and its events are taken as soon as they
/// come.
#[test]
fn a_queue_that_somebody_else_holds() -> Result<()> {
    let rig = Rig::new()?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    service.end()?;

    let held = rig.client.hold("cases")?;
    let lines = in_turn(5, 20);
    rig.publish(&lines)?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    service.until_says("delivers none")?;
    rig.client.release(held)?;
    rig.check(&lines)?;
    service.end()
}

/// Large events come as few at a time as fit into memory, small ones as many as are configured. With
/// all of the large ones here at once the host would have 240 MB of them.
#[test]
fn large_and_small_events() -> Result<()> {
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
    let (large, small) = (of(1..=12, json!({ "n": text })), of(13..=62, json!({ "n": 1 })));
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

/// Whatever the sizes, and however often the window changes: what is given back comes again in
/// order, so that nothing is taken for missing.
#[test]
fn sizes_that_change_disturb_no_order() -> Result<()> {
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
        figures.lines().filter(|it| it.starts_with("ordain_gap_rounds_total{")).collect();
    ensure!(!rounds.is_empty() && rounds.iter().all(|it| it.ends_with(" 0")), "{rounds:?}");
    service.end()
}

/// What a kill gives back comes again in the order that it had, and by that order `fifo` events are
/// numbered: with all that was under way at once, whatever the window of the next process is.
#[test]
fn a_fifo_stream_keeps_its_order_over_kills() -> Result<()> {
    let rig = Rig::with("", "ordering = \"fifo\"", "prefetch = 2000")?;
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
