//! Tests of the due index: for each partition, a list of keys, each with the earliest time at which the owner must
//! handle the key.

use ordain_core::WriteCondition;

use super::{Fixture, Owner, first_write, key_record, next_write, record_write};

/// Longer than even a slow test takes.
const LATER_MS: u64 = 600_000;
/// The part of `LATER_MS` that may pass during a slow test.
const SLACK_MS: u64 = 60_000;

/// The store returns the due entries, the earliest first, and the time until the next entry is due.
pub async fn due_entries_are_returned_in_order_of_time(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut owner = Owner::claim(store, "s", 0).await;
    assert_eq!(owner.due(store, 10).await, (vec![], None));
    for (key, ms) in [("c", 30_000), ("a", 20_000), ("b", LATER_MS), ("now", 0)] {
        let mut write = first_write(key);
        write.due_in = Some(ms);
        owner.write(store, write).await;
    }
    owner.write(store, first_write("never")).await;

    fixture.advance_clock(40_000).await;
    let store = fixture.store();
    let (keys, next) = owner.due(store, 10).await;
    assert_eq!(keys, ["now", "a", "c"]);
    let remaining = next.expect("a later entry");
    assert!((LATER_MS - SLACK_MS..=LATER_MS - 40_000).contains(&remaining), "{remaining}");
    let (keys, next) = owner.due(store, 2).await;
    assert_eq!((keys, next), (vec!["now".to_owned(), "a".to_owned()], Some(0)));

    fixture.reopen().await;
    assert_eq!(owner.due(fixture.store(), 10).await.0, ["now", "a", "c"]);
}

/// Every write of a key replaces or removes the due entry of the key.
pub async fn every_write_replaces_the_due_entry(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut owner = Owner::claim(store, "s", 0).await;
    for key in ["a", "b", "c"] {
        let mut write = first_write(key);
        write.due_in = Some(0);
        owner.write(store, write).await;
    }
    assert_eq!(owner.due(store, 10).await.0, ["a", "b", "c"]);
    let mut later = next_write("a", 2);
    later.due_in = Some(LATER_MS);
    owner.write(store, later).await;
    owner.write(store, next_write("b", 2)).await;
    let (keys, next_in) = owner.due(store, 10).await;
    assert_eq!(keys, ["c"]);
    assert!(next_in.is_some_and(|remaining| remaining > LATER_MS - SLACK_MS));

    // Move the entry of `a` from a later time to the present.
    fixture.advance_clock(1_000).await;
    let store = fixture.store();
    let mut sooner = record_write("a", WriteCondition::Next(3), key_record(3));
    sooner.due_in = Some(0);
    owner.write(store, sooner).await;
    assert_eq!(owner.due(store, 10).await, (vec!["c".to_owned(), "a".to_owned()], None));
    owner.write(store, next_write("a", 3)).await;
    owner.write(store, next_write("c", 2)).await;
    assert_eq!(owner.due(store, 10).await, (vec![], None));
}

/// A load returns the time until the key is due, so that the owner need not read the due index for a loaded key.
pub async fn load_returns_the_time_until_due(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut owner = Owner::claim(store, "s", 0).await;
    let mut write = first_write("a");
    write.due_in = Some(LATER_MS);
    let applied = owner.write(store, write).await;
    let remaining = owner.load(store, "a").await.expect("a key record").due_in.expect("an entry");
    assert!((LATER_MS - SLACK_MS..=LATER_MS).contains(&remaining), "{remaining}");
    let (row, _) = store.key("s", "a").await.expect("a read").expect("a row");
    assert_eq!(row.due_at, Some(applied.time + LATER_MS));

    let mut soon = next_write("a", 2);
    soon.due_in = Some(10_000);
    owner.write(store, soon).await;
    fixture.advance_clock(20_000).await;
    let loaded = owner.load(fixture.store(), "a").await.expect("a key record");
    assert_eq!(loaded.due_in, Some(0), "the key must be due now");
}
