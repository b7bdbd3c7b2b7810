//! Tests of commits that wait for replicas.

use std::sync::Arc;
use std::time::Duration;

use ordain_core::{CommitReply, Event, EventParts, QueuePosition, shard_of};
use ordain_publish::EventAssigner;
use ordain_servers::{Mode, Options, Proxy, Reply, Sentinel, wait_until};
use ordain_store::{
    AssignGroup, AssignItem, AssignReply, AssignRequest, Destination, DestinationRules,
    MessageLog as _, OutboxChunk, OutboxPosition, RedisOptions, Store, StoreError,
};
use ordain_store_redis::RedisStore;
use ordain_tests::conformance::Owner;
use tokio::time::{Instant, sleep_until, timeout};

use super::assigned::{assigner, ids, partition};
use super::dedicated::{DedicatedStore, Server, next_of, numbers, step, until_applied};
use super::support::options;
use super::work::ShardWorkers;

/// Within this time, each link of a store (its connection for one shard) queries the Sentinels at least once.
const SENTINEL_QUERY_TIME: Duration = Duration::from_secs(6);

async fn waiting(dedicated: &DedicatedStore, replicas: u32) -> RedisStore {
    let options = RedisOptions { replicas, ..dedicated.options.clone() };
    RedisStore::open(options).await.expect("the store")
}

fn replica(dedicated: &DedicatedStore) -> Server {
    let options = ordain_servers::Options::new().replica_of(&dedicated.server);
    Server::with(&options).expect("a replica")
}

#[tokio::test]
async fn commit_waits_for_replica() {
    let dedicated = DedicatedStore::start().await;
    let replica = replica(&dedicated);
    let store = waiting(&dedicated, 1).await;
    assert!(
        store.durability().description.contains("until a replica also has the commit"),
        "{:?}",
        store.durability()
    );
    let mut owner = Owner::claim(&store, "s", 0).await;
    owner.write(&store, step("a", 1)).await;
    let on_replica = |key: &str| {
        let name = dedicated.name(owner.shard(key), "data:s");
        replica.command(&["HEXISTS", &name, &format!("j{key}")]).expect("an answer").int()
            == Some(1)
    };
    assert!(on_replica("a"), "the replica must have an answered commit");

    replica.pause().expect("a pause");
    let batch = owner.batch(vec![step("a", 2)]);
    for _ in 0..2 {
        assert_eq!(owner.send(&store, &batch).await, CommitReply::Unknown);
    }
    assert_eq!(next_of(&dedicated.store, "a").await, 3, "the master has the commit");
    replica.resume().expect("a resumed replica");
    until_applied(&store, &owner, &batch).await;
    assert_eq!(numbers(&store, &owner, "a").await, [1, 2]);
    owner.write(&store, step("a", 3)).await;
}

#[tokio::test]
async fn commit_with_too_few_replicas_is_not_answered() {
    let dedicated = DedicatedStore::start().await;
    let _one = replica(&dedicated);
    let store = waiting(&dedicated, 2).await;
    assert!(store.durability().description.contains("only 1 now"), "{:?}", store.durability());
    let mut owner = Owner::claim(&store, "s", 0).await;
    let batch = owner.batch(vec![step("a", 1)]);
    assert_eq!(owner.send(&store, &batch).await, CommitReply::Unknown);
    let _other = replica(&dedicated);
    until_applied(&store, &owner, &batch).await;
    assert_eq!(numbers(&store, &owner, "a").await, [1]);
}

/// The server loses its scripts, the connection closes, and the replica pauses. Commits that wait for the replica must
/// nevertheless continue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_commits_continue_after_faults() {
    let dedicated = DedicatedStore::start().await;
    let replica = replica(&dedicated);
    let store = Arc::new(waiting(&dedicated, 1).await);
    let work = ShardWorkers::start(&store).await;
    for round in 0..3 {
        work.until_more(20);
        dedicated.command(&["SCRIPT", "FLUSH"]);
        work.until_more(20);
        dedicated.command(&["CLIENT", "KILL", "TYPE", "normal"]);
        if round == 1 {
            replica.pause().expect("a pause");
            std::thread::sleep(std::time::Duration::from_millis(200));
            replica.resume().expect("a resumed replica");
        }
    }
    work.until_more(20);
    work.finish(&*store).await;
    replica.until_in_step().expect("a replica in step");
}

fn put(id: &str, shards: u32) -> Arc<AssignRequest> {
    let event = Event::new(&EventParts { key: "a", id, ..EventParts::default() });
    let items = vec![AssignItem { event: Arc::new(event), partition: 0, number: 0 }];
    Arc::new(AssignRequest {
        destination: Destination::Stream("s".into()),
        shard: shard_of("a", shards),
        rules: DestinationRules { numbering: None, queue_limit: Some(1_000) },
        witness: None,
        call: None,
        readers: Vec::new(),
        reuses_lost_numbers: false,
        groups: vec![AssignGroup {
            origin: None,
            chunks: vec![OutboxChunk { position: OutboxPosition::default(), items }],
        }],
    })
}

/// A server with `min-replicas-to-write` refuses all writes if its replica has been silent for longer than
/// `min-replicas-max-lag`. During this time, the store must confirm no commit and no event of a producer, and its
/// errors must name the reason. When the replica answers again, the repeated commit and the repeated event must be
/// written once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn master_without_replica_refuses_writes_until_it_is_back() {
    let dedicated = DedicatedStore::start().await;
    let replica = replica(&dedicated);
    dedicated.command(&["CONFIG", "SET", "min-replicas-max-lag", "1"]);
    dedicated.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let store = Arc::new(RedisStore::open(dedicated.options.clone()).await.expect("the store"));
    let shards = store.shards();
    let mut owner = Owner::claim(&*store, "s", 0).await;
    let batch = owner.batch(vec![step("a", 1)]);
    until_applied(&*store, &owner, &batch).await;
    store.assign(put("first", shards)).await.expect("an event");

    replica.pause().expect("a pause");
    wait_until("a refused write", || {
        let reply = dedicated.server.attempt(&["DEL", "nothing"])?;
        Ok(matches!(reply, Reply::Error(error) if error.starts_with("NOREPLICAS")))
    })
    .expect("a refused write");
    let before = dedicated.digest();
    let batch = owner.batch(vec![step("a", 2)]);
    for _ in 0..2 {
        assert_eq!(owner.send(&*store, &batch).await, CommitReply::Unknown);
    }
    let other = Arc::clone(&store);
    let mut putting = tokio::spawn(async move { other.assign(put("second", shards)).await });
    assert!(
        timeout(Duration::from_secs(1), &mut putting).await.is_err(),
        "the store must not confirm the event"
    );
    let is_named = |refused: Result<(), StoreError>| {
        let Err(StoreError::Unavailable(words)) = refused else { panic!("{refused:?}") };
        assert!(words.contains("NOREPLICAS Not enough good replicas"), "{words}");
    };
    is_named(store.check_writable().await);
    let retry_timeout = Some(Duration::from_millis(200));
    let impatient = RedisOptions { retry_timeout, ..dedicated.options.clone() };
    is_named(RedisStore::open(impatient).await.map(drop));
    assert_eq!(dedicated.digest(), before, "the store must write nothing");
    assert_eq!(next_of(&*store, "a").await, 2, "the store still answers reads");

    replica.resume().expect("a resumed replica");
    until_applied(&*store, &owner, &batch).await;
    assert_eq!(numbers(&*store, &owner, "a").await, [1, 2]);
    let put = putting.await.expect("a task").expect("an answer");
    assert!(matches!(put, AssignReply::Groups(..)), "{put:?}");
    let start = QueuePosition::default();
    let page = store.read_queue(&owner.partition, owner.shard("a"), start, 10, 1 << 20).await;
    let ids: Vec<String> = page
        .expect("a page")
        .entries
        .into_iter()
        .map(|(_, entry)| entry.expect("an event").id().to_owned())
        .collect();
    assert_eq!(ids, ["first", "second"]);
    replica.until_in_step().expect("a replica in step");
}

/// Writes one event of each key in one call. All these events have the given id.
async fn write(assigner: &EventAssigner, keys: &[&str], id: &str) {
    let item = |key: &&str| {
        let parts = EventParts { key, id, ..EventParts::default() };
        assigner.item(&Arc::new(Event::new(&parts)))
    };
    let items: Vec<AssignItem> = keys.iter().map(item).collect();
    let result = assigner.assign(&items).await;
    assert!(result.error.is_none(), "event {id}: {:?}", result.error);
}

/// During a split, the old master keeps a replica, so that the old and the new master both confirm writes. The link of
/// one shard loses its connection and connects to the new master. The connection of the other shard's link works, and
/// the regular queries to the Sentinel get no answer. A later call has one event for each of these shards. When the
/// call ends without an error, which a host would answer with 202, the new master must have both events. If each link
/// found the master by itself, one of the two events would be in the old master only. The number of disconnects would
/// then not change during the call, so the call would not detect the loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_use_the_same_master_during_a_split() {
    let group = Sentinel::behind_proxies(&Options::new()).expect("a group");
    let sentinel = Proxy::start(group.sentinel().port()).expect("a proxy");
    let url = group.sentinel().url_at(sentinel.port());
    let with_replica = RedisOptions { replicas: 1, ..options(&url) };
    let prefix = with_replica.prefix.clone();
    let store = Arc::new(RedisStore::open(with_replica).await.expect("the store"));
    let key = |shard: u32| {
        // Neither key may be a part of the other key, because the proxy loses the request that contains a given key.
        let mut names = (0..).map(|number| format!("key-{number}."));
        names.find(|key| shard_of(key, store.shards()) == shard).expect("a key of the shard")
    };
    let [first, second] = [key(0), key(1)];
    let assigner = assigner(&store, None);
    write(&assigner, &[&first, &second], "1").await;

    sentinel.set(Mode::HalfOpen).expect("a silent Sentinel");
    let all_queries_hang_at = Instant::now() + SENTINEL_QUERY_TIME;
    let _split = tokio::task::block_in_place(|| {
        let cut_off = group.cut_off().expect("a split");
        // A command starts the failover immediately, so that it ends while the queries of the store hang.
        let failover = ["SENTINEL", "FAILOVER", group.name()];
        group.sentinel().command(&failover).expect("a failover");
        group.until_replaced().expect("another master");
        let old_replica = group.start_replica_of_cut_off().expect("a replica of the old master");
        let new_replica = group.start_replica().expect("a replica of the new master");
        (cut_off, old_replica, new_replica)
    });
    sleep_until(all_queries_hang_at).await;
    // The queries that hang now never get an answer. Later queries get an answer.
    sentinel.silence("");
    sentinel.set(Mode::Pass).expect("a Sentinel that replies");

    let old_master = &group.proxies()[0];
    old_master.lose_requests(1, &second);
    write(&assigner, &[&second], "2").await;
    assert_eq!(old_master.counts().requests_lost, 1, "the link has lost no request");
    write(&assigner, &[&first, &second], "3").await;
    let on_new_master = RedisOptions { prefix, ..options(&group.url()) };
    let new_master = RedisStore::open(on_new_master).await.expect("the store again");
    for shard in [0, 1] {
        let ids = ids(&new_master, &partition(), shard).await;
        assert_eq!(ids.last(), Some(&3), "the event of shard {shard} is lost: {ids:?}");
    }
}
