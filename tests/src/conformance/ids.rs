//! Tests of the ids that a store remembers for the events of a `fifo` stream.

use ordain_core::{AcceptedId, IdStretch};

use super::{Fixture, Owner, first_write, next_write};

fn accepted_id(sequence: u64) -> AcceptedId {
    AcceptedId { sequence, id: sequence * 1_000_003, content: sequence as u32 ^ 0x5555, source: 0 }
}

/// A load returns the remembered ids in the order of their sequences, from the sequence `ids_from` of the key record
/// on. The store forgets the ids of lower sequences.
pub async fn ids_below_the_window_are_forgotten(fixture: &mut impl Fixture) {
    let mut owner = Owner::claim(fixture.store(), "s", 0).await;
    let mut write = first_write("a");
    write.record.ids_from = 1;
    write.ids.push(accepted_id(1));
    owner.write(fixture.store(), write).await;
    for sequence in 2..=300_u64 {
        let mut write = next_write("a", sequence);
        write.record.ids_from = sequence.saturating_sub(9).max(1);
        write.ids.push(accepted_id(sequence));
        owner.write(fixture.store(), write).await;
    }
    let mut other = first_write("ab");
    other.record.ids_from = 1;
    other.ids.push(accepted_id(1));
    owner.write(fixture.store(), other).await;

    let loaded = owner.load(fixture.store(), "a").await.expect("a key record");
    assert_eq!(loaded.ids, (291..=300).map(accepted_id).collect::<Vec<_>>());
    // A later key record with a lower `ids_from` does not restore removed ids.
    let mut write = next_write("a", 301);
    write.record.ids_from = 280;
    write.ids.push(accepted_id(301));
    owner.write(fixture.store(), write).await;
    fixture.reopen().await;
    let store = fixture.store();
    let loaded = owner.load(store, "a").await.expect("a key record");
    assert_eq!(loaded.ids, (291..=301).map(accepted_id).collect::<Vec<_>>());
    owner.write(store, next_write("a", 302)).await;
    let mut write = next_write("a", 303);
    write.record.ids_from = 1;
    owner.write(store, write).await;
    let loaded = owner.load(store, "a").await.expect("a key record");
    assert_eq!(loaded.ids, [], "the previous record remembered no ids");
    assert_eq!(owner.load(store, "ab").await.expect("a key record").ids, [accepted_id(1)]);
}

/// A load returns the times at which ids were recorded, and later events do not change these times. If the time is 0 in
/// the key record of a commit, the store puts the time of the commit in place of the 0.
pub async fn age_of_id_starts_with_its_commit(fixture: &mut impl Fixture) {
    let mut owner = Owner::claim(fixture.store(), "s", 0).await;
    let mut write = first_write("a");
    write.record.ids_from = 1;
    write.ids.push(accepted_id(1));
    write.record.id_times = [IdStretch { from: 1, since: 0 }].into_iter().collect();
    let first = owner.write(fixture.store(), write).await.time;

    fixture.advance_clock(60_000).await;
    fixture.reopen().await;
    let loaded = owner.load(fixture.store(), "a").await.expect("a key record");
    let times: Vec<_> = loaded.record.id_times.iter().copied().collect();
    assert_eq!(times, [IdStretch { from: 1, since: first }]);
    assert!((60_000..90_000).contains(&(loaded.now - first)), "{} ms", loaded.now - first);

    let mut write = next_write("a", 2);
    write.record.ids_from = 1;
    write.ids.push(accepted_id(2));
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
