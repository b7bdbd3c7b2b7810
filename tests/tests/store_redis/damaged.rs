//! Tests of damaged key records and fences. A fence is the record of the owner's claim and of the last commit in a
//! shard. Every reader must report the damage, and must still read the other data.

use ordain_core::{Batch, CommitReply, WriteRefusal};
use ordain_store::{DueIndex, KeyFilter, KeyListing, RecordStore, SpillArea, StoreError};
use ordain_tests::conformance::{Owner, claim};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::dedicated::{DedicatedStore, numbers, step};

/// The minimum size of a stored key record, in bytes: the envelope, the fields with fixed offsets, seven numbers, and
/// four other parts. Each number and each part has at least one byte.
const SHORTEST_BYTES: usize = 30 + 50 + 7 + 4;

/// Returns damaged forms of `right`, of four kinds. The first two kinds are `right` truncated at each length, and
/// `right` with one changed bit, for each bit. The other kinds are random bytes of many lengths, and `right` with one
/// changed bit and up to two more bytes at the end.
pub(super) fn garbage(right: &[u8]) -> Vec<Vec<u8>> {
    let seed = rand::random();
    println!("garbage of seed {seed}");
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut all: Vec<Vec<u8>> = (0..right.len()).map(|length| right[..length].to_vec()).collect();
    for bit in 0..8 * right.len() {
        let mut changed = right.to_vec();
        changed[bit / 8] ^= 1 << (bit % 8);
        all.push(changed);
    }
    for _ in 0..60 {
        let mut bytes = vec![0; random.random_range(0..100)];
        random.fill_bytes(&mut bytes);
        all.push(bytes);
        let mut changed = right.to_vec();
        let at = random.random_range(0..changed.len());
        changed[at] ^= 1 << random.random_range(0..8);
        changed.extend_from_slice(&[0, 255][..random.random_range(0..3)]);
        all.push(changed);
    }
    all
}

#[tokio::test]
async fn damaged_record_is_reported() {
    let dedicated = DedicatedStore::start().await;
    let store = &dedicated.store;
    let mut owner = Owner::claim(store, "s", 0).await;
    let keys = owner.keys(2);
    let data = dedicated.name(owner.shard(&keys[0]), "data:s");
    let mut write = step(&keys[0], 1);
    write.record.digests.push(17, 4);
    write.due_in = Some(1_000_000);
    owner.write(store, write).await;
    owner.write(store, step(&keys[1], 1)).await;
    let value = format!("redis.call('HGET', name, 'j{}')", keys[0]);
    let right = dedicated.bytes(&value, &data);
    let put = format!("redis.call('HSET', name, 'j{}', bytes)", keys[0]);
    for (at, bytes) in (2..).zip(garbage(&right)) {
        dedicated.lua(&put, &data, &bytes);
        let is_truncated = right.starts_with(&bytes);
        let loaded = store.load(&owner.partition, &keys, usize::MAX).await.expect("a load");
        assert_eq!(loaded.len(), 2, "{bytes:?}");
        assert!(loaded[1].is_ok(), "{bytes:?}");
        assert!(!is_truncated || loaded[0].is_err(), "{bytes:?}: {:?}", loaded[0]);
        let row = store.key("s", &keys[0]).await.expect("a read");
        let is_error = row.map(|(row, _)| row.record.is_err());
        assert_eq!(is_error.unwrap_or(false), loaded[0].is_err(), "{bytes:?}");
        let filter = KeyFilter { limit: 10, ..KeyFilter::default() };
        let rows = store.keys("s", &filter).await.expect("keys").rows;
        // If a damaged record looks expired, a load by the owner does not return the record, but the listing of the
        // keys still contains it.
        let is_shown = rows.iter().any(|row| row.record.is_err());
        assert!(is_shown || loaded[0].is_ok(), "{bytes:?}");
        assert!(!is_shown || !matches!(loaded[0], Ok(Some(_))), "{bytes:?}");
        store.due(&owner.partition, None, 10, true).await.expect("the index");
        let read = store.read_spill(&owner.partition, &keys[0], 0, 10, 1 << 20).await;
        assert_eq!(read.expect("an answer").expect("events").0, []);

        let mut write = step(&keys[0], 2);
        write.due_in = Some(1_000_000);
        let applied = owner.commit(store, vec![write, step(&keys[1], at)]).await;
        let refused = applied.refused.first();
        assert!(refused.is_none_or(|(at, _)| *at == 0), "{refused:?}");
        if bytes.len() < SHORTEST_BYTES {
            let is_reported = matches!(refused, Some((0, WriteRefusal::Corrupt(words))) if words.contains("record"));
            assert!(is_reported, "{bytes:?}: {refused:?}");
        }
    }
}

#[tokio::test]
async fn damaged_fence_is_reported() {
    let dedicated = DedicatedStore::start().await;
    let store = &dedicated.store;
    let mut owner = Owner::claim(store, "s", 0).await;
    let shard = owner.shard("a");
    let name = dedicated.name(shard, "data:s");
    owner.write(store, step("a", 1)).await;
    let right = dedicated.bytes("redis.call('HGET', name, 'f0')", &name);
    let batch = owner.batch(vec![step("a", 2)]);
    for length in 0..right.len() {
        dedicated.lua("redis.call('HSET', name, 'f0', bytes)", &name, &right[..length]);
        let claimed = claim(store, &owner.partition).await;
        let Err(StoreError::Corrupt(words)) = claimed else { panic!("{length}: {claimed:?}") };
        assert!(words.contains(&name), "{length}: {words}");
        if length < 33 {
            let before = dedicated.digest();
            assert_eq!(owner.send(store, &batch).await, CommitReply::Unknown, "{length}");
            assert_eq!(dedicated.digest(), before, "{length}");
        }
    }
    for bytes in garbage(&right) {
        dedicated.lua("redis.call('HSET', name, 'f0', bytes)", &name, &bytes);
        // Some of the damaged forms happen to be a valid fence. The store must report all other forms as damaged.
        let reply = owner.send(store, &batch).await;
        match claim(store, &owner.partition).await {
            Ok(_) => {}
            Err(StoreError::Corrupt(words)) => {
                assert!(words.contains(&name), "{bytes:?}: {words}");
                assert!(!matches!(reply, CommitReply::Applied(_)), "{bytes:?}: {reply:?}");
            }
            Err(error) => panic!("{bytes:?}: {error}"),
        }
    }
    dedicated.lua("redis.call('HSET', name, 'f0', bytes)", &name, &right);
    dedicated.command(&["HDEL", &name, "ja", "o0:1"]);
    let batch = Batch { writes: vec![step("a", 1)], ..(*batch).clone() };
    let reply = owner.send(store, &batch.into()).await;
    assert!(matches!(reply, CommitReply::Applied(_)), "{reply:?}");
    assert_eq!(numbers(store, &owner, "a").await, [2]);
}
