//! Rollouts of handler versions, and the commits that they prevent.

use std::sync::Arc;

use ordain_core::{Build, FileDigest, KeyRecord, Rollout, WriteCondition, WriteRefusal};
use ordain_store::{HeartbeatRequest, InstanceId, Store};

use super::{Fixture, Owner, fresh};

fn decided(generation: u64, version: &str) -> Rollout {
    let digest = FileDigest([generation as u8; 32]);
    Rollout { number: generation, build: Build { version: version.into(), digest } }
}

async fn decide(store: &dyn Store, stream: &str, before: u64, decided: &Rollout) -> bool {
    store.decide(stream, before, decided).await.expect("an answer")
}

/// An instance that has not seen the last rollout cannot start another one.
pub async fn one_decides_at_a_time(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let first = decided(1, "orders@1.0.0");
    let second = decided(2, "orders@2.0.0");
    assert!(!decide(store, "s", 1, &second).await, "no rollout with number 1 exists");
    assert!(decide(store, "s", 0, &first).await);
    assert!(decide(store, "s", 0, &first).await, "its answer was lost");
    assert!(!decide(store, "s", 0, &decided(1, "orders@1.5.0")).await);
    assert!(decide(store, "s", 1, &second).await);
    assert!(!decide(store, "s", 1, &decided(3, "orders@3.0.0")).await);
    // Rollouts of another stream.
    assert!(decide(store, "a:b 1", 0, &decided(9, "orders@9.0.0")).await);
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
    assert!(decide(store, "s", 0, &first).await);
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
    assert!(!decide(fixture.store(), "s", 0, &decided(2, "orders@2.0.0")).await);
    assert!(decide(fixture.store(), "s", 1, &decided(2, "orders@2.0.0")).await);
}

/// A key that was executed under a rollout continues under the same rollout or a newer rollout.
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
