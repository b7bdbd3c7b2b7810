//! Tests of commits, and of the start of a store, while a Sentinel replaces the master.

use std::sync::Arc;
use std::time::Duration;

use ordain_core::CommitReply;
use ordain_servers::{Sentinel, wait_until};
use ordain_store::RedisOptions;
use ordain_store_redis::RedisStore;
use ordain_tests::conformance::Owner;

use super::dedicated::{next_of, step, until_answered};
use super::rights::{RIGHTS, UNDER_SENTINEL, WITH_REPLICAS, denied, rules};
use super::support::options;
use super::work::ShardWorkers;

async fn open(group: &Sentinel, replicas: u32) -> Arc<RedisStore> {
    let options = RedisOptions { replicas, ..options(&group.url()) };
    Arc::new(RedisStore::open(options).await.expect("the store"))
}

/// If the store answers a commit only after a replica has it, a failover must lose no answered commit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicated_commits_survive_failover() {
    let rules = rules(&[RIGHTS, UNDER_SENTINEL, WITH_REPLICAS]);
    let servers = ordain_servers::Options::new().user("shop", "right", &rules);
    let group = Sentinel::with(&servers).expect("a group");
    // The login of this URL is valid only for the servers, because the Sentinel itself has no user `shop`.
    let url = group.url().replace("redis://", "redis://shop:right@");
    let options = RedisOptions { prefix: "ordain".to_owned(), replicas: 1, ..options(&url) };
    let store = Arc::new(RedisStore::open(options).await.expect("the store"));
    let work = ShardWorkers::start(&store).await;
    work.until_more(100);
    for _ in 0..2 {
        group.failover().expect("another master");
        // The store answers a commit only after a replica has it, so the new master needs a replica.
        group.rejoin().expect("a replica");
        work.until_more(100);
    }
    work.finish(&*store).await;
    assert_eq!(denied(group.master()), [], "the server denied a request");
}

/// In a planned failover, the old master becomes a replica. The old master still replies, but refuses writes. The store
/// must switch to the new master.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_switches_from_a_demoted_master() {
    let group = Sentinel::start().expect("a group");
    let store = open(&group, 1).await;
    let work = ShardWorkers::start(&store).await;
    work.until_more(50);
    let [_, next] = group.servers();
    group.sentinel().command(&["SENTINEL", "FAILOVER", group.name()]).expect("a failover");
    wait_until("another master", || Ok(group.named()? == next.port())).expect("a new master");
    work.until_more(50);
    work.finish(&*store).await;
}

/// During a part of a failover, no server is a master. The start of a store must wait for a master.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn start_waits_for_master() {
    let group = Sentinel::start().expect("a group");
    let [master, replica] = group.servers();
    let port = replica.port().to_string();
    master.command(&["REPLICAOF", "127.0.0.1", &port]).expect("a group without a master");
    let opening = tokio::spawn(RedisStore::open(options(&group.url())));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!opening.is_finished());
    master.command(&["REPLICAOF", "NO", "ONE"]).expect("a master");
    let store = opening.await.expect("a task").expect("the store");
    let mut owner = Owner::claim(&store, "s", 0).await;
    owner.write(&store, step("a", 1)).await;
}

/// If commits do not wait for replicas, a failover loses the commits that the replica lacks. The next commit must
/// report the loss, and commits of another shard must continue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_lost_in_a_failover_are_detected() {
    let group = Sentinel::start().expect("a group");
    let store = open(&group, 0).await;
    let mut owner = Owner::claim(&*store, "s", 0).await;
    owner.write(&*store, step("a", 1)).await;
    group.until_replicated().expect("a replica with all writes");
    // With this password, the replica cannot reconnect to its master, because the master expects no password.
    group.replica().command(&["CONFIG", "SET", "masterauth", "wrong"]).expect("a setting");
    group.replica().command(&["CLIENT", "KILL", "TYPE", "master"]).expect("a closed connection");
    wait_until("a disconnected replica", || {
        let info = group.replica().info("replication")?;
        Ok(info.get("master_link_status").is_some_and(|status| status == "down"))
    })
    .expect("a disconnected replica");
    for sequence in 2..=4 {
        owner.write(&*store, step("a", sequence)).await;
    }
    group.failover().expect("another master");

    let other = (0..).map(|number| format!("other-{number}"));
    let other = other.into_iter().find(|key| owner.shard(key) != owner.shard("a"));
    let other = other.expect("a key of another shard");
    let batch = owner.batch(vec![step("a", 5)]);
    let reply = until_answered(&*store, &owner, &batch).await;
    let CommitReply::RolledBack { found, last } = reply else { panic!("{reply:?}") };
    assert_eq!((&*found, last), ("the store's last commit is number 1", Some(1)));
    assert_eq!(next_of(&*store, "a").await, 2);
    owner.write(&*store, step(&other, 1)).await;
}

/// The Sentinel replaces a master that does not reply. The store must send the pending requests to the new master.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_switches_from_a_silent_master() {
    let group = Sentinel::behind_proxies(&ordain_servers::Options::new()).expect("a group");
    let [first, second] = group.proxies() else { panic!("the group does not have two proxies") };
    let store = open(&group, 0).await;
    let mut owner = Owner::claim(&*store, "s", 0).await;
    owner.write(&*store, step("a", 1)).await;
    group.until_replicated().expect("a replica with all writes");
    group.down_after(Duration::from_secs(1)).expect("a setting");
    first.set(ordain_servers::Mode::HalfOpen).expect("a silent master");
    let batch = owner.batch(vec![step("a", 2)]);
    let reply = until_answered(&*store, &owner, &batch).await;
    assert!(matches!(reply, CommitReply::Applied(_)), "{reply:?}");
    assert_eq!(group.named().expect("a name"), second.port());
    let name = format!("{{{}}}:data:s", owner.shard("a"));
    let keys = group.servers()[1].command(&["KEYS", &format!("*{name}")]).expect("keys");
    assert_eq!(keys.parts().len(), 1);
    owner.write(&*store, step("a", 3)).await;
    assert_eq!(next_of(&*store, "a").await, 4);
}
