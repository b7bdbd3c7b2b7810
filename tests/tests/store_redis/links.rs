//! Connections that the store leaves and opens again elsewhere.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ordain_servers::{Cluster, Mode, Options, Redis as Server, Sentinel};
use ordain_store::{Mark, MarkStore, RedisOptions, Store};
use ordain_store_redis::RedisStore;
use ordain_tests::conformance::{Owner, absent};
use tokio::time::{sleep, timeout};

use super::support::options;

async fn put(store: &RedisStore, value: &str) -> bool {
    let mark = Mark { name: "m".to_owned(), value: value.to_owned().into() };
    store.put_marks(&[mark]).await.is_ok()
}

/// A server that closes idle connections without notice causes no false alarm: the store regularly probes the rarely
/// used connections of commits that wait for replicas.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_survive_the_timeout_of_the_server() {
    let server = Server::start(&["timeout 4"]).expect("a server");
    let replica = Options::new().replica_of(&server);
    let _replica = Server::with(&replica).expect("a replica");
    let options = RedisOptions { replicas: 1, ..options(&server.url()) };
    let store = RedisStore::open(options).await.expect("the store");
    let mut owner = Owner::claim(&store, "s", 0).await;
    let started = Instant::now();
    // The writes of marks do not use the connections of commits.
    while started.elapsed() < Duration::from_secs(10) {
        assert!(put(&store, "1").await);
        sleep(Duration::from_millis(500)).await;
    }
    for shard in 0..store.shards() {
        let mut names = (0..).map(|number| format!("key-{number}"));
        let key = names.find(|key| owner.shard(key) == shard).expect("a key of the shard");
        // Panics if the store does not know whether the commit was applied, as after a broken connection.
        owner.write(&store, absent(&key)).await;
    }
    assert_eq!(store.disconnects(), 0);
}

/// If all nodes move at once, the store finds them again at the configured address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moved_cluster_is_found_again() {
    let cluster = Cluster::behind_proxies(3, &Options::new()).expect("a Cluster");
    let store = RedisStore::open(options(&cluster.nodes()[0].url())).await.expect("the store");
    assert!(put(&store, "before").await);
    for (node, proxy) in cluster.nodes().iter().zip(cluster.proxies()) {
        node.configure("cluster-announce-port", "0").expect("its own port");
        proxy.set(Mode::Refuse).expect("refused");
    }
    let started = Instant::now();
    while !put(&store, "after").await {
        assert!(started.elapsed() < Duration::from_mins(1), "the store never reconnects");
        sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(store.mark("m").await.expect("a mark"), Some("after".into()));
}

/// During a search for slots, the library queries only the nodes that it remembers. If the nodes leave all these
/// addresses meanwhile, the store finds them at the configured address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_that_moves_during_a_search_for_slots_is_found_again() {
    let cluster = Cluster::behind_proxies(3, &Options::new()).expect("a Cluster");
    let store = RedisStore::open(options(&cluster.nodes()[0].url())).await.expect("the store");
    let store = Arc::new(store);
    assert!(put(&store, "before").await);
    for proxy in cluster.proxies() {
        proxy.lose_requests(u64::MAX, "SLOTS");
    }
    // The next call for a mark is redirected, and the library searches for the slots.
    let slot = cluster.slot("{0}").expect("a slot");
    let from = cluster.owner(slot).expect("an owner");
    cluster.migrate(slot, (from + 1) % 3).expect("a migration").finish().expect("an end");
    let other = Arc::clone(&store);
    let redirected = tokio::spawn(async move { put(&other, "between").await });
    sleep(Duration::from_secs(1)).await;
    assert!(!redirected.is_finished());
    for (node, proxy) in cluster.nodes().iter().zip(cluster.proxies()) {
        node.configure("cluster-announce-port", "0").expect("its own port");
        proxy.set(Mode::Refuse).expect("refused");
    }
    let started = Instant::now();
    let comes_back = async {
        while !put(&store, "after").await {
            sleep(Duration::from_millis(200)).await;
        }
    };
    // Without the store's own search, no call would ever end.
    timeout(Duration::from_mins(1), comes_back).await.expect("the store reconnects");
    println!("the store reconnected after {:?}", started.elapsed());
    assert_eq!(store.mark("m").await.expect("a mark"), Some("after".into()));
}

/// The store leaves a master that the Sentinel does not reach and has replaced, even if this process still reaches it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replaced_master_is_left_although_it_replies() {
    let group = Sentinel::start().expect("a group");
    let options = options(&group.url());
    let marks = format!("{}:{{0}}:marks", options.prefix);
    let store = Arc::new(RedisStore::open(options).await.expect("the store"));
    assert!(put(&store, "before").await);
    let _cut_off = group.cut_off().expect("a split");
    group.until_replaced().expect("another master");
    let new = group.master();
    assert!(put(&store, "between").await, "the old master replies");
    let started = Instant::now();
    let has = |server: &Server| server.command(&["HGET", &marks, "m"]).expect("an answer");
    while has(new).text() != Some("after") {
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "the store never connects to the new master"
        );
        put(&store, "after").await;
        sleep(Duration::from_millis(200)).await;
    }
    println!("the store followed after {:?}", started.elapsed());
}
