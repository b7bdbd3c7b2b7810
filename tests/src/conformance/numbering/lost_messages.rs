//! Tests of a store that goes back in time and loses messages that it has numbered.

use std::collections::BTreeMap;

use bytes::Bytes;
use ordain_store::{
    AssignGroupReply, AssignItemReply, Mark, MarkConditions, OutboxPosition, Store, Witness,
};

use super::Fixture;
use super::sender::{Sender, chunk, keys, message, refused, results};

/// The store loses messages of two outboxes. It then refuses the next call of each owner, because the call names a
/// later outbox position than the store has. Each owner assigns its lost messages again and names their earlier
/// numbers. The messages get these numbers, although the owner of the higher number assigns its messages first.
pub async fn lost_messages_are_noticed_and_get_their_earlier_numbers(fixture: &mut impl Fixture) {
    use AssignItemReply::New;
    let position = |commit| Some(OutboxPosition { commit, chunk: 0 });
    let rolled_back = |last| refused(AssignGroupReply::RolledBack(last));
    let store = fixture.store();
    let [a, _] = keys(store);
    let first = Sender::exchange(store, 1);
    let second = Sender::exchange(store, 1).with(|origin| origin.shard = 1);
    assert_eq!(first.assign(store, 1, &[message(&a, "1")]).await, [New(1)]);
    fixture.take_snapshot().await;
    let store = fixture.store();
    assert_eq!(second.assign(store, 1, &[message(&a, "2")]).await, [New(2)]);
    assert_eq!(first.assign(store, 2, &[message(&a, "3")]).await, [New(3)]);

    fixture.go_back().await;
    let store = fixture.store();
    let after = |sender: &Sender, commit| {
        sender.clone().with(|origin| origin.last_confirmed = position(commit))
    };
    for _ in 0..2 {
        let reply = after(&first, 2).send_chunk(store, 3, &[message(&a, "4")]).await;
        assert_eq!(reply, rolled_back(position(1)));
        let reply = after(&second, 1).send_chunk(store, 2, &[message(&a, "5")]).await;
        assert_eq!(reply, rolled_back(None));
    }
    assert_eq!(first.retained(store, &a, 0, 9).await, [(1, "1".to_owned())]);
    let assign_lost = async |sender: &Sender, commit, data: &str, number| {
        let mut lost = chunk(commit, 0, &[message(&a, data)]);
        lost.items[0].number = number;
        results(sender.send(store, vec![lost]).await)
    };
    assert_eq!(assign_lost(&after(&first, 1), 2, "3", 3).await, [New(3)]);
    assert_eq!(assign_lost(&second, 1, "2", 2).await, [New(2)]);
    assert_eq!(after(&first, 2).assign(store, 3, &[message(&a, "4")]).await, [New(4)]);
    let numbered = ["1", "2", "3", "4"].map(str::to_owned);
    let numbered: Vec<(u64, String)> = (1..).zip(numbered).collect();
    assert_eq!(first.retained(store, &a, 0, 9).await, numbered);
}

/// Writes the mark `m` into all shards. `before` holds the marks that the caller last read, and `witness` is the
/// witness of the shard `shard`. Returns whether all shards accepted the mark.
async fn put_mark(
    store: &dyn Store,
    sender: &Sender,
    value: &'static str,
    before: &[Option<Bytes>],
    witness: &Witness,
) -> bool {
    let mark = Mark { name: "m".into(), value: value.into() };
    let witnesses = BTreeMap::from([(sender.shard, witness.clone())]);
    let conditions = MarkConditions { before, destination: Some(&sender.destination), witnesses };
    store.put_mark_in_shards(&mark, &conditions).await.expect("an answer")
}

/// A producer names its newest event as the witness of a call and of a mark. A shard that has lost the witness accepts
/// neither. A shard that has lost the producer's previous mark accepts no new mark. A store that cannot go back in time
/// while it is open checks no witness and no previous mark.
pub async fn call_and_mark_are_refused_if_their_witness_is_lost(fixture: &mut impl Fixture) {
    use AssignItemReply::{Known, New};
    let marks = async |store: &dyn Store| store.mark_in_shards("m").await.expect("the marks");
    let store = fixture.store();
    let may_lose = store.may_roll_back();
    let [a, _] = keys(store);
    let producer = Sender::producer(store);
    let shard = producer.shard as usize;
    let [first, second] = [("1", 1), ("2", 2)].map(|(data, sequence)| {
        let id = message(&a, data).identity_digest();
        Witness::StoreNumbered { key: a.clone(), id, sequence }
    });
    let at_start = marks(store).await;
    assert_eq!(producer.assign(store, 0, &[message(&a, "1")]).await, [New(1)]);
    assert!(put_mark(store, &producer, "1", &at_start, &first).await);
    fixture.take_snapshot().await;
    let store = fixture.store();
    let after_first = marks(store).await;
    let other_run = put_mark(store, &producer, "other run", &at_start, &first).await;
    assert_eq!(other_run, !may_lose);
    assert_eq!(producer.assign_after(store, &first, &[message(&a, "2")]).await, Some(vec![New(2)]));

    fixture.go_back().await;
    let store = fixture.store();
    assert_eq!(put_mark(store, &producer, "2", &after_first, &second).await, !may_lose);
    let left = marks(store).await;
    let lost = [message(&a, "2")];
    let assigned = producer.assign_after(store, &second, &lost).await;
    assert_eq!(assigned, (!may_lose).then(|| vec![New(2)]));
    if may_lose {
        assert_eq!(left[shard], after_first[shard], "the shard of the lost event keeps its mark");
        assert_eq!(producer.retained(store, &a, 0, 9).await, [(1, "1".to_owned())]);
    }
    let expected = if may_lose { New(2) } else { Known(2) };
    assert_eq!(producer.assign_after(store, &first, &lost).await, Some(vec![expected]));
    assert!(put_mark(store, &producer, "2", &left, &second).await);

    // The store loses the mark "2". It still has the event `first`, which the producer names as its witness.
    let after_second = marks(store).await;
    fixture.go_back().await;
    let store = fixture.store();
    assert_eq!(put_mark(store, &producer, "3", &after_second, &first).await, !may_lose);
    if may_lose {
        assert_eq!(marks(store).await, after_first, "no shard accepts another mark");
    }
}
