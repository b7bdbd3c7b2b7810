//! Tests of stores that cannot be opened: the error must come at once, and must state a reason. Also tests of servers
//! for which a start waits.

use std::time::{Duration, Instant};

use ordain_store::{RecordStore, Store, StoreError};
use ordain_store::{RedisAddress, RedisOptions};
use ordain_store_redis::RedisStore;
use ordain_tests::conformance::Owner;

use super::dedicated::{DedicatedStore, Server, step};
use super::support::options;

/// The time limit for a refusal. The limit is shorter than the time for which a start waits for a server.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(10);

/// Opens a store, which must fail at once. Returns the reason.
async fn refused(options: &RedisOptions) -> String {
    let started = Instant::now();
    let opened = RedisStore::open(options.clone()).await;
    assert!(started.elapsed() < REFUSAL_TIMEOUT, "{:?}", started.elapsed());
    match opened.map(drop) {
        Err(StoreError::Unusable(words)) => {
            println!("refused: {words}");
            words
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn store_of_other_shape_or_schema_is_refused() {
    let dedicated = DedicatedStore::start().await;
    let name = dedicated.name(0, "store");
    let mut other = dedicated.options.clone();
    other.shards += 1;
    let words = refused(&other).await;
    assert!(
        words.contains("4 shards") && words.contains("is 5") && words.contains(&name),
        "{words}"
    );
    RedisStore::open(dedicated.options.clone()).await.expect("the same again");

    dedicated.command(&["HSET", &name, "schema", "1"]);
    let words = refused(&dedicated.options).await;
    assert!(words.contains("schema 1") && words.contains("reads schema "), "{words}");
    dedicated.command(&["HDEL", &name, "schema"]);
    let words = refused(&dedicated.options).await;
    assert!(words.contains("schema nothing"), "{words}");
    dedicated.command(&["DEL", &name]);
    dedicated.command(&["SET", &name, "foreign"]);
    let words = refused(&dedicated.options).await;
    assert!(words.contains(&name) && words.contains("string"), "{words}");
    assert_eq!(dedicated.command(&["GET", &name]).text(), Some("foreign"));
}

#[tokio::test]
async fn wrong_login_is_refused() {
    let options_of_server = ordain_servers::Options::new()
        .password("secret")
        .user("reader", "right", "~ordain:* +@read +info +evalsha")
        .user("elsewhere", "right", "~other:* +@all")
        .user("nobody", "right", "-@all");
    let server = Server::with(&options_of_server).expect("a server");
    let at = |login: &str| {
        let url = format!("redis://{login}127.0.0.1:{}", server.port());
        RedisOptions { prefix: "ordain".to_owned(), ..options(&url) }
    };
    for login in ["", ":wrong@", "nobody:wrong@", "unknown:right@"] {
        let words = refused(&at(login)).await;
        let is_said = ["WRONGPASS", "NOAUTH", "uthenticat"].iter().any(|word| words.contains(word));
        assert!(is_said, "{login}: {words}");
    }
    for login in ["reader:right@", "elsewhere:right@", "nobody:right@"] {
        let words = refused(&at(login)).await;
        assert!(words.contains("permission"), "{login}: {words}");
    }
    assert_eq!(server.command(&["DBSIZE"]).expect("a size").int(), Some(0));
    RedisStore::open(at(":secret@")).await.expect("the right one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_server_is_waited_for() {
    let server = Server::start(&[]).expect("a server");
    let options = options(&server.url());
    server.stop().expect("an end");
    let opening = tokio::spawn(RedisStore::open(options));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!opening.is_finished());
    server.restart().expect("a server");
    let store = opening.await.expect("a task").expect("the store");
    Owner::claim(&store, "s", 0).await.write(&store, step("a", 1)).await;
}

/// The description of the store, which states the number of shards, is lost. The store must refuse to open: with
/// another number of shards, it would search for keys in the wrong shards.
#[tokio::test]
async fn store_without_description_is_refused() {
    let dedicated = DedicatedStore::start().await;
    Owner::claim(&dedicated.store, "s", 0).await;
    let name = dedicated.name(0, "store");
    dedicated.command(&["DEL", &name]);
    let opened = RedisStore::open(dedicated.options.clone()).await.map(drop);
    let Err(StoreError::Corrupt(words)) = opened else { panic!("{opened:?}") };
    assert!(words.contains(&name) && words.contains("shards"), "{words}");
}

/// If the server loses all data, a process that already has the store open must not create data on the empty server.
#[tokio::test]
async fn claim_in_emptied_store_is_refused() {
    let dedicated = DedicatedStore::start().await;
    let partition = Owner::claim(&dedicated.store, "s", 0).await.partition;
    dedicated.command(&["FLUSHALL"]);
    let claimed = dedicated.store.claim(&partition, 2).await.map(drop);
    let Err(StoreError::Failed(words)) = claimed else { panic!("{claimed:?}") };
    assert!(
        words.contains("lost everything") && words.contains(&dedicated.name(0, "store")),
        "{words}"
    );
    assert_eq!(dedicated.command(&["DBSIZE"]).int(), Some(0), "nothing is written");
    let reopened = RedisStore::open(dedicated.options.clone()).await.expect("a new store");
    Owner::claim(&reopened, "s", 0).await;
}

/// The store must refuse a URL that does not match the server: a URL that names a Sentinel's master although the server
/// is a single server, or a URL with a database number that the server does not have.
#[tokio::test]
async fn url_that_does_not_match_server_is_refused() {
    let dedicated = DedicatedStore::start().await;
    let url = format!("redis://127.0.0.1:{}/main", dedicated.server.port());
    let address = RedisAddress::parse(&url).expect("a URL");
    let words = refused(&RedisOptions { address, ..dedicated.options.clone() }).await;
    assert!(words.contains("\"main\"") && words.contains("single server"), "{words}");
    let url = format!("redis://127.0.0.1:{}/99", dedicated.server.port());
    let address = RedisAddress::parse(&url).expect("a URL");
    let words = refused(&RedisOptions { address, ..dedicated.options.clone() }).await;
    assert!(words.contains("DB index") && words.contains("127.0.0.1"), "{words}");
    // Another database number of the same server can contain another store.
    let url = format!("redis://127.0.0.1:{}/3", dedicated.server.port());
    let address = RedisAddress::parse(&url).expect("a URL");
    let other =
        RedisStore::open(RedisOptions { address, shards: 9, ..dedicated.options.clone() }).await;
    assert_eq!(other.expect("a new store").shards(), 9);
}

#[tokio::test]
async fn replica_and_two_servers_are_refused() {
    let dedicated = DedicatedStore::start().await;
    let replica = ordain_servers::Options::new().replica_of(&dedicated.server);
    let replica = Server::with(&replica).expect("a replica");
    replica.until_in_step().expect("a replica in step");
    let words = refused(&options(&replica.url())).await;
    let master = format!("its master, 127.0.0.1:{}", dedicated.server.port());
    assert!(words.contains("is a replica") && words.contains(&master), "{words}");

    let both =
        format!("redis://127.0.0.1:{},127.0.0.1:{}", dedicated.server.port(), replica.port());
    let words = refused(&options(&both)).await;
    assert!(words.contains("name one"), "{words}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_without_slots_is_waited_for() {
    let lines = ordain_servers::Options::new().line("cluster-enabled yes");
    let server = Server::with(&lines).expect("a node");
    let opening = tokio::spawn(RedisStore::open(options(&server.url())));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!opening.is_finished());
    server.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).expect("all slots");
    let store = opening.await.expect("a task").expect("the store");
    Owner::claim(&store, "s", 0).await.write(&store, step("a", 1)).await;
}
