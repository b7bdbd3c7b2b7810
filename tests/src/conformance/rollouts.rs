//! Tests of rollouts of handler versions. After a write of a key under a rollout, the store refuses writes of this key
//! under an older rollout.

use std::sync::Arc;

use ordain_core::{Build, FileDigest, KeyRecord, Rollout, WriteCondition, WriteRefusal};
use ordain_store::{HeartbeatRequest, InstanceId, Store};

use super::leases::heartbeat;
use super::{Fixture, Owner, record_write};

fn rollout(number: u64, version: &str) -> Rollout {
    let digest = FileDigest([number as u8; 32]);
    Rollout { number, build: Build { version: version.into(), digest } }
}

/// The store refuses the rollout unless `last` is the newest rollout of the stream. Returns whether `next` is now the
/// newest rollout.
async fn start_rollout(
    store: &dyn Store,
    stream: &str,
    last: Option<&Rollout>,
    next: &Rollout,
) -> bool {
    store.start_rollout(stream, last, next).await.expect("an answer")
}

/// An instance that starts a rollout names the newest rollout that it has read. If the named rollout is not the newest
/// rollout of the stream, the store refuses the new rollout.
pub async fn rollout_based_on_an_outdated_one_is_refused(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let first = rollout(1, "orders@1.0.0");
    let second = rollout(2, "orders@2.0.0");
    assert!(
        !start_rollout(store, "s", Some(&first), &second).await,
        "the stream has no rollout yet, so the store must refuse"
    );
    assert!(start_rollout(store, "s", None, &first).await);
    assert!(
        start_rollout(store, "s", None, &first).await,
        "the repetition after a lost reply must succeed"
    );
    assert!(!start_rollout(store, "s", None, &rollout(1, "orders@1.5.0")).await);
    assert!(start_rollout(store, "s", Some(&first), &second).await);
    assert!(!start_rollout(store, "s", Some(&first), &rollout(3, "orders@3.0.0")).await);
    // A rollout of another stream is independent.
    assert!(start_rollout(store, "a:b 1", None, &rollout(9, "orders@9.0.0")).await);
    let versions = store.table().await.expect("a table").versions;
    assert_eq!(versions.len(), 2);
    assert_eq!((&*versions["s"], &*versions["a:b 1"]), (&second, &rollout(9, "orders@9.0.0")));
}

/// A running instance gets a new rollout in the reply to its heartbeat. An instance that starts after all other
/// instances have ended reads the same rollout.
pub async fn rollout_reaches_running_and_later_instances(fixture: &mut impl Fixture) {
    let id = InstanceId::random();
    let lease = std::time::Duration::from_mins(1);
    let request =
        |known_version| HeartbeatRequest { id, info: "one", report: None, lease, known_version };
    let store = fixture.store();
    let table = store
        .heartbeat(request(0))
        .await
        .expect("the heartbeat succeeds")
        .table
        .expect("the table is new");
    let first = rollout(1, "orders@1.0.0");
    assert!(start_rollout(store, "s", None, &first).await);
    let changed = store
        .heartbeat(request(table.membership_version))
        .await
        .expect("the heartbeat succeeds")
        .table
        .expect("a change");
    assert_eq!(*changed.versions["s"], first);
    store.flush().await.expect("flushed");
    store.remove_instance(id).await.expect("removed");
    fixture.reopen().await;
    let found = fixture.store().table().await.expect("a table").versions;
    assert_eq!(*found["s"], first);
    assert!(!start_rollout(fixture.store(), "s", None, &rollout(2, "orders@2.0.0")).await);
    assert!(start_rollout(fixture.store(), "s", Some(&first), &rollout(2, "orders@2.0.0")).await);
}

/// The store loses a rollout, and then accepts a rollout with the same number and another build. An instance that has
/// read only the lost rollout cannot replace the new rollout. At the next heartbeat of this instance, the store returns
/// the same rollout to it as to all other instances.
pub async fn instances_agree_after_a_rollout_was_lost(fixture: &mut impl Fixture) {
    let [one, other] = [InstanceId::random(), InstanceId::random()];
    let first = rollout(1, "orders@1.0.0");
    let store = fixture.store();
    assert!(start_rollout(store, "s", None, &first).await);
    store.flush().await.expect("flushed");
    fixture.take_snapshot().await;

    let store = fixture.store();
    let lost = rollout(2, "orders@2.0.0");
    assert!(start_rollout(store, "s", Some(&first), &lost).await);
    let known = heartbeat(store, one, "one", 0).await.expect("the table is new");
    assert_eq!(*known.versions["s"], lost);
    store.flush().await.expect("flushed");

    fixture.go_back().await;
    let store = fixture.store();
    assert_eq!(*store.table().await.expect("a table").versions["s"], first);
    let next = rollout(3, "orders@2.0.0");
    assert!(
        !start_rollout(store, "s", Some(&lost), &next).await,
        "the store lacks the last rollout that the caller names, so it must refuse"
    );
    // The rollout `again` has the number and the handler version of `lost`, but the file of the handler has other
    // content.
    let again = Rollout { number: 2, build: rollout(9, "orders@2.0.0").build };
    assert!(start_rollout(store, "s", Some(&first), &again).await);
    assert!(
        !start_rollout(store, "s", Some(&lost), &next).await,
        "rollout 2 in the store has another build, so the store must refuse"
    );
    for (id, info, version) in [(one, "one", known.membership_version), (other, "other", 0)] {
        let table = heartbeat(store, id, info, version).await.expect("the table has changed");
        assert_eq!(*table.versions["s"], again, "{info}");
    }
    assert!(start_rollout(store, "s", Some(&again), &next).await);
    store.flush().await.expect("flushed");
    fixture.reopen().await;
    assert_eq!(*fixture.store().table().await.expect("a table").versions["s"], next);
}

/// After events of a key were executed under a rollout, the store accepts writes of the key only under this rollout or
/// a newer rollout.
pub async fn commit_under_an_older_rollout_is_refused(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut owner = Owner::claim(store, "s", 0).await;
    let record = |next, number: u64| KeyRecord {
        rollout: (number > 0).then(|| Arc::new(rollout(number, "orders@1.0.0"))),
        ..KeyRecord::new(next, 0)
    };
    owner.write(store, record_write("a", WriteCondition::Absent, record(2, 300))).await;
    for number in [0, 1, 299] {
        let older = record_write("a", WriteCondition::Next(2), record(3, number));
        let applied = owner.commit(store, vec![older]).await;
        assert_eq!(applied.refused, [(0, WriteRefusal::Version)], "rollout {number}");
    }
    owner.write(store, record_write("a", WriteCondition::Next(2), record(3, 300))).await;
    owner.write(store, record_write("a", WriteCondition::Next(3), record(4, 65_536))).await;
    let loaded = owner.load(store, "a").await.expect("a key record").record;
    assert_eq!((loaded.next, loaded.rollout), (4, record(4, 65_536).rollout));
}
