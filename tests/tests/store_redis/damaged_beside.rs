//! What lies beside a job, and is none of what it should be: spilled events, ids, entries of the
//! outbox, dead letters.

use ordain::store::{Store, StoreError};
use ordain_core::{Cause, DeadLetter, LetterContent, LetterId, TakenId};
use ordain_tests::conformance::{Owner, event};

use super::damaged::garbage;
use super::own::{Own, numbers, step};

#[tokio::test]
async fn spilled_events_and_ids_that_are_none() {
    let own = Own::start().await;
    let store = &own.store;
    let mut owner = Owner::claim(store, "s", 0).await;
    let mut write = step("a", 1);
    write.spill = vec![(3, event("a", 3, "held"))];
    write.job.spilled.add(3);
    write.job.ids_from = 1;
    write.ids.push(TakenId { sequence: 1, id: 5, content: 6 });
    owner.write(store, write).await;
    let shard = owner.shard("a");
    let spill = own.name(shard, "spill:1:s:a");
    let right = own.bytes("redis.call('ZRANGE', name, 0, 0)[1]", &spill);
    for bytes in garbage(&right) {
        own.lua("redis.call('DEL', name) redis.call('ZADD', name, 0, bytes)", &spill, &bytes);
        let all = store.read_spill(&owner.partition, &"a".into(), 0, 10, 1 << 20).await;
        let found = store.find(&owner.partition, &"a".into(), &[0..=u64::MAX], 0).await;
        if right.starts_with(&bytes) {
            // What lies before every sequence is not met by those who look from one on.
            let is_met = bytes.len() >= 8;
            assert_eq!(is_met, matches!(&all, Err(StoreError::Corrupt(_))), "{bytes:?}: {all:?}");
            assert_eq!(is_met, matches!(&found, Err(StoreError::Corrupt(_))), "{bytes:?}");
        }
    }
    let ids = own.name(shard, "ids:1:s:a");
    let right = own.bytes("redis.call('LINDEX', name, 0)", &ids);
    for bytes in garbage(&right) {
        own.lua("redis.call('LSET', name, 0, bytes)", &ids, &bytes);
        let loaded = store.load(&owner.partition, &["a".into()], usize::MAX).await.expect("a load");
        assert!(bytes.len() == right.len() || loaded[0].is_err(), "{bytes:?}: {loaded:?}");
    }
}

#[tokio::test]
async fn outbox_entries_that_are_none() {
    let own = Own::start().await;
    let store = &own.store;
    let mut owner = Owner::claim(store, "s", 0).await;
    let shard = owner.shard("a");
    let name = own.name(shard, "outbox:0:s");
    owner.write(store, step("a", 1)).await;
    let right = own.bytes("redis.call('XRANGE', name, '-', '+')[1][2][2]", &name);
    let mut said = 0;
    for bytes in garbage(&right) {
        let put = "redis.call('DEL', name) redis.call('XADD', name, '9-0', 'e', bytes)";
        own.lua(put, &name, &bytes);
        let read = store.outbox(&owner.partition, shard, 0, 10).await;
        // Cut behind the time it is an entry with nothing to publish.
        if right.starts_with(&bytes) && bytes.len() != 8 {
            assert!(read.is_err(), "{bytes:?}: {read:?}");
        }
        if let Err(error) = read {
            said += 1;
            let words = error.to_string();
            assert!(matches!(error, StoreError::Corrupt(_)) && words.contains("9-0"), "{words}");
        }
    }
    assert!(said > right.len(), "{said}");
    for entry in [&["9-0", "a", "b", "c", "d"][..], &["9-1", "e", ""]] {
        own.command(&["DEL", &name]);
        own.command(&[&["XADD", &name], entry].concat());
        assert!(store.outbox(&owner.partition, shard, 0, 10).await.is_err(), "{entry:?}");
    }
    // What is published is removed all the same.
    store.outbox_done(&owner.partition, owner.claim, shard, 9, &[]).await.expect("done");
    assert_eq!(numbers(store, &owner, "a").await, [] as [u64; 0]);
}

#[tokio::test]
async fn letters_that_are_none() {
    let own = Own::start().await;
    let store = &own.store;
    let mut owner = Owner::claim(store, "s", 0).await;
    let letter = DeadLetter {
        id: LetterId { key: "a".into(), sequence: 1, tag: 0 },
        cause: Cause::FarAhead,
        error: "far".to_owned(),
        origin: None,
        version: None,
        content: LetterContent::Event(event("a", 1, "far")),
    };
    let mut write = step("a", 1);
    write.letters = vec![letter.clone()];
    owner.write(store, write).await;
    let shard = owner.shard("a");
    let [letters, order] = ["letters:s", "letters-order:s"].map(|kind| own.name(shard, kind));
    let place = "redis.call('HKEYS', name)[1]";
    let right = own.bytes("redis.call('HVALS', name)[1]", &letters);
    for bytes in garbage(&right) {
        own.lua(&format!("redis.call('HSET', name, {place}, bytes)"), &letters, &bytes);
        let rows = store.letters("s", Some("a"), None, 10).await.expect("letters").rows;
        if right.starts_with(&bytes) {
            assert_eq!(rows.len(), 1, "{bytes:?}");
            assert_eq!((rows[0].letter.cause, &rows[0].letter.id), (Cause::Corrupt, &letter.id));
            assert!(rows[0].letter.error.contains("cannot be read"), "{bytes:?}");
        }
        store.find(&owner.partition, &"a".into(), &[0..=9], u64::MAX).await.expect("a search");
        store.letter("s", &letter.id).await.expect("a read");
    }
    // Places that are none: they are passed over, and the others are listed.
    let right_place = own.bytes(place, &letters);
    for bytes in garbage(&right_place) {
        own.lua("redis.call('ZADD', name, 0, bytes)", &order, &bytes);
        own.lua("redis.call('HSET', name, bytes, 'x')", &letters, &bytes);
    }
    own.lua("redis.call('HSET', name, bytes, 'x')", &letters, &right_place);
    for limit in [1, 3, 1_000] {
        let (mut found, mut cursor) = (0, None);
        for _ in 0..1_000 {
            let page = store.letters("s", None, cursor.as_deref(), limit).await.expect("a page");
            found += page.rows.iter().filter(|row| row.letter.id == letter.id).count();
            cursor = page.cursor;
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!((found, cursor), (1, None), "{limit} at a time");
    }
}
