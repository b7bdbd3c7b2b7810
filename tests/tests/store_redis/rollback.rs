//! Tests of a server that has lost answered commits, for example after the restore of a backup, or because a disk
//! confirmed a write too early.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ordain_core::{Batch, CommitReply, Event, EventDigests, EventParts, shard_of};
use ordain_servers::{Cluster, Options, Proxy};
use ordain_store::{
    AssignGroup, AssignGroupReply, AssignItem, AssignItemReply, AssignReply, AssignRequest,
    Destination, DestinationRules, KeyListing, Mark, MarkStore, MessageLog, NumberingSettings,
    OutboxChunk, OutboxPosition, RedisOptions, Store,
};
use ordain_store_redis::RedisStore;
use ordain_tests::conformance::{Owner, commit_number};

use super::dedicated::{DedicatedStore, next_of, step, until_answered, until_applied};
use super::support::options;

/// Sends a commit to a store that has gone back in time. Returns the two fields of the reply
/// [`CommitReply::RolledBack`]. Checks that the store has written nothing.
async fn expect_rolled_back(
    dedicated: &DedicatedStore,
    owner: &mut Owner,
    sequence: u64,
) -> (String, Option<u64>) {
    let before = dedicated.digest();
    let batch = owner.batch(vec![step("a", sequence)]);
    let reply = until_answered(&dedicated.store, owner, &batch).await;
    let CommitReply::RolledBack { found, last } = reply else { panic!("{reply:?}") };
    assert_eq!(dedicated.digest(), before, "the store must write nothing");
    (found, last)
}

#[tokio::test]
async fn lost_commits_are_detected_by_next_commit() {
    let dedicated = DedicatedStore::start().await;
    let mut owner = Owner::claim(&dedicated.store, "s", 0).await;
    owner.write(&dedicated.store, step("a", 1)).await;
    let snapshot = dedicated.server.snapshot().expect("a snapshot");
    for sequence in 2..=4 {
        owner.write(&dedicated.store, step("a", sequence)).await;
    }
    dedicated.server.go_back(&snapshot).expect("an earlier time");
    let reply = expect_rolled_back(&dedicated, &mut owner, 5).await;
    assert_eq!(reply, ("the store's last commit is number 1".to_owned(), Some(1)));
    // Commits in another shard, which lost nothing, must continue.
    let other = (0..).map(|number| format!("other-{number}"));
    let other = other.into_iter().find(|key| owner.shard(key) != owner.shard("a"));
    let other = other.expect("a key of another shard");
    owner.write(&dedicated.store, step(&other, 1)).await;
    assert_eq!(next_of(&dedicated.store, "a").await, 2);
}

/// The server loses only the last commit. The owner sends the same commit again, and the store must apply it.
#[tokio::test]
async fn lost_last_commit_is_applied_again() {
    let dedicated = DedicatedStore::start().await;
    let mut owner = Owner::claim(&dedicated.store, "s", 0).await;
    owner.write(&dedicated.store, step("a", 1)).await;
    let snapshot = dedicated.server.snapshot().expect("a snapshot");
    let batch = owner.batch(vec![step("a", 2)]);
    until_applied(&dedicated.store, &owner, &batch).await;
    dedicated.server.go_back(&snapshot).expect("an earlier time");
    until_applied(&dedicated.store, &owner, &batch).await;
    assert_eq!(next_of(&dedicated.store, "a").await, 3);
}

#[tokio::test]
async fn lost_claim_is_detected() {
    let dedicated = DedicatedStore::start().await;
    let empty = dedicated.server.snapshot().expect("a snapshot");
    let mut first = Owner::claim(&dedicated.store, "s", 0).await;
    first.write(&dedicated.store, step("a", 1)).await;
    let claimed = dedicated.server.snapshot().expect("a snapshot");

    // The server goes back to a time before the first claim.
    dedicated.server.go_back(&empty).expect("an earlier time");
    let reply = expect_rolled_back(&dedicated, &mut first, 2).await;
    assert_eq!(reply, ("the shard has lost the claim of this owner".to_owned(), None));

    // The server goes back to a time at which it had the claim of an earlier owner.
    dedicated.server.go_back(&claimed).expect("another time");
    let reopened = RedisStore::open(dedicated.options.clone()).await.expect("the store");
    let mut second = Owner::claim(&reopened, "s", 0).await;
    assert_eq!((second.claim.epoch, commit_number(&second, "a")), (2, 1));
    second.write(&reopened, step("a", 2)).await;
    dedicated.server.go_back(&claimed).expect("an earlier time");
    let reply = expect_rolled_back(&dedicated, &mut second, 3).await;
    let earlier = "the shard has the claim of an earlier owner (epoch 1, not 2)";
    assert_eq!(reply, (earlier.to_owned(), None));

    // After the server has gone back, another owner gets the same epoch as the second owner.
    let reopened = RedisStore::open(dedicated.options.clone()).await.expect("the store");
    let third = Owner::claim(&reopened, "s", 0).await;
    assert_eq!(third.claim.epoch, second.claim.epoch);
    assert_ne!(third.claim.random, second.claim.random);
    let reply = expect_rolled_back(&dedicated, &mut second, 3).await;
    assert_eq!(reply, ("the shard has the claim of another owner in epoch 2".to_owned(), None));
    let found = dedicated.store.key("s", "a").await.expect("a read").expect("a key record");
    assert_eq!(found.0.record.map(|record| record.next), Ok(2));
}

/// A connection breaks, and the store replaces it. Until the caller knows of the break, the store must write no
/// checkpoint of the caller, because the server may have lost data.
#[tokio::test]
async fn checkpoint_waits_until_owner_knows_of_reconnect() {
    let dedicated = DedicatedStore::start().await;
    let store = &dedicated.store;
    let owner = Owner::claim(store, "s", 0).await;
    let put = async |disconnects, value: &'static str| {
        let mark = Mark { name: "m".into(), value: value.into() };
        let put = store.put_checkpoint(&owner.partition, owner.claim, disconnects, &mark).await;
        (put.expect("an answer"), store.mark("m").await.expect("a mark"))
    };
    let before = store.disconnects();
    assert_eq!(put(before, "1").await, (true, Some("1".into())));
    dedicated.server.restart().expect("a server");
    // The first call finds the broken connection. The read of the mark opens a new connection.
    for value in ["2", "3"] {
        assert_eq!(put(before, value).await, (false, Some("1".into())));
    }
    assert_eq!(put(store.disconnects(), "4").await, (true, Some("4".into())));
}

/// In a Cluster, the connections of commits that wait for replicas share one count of broken connections with all other
/// connections. After a connection has broken, the store must still write checkpoints of a caller that passes the new
/// count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checkpoint_is_written_in_a_cluster_after_a_broken_connection() {
    let mut cluster = Cluster::behind_proxies(3, &Options::new()).expect("a Cluster");
    cluster.add_replicas().expect("replicas");
    let options = RedisOptions { replicas: 1, ..options(&cluster.urls()[0]) };
    let store = RedisStore::open(options).await.expect("the store");
    let owner = Owner::claim(&store, "s", 0).await;
    let mark = Mark { name: "m".into(), value: "1".into() };
    let put = async |disconnects| {
        let put = store.put_checkpoint(&owner.partition, owner.claim, disconnects, &mark).await;
        put.expect("an answer")
    };
    let before = store.disconnects();
    assert!(put(before).await);
    cluster.proxies().iter().for_each(Proxy::cut);
    let pause = || tokio::time::sleep(Duration::from_millis(10));
    let is_written_again = async {
        while store.disconnects() == before {
            pause().await;
        }
        assert!(!put(before).await);
        // Each of the first calls may find another broken connection.
        while !put(store.disconnects()).await {
            pause().await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), is_written_again).await.expect("a checkpoint");
}

/// The server loses the number of an event and the commit that settled the event. The owner repeats the commit. When
/// the event is published again, it must get its earlier number, although the key record then has a higher sequence.
#[tokio::test]
async fn lost_number_is_given_again_after_commits_were_repeated() {
    let dedicated = DedicatedStore::start().await;
    let store = &dedicated.store;
    let to = Destination::Exchange("next".into());
    let mut owner = Owner::claim(store, "s", 0).await;
    assert_eq!(assign(&dedicated, &to, "1", &["s"]).await, AssignItemReply::New(1));
    owner.write(store, step("a", 1)).await;
    let snapshot = dedicated.server.snapshot().expect("a snapshot");
    let mut lost = Vec::new();
    for sequence in 2..=3 {
        let id = sequence.to_string();
        assert_eq!(assign(&dedicated, &to, &id, &["s"]).await, AssignItemReply::New(sequence));
        let batch = owner.batch(vec![step("a", sequence)]);
        until_applied(store, &owner, &batch).await;
        lost.push(batch);
    }
    dedicated.server.go_back(&snapshot).expect("an earlier time");
    for batch in lost {
        let batch = Arc::new(Batch { repeated: true, ..(*batch).clone() });
        until_applied(store, &owner, &batch).await;
    }
    assert_eq!(next_of(store, "a").await, 4);
    assert_eq!(assign(&dedicated, &to, "2", &["s"]).await, AssignItemReply::New(2));
    assert_eq!(assign(&dedicated, &to, "3", &["s"]).await, AssignItemReply::New(3));
    // Even after the ids of the lost events have expired, the store must not assign a number of a settled event.
    owner.write(store, step("a", 4)).await;
    let retain = NumberingSettings::default().retain;
    dedicated.options.clock_offset_ms.fetch_add(2 * retain, Ordering::Relaxed);
    let elsewhere = AssignItemReply::NumberedElsewhere(5);
    assert_eq!(assign(&dedicated, &to, "5", &["s"]).await, elsewhere);
}

/// The server loses the numbers of events and the commits that settled the events, and the owner repeats the commits.
/// The record of the key has the digests of the settled events. An event with another digest gets no lost number.
#[tokio::test]
async fn other_event_gets_no_lost_number_after_commits_were_repeated() {
    let dedicated = DedicatedStore::start().await;
    let store = &dedicated.store;
    let to = Destination::Exchange("next".into());
    let mut owner = Owner::claim(store, "s", 0).await;
    assert_eq!(assign(&dedicated, &to, "1", &["s"]).await, AssignItemReply::New(1));
    owner.write(store, step("a", 1)).await;
    let snapshot = dedicated.server.snapshot().expect("a snapshot");
    let mut lost = Vec::new();
    for sequence in 2..=3 {
        let id = sequence.to_string();
        assert_eq!(assign(&dedicated, &to, &id, &["s"]).await, AssignItemReply::New(sequence));
        let mut write = step("a", sequence);
        let contents = (2..=sequence).map(|settled| published(&settled.to_string()).content());
        write.record.digests = contents.map(EventDigests::short).collect();
        let batch = owner.batch(vec![write]);
        until_applied(store, &owner, &batch).await;
        lost.push(batch);
    }
    dedicated.server.go_back(&snapshot).expect("an earlier time");
    for batch in lost {
        let batch = Arc::new(Batch { repeated: true, ..(*batch).clone() });
        until_applied(store, &owner, &batch).await;
    }
    for sequence in 2..=3 {
        let elsewhere = AssignItemReply::NumberedElsewhere(4);
        assert_eq!(assign(&dedicated, &to, "other", &["s"]).await, elsewhere);
        let id = sequence.to_string();
        assert_eq!(assign(&dedicated, &to, &id, &["s"]).await, AssignItemReply::New(sequence));
    }
    assert_eq!(assign(&dedicated, &to, "other", &["s"]).await, AssignItemReply::New(4));
}

/// The server loses the numbers of events that still wait in the broker, but no commit. The owner commits these events
/// after the loss, for the first time, so no owner repeats a commit in the shard. The store then refuses to number the
/// events, until a call that publishes lost events again gives the lost numbers to the same events.
#[tokio::test]
async fn lost_number_of_a_late_commit_is_given_again_on_request() {
    let dedicated = DedicatedStore::start().await;
    let store = &dedicated.store;
    let to = Destination::Exchange("next".into());
    let mut owner = Owner::claim(store, "s", 0).await;
    assert_eq!(assign(&dedicated, &to, "1", &["s"]).await, AssignItemReply::New(1));
    owner.write(store, step("a", 1)).await;
    let snapshot = dedicated.server.snapshot().expect("a snapshot");
    for sequence in 2..=3 {
        let id = sequence.to_string();
        assert_eq!(assign(&dedicated, &to, &id, &["s"]).await, AssignItemReply::New(sequence));
    }
    dedicated.server.go_back(&snapshot).expect("an earlier time");
    for sequence in 2..=3 {
        let mut write = step("a", sequence);
        let contents = (2..=sequence).map(|settled| published(&settled.to_string()).content());
        write.record.digests = contents.map(EventDigests::short).collect();
        let batch = owner.batch(vec![write]);
        until_applied(store, &owner, &batch).await;
    }
    let name = dedicated.name(shard_of("a", store.shards()), "data:s");
    assert_eq!(dedicated.command(&["HEXISTS", &name, "r"]).int(), Some(0));
    let elsewhere = AssignItemReply::NumberedElsewhere(4);
    assert_eq!(assign(&dedicated, &to, "2", &["s"]).await, elsewhere);
    let unproven = AssignItemReply::UnprovenRepeat(2);
    assert_eq!(reassign(&dedicated, &to, "3", &["s"]).await, unproven);
    for sequence in 2..=3 {
        let id = sequence.to_string();
        assert_eq!(reassign(&dedicated, &to, &id, &["s"]).await, AssignItemReply::New(sequence));
    }
    assert_eq!(assign(&dedicated, &to, "2", &["s"]).await, AssignItemReply::Known(2));
    assert_eq!(assign(&dedicated, &to, "4", &["s"]).await, AssignItemReply::New(4));
}

/// Publishes an event of key `a` without a number. The streams `readers` read the destination.
async fn assign(
    dedicated: &DedicatedStore,
    to: &Destination,
    id: &str,
    readers: &[&str],
) -> AssignItemReply {
    assign_event(dedicated, to, published(id), readers, false).await
}

/// Publishes an event of key `a` again, because the store lost its number.
async fn reassign(
    dedicated: &DedicatedStore,
    to: &Destination,
    id: &str,
    readers: &[&str],
) -> AssignItemReply {
    assign_event(dedicated, to, published(id), readers, true).await
}

/// Makes an event of key `a` without a number. The data of the event is its id.
fn published(id: &str) -> Arc<Event> {
    let data = id.as_bytes();
    Arc::new(Event::new(&EventParts { key: "a", id, data, ..EventParts::default() }))
}

async fn assign_event(
    dedicated: &DedicatedStore,
    to: &Destination,
    event: Arc<Event>,
    readers: &[&str],
    reuses_lost_numbers: bool,
) -> AssignItemReply {
    let items = vec![AssignItem { event, partition: 0, number: 0 }];
    let request = AssignRequest {
        destination: to.clone(),
        shard: shard_of("a", dedicated.store.shards()),
        rules: DestinationRules {
            numbering: Some(NumberingSettings::default()),
            queue_limit: None,
        },
        witness: None,
        call: None,
        readers: readers.iter().map(|reader| (*reader).into()).collect(),
        reuses_lost_numbers,
        groups: vec![AssignGroup {
            origin: None,
            chunks: vec![OutboxChunk { position: OutboxPosition::default(), items }],
        }],
    };
    match dedicated.store.assign(Arc::new(request)).await.expect("a number") {
        AssignReply::Groups(replies, _) => match &replies[..] {
            [AssignGroupReply::Done(assigned)] => assigned[0],
            other => panic!("{other:?}"),
        },
        AssignReply::Full => panic!("an exchange has no queue"),
    }
}

/// A repeated commit leaves its time in the shard. A stream without any other data must not be listed.
#[tokio::test]
async fn stream_without_data_is_not_listed_after_a_repeated_commit() {
    let dedicated = DedicatedStore::start().await;
    let mut owner = Owner::claim(&dedicated.store, "s", 0).await;
    let mut batch = Arc::unwrap_or_clone(owner.batch(vec![step("a", 1)]));
    batch.writes.clear();
    batch.repeated = true;
    let name = dedicated.name(batch.shard, "data:s");
    until_applied(&dedicated.store, &owner, &Arc::new(batch)).await;
    assert_eq!(dedicated.command(&["HEXISTS", &name, "r"]).int(), Some(1));
    assert!(dedicated.store.streams().await.expect("the streams").is_empty());
}
