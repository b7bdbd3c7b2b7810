//! Tests of key records, and of the conditions of their writes.

use std::sync::Arc;

use bytes::Bytes;
use ordain_core::{
    AheadRange, Build, Cause, CommitReply, FailureInfo, FileDigest, GapEnd, GapEntry, GapHistory,
    IdStretch, IdTimes, KeyRecord, KeySnapshot, KeyStatus, Rollout, SEQUENCE_END, SOURCES_LIMIT,
    SkippedRanges, SourceAnswers, SpillExtent, StateUpdate, WriteCondition, WriteRefusal,
};
use ordain_store::KEY_SIZE_LIMIT;

use super::{Fixture, Owner, event, first_write, key_record, next_write, record_write};

/// A load and a read find no record of a key before its first commit.
pub async fn key_is_absent_before_its_first_commit(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut owner = Owner::claim(store, "s", 0).await;
    assert_eq!(owner.load(store, "a").await, None);
    let applied =
        owner.commit(store, vec![record_write("a", WriteCondition::Next(1), key_record(2))]).await;
    assert_eq!(applied.refused, [(0, WriteRefusal::Next(None))]);
    assert_eq!(owner.load(store, "a").await, None);
    assert_eq!(store.key("s", "a").await.expect("a read"), None);
}

/// A load returns the committed key record, with the time of the commit in place of each time that was 0.
pub async fn committed_record_is_loaded(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut owner = Owner::claim(store, "s", 0).await;
    let applied = owner.write(store, first_write("a")).await;
    assert!(applied.time > 0);
    let loaded = owner.load(store, "a").await.expect("a key record");
    assert_eq!(loaded.record, KeyRecord { incarnation: applied.time, ..key_record(2) });
    assert_eq!((loaded.state, loaded.ids, loaded.due_in), (None, vec![], None));

    fixture.advance_clock(5).await;
    let store = fixture.store();
    let failure =
        FailureInfo { cause: Cause::Retry, error: "later".into(), since: 0, version: None };
    let mut waiting = KeyRecord { incarnation: applied.time, ..key_record(2) };
    waiting.failure = Some(Box::new(failure));
    let second = owner.write(store, record_write("a", WriteCondition::Next(2), waiting)).await;
    assert!(second.time > applied.time);
    let loaded = owner.load(store, "a").await.expect("a key record").record;
    assert_eq!(loaded.incarnation, applied.time, "the incarnation must be unchanged");
    assert_eq!(loaded.failure.expect("a failure").since, second.time);
}

/// A write keeps, replaces or deletes the state of a key, independently of the size of the state.
pub async fn states_are_kept_replaced_and_deleted(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut owner = Owner::claim(store, "s", 0).await;
    let large = Bytes::from(vec![7; 300_000]);
    let changes = [
        (StateUpdate::Keep, None),
        (StateUpdate::Put("one".into()), Some(Bytes::from("one"))),
        (StateUpdate::Keep, Some(Bytes::from("one"))),
        (StateUpdate::Put(Bytes::new()), Some(Bytes::new())),
        (StateUpdate::Put(large.clone()), Some(large.clone())),
        (StateUpdate::Delete, None),
        (StateUpdate::Delete, None),
        (StateUpdate::Put("two".into()), Some(Bytes::from("two"))),
    ];
    let mut write = first_write("a");
    for (change, expected) in changes {
        write.state = change;
        let following = next_write("a", write.record.next);
        owner.write(store, std::mem::replace(&mut write, following)).await;
        assert_eq!(owner.load(store, "a").await.expect("a key record").state, expected);
        let (row, state) = store.key("s", "a").await.expect("a read").expect("a row");
        assert_eq!(row.state_size, expected.as_ref().map_or(0, |state| state.len() as u64));
        assert_eq!(state, expected);
    }
}

/// Many fields have their largest value.
fn gap(number: u64) -> GapEntry {
    let answers = SourceAnswers {
        source: "http://archive:8080".into(),
        requests: u32::MAX,
        found: 1,
        failed: 0,
        error: Some("503 Service Unavailable".into()),
    };
    GapEntry {
        first: u64::MAX - number,
        last: u64::MAX,
        since: 7 + number,
        waited: u64::MAX,
        known_since: 0,
        rounds: u32::MAX,
        answers: vec![answers; SOURCES_LIMIT],
        end: GapEnd::ALL[number as usize % GapEnd::ALL.len()],
        until: 9,
    }
}

/// If a time of a gap is 0 in a commit, the store puts the time of the commit in place of the 0. The end time of an
/// open gap stays 0.
pub async fn gap_without_time_gets_the_time_of_its_commit(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut owner = Owner::claim(store, "s", 0).await;
    let entry = |first, end| GapEntry { end, ..GapEntry::new(first, first, 50) };
    let old = GapEntry { since: 5, until: 6, ..entry(1, GapEnd::Arrived) };
    let gaps = [old.clone(), entry(3, GapEnd::Skipped), entry(4, GapEnd::Open)];
    let record = KeyRecord { gaps: gaps.into_iter().collect(), ..key_record(2) };
    let applied = owner.write(store, record_write("a", WriteCondition::Absent, record)).await;
    fixture.reopen().await;
    let loaded = owner.load(fixture.store(), "a").await.expect("a key record").record;
    let found: Vec<_> = loaded.gaps.iter().map(|gap| (gap.first, gap.since, gap.until)).collect();
    assert_eq!(found[..2], [(1, 5, 6), (3, applied.time, applied.time)]);
    assert_eq!((found[2].0, found[2].1), (4, applied.time));
    assert!(!loaded.gaps.lacks_times());
}

/// A load returns every field of a key record, even if the fields have extreme values.
pub async fn every_field_is_loaded_as_written(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut owner = Owner::claim(store, "s", 0).await;
    let full = KeyRecord {
        next: u64::MAX,
        incarnation: 1,
        partition: 0,
        takeovers: u32::MAX,
        status: KeyStatus::Parked,
        attempts: u32::MAX,
        rounds: 300,
        park_count: 1,
        spilled: SpillExtent { count: 0, first: 3, last: u64::MAX },
        ahead: Some(Box::new(AheadRange { first: 0, last: SEQUENCE_END - 1 })),
        rollout: Some(Arc::new(Rollout {
            number: Rollout::NUMBER_END - 1,
            build: Build { version: "orders@1.2.3-rc.1".into(), digest: FileDigest([0xa5; 32]) },
        })),
        failure: Some(Box::new(FailureInfo {
            cause: Cause::Corrupt,
            error: "trüb\n\0".repeat(1_000),
            since: 12,
            version: Some("orders@1".into()),
        })),
        digests: (0..64).map(|number| number * 0x0400_0001).collect(),
        skipped: (0..SkippedRanges::RANGES_LIMIT as u64)
            .map(|n| (n * 10, n * 10 + n % 2))
            .collect(),
        ids_from: u64::MAX,
        id_times: (1..=IdTimes::STRETCHES_LIMIT as u64)
            .map(|from| IdStretch { from, since: from })
            .collect(),
        gaps: (0..GapHistory::GAPS_LIMIT as u64).map(gap).collect(),
    };
    owner.write(store, record_write("a", WriteCondition::Absent, full.clone())).await;
    assert_eq!(owner.load(store, "a").await.expect("a key record").record, full);
    for (number, status) in [
        KeyStatus::Active,
        KeyStatus::Waiting,
        KeyStatus::Retrying,
        KeyStatus::Parked,
        KeyStatus::Completed,
    ]
    .into_iter()
    .enumerate()
    {
        let key = format!("status-{number}");
        owner
            .write(
                store,
                record_write(&key, WriteCondition::Absent, KeyRecord { status, ..key_record(0) }),
            )
            .await;
        assert_eq!(owner.load(store, &key).await.expect("a key record").record.status, status);
    }
}

/// The store refuses a write whose condition does not hold, and applies the other writes of the commit.
pub async fn failed_condition_refuses_only_its_write(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut owner = Owner::claim(store, "s", 0).await;
    let keys = owner.keys(4);
    let writes = vec![first_write(&keys[0]), first_write(&keys[1])];
    assert_eq!(owner.commit(store, writes).await.refused, []);

    let mut refused = first_write(&keys[0]);
    refused.state = StateUpdate::Put("must not be seen".into());
    refused.spill = vec![(9, event(&keys[0], 9, "must not be seen either"))];
    refused.due_in = Some(0);
    let writes =
        vec![refused, next_write(&keys[1], 2), next_write(&keys[2], 5), first_write(&keys[3])];
    let applied = owner.commit(store, writes).await;
    assert_eq!(applied.refused, [(0, WriteRefusal::Next(Some(2))), (2, WriteRefusal::Next(None))]);
    let next_sequence = async |key| owner.load(store, key).await.map(|loaded| loaded.record.next);
    assert_eq!(next_sequence(&keys[0]).await, Some(2));
    assert_eq!(next_sequence(&keys[1]).await, Some(3));
    assert_eq!(next_sequence(&keys[2]).await, None);
    assert_eq!(next_sequence(&keys[3]).await, Some(2));
    assert_eq!(owner.load(store, &keys[0]).await.expect("a key record").state, None);
    assert!(owner.spilled(store, &keys[0], 0).await.is_empty());
    assert_eq!(owner.due(store, 10).await, (vec![], None));
}

/// A load returns key records until their total size reaches the limit, but at least the record of the first key.
pub async fn load_stops_at_the_size_limit(fixture: &mut impl Fixture) {
    const STATE_BYTES: usize = 10_000;
    let store = fixture.store();
    let mut owner = Owner::claim(store, "s", 0).await;
    let keys = owner.keys(4);
    for key in &keys {
        let mut write = first_write(key);
        write.state = StateUpdate::Put(vec![1; STATE_BYTES].into());
        owner.write(store, write).await;
    }
    let other = Owner::claim(store, "s", 1).await;
    let cases = [(0, 1), (STATE_BYTES, 1), (STATE_BYTES * 5 / 2, 3), (usize::MAX, 4)];
    for (round, (bytes, expected)) in (2..).zip(cases) {
        let loaded = store.load(&other.partition, &keys, bytes).await.expect("a load");
        assert_eq!(loaded.len(), expected, "a load of {bytes} bytes");
        for snapshot in loaded {
            let snapshot = snapshot.expect("readable").expect("a key record");
            let state_size = snapshot.state.map_or(0, |state| state.len());
            assert_eq!((state_size, snapshot.record.partition), (STATE_BYTES, 1));
        }
        // A load does not change the partition of the keys that it did not return.
        if expected < keys.len() {
            owner.write(store, next_write(&keys[3], round)).await;
        }
    }
}

/// The store accepts any text up to the size limit as a key, and refuses only a longer text.
pub async fn any_text_up_to_the_size_limit_is_accepted_as_key(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut owner = Owner::claim(store, "strøm", 0).await;
    let longest = "\0".repeat(KEY_SIZE_LIMIT);
    let names = ["", "\0", "a", "a\0", "a\0b", "ab", "ключ", "{tag}", "a:b/c%d", &longest];
    for (number, name) in names.into_iter().enumerate() {
        let mut write = first_write(name);
        write.state = StateUpdate::Put(number.to_string().into());
        write.spill = vec![(7, event(name, 7, name))];
        write.record.spilled.add(7);
        write.due_in = Some(60_000);
        write.expire_in = Some(120_000);
        owner.write(store, write).await;
    }
    for (number, name) in names.into_iter().enumerate() {
        let loaded = owner.load(store, name).await.expect("a key record");
        assert_eq!(loaded.state, Some(number.to_string().into()), "{name:?}");
        assert_eq!(owner.spilled(store, name, 0).await, [7]);
    }
    let too_long = "k".repeat(KEY_SIZE_LIMIT + 1);
    let applied = owner.commit(store, vec![first_write(&too_long)]).await;
    assert!(matches!(&applied.refused[..], [(0, WriteRefusal::Corrupt(_))]), "{applied:?}");
    let loaded =
        store.load(&owner.partition, &[too_long.into()], usize::MAX).await.expect("a load");
    assert!(loaded[0].is_err());
}

/// If a key record is unreadable, a commit refuses only the write of this key. A load returns an error for this key,
/// and returns the records of the other keys.
pub async fn damaged_record_affects_no_other_key(fixture: &mut impl Fixture) {
    let mut owner = Owner::claim(fixture.store(), "s", 0).await;
    let keys = owner.keys(3);
    for key in &keys {
        owner.write(fixture.store(), first_write(key)).await;
    }
    fixture.overwrite_record("s", &keys[1], b"no record".to_vec()).await;
    let store = fixture.store();
    let writes = keys.iter().map(|key| next_write(key, 2)).collect();
    let applied = owner.commit(store, writes).await;
    assert!(matches!(&applied.refused[..], [(1, WriteRefusal::Corrupt(_))]), "{applied:?}");
    let loaded = store.load(&owner.partition, &keys, usize::MAX).await.expect("a load");
    let sequences: Vec<Option<u64>> = loaded
        .iter()
        .map(|result| result.as_ref().ok()?.as_ref().map(|snapshot| snapshot.record.next))
        .collect();
    assert_eq!(sequences, [Some(3), None, Some(3)]);
    assert!(loaded[1].is_err());
    let first_again = owner.commit(store, vec![first_write(&keys[1])]).await;
    assert!(matches!(&first_again.refused[..], [(0, WriteRefusal::Corrupt(_))]));
}

/// All data is unchanged after the store is closed and opened again.
pub async fn data_is_unchanged_after_reopening(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut owner = Owner::claim(store, "s", 3).await;
    let mut write = record_write("a", WriteCondition::Absent, KeyRecord::new(4, 3));
    write.state = StateUpdate::Put("state".into());
    write.spill = vec![(6, event("a", 6, "six"))];
    write.record.spilled.add(6);
    write.due_in = Some(0);
    owner.write(store, write).await;
    let before = owner.load(store, "a").await.expect("a key record");

    fixture.reopen().await;
    let store = fixture.store();
    let after = owner.load(store, "a").await.expect("a key record");
    assert_eq!(KeySnapshot { now: before.now, ..*after }, *before);
    assert_eq!(owner.spilled(store, "a", 0).await, [6]);
    assert_eq!(owner.due(store, 10).await, (vec!["a".to_owned()], None));
    let batch = owner.batch(vec![record_write("a", WriteCondition::Next(4), KeyRecord::new(5, 3))]);
    assert!(
        matches!(owner.send(store, &batch).await, CommitReply::Applied(_)),
        "the claim must still be valid"
    );
}
