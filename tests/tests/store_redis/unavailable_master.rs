//! Tests of commits in a Cluster while one master does not reply.

use std::sync::Arc;
use std::time::Duration;

use ordain_servers::{Cluster, Mode, Options};
use ordain_store_redis::RedisStore;

use super::support::options;
use super::work::Work;

/// The limit for the time that a commit in a shard of a working master takes, on a busy machine.
const COMMIT_TIME_LIMIT: Duration = Duration::from_secs(2);

/// Returns options with which the nodes of a Cluster serve requests while other nodes are down.
fn serving() -> Options {
    Options::new().line("cluster-require-full-coverage no")
}

/// Returns for each shard the node that owns the slot of the shard.
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

/// A function that starts or ends a failure of a node.
type Fault = fn(&Cluster, usize);

/// Makes a node fail for at least `lasts` milliseconds. Checks that only the shards of this node wait, and that all
/// other shards continue.
async fn only_its_shards_wait(cluster: Cluster, fault: Fault, lasts: u64, end: Fault) {
    let store = RedisStore::open(options(&cluster.urls()[0])).await.expect("the store");
    let store = Arc::new(store);
    let owners = owners(&cluster);
    let faulty = owners[0];
    assert!(owners.iter().any(|owner| *owner != faulty));
    let work = Work::start(&store).await;
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
