//! Rollouts of handler versions. A rollout prevents commits under an older rollout.

use std::sync::Arc;

use ordain_core::{Build, FileDigest, KeyRecord, Rollout, WriteCondition, WriteRefusal};
use ordain_store::{HeartbeatRequest, InstanceId, Store};

use super::leases::beat;
use super::{Fixture, Owner, fresh};

fn decided(generation: u64, version: &str) -> Rollout {
    let digest = FileDigest([generation as u8; 32]);
    Rollout { number: generation, build: Build { version: version.into(), digest } }
}

async fn decide(
    store: &dyn Store,
    stream: &str,
    before: Option<&Rollout>,
    decided: &Rollout,
) -> bool {
    store.decide(stream, before, decided).await.expect("an answer")
}

/// An instance that has not seen the last rollout cannot start another one.
pub async fn one_decides_at_a_time(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let first = decided(1, "orders@1.0.0");
    let second = decided(2, "orders@2.0.0");
    assert!(!decide(store, "s", Some(&first), &second).await, "the stream has no rollout");
    assert!(decide(store, "s", None, &first).await);
    assert!(decide(store, "s", None, &first).await, "its answer was lost");
    assert!(!decide(store, "s", None, &decided(1, "orders@1.5.0")).await);
    assert!(decide(store, "s", Some(&first), &second).await);
    assert!(!decide(store, "s", Some(&first), &decided(3, "orders@3.0.0")).await);
    // A rollout of another stream is independent.
    assert!(decide(store, "a:b 1", None, &decided(9, "orders@9.0.0")).await);
    let versions = store.table().await.expect("a table").versions;
    assert_eq!(versions.len(), 2);
    assert_eq!((&*versions["s"], &*versions["a:b 1"]), (&second, &decided(9, "orders@9.0.0")));
}

/// Other instances learn of a rollout, and so does an instance that starts after all instances have left.
pub async fn decisions_are_told_and_stay(fixture: &mut impl Fixture) {
    let id = InstanceId::random();
    let lease = std::time::Duration::from_mins(1);
    let beat =
        |seen| HeartbeatRequest { id, info: "one", report: None, lease, known_version: seen };
    let store = fixture.store();
    let table = store.heartbeat(beat(0)).await.expect("a beat").table.expect("the table is new");
    let first = decided(1, "orders@1.0.0");
    assert!(decide(store, "s", None, &first).await);
    let told = store
        .heartbeat(beat(table.membership_version))
        .await
        .expect("a beat")
        .table
        .expect("a change");
    assert_eq!(*told.versions["s"], first);
    store.flush().await.expect("flushed");
    store.remove_instance(id).await.expect("forgotten");
    fixture.reopen().await;
    let found = fixture.store().table().await.expect("a table").versions;
    assert_eq!(*found["s"], first);
    assert!(!decide(fixture.store(), "s", None, &decided(2, "orders@2.0.0")).await);
    assert!(decide(fixture.store(), "s", Some(&first), &decided(2, "orders@2.0.0")).await);
}

/// The store loses a rollout, and another instance then starts a rollout with the same number and another build. An
/// instance that has read the lost rollout cannot replace the new rollout. At its next heartbeat, this instance gets
/// the same rollout as all others.
pub async fn a_lost_rollout_is_decided_again(fixture: &mut impl Fixture) {
    let [one, other] = [InstanceId::random(), InstanceId::random()];
    let first = decided(1, "orders@1.0.0");
    let store = fixture.store();
    assert!(decide(store, "s", None, &first).await);
    store.flush().await.expect("flushed");
    fixture.remember().await;

    let store = fixture.store();
    let lost = decided(2, "orders@2.0.0");
    assert!(decide(store, "s", Some(&first), &lost).await);
    let seen = beat(store, one, "one", 0).await.expect("the table is new");
    assert_eq!(*seen.versions["s"], lost);
    store.flush().await.expect("flushed");

    fixture.go_back().await;
    let store = fixture.store();
    assert_eq!(*store.table().await.expect("a table").versions["s"], first);
    let next = decided(3, "orders@2.0.0");
    assert!(!decide(store, "s", Some(&lost), &next).await, "the store lacks the lost rollout");
    // The handler version is the same, but its file has other content.
    let again = Rollout { number: 2, build: decided(9, "orders@2.0.0").build };
    assert!(decide(store, "s", Some(&first), &again).await);
    assert!(!decide(store, "s", Some(&lost), &next).await, "the number has another build");
    for (id, about, known) in [(one, "one", seen.membership_version), (other, "other", 0)] {
        let table = beat(store, id, about, known).await.expect("the table is another one");
        assert_eq!(*table.versions["s"], again, "{about}");
    }
    assert!(decide(store, "s", Some(&again), &next).await);
    store.flush().await.expect("flushed");
    fixture.reopen().await;
    assert_eq!(*fixture.store().table().await.expect("a table").versions["s"], next);
}

/// After a key was executed under a rollout, the store accepts commits of the key only under this rollout or a newer
/// one.
pub async fn an_older_decision_commits_nothing(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut owner = Owner::claim(store, "s", 0).await;
    let job = |next, generation: u64| KeyRecord {
        rollout: (generation > 0).then(|| Arc::new(decided(generation, "orders@1.0.0"))),
        ..KeyRecord::new(next, 0)
    };
    owner.write(store, fresh("a", WriteCondition::Absent, job(2, 300))).await;
    for generation in [0, 1, 299] {
        let older = fresh("a", WriteCondition::Next(2), job(3, generation));
        let applied = owner.commit(store, vec![older]).await;
        assert_eq!(applied.refused, [(0, WriteRefusal::Version)], "{generation}");
    }
    owner.write(store, fresh("a", WriteCondition::Next(2), job(3, 300))).await;
    owner.write(store, fresh("a", WriteCondition::Next(3), job(4, 65_536))).await;
    let loaded = owner.load(store, "a").await.expect("a key record").record;
    assert_eq!((loaded.next, loaded.rollout), (4, job(4, 65_536).rollout));
}
