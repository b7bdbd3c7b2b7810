//! Tests of a server that loses its cached Lua scripts, as after `SCRIPT FLUSH` or a restart.

use std::sync::Arc;
use std::time::Duration;

use ordain_store::{KeyFilter, KeyListing, LetterListing, SpillArea};
use ordain_tests::conformance::{Owner, event};

use super::dedicated::{DedicatedStore, next_of, numbers, step};
use super::work::ShardWorkers;

#[tokio::test]
async fn every_call_loads_its_script_again() {
    let dedicated = DedicatedStore::start().await;
    let store = &dedicated.store;
    let flush = || dedicated.command(&["SCRIPT", "FLUSH", "SYNC"]);
    flush();
    let mut owner = Owner::claim(store, "s", 0).await;
    let partition = owner.partition.clone();
    let key = "a".into();
    flush();
    let mut write = step("a", 1);
    write.spill = vec![(3, event("a", 3, "held"))];
    write.record.spilled.add(3);
    write.due_in = Some(0);
    owner.write(store, write).await;
    flush();
    assert_eq!(next_of(store, "a").await, 2);
    flush();
    assert_eq!(owner.spilled(store, "a", 0).await, [3]);
    flush();
    let found = store.find_missing(&partition, &key, &[3..=3], 0).await.expect("a search");
    assert_eq!(found.expect("events").events.len(), 1);
    flush();
    assert_eq!(owner.due(store, 10).await.0, ["a"]);
    flush();
    let filter = KeyFilter { limit: 10, ..KeyFilter::default() };
    assert_eq!(store.keys("s", &filter).await.expect("keys").rows.len(), 1);
    flush();
    assert_eq!(store.letters("s", None, None, 10).await.expect("letters").rows, []);
    let other = Owner::claim(store, "s", 1).await;
    flush();
    assert_eq!(other.load(store, "a").await.expect("a key record").record.takeovers, 1);
    assert_eq!(numbers(store, &owner, "a").await, [1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_continue_while_scripts_are_flushed() {
    let DedicatedStore { server, store, .. } = DedicatedStore::start().await;
    let store = Arc::new(store);
    let work = ShardWorkers::start(&store).await;
    let mut connection = server.connect().expect("a connection");
    for _ in 0..200 {
        connection.command(&["SCRIPT", "FLUSH", "SYNC"]).expect("an answer");
        std::thread::sleep(Duration::from_millis(1));
    }
    work.until_more(10);
    work.finish(&*store).await;
}
