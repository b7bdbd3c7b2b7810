//! Tests of several owners that use a store at the same time.

use ordain_core::{KeyRecord, WriteCondition};
use ordain_store::Store;

use super::{Fixture, Owner, record_write};

const COMMITS: u64 = 40;

/// If the owners of several partitions commit at the same time, each owner always loads the key record of its own last
/// commit.
pub async fn partitions_commit_concurrently(fixture: &mut impl Fixture) {
    async fn run_owner(store: &dyn Store, partition: u32) -> Owner {
        let mut owner = Owner::claim(store, "s", partition).await;
        let key = format!("key-{partition}");
        for next in 1..=COMMITS {
            let condition =
                if next == 1 { WriteCondition::Absent } else { WriteCondition::Next(next) };
            let write = record_write(&key, condition, KeyRecord::new(next + 1, partition));
            owner.write(store, write).await;
            let loaded = owner.load(store, &key).await.expect("the key record of the last commit");
            assert_eq!(loaded.record.next, next + 1);
        }
        owner
    }
    let store = fixture.store();
    let owners = tokio::join!(
        run_owner(store, 0),
        run_owner(store, 1),
        run_owner(store, 2),
        run_owner(store, 3)
    );
    fixture.reopen().await;
    for owner in [owners.0, owners.1, owners.2, owners.3] {
        let key = format!("key-{}", owner.partition.number);
        let loaded = owner.load(fixture.store(), &key).await.expect("a key record");
        assert_eq!(loaded.record.next, COMMITS + 1);
    }
}

/// A key advances by exactly one event for each applied commit, even if its partition changes often.
pub async fn each_applied_commit_advances_the_key_by_one_event(fixture: &mut impl Fixture) {
    async fn count_applied(store: &dyn Store, partition: u32) -> u64 {
        let mut owner = Owner::claim(store, "s", partition).await;
        let mut applied = 0;
        for _ in 0..COMMITS {
            let loaded = owner.load(store, "key").await;
            let (condition, record) = match loaded {
                None => (WriteCondition::Absent, KeyRecord::new(1, partition)),
                Some(loaded) => (WriteCondition::Next(loaded.record.next), loaded.record),
            };
            let write =
                record_write("key", condition, KeyRecord { next: record.next + 1, ..record });
            applied += u64::from(owner.commit(store, vec![write]).await.refused.is_empty());
        }
        applied
    }
    let store = fixture.store();
    let applied =
        tokio::join!(count_applied(store, 0), count_applied(store, 1), count_applied(store, 2));
    let applied = applied.0 + applied.1 + applied.2;
    let (row, _) = store.key("s", "key").await.expect("a read").expect("a row");
    assert_eq!(row.record.expect("readable").next, 1 + applied);
}
