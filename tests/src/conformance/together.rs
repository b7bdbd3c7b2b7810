//! Several owners that use a store at the same time.

use ordain_core::{KeyRecord, WriteCondition};
use ordain_store::Store;

use super::{Fixture, Owner, fresh};

const COMMITS: u64 = 40;

/// Each owner finds its own commits and no others.
pub async fn partitions_commit_side_by_side(fixture: &mut impl Fixture) {
    async fn one(store: &dyn Store, partition: u32) -> Owner {
        let mut owner = Owner::claim(store, "s", partition).await;
        let key = format!("key-{partition}");
        for next in 1..=COMMITS {
            let expect =
                if next == 1 { WriteCondition::Absent } else { WriteCondition::Next(next) };
            let write = fresh(&key, expect, KeyRecord::new(next + 1, partition));
            owner.write(store, write).await;
            let loaded = owner.load(store, &key).await.expect("the key record of the last commit");
            assert_eq!(loaded.record.next, next + 1);
        }
        owner
    }
    let store = fixture.store();
    let owners = tokio::join!(one(store, 0), one(store, 1), one(store, 2), one(store, 3));
    fixture.reopen().await;
    for owner in [owners.0, owners.1, owners.2, owners.3] {
        let key = format!("key-{}", owner.partition.number);
        let loaded = owner.load(fixture.store(), &key).await.expect("a key record");
        assert_eq!(loaded.record.next, COMMITS + 1);
    }
}

/// A key advances by exactly one event for each applied commit, even if its partition changes often.
pub async fn a_key_has_one_writer_at_a_time(fixture: &mut impl Fixture) {
    async fn one(store: &dyn Store, partition: u32) -> u64 {
        let mut owner = Owner::claim(store, "s", partition).await;
        let mut applied = 0;
        for _ in 0..COMMITS {
            let loaded = owner.load(store, "key").await;
            let (expect, job) = match loaded {
                None => (WriteCondition::Absent, KeyRecord::new(1, partition)),
                Some(loaded) => (WriteCondition::Next(loaded.record.next), loaded.record),
            };
            let write = fresh("key", expect, KeyRecord { next: job.next + 1, ..job });
            applied += u64::from(owner.commit(store, vec![write]).await.refused.is_empty());
        }
        applied
    }
    let store = fixture.store();
    let applied = tokio::join!(one(store, 0), one(store, 1), one(store, 2));
    let applied = applied.0 + applied.1 + applied.2;
    let (row, _) = store.key("s", "key").await.expect("a read").expect("a row");
    assert_eq!(row.record.expect("readable").next, 1 + applied);
}
