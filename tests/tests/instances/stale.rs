//! Instances that believe that they still own what is another's.

use std::time::Duration;

use anyhow::{Result, ensure};
use ordain_servers::Mode;
use ordain_tests::log::{by_key, disturb, in_turn};
use ordain_tests::tally;

use super::support::{Fleet, Host, while_published};

const PAUSE: Duration = Duration::from_millis(20);
const TAKEN: &str = "another process has taken the partition over";

/// One of two hosts is kept from something for longer than its lease, and the other one goes on with
/// all. Then it has its share again.
fn keep_from(
    keep: impl Fn(&Host) -> Result<()>,
    release: impl Fn(&Host) -> Result<()>,
) -> Result<()> {
    let fleet = Fleet::new("lease = \"2s\"", "")?;
    let mut stale = fleet.start()?;
    let other = fleet.start()?;
    fleet.rig.until_declared()?;
    fleet.until_shared(&[&stale, &other])?;
    let lines = in_turn(100, 100);
    let (first, rest) = lines.split_at(lines.len() / 2);
    while_published(&fleet, &disturb(first, 100, 20, 7), PAUSE, || {
        std::thread::sleep(Duration::from_millis(500));
        keep(&stale)?;
        fleet.until_shared(&[&other])
    })?;
    // All of it comes out while one is kept.
    let mut out = Vec::new();
    fleet.rig.take(&mut out, first.len())?;
    release(&stale)?;
    fleet.until_shared(&[&stale, &other])?;
    fleet.rig.publish(rest)?;
    fleet.rig.take(&mut out, lines.len())?;
    tally::check(&by_key(&lines)?, &out.join("\n"))?;
    fleet.rig.until_empty()?;
    let said = stale.service.stderr().matches(TAKEN).count();
    ensure!(said <= 2, "it is said once for each partition: {}", stale.service.stderr());
    ensure!(!other.service.stderr().contains(TAKEN), "{}", other.service.stderr());
    stale.service.end()
}

#[test]
fn one_that_is_paused() -> Result<()> {
    keep_from(|host| host.service.signal("STOP"), |host| host.service.signal("CONT"))
}

/// The store says that one has what another one has, as it may after it went back in time.
#[test]
fn a_lease_of_one_who_does_not_know_of_it() -> Result<()> {
    let fleet = Fleet::new("", "")?;
    let (first, second) = (fleet.start()?, fleet.start()?);
    fleet.rig.until_declared()?;
    fleet.until_shared(&[&first, &second])?;
    let rows = fleet.rig.home.rows(&["instances", "--json"])?;
    let id = |host: &Host| {
        let name = format!("/{}", host.service.id());
        let row =
            rows.iter().find(|row| row["name"].as_str().is_some_and(|it| it.ends_with(&name)));
        row.and_then(|row| row["instance"].as_str()).unwrap_or_default().to_owned()
    };
    let (from, to) = (id(&first), id(&second));
    let change = "local row = redis.call('HGET', KEYS[1], ARGV[1]) \
        redis.call('HSET', KEYS[1], ARGV[1], (string.gsub(row, ARGV[2], ARGV[3]))) \
        return redis.call('HSET', KEYS[2], 'generation', ARGV[4])";
    for partition in 0..4 {
        let (leases, about) = ("ordain:{0}:leases", "ordain:{0}:about");
        let (field, generation) = (format!("{partition}:cases"), (7 + partition).to_string());
        let args = ["EVAL", change, "2", leases, about, &field, &from, &to, &generation];
        fleet.redis.command(&args)?;
    }
    std::thread::sleep(Duration::from_secs(1));
    fleet.until_shared(&[&first, &second])?;
    let lines = in_turn(50, 20);
    fleet.rig.publish(&lines)?;
    fleet.rig.check(&lines)?;
    fleet.rig.until_empty()
}

/// Its channels are open, and the queues have no other consumer: it gives them back by itself.
#[test]
fn one_that_does_not_reach_the_store() -> Result<()> {
    keep_from(|host| host.to_redis.set(Mode::HalfOpen), |host| host.to_redis.set(Mode::Pass))
}

/// It says so itself, through the store.
#[test]
fn one_that_does_not_reach_the_broker() -> Result<()> {
    keep_from(|host| host.to_rabbit.set(Mode::HalfOpen), |host| host.to_rabbit.set(Mode::Pass))
}

#[test]
fn one_that_is_cut_off_the_broker() -> Result<()> {
    keep_from(|host| host.to_rabbit.set(Mode::Refuse), |host| host.to_rabbit.set(Mode::Pass))
}

#[test]
fn one_that_is_cut_off_the_store() -> Result<()> {
    keep_from(|host| host.to_redis.set(Mode::Refuse), |host| host.to_redis.set(Mode::Pass))
}

/// What it had committed and could not publish is published by whoever has its partitions then, and
/// not once more by itself.
#[test]
fn one_that_has_messages_to_publish() -> Result<()> {
    let fleet = Fleet::new("lease = \"2s\"", "")?;
    let mut stale = fleet.start()?;
    fleet.rig.until_declared()?;
    fleet.until_shared(&[&stale])?;
    fleet.rig.rabbit.ctl(&["delete_queue", "out"])?;
    let lines = in_turn(20, 5);
    fleet.rig.publish(&lines)?;
    stale.service.until_says("no queue takes")?;
    fleet.rig.until_empty()?;

    let mut other = fleet.start()?;
    stale.service.signal("STOP")?;
    fleet.until_shared(&[&other])?;
    other.service.until_says("no queue takes")?;
    fleet.rig.client.queue("out")?;
    fleet.rig.client.bind("out", "out", "#")?;
    let mut out = Vec::new();
    fleet.rig.take(&mut out, lines.len())?;
    tally::check(&by_key(&lines)?, &out.join("\n"))?;

    stale.service.signal("CONT")?;
    fleet.until_shared(&[&stale, &other])?;
    // Longer than until it is tried again what no queue takes.
    std::thread::sleep(Duration::from_secs(12));
    let again = fleet.rig.client.take_all("out")?;
    ensure!(again.is_empty(), "{} messages came again", again.len());
    stale.service.end()
}
