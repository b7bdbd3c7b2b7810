//! Tests of large amounts of data. One call must not read all of such data.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ordain_core::{Cause, DeadLetter, LetterContent, WriteCondition};
use ordain_store::{LetterListing, SpillArea};
use ordain_tests::conformance::{DEAD_TTL, Owner, event, key_record, record_write};

use super::dedicated::{DedicatedStore, letter, step, until_applied};

/// A number of entries that is larger than the number of entries that one call reads.
const ENTRY_COUNT: usize = 50_000;

/// The store must find the dead letter of an event that arrived too far ahead, even behind many large dead letters with
/// another cause.
#[tokio::test]
async fn far_ahead_event_is_found_behind_large_letters() {
    let dedicated = DedicatedStore::start().await;
    let store = &dedicated.store;
    let mut owner = Owner::claim(store, "s", 0).await;
    owner.write(store, record_write("a", WriteCondition::Absent, key_record(1))).await;
    let far = |sequence, tag, cause, data: &str| DeadLetter {
        cause,
        content: LetterContent::Event(event("a", sequence, data)),
        ..letter("a", sequence, tag)
    };
    let large = "x".repeat(1 << 20);
    for sequence in 2..=20 {
        let mut write = record_write("a", WriteCondition::Next(1), key_record(1));
        write.letters.push(far(sequence, 0, Cause::Rejected, &large));
        owner.write(store, write).await;
    }
    let mut write = record_write("a", WriteCondition::Next(1), key_record(1));
    write.letters.push(far(21, 1, Cause::FarAhead, "wanted"));
    write.letters.push(letter("a", 22, 0));
    owner.write(store, write).await;
    let found = store.find_missing(&owner.partition, &"a".into(), &[1..=30], DEAD_TTL).await;
    let found = found.expect("an answer").expect("events");
    assert_eq!((found.events.len(), found.until), (1, u64::MAX));
    assert_eq!((found.events[0].0, found.events[0].1.data()), (21, &b"wanted"[..]));
}

#[tokio::test]
async fn event_is_found_behind_foreign_entries() {
    let dedicated = DedicatedStore::start().await;
    let store = &dedicated.store;
    let mut owner = Owner::claim(store, "s", 0).await;
    let mut write = step("a", 1);
    write.spill = vec![(40, event("a", 40, "spilled"))];
    write.record.spilled.add(40);
    owner.write(store, write).await;
    let name = dedicated.name(owner.shard("a"), "spilled:s");
    // Adds as many entries as one call reads. Only the last of them has the length of a valid entry.
    let put = "for i = 1, 1263 do \
               redis.call('ZADD', name, 0, '\\0\\1a' .. struct.pack('>I8I4', 16, i)) end \
               redis.call('ZADD', name, 0, '\\0\\1a' .. struct.pack('>I8', 17))";
    dedicated.lua(put, &name, b"");
    assert_eq!(owner.spilled(store, "a", 0).await, [40]);
}

/// Many entries of an index lead to no value. The store must read them in several short calls, and find the valid entry
/// after them.
#[tokio::test]
async fn entry_is_found_behind_orphan_index_entries() {
    let dedicated = DedicatedStore::start().await;
    let store = &dedicated.store;
    let mut owner = Owner::claim(store, "s", 0).await;
    let mut write = step("a", 1);
    write.spill = vec![(u64::MAX - 1, event("a", u64::MAX - 1, "spilled"))];
    write.record.spilled.add(u64::MAX - 1);
    write.letters = vec![letter("a", u64::MAX - 1, 0)];
    write.due_in = Some(1_000_000);
    owner.write(store, write).await;
    let shard = owner.shard("a");
    let put = |kind: &str, member: &str| {
        let name = dedicated.name(shard, kind);
        let add = format!("for i = 1, {ENTRY_COUNT} do redis.call('ZADD', name, 0, {member}) end");
        dedicated.lua(&add, &name, b"");
    };
    // Half of the entries of `spilled` are not at the beginning of a block of events, so no process of Ordain can have
    // written them.
    put("spilled:s", "'\\0\\1a' .. struct.pack('>I8', i * 8)");
    put("letters:s", "'a\\0\\0' .. struct.pack('>I8I8', i, 0)");
    dedicated.command(&["SLOWLOG", "RESET"]);
    dedicated.command(&["CONFIG", "SET", "slowlog-log-slower-than", "1000000"]);
    assert_eq!(owner.spilled(store, "a", 0).await, [u64::MAX - 1]);
    let mut cursor = None;
    let mut pages = 0;
    let mut rows = Vec::new();
    loop {
        let page = store.letters("s", None, cursor.as_deref(), 100).await.expect("letters");
        rows.extend(page.rows);
        pages += 1;
        cursor = page.cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(rows.len(), 1);
    assert!(pages > 2, "{pages}");
    assert_eq!(dedicated.command(&["SLOWLOG", "LEN"]).int(), Some(0));
}

/// The commits write only orphan dead letters, and no key records. Each commit must nevertheless remove the expired
/// dead letters of earlier commits, so that the number of stored dead letters does not grow.
#[tokio::test]
async fn expired_letters_do_not_accumulate() {
    const LETTER_COUNT: u64 = 200;
    let dedicated = DedicatedStore::start().await;
    let store = &dedicated.store;
    let mut owner = Owner::claim(store, "s", 0).await;
    for round in 0..3 {
        let mut batch = Arc::unwrap_or_clone(owner.batch(vec![step("x", 1)]));
        batch.writes.clear();
        batch.letters = (0..LETTER_COUNT).map(|tag| letter("", round, tag)).collect();
        until_applied(store, &owner, &Arc::new(batch)).await;
        dedicated.options.clock_offset_ms.fetch_add(DEAD_TTL + 1, Ordering::Relaxed);
    }
    let index = dedicated.name(owner.shard("x"), "letters-age:s");
    assert_eq!(dedicated.command(&["ZCARD", &index]).int(), i64::try_from(LETTER_COUNT).ok());
}
