//! Tests of a store that goes back in time. The store loses all data of the lost commits. It then refuses the owner's
//! next commit, because the number of this commit does not follow the last number in the store. When the owner has
//! repeated the lost commits under their numbers, the store has the same data again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use ordain_core::{
    AcceptedId, AppliedCommit, Batch, CommitReply, DeadLetter, Key, KeyRecord, KeyWrite,
    LetterContent, LetterId, StateUpdate, WriteCondition,
};
use ordain_store::{ClaimedPartition, Mark, Partition, Store, StoreError, StoredLetter};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::leases::{acquire, heartbeat, partition_and_ids};
use super::letters::letter;
use super::outbox::{emitting, numbers, sink_marks};
use super::{
    Fixture, Owner, event, first_write, key_record, letters, next_write, outbox, record_write,
};

/// Longer than even a slow test takes.
const LATER_MS: u64 = 600_000;
/// The part of `LATER_MS` that may pass during a slow test.
const SLACK_MS: u64 = 60_000;

/// The stream forwards its dead letters. `letters` are orphan dead letters.
fn forwarding(owner: &mut Owner, writes: Vec<KeyWrite>, letters: Vec<DeadLetter>) -> Arc<Batch> {
    let batch = owner.batch(writes);
    Arc::new(Batch { letters, forward: true, ..(*batch).clone() })
}

async fn apply(store: &dyn Store, owner: &Owner, batch: &Arc<Batch>) -> AppliedCommit {
    match owner.send(store, batch).await {
        CommitReply::Applied(applied) => {
            assert_eq!(applied.refused, []);
            applied
        }
        other => panic!("commit {} is not applied: {other:?}", batch.number),
    }
}

/// The repeated batch has the times that the store set at the first commit.
fn repeated(batch: &Batch, first: &AppliedCommit) -> Arc<Batch> {
    let mut batch = batch.clone();
    for write in &mut batch.writes {
        write.record.fill_times(first.time);
    }
    Arc::new(batch)
}

/// The store lacks the preceding commit, and must refuse the batch. `last` is the last commit of this owner that the
/// store has.
async fn assert_detected(store: &dyn Store, owner: &Owner, batch: &Arc<Batch>, last: Option<u64>) {
    let reply = owner.send(store, batch).await;
    let is_detected =
        matches!(&reply, CommitReply::RolledBack { last: found, .. } if *found == last);
    assert!(is_detected, "the store must refuse commit {}: {reply:?}", batch.number);
}

/// Omits the times, because a repeated commit gives its letters another time.
fn contents(rows: Vec<StoredLetter>) -> Vec<DeadLetter> {
    rows.into_iter().map(|row| row.letter).collect()
}

/// The store loses a commit together with its dead letters, both letters of keys and orphan letters. The store does not
/// apply the next commit until the owner has repeated the lost commit. Then the store has the same letters again, each
/// once.
pub async fn lost_letters_are_written_again(fixture: &mut impl Fixture) {
    let mut owner = Owner::claim(fixture.store(), "s", 0).await;
    let keys = owner.keys(3);
    let mut write = first_write(&keys[0]);
    write.letters = vec![letter(&keys[0], 1, 0, LetterContent::Nothing)];
    owner.write(fixture.store(), write).await;
    let before = letters::all(fixture.store(), None, 10).await;
    assert_eq!(before.len(), 1);
    fixture.take_snapshot().await;

    let store = fixture.store();
    let mut write = first_write(&keys[1]);
    let content = LetterContent::Event(event(&keys[1], 1, "whole"));
    write.letters = vec![letter(&keys[1], 1, 5, content)];
    let lost_id = write.letters[0].id.clone();
    let raw = LetterContent::Raw(Bytes::from_static(b"\xff\0raw"));
    let orphans = vec![letter(&keys[2], 7, 1, raw.clone()), letter("", 0, 1, raw)];
    let lost = forwarding(&mut owner, vec![write], orphans);
    let first = apply(store, &owner, &lost).await;
    let complete = contents(letters::all(store, None, 10).await);
    assert_eq!(complete.len(), 4);

    fixture.go_back().await;
    let later = owner.batch(vec![next_write(&keys[0], 2)]);
    for _ in 0..2 {
        let store = fixture.store();
        assert_eq!(letters::all(store, None, 10).await, before);
        assert_eq!(store.letter("s", &lost_id).await.expect("a read"), None);
        assert_eq!(owner.load(store, &keys[0]).await.expect("a key record").record.next, 2);
        assert_detected(store, &owner, &later, Some(1)).await;
    }
    // The owner sends the repeated commit twice, as after a lost answer.
    let store = fixture.store();
    for _ in 0..2 {
        let reply = apply(store, &owner, &repeated(&lost, &first)).await;
        assert!(reply.existing_letters.is_empty());
        assert_eq!(contents(letters::all(store, None, 10).await), complete);
    }
    apply(store, &owner, &later).await;
    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(contents(letters::all(store, None, 10).await), complete);
    let found = store.letter("s", &lost_id).await.expect("a read");
    assert_eq!(found.map(|row| row.letter.id), Some(lost_id));
}

/// If the store loses a commit that removed a letter, the store has this letter again, with its content and its time.
/// The repeated commit removes the letter again.
pub async fn removed_letters_reappear_until_the_commit_is_repeated(fixture: &mut impl Fixture) {
    let mut owner = Owner::claim(fixture.store(), "s", 0).await;
    let content = LetterContent::Event(event("a", 2, "far"));
    let far = letter("a", 2, 1, content);
    let mut write = record_write("a", WriteCondition::Absent, key_record(1));
    write.letters = vec![far.clone(), letter("a", 9, 1, LetterContent::Nothing)];
    owner.write(fixture.store(), write).await;
    let before = letters::all(fixture.store(), None, 10).await;
    assert_eq!(before.len(), 2);
    fixture.take_snapshot().await;

    // The event of the first letter takes effect, so the write removes its letter. A new letter replaces the second
    // letter.
    let mut write = record_write("a", WriteCondition::Next(1), key_record(3));
    write.removed_letters = vec![far.id.clone(), letter("a", 9, 1, LetterContent::Nothing).id];
    let other = letter("a", 9, 1, LetterContent::Raw(Bytes::from_static(b"other")));
    write.letters = vec![other.clone()];
    let lost = owner.batch(vec![write]);
    let first = apply(fixture.store(), &owner, &lost).await;
    assert_eq!(
        contents(letters::all(fixture.store(), None, 10).await),
        std::slice::from_ref(&other)
    );

    fixture.go_back().await;
    let store = fixture.store();
    assert_eq!(letters::all(store, None, 10).await, before);
    assert_eq!(store.letter("s", &far.id).await.expect("a read"), Some(before[0].clone()));
    apply(store, &owner, &repeated(&lost, &first)).await;
    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(contents(letters::all(store, None, 10).await), [other]);
    assert_eq!(store.letter("s", &far.id).await.expect("a read"), None);
}

/// The owner repeats a lost commit. Each letter that the commit had added to the outbox must then be in the outbox
/// again, exactly once, even if the letter was published before the loss. A removal that arrives between the loss and
/// the repetition does not remove these letters, even if it names the lost commit.
pub async fn lost_letters_are_forwarded_again(fixture: &mut impl Fixture) {
    let mut owner = Owner::claim(fixture.store(), "s", 0).await;
    let store = fixture.store();
    let keys = owner.keys(2);
    let known = letter("", 0, 1, LetterContent::Nothing);
    let batch = forwarding(&mut owner, vec![first_write(&keys[0])], vec![known.clone()]);
    let shard = batch.shard;
    apply(store, &owner, &batch).await;
    let last_commit = store.outbox_done(&owner.partition, owner.claim, shard, 1, &[]).await;
    assert_eq!(last_commit.expect("an answer"), Some(1));
    fixture.take_snapshot().await;

    let store = fixture.store();
    let mut write = emitting(first_write(&keys[1]), &[(1, 0)]);
    write.letters = vec![letter(&keys[1], 1, 0, LetterContent::Nothing)];
    let new = letter("", 0, 2, LetterContent::Nothing);
    let lost = forwarding(&mut owner, vec![write], vec![known, new.clone()]);
    let first = apply(store, &owner, &lost).await;
    assert_eq!(first.existing_letters, [0]);
    let entries = outbox::all(store, &owner, &keys[0], 10).await;
    assert_eq!(numbers(&entries), [2]);
    assert_eq!(entries[0].letters, [lost.writes[0].letters[0].clone(), new]);
    let last_commit = store.outbox_done(&owner.partition, owner.claim, shard, 2, &[]).await;
    assert_eq!(last_commit.expect("an answer"), Some(2));
    assert_eq!(outbox::all(store, &owner, &keys[0], 10).await, []);

    fixture.go_back().await;
    let store = fixture.store();
    assert_eq!(outbox::all(store, &owner, &keys[0], 10).await, []);
    // The reply names commit 1 as the last commit, which shows that the store lacks commit 2.
    let last_commit = store.outbox_done(&owner.partition, owner.claim, shard, 2, &[]).await;
    assert_eq!(last_commit.expect("an answer"), Some(1));
    for _ in 0..2 {
        let again = apply(store, &owner, &repeated(&lost, &first)).await;
        assert_eq!(again.existing_letters, [0]);
        assert_eq!(outbox::all(store, &owner, &keys[0], 10).await, entries);
    }
    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(outbox::all(store, &owner, &keys[0], 10).await, entries);
    let last_commit = store.outbox_done(&owner.partition, owner.claim, shard, 2, &[]).await;
    assert_eq!(last_commit.expect("an answer"), Some(2));
    assert_eq!(outbox::all(store, &owner, &keys[0], 10).await, []);
}

/// The store loses a removal from the outbox together with the marks of the removal. The owner can repeat the removal.
/// An owner whose claim is lost cannot remove any entries.
pub async fn lost_removals_from_the_outbox_can_be_repeated(fixture: &mut impl Fixture) {
    let mut owner = Owner::claim(fixture.store(), "s", 0).await;
    let shard = owner.shard("a");
    owner.write(fixture.store(), emitting(first_write("a"), &[(1, 0)])).await;
    owner.write(fixture.store(), emitting(next_write("a", 2), &[(2, 0)])).await;
    let entries = outbox::all(fixture.store(), &owner, "a", 10).await;
    let marks = sink_marks(fixture);
    fixture.take_snapshot().await;

    let store = fixture.store();
    let last_commit = store.outbox_done(&owner.partition, owner.claim, shard, 1, &marks).await;
    assert_eq!(last_commit.expect("an answer"), Some(2));
    assert_eq!(outbox::all(store, &owner, "a", 10).await, entries[1..]);
    let other = Owner::claim(store, "s", 0).await;
    let last_commit = store.outbox_done(&other.partition, other.claim, shard, 2, &marks).await;
    assert_eq!(last_commit.expect("an answer"), Some(2));

    fixture.go_back().await;
    let store = fixture.store();
    assert_eq!(outbox::all(store, &owner, "a", 10).await, entries);
    for mark in &marks {
        assert_eq!(store.mark(&mark.name).await.expect("a mark"), None);
    }
    let last_commit = store.outbox_done(&other.partition, other.claim, shard, 2, &marks).await;
    assert_eq!(last_commit.expect("an answer"), None, "the store must have lost the claim");
    assert_eq!(outbox::all(store, &owner, "a", 10).await, entries);
    for mark in &marks {
        assert_eq!(store.mark(&mark.name).await.expect("a mark"), None);
    }
    let last_commit = store.outbox_done(&owner.partition, owner.claim, shard, 1, &marks).await;
    assert_eq!(last_commit.expect("an answer"), Some(2));
    assert_eq!(outbox::all(store, &owner, "a", 10).await, entries[1..]);
    for mark in &marks {
        assert_eq!(store.mark(&mark.name).await.expect("a mark"), Some(mark.value.clone()));
    }
}

/// If the store loses a commit, it loses the events that the commit spilled. The spilled events that the commit settled
/// are in the store again. The repeated commit spills and settles the same events.
pub async fn lost_spills_are_repeated_with_their_commit(fixture: &mut impl Fixture) {
    let mut owner = Owner::claim(fixture.store(), "s", 0).await;
    let spilling = |condition, next_sequence, new: &[u64], all: &[u64]| {
        let mut write = record_write("a", condition, key_record(next_sequence));
        write.spill =
            new.iter().map(|sequence| (*sequence, event("a", *sequence, "held"))).collect();
        for sequence in all {
            write.record.spilled.add(*sequence);
        }
        write
    };
    let write = spilling(WriteCondition::Absent, 1, &[2, 5], &[2, 5]);
    owner.write(fixture.store(), write).await;
    fixture.take_snapshot().await;
    let write = spilling(WriteCondition::Next(1), 3, &[5, 8], &[5, 8]);
    let lost = owner.batch(vec![write]);
    let first = apply(fixture.store(), &owner, &lost).await;
    assert_eq!(first.existing_spills.len(), 1);
    assert_eq!(owner.spilled(fixture.store(), "a", 0).await, [5, 8]);

    fixture.go_back().await;
    let store = fixture.store();
    assert_eq!(owner.spilled(store, "a", 0).await, [2, 5]);
    let again = apply(store, &owner, &repeated(&lost, &first)).await;
    assert_eq!(again.existing_spills, first.existing_spills);
    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(owner.spilled(store, "a", 0).await, [5, 8]);
    let found = store.find_missing(&owner.partition, &"a".into(), &[1..=9], 0).await;
    let found = found.expect("an answer").expect("events");
    assert_eq!(found.events.iter().map(|(sequence, _)| *sequence).collect::<Vec<_>>(), [5, 8]);
}

/// If the store loses a commit that moved or removed a due entry, the entry has its earlier time again. The repeated
/// commit moves or removes the entry again.
pub async fn due_entries_roll_back_with_their_commit(fixture: &mut impl Fixture) {
    let mut owner = Owner::claim(fixture.store(), "s", 0).await;
    let keys = owner.keys(3);
    for key in &keys[..2] {
        let mut write = first_write(key);
        write.due_in = Some(10_000);
        owner.write(fixture.store(), write).await;
    }
    fixture.take_snapshot().await;
    let mut moved = next_write(&keys[0], 2);
    moved.due_in = Some(LATER_MS);
    let mut new = first_write(&keys[2]);
    new.due_in = Some(0);
    let lost = owner.batch(vec![moved, next_write(&keys[1], 2), new]);
    let first = apply(fixture.store(), &owner, &lost).await;
    fixture.advance_clock(20_000).await;
    assert_eq!(owner.due(fixture.store(), 10).await.0, [keys[2].to_string()]);

    fixture.go_back().await;
    let store = fixture.store();
    let earlier = [keys[0].to_string(), keys[1].to_string()];
    assert_eq!(owner.due(store, 10).await, (earlier.to_vec(), None));
    assert_eq!(owner.load(store, &keys[0]).await.expect("a key record").due_in, Some(0));
    apply(store, &owner, &repeated(&lost, &first)).await;
    for reopened in [false, true] {
        let (due, remaining) = owner.due(fixture.store(), 10).await;
        assert_eq!(due, [keys[2].to_string()], "{reopened}");
        assert!(remaining.is_some_and(|ms| ms > LATER_MS - SLACK_MS), "{remaining:?}");
        fixture.reopen().await;
    }
}

/// If the store goes back in time, marks and the checkpoint of a source have their earlier values. The owner whose
/// claim is in the store can write them again. An owner whose claim is lost cannot write a checkpoint.
pub async fn marks_roll_back_and_checkpoint_of_lost_claim_is_refused(fixture: &mut impl Fixture) {
    let mark = |name: &str, value: &'static str| Mark { name: name.into(), value: value.into() };
    let checkpoint = async |store: &dyn Store, owner: &Owner, value: &'static str| {
        let disconnects = store.disconnects();
        let mark = mark("source/s", value);
        let put = store.put_checkpoint(&owner.partition, owner.claim, disconnects, &mark).await;
        (put.expect("an answer"), store.mark("source/s").await.expect("a mark"))
    };
    let store = fixture.store();
    let first = Owner::claim(store, "s", 0).await;
    store.put_marks(&[mark("kept", "1")]).await.expect("marks");
    assert_eq!(checkpoint(store, &first, "1").await, (true, Some("1".into())));
    store.flush().await.expect("a flush");
    fixture.take_snapshot().await;

    let store = fixture.store();
    store.put_marks(&[mark("kept", "2"), mark("new", "1")]).await.expect("marks");
    let second = Owner::claim(store, "s", 0).await;
    assert_eq!(checkpoint(store, &second, "2").await, (true, Some("2".into())));
    store.flush().await.expect("a flush");

    fixture.go_back().await;
    let store = fixture.store();
    assert_eq!(store.mark("kept").await.expect("a mark"), Some("1".into()));
    assert_eq!(store.mark("new").await.expect("a mark"), None);
    assert_eq!(checkpoint(store, &second, "3").await, (false, Some("1".into())));
    assert_eq!(checkpoint(store, &first, "4").await, (true, Some("4".into())));
    store.put_marks(&[mark("kept", "2"), mark("new", "1")]).await.expect("marks");
    store.flush().await.expect("a flush");
    fixture.reopen().await;
    let store = fixture.store();
    for (name, value) in [("kept", "2"), ("new", "1"), ("source/s", "4")] {
        assert_eq!(store.mark(name).await.expect("a mark"), Some(value.into()), "{name}");
    }
}

/// The epoch is that of a lease.
async fn owner_of(store: &dyn Store, partition: &Partition, epoch: u64) -> Owner {
    let claimed = store.claim(partition, epoch).await.expect("a claim");
    let ClaimedPartition { claim, commits } = claimed;
    Owner { partition: partition.clone(), claim, numbers: commits }
}

/// A store that goes back in time loses a lease, and may grant another instance a lease with the same epoch. The store
/// then accepts commits only under the claim of this instance. The holder of the lost lease can neither commit, claim
/// nor release.
pub async fn lost_lease_gives_no_rights(fixture: &mut impl Fixture) {
    let (partition, [one, other]) = partition_and_ids();
    let store = fixture.store();
    heartbeat(store, one, "one", 0).await;
    let first = acquire(store, &partition, one).await;
    let mut older = owner_of(store, &partition, first).await;
    let write = |condition, next_sequence| {
        record_write("a", condition, KeyRecord::new(next_sequence, partition.number))
    };
    older.write(store, write(WriteCondition::Absent, 2)).await;
    store.release(&partition, one, first).await.expect("an answer");
    fixture.take_snapshot().await;

    let store = fixture.store();
    heartbeat(store, other, "other", 0).await;
    let second = acquire(store, &partition, other).await;
    let mut lost = owner_of(store, &partition, second).await;
    lost.write(store, write(WriteCondition::Next(2), 3)).await;
    let late = lost.batch(vec![write(WriteCondition::Next(3), 4)]);
    let known = store.table().await.expect("a table");
    assert_eq!(known.holder(&partition), Some(other));

    fixture.go_back().await;
    let store = fixture.store();
    let table = store.table().await.expect("a table");
    assert_eq!(table.holder(&partition), None);
    assert!(table.leases.get(&partition).is_none_or(|lease| lease.epoch == first), "{table:?}");
    let table = heartbeat(store, other, "other", known.membership_version).await;
    let table = table.expect("the table has changed");
    assert_eq!(table.holder(&partition), None);
    assert_detected(store, &lost, &late, None).await;

    heartbeat(store, one, "one", 0).await;
    let third = acquire(store, &partition, one).await;
    assert_eq!(
        third, second,
        "the store lacks the lost lease, so the new lease has the same epoch"
    );
    let mut newer = owner_of(store, &partition, third).await;
    assert_ne!(newer.claim.random, lost.claim.random);
    assert_detected(store, &lost, &late, None).await;
    let refused = store.claim(&partition, second).await;
    assert!(matches!(refused, Err(StoreError::InUse(_))), "{refused:?}");
    store.release(&partition, other, second).await.expect("an answer");
    assert_eq!(store.table().await.expect("a table").holder(&partition), Some(one));
    let behind = older.batch(vec![write(WriteCondition::Next(2), 3)]);
    assert_eq!(older.send(store, &behind).await, CommitReply::Fenced);
    newer.write(store, write(WriteCondition::Next(2), 3)).await;
    assert_detected(store, &lost, &late, None).await;
    assert_eq!(newer.load(store, "a").await.expect("a key record").record.next, 3);
}

/// The holder of a lost lease may write its claim after the store has gone back in time. The next lease then has a
/// higher epoch than this claim, although the store does not have the lost lease.
pub async fn claim_with_a_lost_lease_raises_the_next_epoch(fixture: &mut impl Fixture) {
    let (partition, [one, other]) = partition_and_ids();
    let store = fixture.store();
    heartbeat(store, one, "one", 0).await;
    let first = acquire(store, &partition, one).await;
    owner_of(store, &partition, first).await;
    store.release(&partition, one, first).await.expect("an answer");
    fixture.take_snapshot().await;
    heartbeat(fixture.store(), other, "other", 0).await;
    let second = acquire(fixture.store(), &partition, other).await;

    fixture.go_back().await;
    let store = fixture.store();
    let mut late = owner_of(store, &partition, second).await;
    heartbeat(store, one, "one", 0).await;
    let third = acquire(store, &partition, one).await;
    assert!(third > second, "epoch {third} after a claim with epoch {second}");
    let mut newer = owner_of(store, &partition, third).await;
    let write = |condition| record_write("a", condition, KeyRecord::new(2, partition.number));
    let fenced = late.batch(vec![write(WriteCondition::Absent)]);
    assert_eq!(late.send(store, &fenced).await, CommitReply::Fenced);
    newer.write(store, write(WriteCondition::Absent)).await;
}

#[derive(Debug, Clone, Default)]
struct ExpectedKey {
    /// 0 if the store has no key record.
    next: u64,
    incarnation: u64,
    spilled: BTreeSet<u64>,
    letters: BTreeSet<LetterId>,
}

/// The write has data of all kinds. Updates the expected data `known`.
fn random_write(rng: &mut ChaCha8Rng, key: &Key, known: &mut ExpectedKey) -> KeyWrite {
    let condition =
        if known.next == 0 { WriteCondition::Absent } else { WriteCondition::Next(known.next) };
    let from = known.next.max(1);
    known.next = from + rng.random_range(0..3);
    let mut write = record_write(key, condition, key_record(known.next));
    write.record.incarnation = known.incarnation;
    let mut emitted = Vec::new();
    for sequence in from..known.next {
        let content = sequence as u32;
        write.ids.push(AcceptedId { sequence, id: sequence + 100, content, source: 0 });
        match rng.random_range(0..3) {
            0 => emitted.push((sequence, 0)),
            1 => {
                let content = LetterContent::Event(event(key, sequence, "dead"));
                write.letters.push(letter(key, sequence, 0, content));
            }
            _ => {}
        }
    }
    write.record.ids_from = known.next.saturating_sub(4).max(1);
    for _ in 0..rng.random_range(0..3) {
        let sequence = known.next + rng.random_range(1..20);
        if known.spilled.insert(sequence) {
            write.spill.push((sequence, event(key, sequence, "held")));
        }
    }
    write.spill.sort_by_key(|(sequence, _)| *sequence);
    known.spilled = known.spilled.split_off(&known.next);
    for sequence in &known.spilled {
        write.record.spilled.add(*sequence);
    }
    if rng.random_ratio(1, 3)
        && let Some(removed) = known.letters.pop_first()
    {
        write.removed_letters.push(removed);
    }
    known.letters.extend(write.letters.iter().map(|letter| letter.id.clone()));
    write.state = match rng.random_range(0..4) {
        0 => StateUpdate::Keep,
        1 => StateUpdate::Delete,
        // This state is too large to be stored within the key record.
        2 => StateUpdate::Put(vec![rng.random(); 3_000].into()),
        _ => StateUpdate::Put(vec![rng.random(); 10].into()),
    };
    write.due_in = rng.random_ratio(1, 2).then_some(LATER_MS);
    emitting(write, &emitted)
}

/// The batch is random. Returns its reply, too.
async fn random_commit(
    store: &dyn Store,
    rng: &mut ChaCha8Rng,
    owner: &mut Owner,
    keys: &mut BTreeMap<Key, ExpectedKey>,
) -> (Arc<Batch>, AppliedCommit) {
    let written: Vec<Key> = keys.keys().filter(|_| rng.random_bool(0.5)).cloned().collect();
    let first = keys.keys().next().expect("a key").clone();
    let written = if written.is_empty() { vec![first] } else { written };
    let mut writes = Vec::new();
    for key in &written {
        let known = keys.get_mut(key).expect("a known key");
        writes.push(random_write(rng, key, known));
    }
    let orphans = (0..rng.random_range(0..2))
        .map(|_| letter("", 0, rng.random_range(1..5), LetterContent::Nothing));
    let batch = forwarding(owner, writes, orphans.collect());
    let applied = apply(store, owner, &batch).await;
    for key in &written {
        let known = keys.get_mut(key).expect("a known key");
        known.incarnation = if known.incarnation == 0 { applied.time } else { known.incarnation };
    }
    (batch, applied)
}

/// Returns all visible data of the keys of one shard, without the times that a repeated commit changes.
async fn visible(
    store: &dyn Store,
    owner: &Owner,
    keys: &BTreeMap<Key, ExpectedKey>,
) -> Vec<String> {
    let mut lines = Vec::new();
    for key in keys.keys() {
        let Some(loaded) = owner.load(store, key).await else {
            lines.push(format!("{key} is absent"));
            continue;
        };
        let spilled = owner.spilled(store, key, loaded.record.next).await;
        let due = loaded.due_in.is_some();
        lines.push(format!("{key}: {:?} due {due} spilled {spilled:?}", loaded.record));
        lines.push(format!("{key}: {:?} {:?}", loaded.ids, loaded.state));
    }
    let due = store.due(&owner.partition, None, 100, true).await.expect("the due index").0;
    let due: BTreeSet<Key> = due.into_iter().map(|(_, key)| key).collect();
    lines.push(format!("due {due:?}"));
    lines.extend(
        contents(letters::all(store, None, 100).await).iter().map(|letter| format!("{letter:?}")),
    );
    let key = keys.keys().next().expect("a key");
    let entries = outbox::all(store, owner, key, 100).await;
    lines.extend(entries.iter().map(|entry| format!("{entry:?}")));
    lines
}

/// The store loses random commits with data of all kinds. After the loss, the store has the same data as before these
/// commits. After the owner has repeated the commits, the store has the same data as before the loss. The store loses
/// the same commits twice, and each time the owner repeats them.
pub async fn repeated_commits_restore_all_data(fixture: &mut impl Fixture) {
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    let mut owner = Owner::claim(fixture.store(), "s", 0).await;
    let mut keys: BTreeMap<Key, ExpectedKey> =
        owner.keys(4).into_iter().map(|key| (key, ExpectedKey::default())).collect();
    for round in 0..12 {
        for _ in 0..rng.random_range(1..3) {
            random_commit(fixture.store(), &mut rng, &mut owner, &mut keys).await;
        }
        let newest = owner.numbers[owner.shard("key-0") as usize];
        let published = newest.saturating_sub(rng.random_range(0..4));
        let shard = owner.shard("key-0");
        let store = fixture.store();
        let last_commit =
            store.outbox_done(&owner.partition, owner.claim, shard, published, &[]).await;
        assert_eq!(last_commit.expect("an answer"), Some(newest));
        let before = visible(store, &owner, &keys).await;
        fixture.take_snapshot().await;
        let mut lost = Vec::new();
        for _ in 0..rng.random_range(1..5) {
            lost.push(random_commit(fixture.store(), &mut rng, &mut owner, &mut keys).await);
        }
        let complete = visible(fixture.store(), &owner, &keys).await;
        // A batch whose number follows the lost commits. The store must not apply this batch.
        let later = (*lost[0].0).clone();
        let later = Arc::new(Batch { number: newest + lost.len() as u64 + 1, ..later });
        for _ in 0..2 {
            fixture.go_back().await;
            let store = fixture.store();
            assert_eq!(visible(store, &owner, &keys).await, before, "round {round}");
            assert_detected(store, &owner, &later, Some(newest)).await;
            assert_eq!(visible(store, &owner, &keys).await, before, "round {round}");
            for (batch, first) in &lost {
                let batch = repeated(batch, first);
                let again = apply(store, &owner, &batch).await;
                assert_eq!(again.existing_letters, first.existing_letters, "round {round}");
                assert_eq!(again.existing_spills, first.existing_spills, "round {round}");
                if rng.random_ratio(1, 3) {
                    assert_eq!(apply(store, &owner, &batch).await, again, "round {round}");
                }
            }
            assert_eq!(visible(store, &owner, &keys).await, complete, "round {round}");
        }
    }
}
