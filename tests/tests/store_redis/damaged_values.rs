//! Tests of damaged data outside of key records: spilled events, ids, entries of the outbox, dead letters.

use ordain_core::{AcceptedId, Cause, DeadLetter, LetterContent, LetterId};
use ordain_store::codec::ACCEPTED_ID_BYTES;
use ordain_store::{LetterListing, Outbox, RecordStore, SpillArea, StoreError};
use ordain_tests::conformance::{Owner, event};

use super::damaged::garbage;
use super::dedicated::{DedicatedStore, numbers, step};

#[tokio::test]
async fn damaged_spilled_events_and_ids_are_reported() {
    let dedicated = DedicatedStore::start().await;
    let store = &dedicated.store;
    let mut owner = Owner::claim(store, "s", 0).await;
    let mut write = step("a", 1);
    write.spill = vec![(3, event("a", 3, "held"))];
    write.record.spilled.add(3);
    write.record.ids_from = 1;
    write.ids.push(AcceptedId { sequence: 1, id: 5, content: 6, source: 0 });
    owner.write(store, write).await;
    let shard = owner.shard("a");
    let [data, ids] = ["data:s", "ids:s"].map(|kind| dedicated.name(shard, kind));
    let field = r"'ea\0\0\0\0\0\0\0\3'";
    let right = dedicated.bytes(&format!("redis.call('HGET', name, {field})"), &data);
    for bytes in garbage(&right) {
        dedicated.lua(&format!("redis.call('HSET', name, {field}, bytes)"), &data, &bytes);
        let all = store.read_spill(&owner.partition, &"a".into(), 0, 10, 1 << 20).await;
        let found = store.find_missing(&owner.partition, &"a".into(), &[0..=u64::MAX], 0).await;
        if right.starts_with(&bytes) {
            assert!(matches!(&all, Ok(Err(_))), "{bytes:?}: {all:?}");
            assert!(matches!(&found, Ok(Err(_))), "{bytes:?}");
        }
    }
    let field = r"'a\0\0\0\0\0\0\0\0'";
    let right = dedicated.bytes(&format!("redis.call('HGET', name, {field})"), &ids);
    assert_eq!(right.len(), 32, "the block has two places of 16 bytes; only the second has an id");
    for bytes in garbage(&right) {
        dedicated.lua(&format!("redis.call('HSET', name, {field}, bytes)"), &ids, &bytes);
        let loaded = store.load(&owner.partition, &["a".into()], usize::MAX).await.expect("a load");
        assert!(
            bytes.len() % ACCEPTED_ID_BYTES == 0 || loaded[0].is_err(),
            "{bytes:?}: {loaded:?}"
        );
    }
    // The store accepts later commits of the shard. The store also accepts a commit of the key, because the key's next
    // record refers to none of the damaged ids.
    dedicated.put_field(&ids, b"a\0\0\0\0\0\0\0\0", b"cut off");
    owner.write(store, step("b", 1)).await;
    let mut write = step("a", 2);
    write.record.ids_from = 2;
    write.ids.push(AcceptedId { sequence: 2, id: 2, content: 0, source: 0 });
    owner.write(store, write).await;
    let loaded = owner.load(store, "a").await.expect("a key record");
    assert_eq!(loaded.ids.len(), 1);
}

#[tokio::test]
async fn removed_index_of_spilled_events_is_written_again_by_the_next_read() {
    let dedicated = DedicatedStore::start().await;
    let store = &dedicated.store;
    let mut owner = Owner::claim(store, "s", 0).await;
    let sequences = [3, 15, 16, 17, 700];
    let mut write = step("a", 1);
    for sequence in sequences {
        write.spill.push((sequence, event("a", sequence, "held")));
        write.record.spilled.add(sequence);
    }
    owner.write(store, write).await;
    owner.write(store, step("b", 1)).await;
    let index = dedicated.name(owner.shard("a"), "spilled:s");
    let entries = || dedicated.command(&["ZRANGE", &index, "0", "-1"]);
    let before = entries();
    assert_eq!(before.parts().len(), 3);
    for from in [0, 16, 701] {
        dedicated.command(&["DEL", &index]);
        let wanted: Vec<u64> = sequences.into_iter().filter(|sequence| *sequence >= from).collect();
        assert_eq!(owner.spilled(store, "a", from).await, wanted);
        assert_eq!(entries(), before);
    }
    assert_eq!(owner.spilled(store, "b", 0).await, [] as [u64; 0]);
}

#[tokio::test]
async fn removed_index_of_spilled_events_is_written_again_by_the_next_spill() {
    let dedicated = DedicatedStore::start().await;
    let store = &dedicated.store;
    let mut owner = Owner::claim(store, "s", 0).await;
    let first = [3, 15, 16, 700];
    let mut write = step("a", 1);
    for sequence in first {
        write.spill.push((sequence, event("a", sequence, "held")));
        write.record.spilled.add(sequence);
    }
    let extent = write.record.spilled;
    owner.write(store, write).await;
    dedicated.command(&["DEL", &dedicated.name(owner.shard("a"), "spilled:s")]);
    let mut write = step("a", 2);
    write.record.spilled = extent;
    write.spill.push((701, event("a", 701, "held")));
    write.record.spilled.add(701);
    owner.write(store, write).await;
    assert_eq!(owner.spilled(store, "a", 0).await, [3, 15, 16, 700, 701]);
}

#[tokio::test]
async fn damaged_outbox_entry_is_reported() {
    let dedicated = DedicatedStore::start().await;
    let store = &dedicated.store;
    let mut owner = Owner::claim(store, "s", 0).await;
    let shard = owner.shard("a");
    let name = dedicated.name(shard, "data:s");
    owner.write(store, step("a", 1)).await;
    let right = dedicated.bytes("redis.call('HGET', name, 'o0:1')", &name);
    let mut error_count = 0;
    for bytes in garbage(&right) {
        dedicated.lua("redis.call('HSET', name, 'o0:1', bytes)", &name, &bytes);
        let read = store.outbox(&owner.partition, shard, 0, 10).await;
        if right.starts_with(&bytes) {
            assert!(read.is_err(), "{bytes:?}: {read:?}");
        }
        if let Err(error) = read {
            error_count += 1;
            let words = error.to_string();
            assert!(
                matches!(error, StoreError::Corrupt(_)) && words.contains("entry 1"),
                "{words}"
            );
        }
    }
    assert!(error_count > right.len(), "{error_count}");
    // The store removes published entries even if they are damaged.
    store.outbox_done(&owner.partition, owner.claim, shard, 1, &[]).await.expect("done");
    assert_eq!(numbers(store, &owner, "a").await, [] as [u64; 0]);
}

#[tokio::test]
async fn damaged_letter_is_listed_as_corrupt() {
    let dedicated = DedicatedStore::start().await;
    let store = &dedicated.store;
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
    let [letters, order] = ["data:s", "letters:s"].map(|kind| dedicated.name(shard, kind));
    let places = "redis.call('ZRANGE', name, 0, 0)[1]";
    let right_place = dedicated.bytes(places, &order);
    let field = [b"l", &right_place[..]].concat();
    let right = dedicated.bytes_of_field(&letters, &field);
    for bytes in garbage(&right) {
        dedicated.put_field(&letters, &field, &bytes);
        let rows = store.letters("s", Some("a"), None, 10).await.expect("letters").rows;
        // A dead letter with an empty value counts as removed.
        if right.starts_with(&bytes) && !bytes.is_empty() {
            assert_eq!(rows.len(), 1, "{bytes:?}");
            assert_eq!((rows[0].letter.cause, &rows[0].letter.id), (Cause::Corrupt, &letter.id));
            assert!(rows[0].letter.error.contains("cannot be read"), "{bytes:?}");
        }
        store
            .find_missing(&owner.partition, &"a".into(), &[0..=9], u64::MAX)
            .await
            .expect("a search")
            .expect("events");
        store.letter("s", &letter.id).await.expect("a read");
    }
    // The store skips dead letters whose entries in the index are damaged, and lists the other dead letters.
    for bytes in garbage(&right_place) {
        dedicated.lua("redis.call('ZADD', name, 0, bytes)", &order, &bytes);
        dedicated.put_field(&letters, &[b"l", &bytes[..]].concat(), b"x");
    }
    dedicated.put_field(&letters, &field, b"x");
    for limit in [1, 3, 1_000] {
        let mut found = 0;
        let mut cursor = None;
        for _ in 0..1_000 {
            let page = store.letters("s", None, cursor.as_deref(), limit).await.expect("a page");
            found += page.rows.iter().filter(|row| row.letter.id == letter.id).count();
            cursor = page.cursor;
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!((found, cursor), (1, None), "with pages of {limit} dead letters");
    }
}
