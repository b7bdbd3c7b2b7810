//! Instances that join, leave or stop their heartbeats, and their leases.

use std::time::Duration;

use ordain_store::{HeartbeatRequest, InstanceId, LeaseReply, MembershipTable, Partition, Store};

use super::Fixture;

/// A lease that is much longer than a case takes.
const LEASE: Duration = Duration::from_mins(1);

pub(super) async fn beat(
    store: &dyn Store,
    id: InstanceId,
    about: &str,
    seen: u64,
) -> Option<MembershipTable> {
    let beat =
        HeartbeatRequest { id, info: about, report: None, lease: LEASE, known_version: seen };
    let beaten = store.heartbeat(beat).await.expect("a beat");
    assert!(beaten.valid_for.is_none_or(|lasts| lasts <= LEASE && lasts > LEASE / 2), "{beaten:?}");
    beaten.table
}

pub(super) async fn given(store: &dyn Store, partition: &Partition, to: InstanceId) -> u64 {
    match store.lease(partition, to).await.expect("an answer") {
        LeaseReply::Granted(epoch) => epoch,
        other => panic!("not given: {other:?}"),
    }
}

pub(super) fn some() -> (Partition, [InstanceId; 2]) {
    let partition = Partition { stream: "a:b 1".into(), number: 3 };
    (partition, [InstanceId::random(), InstanceId::random()])
}

/// Only one instance holds the lease of a partition, until this instance releases the lease.
pub async fn a_lease_is_one_instances(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let (partition, [one, other]) = some();
    for id in [one, other] {
        beat(store, id, "an instance", 0).await;
    }
    let first = given(store, &partition, one).await;
    assert_eq!(store.lease(&partition, other).await.expect("an answer"), LeaseReply::HeldBy(one));
    let claimed = store.claim(&partition, first).await.expect("a claim");
    assert_eq!(claimed.claim.epoch, first);
    // An instance may repeat its request, because the reply may be lost.
    let second = given(store, &partition, one).await;
    assert!(second > first);
    // A release with an old epoch has no effect.
    store.release(&partition, one, first).await.expect("an answer");
    store.release(&partition, other, second).await.expect("an answer");
    assert_eq!(store.table().await.expect("a table").holder(&partition), Some(one));
    store.release(&partition, one, second).await.expect("an answer");
    let table = store.table().await.expect("a table");
    assert_eq!((table.holder(&partition), table.leases[&partition].holder), (None, None));
    assert_eq!(table.leases[&partition].epoch, second);
    assert!(given(store, &partition, other).await > second);
}

/// A new lease has a higher epoch than all earlier claims, and the store rejects a claim with a lower epoch.
pub async fn a_claim_has_the_epoch_of_its_lease(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let (partition, [one, other]) = some();
    assert_eq!(store.lease(&partition, one).await.expect("an answer"), LeaseReply::NotMember);
    beat(store, one, "one", 0).await;
    let late = given(store, &partition, one).await;
    store.remove_instance(one).await.expect("forgotten");
    beat(store, other, "other", 0).await;
    let newer = given(store, &partition, other).await;
    assert!(newer > late);
    store.claim(&partition, newer).await.expect("a claim");
    let refused = store.claim(&partition, late).await;
    assert!(matches!(refused, Err(ordain_store::StoreError::InUse(_))), "{refused:?}");
    store.remove_instance(other).await.expect("forgotten");
    fixture.reopen().await;
    beat(fixture.store(), one, "one", 0).await;
    assert!(given(fixture.store(), &partition, one).await > newer);
}

/// The heartbeats of an instance return each change of the table once.
pub async fn changes_are_told_once(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let (partition, [one, other]) = some();
    let table = beat(store, one, "{\"one\":1}", 0).await.expect("the table is new");
    assert_eq!(table.members[&one].info, "{\"one\":1}");
    let seen = table.membership_version;
    assert_eq!(beat(store, one, "{\"one\":1}", seen).await, None);
    let report = HeartbeatRequest {
        id: one,
        info: "{\"one\":1}",
        report: Some("well"),
        lease: LEASE,
        known_version: seen,
    };
    assert_eq!(
        store.heartbeat(report).await.expect("a beat").table,
        None,
        "a report is not a change"
    );
    assert_eq!(beat(store, one, "{\"one\":1}", seen).await, None);
    let mut generations = vec![seen];
    beat(store, other, "other", 0).await;
    for step in 0..5 {
        let table = beat(store, one, "{\"one\":1}", generations[step]).await.expect("a change");
        assert!(!generations.contains(&table.membership_version));
        assert_eq!(table.members[&one].report.as_deref(), Some("well"));
        let members = table.members.len();
        let holder = table.holder(&partition);
        match step {
            0 | 3 => assert_eq!((members, holder), (2, None)),
            1 => assert_eq!((members, holder), (2, Some(other))),
            2 => assert_eq!(table.members[&other].info, "else"),
            _ => assert_eq!((members, holder), (1, None)),
        }
        generations.push(table.membership_version);
        match step {
            0 => drop(given(store, &partition, other).await),
            1 => drop(beat(store, other, "else", 0).await),
            2 => store.release(&partition, other, 1).await.expect("an answer"),
            _ => store.remove_instance(other).await.expect("an answer"),
        }
    }
}

/// After the store has removed an instance, other instances can lease its partitions.
pub async fn a_forgotten_instance_has_nothing(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let (partition, [one, other]) = some();
    let second = Partition { number: 7, ..partition.clone() };
    beat(store, one, "one", 0).await;
    beat(store, other, "other", 0).await;
    given(store, &partition, one).await;
    given(store, &second, other).await;
    store.remove_instance(one).await.expect("an answer");
    let table = store.table().await.expect("a table");
    assert_eq!((table.holder(&partition), table.holder(&second)), (None, Some(other)));
    assert_eq!(table.members.keys().copied().collect::<Vec<_>>(), [other]);
    store.remove_instance(one).await.expect("nothing to forget");
    // The removed instance still runs. Its next heartbeat makes it a member again, but without its lease.
    let table = beat(store, one, "one", table.membership_version).await.expect("a change");
    assert_eq!((table.members.len(), table.holder(&partition)), (2, None));
}

/// An instance that writes no heartbeat in time loses its leases. A store that only one process can open has no such
/// time limit.
pub async fn silent_instances_are_forgotten(fixture: &mut impl Fixture) {
    let (partition, [one, other]) = some();
    let store = fixture.store();
    let about =
        HeartbeatRequest { id: one, info: "one", report: None, lease: LEASE, known_version: 0 };
    let ends = store.heartbeat(about).await.expect("a beat").valid_for.is_some();
    let first = given(store, &partition, one).await;
    let lease = LEASE.as_millis() as u64;
    fixture.pass(lease - 10_000).await;
    let store = fixture.store();
    let seen = beat(store, other, "other", 0).await.expect("the table is new").membership_version;
    assert_eq!(store.lease(&partition, other).await.expect("an answer"), LeaseReply::HeldBy(one));
    // This heartbeat comes in time.
    assert!(beat(store, one, "one", seen).await.is_none());
    fixture.pass(lease - 10_000).await;
    let store = fixture.store();
    assert_eq!(store.lease(&partition, other).await.expect("an answer"), LeaseReply::HeldBy(one));
    assert!(beat(store, other, "other", seen).await.is_none());
    fixture.pass(10_001).await;
    let store = fixture.store();
    let found = beat(store, other, "other", seen).await;
    if !ends {
        assert_eq!(found, None);
        return;
    }
    let table = found.expect("a change");
    assert_eq!(table.members.keys().copied().collect::<Vec<_>>(), [other]);
    assert_eq!(table.holder(&partition), None);
    assert!(given(store, &partition, other).await > first);
    let table =
        beat(store, one, "one", table.membership_version).await.expect("the instance is back");
    assert_eq!(table.holder(&partition), Some(other));
}

/// If no instance wrote a heartbeat for a long time, the store was unreachable, or its clock jumped. All instances then
/// get additional time for a heartbeat.
pub async fn an_outage_takes_nothing_from_anybody(fixture: &mut impl Fixture) {
    let (partition, [one, other]) = some();
    let store = fixture.store();
    beat(store, one, "one", 0).await;
    let seen = beat(store, other, "other", 0).await.expect("the table is new").membership_version;
    given(store, &partition, one).await;
    fixture.pass(60 * LEASE.as_millis() as u64).await;
    let store = fixture.store();
    beat(store, other, "other", seen).await;
    assert_eq!(store.lease(&partition, other).await.expect("an answer"), LeaseReply::HeldBy(one));
    beat(store, one, "one", seen).await;
    assert_eq!(store.table().await.expect("a table").members.len(), 2);

    // An instance whose membership would expire right after the outage also keeps its leases.
    fixture.pass(58_000).await;
    beat(fixture.store(), other, "other", seen).await;
    fixture.pass(2_500).await;
    beat(fixture.store(), other, "other", seen).await;
    let store = fixture.store();
    assert_eq!(store.lease(&partition, other).await.expect("an answer"), LeaseReply::HeldBy(one));
    beat(store, one, "one", seen).await;
    assert_eq!(store.table().await.expect("a table").members.len(), 2);

    // The store still removes an instance that has ended.
    for seconds in [30, 27, 4] {
        fixture.pass(1_000 * seconds).await;
        beat(fixture.store(), other, "other", seen).await;
    }
    let store = fixture.store();
    let members = store.table().await.expect("a table").members;
    if members[&other].valid_for.is_some() {
        assert_eq!(members.keys().copied().collect::<Vec<_>>(), [other]);
        given(store, &partition, other).await;
    }
}

/// An expired instance may write a heartbeat before the store has removed it. This heartbeat changes the table, because
/// another instance may have read a table without the expired instance.
pub async fn one_that_is_back_is_told(fixture: &mut impl Fixture) {
    let (_, [one, other]) = some();
    let seen =
        beat(fixture.store(), one, "one", 0).await.expect("the table is new").membership_version;
    let members = fixture.store().table().await.expect("a table").members;
    if members[&one].valid_for.is_none() {
        return;
    }
    let gone = LEASE.as_millis() as u64 + 1_000;
    fixture.pass(gone).await;
    assert!(fixture.store().table().await.expect("a table").members.is_empty());
    let table = beat(fixture.store(), one, "one", seen).await.expect("a change");
    assert_eq!(table.members.len(), 1);

    let seen = beat(fixture.store(), other, "other", 0)
        .await
        .expect("the table is new")
        .membership_version;
    fixture.pass(gone).await;
    let table = beat(fixture.store(), one, "one", seen).await.expect("a change");
    assert_eq!(table.members.len(), 2, "the other instance may be alive");
}

/// If instances start one after the other, and each ends soon after its start, the store removes the ended instances.
/// The store does not mistake them for instances that could not reach it.
pub async fn the_dead_stay_dead(fixture: &mut impl Fixture) {
    let ids: [InstanceId; 5] = std::array::from_fn(|_| InstanceId::random());
    for id in ids {
        beat(fixture.store(), id, "an instance that dies", 0).await;
        fixture.pass(55_000).await;
    }
    let members = fixture.store().table().await.expect("a table").members;
    if members.values().all(|member| member.valid_for.is_some()) {
        assert_eq!(members.len(), 1, "{members:?}");
    }
}
