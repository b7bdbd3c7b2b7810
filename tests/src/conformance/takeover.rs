//! Keys that move to another partition.

use ordain_core::{KeyRecord, StateUpdate, WriteCondition, WriteRefusal};

use super::{Fixture, Owner, absent, event, fresh, next};

/// After a partition has loaded a key, only this partition can write the key. The store refuses writes of the previous
/// partition.
pub async fn loading_takes_a_job_over(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut zero = Owner::claim(store, "s", 0).await;
    let mut one = Owner::claim(store, "s", 1).await;
    let keys = zero.keys(3);
    for key in &keys {
        let mut write = absent(key);
        write.state = StateUpdate::Put("state".into());
        zero.write(store, write).await;
    }
    // The store refuses a commit of a partition that has not loaded the key.
    let mut blind = fresh(&keys[0], WriteCondition::Next(2), KeyRecord::new(3, 1));
    assert_eq!(
        one.commit(store, vec![blind.clone()]).await.refused,
        [(0, WriteRefusal::Partition(2))]
    );

    let wanted = [keys[0].clone(), "none".into(), keys[1].clone()];
    let loaded = store.load(&one.partition, &wanted, usize::MAX).await.expect("a load");
    let loaded: Vec<_> = loaded.into_iter().map(|job| job.expect("readable")).collect();
    assert!(loaded[1].is_none());
    let names: Vec<&str> = keys.iter().map(|key| &**key).chain(["none"]).collect();
    let partitions = store.partitions_of("s", &names).await.expect("a read");
    assert_eq!(partitions, [Some(1), Some(1), Some(0), None]);
    assert_eq!(store.partitions_of("other", &names).await.expect("a read"), [None; 4]);
    for job in [&loaded[0], &loaded[2]] {
        let job = job.as_ref().expect("a key record");
        assert_eq!((job.record.partition, job.record.takeovers, job.record.next), (1, 1, 2));
        assert_eq!(job.state, Some("state".into()));
    }
    let refused = zero.commit(store, keys.iter().map(|key| next(key, 2)).collect()).await.refused;
    assert_eq!(refused, [(0, WriteRefusal::Partition(2)), (1, WriteRefusal::Partition(2))]);
    blind.record.takeovers = 1;
    one.write(store, blind).await;

    fixture.reopen().await;
    let store = fixture.store();
    let refused = zero.commit(store, vec![next(&keys[0], 3)]).await.refused;
    assert_eq!(refused, [(0, WriteRefusal::Partition(3))]);
    let refused = zero.commit(store, vec![absent(&keys[1])]).await.refused;
    assert_eq!(refused, [(0, WriteRefusal::Partition(2))]);
    // The first partition loads the key again.
    let back = zero.load(store, &keys[0]).await.expect("a key record").record;
    assert_eq!((back.partition, back.takeovers), (0, 2));
    let mut write = next(&keys[0], 3);
    write.record.takeovers = 2;
    zero.write(store, write).await;
}

/// A key moves to another partition, which spills an event, and moves back. None of this changes `next`. The store must
/// nevertheless refuse a write of the first partition that does not include these changes, because the write would lose
/// the spilled event.
pub async fn a_key_that_came_back_is_not_the_same(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut zero = Owner::claim(store, "s", 0).await;
    let mut one = Owner::claim(store, "s", 1).await;
    zero.write(store, absent("a")).await;
    let old = next("a", 2);

    let mut job = one.load(store, "a").await.expect("a key record").record;
    job.spilled.add(7);
    let mut spilling = fresh("a", WriteCondition::Next(2), job);
    spilling.spill = vec![(7, event("a", 7, "seven"))];
    one.write(store, spilling).await;
    // This load assigns the key to the first partition again. The write `old` below does not use the result of the
    // load.
    let back = zero.load(store, "a").await.expect("a key record").record;

    let refused = zero.commit(store, vec![old]).await.refused;
    assert_eq!(refused, [(0, WriteRefusal::Partition(2))]);
    assert_eq!(zero.spilled(store, "a", 0).await, [7]);
    zero.write(store, fresh("a", WriteCondition::Next(2), KeyRecord { next: 3, ..back })).await;
    assert_eq!(zero.spilled(store, "a", 0).await, [7]);
}

/// When a key moves to another partition, its due entry moves to the due index of that partition.
pub async fn a_due_entry_moves_along(fixture: &mut impl Fixture) {
    let mut zero = Owner::claim(fixture.store(), "s", 0).await;
    let one = Owner::claim(fixture.store(), "s", 1).await;
    for (key, ms) in [("soon", 10_000), ("later", 600_000)] {
        let mut write = absent(key);
        write.due_in = Some(ms);
        zero.write(fixture.store(), write).await;
    }
    fixture.pass(20_000).await;
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
