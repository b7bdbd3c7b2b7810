//! Tests of idle connections, which must stay open, and of connections that the store must replace, some of them by
//! connections to other addresses.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ordain_servers::{Cluster, Mode, Options, Redis as Server, SECOND_ADDRESS, Sentinel};
use ordain_store::{Mark, MarkStore, RedisOptions, Store};
use ordain_store_redis::RedisStore;
use ordain_tests::conformance::{Owner, first_write, next_write};
use tokio::time::{sleep, timeout};

use super::dedicated::until_applied;
use super::support::{keys_of_shards, options};

/// Writes the mark `m`. Returns whether the store accepted the write.
async fn put(store: &RedisStore, value: &str) -> bool {
    let mark = Mark { name: "m".to_owned(), value: value.to_owned().into() };
    store.put_marks(&[mark]).await.is_ok()
}

/// A port of this machine at which no server listens.
const CLOSED_PORT: u16 = 1;

/// Opens a store with a URL that names servers at several ports, and commits in each shard. `path` is the path of the
/// URL.
async fn commit_with_several_hosts(ports: &[u16], path: &str) {
    let hosts: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let url = format!("redis://{}{path}", hosts.join(","));
    let store = RedisStore::open(options(&url)).await.expect(&url);
    let mut owner = Owner::claim(&store, "s", 0).await;
    for key in keys_of_shards(store.shards()) {
        owner.write(&store, first_write(&key)).await;
    }
}

/// The URL names all nodes of a Cluster. The store must use the Cluster, even if no server listens at the first host of
/// the URL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_hosts_of_a_cluster_are_used() {
    let cluster = Cluster::start(3).expect("a Cluster");
    let ports: Vec<u16> = cluster.nodes().iter().map(Server::port).collect();
    commit_with_several_hosts(&ports, "").await;
    commit_with_several_hosts(&[&[CLOSED_PORT], &ports[1..]].concat(), "").await;
}

/// The URL names several Sentinels, and may also contain the name of the master. The store must use the master, even if
/// only one of the Sentinels runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_hosts_of_sentinels_are_used() {
    let group = Sentinel::start().expect("a group");
    let running = group.sentinel().port();
    let path = format!("/{}", group.name());
    for path in ["", &path] {
        for ports in [[running, CLOSED_PORT], [CLOSED_PORT, running]] {
            commit_with_several_hosts(&ports, path).await;
        }
    }
}

/// A server closes connections that have been idle for its `timeout`. To the store, this would look like a broken
/// connection. The connections of commits that wait for replicas may be idle for a long time. So the store regularly
/// sends requests on these connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_survive_the_timeout_of_the_server() {
    let server = Server::start(&["timeout 4"]).expect("a server");
    let replica = Options::new().replica_of(&server);
    let _replica = Server::with(&replica).expect("a replica");
    let options = RedisOptions { replicas: 1, ..options(&server.url()) };
    let store = RedisStore::open(options).await.expect("the store");
    let mut owner = Owner::claim(&store, "s", 0).await;
    let started = Instant::now();
    // Writes of marks use another connection than commits, so the connections of commits are idle meanwhile.
    while started.elapsed() < Duration::from_secs(10) {
        assert!(put(&store, "1").await);
        sleep(Duration::from_millis(500)).await;
    }
    for shard in 0..store.shards() {
        let mut names = (0..).map(|number| format!("key-{number}"));
        let key = names.find(|key| owner.shard(key) == shard).expect("a key of the shard");
        // This call panics if the store does not know whether the commit was applied, as after a broken connection.
        owner.write(&store, first_write(&key)).await;
    }
    assert_eq!(store.disconnects(), 0);
}

/// In a Cluster, a process that only accepts events may leave its connections to some nodes unused for a long time.
/// These connections must nevertheless stay open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_to_a_cluster_survive_the_timeout_of_the_nodes() {
    let cluster = Cluster::with(3, &Options::new().line("timeout 4")).expect("a Cluster");
    let store = RedisStore::open(options(&cluster.urls()[0])).await.expect("the store");
    sleep(Duration::from_secs(10)).await;
    let mut owner = Owner::claim(&store, "s", 0).await;
    for shard in 0..store.shards() {
        let mut names = (0..).map(|number| format!("key-{number}"));
        let key = names.find(|key| owner.shard(key) == shard).expect("a key of the shard");
        owner.write(&store, first_write(&key)).await;
    }
    assert_eq!(store.disconnects(), 0);
}

/// In a Cluster, the connections of commits that wait for replicas may be idle for a long time too. There are more
/// shards than such connections, so some of these connections belong to two shards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_of_waiting_commits_survive_the_timeout_of_the_nodes() {
    let mut cluster = Cluster::with(3, &Options::new().line("timeout 4")).expect("a Cluster");
    cluster.add_replicas().expect("replicas");
    let options = RedisOptions { replicas: 1, shards: 12, ..options(&cluster.urls()[0]) };
    let store = RedisStore::open(options).await.expect("the store");
    let mut owner = Owner::claim(&store, "s", 0).await;
    let keys = keys_of_shards(store.shards());
    // The second commit of each shard uses the connection that the first commit has opened.
    for key in &keys {
        owner.write(&store, first_write(key)).await;
    }
    let mut unused = cluster.nodes()[0].connect().expect("a connection");
    sleep(Duration::from_secs(10)).await;
    assert!(unused.attempt(&["PING"]).is_err(), "the node closes idle connections");
    for key in &keys {
        owner.write(&store, next_write(key, 2)).await;
    }
    assert_eq!(store.disconnects(), 0);
}

/// A node accepts connections, and does not answer. Many concurrent calls must share the result of one attempt to
/// connect. If each call made its own attempt, the last call would end after minutes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_for_a_silent_node_end_together() {
    let cluster = Cluster::behind_proxies(3, &Options::new()).expect("a Cluster");
    let retry_timeout = Some(Duration::from_secs(1));
    let options = RedisOptions { retry_timeout, ..options(&cluster.urls()[0]) };
    let store = RedisStore::open(options).await.expect("the store");
    assert!(put(&store, "before").await);
    let node = cluster.owner(cluster.slot("{0}").expect("a slot")).expect("an owner");
    let proxy = &cluster.proxies()[node];
    proxy.set(Mode::HalfOpen).expect("a silent node");
    proxy.cut();
    let calls = futures_util::future::join_all((0..40).map(|_| put(&store, "between")));
    let results = timeout(Duration::from_mins(1), calls).await.expect("the end of all calls");
    assert!(results.iter().all(|is_written| !is_written), "{results:?}");
    proxy.set(Mode::Pass).expect("an answering node");
    assert!(put(&store, "after").await);
}

/// All nodes of a Cluster move to other addresses at the same time. The store must find them again through the
/// configured address.
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

/// When the store fetches the masters of the slots, no node answers at the address that the node announced. The store
/// must query the configured address, even after all nodes have announced new addresses and the old addresses refuse
/// connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn masters_are_found_through_the_configured_address() {
    let cluster = Cluster::behind_proxies(3, &Options::new()).expect("a Cluster");
    let store = RedisStore::open(options(&cluster.nodes()[0].url())).await.expect("the store");
    assert!(put(&store, "before").await);
    for proxy in cluster.proxies() {
        proxy.lose_requests(u64::MAX, "SLOTS");
    }
    // The slot of the mark moves, so the next call for the mark is redirected, and the store fetches the masters of the
    // slots.
    let slot = cluster.slot("{0}").expect("a slot");
    let from = cluster.owner(slot).expect("an owner");
    cluster.migrate(slot, (from + 1) % 3).expect("a migration").finish().expect("an end");
    assert!(put(&store, "between").await, "the configured address answers");
    for (node, proxy) in cluster.nodes().iter().zip(cluster.proxies()) {
        node.configure("cluster-announce-port", "0").expect("its own port");
        proxy.set(Mode::Refuse).expect("refused");
    }
    let started = Instant::now();
    let reconnects = async {
        while !put(&store, "after").await {
            sleep(Duration::from_millis(200)).await;
        }
    };
    // If the store did not query the configured address, this loop would never end.
    timeout(Duration::from_mins(1), reconnects).await.expect("the store reconnects");
    println!("the store reconnected after {:?}", started.elapsed());
    assert_eq!(store.mark("m").await.expect("a mark"), Some("after".into()));
}

/// Opens a store at the second address of a Cluster whose nodes do not report their hosts, and commits in each shard.
/// The store must connect to each node at the second address.
async fn commit_at_second_address(cluster: &Cluster) -> (RedisStore, Owner) {
    let url = format!("redis://{SECOND_ADDRESS}:{}", cluster.nodes()[0].port());
    let store = RedisStore::open(options(&url)).await.expect("the store");
    let mut owner = Owner::claim(&store, "s", 0).await;
    for key in keys_of_shards(store.shards()) {
        owner.write(&store, first_write(&key)).await;
    }
    for node in cluster.nodes() {
        let slots = node.command(&["CLUSTER", "SLOTS"]).expect("the slots");
        let [_, _, master, ..] = slots.parts()[0].parts() else { panic!("{slots:?}") };
        assert!(master.parts()[0].text().is_none_or(str::is_empty), "{slots:?}");
        let list = node.command(&["CLIENT", "LIST"]).expect("the clients");
        let clients = list.text().expect("a list");
        assert!(clients.contains(&format!("laddr={SECOND_ADDRESS}:")), "{clients}");
    }
    (store, owner)
}

/// The nodes do not know the address at which clients reach them, as behind a load balancer. The store must connect to
/// the host of its URL. The old master of a slot that moves does not report the host of the new master either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_report_no_host_are_reached_at_the_host_of_the_url() {
    let setting = "cluster-preferred-endpoint-type unknown-endpoint";
    let cluster = Cluster::with(3, &Options::new().line(setting)).expect("a Cluster");
    let (store, mut owner) = commit_at_second_address(&cluster).await;
    let slot = cluster.slot("{0}").expect("a slot");
    let from = cluster.owner(slot).expect("an owner");
    cluster.migrate(slot, (from + 1) % 3).expect("a migration").finish().expect("an end");
    for key in keys_of_shards(store.shards()) {
        let batch = owner.batch(vec![next_write(&key, 2)]);
        until_applied(&store, &owner, &batch).await;
    }
    assert!(store.shard_disconnects(0) > 0, "the first shard has a new master");
    // If the store had changed the host of a node, the other shards would have new masters too.
    for shard in 1..store.shards() {
        assert_eq!(store.shard_disconnects(shard), 0, "shard {shard}");
    }
}

/// A node that has never met another node does not know its own address, and reports an empty host.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lone_node_that_reports_no_host_is_reached_at_the_host_of_the_url() {
    let cluster = Cluster::start(1).expect("a Cluster");
    commit_at_second_address(&cluster).await;
}

/// The Sentinel does not reach the master and has replaced it. The store must switch to the new master, even if the
/// store still reaches the old master.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_switches_from_a_replaced_master_that_still_replies() {
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
    println!("the store switched to the new master after {:?}", started.elapsed());
}
