//! Tests of the records about queues that the host keeps in the store. An error of the store must not be reported as an
//! error of the broker.

use anyhow::{Result, ensure};
use ordain_servers::Redis;
use ordain_tests::http::ready;
use ordain_tests::rig::Rig;
use ordain_tests::service::{RUN_WITH_SHORT_WAITS, Service};

const FIFO: &str = "ordering = \"fifo\"";

/// Returns the sections of a configuration with a store in Redis. With the section `[ingress]`, a start waits for the
/// broker without a time limit.
fn sections(redis: &Redis) -> String {
    format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n[ingress]\nlisten = \"127.0.0.1:0\"\n\
         [store]\nkind = \"redis\"\nurl = \"{}\"\n",
        redis.url()
    )
}

/// A starting host waits for the broker. When the broker answers, the store no longer does. The host must report that
/// the store is unavailable, and must continue when the store answers again.
#[test]
fn silent_store_is_reported_while_queues_are_prepared() -> Result<()> {
    let redis = Redis::start(&[])?;
    let rig = Rig::with_private_broker(&sections(&redis), FIFO, "")?;
    rig.rabbit.stop()?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    service.until_says("broker unavailable")?;
    redis.pause()?;
    rig.rabbit.restart()?;
    service.until_says(
        "records of queues and bindings unavailable: the store is unavailable: no answer within 2s",
    )?;
    redis.resume()?;
    ready(&mut service)?;
    service.end()
}

/// Another program has overwritten the record of a queue. The next start must end with an error about the store.
#[test]
fn damaged_record_of_a_queue_is_an_error_of_the_store() -> Result<()> {
    let redis = Redis::start(&[])?;
    let rig = Rig::with(&sections(&redis), FIFO, "")?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    ready(&mut service)?;
    service.end()?;
    let record = ["HSET", "ordain:{0}:marks", "amqp-queue/cases/0", "{"];
    ensure!(redis.command(&record)?.int() == Some(0), "the host has written no record");
    let output = rig.home.output(&RUN_WITH_SHORT_WAITS)?;
    let log = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(1), "{:?}: {log}", output.status);
    ensure!(
        log.contains("the store contains a damaged value: the mark amqp-queue/cases/0"),
        "{log}"
    );
    ensure!(!log.contains("broker unavailable"), "{log}");
    Ok(())
}
