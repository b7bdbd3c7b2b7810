//! Ids that a `fifo` stream has taken.

use ordain_core::TakenId;

use super::{Fixture, Owner, absent, next};

fn taken(sequence: u64) -> TakenId {
    TakenId { sequence, id: sequence * 1_000_003, content: sequence as u32 ^ 0x5555 }
}

/// Loaded in order, from `ids_from` on and no earlier.
pub async fn ids_are_remembered_from_the_window_on(fixture: &mut impl Fixture) {
    let mut owner = Owner::claim(fixture.store(), "s", 0).await;
    let mut write = absent("a");
    write.job.ids_from = 1;
    write.ids.push(taken(1));
    owner.write(fixture.store(), write).await;
    for sequence in 2..=300_u64 {
        let mut write = next("a", sequence);
        write.job.ids_from = sequence.saturating_sub(9).max(1);
        write.ids.push(taken(sequence));
        owner.write(fixture.store(), write).await;
    }
    let mut other = absent("ab");
    other.job.ids_from = 1;
    other.ids.push(taken(1));
    owner.write(fixture.store(), other).await;

    let loaded = owner.load(fixture.store(), "a").await.expect("a job");
    assert_eq!(loaded.ids, (291..=300).map(taken).collect::<Vec<_>>());
    // A window that is widened does not bring back what was removed.
    let mut write = next("a", 301);
    write.job.ids_from = 280;
    write.ids.push(taken(301));
    owner.write(fixture.store(), write).await;
    fixture.reopen().await;
    let store = fixture.store();
    let loaded = owner.load(store, "a").await.expect("a job");
    assert_eq!(loaded.ids, (291..=301).map(taken).collect::<Vec<_>>());
    owner.write(store, next("a", 302)).await;
    let mut write = next("a", 303);
    write.job.ids_from = 1;
    owner.write(store, write).await;
    let loaded = owner.load(store, "a").await.expect("a job");
    assert_eq!(loaded.ids, [], "none were remembered for a while");
    assert_eq!(owner.load(store, "ab").await.expect("a job").ids, [taken(1)]);
}
