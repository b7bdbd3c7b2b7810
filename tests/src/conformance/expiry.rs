//! Tests of tombstones and other key records that expire.

use ordain_core::{
    AcceptedId, KeyRecord, KeyStatus, KeyWrite, StateUpdate, WriteCondition, WriteRefusal,
};
use ordain_store::{KeyFilter, Store};

use super::{Fixture, Owner, event, first_write, key_record, next_write, record_write};

/// The write ends its key, whose record then expires after `expire_in` ms.
fn completing(mut write: KeyWrite, expire_in: u64) -> KeyWrite {
    write.record.status = KeyStatus::Completed;
    write.expire_in = Some(expire_in);
    write
}

async fn count_listed(store: &dyn Store) -> usize {
    let filter = KeyFilter { limit: 100, ..KeyFilter::default() };
    store.keys("s", &filter).await.expect("a page").rows.len()
}

/// A load returns a tombstone (the record of an ended key) until the tombstone expires. From then on, a load returns no
/// record, even if the store has not removed the tombstone yet.
pub async fn tombstone_is_loaded_until_it_expires(fixture: &mut impl Fixture) {
    let mut owner = Owner::claim(fixture.store(), "s", 0).await;
    owner.write(fixture.store(), first_write("a")).await;
    owner.write(fixture.store(), completing(next_write("a", 2), 50_000)).await;
    fixture.advance_clock(10_000).await;
    let store = fixture.store();
    let loaded = owner.load(store, "a").await.expect("a tombstone");
    assert_eq!((loaded.record.status, loaded.record.next), (KeyStatus::Completed, 3));
    assert_eq!(
        owner.commit(store, vec![first_write("a")]).await.refused,
        [(0, WriteRefusal::Next(Some(3)))]
    );

    fixture.advance_clock(60_000).await;
    let store = fixture.store();
    assert_eq!(owner.load(store, "a").await, None);
    assert_eq!(store.key("s", "a").await.expect("a read"), None);
    assert_eq!(count_listed(store).await, 0);
    let refused = owner.commit(store, vec![next_write("a", 3)]).await.refused;
    assert_eq!(refused, [(0, WriteRefusal::Next(None))]);
    fixture.reopen().await;
    assert_eq!(owner.load(fixture.store(), "a").await, None);
}

/// When the tombstone of an ended key has expired, the key starts again as a new key, under another incarnation.
pub async fn ended_key_starts_again_under_another_incarnation(fixture: &mut impl Fixture) {
    let mut owner = Owner::claim(fixture.store(), "s", 0).await;
    let mut write = completing(first_write("a"), 20_000);
    write.state = StateUpdate::Put("old".into());
    write.record.spilled.add(8);
    write.spill = vec![(8, event("a", 8, "old"))];
    write.due_in = Some(10_000);
    let first = owner.write(fixture.store(), write).await;
    fixture.advance_clock(30_000).await;

    let store = fixture.store();
    let second = owner.write(store, first_write("a")).await;
    let loaded = owner.load(store, "a").await.expect("a key record");
    assert_eq!(loaded.record, KeyRecord { incarnation: second.time, ..key_record(2) });
    assert_ne!(second.time, first.time);
    assert_eq!((loaded.state, loaded.due_in), (None, None));
    assert!(owner.spilled(store, "a", 0).await.is_empty());
    assert_eq!(owner.due(store, 10).await, (vec![], None));

    // The store may still have index entries for the expiry of the first incarnation. These entries must not make the
    // store remove the record of the second incarnation.
    for round in 0..3 {
        fixture.advance_clock(30_000).await;
        owner.write(fixture.store(), first_write(&format!("other-{round}"))).await;
    }
    fixture.reopen().await;
    assert_eq!(owner.load(fixture.store(), "a").await.expect("a key record").record.next, 2);
}

/// The newest write of a key determines when the key record expires, even if an earlier write named another time.
pub async fn last_write_determines_the_expiry(fixture: &mut impl Fixture) {
    let mut owner = Owner::claim(fixture.store(), "s", 0).await;
    for key in ["kept", "renewed", "shortened"] {
        let mut write = first_write(key);
        write.expire_in = Some(if key == "shortened" { 6_000_000 } else { 40_000 });
        owner.write(fixture.store(), write).await;
    }
    fixture.advance_clock(20_000).await;
    owner.write(fixture.store(), next_write("kept", 2)).await;
    let mut write = next_write("renewed", 2);
    write.expire_in = Some(80_000);
    owner.write(fixture.store(), write).await;
    let mut write = next_write("shortened", 2);
    write.expire_in = Some(10_000);
    owner.write(fixture.store(), write).await;

    fixture.advance_clock(30_000).await;
    // A commit may remove expired key records. The record of the key `renewed` has not expired yet.
    owner.write(fixture.store(), first_write("sweeper")).await;
    let store = fixture.store();
    assert!(owner.load(store, "renewed").await.is_some());
    assert_eq!(owner.load(store, "shortened").await, None);
    fixture.advance_clock(70_000).await;
    owner.write(fixture.store(), next_write("sweeper", 2)).await;
    let store = fixture.store();
    assert_eq!(owner.load(store, "renewed").await, None);
    assert!(owner.load(store, "kept").await.is_some());
    assert_eq!(count_listed(store).await, 2);
}

/// After a key has expired, none of its data is visible, and none of it appears again in the next incarnation of the
/// key.
pub async fn data_of_expired_key_never_reappears(fixture: &mut impl Fixture) {
    let mut owner = Owner::claim(fixture.store(), "s", 0).await;
    for number in 0..50 {
        let key = format!("key-{number}");
        let mut write = record_write(&key, WriteCondition::Absent, key_record(1));
        write.state = StateUpdate::Put("state".into());
        write.spill = vec![(5, event(&key, 5, "five"))];
        write.record.spilled.add(5);
        write.record.ids_from = 1;
        write.ids.push(AcceptedId { sequence: 1, id: 7, content: 9, source: 0 });
        write.due_in = Some(0);
        write.expire_in = Some(10_000);
        owner.write(fixture.store(), write).await;
    }
    fixture.advance_clock(20_000).await;
    assert_eq!(
        owner.due(fixture.store(), 100).await,
        (vec![], None),
        "an expired key must not be due"
    );
    owner.write(fixture.store(), first_write("sweeper")).await;
    owner.write(fixture.store(), next_write("sweeper", 2)).await;
    let store = fixture.store();
    assert_eq!(count_listed(store).await, 1);
    for number in 0..50 {
        let key = format!("key-{number}");
        assert!(owner.spilled(store, &key, 0).await.is_empty());
        let mut write = first_write(&key);
        write.record.ids_from = 1;
        owner.write(store, write).await;
        let loaded = owner.load(store, &key).await.expect("a key record");
        assert_eq!((loaded.state, loaded.ids), (None, vec![]));
    }
}
