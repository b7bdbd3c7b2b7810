//! Tests of a server that refuses writes, because it has no free memory or cannot write its snapshot. Such a server
//! still serves requests that need no memory. The module also tests a server that evicts keys when its memory is full.

use std::time::Duration;

use ordain_core::{CommitReply, StateUpdate};
use ordain_store::{
    KeyFilter, KeyListing, LetterListing, Mark, MarkStore, Outbox, RecordStore, Store as _,
    StoreError,
};
use ordain_store_redis::RedisStore;
use ordain_tests::conformance::{Owner, event, lease};

use super::dedicated::{DedicatedStore, Server, next_of, numbers, step, until_applied};
use super::support::options;

/// Sets the memory limit of the server; 0 is no limit.
fn set_memory_limit(dedicated: &DedicatedStore, bytes: u64) {
    dedicated.command(&["CONFIG", "SET", "maxmemory", &bytes.to_string()]);
}

/// Returns whether a request still has no answer after 200 ms, because the store retries it.
async fn is_unanswered(request: impl Future) -> bool {
    tokio::time::timeout(Duration::from_millis(200), request).await.is_err()
}

#[tokio::test]
async fn full_server_writes_no_part_of_commit_and_serves_reads() {
    let dedicated = DedicatedStore::start().await;
    let store = &dedicated.store;
    let mut owner = Owner::claim(store, "s", 0).await;
    let keys = owner.keys(3);
    let mut write = step(&keys[0], 1);
    write.spill = vec![(3, event(&keys[0], 3, "held"))];
    write.record.spilled.add(3);
    owner.write(store, write).await;
    owner.write(store, step(&keys[0], 2)).await;

    let epoch = lease(store, &owner.partition).await.expect("a lease");
    set_memory_limit(&dedicated, 1);
    let before = dedicated.digest();
    let batch = owner.batch(vec![step(&keys[0], 3), step(&keys[1], 1), step(&keys[2], 1)]);
    for _ in 0..3 {
        assert_eq!(owner.send(store, &batch).await, CommitReply::Unknown);
    }
    let mark = [Mark { name: "m".to_owned(), value: "1".into() }];
    assert!(is_unanswered(store.put_marks(&mark)).await);
    assert!(is_unanswered(store.claim(&owner.partition, epoch)).await);
    assert_eq!(dedicated.digest(), before);

    assert_eq!(owner.load(store, &keys[0]).await.expect("a key record").record.next, 3);
    assert_eq!(owner.load(store, &keys[1]).await, None);
    assert_eq!(owner.spilled(store, &keys[0], 0).await, [] as [u64; 0]);
    assert_eq!(owner.due(store, 10).await, (vec![], None));
    let filter = KeyFilter { limit: 10, ..KeyFilter::default() };
    assert_eq!(store.keys("s", &filter).await.expect("keys").rows.len(), 1);
    assert_eq!(store.letters("s", None, None, 10).await.expect("letters").rows, []);
    assert_eq!(store.mark("m").await.expect("no mark"), None);
    assert_eq!(numbers(store, &owner, &keys[0]).await, [1, 2]);
    let shard = owner.shard(&keys[0]);
    store
        .outbox_done(&owner.partition, owner.claim, shard, 1, &[])
        .await
        .expect("a removal without new memory");
    assert_eq!(numbers(store, &owner, &keys[0]).await, [2]);

    set_memory_limit(&dedicated, 0);
    let applied = until_applied(store, &owner, &batch).await;
    assert_eq!(applied.refused, []);
    assert_eq!(owner.send(store, &batch).await, CommitReply::Applied(applied));
    assert_eq!(next_of(store, &keys[0]).await, 4);
    assert_eq!(next_of(store, &keys[2]).await, 2);
    assert_eq!(numbers(store, &owner, &keys[0]).await, [2, 3]);
}

/// The server reaches its memory limit while values grow. Each commit must then be complete or absent.
#[tokio::test]
async fn commit_that_reaches_the_memory_limit_is_complete_or_absent() {
    let dedicated = DedicatedStore::start().await;
    let store = &dedicated.store;
    let mut owner = Owner::claim(store, "s", 0).await;
    let keys = owner.keys(4);
    let info = dedicated.server.info("memory").expect("INFO");
    let used: u64 = info["used_memory"].parse().expect("a number");
    set_memory_limit(&dedicated, used + (12 << 20));
    let mut sequence = 0;
    let refused = loop {
        sequence += 1;
        let writes = keys.iter().map(|key| {
            let mut write = step(key, sequence);
            write.state = StateUpdate::Put(vec![7; 100_000 * sequence as usize].into());
            write
        });
        let batch = owner.batch(writes.collect());
        match owner.send(store, &batch).await {
            CommitReply::Applied(applied) => assert_eq!(applied.refused, []),
            CommitReply::Unknown => break batch,
            other => panic!("{other:?}"),
        }
        assert!(sequence < 100, "the limit does not hold");
    };
    assert!(sequence > 2, "{sequence}");
    for key in &keys {
        assert_eq!(next_of(store, key).await, sequence, "{key}");
    }
    set_memory_limit(&dedicated, 0);
    until_applied(store, &owner, &refused).await;
    for key in &keys {
        assert_eq!(next_of(store, key).await, sequence + 1, "{key}");
    }
    assert_eq!(numbers(store, &owner, &keys[0]).await, (1..=sequence).collect::<Vec<_>>());
}

#[tokio::test]
async fn evicting_server_is_refused() {
    let dedicated = DedicatedStore::start().await;
    for policy in ["allkeys-lru", "volatile-ttl"] {
        dedicated.command(&["CONFIG", "SET", "maxmemory-policy", policy]);
        let opened = RedisStore::open(dedicated.options.clone()).await;
        let Err(StoreError::Unusable(words)) = opened.map(drop) else { panic!("{policy}") };
        assert!(words.contains(policy) && words.contains("maxmemory-policy noeviction"), "{words}");
    }
    dedicated.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    assert!(RedisStore::open(dedicated.options.clone()).await.is_ok());
}

/// If an owner loads key records of another partition, the store moves them to the owner's partition. The move is a
/// write, so the load must wait for free memory.
#[tokio::test]
async fn load_that_takes_over_waits_for_memory() {
    let dedicated = DedicatedStore::start().await;
    let store = &dedicated.store;
    Owner::claim(store, "s", 0).await.write(store, step("a", 1)).await;
    let new = Owner::claim(store, "s", 1).await;
    set_memory_limit(&dedicated, 1);
    assert!(is_unanswered(store.load(&new.partition, &["a".into()], usize::MAX)).await);
    set_memory_limit(&dedicated, 0);
    assert_eq!(new.load(store, "a").await.expect("a key record").record.takeovers, 1);
}

/// A server that cannot write its snapshot refuses writes and serves reads. The check of the store must fail with the
/// server's reason, until the server has written a snapshot.
#[tokio::test]
async fn failed_snapshot_is_reported_by_the_check_of_writes() {
    let lines = ["dbfilename blocked.rdb", "save 3600 1"];
    let server = Server::start(&lines).expect("a server");
    let store = RedisStore::open(options(&server.url())).await.expect("the store");
    store.check_writable().await.expect("a write");
    let blocking = server.data().join("blocked.rdb");
    std::fs::create_dir_all(blocking.join("inside")).expect("a folder in place of the snapshot");
    server.command(&["BGSAVE"]).expect("a snapshot");
    ordain_servers::wait_until("a failed snapshot", || {
        let info = server.info("persistence")?;
        Ok(info.get("rdb_last_bgsave_status").is_some_and(|status| status == "err"))
    })
    .expect("a failed snapshot");
    let refused = store.check_writable().await;
    let Err(StoreError::Unavailable(words)) = refused else { panic!("{refused:?}") };
    assert!(words.starts_with("MISCONF "), "{words}");
    assert_eq!(store.mark("m").await.expect("a read"), None);
    std::fs::remove_dir_all(&blocking).expect("the folder");
    server.command(&["SAVE"]).expect("a snapshot");
    store.check_writable().await.expect("a write again");
}
