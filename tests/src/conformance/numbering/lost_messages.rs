//! Tests of a store or an outbox that goes back in time and loses messages that the store has numbered.

use std::collections::BTreeMap;

use bytes::Bytes;
use ordain_store::{
    AssignGroupReply, AssignItemReply, Mark, MarkConditions, OutboxChunk, OutboxPosition, Store,
    Witness,
};

use super::super::Fixture;
use super::sender::{Sender, chunk, keys, message, numbered_from_one, refused, results};

/// An owner assigns a lost message again. If no other message has the earlier number of the lost message now, the lost
/// message gets this number again. Otherwise, the lost message gets a new number. The owner may assign lost messages in
/// any order.
pub async fn lost_message_gets_its_earlier_number(fixture: &mut impl Fixture) {
    use AssignItemReply::New;
    let store = fixture.store();
    let [a, b] = keys(store);
    let sender = Sender::exchange(store, 1);
    let assign_lost = async |commit, data: &str, number| {
        sender.assign_lost(store, commit, &[(message(&a, data), number)]).await
    };
    assert_eq!(assign_lost(1, "third", 3).await, [New(3)]);
    assert_eq!(assign_lost(2, "first", 1).await, [New(1)]);
    assert_eq!(assign_lost(3, "other", 3).await, [New(4)]);
    assert_eq!(assign_lost(4, "second", 2).await, [New(2)]);
    assert_eq!(sender.assign(store, 5, &[message(&a, "new")]).await, [New(5)]);
    // A message never gets a lower number than an earlier message of the same key and call.
    assert_eq!(sender.assign(store, 6, &[message(&b, "taken")]).await, [New(1)]);
    assert_eq!(sender.assign_lost(store, 7, &[(message(&b, "fifth"), 5)]).await, [New(5)]);
    let lost = [(message(&b, "first"), 1), (message(&b, "second"), 2)];
    assert_eq!(sender.assign_lost(store, 8, &lost).await, [New(6), New(7)]);
    let expected = numbered_from_one(&["first", "second", "third", "other", "new"]);
    assert_eq!(sender.retained(store, &a, 0, 9).await, expected);
}

/// If the outbox has lost commits, later commits reuse their numbers. The store then forgets the messages of the lost
/// commits. The store still recognises repeated messages of other commits, even among many messages.
pub async fn messages_of_lost_commits_are_forgotten(fixture: &mut impl Fixture) {
    use AssignItemReply::{Known, New};
    let store = fixture.store();
    let [a, _] = keys(store);
    let first = Sender::exchange(store, 1);
    for commit in 1..=40 {
        first.assign(store, commit, &[message(&a, &commit.to_string())]).await;
    }
    // The outbox has lost the commits after `claimed_commit`. The first call of a new owner makes the store forget the
    // messages of these commits, and contains another message of commit 6.
    let other = Sender::exchange(store, 1).of_shard(1);
    for commit in 1..=10 {
        other.assign(store, commit, &[message(&a, &format!("b {commit}"))]).await;
    }
    let after = Sender::exchange(store, 2).of_shard(1).with(|origin| origin.claimed_commit = 5);
    assert_eq!(after.assign(store, 6, &[message(&a, "b new")]).await, [New(51)]);
    assert_eq!(after.assign(store, 6, &[message(&a, "b new")]).await, [Known(51)]);
    assert_eq!(after.assign(store, 5, &[message(&a, "b 5")]).await, [Known(45)]);

    let second = Sender::exchange(store, 2).with(|origin| origin.claimed_commit = 30);
    for commit in [29, 3, 30, 1] {
        let assigned = second.assign(store, commit, &[message(&a, &commit.to_string())]).await;
        assert_eq!(assigned, [Known(commit)]);
    }
    let others: Vec<OutboxChunk> = (31..=35)
        .map(|commit| chunk(commit, 0, &[message(&a, &format!("other {commit}"))]))
        .collect();
    let assigned = results(second.send(store, others.clone()).await);
    assert_eq!(assigned, (52..=56).map(New).collect::<Vec<_>>());
    let third = Sender::exchange(store, 3).with(|origin| origin.claimed_commit = 35);
    let known = results(third.send(store, others).await);
    assert_eq!(known, (52..=56).map(Known).collect::<Vec<_>>());
    // The store forgets messages that are recorded as published, and refuses a late call that assigns one of them
    // again.
    let third = third.with(|origin| origin.published_commit = 35);
    for commit in 36..=60 {
        third.assign(store, commit, &[message(&a, &commit.to_string())]).await;
    }
    let late = chunk(20, 0, &[message(&a, "20")]);
    assert_eq!(third.send(store, vec![late]).await, refused(AssignGroupReply::Fenced));

    // The messages of commits 5 and 6 are assigned first, and the message of commit 3 in a later call. Then the outbox
    // loses commits 5 and 6. The store must forget the messages of these two commits, and keep the message of commit 3,
    // although this message arrived last.
    let mixed = |epoch| Sender::exchange(store, epoch).of_shard(2);
    for commit in [5, 6] {
        let assigned = mixed(1).assign(store, commit, &[message(&a, &format!("c {commit}"))]).await;
        assert!(matches!(assigned[..], [New(_)]), "{assigned:?}");
    }
    let older = mixed(2).assign(store, 3, &[message(&a, "c 3")]).await;
    let [New(older)] = older[..] else { panic!("{older:?}") };
    let after = mixed(3).with(|origin| origin.claimed_commit = 4);
    let again = after.assign(store, 6, &[message(&a, "c 6")]).await;
    assert!(
        matches!(again[..], [New(_)]),
        "commit 6 is lost, so its message must be new: {again:?}"
    );
    let again = mixed(4).assign(store, 5, &[message(&a, "c 5")]).await;
    assert!(
        matches!(again[..], [New(_)]),
        "commit 5 is lost, so its message must be new: {again:?}"
    );
    assert_eq!(mixed(4).assign(store, 3, &[message(&a, "c 3")]).await, [Known(older)]);
}

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
    let second = Sender::exchange(store, 1).of_shard(1);
    assert_eq!(first.assign(store, 1, &[message(&a, "1")]).await, [New(1)]);
    fixture.take_snapshot().await;
    let store = fixture.store();
    assert_eq!(second.assign(store, 1, &[message(&a, "2")]).await, [New(2)]);
    assert_eq!(first.assign(store, 2, &[message(&a, "3")]).await, [New(3)]);

    fixture.go_back().await;
    let store = fixture.store();
    let after = |sender: &Sender, commit| sender.clone().confirmed(commit, 0);
    for _ in 0..2 {
        let reply = after(&first, 2).send_chunk(store, 3, &[message(&a, "4")]).await;
        assert_eq!(reply, rolled_back(position(1)));
        let reply = after(&second, 1).send_chunk(store, 2, &[message(&a, "5")]).await;
        assert_eq!(reply, rolled_back(None));
    }
    assert_eq!(first.retained(store, &a, 0, 9).await, [(1, "1".to_owned())]);
    let assign_lost = async |sender: &Sender, commit, data: &str, number| {
        sender.assign_lost(store, commit, &[(message(&a, data), number)]).await
    };
    assert_eq!(assign_lost(&after(&first, 1), 2, "3", 3).await, [New(3)]);
    assert_eq!(assign_lost(&second, 1, "2", 2).await, [New(2)]);
    assert_eq!(after(&first, 2).assign(store, 3, &[message(&a, "4")]).await, [New(4)]);
    assert_eq!(first.retained(store, &a, 0, 9).await, numbered_from_one(&["1", "2", "3", "4"]));
}

/// The mark is `m`. `before` holds the marks that the caller last read, and `witness` is the witness of the shard
/// `shard`. Returns whether all shards accepted the mark.
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
