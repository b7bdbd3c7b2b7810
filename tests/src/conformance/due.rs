//! The due index.

use ordain_core::WriteCondition;

use super::{Fixture, Owner, absent, fresh, job, next};

/// A time, in ms, that is longer than even a slow test takes.
const LATER: u64 = 600_000;
/// The part of `LATER` that may pass during a slow test, in ms.
const SLACK: u64 = 60_000;

/// The earliest entries come first, and the store returns the time until the next entry is due.
pub async fn entries_come_when_due(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut owner = Owner::claim(store, "s", 0).await;
    assert_eq!(owner.due(store, 10).await, (vec![], None));
    for (key, ms) in [("c", 30_000), ("a", 20_000), ("b", LATER), ("now", 0)] {
        let mut write = absent(key);
        write.due_in = Some(ms);
        owner.write(store, write).await;
    }
    owner.write(store, absent("never")).await;

    fixture.pass(40_000).await;
    let store = fixture.store();
    let (keys, next) = owner.due(store, 10).await;
    assert_eq!(keys, ["now", "a", "c"]);
    let left = next.expect("one more");
    assert!((LATER - SLACK..=LATER - 40_000).contains(&left), "{left}");
    let (keys, next) = owner.due(store, 2).await;
    assert_eq!((keys, next), (vec!["now".to_owned(), "a".to_owned()], Some(0)));

    fixture.reopen().await;
    assert_eq!(owner.due(fixture.store(), 10).await.0, ["now", "a", "c"]);
}

/// Every write of a key replaces the key's entry.
pub async fn entries_move_and_go(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut owner = Owner::claim(store, "s", 0).await;
    for key in ["a", "b", "c"] {
        let mut write = absent(key);
        write.due_in = Some(0);
        owner.write(store, write).await;
    }
    assert_eq!(owner.due(store, 10).await.0, ["a", "b", "c"]);
    let mut later = next("a", 2);
    later.due_in = Some(LATER);
    owner.write(store, later).await;
    owner.write(store, next("b", 2)).await;
    let (keys, next_in) = owner.due(store, 10).await;
    assert_eq!(keys, ["c"]);
    assert!(next_in.is_some_and(|left| left > LATER - SLACK));

    // Move the entry to an earlier time than that of the entries that the owner has already read.
    fixture.pass(1_000).await;
    let store = fixture.store();
    let mut sooner = fresh("a", WriteCondition::Next(3), job(3));
    sooner.due_in = Some(0);
    owner.write(store, sooner).await;
    assert_eq!(owner.due(store, 10).await, (vec!["c".to_owned(), "a".to_owned()], None));
    owner.write(store, next("a", 3)).await;
    owner.write(store, next("c", 2)).await;
    assert_eq!(owner.due(store, 10).await, (vec![], None));
}

/// A load returns the time until the key is due, so that the owner need not read the due index for a loaded key.
pub async fn a_load_tells_the_time_left(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut owner = Owner::claim(store, "s", 0).await;
    let mut write = absent("a");
    write.due_in = Some(LATER);
    let applied = owner.write(store, write).await;
    let left = owner.load(store, "a").await.expect("a key record").due_in.expect("an entry");
    assert!((LATER - SLACK..=LATER).contains(&left), "{left}");
    let (row, _) = store.key("s", "a").await.expect("a read").expect("a row");
    assert_eq!(row.due_at, Some(applied.time + LATER));

    let mut soon = next("a", 2);
    soon.due_in = Some(10_000);
    owner.write(store, soon).await;
    fixture.pass(20_000).await;
    let loaded = owner.load(fixture.store(), "a").await.expect("a key record");
    assert_eq!(loaded.due_in, Some(0), "the time has passed");
}
