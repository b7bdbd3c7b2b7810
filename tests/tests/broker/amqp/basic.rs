//! Tests of events from a queue through a handler to an exchange.

use anyhow::{Result, ensure};
use ordain_servers::{Rabbit, RabbitOptions, Redis};
use ordain_tests::log::{by_key, disturb, in_turn};
use ordain_tests::rig::Rig;
use ordain_tests::service::Service;
use ordain_tests::tally;

/// Runs a host while some events arrive twice or out of order. Each event must take effect once, in the order of its
/// key.
fn check_exactly_once(rig: &Rig) -> Result<()> {
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let lines = in_turn(40, 50);
    rig.publish(&disturb(&lines, 100, 20, 7))?;
    rig.check(&lines)?;
    rig.until_empty()?;
    service.end()
}

#[test]
fn events_take_effect_once_and_in_order() -> Result<()> {
    check_exactly_once(&Rig::new()?)
}

#[test]
fn events_take_effect_once_with_redis_store() -> Result<()> {
    let redis = Redis::start(&[])?;
    let store = format!("[store]\nkind = \"redis\"\nurl = \"{}\"", redis.url());
    check_exactly_once(&Rig::with(&store, "", "")?)
}

/// While the host is stopped, the four queues of a stream have a backlog, and the broker restarts. The later events of
/// each key must arrive in the same queue as its earlier events, so the partition of the key must not change.
fn check_partitions(mut rig: Rig) -> Result<()> {
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let lines = in_turn(60, 30);
    let (first, rest) = lines.split_at(lines.len() / 3);
    let (second, third) = rest.split_at(rest.len() / 2);
    rig.publish(first)?;
    let mut out = Vec::new();
    rig.take(&mut out, first.len())?;
    let partitions = |rig: &Rig| -> Result<Vec<(String, u64)>> {
        let rows = rig.home.rows(&["keys", "list", "cases", "--json"])?;
        let row = |row: &serde_json::Value| {
            (row["key"].to_string(), row["partition"].as_u64().unwrap_or(9))
        };
        let mut keys: Vec<_> = rows.iter().map(row).collect();
        keys.sort();
        Ok(keys)
    };
    service.end()?;
    let before = partitions(&rig)?;
    ensure!(
        (0..4).all(|number| before.iter().any(|(_, partition)| *partition == number)),
        "{before:?}"
    );

    rig.publish(second)?;
    rig.rabbit.restart()?;
    rig.reconnect()?;
    rig.publish(third)?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.take(&mut out, lines.len())?;
    tally::check(&by_key(&lines)?, &out.join("\n"))?;
    rig.until_empty()?;
    service.end()?;
    ensure!(partitions(&rig)? == before, "{:?} after {before:?}", partitions(&rig)?);
    let rows = rig.home.rows(&["keys", "list", "cases", "--json"])?;
    ensure!(rows.iter().all(|row| row["next"] == 31), "{rows:?}");
    Ok(())
}

#[test]
fn keys_stay_in_their_partitions() -> Result<()> {
    check_partitions(Rig::with_private_broker("", "", "partitions = 4")?)
}

/// If the broker has the database Khepri (since RabbitMQ 4.0), the broker uses it.
#[test]
fn keys_of_a_fifo_stream_stay_in_their_partitions() -> Result<()> {
    let rig = Rig::with_private_broker("", "ordering = \"fifo\"", "partitions = 4")?;
    rig.rabbit.enable_khepri()?;
    check_partitions(rig)
}

#[test]
fn tls_requires_trusted_certificate() -> Result<()> {
    let rabbit = Rabbit::with(&RabbitOptions::new().tls())?;
    let authority = rabbit.certificates().map(ordain_servers::Certificates::authority);
    let rig = Rig::on(rabbit, "", "", "")?;
    let mut command = rig.home.ordain(&["run"])?;
    let output = command.output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(!output.status.success() && stderr.contains("ertificate"), "{stderr}");
    let trusts = [("SSL_CERT_FILE", authority.unwrap_or_default())];
    let mut service = Service::start_with(&rig.home, &["run"], &trusts)?;
    rig.until_declared()?;
    let lines = in_turn(5, 20);
    rig.publish(&lines)?;
    rig.check(&lines)?;
    service.end()
}
