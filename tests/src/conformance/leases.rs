//! Tests of leases, and of instances that join, leave or stop sending heartbeats.

use std::time::Duration;

use ordain_store::{HeartbeatRequest, InstanceId, LeaseReply, MembershipTable, Partition, Store};

use super::Fixture;

/// A membership lasts this long after a heartbeat. Each test takes much less time.
const LEASE: Duration = Duration::from_mins(1);

/// The instance has read version `known_version` of the membership table. Returns the table if the store has another
/// version.
pub(super) async fn heartbeat(
    store: &dyn Store,
    id: InstanceId,
    info: &str,
    known_version: u64,
) -> Option<MembershipTable> {
    let request = HeartbeatRequest { id, info, report: None, lease: LEASE, known_version };
    let reply = store.heartbeat(request).await.expect("the heartbeat succeeds");
    let is_plausible = |valid_for: Duration| valid_for <= LEASE && valid_for > LEASE / 2;
    assert!(reply.valid_for.is_none_or(is_plausible), "{reply:?}");
    reply.table
}

/// No other instance may hold the lease. Returns its epoch.
pub(super) async fn acquire(store: &dyn Store, partition: &Partition, id: InstanceId) -> u64 {
    match store.lease(partition, id).await.expect("an answer") {
        LeaseReply::Granted(epoch) => epoch,
        other => panic!("the lease is not granted: {other:?}"),
    }
}

pub(super) fn partition_and_ids() -> (Partition, [InstanceId; 2]) {
    let partition = Partition { stream: "a:b 1".into(), number: 3 };
    (partition, [InstanceId::random(), InstanceId::random()])
}

/// While an instance holds the lease of a partition, the store grants the lease to no other instance. After the holder
/// has released the lease, another instance can get it.
pub async fn lease_has_only_one_holder(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let (partition, [one, other]) = partition_and_ids();
    for id in [one, other] {
        heartbeat(store, id, "an instance", 0).await;
    }
    let first = acquire(store, &partition, one).await;
    assert_eq!(store.lease(&partition, other).await.expect("an answer"), LeaseReply::HeldBy(one));
    let claimed = store.claim(&partition, first).await.expect("a claim");
    assert_eq!(claimed.claim.epoch, first);
    // An instance may repeat its request, because the reply may be lost.
    let second = acquire(store, &partition, one).await;
    assert!(second > first);
    // A release has no effect if it names an old epoch, or an instance that does not hold the lease.
    store.release(&partition, one, first).await.expect("an answer");
    store.release(&partition, other, second).await.expect("an answer");
    assert_eq!(store.table().await.expect("a table").holder(&partition), Some(one));
    store.release(&partition, one, second).await.expect("an answer");
    let table = store.table().await.expect("a table");
    assert_eq!((table.holder(&partition), table.leases[&partition].holder), (None, None));
    assert_eq!(table.leases[&partition].epoch, second);
    assert!(acquire(store, &partition, other).await > second);
}

/// A new lease has a higher epoch than all earlier claims, and the store rejects a claim with a lower epoch than the
/// current claim.
pub async fn claim_with_an_older_lease_is_rejected(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let (partition, [one, other]) = partition_and_ids();
    assert_eq!(store.lease(&partition, one).await.expect("an answer"), LeaseReply::NotMember);
    heartbeat(store, one, "one", 0).await;
    let late = acquire(store, &partition, one).await;
    store.remove_instance(one).await.expect("removed");
    heartbeat(store, other, "other", 0).await;
    let newer = acquire(store, &partition, other).await;
    assert!(newer > late);
    store.claim(&partition, newer).await.expect("a claim");
    let refused = store.claim(&partition, late).await;
    assert!(matches!(refused, Err(ordain_store::StoreError::InUse(_))), "{refused:?}");
    store.remove_instance(other).await.expect("removed");
    fixture.reopen().await;
    heartbeat(fixture.store(), one, "one", 0).await;
    assert!(acquire(fixture.store(), &partition, one).await > newer);
}

/// The replies to the heartbeats of an instance contain each change of the membership table once.
pub async fn heartbeats_return_each_change_once(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let (partition, [one, other]) = partition_and_ids();
    let table = heartbeat(store, one, "{\"one\":1}", 0).await.expect("the table is new");
    assert_eq!(table.members[&one].info, "{\"one\":1}");
    let known = table.membership_version;
    assert_eq!(heartbeat(store, one, "{\"one\":1}", known).await, None);
    let report = HeartbeatRequest {
        id: one,
        info: "{\"one\":1}",
        report: Some("healthy"),
        lease: LEASE,
        known_version: known,
    };
    assert_eq!(
        store.heartbeat(report).await.expect("the heartbeat succeeds").table,
        None,
        "a report must not count as a change of the table"
    );
    assert_eq!(heartbeat(store, one, "{\"one\":1}", known).await, None);
    let mut versions = vec![known];
    heartbeat(store, other, "other", 0).await;
    for step in 0..5 {
        let table = heartbeat(store, one, "{\"one\":1}", versions[step]).await.expect("a change");
        assert!(!versions.contains(&table.membership_version));
        assert_eq!(table.members[&one].report.as_deref(), Some("healthy"));
        let members = table.members.len();
        let holder = table.holder(&partition);
        match step {
            0 | 3 => assert_eq!((members, holder), (2, None)),
            1 => assert_eq!((members, holder), (2, Some(other))),
            2 => assert_eq!(table.members[&other].info, "changed"),
            _ => assert_eq!((members, holder), (1, None)),
        }
        versions.push(table.membership_version);
        match step {
            0 => drop(acquire(store, &partition, other).await),
            1 => drop(heartbeat(store, other, "changed", 0).await),
            2 => store.release(&partition, other, 1).await.expect("an answer"),
            _ => store.remove_instance(other).await.expect("an answer"),
        }
    }
}

/// After the store has removed an instance, other instances can lease its partitions.
pub async fn removed_instance_loses_its_leases(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let (partition, [one, other]) = partition_and_ids();
    let second = Partition { number: 7, ..partition.clone() };
    heartbeat(store, one, "one", 0).await;
    heartbeat(store, other, "other", 0).await;
    acquire(store, &partition, one).await;
    acquire(store, &second, other).await;
    store.remove_instance(one).await.expect("an answer");
    let table = store.table().await.expect("a table");
    assert_eq!((table.holder(&partition), table.holder(&second)), (None, Some(other)));
    assert_eq!(table.members.keys().copied().collect::<Vec<_>>(), [other]);
    store.remove_instance(one).await.expect("a second removal succeeds");
    // The removed instance still runs. Its next heartbeat makes it a member again, but does not restore its lease.
    let table = heartbeat(store, one, "one", table.membership_version).await.expect("a change");
    assert_eq!((table.members.len(), table.holder(&partition)), (2, None));
}

/// An instance that writes no heartbeat in time loses its leases. A store that only one process can open has no time
/// limit for heartbeats.
pub async fn instance_without_heartbeat_loses_its_leases(fixture: &mut impl Fixture) {
    let (partition, [one, other]) = partition_and_ids();
    let store = fixture.store();
    let request =
        HeartbeatRequest { id: one, info: "one", report: None, lease: LEASE, known_version: 0 };
    let can_expire =
        store.heartbeat(request).await.expect("the heartbeat succeeds").valid_for.is_some();
    let first = acquire(store, &partition, one).await;
    let lease = LEASE.as_millis() as u64;
    fixture.advance_clock(lease - 10_000).await;
    let store = fixture.store();
    let known =
        heartbeat(store, other, "other", 0).await.expect("the table is new").membership_version;
    assert_eq!(store.lease(&partition, other).await.expect("an answer"), LeaseReply::HeldBy(one));
    // The instance writes this heartbeat before its membership ends.
    assert!(heartbeat(store, one, "one", known).await.is_none());
    fixture.advance_clock(lease - 10_000).await;
    let store = fixture.store();
    assert_eq!(store.lease(&partition, other).await.expect("an answer"), LeaseReply::HeldBy(one));
    assert!(heartbeat(store, other, "other", known).await.is_none());
    fixture.advance_clock(10_001).await;
    let store = fixture.store();
    let found = heartbeat(store, other, "other", known).await;
    if !can_expire {
        assert_eq!(found, None);
        return;
    }
    let table = found.expect("a change");
    assert_eq!(table.members.keys().copied().collect::<Vec<_>>(), [other]);
    assert_eq!(table.holder(&partition), None);
    assert!(acquire(store, &partition, other).await > first);
    let table = heartbeat(store, one, "one", table.membership_version)
        .await
        .expect("the instance is a member again");
    assert_eq!(table.holder(&partition), Some(other));
}

/// If no instance has written a heartbeat for a long time, the store assumes that it was unreachable or that its clock
/// jumped. The store therefore gives all instances additional time for a heartbeat.
pub async fn instances_keep_their_leases_after_an_outage(fixture: &mut impl Fixture) {
    let (partition, [one, other]) = partition_and_ids();
    let store = fixture.store();
    heartbeat(store, one, "one", 0).await;
    let known =
        heartbeat(store, other, "other", 0).await.expect("the table is new").membership_version;
    acquire(store, &partition, one).await;
    fixture.advance_clock(60 * LEASE.as_millis() as u64).await;
    let store = fixture.store();
    heartbeat(store, other, "other", known).await;
    assert_eq!(store.lease(&partition, other).await.expect("an answer"), LeaseReply::HeldBy(one));
    heartbeat(store, one, "one", known).await;
    assert_eq!(store.table().await.expect("a table").members.len(), 2);

    // An instance whose membership would expire right after the outage also keeps its leases.
    fixture.advance_clock(58_000).await;
    heartbeat(fixture.store(), other, "other", known).await;
    fixture.advance_clock(2_500).await;
    heartbeat(fixture.store(), other, "other", known).await;
    let store = fixture.store();
    assert_eq!(store.lease(&partition, other).await.expect("an answer"), LeaseReply::HeldBy(one));
    heartbeat(store, one, "one", known).await;
    assert_eq!(store.table().await.expect("a table").members.len(), 2);

    // The store still removes an instance that has ended.
    for seconds in [30, 27, 4] {
        fixture.advance_clock(1_000 * seconds).await;
        heartbeat(fixture.store(), other, "other", known).await;
    }
    let store = fixture.store();
    let members = store.table().await.expect("a table").members;
    if members[&other].valid_for.is_some() {
        assert_eq!(members.keys().copied().collect::<Vec<_>>(), [other]);
        acquire(store, &partition, other).await;
    }
}

/// An expired instance may write a heartbeat before the store has removed it. This heartbeat changes the table, because
/// another instance may have read a table without the expired instance.
pub async fn heartbeat_of_expired_instance_changes_the_table(fixture: &mut impl Fixture) {
    let (_, [one, other]) = partition_and_ids();
    let known = heartbeat(fixture.store(), one, "one", 0)
        .await
        .expect("the table is new")
        .membership_version;
    let members = fixture.store().table().await.expect("a table").members;
    if members[&one].valid_for.is_none() {
        return;
    }
    let expired = LEASE.as_millis() as u64 + 1_000;
    fixture.advance_clock(expired).await;
    assert!(fixture.store().table().await.expect("a table").members.is_empty());
    let table = heartbeat(fixture.store(), one, "one", known).await.expect("a change");
    assert_eq!(table.members.len(), 1);

    let known = heartbeat(fixture.store(), other, "other", 0)
        .await
        .expect("the table is new")
        .membership_version;
    fixture.advance_clock(expired).await;
    let table = heartbeat(fixture.store(), one, "one", known).await.expect("a change");
    assert_eq!(
        table.members.len(),
        2,
        "the table must keep the other instance, which may still run"
    );
}

/// If instances start one after the other, and each ends soon after its start, the store removes the ended instances.
/// The store does not mistake the ended instances for instances that could not reach the store.
pub async fn instances_that_end_one_after_another_are_removed(fixture: &mut impl Fixture) {
    let ids: [InstanceId; 5] = std::array::from_fn(|_| InstanceId::random());
    for id in ids {
        heartbeat(fixture.store(), id, "an instance that ends", 0).await;
        fixture.advance_clock(55_000).await;
    }
    let members = fixture.store().table().await.expect("a table").members;
    if members.values().all(|member| member.valid_for.is_some()) {
        assert_eq!(members.len(), 1, "{members:?}");
    }
}
