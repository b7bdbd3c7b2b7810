//! Tests of dead letters in a store: their listing, replacement, removal and expiry, and the search for the events in
//! them.

use std::ops::RangeInclusive;

use std::sync::Arc;

use bytes::Bytes;
use ordain_core::{Cause, CommitReply, DeadLetter, Event, LetterContent, LetterId, WriteCondition};
use ordain_store::{EarlyLetters, FOUND_BYTES_LIMIT, FoundEvents, Store, StoredLetter};

use super::{DEAD_TTL, Fixture, Owner, event, first_write, key_record, next_write, record_write};

pub(super) fn letter(key: &str, sequence: u64, tag: u64, content: LetterContent) -> DeadLetter {
    DeadLetter {
        id: LetterId { key: key.into(), sequence, tag },
        cause: Cause::Rejected,
        error: "not today".to_owned(),
        origin: Some("line 17 of orders.ndjson".to_owned()),
        version: Some("orders@1.0.0".into()),
        content,
    }
}

fn ids(rows: &[StoredLetter]) -> Vec<(String, u64, u64)> {
    let letter_ids = rows.iter().map(|row| &row.letter.id);
    letter_ids.map(|id| (id.key.to_string(), id.sequence, id.tag)).collect()
}

/// Reads all letters of the stream `s`, or of one key, in pages of `limit` letters.
pub(super) async fn all(store: &dyn Store, key: Option<&str>, limit: usize) -> Vec<StoredLetter> {
    let mut rows = Vec::new();
    let mut cursor = None;
    loop {
        let page = store.letters("s", key, cursor.as_deref(), limit).await.expect("a page");
        assert!(page.rows.len() <= limit);
        rows.extend(page.rows);
        match page.cursor {
            None => return rows,
            next => cursor = next,
        }
    }
}

/// Letters are listed with all their content, in the order of key, sequence and tag.
pub async fn letters_are_listed_in_order(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut owner = Owner::claim(store, "s", 0).await;
    let event = event("b", 2, "whole");
    let mut write = first_write("b");
    write.letters = vec![
        letter("b", 256, 0, LetterContent::Nothing),
        letter("b", 2, 9, LetterContent::Raw(Bytes::from_static(b"\xff\0raw"))),
        letter("b", 2, 0, LetterContent::Event(event)),
    ];
    let expected = write.letters.clone();
    let applied = owner.write(store, write).await;
    // Orphan dead letters: their keys have no record.
    let mut batch = Arc::unwrap_or_clone(owner.batch(vec![first_write("x")]));
    batch.writes.clear();
    batch.letters =
        vec![letter("", 0, 7, LetterContent::Nothing), letter("b\0", 1, 0, LetterContent::Nothing)];
    assert!(matches!(owner.send(store, &Arc::new(batch)).await, CommitReply::Applied(_)));

    let order = [("", 0, 7), ("b", 2, 0), ("b", 2, 9), ("b", 256, 0), ("b\0", 1, 0)];
    let order = order.map(|(key, sequence, tag)| (key.to_owned(), sequence, tag));
    for limit in [1, 2, 100] {
        assert_eq!(ids(&all(store, None, limit).await), order);
        assert_eq!(ids(&all(store, Some("b"), limit).await), order[1..4]);
    }
    for letter in expected {
        let stored = store.letter("s", &letter.id).await.expect("a read").expect("a letter");
        assert_eq!(stored, StoredLetter { letter, at: applied.time });
    }
    assert_eq!(all(store, Some("c"), 10).await, []);
    let other = store.letters("other", None, None, 10).await.expect("a page");
    assert_eq!(other.rows, []);
}

/// A new letter replaces an earlier letter with the same id. The earlier letter may be from an earlier commit or from
/// the same write.
pub async fn letter_with_the_same_id_is_replaced(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut owner = Owner::claim(store, "s", 0).await;
    let mut write = first_write("a");
    write.letters = vec![letter("a", 1, 0, LetterContent::Nothing)];
    owner.write(store, write).await;
    let mut write = next_write("a", 2);
    let first = letter("a", 1, 0, LetterContent::Nothing);
    let second = DeadLetter { error: "again".to_owned(), ..first.clone() };
    write.letters = vec![first, second.clone()];
    owner.write(store, write).await;
    let rows = all(store, None, 10).await;
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].letter, second);
}

/// When the event of a dead letter takes effect later, the write that settles the event removes the letter. If the
/// write itself contains a letter with the same id, this letter stays. A refused write removes no letter.
pub async fn letters_of_consumed_events_are_removed(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut owner = Owner::claim(store, "s", 0).await;
    let mut write = record_write("a", WriteCondition::Absent, key_record(3));
    let letters = [1, 2].map(|sequence| letter("a", sequence, 0, LetterContent::Nothing));
    write.letters = letters.to_vec();
    owner.write(store, write).await;

    let mut write = record_write("a", WriteCondition::Next(3), key_record(3));
    write.removed_letters = letters.iter().map(|letter| letter.id.clone()).collect();
    write.letters = vec![letters[1].clone()];
    owner.write(store, write).await;
    assert_eq!(ids(&all(store, None, 10).await), [("a".to_owned(), 2, 0)]);

    let mut refused = record_write("a", WriteCondition::Next(9), key_record(9));
    refused.removed_letters = vec![letters[1].id.clone()];
    refused.letters = vec![letters[0].clone()];
    assert_eq!(owner.commit(store, vec![refused]).await.refused.len(), 1);
    assert_eq!(ids(&all(store, None, 10).await), [("a".to_owned(), 2, 0)]);
}

/// The search for missing events also returns events from dead letters with the causes `FarAhead`, `Overflow` and
/// `Corrupt`. The search ignores letters with other causes.
pub async fn events_in_early_letters_are_found(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut owner = Owner::claim(store, "s", 0).await;
    let mut write = record_write("a", WriteCondition::Absent, key_record(1));
    write.spill = vec![(3, event("a", 3, "spilled"))];
    write.record.spilled.add(3);
    for sequence in [2, 3, 5] {
        let content = LetterContent::Event(event("a", sequence, "far"));
        let far = DeadLetter { cause: Cause::FarAhead, ..letter("a", sequence, 1, content) };
        write.letters.push(far);
    }
    for (sequence, cause) in [(7, Cause::Overflow), (8, Cause::Corrupt)] {
        let content = LetterContent::Event(event("a", sequence, cause.name()));
        write.letters.push(DeadLetter { cause, ..letter("a", sequence, 1, content) });
    }
    let rejected = LetterContent::Event(event("a", 4, "rejected"));
    write.letters.push(letter("a", 4, 0, rejected));
    owner.write(store, write).await;
    let found = find_missing(store, &owner, &[1..=1, 2..=4], DEAD_TTL).await;
    assert_eq!(found, [(2, "far".to_owned()), (3, "spilled".to_owned())]);
    let found = find_missing(store, &owner, &[4..=u64::MAX], DEAD_TTL).await;
    let early = [(5, "far"), (7, "overflow"), (8, "corrupt")];
    assert_eq!(found, early.map(|(sequence, data)| (sequence, data.to_owned())));

    // The last argument of the search is an age in ms. The search ignores letters above this age, because they may
    // belong to an earlier incarnation of the key.
    fixture.advance_clock(DEAD_TTL / 2).await;
    let store = fixture.store();
    assert_eq!(
        find_missing(store, &owner, &[2..=3], DEAD_TTL / 4).await,
        [(3, "spilled".to_owned())]
    );
    assert_eq!(find_missing(store, &owner, &[2..=3], DEAD_TTL * 3 / 4).await.len(), 2);
}

/// The read of early letters returns all letters `FarAhead`, `Overflow` and `Corrupt` in the range, even if several of
/// them have the same sequence. The read ignores other letters, spilled events and other keys. If the events are large,
/// the answer names the sequence at which it ends.
pub async fn early_letters_of_a_range_are_read(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut owner = Owner::claim(store, "s", 0).await;
    let early = |key: &str, sequence: u64, tag: u64, cause: Cause| DeadLetter {
        cause,
        ..letter(key, sequence, tag, LetterContent::Event(event(key, sequence, cause.name())))
    };
    let mut write = record_write("a", WriteCondition::Absent, key_record(1));
    write.spill = vec![(4, event("a", 4, "spilled"))];
    write.record.spilled.add(4);
    let expected = [
        early("a", 2, 1, Cause::FarAhead),
        early("a", 2, 3, Cause::FarAhead),
        early("a", 3, 1, Cause::Overflow),
        early("a", 5, 1, Cause::Corrupt),
    ];
    write.letters = expected.to_vec();
    write.letters.extend([1, 6].map(|sequence| early("a", sequence, 1, Cause::FarAhead)));
    write.letters.push(early("a", 4, 1, Cause::Conflict));
    let mut other = record_write("b", WriteCondition::Absent, key_record(1));
    other.letters = vec![early("b", 3, 1, Cause::FarAhead)];
    owner.write(store, write).await;
    owner.write(store, other).await;
    let read = early_letters(store, &owner, 2..=5, DEAD_TTL).await;
    assert_eq!(read, EarlyLetters { letters: expected.to_vec(), until: 6 });
    let none = early_letters(store, &owner, 7..=9, DEAD_TTL).await;
    assert_eq!(none, EarlyLetters { letters: Vec::new(), until: 10 });

    fixture.advance_clock(DEAD_TTL / 2).await;
    let store = fixture.store();
    let read = early_letters(store, &owner, 2..=5, DEAD_TTL / 4).await;
    assert_eq!(read.letters, [], "a letter above the maximum age may belong to an earlier key");

    let large = "x".repeat(FOUND_BYTES_LIMIT / 16);
    for sequence in 11..=30 {
        let content = LetterContent::Event(event("a", sequence, &large));
        let far = DeadLetter { cause: Cause::FarAhead, ..letter("a", sequence, 1, content) };
        let mut write = record_write("a", WriteCondition::Next(1), key_record(1));
        write.letters = vec![far];
        owner.write(store, write).await;
    }
    let mut found = Vec::new();
    let mut from = 11;
    while from <= 30 {
        let read = early_letters(store, &owner, from..=30, DEAD_TTL).await;
        assert!(read.until > from, "the read does not advance beyond {from}");
        found.extend(read.letters.iter().map(|letter| letter.id.sequence));
        from = read.until;
    }
    // An answer may begin with the last letter of the previous answer.
    found.dedup();
    assert_eq!(found, (11..=30).collect::<Vec<u64>>());
}

/// Reads the early letters of key `a` in a range of sequences. Ignores letters older than `within` ms.
async fn early_letters(
    store: &dyn Store,
    owner: &Owner,
    sequences: RangeInclusive<u64>,
    within: u64,
) -> EarlyLetters {
    let read = store.early_letters(&owner.partition, &"a".into(), &sequences, within).await;
    read.expect("an answer").expect("letters")
}

/// The search for missing events ends when the events that it has found reach a limit of bytes. The result names the
/// first sequence for which the store has not searched, so that no event from this sequence on counts as missing.
pub async fn search_for_large_events_names_its_end(fixture: &mut impl Fixture) {
    const LAST_SEQUENCE: u64 = 25;
    let store = fixture.store();
    let mut owner = Owner::claim(store, "s", 0).await;
    owner.write(store, record_write("a", WriteCondition::Absent, key_record(1))).await;
    let large = "x".repeat(FOUND_BYTES_LIMIT / 16);
    for sequence in 2..=LAST_SEQUENCE {
        let content = LetterContent::Event(event("a", sequence, &large));
        let far = DeadLetter { cause: Cause::FarAhead, ..letter("a", sequence, 1, content) };
        let mut write = record_write("a", WriteCondition::Next(1), key_record(1));
        write.letters.push(far);
        owner.write(store, write).await;
    }
    let sequences = |found: &FoundEvents| -> Vec<u64> {
        found.events.iter().map(|(sequence, _)| *sequence).collect()
    };
    // The ranges do not contain sequence 3.
    for ranges in [vec![1..=2, 4..=LAST_SEQUENCE + 1], vec![1..=LAST_SEQUENCE + 1]] {
        let wanted: Vec<u64> = ranges.iter().cloned().flatten().collect();
        let first = search(store, &owner, &ranges, DEAD_TTL).await;
        let until = first.until;
        assert!((3..=LAST_SEQUENCE).contains(&until), "{until}");
        let before = wanted.iter().copied().filter(|at| (2..until).contains(at));
        assert_eq!(sequences(&first), before.collect::<Vec<_>>());
        let rest = search(store, &owner, &[until..=LAST_SEQUENCE + 1], DEAD_TTL).await;
        assert_eq!(rest.until, u64::MAX);
        assert_eq!(sequences(&rest), (until..=LAST_SEQUENCE).collect::<Vec<_>>());
    }
}

/// Searches for events of key `a`. Ignores letters older than `within` ms.
async fn search(
    store: &dyn Store,
    owner: &Owner,
    missing: &[RangeInclusive<u64>],
    within: u64,
) -> FoundEvents {
    let found = store.find_missing(&owner.partition, &"a".into(), missing, within).await;
    found.expect("an answer").expect("events")
}

/// The search must be complete. Returns the sequences and the data of the found events.
async fn find_missing(
    store: &dyn Store,
    owner: &Owner,
    missing: &[RangeInclusive<u64>],
    within: u64,
) -> Vec<(u64, String)> {
    let text = |event: &Event| String::from_utf8_lossy(event.data()).into_owned();
    let found = search(store, owner, missing, within).await;
    assert_eq!(found.until, u64::MAX);
    found.events.iter().map(|(sequence, event)| (*sequence, text(event))).collect()
}

/// Each letter expires [`DEAD_TTL`] after it was last written, independently of other letters.
pub async fn letters_expire_independently(fixture: &mut impl Fixture) {
    let mut owner = Owner::claim(fixture.store(), "s", 0).await;
    let mut write = first_write("a");
    let old = letter("a", 1, 0, LetterContent::Nothing);
    let renewed = letter("a", 2, 0, LetterContent::Event(event("a", 2, "far")));
    let renewed = DeadLetter { cause: Cause::FarAhead, ..renewed };
    write.letters = vec![old.clone(), renewed.clone()];
    owner.write(fixture.store(), write).await;
    fixture.advance_clock(DEAD_TTL * 3 / 4).await;
    let mut write = next_write("a", 2);
    write.letters = vec![renewed.clone()];
    owner.write(fixture.store(), write).await;
    fixture.advance_clock(DEAD_TTL / 2).await;

    for reopened in [false, true] {
        let store = fixture.store();
        assert_eq!(ids(&all(store, None, 10).await), [("a".to_owned(), 2, 0)], "{reopened}");
        assert_eq!(store.letter("s", &old.id).await.expect("a read"), None);
        assert!(store.letter("s", &renewed.id).await.expect("a read").is_some());
        // A commit may remove expired letters, but must keep the letter that was written again.
        let sequence = if reopened { 4 } else { 3 };
        owner.write(store, next_write("a", sequence)).await;
        fixture.reopen().await;
    }
    fixture.advance_clock(DEAD_TTL).await;
    let store = fixture.store();
    assert_eq!(all(store, None, 10).await, []);
    assert_eq!(find_missing(store, &owner, &[1..=9], u64::MAX).await, []);
}
