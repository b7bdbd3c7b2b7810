//! Remembered ids of events of a `fifo` stream.

use ordain_core::{AcceptedId, IdStretch};

use super::{Fixture, Owner, absent, next};

fn taken(sequence: u64) -> AcceptedId {
    AcceptedId { sequence, id: sequence * 1_000_003, content: sequence as u32 ^ 0x5555 }
}

/// A load returns the remembered ids in order, from `ids_from` of the key record on.
pub async fn ids_are_remembered_from_the_window_on(fixture: &mut impl Fixture) {
    let mut owner = Owner::claim(fixture.store(), "s", 0).await;
    let mut write = absent("a");
    write.record.ids_from = 1;
    write.ids.push(taken(1));
    owner.write(fixture.store(), write).await;
    for sequence in 2..=300_u64 {
        let mut write = next("a", sequence);
        write.record.ids_from = sequence.saturating_sub(9).max(1);
        write.ids.push(taken(sequence));
        owner.write(fixture.store(), write).await;
    }
    let mut other = absent("ab");
    other.record.ids_from = 1;
    other.ids.push(taken(1));
    owner.write(fixture.store(), other).await;

    let loaded = owner.load(fixture.store(), "a").await.expect("a key record");
    assert_eq!(loaded.ids, (291..=300).map(taken).collect::<Vec<_>>());
    // A later, lower `ids_from` does not restore removed ids.
    let mut write = next("a", 301);
    write.record.ids_from = 280;
    write.ids.push(taken(301));
    owner.write(fixture.store(), write).await;
    fixture.reopen().await;
    let store = fixture.store();
    let loaded = owner.load(store, "a").await.expect("a key record");
    assert_eq!(loaded.ids, (291..=301).map(taken).collect::<Vec<_>>());
    owner.write(store, next("a", 302)).await;
    let mut write = next("a", 303);
    write.record.ids_from = 1;
    owner.write(store, write).await;
    let loaded = owner.load(store, "a").await.expect("a key record");
    assert_eq!(loaded.ids, [], "none were remembered for a while");
    assert_eq!(owner.load(store, "ab").await.expect("a key record").ids, [taken(1)]);
}

/// A load returns the times at which ids were recorded, and later events do not change these times. If the time is 0 in
/// the key record of a commit, the store puts the time of the commit in its place.
pub async fn ids_grow_old_by_the_time_of_their_commit(fixture: &mut impl Fixture) {
    let mut owner = Owner::claim(fixture.store(), "s", 0).await;
    let mut write = absent("a");
    write.record.ids_from = 1;
    write.ids.push(taken(1));
    write.record.id_times = [IdStretch { from: 1, since: 0 }].into_iter().collect();
    let first = owner.write(fixture.store(), write).await.time;

    fixture.pass(60_000).await;
    fixture.reopen().await;
    let loaded = owner.load(fixture.store(), "a").await.expect("a key record");
    let times: Vec<_> = loaded.record.id_times.iter().copied().collect();
    assert_eq!(times, [IdStretch { from: 1, since: first }]);
    assert!((60_000..90_000).contains(&(loaded.now - first)), "{} ms", loaded.now - first);

    let mut write = next("a", 2);
    write.record.ids_from = 1;
    write.ids.push(taken(2));
    let both = times.into_iter().chain([IdStretch { from: 2, since: 0 }]);
    write.record.id_times = both.collect();
    let second = owner.write(fixture.store(), write).await.time;
    assert!(second - first >= 60_000);
    fixture.reopen().await;
    let loaded = owner.load(fixture.store(), "a").await.expect("a key record");
    let times: Vec<_> = loaded.record.id_times.iter().copied().collect();
    assert_eq!(times, [(1, first), (2, second)].map(|(from, since)| IdStretch { from, since }));
    assert!(!loaded.record.lacks_times());
}
