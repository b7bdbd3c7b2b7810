//! Tests of messages that an owner assigns again. The store recognises these messages.

use ordain_store::{AssignGroupReply, AssignItemReply, OriginOutbox, OutboxChunk, OutboxPosition};

use super::super::Fixture;
use super::sender::{Sender, chunk, keys, message, refused, results};

/// A message keeps its number as long as the message may be in an outbox, even if another owner assigns the message
/// again.
pub async fn message_keeps_its_number_in_repeated_calls(fixture: &mut impl Fixture) {
    use AssignItemReply::{Known, New};
    let store = fixture.store();
    let [a, _] = keys(store);
    let first = Sender::exchange(store, 1);
    let two = [message(&a, "1"), message(&a, "2")];
    assert_eq!(first.assign(store, 1, &two).await, [New(1), New(2)]);
    assert_eq!(first.assign(store, 2, &[message(&a, "3")]).await, [New(3)]);
    assert_eq!(first.assign(store, 1, &two).await, [Known(1), Known(2)]);
    fixture.reopen().await;
    let store = fixture.store();

    // A new owner assigns the same messages again, but divides them into calls in another way.
    let second = Sender::exchange(store, 2);
    assert_eq!(second.assign(store, 1, &two).await, [Known(1), Known(2)]);
    let second = second.confirmed(1, 0);
    let chunks =
        vec![chunk(1, 0, &two), chunk(2, 0, &[message(&a, "3")]), chunk(3, 0, &[message(&a, "4")])];
    assert_eq!(results(second.send(store, chunks).await), [Known(1), Known(2), Known(3), New(4)]);
    // An owner does not assign a message again after the message is recorded as published. Only a call that arrives
    // late can contain such a message.
    let second = second.with(|origin| origin.published_commit = 3);
    for commit in 4..=19 {
        let next = message(&a, &(commit + 1).to_string());
        assert_eq!(second.assign(store, commit, &[next]).await, [New(commit + 1)]);
    }
    let fenced = refused(AssignGroupReply::Fenced);
    assert_eq!(second.send_chunk(store, 2, &[message(&a, "3")]).await, fenced);
    assert_eq!(second.assign(store, 4, &[message(&a, "5")]).await, [Known(5)]);
    // The store refuses each call of the previous owner.
    assert_eq!(first.send_chunk(store, 20, &[message(&a, "6")]).await, fenced);
    assert_eq!(first.send_chunk(store, 4, &[message(&a, "5")]).await, fenced);
    assert_eq!(second.retained(store, &a, 0, 99).await.len(), 20);
}

/// Two different messages can have the same outbox position: if they come from different origins, or if the store went
/// back in time after the first message. The store does not mistake one of these messages for the other.
pub async fn messages_at_the_same_outbox_position_are_distinguished(fixture: &mut impl Fixture) {
    use AssignItemReply::{Known, New};
    let store = fixture.store();
    let [a, _] = keys(store);
    let first = Sender::exchange(store, 1);
    assert_eq!(first.assign(store, 1, &[message(&a, "1")]).await, [New(1)]);
    let other = Sender::exchange(store, 1).of_shard(1);
    assert_eq!(other.assign(store, 1, &[message(&a, "2")]).await, [New(2)]);
    let other = Sender::exchange(store, 1).with(|origin| origin.partition.number = 0);
    assert_eq!(other.assign(store, 1, &[message(&a, "3")]).await, [New(3)]);

    let second = Sender::exchange(store, 2);
    assert_eq!(second.assign(store, 1, &[message(&a, "4")]).await, [New(4)]);
    assert_eq!(second.assign(store, 1, &[message(&a, "4")]).await, [Known(4)]);

    // The owner names an outbox position that the store does not have. This happens after the store has lost messages
    // that it had confirmed.
    let lost = second.confirmed(1, 1);
    let stored_position = OutboxPosition { commit: 1, chunk: 0 };
    let rolled_back = || refused(AssignGroupReply::RolledBack(Some(stored_position)));
    assert_eq!(lost.send_chunk(store, 2, &[message(&a, "5")]).await, rolled_back());
    assert_eq!(lost.send(store, Vec::new()).await, rolled_back());
    let stored = lost.confirmed(1, 0);
    assert!(results(stored.send(store, Vec::new()).await).is_empty());
    assert_eq!(stored.assign(store, 2, &[message(&a, "5")]).await, [New(5)]);
    let unassigned = Sender::exchange(store, 3).confirmed(0, 0);
    assert_eq!(
        unassigned.send_chunk(store, 3, &[message(&a, "6")]).await,
        refused(AssignGroupReply::RolledBack(None))
    );

    // An owner has assigned the messages of two commits in one call, and only the second commit is lost.
    let of_partition = |origin: &mut OriginOutbox| origin.partition.number = 1;
    let chunks = || vec![chunk(1, 0, &[message(&a, "7")]), chunk(2, 0, &[message(&a, "8")])];
    let earlier = Sender::exchange(store, 1).with(of_partition);
    assert_eq!(results(earlier.send(store, chunks()).await), [New(6), New(7)]);
    let later =
        Sender::exchange(store, 2).with(of_partition).with(|origin| origin.claimed_commit = 1);
    assert_eq!(results(later.send(store, chunks()).await), [Known(6), New(8)]);
    assert_eq!(results(later.send(store, chunks()).await), [Known(6), Known(8)]);
}

/// The store identifies a message by its commit and its id. A repeated call may contain other messages of the same
/// commit, because the configuration of the sinks may change while the outbox is not empty.
pub async fn message_is_identified_by_its_commit_and_id(fixture: &mut impl Fixture) {
    use AssignItemReply::{Known, New};
    let store = fixture.store();
    let [a, b] = keys(store);
    let first = Sender::exchange(store, 1);
    first.assign(store, 7, &[message(&a, "1"), message(&b, "1")]).await;
    let second = Sender::exchange(store, 2);
    let items = [message(&a, "0"), message(&a, "1"), message(&a, "2")];
    assert_eq!(second.assign(store, 7, &items).await, [New(2), Known(1), New(3)]);
    assert_eq!(second.assign(store, 7, &[message(&b, "1")]).await, [Known(1)]);
    assert_eq!(second.assign(store, 7, &items).await, [Known(2), Known(1), Known(3)]);

    // The first owner assigns the messages of many commits, in one call for each commit. The second owner assigns these
    // messages again, in calls with several commits and with one more message in each commit, and repeats each call
    // once. The third owner assigns all messages again, and divides the commits into calls in another way.
    let of_shard = |epoch| Sender::exchange(store, epoch).of_shard(1);
    let old = |commit: u64| message(&b, &format!("old {commit}"));
    let new = |commit: u64| message(&b, &format!("new {commit}"));
    for commit in 1..=30 {
        assert_eq!(of_shard(1).assign(store, commit, &[old(commit)]).await, [New(commit + 1)]);
    }
    for commits in [1..=10, 11..=20, 21..=30_u64] {
        let chunks: Vec<OutboxChunk> =
            commits.clone().map(|commit| chunk(commit, 0, &[old(commit), new(commit)])).collect();
        let assigned = results(of_shard(2).send(store, chunks.clone()).await);
        let expected = commits.flat_map(|commit| [Known(commit + 1), New(commit + 31)]);
        assert_eq!(assigned, expected.collect::<Vec<_>>());
        // Repeat the call, as after a lost reply.
        let again = results(of_shard(2).send(store, chunks).await);
        assert!(again.iter().all(|assigned| matches!(assigned, Known(_))), "{again:?}");
    }
    for commits in [1..=7, 8..=25, 26..=30_u64] {
        let chunks =
            commits.clone().map(|commit| chunk(commit, 0, &[new(commit), old(commit)])).collect();
        let expected = commits.flat_map(|commit| [Known(commit + 31), Known(commit + 1)]);
        assert_eq!(results(of_shard(3).send(store, chunks).await), expected.collect::<Vec<_>>());
    }
}
