//! Tests of stores that cannot be opened: the error must come immediately, and must state a reason. The module also
//! tests servers for which a start waits.

use std::time::{Duration, Instant};

use ordain_servers::Sentinel;
use ordain_store::{RecordStore, Store, StoreError};
use ordain_store::{RedisAddress, RedisOptions};
use ordain_store_redis::RedisStore;
use ordain_tests::conformance::Owner;

use super::dedicated::{DedicatedStore, Server, step};
use super::support::options;

/// The time limit for a refusal. The limit is shorter than the time for which a start waits for a server.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(10);

/// Tries to open a store. The attempt must fail immediately. Returns the reason.
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
async fn store_with_another_shard_count_or_schema_is_refused() {
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

/// Tries to open a store with options under which the attempt fails instead of waiting for the server. Returns the
/// reason why the store is unavailable.
async fn unavailable(options: &RedisOptions) -> String {
    let options = RedisOptions { retry_timeout: Some(Duration::ZERO), ..options.clone() };
    match RedisStore::open(options).await.map(drop) {
        Err(StoreError::Unavailable(words)) => {
            println!("unavailable: {words}");
            words
        }
        other => panic!("{other:?}"),
    }
}

/// An operator can change a login or a right at any time, so the refusal is temporary. The error contains the server's
/// own words.
#[tokio::test]
async fn wrong_login_is_refused() {
    let options_of_server = ordain_servers::Options::new()
        .password("secret")
        .user("reader", "right", "~ordain:* +@read +info +evalsha")
        .user("elsewhere", "right", "~other:* +@all")
        .user("nobody", "right", "-@all")
        .user("disabled", "right", "~ordain:* +@all off");
    let server = Server::with(&options_of_server).expect("a server");
    let at = |login: &str| {
        let url = format!("redis://{login}127.0.0.1:{}", server.port());
        RedisOptions { prefix: "ordain".to_owned(), ..options(&url) }
    };
    let words = unavailable(&at("")).await;
    assert!(words.contains("NOAUTH Authentication required"), "{words}");
    assert!(words.contains("add it to `store.url`"), "{words}");
    for login in [":wrong@", "nobody:wrong@", "unknown:right@", "disabled:right@"] {
        let words = unavailable(&at(login)).await;
        let reason = "WRONGPASS invalid username-password pair or user is disabled.";
        assert!(words.contains(reason), "{login}: {words}");
    }
    for login in ["reader:right@", "elsewhere:right@", "nobody:right@"] {
        let words = unavailable(&at(login)).await;
        assert!(words.contains("permission"), "{login}: {words}");
    }
    assert_eq!(server.command(&["DBSIZE"]).expect("a size").int(), Some(0));
    RedisStore::open(at(":secret@")).await.expect("the store with the right password");

    let open = Server::start(&[]).expect("a server");
    let url = format!("redis://:secret@127.0.0.1:{}", open.port());
    let words = unavailable(&options(&url)).await;
    assert!(words.contains("AUTH <password> called without any password configured"), "{words}");
    assert!(!words.contains("secret"), "{words}");
}

/// A start waits for an operator who corrects a login.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn start_waits_for_a_corrected_login() {
    let server = Server::with(&ordain_servers::Options::new().password("old")).expect("a server");
    let url = format!("redis://:new@127.0.0.1:{}", server.port());
    let opening = tokio::spawn(RedisStore::open(options(&url)));
    let log = || server.command(&["ACL", "LOG"]).expect("a log").parts().len();
    while log() == 0 {
        assert!(!opening.is_finished());
        tokio::task::yield_now().await;
    }
    server.command(&["ACL", "SETUSER", "default", ">new"]).expect("a password");
    let store = opening.await.expect("a task").expect("the store");
    Owner::claim(&store, "s", 0).await.write(&store, step("a", 1)).await;
}

/// A server that has reached its limit of clients sends its reason, and immediately closes the connection. The error
/// contains the reason each time, with and without a login, although the end of the connection may arrive first.
#[tokio::test]
async fn server_with_too_many_clients_is_unavailable() {
    for password in [None, Some("secret")] {
        let options_of_server = ordain_servers::Options::new();
        let options_of_server = match password {
            Some(password) => options_of_server.password(password),
            None => options_of_server,
        };
        let server = Server::with(&options_of_server).expect("a server");
        let mut operator = server.connect().expect("a connection");
        operator.command(&["CONFIG", "SET", "maxclients", "1"]).expect("a limit");
        for _ in 0..20 {
            let words = unavailable(&options(&server.url())).await;
            assert!(words.contains("ERR max number of clients reached"), "{words}");
            assert!(!words.contains("secret"), "{words}");
        }
        operator.command(&["CONFIG", "SET", "maxclients", "100"]).expect("a limit");
        RedisStore::open(options(&server.url())).await.expect("the store");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn start_waits_for_a_stopped_server() {
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
    assert_eq!(dedicated.command(&["DBSIZE"]).int(), Some(0), "the store must write nothing");
    let reopened = RedisStore::open(dedicated.options.clone()).await.expect("a new store");
    Owner::claim(&reopened, "s", 0).await;
}

/// The store must refuse a URL that does not match the server. One URL names a Sentinel's master although the server is
/// a single server. Another URL has a database number that the server does not have.
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

/// The Sentinels monitor no master with the name in the URL. The error must contain the name and the next step, because
/// a running process reports the same error after an operator has renamed the master.
#[tokio::test]
async fn unknown_master_is_refused() {
    let group = Sentinel::start().expect("a group");
    let words =
        refused(&options(&format!("redis://127.0.0.1:{}/other", group.sentinel().port()))).await;
    assert!(
        words.contains("no master \"other\"") && words.contains("start Ordain again"),
        "{words}"
    );
}

#[tokio::test]
async fn two_servers_are_refused() {
    let one = Server::start(&[]).expect("a server");
    let other = Server::start(&[]).expect("a server");
    let both = format!("redis://127.0.0.1:{},127.0.0.1:{}", one.port(), other.port());
    let words = refused(&options(&both)).await;
    assert!(words.contains("name one"), "{words}");
}

/// A server may be a replica only for a moment, for example after a failover. A start must therefore wait until the
/// server is a master.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn start_waits_until_a_replica_is_a_master() {
    let master = Server::start(&[]).expect("a server");
    let replica = ordain_servers::Options::new().replica_of(&master);
    let replica = Server::with(&replica).expect("a replica");
    replica.until_in_step().expect("a replica in step");
    let words = unavailable(&options(&replica.url())).await;
    let named = format!("its master, 127.0.0.1:{}", master.port());
    assert!(words.contains("is a replica") && words.contains(&named), "{words}");
    let opening = tokio::spawn(RedisStore::open(options(&replica.url())));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!opening.is_finished());
    replica.command(&["REPLICAOF", "NO", "ONE"]).expect("a master");
    let store = opening.await.expect("a task").expect("the store");
    Owner::claim(&store, "s", 0).await.write(&store, step("a", 1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn start_waits_for_the_slots_of_a_cluster() {
    let lines = ordain_servers::Options::new().line("cluster-enabled yes");
    let server = Server::with(&lines).expect("a node");
    let opening = tokio::spawn(RedisStore::open(options(&server.url())));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!opening.is_finished());
    server.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).expect("all slots");
    let store = opening.await.expect("a task").expect("the store");
    Owner::claim(&store, "s", 0).await.write(&store, step("a", 1)).await;
}
