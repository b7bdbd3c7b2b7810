//! Tests of keys that move to another partition.

use ordain_core::{KeyRecord, KeySnapshot, StateUpdate, WriteCondition, WriteRefusal};

use super::{Fixture, Owner, event, first_write, next_write, record_write};

/// After the owner of a partition has loaded a key, only this partition can write the key, until another partition
/// loads the key. The store refuses writes of the previous partition.
pub async fn loaded_key_moves_to_the_loading_partition(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut zero = Owner::claim(store, "s", 0).await;
    let mut one = Owner::claim(store, "s", 1).await;
    let keys = zero.keys(3);
    for key in &keys {
        let mut write = first_write(key);
        write.state = StateUpdate::Put("state".into());
        zero.write(store, write).await;
    }
    // The store refuses a write of a partition that has not loaded the key.
    let mut unloaded = record_write(&keys[0], WriteCondition::Next(2), KeyRecord::new(3, 1));
    assert_eq!(
        one.commit(store, vec![unloaded.clone()]).await.refused,
        [(0, WriteRefusal::Partition(2))]
    );

    let wanted = [keys[0].clone(), "none".into(), keys[1].clone()];
    let loaded = store.load(&one.partition, &wanted, usize::MAX).await.expect("a load");
    let loaded: Vec<_> = loaded.into_iter().map(|snapshot| snapshot.expect("readable")).collect();
    assert!(loaded[1].is_none());
    let names: Vec<&str> = keys.iter().map(|key| &**key).chain(["none"]).collect();
    let partitions = store.partitions_of("s", &names).await.expect("a read");
    assert_eq!(partitions, [Some(1), Some(1), Some(0), None]);
    assert_eq!(store.partitions_of("other", &names).await.expect("a read"), [None; 4]);
    for snapshot in [&loaded[0], &loaded[2]] {
        let KeySnapshot { record, state, .. } = &**snapshot.as_ref().expect("a key record");
        assert_eq!((record.partition, record.takeovers, record.next), (1, 1, 2));
        assert_eq!(*state, Some("state".into()));
    }
    let refused =
        zero.commit(store, keys.iter().map(|key| next_write(key, 2)).collect()).await.refused;
    assert_eq!(refused, [(0, WriteRefusal::Partition(2)), (1, WriteRefusal::Partition(2))]);
    unloaded.record.takeovers = 1;
    one.write(store, unloaded).await;

    fixture.reopen().await;
    let store = fixture.store();
    let refused = zero.commit(store, vec![next_write(&keys[0], 3)]).await.refused;
    assert_eq!(refused, [(0, WriteRefusal::Partition(3))]);
    let refused = zero.commit(store, vec![first_write(&keys[1])]).await.refused;
    assert_eq!(refused, [(0, WriteRefusal::Partition(2))]);
    // The first partition loads the key again.
    let back = zero.load(store, &keys[0]).await.expect("a key record").record;
    assert_eq!((back.partition, back.takeovers), (0, 2));
    let mut write = next_write(&keys[0], 3);
    write.record.takeovers = 2;
    zero.write(store, write).await;
}

/// A key moves to another partition, which spills an event of the key. Then the key moves back to the first partition.
/// The `next` of the key stays the same. The first partition then writes on the basis of the key record that it had
/// before the moves. The store must refuse this write, because the write would lose the spilled event.
pub async fn outdated_write_is_refused_after_the_key_returned(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut zero = Owner::claim(store, "s", 0).await;
    let mut one = Owner::claim(store, "s", 1).await;
    zero.write(store, first_write("a")).await;
    let outdated = next_write("a", 2);

    let mut record = one.load(store, "a").await.expect("a key record").record;
    record.spilled.add(7);
    let mut spilling = record_write("a", WriteCondition::Next(2), record);
    spilling.spill = vec![(7, event("a", 7, "seven"))];
    one.write(store, spilling).await;
    // This load assigns the key to the first partition again. The write `outdated` below does not use the result of the
    // load.
    let back = zero.load(store, "a").await.expect("a key record").record;

    let refused = zero.commit(store, vec![outdated]).await.refused;
    assert_eq!(refused, [(0, WriteRefusal::Partition(2))]);
    assert_eq!(zero.spilled(store, "a", 0).await, [7]);
    zero.write(store, record_write("a", WriteCondition::Next(2), KeyRecord { next: 3, ..back }))
        .await;
    assert_eq!(zero.spilled(store, "a", 0).await, [7]);
}

/// When a key moves to another partition, its due entry moves to the due index of that partition.
pub async fn due_entry_moves_with_its_key(fixture: &mut impl Fixture) {
    let mut zero = Owner::claim(fixture.store(), "s", 0).await;
    let one = Owner::claim(fixture.store(), "s", 1).await;
    for (key, ms) in [("soon", 10_000), ("later", 600_000)] {
        let mut write = first_write(key);
        write.due_in = Some(ms);
        zero.write(fixture.store(), write).await;
    }
    fixture.advance_clock(20_000).await;
    let store = fixture.store();
    assert_eq!(zero.due(store, 10).await.0, ["soon"]);
    assert_eq!(one.due(store, 10).await, (vec![], None));
    assert_eq!(one.load(store, "soon").await.expect("a key record").due_in, Some(0));
    assert!(one.load(store, "later").await.expect("a key record").due_in.is_some());
    assert_eq!(zero.due(store, 10).await, (vec![], None));
    let (keys, next) = one.due(store, 10).await;
    assert_eq!(keys, ["soon"]);
    assert!(next.is_some());
    let (row, _) = store.key("s", "soon").await.expect("a read").expect("a row");
    assert!(row.due_at.is_some());
}
