//! Tests of commits in a Cluster while one master does not reply.

use std::sync::Arc;
use std::time::Duration;

use ordain_core::CommitReply;
use ordain_servers::{Cluster, Mode, Options, wait_until};
use ordain_store::{KeyListing as _, RedisOptions};
use ordain_store_redis::RedisStore;
use ordain_tests::conformance::Owner;

use super::dedicated::step;
use super::support::options;
use super::work::ShardWorkers;

/// The longest time that a commit in a shard of a working master may take on a busy machine.
const COMMIT_TIME_LIMIT: Duration = Duration::from_secs(2);
/// The time for which a store retries a request while no master replies: long enough to query all known nodes.
const RETRY_TIMEOUT: Duration = Duration::from_secs(8);

/// Returns options with which the nodes of a Cluster serve requests while other nodes are down.
fn serving() -> Options {
    Options::new().line("cluster-require-full-coverage no")
}

fn owners(cluster: &Cluster) -> Vec<usize> {
    let owner = |shard: u32| {
        let slot = cluster.slot(&format!("{{{shard}}}")).expect("a slot");
        cluster.owner(slot).expect("an owner")
    };
    (0..4).map(owner).collect()
}

fn sleep(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

type Fault = fn(&Cluster, usize);

/// Makes a node fail for at least `lasts` milliseconds. Checks that only the shards of this node wait, and that all
/// other shards continue.
async fn only_its_shards_wait(cluster: Cluster, fault: Fault, lasts: u64, end: Fault) {
    let store = RedisStore::open(options(&cluster.urls()[0])).await.expect("the store");
    let store = Arc::new(store);
    let owners = owners(&cluster);
    let faulty = owners[0];
    assert!(owners.iter().any(|owner| *owner != faulty));
    let work = ShardWorkers::start(&store).await;
    work.until_more(100);
    fault(&cluster, faulty);
    sleep(lasts / 2);
    work.until_more(100);
    sleep(lasts / 2);
    work.until_more(100);
    end(&cluster, faulty);
    cluster.until_ready().expect("a Cluster");
    work.until_more(100);
    for worker in work.finish(&*store).await {
        let shard = worker.shard;
        let longest = worker.longest;
        println!("shard {shard} waited {longest:?}");
        if owners[shard as usize] == faulty {
            assert!(longest >= Duration::from_millis(lasts), "shard {shard}: {longest:?}");
        } else {
            assert!(longest < COMMIT_TIME_LIMIT, "shard {shard}: {longest:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_master_delays_only_its_shards() {
    let cluster = Cluster::with(3, &serving()).expect("a Cluster");
    let kill: Fault = |cluster, number| cluster.nodes()[number].kill().expect("an end");
    let restart: Fault = |cluster, number| cluster.nodes()[number].restart().expect("a node");
    only_its_shards_wait(cluster, kill, 3_000, restart).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_master_delays_only_its_shards() {
    let cluster = Cluster::behind_proxies(3, &serving()).expect("a Cluster");
    let silence: Fault = |cluster, number| {
        cluster.proxies()[number].set(Mode::HalfOpen).expect("silence");
    };
    let end: Fault = |cluster, number| cluster.proxies()[number].set(Mode::Pass).expect("an end");
    only_its_shards_wait(cluster, silence, 9_000, end).await;
}

/// A replica leaves the Cluster and becomes the only master of another Cluster. Then all masters are killed, and their
/// replicas do not replace them. The store remembers the address of the node that left, but must write nothing to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_that_left_the_cluster_gets_no_writes() {
    let mut cluster = Cluster::start(3).expect("a Cluster");
    cluster.add_replicas().expect("replicas");
    let options =
        RedisOptions { retry_timeout: Some(RETRY_TIMEOUT), ..options(&cluster.urls()[0]) };
    let store = RedisStore::open(options).await.expect("the store");
    let mut owner = Owner::claim(&store, "s", 0).await;
    owner.write(&store, step("a", 1)).await;

    let left = cluster.replica(0);
    let reply = left.command(&["CLUSTER", "MYID"]).expect("a reply");
    let id = reply.text().expect("an id");
    left.command(&["CLUSTER", "RESET", "HARD"]).expect("a reset");
    for number in 0..3 {
        cluster.master(number).command(&["CLUSTER", "FORGET", id]).expect("a removal");
    }
    left.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).expect("slots");
    for number in 1..3 {
        cluster.replica(number).pause().expect("a pause");
    }
    for number in 0..3 {
        cluster.master(number).kill().expect("an end");
    }
    wait_until("a Cluster of one node", || {
        let info = left.command(&["CLUSTER", "INFO"])?;
        Ok(info.text().is_some_and(|info| info.contains("cluster_state:ok")))
    })
    .expect("a Cluster of one node");
    let batch = owner.batch(vec![step("a", 2)]);
    assert_eq!(owner.send(&store, &batch).await, CommitReply::Unknown);
    assert!(store.streams().await.is_err(), "no master of the store is running");
    assert_eq!(left.command(&["DBSIZE"]).expect("a size").int(), Some(0), "the node got writes");
}
