//! Tests that the simulated store follows the rules of the real stores.

use std::sync::Arc;

use bytes::Bytes;
use ordain_core::{
    Batch, CommitReply, Event, EventParts, Key, KeyRecord, KeyWrite, StateUpdate, WriteCondition,
    WriteRefusal,
};

use super::{Claim, Store};

fn write(expect: WriteCondition, next: u64) -> KeyWrite {
    KeyWrite {
        key: Key::from("k"),
        condition: expect,
        record: KeyRecord { next, ..KeyRecord::new(1, 0) },
        state: StateUpdate::Put(Bytes::from_static(b"s")),
        messages: Vec::new(),
        letters: Vec::new(),
        removed_letters: Vec::new(),
        spill: Vec::new(),
        ids: [].into_iter().collect(),
        due_in: None,
        expire_in: None,
    }
}

fn batch(number: u64, writes: Vec<KeyWrite>) -> Batch {
    Batch { shard: 0, number, writes, letters: Vec::new(), forward: false, repeated: false }
}

fn event(sequence: u64, data: &[u8]) -> Arc<Event> {
    let sequence = Some(sequence);
    Arc::new(Event::new(&EventParts { key: "k", sequence, data, ..EventParts::default() }))
}

fn refused(reply: &CommitReply) -> Option<&WriteRefusal> {
    match reply {
        CommitReply::Applied(applied) => applied.refused.first().map(|(_, refusal)| refusal),
        _ => None,
    }
}

fn claimed(store: &mut Store, partition: u32) -> Claim {
    store.claim(partition, 1).0
}

#[test]
fn repeated_commit_gets_its_first_reply_and_is_not_applied_again() {
    let mut store = Store::new(1);
    let claim = claimed(&mut store, 0);
    let first = batch(1, vec![write(WriteCondition::Absent, 2)]);
    let (reply, applied) = store.commit(0, claim, &first, 5);
    assert!(applied && refused(&reply).is_none());
    assert_eq!(store.commit(0, claim, &first, 9), (reply, false));
}

#[test]
fn commits_with_another_claim_or_a_wrong_number_are_refused() {
    let mut store = Store::new(1);
    let old = claimed(&mut store, 0);
    let new = claimed(&mut store, 0);
    let one = batch(1, vec![write(WriteCondition::Absent, 2)]);
    assert_eq!(store.commit(0, old, &one, 0).0, CommitReply::Fenced);
    let other = Claim { random: 77, ..new };
    assert!(matches!(store.commit(0, other, &one, 0).0, CommitReply::RolledBack { .. }));
    let three = batch(3, vec![]);
    assert!(matches!(store.commit(0, new, &three, 0).0, CommitReply::RolledBack { .. }));
    assert!(matches!(store.commit(0, new, &one, 0).0, CommitReply::Applied(_)));
}

#[test]
fn writes_whose_condition_fails_are_refused() {
    let mut store = Store::new(1);
    let claim = claimed(&mut store, 0);
    let (reply, _) = store.commit(0, claim, &batch(1, vec![write(WriteCondition::Next(1), 2)]), 0);
    assert_eq!(refused(&reply), Some(&WriteRefusal::Next(None)));
    store.commit(0, claim, &batch(2, vec![write(WriteCondition::Absent, 2)]), 0);
    let (reply, _) = store.commit(0, claim, &batch(3, vec![write(WriteCondition::Absent, 3)]), 0);
    assert_eq!(refused(&reply), Some(&WriteRefusal::Next(Some(2))));
    store.load(1, &Key::from("k"), 0).expect("readable");
    let (reply, _) = store.commit(0, claim, &batch(4, vec![write(WriteCondition::Next(2), 3)]), 0);
    assert_eq!(refused(&reply), Some(&WriteRefusal::Partition(2)));
}

#[test]
fn spilled_events_are_stored_once_and_removed_when_settled() {
    let mut store = Store::new(1);
    let claim = claimed(&mut store, 0);
    let mut spill = write(WriteCondition::Absent, 1);
    spill.spill = vec![(2, event(2, b"a")), (3, event(3, b"b"))];
    spill.record.spilled.count = 2;
    store.commit(0, claim, &batch(1, vec![spill.clone()]), 0);
    spill.condition = WriteCondition::Next(1);
    spill.spill = vec![(2, event(2, b"other"))];
    let (reply, _) = store.commit(0, claim, &batch(2, vec![spill]), 0);
    let CommitReply::Applied(applied) = reply else { panic!("{reply:?}") };
    assert!(!applied.existing_spills[0].same);
    let mut settle = write(WriteCondition::Next(1), 3);
    settle.record.spilled.count = 1;
    store.commit(0, claim, &batch(3, vec![settle]), 0);
    let (events, end) = store.read_spill(&Key::from("k"), 0, 9, 9_999);
    assert_eq!((events.len(), events[0].0, end), (1, 3, true));
}

#[test]
fn records_expire_and_due_entries_move_with_their_key() {
    let mut store = Store::new(1);
    let claim = claimed(&mut store, 0);
    let mut dies = write(WriteCondition::Absent, 2);
    dies.expire_in = Some(100);
    dies.due_in = Some(50);
    store.commit(0, claim, &batch(1, vec![dies]), 0);
    assert_eq!(store.due(0, None, 9, false, 10).1, Some(40));
    store.load(1, &Key::from("k"), 0).expect("readable");
    assert_eq!(store.due(1, None, 9, false, 60).0.len(), 1);
    assert_eq!(store.due(0, None, 9, true, 60), (vec![], None));
    assert_eq!(store.expire(99).len(), 0);
    assert_eq!(store.expire(100).len(), 1);
}
