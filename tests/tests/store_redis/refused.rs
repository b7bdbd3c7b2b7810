//! Stores that are refused when they are opened, at once and in words, and servers that are waited
//! for.

use std::time::{Duration, Instant};

use ordain_store::{RedisAddress as Address, RedisOptions as Options};
use ordain_store::{Store, StoreError};
use ordain_store_redis::Redis;
use ordain_tests::conformance::Owner;

use super::own::{Own, Server, step};
use super::support::options;

/// Opening ends sooner than a start would wait.
const AT_ONCE: Duration = Duration::from_secs(10);

/// Why a store is not opened.
async fn refused(options: &Options) -> String {
    let started = Instant::now();
    let opened = Redis::open(options.clone()).await;
    assert!(started.elapsed() < AT_ONCE, "{:?}", started.elapsed());
    match opened.map(drop) {
        Err(StoreError::Unusable(words)) => {
            println!("refused: {words}");
            words
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_store_of_another_shape() {
    let own = Own::start().await;
    let name = own.name(0, "store");
    let mut other = own.options.clone();
    other.shards += 1;
    let words = refused(&other).await;
    assert!(
        words.contains("4 shards") && words.contains("is 5") && words.contains(&name),
        "{words}"
    );
    Redis::open(own.options.clone()).await.expect("the same again");

    own.command(&["HSET", &name, "schema", "1"]);
    let words = refused(&own.options).await;
    assert!(words.contains("schema 1") && words.contains("reads schema "), "{words}");
    own.command(&["HDEL", &name, "schema"]);
    let words = refused(&own.options).await;
    assert!(words.contains("schema nothing"), "{words}");
    own.command(&["DEL", &name]);
    own.command(&["SET", &name, "foreign"]);
    let words = refused(&own.options).await;
    assert!(words.contains(&name) && words.contains("string"), "{words}");
    assert_eq!(own.command(&["GET", &name]).text(), Some("foreign"));
}

#[tokio::test]
async fn a_wrong_login() {
    let options_of_server = ordain_servers::Options::new()
        .password("secret")
        .user("reader", "right", "~ordain:* +@read +info +evalsha")
        .user("elsewhere", "right", "~other:* +@all")
        .user("nobody", "right", "-@all");
    let server = Server::with(&options_of_server).expect("a server");
    let at = |login: &str| {
        let url = format!("redis://{login}127.0.0.1:{}", server.port());
        Options { prefix: "ordain".to_owned(), ..options(&url) }
    };
    for login in ["", ":wrong@", "nobody:wrong@", "unknown:right@"] {
        let words = refused(&at(login)).await;
        let is_said = ["WRONGPASS", "NOAUTH", "uthenticat"].iter().any(|it| words.contains(it));
        assert!(is_said, "{login}: {words}");
    }
    for login in ["reader:right@", "elsewhere:right@", "nobody:right@"] {
        let words = refused(&at(login)).await;
        assert!(words.contains("permission"), "{login}: {words}");
    }
    assert_eq!(server.command(&["DBSIZE"]).expect("a size").int(), Some(0));
    Redis::open(at(":secret@")).await.expect("the right one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_not_there_yet_is_waited_for() {
    let server = Server::start(&[]).expect("a server");
    let options = options(&server.url());
    server.stop().expect("an end");
    let opening = tokio::spawn(Redis::open(options));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!opening.is_finished());
    server.restart().expect("a server");
    let store = opening.await.expect("a task").expect("the store");
    Owner::claim(&store, "s", 0).await.write(&store, step("a", 1)).await;
}

/// The number of shards is lost: with another one, keys would be looked for in wrong places.
#[tokio::test]
async fn a_store_that_does_not_say_what_it_is() {
    let own = Own::start().await;
    Owner::claim(&own.store, "s", 0).await;
    let name = own.name(0, "store");
    own.command(&["DEL", &name]);
    let opened = Redis::open(own.options.clone()).await.map(drop);
    let Err(StoreError::Corrupt(words)) = opened else { panic!("{opened:?}") };
    assert!(words.contains(&name) && words.contains("shards"), "{words}");
}

/// What a URL says and what is there.
#[tokio::test]
async fn a_url_that_is_not_true() {
    let own = Own::start().await;
    let url = format!("redis://127.0.0.1:{}/main", own.server.port());
    let address = Address::parse(&url).expect("a URL");
    let words = refused(&Options { address, ..own.options.clone() }).await;
    assert!(words.contains("\"main\"") && words.contains("single server"), "{words}");
    let url = format!("redis://127.0.0.1:{}/99", own.server.port());
    let address = Address::parse(&url).expect("a URL");
    let words = refused(&Options { address, ..own.options.clone() }).await;
    assert!(words.contains("DB index") && words.contains("127.0.0.1"), "{words}");
    // Another database is another store.
    let url = format!("redis://127.0.0.1:{}/3", own.server.port());
    let address = Address::parse(&url).expect("a URL");
    let other = Redis::open(Options { address, shards: 9, ..own.options.clone() }).await;
    assert_eq!(other.expect("a new store").shards(), 9);
}

#[tokio::test]
async fn a_replica_and_two_servers() {
    let own = Own::start().await;
    let replica = ordain_servers::Options::new().replica_of(&own.server);
    let replica = Server::with(&replica).expect("a replica");
    replica.until_in_step().expect("a replica in step");
    let words = refused(&options(&replica.url())).await;
    let master = format!("its master, 127.0.0.1:{}", own.server.port());
    assert!(words.contains("is a replica") && words.contains(&master), "{words}");

    let both = format!("redis://127.0.0.1:{},127.0.0.1:{}", own.server.port(), replica.port());
    let words = refused(&options(&both)).await;
    assert!(words.contains("name one"), "{words}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_is_not_put_together_yet_is_waited_for() {
    let lines = ordain_servers::Options::new().line("cluster-enabled yes");
    let server = Server::with(&lines).expect("a node");
    let opening = tokio::spawn(Redis::open(options(&server.url())));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!opening.is_finished());
    server.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).expect("all slots");
    let store = opening.await.expect("a task").expect("the store");
    Owner::claim(&store, "s", 0).await.write(&store, step("a", 1)).await;
}
