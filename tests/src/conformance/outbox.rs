//! Tests of the outbox and of marks.

use std::sync::Arc;

use bytes::Bytes;
use ordain_core::{
    Batch, Cause, CommitReply, DeadLetter, EmittedMessage, KeyWrite, LetterContent, LetterId,
    Message, MessageParts, WriteCondition, WriteRefusal,
};
use ordain_store::{Claim, Mark, OutboxEntry, Store};

use super::{Fixture, Owner, first_write, key_record, next_write, record_write};

/// `index` determines which optional values the message has.
fn emitted(sequence: u64, index: u32) -> EmittedMessage {
    let data = format!("{sequence}.{index}");
    let message = Message::new(&MessageParts {
        sink: "out",
        key: index.is_multiple_of(2).then_some("other"),
        kind: "test",
        content_type: "text/plain",
        headers: &[("a", "b"), ("a", "c")],
        data: data.as_bytes(),
        delay_ms: (index == 3).then_some(5),
        end: index == 1,
    });
    EmittedMessage { sequence, index, event_digest: 0, message }
}

/// The messages have these sequences and indexes.
pub(super) fn emitting(mut write: KeyWrite, messages: &[(u64, u32)]) -> KeyWrite {
    write.messages = messages.iter().map(|(sequence, index)| emitted(*sequence, *index)).collect();
    write
}

/// Each call reads at most `limit` commits.
pub(super) async fn all(
    store: &dyn Store,
    owner: &Owner,
    key: &str,
    limit: usize,
) -> Vec<OutboxEntry> {
    let mut entries = Vec::new();
    let mut after = 0;
    loop {
        let shard = owner.shard(key);
        let read = store.outbox(&owner.partition, shard, after, limit).await.expect("the outbox");
        assert!(read.len() <= limit);
        let Some(last) = read.last() else { return entries };
        after = last.number;
        entries.extend(read);
    }
}

pub(super) fn numbers(entries: &[OutboxEntry]) -> Vec<u64> {
    entries.iter().map(|entry| entry.number).collect()
}

/// The outbox returns commits in order, and the messages of a commit in the order of the batch. Each message has all
/// values from which the outbox publisher forms the id of the message.
pub async fn entries_are_returned_in_order(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut owner = Owner::claim(store, "s", 0).await;
    let keys = owner.keys(3);
    let first = owner
        .commit(
            store,
            vec![
                emitting(first_write(&keys[0]), &[(1, 0), (1, 1), (2, 0)]),
                first_write(&keys[1]),
                emitting(first_write(&keys[2]), &[(1, 3)]),
            ],
        )
        .await;
    owner.write(store, first_write("without messages")).await;
    fixture.advance_clock(10).await;
    let store = fixture.store();
    let mut later = emitting(next_write(&keys[0], 2), &[(2, 2)]);
    later.record.incarnation = first.time;
    let second = owner.commit(store, vec![later]).await;
    assert!(second.time > first.time);

    for limit in [1, 10] {
        let entries = all(store, &owner, &keys[0], limit).await;
        assert_eq!(entries.len(), 2);
        assert_eq!(entries[0].number, 1);
        let messages = entries.iter().flat_map(|entry| &entry.messages);
        let found: Vec<_> = messages
            .map(|message| (message.key.clone(), message.incarnation, message.emitted.clone()))
            .collect();
        let expected = [
            (keys[0].clone(), first.time, emitted(1, 0)),
            (keys[0].clone(), first.time, emitted(1, 1)),
            (keys[0].clone(), first.time, emitted(2, 0)),
            (keys[2].clone(), first.time, emitted(1, 3)),
            (keys[0].clone(), first.time, emitted(2, 2)),
        ];
        assert_eq!(found, expected);
    }
}

/// The outbox contains only messages of applied writes.
pub async fn refused_writes_add_no_messages(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut owner = Owner::claim(store, "s", 0).await;
    let keys = owner.keys(2);
    let refused =
        emitting(record_write(&keys[0], WriteCondition::Next(4), key_record(5)), &[(4, 0)]);
    let applied = owner.commit(store, vec![refused.clone()]).await;
    assert_eq!(applied.refused, [(0, WriteRefusal::Next(None))]);
    assert_eq!(all(store, &owner, &keys[0], 10).await, []);
    owner.commit(store, vec![refused, emitting(first_write(&keys[1]), &[(1, 0)])]).await;
    let entries = all(store, &owner, &keys[0], 10).await;
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0].messages.len(), 1);
    assert_eq!(entries[0].messages[0].key, keys[1]);
}

/// Returns no marks if the store cannot write marks together with a removal from the outbox.
pub(super) fn sink_marks<F: Fixture>(_: &F) -> Vec<Mark> {
    let mark = Mark { name: "sink/receipts".to_owned(), value: Bytes::from_static(b"\0\xff12") };
    if F::MARKS_WITH_OUTBOX { vec![mark] } else { Vec::new() }
}

/// The store removes published entries from the outbox, and writes the marks about them in the same atomic write.
pub async fn published_entries_are_removed_and_their_marks_written(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut owner = Owner::claim(store, "s", 0).await;
    let shard = owner.shard("a");
    owner.write(store, emitting(first_write("a"), &[(1, 0)])).await;
    for sequence in 2..=5 {
        owner.write(store, emitting(next_write("a", sequence), &[(sequence, 0)])).await;
    }
    let marks = sink_marks(fixture);
    let store = fixture.store();
    let last_commit = store.outbox_done(&owner.partition, owner.claim, shard, 3, &marks).await;
    assert_eq!(
        last_commit.expect("an answer"),
        Some(5),
        "the reply must be the number of the last commit"
    );
    assert_eq!(numbers(&all(store, &owner, "a", 10).await), [4, 5]);
    for mark in &marks {
        assert_eq!(store.mark(&mark.name).await.expect("a mark"), Some(mark.value.clone()));
    }
    // A removal up to an earlier commit changes nothing.
    store.outbox_done(&owner.partition, owner.claim, shard, 2, &[]).await.expect("an answer");
    assert_eq!(numbers(&all(store, &owner, "a", 10).await), [4, 5]);

    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(numbers(&all(store, &owner, "a", 10).await), [4, 5]);
    for mark in marks {
        assert_eq!(store.mark(&mark.name).await.expect("a mark"), Some(mark.value));
    }
    // A removal under another claim changes nothing either: after the store has gone back in time, these commit numbers
    // may belong to other commits.
    let other = Claim { random: owner.claim.random ^ 1, ..owner.claim };
    let last_commit = store.outbox_done(&owner.partition, other, shard, 5, &[]).await;
    assert_eq!(last_commit.expect("an answer"), None);
    assert_eq!(numbers(&all(store, &owner, "a", 10).await), [4, 5]);
    // A removal beyond the last commit does not affect later commits.
    store.outbox_done(&owner.partition, owner.claim, shard, 1_000, &[]).await.expect("an answer");
    assert_eq!(all(store, &owner, "a", 10).await, []);
    owner.write(store, emitting(next_write("a", 6), &[(6, 0)])).await;
    assert_eq!(numbers(&all(store, &owner, "a", 10).await), [6]);
}

/// The store can write marks without a removal from an outbox. A later write replaces the value of a mark.
pub async fn marks_are_written_and_read(fixture: &mut impl Fixture) {
    let store = fixture.store();
    assert_eq!(store.mark("source/orders").await.expect("a read"), None);
    let mark = |name: &str, value: &'static str| Mark { name: name.into(), value: value.into() };
    let marks = [mark("source/orders", "1"), mark("source/order", "2"), mark("", "")];
    store.put_marks(&marks).await.expect("marks");
    store.put_marks(&[mark("source/orders", "3")]).await.expect("marks");
    store.flush().await.expect("a flush");
    fixture.reopen().await;
    let store = fixture.store();
    for (name, value) in [("source/orders", "3"), ("source/order", "2"), ("", "")] {
        assert_eq!(store.mark(name).await.expect("a mark"), Some(value.into()), "{name:?}");
    }
}

/// The store replaces a mark only if the mark still has the value that the caller has read. If two callers have read
/// the same value, only the first caller replaces the mark.
pub async fn mark_is_replaced_only_if_unchanged(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let replace = async |before: Option<&'static str>, value: &'static str| {
        let mark = Mark { name: "record".into(), value: value.into() };
        let before = before.map(Bytes::from);
        let replaced = store.replace_mark(&mark, before.as_ref()).await.expect("an answer");
        let found = store.mark("record").await.expect("a mark");
        (replaced, found.map(|value| String::from_utf8_lossy(&value).into_owned()))
    };
    let found = |value: &str| Some(value.to_owned());
    assert_eq!(replace(Some("1"), "2").await, (false, None));
    assert_eq!(replace(Some(""), "2").await, (false, None));
    assert_eq!(replace(None, "1").await, (true, found("1")));
    assert_eq!(replace(None, "2").await, (false, found("1")));
    assert_eq!(replace(Some("1"), "").await, (true, found("")));
    assert_eq!(replace(Some("1"), "3").await, (false, found("")));
    assert_eq!(replace(None, "3").await, (false, found("")));
    assert_eq!(replace(Some(""), "3").await, (true, found("3")));
    store.flush().await.expect("a flush");
    fixture.reopen().await;
    let kept = fixture.store().mark("record").await.expect("a mark");
    assert_eq!(kept, Some("3".into()));
}

/// A checkpoint depends on the commits of the owner that writes it. The store therefore refuses a checkpoint under a
/// claim that is not the current claim of the partition.
pub async fn checkpoint_under_another_claim_is_refused(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let owner = Owner::claim(store, "s", 0).await;
    let put = async |claim, value: &'static str| {
        let mark = Mark { name: "source/s".into(), value: value.into() };
        let put = store.put_checkpoint(&owner.partition, claim, store.disconnects(), &mark).await;
        (put.expect("an answer"), store.mark("source/s").await.expect("a mark"))
    };
    assert_eq!(put(owner.claim, "1").await, (true, Some("1".into())));
    let next = Owner::claim(store, "s", 0).await;
    assert_eq!(put(owner.claim, "2").await, (false, Some("1".into())));
    assert_eq!(put(next.claim, "3").await, (true, Some("3".into())));
}

fn letter(key: &str, sequence: u64, tag: u64) -> DeadLetter {
    DeadLetter {
        id: LetterId { key: key.into(), sequence, tag },
        cause: Cause::Rejected,
        error: format!("{sequence} and {tag}"),
        origin: None,
        version: Some("orders@1.0.0".into()),
        content: LetterContent::Raw(Bytes::from_static(b"\xff")),
    }
}

/// If a stream forwards its dead letters, a commit also adds its letters to the outbox. These are all letters of
/// applied writes, and the orphan dead letters that the store does not have yet. The reply to a commit names the orphan
/// dead letters that the store has.
pub async fn letters_are_forwarded_once(fixture: &mut impl Fixture) {
    let mut owner = Owner::claim(fixture.store(), "s", 0).await;
    let store = fixture.store();
    let keys = owner.keys(3);
    let forwarding = |owner: &mut Owner, writes: Vec<KeyWrite>, orphans: Vec<DeadLetter>| {
        let batch = Batch { forward: true, letters: orphans, ..(*owner.batch(writes)).clone() };
        Arc::new(batch)
    };
    // Without forwarding, the store writes the letters, but does not add them to the outbox.
    let mut unforwarded = emitting(first_write(&keys[0]), &[(1, 0)]);
    unforwarded.letters = vec![letter(&keys[0], 1, 9)];
    owner.write(store, unforwarded).await;

    let mut first = emitting(next_write(&keys[0], 2), &[(2, 0)]);
    first.letters = vec![letter(&keys[0], 2, 0), letter(&keys[0], 1, 9)];
    let mut refused = record_write(&keys[1], WriteCondition::Next(4), key_record(5));
    refused.letters = vec![letter(&keys[1], 4, 0)];
    let orphans = [letter("", 0, 1), letter(&keys[2], 7, 1), letter("", 0, 1)];
    let batch = forwarding(&mut owner, vec![first, refused], orphans.to_vec());
    let CommitReply::Applied(applied) = owner.send(store, &batch).await else {
        panic!("the commit is not applied")
    };
    assert_eq!(applied.refused, [(1, WriteRefusal::Next(None))]);
    assert_eq!(applied.existing_letters, [2]);
    let expected =
        [letter(&keys[0], 2, 0), letter(&keys[0], 1, 9), orphans[0].clone(), orphans[1].clone()];
    assert_eq!(batch.forwarded(&applied).cloned().collect::<Vec<_>>(), expected);

    // The store already has the letter `orphans[0]` from the earlier commit, so it forwards only the new letter.
    let again = [orphans[0].clone(), letter(&keys[2], 8, 1)];
    let again = forwarding(&mut owner, vec![first_write(&keys[2])], again.to_vec());
    for _ in 0..2 {
        let reply = owner.send(store, &again).await;
        let CommitReply::Applied(applied) = reply else { panic!("the commit is not applied") };
        assert_eq!(applied.existing_letters, [0]);
    }
    // This commit has no new letter, so it has nothing to publish.
    let without_new =
        forwarding(&mut owner, vec![next_write(&keys[2], 2)], vec![orphans[0].clone()]);
    owner.send(store, &without_new).await;

    fixture.reopen().await;
    let entries = all(fixture.store(), &owner, &keys[0], 10).await;
    assert_eq!(numbers(&entries), [1, 2, 3]);
    assert_eq!(entries[0].letters, []);
    assert_eq!((entries[1].messages.len(), &entries[1].letters[..]), (1, &expected[..]));
    assert_eq!(entries[2].letters, [letter(&keys[2], 8, 1)]);

    // A letter that has expired in the store counts as new.
    fixture.advance_clock(2 * super::DEAD_TTL).await;
    let late = forwarding(&mut owner, vec![next_write(&keys[2], 3)], vec![orphans[0].clone()]);
    let reply = owner.send(fixture.store(), &late).await;
    assert!(matches!(reply, CommitReply::Applied(applied) if applied.existing_letters.is_empty()));
    // The reply to a batch without forwarding also names the letters that the store has.
    let mut batch = Arc::unwrap_or_clone(owner.batch(vec![next_write(&keys[2], 4)]));
    batch.letters = vec![letter("", 0, 7), orphans[0].clone()];
    let reply = owner.send(fixture.store(), &Arc::new(batch)).await;
    assert!(matches!(reply, CommitReply::Applied(applied) if applied.existing_letters == [1]));
}
