//! Tests of spilled events: writing them, reading them in pages, and removing settled events.

use std::collections::BTreeSet;
use std::sync::Arc;

use ordain_core::{Event, EventParts, ExistingSpill, KeyWrite, SpillExtent, WriteCondition};
use ordain_store::Store;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Fixture, Owner, event, key_record, record_write};

/// Spills the events `new` of key `a`. The record has the `next` 1, and counts the events `all` as spilled.
fn spilling(condition: WriteCondition, new: &[u64], all: &[u64]) -> KeyWrite {
    let mut write = record_write("a", condition, key_record(1));
    write.spill = new
        .iter()
        .map(|sequence| (*sequence, event("a", *sequence, &sequence.to_string())))
        .collect();
    let mut spilled = SpillExtent::default();
    for sequence in all {
        spilled.add(*sequence);
    }
    write.record.spilled = spilled;
    write
}

/// A write spills an event, but the store already has a spilled event with the same sequence. The store keeps the
/// stored event, and reports whether the two events are equal.
pub async fn spilled_event_is_not_overwritten(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut owner = Owner::claim(store, "s", 0).await;
    let applied = owner.write(store, spilling(WriteCondition::Absent, &[3, 5], &[3, 5])).await;
    assert_eq!(applied.existing_spills, []);

    let mut again = spilling(WriteCondition::Next(1), &[3, 4, 5], &[3, 4, 5]);
    again.spill[2].1 = event("a", 5, "another five");
    let applied = owner.write(store, again).await;
    let existing = |sequence, same| ExistingSpill { write: 0, sequence, same };
    assert_eq!(applied.existing_spills, [existing(3, true), existing(5, false)]);

    let read = store.read_spill(&owner.partition, &"a".into(), 0, 10, 1 << 20).await;
    let (events, _) = read.expect("an answer").expect("events");
    let stored: Vec<&[u8]> = events.iter().map(|(_, event)| event.data()).collect();
    assert_eq!(stored, [b"3", b"4", b"5"]);
    assert_eq!(*events[0].1, *event("a", 3, "3"), "the store must keep the whole event");
}

/// The store distinguishes a store-numbered spilled event from other events also by its source and id. A copy that is
/// not store-numbered, for example from an earlier version of Ordain, is the same event.
pub async fn store_numbered_spilled_event_is_compared_by_its_id(fixture: &mut impl Fixture) {
    let plain = |id: &str| {
        let parts = EventParts { key: "a", sequence: Some(3), id, ..EventParts::default() };
        Event::new(&parts)
    };
    let marked = |id: &str| plain(id).with_store_numbered(true);
    let cases = [
        (marked("1"), marked("1"), true),
        (marked("1"), marked("2"), false),
        (marked("1"), plain("1"), true),
        (marked("1"), plain("2"), false),
        (plain("1"), marked("1"), true),
        (plain("1"), plain("2"), true),
    ];
    check_repeats(fixture.store(), cases).await;
}

/// Two forms of the same JSON are the same event, whatever their content types. Other data is compared by its bytes.
pub async fn spilled_json_is_compared_as_json(fixture: &mut impl Fixture) {
    let of = |content_type: &str, data: &str| {
        let parts = EventParts { key: "a", sequence: Some(3), id: "1", ..EventParts::default() };
        Event::new(&EventParts { content_type, data: data.as_bytes(), ..parts })
    };
    let one = r#"{"a":[1,"x"],"b":2}"#;
    let loose = r#"{ "b": 2, "a": [1, "\u0078"] }"#;
    let json = |data: &str| of("application/json", data);
    let text = |data: &str| of("text/plain", data);
    let cases = [
        (json(one), json(loose), true),
        (json(loose), of("", one), true),
        (json(one), json(r#"{"a":["x",1],"b":2}"#), false),
        (json(one), json(loose).with_store_numbered(true), true),
        (json(one).with_store_numbered(true), json(loose), true),
        (text(one), text(loose), true),
        (text("[1"), text("[ 1"), false),
        (text("[1"), json("[1"), true),
        (text(loose), json(loose), true),
        (json(loose), text(loose), true),
    ];
    check_repeats(fixture.store(), cases).await;
}

/// Each case spills two events under the same sequence of a key of its own. The store must report whether the second
/// event is the same event.
async fn check_repeats(store: &dyn Store, cases: impl IntoIterator<Item = (Event, Event, bool)>) {
    let mut owner = Owner::claim(store, "s", 0).await;
    for (number, (stored, again, same)) in cases.into_iter().enumerate() {
        let key = format!("a{number}");
        let mut first = spilling(WriteCondition::Absent, &[3], &[3]);
        first.key = key.as_str().into();
        first.spill[0].1 = Arc::new(stored);
        owner.write(store, first).await;
        let mut second = spilling(WriteCondition::Next(1), &[3], &[3]);
        second.key = key.as_str().into();
        second.spill[0].1 = Arc::new(again);
        let applied = owner.write(store, second).await;
        let existing = ExistingSpill { write: 0, sequence: 3, same };
        assert_eq!(applied.existing_spills, [existing], "case {number}");
    }
}

/// The store distinguishes sequences that a floating-point number cannot represent exactly.
pub async fn large_sequences_are_distinguished(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut owner = Owner::claim(store, "s", 0).await;
    let all = [1 << 53, 132_659_401_269_254_697, 261_640_940_153_910_484, (1 << 63) - 2];
    for (index, sequence) in all.iter().enumerate() {
        let condition = if index == 0 { WriteCondition::Absent } else { WriteCondition::Next(1) };
        owner.write(store, spilling(condition, &[*sequence], &all[..=index])).await;
        let mut again = spilling(WriteCondition::Next(1), &[*sequence], &all[..=index]);
        again.spill[0].1 = event("a", *sequence, "another");
        let applied = owner.write(store, again).await;
        assert_eq!(
            applied.existing_spills,
            [ExistingSpill { write: 0, sequence: *sequence, same: false }]
        );
    }
    assert_eq!(owner.spilled(store, "a", 0).await, all);
}

/// After any mix of spilled events, settled events and reads, a read returns exactly the remaining events, in order,
/// each once.
pub async fn reads_return_exactly_the_remaining_events(fixture: &mut impl Fixture) {
    let store = fixture.store();
    for (seed, base) in (0..).zip([1, 15, 16, 240, 255, 1 << 32, (1 << 53) - 8, 1 << 62]) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut owner = Owner::claim(store, &format!("s{seed}"), 0).await;
        let mut remaining = BTreeSet::new();
        let mut next = 1;
        let key = "a".into();
        for round in 0..20 {
            let put: BTreeSet<u64> =
                (0..rng.random_range(1..20)).map(|_| base + rng.random_range(1..80)).collect();
            let put: Vec<u64> = put.into_iter().filter(|sequence| *sequence >= next).collect();
            let settled =
                if rng.random_ratio(1, 3) { base + rng.random_range(0..40) } else { next };
            let before = next;
            next = next.max(settled);
            remaining.extend(&put);
            remaining.retain(|sequence| *sequence >= next);
            let all: Vec<u64> = remaining.iter().copied().collect();
            let condition =
                if round == 0 { WriteCondition::Absent } else { WriteCondition::Next(before) };
            let mut write = spilling(condition, &put, &all);
            write.record.next = next;
            owner.write(store, write).await;
            let mut from = 0;
            let mut read = Vec::new();
            loop {
                let limit = rng.random_range(1..20);
                let page = store.read_spill(&owner.partition, &key, from, limit, 1 << 20);
                let (events, end) = page.await.expect("an answer").expect("events");
                read.extend(events.iter().map(|(sequence, _)| *sequence));
                if end {
                    break;
                }
                from = read.last().expect("at least one event") + 1;
            }
            assert_eq!(read, all, "seed {seed}, round {round}");
        }
    }
}

/// A read can start at any sequence, and returns no more events and bytes than requested. However, a read returns at
/// least one event if the store has one from that sequence on.
pub async fn read_stops_at_its_limits(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut owner = Owner::claim(store, "s", 0).await;
    let all: Vec<u64> = (2..=300).collect();
    owner.write(store, spilling(WriteCondition::Absent, &all, &all)).await;
    let read = async |from, limit, bytes| {
        let key = "a".into();
        let read = store.read_spill(&owner.partition, &key, from, limit, bytes).await;
        let (events, end) = read.expect("an answer").expect("events");
        (events.into_iter().map(|(sequence, _)| sequence).collect::<Vec<_>>(), end)
    };
    assert_eq!(read(0, 1_000, 1 << 20).await, (all, true));
    assert_eq!(read(255, 3, 1 << 20).await, (vec![255, 256, 257], false));
    assert_eq!(read(299, 2, 1 << 20).await, (vec![299, 300], true));
    assert_eq!(read(301, 2, 1 << 20).await, (vec![], true));
    assert_eq!(read(7, 0, 0).await, (vec![7], false), "a read must return at least one event");
    let two_events = 2 * event("a", 100, "100").memory();
    assert_eq!(read(100, 10, two_events).await, (vec![100, 101], false));
}

/// A write removes the spilled events below its `next`. The write removes all other spilled events only if its key
/// record counts no spilled events.
pub async fn settled_events_are_removed(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut owner = Owner::claim(store, "s", 0).await;
    owner.write(store, spilling(WriteCondition::Absent, &[2, 3, 4, 9], &[2, 3, 4, 9])).await;
    let mut write = record_write("a", WriteCondition::Next(1), key_record(4));
    write.record.spilled = SpillExtent { count: 2, first: 4, last: 9 };
    // The store does not spill an event that the same write settles.
    write.spill = vec![(3, event("a", 3, "3")), (7, event("a", 7, "7"))];
    owner.write(store, write).await;
    assert_eq!(owner.spilled(store, "a", 0).await, [4, 7, 9]);

    // As at the end of a key, the written key record counts no spilled events, so the write removes all spilled events
    // of the key.
    let mut write = record_write("a", WriteCondition::Next(4), key_record(5));
    write.record.spilled = SpillExtent::default();
    owner.write(store, write).await;
    assert!(owner.spilled(store, "a", 0).await.is_empty());
}

/// The search for missing events returns the spilled events of the key within the requested ranges, and no others.
pub async fn missing_events_are_found(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut owner = Owner::claim(store, "s", 0).await;
    owner.write(store, spilling(WriteCondition::Absent, &[2, 3, 5, 8], &[2, 3, 5, 8])).await;
    let found =
        store.find_missing(&owner.partition, &"a".into(), &[2..=2, 4..=6, 8..=u64::MAX], 0).await;
    let found = found.expect("an answer").expect("events");
    let sequences: Vec<u64> = found.events.iter().map(|(sequence, _)| *sequence).collect();
    assert_eq!((sequences, found.until), (vec![2, 5, 8], u64::MAX));
    let none = store.find_missing(&owner.partition, &"b".into(), &[1..=9], 0).await;
    let none = none.expect("an answer").expect("events");
    assert_eq!((none.events, none.until), (vec![], u64::MAX));
}
