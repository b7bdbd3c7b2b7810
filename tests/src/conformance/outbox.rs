//! The outbox and the marks.

use bytes::Bytes;
use ordain::store::{Mark, OutboxEntry, Store};
use ordain_core::{Emitted, Expect, JobWrite, Message, MessageParts, Refusal};

use super::{Fixture, Owner, absent, fresh, job, next};

fn emitted(sequence: u64, index: u32) -> Emitted {
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
    Emitted { sequence, index, message }
}

fn emitting(mut write: JobWrite, messages: &[(u64, u32)]) -> JobWrite {
    write.messages = messages.iter().map(|(sequence, index)| emitted(*sequence, *index)).collect();
    write
}

/// Reads everything of the key's shard, so many commits at a time.
async fn all(store: &dyn Store, owner: &Owner, key: &str, limit: usize) -> Vec<OutboxEntry> {
    let (mut entries, mut after) = (Vec::new(), 0);
    loop {
        let shard = owner.shard(key);
        let read = store.outbox(&owner.partition, shard, after, limit).await.expect("the outbox");
        assert!(read.len() <= limit);
        let Some(last) = read.last() else { return entries };
        after = last.number;
        entries.extend(read);
    }
}

fn numbers(entries: &[OutboxEntry]) -> Vec<u64> {
    entries.iter().map(|entry| entry.number).collect()
}

/// Commit by commit, in the order of the batch, with all that a message's id is made of.
pub async fn entries_come_in_order(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut owner = Owner::claim(store, "s", 0).await;
    let keys = owner.keys(3);
    let first = owner
        .commit(
            store,
            vec![
                emitting(absent(&keys[0]), &[(1, 0), (1, 1), (2, 0)]),
                absent(&keys[1]),
                emitting(absent(&keys[2]), &[(1, 3)]),
            ],
        )
        .await;
    owner.write(store, absent("without messages")).await;
    fixture.pass(10).await;
    let store = fixture.store();
    let mut later = emitting(next(&keys[0], 2), &[(2, 2)]);
    later.job.incarnation = first.time;
    let second = owner.commit(store, vec![later]).await;
    assert!(second.time > first.time);

    for limit in [1, 10] {
        let entries = all(store, &owner, &keys[0], limit).await;
        assert_eq!(entries.len(), 2);
        assert_eq!(entries[0].number, 1);
        let messages = entries.iter().flat_map(|entry| &entry.messages);
        let got: Vec<_> = messages
            .map(|message| (message.key.clone(), message.incarnation, message.emitted.clone()))
            .collect();
        let expected = [
            (keys[0].clone(), first.time, emitted(1, 0)),
            (keys[0].clone(), first.time, emitted(1, 1)),
            (keys[0].clone(), first.time, emitted(2, 0)),
            (keys[2].clone(), first.time, emitted(1, 3)),
            (keys[0].clone(), first.time, emitted(2, 2)),
        ];
        assert_eq!(got, expected);
    }
}

/// Only what was applied is published.
pub async fn refused_writes_publish_nothing(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut owner = Owner::claim(store, "s", 0).await;
    let keys = owner.keys(2);
    let refused = emitting(fresh(&keys[0], Expect::Next(4), job(5)), &[(4, 0)]);
    let applied = owner.commit(store, vec![refused.clone()]).await;
    assert_eq!(applied.refused, [(0, Refusal::Next(None))]);
    assert_eq!(all(store, &owner, &keys[0], 10).await, []);
    owner.commit(store, vec![refused, emitting(absent(&keys[1]), &[(1, 0)])]).await;
    let entries = all(store, &owner, &keys[0], 10).await;
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0].messages.len(), 1);
    assert_eq!(entries[0].messages[0].key, keys[1]);
}

/// What is done goes, in one step with what is noted about it.
pub async fn done_entries_are_gone_with_their_marks(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut owner = Owner::claim(store, "s", 0).await;
    let shard = owner.shard("a");
    owner.write(store, emitting(absent("a"), &[(1, 0)])).await;
    for sequence in 2..=5 {
        owner.write(store, emitting(next("a", sequence), &[(sequence, 0)])).await;
    }
    let mark = Mark { name: "sink/receipts".to_owned(), value: Bytes::from_static(b"\0\xff12") };
    store.outbox_done(&owner.partition, shard, 3, std::slice::from_ref(&mark)).await.expect("done");
    assert_eq!(numbers(&all(store, &owner, "a", 10).await), [4, 5]);
    assert_eq!(store.mark(&mark.name).await.expect("a mark"), Some(mark.value.clone()));
    // Again, and less than that, changes nothing.
    store.outbox_done(&owner.partition, shard, 2, &[]).await.expect("done");
    assert_eq!(numbers(&all(store, &owner, "a", 10).await), [4, 5]);

    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(numbers(&all(store, &owner, "a", 10).await), [4, 5]);
    assert_eq!(store.mark(&mark.name).await.expect("a mark"), Some(mark.value));
    // More than was committed does not reach into the future.
    store.outbox_done(&owner.partition, shard, 1_000, &[]).await.expect("done");
    assert_eq!(all(store, &owner, "a", 10).await, []);
    owner.write(store, emitting(next("a", 6), &[(6, 0)])).await;
    assert_eq!(numbers(&all(store, &owner, "a", 10).await), [6]);
}

/// Marks by themselves.
pub async fn marks_are_put_and_read(fixture: &mut impl Fixture) {
    let store = fixture.store();
    assert_eq!(store.mark("source/orders").await.expect("none"), None);
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
