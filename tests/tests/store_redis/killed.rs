//! Tests of a server that is killed at random moments and started again. With `appendfsync always`, no answered commit
//! may be lost.

use std::sync::Arc;

use ordain_core::CommitReply;
use ordain_tests::conformance::Owner;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::dedicated::{DedicatedStore, Server, step, until_answered};
use super::work::{ShardWorkers, pause};

const KILLS: usize = 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answered_commits_survive_killed_server() {
    let DedicatedStore { server, store, .. } = DedicatedStore::start().await;
    let store = Arc::new(store);
    let seed = rand::random();
    println!("kills of seed {seed}");
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let work = ShardWorkers::start(&store).await;
    for _ in 0..KILLS {
        work.until_more(20);
        pause(&mut random, 0..60);
        server.restart().expect("a server that comes back");
    }
    work.until_more(20);
    // A lost commit would also have made the next commit of its worker fail.
    work.finish(&*store).await;
}

/// A server without persistence is empty after a restart. The store must report the loss, and must not create a new
/// store on the empty server.
#[tokio::test]
async fn server_without_persistence_is_detected() {
    let options = ordain_servers::Options::new().without_persistence();
    let dedicated = DedicatedStore::on(Server::with(&options).expect("a server")).await;
    let mut owner = Owner::claim(&dedicated.store, "s", 0).await;
    owner.write(&dedicated.store, step("a", 1)).await;
    dedicated.server.restart().expect("a server that comes back");
    let batch = owner.batch(vec![step("a", 2)]);
    let reply = until_answered(&dedicated.store, &owner, &batch).await;
    let CommitReply::RolledBack { found, last } = reply else { panic!("{reply:?}") };
    assert_eq!((&*found, last), ("the shard has lost the claim of this owner", None));
    assert_eq!(dedicated.command(&["EXISTS", &dedicated.name(0, "store")]).int(), Some(0));
}
