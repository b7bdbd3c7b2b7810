//! Tests of commits that wait for replicas.

use std::sync::Arc;

use ordain_core::CommitReply;
use ordain_store::RedisOptions;
use ordain_store::Store;
use ordain_store_redis::RedisStore;
use ordain_tests::conformance::Owner;

use super::own::{Own, Server, next_of, numbers, step, until_applied};
use super::work::Work;

/// Opens a store whose commits wait for this number of replicas.
async fn waiting(own: &Own, replicas: u32) -> RedisStore {
    let options = RedisOptions { replicas, ..own.options.clone() };
    RedisStore::open(options).await.expect("the store")
}

fn replica(own: &Own) -> Server {
    let options = ordain_servers::Options::new().replica_of(&own.server);
    Server::with(&options).expect("a replica")
}

#[tokio::test]
async fn commit_waits_for_replica() {
    let own = Own::start().await;
    let replica = replica(&own);
    let store = waiting(&own, 1).await;
    assert!(
        store.durability().description.contains("until a replica has it"),
        "{:?}",
        store.durability()
    );
    let mut owner = Owner::claim(&store, "s", 0).await;
    owner.write(&store, step("a", 1)).await;
    let on_replica = |key: &str| {
        let name = own.name(owner.shard(key), "data:s");
        replica.command(&["HEXISTS", &name, &format!("j{key}")]).expect("an answer").int()
            == Some(1)
    };
    assert!(on_replica("a"), "the replica must have an answered commit");

    replica.pause().expect("a pause");
    let batch = owner.batch(vec![step("a", 2)]);
    for _ in 0..2 {
        assert_eq!(owner.send(&store, &batch).await, CommitReply::Unknown);
    }
    assert_eq!(next_of(&own.store, "a").await, 3, "the master has the commit");
    replica.resume().expect("a resumed replica");
    until_applied(&store, &owner, &batch).await;
    assert_eq!(numbers(&store, &owner, "a").await, [1, 2]);
    owner.write(&store, step("a", 3)).await;
}

#[tokio::test]
async fn commit_with_too_few_replicas_is_not_answered() {
    let own = Own::start().await;
    let _one = replica(&own);
    let store = waiting(&own, 2).await;
    assert!(store.durability().description.contains("only 1 now"), "{:?}", store.durability());
    let mut owner = Owner::claim(&store, "s", 0).await;
    let batch = owner.batch(vec![step("a", 1)]);
    assert_eq!(owner.send(&store, &batch).await, CommitReply::Unknown);
    let _other = replica(&own);
    until_applied(&store, &owner, &batch).await;
    assert_eq!(numbers(&store, &owner, "a").await, [1]);
}

/// The server loses its scripts, the connection closes, and the replica pauses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_commits_continue_after_faults() {
    let own = Own::start().await;
    let replica = replica(&own);
    let store = Arc::new(waiting(&own, 1).await);
    let work = Work::start(&store).await;
    for round in 0..3 {
        work.until_more(20);
        own.command(&["SCRIPT", "FLUSH"]);
        work.until_more(20);
        own.command(&["CLIENT", "KILL", "TYPE", "normal"]);
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
