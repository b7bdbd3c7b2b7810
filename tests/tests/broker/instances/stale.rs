//! Instances that believe that they still own what is another's.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ordain_servers::{Mode, Rabbit};
use ordain_tests::log::{by_key, disturb, in_turn, line};
use ordain_tests::tally;
use serde_json::json;

use super::support::{Fleet, Host, while_published};

const PAUSE: Duration = Duration::from_millis(20);
const TAKEN: &str = "another process has taken the partition over";

/// One of two hosts is kept from something for longer than its lease, and the other one goes on with
/// all. Then it has its share again.
fn keep_from(
    keep: impl Fn(&Host) -> Result<()>,
    release: impl Fn(&Host) -> Result<()>,
    is_told: bool,
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
    ensure!(!is_told || said == 2, "{}", stale.service.stderr());
    ensure!(!other.service.stderr().contains(TAKEN), "{}", other.service.stderr());
    stale.service.end()
}

#[test]
fn one_that_is_paused() -> Result<()> {
    keep_from(|host| host.service.signal("STOP"), |host| host.service.signal("CONT"), true)
}

/// Changes rows of leases beside the instances, as a store does that goes back in time.
fn rewrite(fleet: &Fleet, row: impl Fn(&[String; 3]) -> Option<[String; 3]>) -> Result<usize> {
    let (leases, about) = ("ordain:{0}:leases", "ordain:{0}:about");
    let mut changed = 0;
    for partition in 0..4 {
        let field = format!("{partition}:cases");
        let found = fleet.redis.command(&["HGET", leases, &field])?;
        let words: Vec<String> =
            found.text().context("a lease")?.split(' ').map(ToOwned::to_owned).collect();
        let Some(new) = row(&words.try_into().ok().context("three words")?) else { continue };
        fleet.redis.command(&["HSET", leases, &field, &new.join(" ")])?;
        changed += 1;
    }
    fleet.redis.command(&["HSET", about, "generation", "7"])?;
    Ok(changed)
}

/// The id of a host, as leases have it.
fn id(fleet: &Fleet, host: &Host) -> Result<String> {
    let name = format!("/{}", host.service.id());
    let rows = fleet.rig.home.rows(&["instances", "--json"])?;
    let row = rows.iter().find(|row| row["name"].as_str().is_some_and(|it| it.ends_with(&name)));
    let id = row.and_then(|row| row["instance"].as_str()).context("its row")?;
    Ok(id.to_owned())
}

fn goes_on(fleet: &Fleet, hosts: &[&Host]) -> Result<()> {
    std::thread::sleep(Duration::from_secs(1));
    fleet.until_shared(hosts)?;
    let lines = in_turn(50, 20);
    fleet.rig.publish(&lines)?;
    fleet.rig.check(&lines)?;
    fleet.rig.until_empty()
}

/// The store says that one has what another one has.
#[test]
fn a_lease_of_one_who_does_not_know_of_it() -> Result<()> {
    let fleet = Fleet::new("", "")?;
    let (first, second) = (fleet.start()?, fleet.start()?);
    fleet.rig.until_declared()?;
    fleet.until_shared(&[&first, &second])?;
    let (from, to) = (id(&fleet, &first)?, id(&fleet, &second)?);
    let changed = rewrite(&fleet, |[epoch, holder, since]| {
        (*holder == from).then(|| [epoch.clone(), to.clone(), since.clone()])
    })?;
    ensure!(changed == 2, "{changed} rows are changed");
    goes_on(&fleet, &[&first, &second])
}

/// The store has lost that one gave its leases back, and that another one got them.
#[test]
fn a_lease_that_was_given_back() -> Result<()> {
    let fleet = Fleet::new("", "")?;
    let first = fleet.start()?;
    fleet.rig.until_declared()?;
    fleet.until_shared(&[&first])?;
    let second = fleet.start()?;
    fleet.until_shared(&[&first, &second])?;
    let (from, to) = (id(&fleet, &first)?, id(&fleet, &second)?);
    let changed = rewrite(&fleet, |[epoch, holder, since]| {
        let before = epoch.parse::<u64>().ok()? - 1;
        (*holder == to).then(|| [before.to_string(), from.clone(), since.clone()])
    })?;
    ensure!(changed == 2, "{changed} rows are changed");
    goes_on(&fleet, &[&first, &second])
}

/// The store has lost the leases of one who drives, and has all commits: it hands over to itself.
#[test]
fn leases_that_are_gone() -> Result<()> {
    let fleet = Fleet::new("", "")?;
    let (first, second) = (fleet.start()?, fleet.start()?);
    fleet.rig.until_declared()?;
    fleet.until_shared(&[&first, &second])?;
    for round in 0..3 {
        for partition in 0..4 {
            let field = format!("{partition}:cases");
            fleet.redis.command(&["HDEL", "ordain:{0}:leases", &field])?;
        }
        let generation = (7 + round).to_string();
        fleet.redis.command(&["HSET", "ordain:{0}:about", "generation", &generation])?;
        std::thread::sleep(Duration::from_millis(300));
    }
    goes_on(&fleet, &[&first, &second])
}

/// Its channels are open, and the queues have no other consumer: it gives them back by itself.
#[test]
fn one_that_does_not_reach_the_store() -> Result<()> {
    keep_from(|host| host.to_redis.set(Mode::HalfOpen), |host| host.to_redis.set(Mode::Pass), false)
}

/// It says so itself, through the store.
#[test]
fn one_that_does_not_reach_the_broker() -> Result<()> {
    keep_from(
        |host| host.to_rabbit.set(Mode::HalfOpen),
        |host| host.to_rabbit.set(Mode::Pass),
        false,
    )
}

#[test]
fn one_that_is_cut_off_the_broker() -> Result<()> {
    keep_from(|host| host.to_rabbit.set(Mode::Refuse), |host| host.to_rabbit.set(Mode::Pass), false)
}

#[test]
fn one_that_is_cut_off_the_store() -> Result<()> {
    keep_from(|host| host.to_redis.set(Mode::Refuse), |host| host.to_redis.set(Mode::Pass), false)
}

/// What it had committed and could not publish is published by whoever has its partitions then, and
/// not once more by itself.
#[test]
fn one_that_has_messages_to_publish() -> Result<()> {
    let fleet = Fleet::new("lease = \"2s\"", "")?;
    let mut stale = fleet.start()?;
    fleet.rig.until_declared()?;
    fleet.until_shared(&[&stale])?;
    fleet.rig.client.delete_queue("out")?;
    let lines = in_turn(20, 5);
    fleet.rig.publish(&lines)?;
    stale.service.until_says("no queue takes")?;
    fleet.rig.until_empty()?;

    let mut other = fleet.start()?;
    stale.service.signal("STOP")?;
    fleet.until_shared(&[&other])?;
    other.service.until_says("no queue takes")?;
    // What is on its way while the queue comes back may overtake what was not taken before.
    std::thread::sleep(Duration::from_secs(1));
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

/// A message that is tried alone goes out over a connection of its own. That may take longer to come than
/// the lease lasts, and then it is another one's to publish.
#[test]
fn one_that_tries_a_message_alone() -> Result<()> {
    let fleet = Fleet::on(Rabbit::start()?, "lease = \"2s\"", "")?;
    let limit = |bytes: u32| fleet.rig.rabbit.set("max_message_size", &bytes.to_string());
    limit(65_536)?;
    let faulty = |config: String| config.replace("handler = \"tally\"", "handler = \"faulty\"");
    let mut stale = fleet.start_with(faulty)?;
    fleet.rig.until_declared()?;
    fleet.until_shared(&[&stale])?;
    let large = json!({ "do": "emit", "bytes": 100_000, "sink": "tally" });
    fleet.rig.publish(&[line("a", 1, &large)])?;
    stale.service.until_says("message refused by the broker")?;
    let refused = Instant::now();
    let until = |seconds| {
        let at = refused + Duration::from_secs_f64(seconds);
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
    };
    fleet.rig.until_empty()?;

    // It is tried again after 30 seconds: the lease is still there, and nothing answers any more.
    until(29.2);
    stale.to_rabbit.set(Mode::HalfOpen)?;
    stale.to_redis.set(Mode::HalfOpen)?;
    limit(1_000_000)?;
    let other = fleet.start_with(faulty)?;
    fleet.until_shared(&[&other])?;
    fleet.rig.client.take("out", 1)?;
    // Before it stops waiting for the connection.
    until(33.5);
    stale.to_rabbit.set(Mode::Pass)?;
    std::thread::sleep(Duration::from_secs(5));
    let again = fleet.rig.client.take_all("out")?;
    ensure!(again.is_empty(), "{} messages came again: {}", again.len(), stale.service.stderr());
    stale.to_redis.set(Mode::Pass)?;
    fleet.until_shared(&[&stale, &other])?;
    stale.service.end()
}
