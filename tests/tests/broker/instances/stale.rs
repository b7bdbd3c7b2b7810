//! Tests of instances that still act as the owner of a partition after another instance has become the owner.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ordain_servers::{Mode, Rabbit, wait_until};
use ordain_tests::log::{by_key, disturb, in_turn, line};
use ordain_tests::tally;
use serde_json::json;

use super::support::{Fleet, Host, PARTITIONS, while_published};

const PUBLISH_INTERVAL: Duration = Duration::from_millis(20);
/// A part of the log line with which an instance reports that it has lost a partition to another process.
const TAKEN_OVER: &str = "another process owns the partition now";
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(250);
/// The number of heartbeats within which an instance must acquire a lost lease again. These heartbeats take less time
/// than a lease, so the test fails if an instance acquires the lease only after an expiry.
const HEARTBEAT_LIMIT: u32 = 20;

/// Isolates one of two hosts with `isolate`, until after the lease of this host has expired. The other host must take
/// over all partitions. After `release`, the first host must get its share again. If `is_reported` is true, the log of
/// the first host must report each of its two lost partitions once. Otherwise the log need not report them.
fn check_takeover(
    isolate: impl Fn(&Host) -> Result<()>,
    release: impl Fn(&Host) -> Result<()>,
    is_reported: bool,
) -> Result<()> {
    let fleet = Fleet::new("lease = \"2s\"", "")?;
    let mut stale = fleet.start()?;
    let other = fleet.start()?;
    fleet.rig.until_declared()?;
    fleet.until_shared(&[&stale, &other])?;
    let lines = in_turn(100, 100);
    let (first, rest) = lines.split_at(lines.len() / 2);
    while_published(&fleet, &disturb(first, 100, 20, 7), PUBLISH_INTERVAL, || {
        std::thread::sleep(Duration::from_millis(500));
        isolate(&stale)?;
        fleet.until_shared(&[&other])
    })?;
    // The other host has taken over, so all effects of the first half are published while the first host is still
    // isolated.
    let mut out = Vec::new();
    fleet.rig.take(&mut out, first.len())?;
    release(&stale)?;
    fleet.until_shared(&[&stale, &other])?;
    fleet.rig.publish(rest)?;
    fleet.rig.take(&mut out, lines.len())?;
    tally::check(&by_key(&lines)?, &out.join("\n"))?;
    fleet.rig.until_empty()?;
    let reports = stale.service.stderr().matches(TAKEN_OVER).count();
    ensure!(reports <= 2, "the log must report each partition once: {}", stale.service.stderr());
    ensure!(!is_reported || reports == 2, "{}", stale.service.stderr());
    ensure!(!other.service.stderr().contains(TAKEN_OVER), "{}", other.service.stderr());
    stale.service.end()
}

#[test]
fn paused_owner_is_fenced() -> Result<()> {
    check_takeover(|host| host.service.signal("STOP"), |host| host.service.signal("CONT"), true)
}

/// Changes leases directly in Redis, to imitate a store that went back in time. For each lease, `row` gets the epoch,
/// the instance and the time of the lease, and returns the new values, or `None` to keep the lease. Returns the number
/// of changed leases.
fn rewrite_leases(
    fleet: &Fleet,
    row: impl Fn(&[String; 3]) -> Option<[String; 3]>,
) -> Result<usize> {
    let leases = "ordain:{0}:leases";
    let about = "ordain:{0}:about";
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

fn instance_id(fleet: &Fleet, host: &Host) -> Result<String> {
    let name = format!("/{}", host.service.id());
    let rows = fleet.rig.home.rows(&["instances", "--json"])?;
    let row =
        rows.iter().find(|row| row["name"].as_str().is_some_and(|found| found.ends_with(&name)));
    let id = row.and_then(|row| row["instance"].as_str()).context("no row of the host")?;
    Ok(id.to_owned())
}

/// Waits until the hosts have equal shares again, and checks that later events take effect.
fn check_recovery(fleet: &Fleet, hosts: &[&Host]) -> Result<()> {
    std::thread::sleep(Duration::from_secs(1));
    fleet.until_shared(hosts)?;
    let lines = in_turn(50, 20);
    fleet.rig.publish(&lines)?;
    fleet.rig.check(&lines)?;
    fleet.rig.until_empty()
}

/// The test assigns the leases of one host to another host in the store, and notifies neither host.
#[test]
fn lease_of_unaware_instance_is_resolved() -> Result<()> {
    let fleet = Fleet::new("", "")?;
    let first = fleet.start()?;
    let second = fleet.start()?;
    fleet.rig.until_declared()?;
    fleet.until_shared(&[&first, &second])?;
    let from = instance_id(&fleet, &first)?;
    let to = instance_id(&fleet, &second)?;
    let changed = rewrite_leases(&fleet, |[epoch, holder, since]| {
        (*holder == from).then(|| [epoch.clone(), to.clone(), since.clone()])
    })?;
    ensure!(changed == 2, "{changed} leases were changed");
    check_recovery(&fleet, &[&first, &second])
}

/// The store loses the release of one host and the acquisition of another, so it names the first host as the owner
/// again.
#[test]
fn reappeared_lease_is_resolved() -> Result<()> {
    let fleet = Fleet::new("", "")?;
    let first = fleet.start()?;
    fleet.rig.until_declared()?;
    fleet.until_shared(&[&first])?;
    let second = fleet.start()?;
    fleet.until_shared(&[&first, &second])?;
    let from = instance_id(&fleet, &first)?;
    let to = instance_id(&fleet, &second)?;
    let changed = rewrite_leases(&fleet, |[epoch, holder, since]| {
        let before = epoch.parse::<u64>().ok()? - 1;
        (*holder == to).then(|| [before.to_string(), from.clone(), since.clone()])
    })?;
    ensure!(changed == 2, "{changed} leases were changed");
    check_recovery(&fleet, &[&first, &second])
}

/// The store loses the leases of active owners, but no commit. Each owner must acquire its leases again.
#[test]
fn lost_leases_are_acquired_again() -> Result<()> {
    let fleet = Fleet::new("", "")?;
    let first = fleet.start()?;
    let second = fleet.start()?;
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
    check_recovery(&fleet, &[&first, &second])
}

/// Returns the lease of each partition as the store keeps it. The text of a partition without a lease is empty.
fn leases(fleet: &Fleet) -> Result<Vec<String>> {
    let lease = |partition: usize| -> Result<String> {
        let field = format!("{partition}:cases");
        let found = fleet.redis.command(&["HGET", "ordain:{0}:leases", &field])?;
        Ok(found.text().unwrap_or_default().to_owned())
    };
    (0..PARTITIONS).map(lease).collect()
}

/// Returns the highest epoch in the fences of a partition. An owner writes its epoch into the fences when it claims the
/// partition, some time after the store has granted the lease.
fn claimed_epoch(fleet: &Fleet, partition: usize) -> Result<u64> {
    // A fence begins with a byte for its format and eight bytes for the epoch.
    const NEWEST_VERSION: &str = "local newest = 0 \
         for _, name in ipairs(redis.call('KEYS', '*:data:cases')) do \
           local fence = redis.call('HGET', name, 'f' .. ARGV[1]) \
           if fence then newest = math.max(newest, (struct.unpack('<I8', string.sub(fence, 2, 9)))) end \
         end \
         return newest";
    let reply = fleet.redis.command(&["EVAL", NEWEST_VERSION, "0", &partition.to_string()])?;
    Ok(reply.int().context("an epoch")?.try_into()?)
}

/// The store loses the lease of one partition after the other. Within 20 heartbeats, the owner must release the
/// partition, and an instance must acquire the lease again. The other partitions must keep their leases.
#[test]
fn each_lost_lease_is_acquired_again_within_some_heartbeats() -> Result<()> {
    let fleet = Fleet::new("", "")?;
    let first = fleet.start()?;
    let second = fleet.start()?;
    fleet.rig.until_declared()?;
    fleet.until_shared(&[&first, &second])?;
    let epoch = |lease: &str| lease.split(' ').next().and_then(|epoch| epoch.parse::<u64>().ok());
    for partition in 0..PARTITIONS {
        let before = leases(&fleet)?;
        // Before the owner has written its claim, only the lost lease contains the owner's epoch, so the store may
        // grant the same epoch again. The claims then differ in their random numbers.
        wait_until("the claim of the partition", || {
            Ok(epoch(&before[partition]) == Some(claimed_epoch(&fleet, partition)?))
        })?;
        fleet.redis.command(&["HDEL", "ordain:{0}:leases", &format!("{partition}:cases")])?;
        // The version of the membership table in a store that went back in time differs from the version that the
        // instances know.
        let generation = (7 + partition).to_string();
        fleet.redis.command(&["HSET", "ordain:{0}:about", "generation", &generation])?;
        let lost_at = Instant::now();
        let again = wait_until("another lease", || Ok(!leases(&fleet)?[partition].is_empty()));
        again.with_context(|| format!("{partition}: {before:?} and {:?}", leases(&fleet)))?;
        let elapsed = lost_at.elapsed();
        ensure!(elapsed < HEARTBEAT_LIMIT * HEARTBEAT_INTERVAL, "{partition}: {elapsed:?}");
        let mut after = leases(&fleet)?;
        let [old, new] = [&before, &after].map(|rows| epoch(&rows[partition]));
        ensure!(new > old && old.is_some(), "{before:?} and {after:?}");
        after[partition].clone_from(&before[partition]);
        ensure!(after == before, "{before:?} and {after:?}");
    }
    check_recovery(&fleet, &[&first, &second])
}

/// The isolated host does not reach the store, but its AMQP channels stay open. No other consumer gets messages from
/// the queues of this host until the host itself closes its subscriptions.
#[test]
fn owner_with_silent_store_is_replaced() -> Result<()> {
    check_takeover(
        |host| host.to_redis.set(Mode::HalfOpen),
        |host| host.to_redis.set(Mode::Pass),
        false,
    )
}

/// The isolated host does not reach the broker. The host still reaches the store, and records in the store that it does
/// not reach the broker.
#[test]
fn owner_with_silent_broker_is_replaced() -> Result<()> {
    check_takeover(
        |host| host.to_rabbit.set(Mode::HalfOpen),
        |host| host.to_rabbit.set(Mode::Pass),
        false,
    )
}

#[test]
fn owner_without_broker_is_replaced() -> Result<()> {
    check_takeover(
        |host| host.to_rabbit.set(Mode::Refuse),
        |host| host.to_rabbit.set(Mode::Pass),
        false,
    )
}

#[test]
fn owner_without_store_is_replaced() -> Result<()> {
    check_takeover(
        |host| host.to_redis.set(Mode::Refuse),
        |host| host.to_redis.set(Mode::Pass),
        false,
    )
}

/// The paused owner committed messages that it could not publish. The new owner must publish them. When the paused
/// owner continues, it must not publish them again.
#[test]
fn backlog_of_paused_owner_is_published_once() -> Result<()> {
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
    // Waits until no message is on the way to the broker. Otherwise, when the queue is declared again, such a message
    // could overtake an earlier message that was unroutable.
    std::thread::sleep(Duration::from_secs(1));
    fleet.rig.client.queue("out")?;
    fleet.rig.client.bind("out", "out", "#")?;
    let mut out = Vec::new();
    fleet.rig.take(&mut out, lines.len())?;
    tally::check(&by_key(&lines)?, &out.join("\n"))?;

    stale.service.signal("CONT")?;
    fleet.until_shared(&[&stale, &other])?;
    // Waits longer than the maximum delay (10 seconds) after which a host retries an unroutable message.
    std::thread::sleep(Duration::from_secs(12));
    let again = fleet.rig.client.take_all("out")?;
    ensure!(again.is_empty(), "{} messages were published again", again.len());
    stale.service.end()
}

/// A host retries a refused message over a separate connection. Before this connection is open, the lease of the host
/// expires, and another owner publishes the message. The first host must then not publish the message again.
#[test]
fn isolated_retry_of_stale_owner_publishes_nothing() -> Result<()> {
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

    // The host publishes the message again 30 seconds after the refusal. From shortly before this retry on, no reply of
    // a server reaches the host. The lease of the host is still valid when the retry begins.
    until(29.2);
    stale.to_rabbit.set(Mode::HalfOpen)?;
    stale.to_redis.set(Mode::HalfOpen)?;
    limit(1_000_000)?;
    let other = fleet.start_with(faulty)?;
    fleet.until_shared(&[&other])?;
    fleet.rig.client.take("out", 1)?;
    // At this time, the host still waits for the separate connection, because the time limit of the attempt is 5
    // seconds.
    until(33.5);
    stale.to_rabbit.set(Mode::Pass)?;
    std::thread::sleep(Duration::from_secs(5));
    let again = fleet.rig.client.take_all("out")?;
    ensure!(
        again.is_empty(),
        "{} messages were published again: {}",
        again.len(),
        stale.service.stderr()
    );
    stale.to_redis.set(Mode::Pass)?;
    fleet.until_shared(&[&stale, &other])?;
    stale.service.end()
}
