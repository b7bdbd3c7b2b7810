//! A broker that goes away and comes back while events are under way.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ordain_tests::log::in_turn;
use ordain_tests::service::Service;

use super::support::Rig;

/// Events come, something is done to the broker, more come, and all of them take effect once.
fn goes_on(disturb: impl Fn(&mut Rig) -> Result<()>) -> Result<()> {
    let mut rig = Rig::new()?;
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
    service.signal("TERM")?;
    ensure!(service.wait()?.success(), "{}", service.stderr());
    Ok(())
}

#[test]
fn stopped_in_order_and_started_again() -> Result<()> {
    goes_on(|rig| {
        rig.rabbit.stop()?;
        sleep(Duration::from_secs(2));
        rig.rabbit.restart()
    })
}

#[test]
fn killed_and_started_again() -> Result<()> {
    goes_on(|rig| rig.rabbit.restart())
}

#[test]
fn connections_that_are_closed() -> Result<()> {
    goes_on(|rig| {
        for _ in 0..5 {
            rig.rabbit.ctl(&["close_all_connections", "test"])?;
            sleep(Duration::from_millis(300));
        }
        Ok(())
    })
}

#[test]
fn a_broker_that_stands_still() -> Result<()> {
    goes_on(|rig| {
        rig.rabbit.pause()?;
        sleep(Duration::from_secs(12));
        rig.rabbit.resume()
    })
}

/// The broker takes no messages for want of memory: they wait, and nothing is lost.
#[test]
fn a_broker_that_blocks() -> Result<()> {
    goes_on(|rig| {
        rig.rabbit.ctl(&["set_vm_memory_high_watermark", "0.00001"])?;
        sleep(Duration::from_secs(3));
        rig.rabbit.ctl(&["set_vm_memory_high_watermark", "0.4"]).map(drop)
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
    rig.rabbit.ctl(&["delete_queue", "cases"])?;
    rig.until_declared()?;
    rig.publish(&lines)?;
    rig.check(&lines)?;
    ensure!(service.is_running()?, "{}", service.stderr());
    service.signal("TERM")?;
    ensure!(service.wait()?.success(), "{}", service.stderr());
    Ok(())
}

/// A queue that has messages and delivers none is told of, and its events are taken as soon as they
/// come.
#[test]
fn a_queue_that_somebody_else_holds() -> Result<()> {
    let rig = Rig::new()?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    service.signal("TERM")?;
    ensure!(service.wait()?.success(), "{}", service.stderr());

    let held = rig.client.hold("cases")?;
    let lines = in_turn(5, 20);
    rig.publish(&lines)?;
    let mut service = Service::start(&rig.home, &["run"])?;
    service.until_says("delivers none")?;
    rig.client.release(held)?;
    rig.check(&lines)?;
    service.signal("TERM")?;
    ensure!(service.wait()?.success(), "{}", service.stderr());
    Ok(())
}
