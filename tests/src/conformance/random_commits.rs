//! Many commits, loads, expiries and reopenings of a store in a random order, compared with a simple model. The test
//! detects a store whose cache of recent writes returns wrong data.

use std::collections::BTreeMap;

use bytes::Bytes;
use ordain_core::{Key, KeyRecord, KeyWrite, StateUpdate, WriteCondition, WriteRefusal};
use ordain_store::Store;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Fixture, Owner, record_write};

/// With a state of about 1,000 bytes for each key, the key records do not fit into the cache of the embedded store.
const KEYS: usize = 20_000;
const BATCH_KEYS: usize = 250;
/// The number of random steps after every key has been written once.
const STEPS: usize = 150;
/// The time, in ms, from a write to the expiry of its key record, if the record expires.
const LIFETIME_MS: u64 = 1_000_000;

#[derive(Debug, Clone, PartialEq)]
struct ExpectedKey {
    next: u64,
    partition: u32,
    takeovers: u32,
    state: Option<Bytes>,
    expires: bool,
}

type Model = BTreeMap<Key, ExpectedKey>;

fn state(rng: &mut ChaCha8Rng) -> StateUpdate {
    match rng.random_range(0..10) {
        0 => StateUpdate::Keep,
        1 => StateUpdate::Delete,
        // The embedded store keeps a state of this size outside the key record, and the smaller state below within the
        // record.
        2 => StateUpdate::Put(vec![rng.random(); 3_000].into()),
        _ => StateUpdate::Put(vec![rng.random(); 1_000].into()),
    }
}

/// The store must refuse some of these random writes, because their condition does not hold.
fn write(rng: &mut ChaCha8Rng, model: &Model, key: &Key, partition: u32) -> KeyWrite {
    let next = model.get(key).map_or(1, |expected| expected.next);
    let condition = match rng.random_range(0..20) {
        0 => WriteCondition::Absent,
        1 => WriteCondition::Next(next + 1),
        _ if model.contains_key(key) => WriteCondition::Next(next),
        _ => WriteCondition::Absent,
    };
    let takeovers = model.get(key).map_or(0, |expected| expected.takeovers);
    let mut write = record_write(
        key,
        condition,
        KeyRecord { takeovers, ..KeyRecord::new(next + 1, partition) },
    );
    write.state = state(rng);
    write.expire_in = rng.random_ratio(1, 5).then_some(LIFETIME_MS);
    write
}

/// Returns the refusal if the condition of the write does not hold.
fn apply(model: &mut Model, write: &KeyWrite) -> Option<WriteRefusal> {
    let before = model.get(&write.key);
    match (write.condition, before) {
        (WriteCondition::Absent, None) => {}
        (WriteCondition::Next(_), None) => return Some(WriteRefusal::Next(None)),
        (_, Some(expected)) if expected.partition != write.record.partition => {
            return Some(WriteRefusal::Partition(expected.next));
        }
        (WriteCondition::Next(next), Some(expected)) if next == expected.next => {}
        (_, Some(expected)) => return Some(WriteRefusal::Next(Some(expected.next))),
    }
    let state = match &write.state {
        StateUpdate::Keep => before.and_then(|expected| expected.state.clone()),
        StateUpdate::Put(state) => Some(state.clone()),
        StateUpdate::Delete => None,
    };
    let written = ExpectedKey {
        next: write.record.next,
        partition: write.record.partition,
        takeovers: write.record.takeovers,
        state,
        expires: write.expire_in.is_some(),
    };
    model.insert(write.key.clone(), written);
    None
}

async fn commit(store: &dyn Store, owner: &mut Owner, model: &mut Model, writes: Vec<KeyWrite>) {
    let mut by_shard: BTreeMap<u32, Vec<KeyWrite>> = BTreeMap::new();
    for write in writes {
        by_shard.entry(owner.shard(&write.key)).or_default().push(write);
    }
    for writes in by_shard.into_values() {
        let expected: Vec<_> = writes
            .iter()
            .enumerate()
            .filter_map(|(index, write)| Some((index, apply(model, write)?)))
            .collect();
        assert_eq!(owner.commit(store, writes).await.refused, expected);
    }
}

/// All keys must agree with the model. The load assigns the keys to the partition of `owner`.
async fn load(store: &dyn Store, owner: &Owner, model: &mut Model, keys: &[Key]) {
    let loaded = store.load(&owner.partition, keys, usize::MAX).await.expect("the load succeeds");
    for (key, loaded) in keys.iter().zip(loaded) {
        let expected = model.get_mut(key).map(|expected| {
            if expected.partition != owner.partition.number {
                (expected.partition, expected.takeovers) =
                    (owner.partition.number, expected.takeovers + 1);
            }
            (expected.next, expected.partition, expected.state.clone())
        });
        let loaded = loaded.expect("a key record that can be read");
        let loaded =
            loaded.map(|loaded| (loaded.record.next, loaded.record.partition, loaded.state));
        assert_eq!(loaded, expected, "{key}");
    }
}

/// After random commits of two partitions to many keys, each load returns the data that the model expects.
pub async fn store_agrees_with_the_model(fixture: &mut impl Fixture) {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let mut model = Model::new();
    let mut owners = Vec::new();
    for partition in [0, 1] {
        owners.push(Owner::claim(fixture.store(), "s", partition).await);
    }
    let keys: Vec<Key> = (0..KEYS).map(|number| format!("key-{number}").into()).collect();
    for chunk in keys.chunks(BATCH_KEYS) {
        let writes = chunk.iter().map(|key| write(&mut rng, &model, key, 0)).collect();
        commit(fixture.store(), &mut owners[0], &mut model, writes).await;
    }
    for step in 0..STEPS {
        let owner = &mut owners[rng.random_range(0..2)];
        // Use the same keys often, because the store would otherwise rarely find a key in its cache.
        let start = [0, KEYS / 2, rng.random_range(0..KEYS - BATCH_KEYS)][rng.random_range(0..3)];
        let chunk = &keys[start..start + BATCH_KEYS];
        match rng.random_range(0..10) {
            0 => load(fixture.store(), owner, &mut model, chunk).await,
            1 if step % 3 == 0 => {
                fixture.advance_clock(2 * LIFETIME_MS).await;
                model.retain(|_, expected| !expected.expires);
            }
            2 if step % 3 == 0 => fixture.reopen().await,
            _ => {
                let partition = owner.partition.number;
                let writes = chunk.iter().map(|key| write(&mut rng, &model, key, partition));
                let writes = writes.collect();
                commit(fixture.store(), owner, &mut model, writes).await;
            }
        }
    }
    for chunk in keys.chunks(BATCH_KEYS) {
        load(fixture.store(), &owners[0], &mut model, chunk).await;
    }
}
