//! Tests of values of a wrong Redis type that another program has written into Redis keys of the store. Such a value
//! may stop the shard. The store must name the Redis key, and no commit may be lost or repeated.

use std::sync::Arc;

use ordain_core::{AcceptedId, Batch, CommitReply, KeyWrite, StateUpdate};
use ordain_store::{DueIndex, LetterListing, RecordStore, SpillArea, StoreError};
use ordain_tests::conformance::{Owner, event};

use super::dedicated::{DedicatedStore, letter, next_of, numbers, step, until_applied};

/// Returns a write of a key that changes all kinds of data in the shard of the key.
fn everything(key: &str, sequence: u64) -> KeyWrite {
    let mut write = step(key, sequence);
    write.spill = vec![(sequence + 5, event(key, sequence + 5, "held"))];
    write.record.spilled.add(sequence + 5);
    write.record.ids_from = 1;
    write.ids.push(AcceptedId { sequence, id: sequence, content: 0, source: 0 });
    write.state = StateUpdate::Put("state".into());
    write.letters = vec![letter(key, sequence, 0)];
    write.due_in = Some(60_000);
    write.expire_in = Some(60_000);
    write
}

#[tokio::test]
async fn foreign_value_stops_shard_until_removed() {
    let dedicated = DedicatedStore::start().await;
    let store = &dedicated.store;
    let mut owner = Owner::claim(store, "s", 0).await;
    let keys = owner.keys(2);
    let shard = owner.shard(&keys[0]);
    let names =
        ["data:s", "due:0:s", "expiry:s", "letters:s", "letters-age:s", "spilled:s", "ids:s"];
    let names = names.map(|rest| dedicated.name(shard, rest));
    let mut sequence = 0;
    // In the first round, the store has no values yet. In all later rounds, the foreign value replaces a value of the
    // store.
    for name in names[1..].iter().chain(&names) {
        sequence += 1;
        let exists = dedicated.command(&["EXISTS", name]).int() == Some(1);
        assert_eq!(exists, sequence > 1, "{name}");
        if exists {
            dedicated.command(&["RENAME", name, "aside"]);
        }
        dedicated.command(&["SADD", name, "foreign"]);
        let writes = keys.iter().map(|key| everything(key, sequence)).collect();
        let batch = Batch {
            letters: vec![letter("", sequence, 0)],
            forward: true,
            ..(*owner.batch(writes)).clone()
        };
        let batch = Arc::new(batch);
        assert_eq!(owner.send(store, &batch).await, CommitReply::Unknown, "{name}");
        // If only the cleanup after the commit finds the foreign value, the store has already made the commit.
        let is_committed = owner.send(store, &batch).await != CommitReply::Unknown;
        assert_eq!(
            dedicated.command(&["TYPE", name]).text(),
            Some("set"),
            "the store must not change the value"
        );
        let is_read = ["data:s", "ids:s"].iter().any(|rest| name.ends_with(rest));
        if !is_read && !is_committed {
            assert_eq!(next_of(store, &keys[1]).await, sequence, "{name}");
            let last = numbers(store, &owner, &keys[0]).await.last().copied();
            assert_eq!(last.unwrap_or(0), sequence - 1, "{name}");
        }

        dedicated.command(&["DEL", name]);
        if exists {
            dedicated.command(&["RENAME", "aside", name]);
        }
        let applied = until_applied(store, &owner, &batch).await;
        assert_eq!(applied.refused, [], "{name}");
        assert_eq!(next_of(store, &keys[1]).await, sequence + 1, "{name}");
    }
    assert_eq!(numbers(store, &owner, &keys[0]).await, (1..=sequence).collect::<Vec<_>>());
    let page = store.letters("s", None, None, 100).await.expect("letters");
    assert_eq!(page.rows.len() as u64, 3 * sequence);
    let loaded = store.load(&owner.partition, &keys, usize::MAX).await.expect("a load");
    let loaded = loaded[0].as_ref().expect("a key record").as_ref().expect("a key record");
    assert_eq!(loaded.ids.len() as u64, sequence);
}

/// The store removes old data after it has made a commit. If a foreign value stops this cleanup, the first attempt of
/// the commit gets no reply. The second attempt must get the reply to the commit.
#[tokio::test]
async fn foreign_value_in_cleanup_loses_no_reply() {
    let dedicated = DedicatedStore::start().await;
    let store = &dedicated.store;
    let mut owner = Owner::claim(store, "s", 0).await;
    let shard = owner.shard("a");
    for (sequence, kind) in (1..).zip(["expiry", "letters-age"]) {
        let name = dedicated.name(shard, &format!("{kind}:s"));
        dedicated.command(&["SET", &name, "foreign"]);
        let batch = owner.batch(vec![step("a", sequence)]);
        assert_eq!(owner.send(store, &batch).await, CommitReply::Unknown);
        let CommitReply::Applied(applied) = owner.send(store, &batch).await else { panic!() };
        assert_eq!(applied.refused, []);
        dedicated.command(&["DEL", &name]);
    }
    assert_eq!(numbers(store, &owner, "a").await, [1, 2]);
}

#[tokio::test]
async fn foreign_value_is_named() {
    let dedicated = DedicatedStore::start().await;
    let store = &dedicated.store;
    let mut owner = Owner::claim(store, "s", 0).await;
    owner.write(store, everything("a", 1)).await;
    let shard = owner.shard("a");
    for kind in ["data:s", "due:0:s", "spilled:s", "ids:s", "letters:s"] {
        let name = dedicated.name(shard, kind);
        dedicated.command(&["RENAME", &name, "aside"]);
        dedicated.command(&["SADD", &name, "foreign"]);
        let keys = ["a".into()];
        let read = match kind {
            "due:0:s" => store.due(&owner.partition, None, 10, true).await.map(drop),
            "spilled:s" => {
                store.read_spill(&owner.partition, &keys[0], 0, 10, 1 << 20).await.map(drop)
            }
            "letters:s" => store.letters("s", None, None, 10).await.map(drop),
            _ => store.load(&owner.partition, &keys, usize::MAX).await.map(drop),
        };
        let Err(StoreError::Corrupt(words)) = read else { panic!("{kind}: {read:?}") };
        assert!(words.contains(&name) && words.contains("is a set"), "{words}");
        dedicated.command(&["DEL", &name]);
        dedicated.command(&["RENAME", "aside", &name]);
    }
}

/// A key has moved to another partition. The new partition does not need the due index of the previous partition, so a
/// foreign value there must not stop the commits of the new partition.
#[tokio::test]
async fn foreign_value_of_previous_partition_is_ignored() {
    let dedicated = DedicatedStore::start().await;
    let store = &dedicated.store;
    let mut old = Owner::claim(store, "s", 0).await;
    old.write(store, everything("a", 1)).await;
    let name = dedicated.name(old.shard("a"), "due:0:s");
    dedicated.command(&["DEL", &name]);
    dedicated.command(&["SET", &name, "foreign"]);
    let mut new = Owner::claim(store, "s", 1).await;
    let record = new.load(store, "a").await.expect("a key record").record;
    assert_eq!((record.partition, record.takeovers), (1, 1));
    let mut write = step("a", 2);
    write.record.partition = 1;
    write.record.takeovers = 1;
    new.write(store, write).await;
    assert_eq!(dedicated.command(&["TYPE", &name]).text(), Some("string"));
}
