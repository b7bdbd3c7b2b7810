//! Tests of numbered messages, of messages that the store retains for replay, and of queues. An owner or a producer
//! assigns messages by a call of `MessageLog::assign`. In this call, the store gives the messages their numbers.

mod lost_messages;
mod random_calls;
mod sender;

use std::sync::Arc;

use ordain_core::{
    AheadRange, Build, Cause, Event, EventDigests, EventParts, FailureInfo, FileDigest, GapEntry,
    KeyRecord, KeyStatus, KeyWrite, QueuePosition, Rollout, SEQUENCE_END, SourceAnswers,
    WriteCondition,
};
use ordain_store::{
    AssignGroupReply, AssignItemReply, AssignReply, Claim, Destination, DestinationRules,
    NumberingSettings, OriginOutbox, OutboxChunk, OutboxPosition, Partition, QueueEntry, Store,
};

use super::owner::{self, first_write, key_record, next_write, record_write};
use super::{Fixture, Owner};
use sender::{
    COMPLETED_TTL_MS, NUMBERING, RETENTION_MS, event, keys, last_message, refused, results,
};
pub(super) use sender::{Sender, chunk, data, message};

pub use lost_messages::{
    call_and_mark_are_refused_if_their_witness_is_lost,
    lost_messages_are_noticed_and_get_their_earlier_numbers,
};
pub use random_calls::{
    each_message_has_one_number_after_repeats_and_new_owners, random_calls_agree_with_the_model,
};

/// The store numbers the messages of each key and destination separately, from the configured first number on. The
/// store retains numbered messages in the form in which their receiver will see them.
pub async fn messages_are_numbered_in_order(fixture: &mut impl Fixture) {
    use AssignItemReply::New;
    let store = fixture.store();
    let [a, b] = keys(store);
    let sender = Sender::exchange(store, 1);
    let chunks = vec![
        chunk(1, 0, &[message(&a, "1"), message(&b, "1"), message(&a, "2")]),
        chunk(1, 1, &[message(&a, "3")]),
        chunk(4, 0, &[message(&b, "2")]),
    ];
    assert_eq!(results(sender.send(store, chunks).await), [New(1), New(1), New(2), New(3), New(2)]);
    let from_zero = NumberingSettings { first: 0, ..NUMBERING };
    let rules = DestinationRules { numbering: Some(from_zero), queue_limit: None };
    let destination = Destination::Exchange("other".into());
    let other = Sender { destination, rules, ..Sender::exchange(store, 1) };
    assert_eq!(
        other.assign(store, 1, &[message(&a, "x"), message(&a, "y")]).await,
        [New(0), New(1)]
    );

    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(sender.assign(store, 5, &[message(&a, "4")]).await, [New(4)]);
    let expected = [(2, "2".to_owned()), (3, "3".to_owned())];
    assert_eq!(sender.retained(store, &a, 2, 3).await, expected);
    assert_eq!(sender.retained(store, &b, 0, 9).await.len(), 2);
    let retained = store.retained_messages(&sender.destination, &a, &[1..=1, 3..=9], 1 << 20).await;
    let retained = retained.expect("a read");
    let sequences: Vec<u64> = retained.events.iter().map(|(sequence, _)| *sequence).collect();
    assert_eq!((sequences, retained.until), (vec![1, 3, 4], u64::MAX));
    let second = &retained.events[1].1;
    let third = message(&a, "3");
    assert_eq!(
        (second.id(), second.kind(), second.source()),
        (third.id(), "test", "/ordain/first")
    );
    assert_eq!((second.key(), second.content()), (&*a, third.content()));
    assert_eq!(second.headers().collect::<Vec<_>>(), [("a", "b")]);
    let counted = [&*a, "no such key", &*b];
    let has_counters = store.has_counters(&sender.destination, &counted).await.expect("a read");
    assert_eq!(has_counters, [true, false, true]);
    let unused = Destination::Exchange("unused".into());
    assert_eq!(store.has_counters(&unused, &counted).await.expect("a read"), [false; 3]);
    // A gap may be so wide that the store cannot search for each of its sequences.
    let wide_end = 20_000_000_000;
    let wide = [0..=2, 4..=wide_end];
    let found = store.retained_messages(&sender.destination, &a, &wide, 1 << 20).await;
    let found = found.expect("a read");
    let sequences: Vec<u64> = found.events.iter().map(|(sequence, _)| *sequence).collect();
    assert_eq!((sequences, found.until), (vec![1, 2, 4], u64::MAX));
    // The size limit admits only the first message.
    for (wanted, until) in [
        (vec![1..=4], 2),
        (vec![1..=1, 3..=9], 3),
        (vec![4..=9], u64::MAX),
        (vec![2..=2, 4..=wide_end], 4),
    ] {
        let one = store.retained_messages(&sender.destination, &a, &wanted, 1).await;
        let one = one.expect("a read");
        assert_eq!((one.events.len(), one.until), (1, until), "{wanted:?}");
    }
}

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
    let second =
        second.with(|origin| origin.last_confirmed = Some(OutboxPosition { commit: 1, chunk: 0 }));
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
    assert_eq!(
        second.send_chunk(store, 2, &[message(&a, "3")]).await,
        refused(AssignGroupReply::Fenced)
    );
    assert_eq!(second.assign(store, 4, &[message(&a, "5")]).await, [Known(5)]);
    // The store refuses each call of the previous owner.
    assert_eq!(
        first.send_chunk(store, 20, &[message(&a, "6")]).await,
        refused(AssignGroupReply::Fenced)
    );
    assert_eq!(
        first.send_chunk(store, 4, &[message(&a, "5")]).await,
        refused(AssignGroupReply::Fenced)
    );
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
    let other = Sender::exchange(store, 1).with(|origin| origin.shard = 1);
    assert_eq!(other.assign(store, 1, &[message(&a, "2")]).await, [New(2)]);
    let other = Sender::exchange(store, 1).with(|origin| origin.partition.number = 0);
    assert_eq!(other.assign(store, 1, &[message(&a, "3")]).await, [New(3)]);

    let second = Sender::exchange(store, 2);
    assert_eq!(second.assign(store, 1, &[message(&a, "4")]).await, [New(4)]);
    assert_eq!(second.assign(store, 1, &[message(&a, "4")]).await, [Known(4)]);

    // The owner names an outbox position that the store does not have. This happens after the store has lost messages
    // that it had confirmed.
    let lost =
        second.with(|origin| origin.last_confirmed = Some(OutboxPosition { commit: 1, chunk: 1 }));
    let stored_position = OutboxPosition { commit: 1, chunk: 0 };
    let rolled_back = || refused(AssignGroupReply::RolledBack(Some(stored_position)));
    assert_eq!(lost.send_chunk(store, 2, &[message(&a, "5")]).await, rolled_back());
    assert_eq!(lost.send(store, Vec::new()).await, rolled_back());
    let stored =
        lost.with(|origin| origin.last_confirmed = Some(OutboxPosition { commit: 1, chunk: 0 }));
    assert!(results(stored.send(store, Vec::new()).await).is_empty());
    assert_eq!(stored.assign(store, 2, &[message(&a, "5")]).await, [New(5)]);
    let unassigned = Sender::exchange(store, 3)
        .with(|origin| origin.last_confirmed = Some(OutboxPosition::default()));
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

/// An owner assigns a lost message again. If no other message has the earlier number of the lost message now, the lost
/// message gets this number again. Otherwise, the lost message gets a new number. The owner may assign lost messages in
/// any order.
pub async fn lost_message_gets_its_earlier_number(fixture: &mut impl Fixture) {
    use AssignItemReply::New;
    let store = fixture.store();
    let [a, b] = keys(store);
    let sender = Sender::exchange(store, 1);
    let assign_lost = async |commit, data: &str, number| {
        let mut chunk = chunk(commit, 0, &[message(&a, data)]);
        chunk.items[0].number = number;
        results(sender.send(store, vec![chunk]).await)
    };
    assert_eq!(assign_lost(1, "third", 3).await, [New(3)]);
    assert_eq!(assign_lost(2, "first", 1).await, [New(1)]);
    assert_eq!(assign_lost(3, "other", 3).await, [New(4)]);
    assert_eq!(assign_lost(4, "second", 2).await, [New(2)]);
    assert_eq!(sender.assign(store, 5, &[message(&a, "new")]).await, [New(5)]);
    // A message never gets a lower number than an earlier message of the same key and call.
    assert_eq!(sender.assign(store, 6, &[message(&b, "taken")]).await, [New(1)]);
    let mut late = chunk(7, 0, &[message(&b, "fifth")]);
    late.items[0].number = 5;
    assert_eq!(results(sender.send(store, vec![late]).await), [New(5)]);
    let mut lost = chunk(8, 0, &[message(&b, "first"), message(&b, "second")]);
    lost.items[0].number = 1;
    lost.items[1].number = 2;
    assert_eq!(results(sender.send(store, vec![lost]).await), [New(6), New(7)]);
    let expected = ["first", "second", "third", "other", "new"].map(str::to_owned);
    assert_eq!(sender.retained(store, &a, 0, 9).await, (1..).zip(expected).collect::<Vec<_>>());
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
    let of_shard = |epoch| Sender::exchange(store, epoch).with(|origin| origin.shard = 1);
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
    let other = Sender::exchange(store, 1).with(|origin| origin.shard = 1);
    for commit in 1..=10 {
        other.assign(store, commit, &[message(&a, &format!("b {commit}"))]).await;
    }
    let after = Sender::exchange(store, 2).with(|origin| {
        origin.shard = 1;
        origin.claimed_commit = 5;
    });
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
    let mixed = |epoch| Sender::exchange(store, epoch).with(|origin| origin.shard = 2);
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

/// One call has groups of several owners and of a producer. The store returns a separate reply for each group, and a
/// refused group does not affect the others.
pub async fn each_group_of_a_call_has_its_own_reply(fixture: &mut impl Fixture) {
    use AssignItemReply::{Known, New};
    let store = fixture.store();
    let [a, b] = keys(store);
    let first = Sender::exchange(store, 2);
    let of_shard = |shard| Sender::exchange(store, 2).with(|origin| origin.shard = shard);
    let second = of_shard(1);
    let third = of_shard(2);
    first.assign(store, 4, &[message(&a, "1")]).await;
    third.assign(store, 1, &[message(&b, "1")]).await;
    let stale = Sender::exchange(store, 1);
    let ahead = of_shard(3)
        .with(|origin| origin.last_confirmed = Some(OutboxPosition { commit: 9, chunk: 0 }));
    let producer = Sender::producer(store);
    let groups = vec![
        second.group(vec![chunk(1, 0, &[message(&a, "2"), message(&b, "2")])]),
        stale.group(vec![chunk(5, 0, &[message(&a, "stale")])]),
        third.group(vec![chunk(1, 0, &[message(&b, "1")]), chunk(2, 0, &[message(&a, "3")])]),
        ahead.group(vec![chunk(10, 0, &[message(&a, "lost")])]),
        // A second group of the same outbox: the store refuses it, and the owner must send it again in another call.
        second.group(vec![chunk(2, 0, &[message(&a, "twice")])]),
        producer.group(vec![chunk(0, 0, &[message(&a, "4"), message(&a, "4")])]),
    ];
    let expected = AssignReply::Groups(
        vec![
            AssignGroupReply::Done(vec![New(2), New(2)]),
            AssignGroupReply::Fenced,
            AssignGroupReply::Done(vec![Known(1), New(3)]),
            AssignGroupReply::RolledBack(None),
            AssignGroupReply::Fenced,
            AssignGroupReply::Done(vec![New(4), Known(4)]),
        ],
        Vec::new(),
    );
    assert_eq!(first.send_groups(store, groups.clone()).await, expected);
    let numbered = ["1", "2", "3", "4"].map(str::to_owned);
    let numbered: Vec<(u64, String)> = (1..).zip(numbered).collect();
    assert_eq!(first.retained(store, &a, 0, 9).await, numbered);
    assert_eq!(second.assign(store, 2, &[message(&a, "5")]).await, [New(5)]);
}

/// For a limited time after the end of a key, later messages of the key continue its numbering. After this time, the
/// numbering starts again at the first number.
pub async fn numbering_starts_again_after_a_key_ended(fixture: &mut impl Fixture) {
    use AssignItemReply::New;
    let store = fixture.store();
    let [a, b] = keys(store);
    let sender = Sender::exchange(store, 1);
    let items = [message(&a, "1"), last_message(&a, "2"), message(&b, "1")];
    assert_eq!(sender.assign(store, 1, &items).await, [New(1), New(2), New(1)]);
    fixture.advance_clock(COMPLETED_TTL_MS / 2).await;
    // The store numbers a message even after the end of its key, because only the receiver decides whether the message
    // is too late.
    assert_eq!(sender.assign(fixture.store(), 2, &[last_message(&a, "3")]).await, [New(3)]);
    fixture.advance_clock(COMPLETED_TTL_MS * 3 / 4).await;
    assert_eq!(sender.assign(fixture.store(), 3, &[message(&a, "4")]).await, [New(4)]);
    fixture.advance_clock(COMPLETED_TTL_MS).await;
    let items = [message(&a, "new"), message(&b, "2")];
    assert_eq!(sender.assign(fixture.store(), 4, &items).await, [New(1), New(2)]);
    // The key has started again. The store must keep the new messages of the key when the store removes the expired
    // data of the key's old incarnation.
    assert_eq!(sender.retained(fixture.store(), &a, 0, 9).await, [(1, "new".to_owned())]);
    for commit in 20..26 {
        sender.assign(fixture.store(), commit, &[message(&b, &commit.to_string())]).await;
    }
    assert_eq!(sender.retained(fixture.store(), &a, 0, 9).await, [(1, "new".to_owned())]);
    fixture.advance_clock(2 * COMPLETED_TTL_MS).await;
    for commit in 30..35 {
        sender.assign(fixture.store(), commit, &[message(&b, &commit.to_string())]).await;
    }
    assert_eq!(sender.assign(fixture.store(), 40, &[message(&a, "newer")]).await, [New(2)]);
}

/// The store keeps a limited number of messages per key, for a limited time.
pub async fn retention_is_limited_in_number_and_time(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let [a, b] = keys(store);
    let numbering = NumberingSettings { retain_events: 3, ..NUMBERING };
    let rules = DestinationRules { numbering: Some(numbering), queue_limit: None };
    let sender = Sender { rules, ..Sender::exchange(store, 1) };
    for commit in 1..=5 {
        sender.assign(store, commit, &[message(&a, &commit.to_string())]).await;
    }
    sender.assign(store, 6, &[message(&b, "1")]).await;
    let numbers = |retained: Vec<(u64, String)>| {
        retained.into_iter().map(|message| message.0).collect::<Vec<_>>()
    };
    assert_eq!(numbers(sender.retained(store, &a, 0, 9).await), [3, 4, 5]);
    fixture.advance_clock(RETENTION_MS * 2).await;
    for commit in 7..=9 {
        let commit_data = commit.to_string();
        sender.assign(fixture.store(), commit, &[message(&b, &commit_data)]).await;
    }
    assert_eq!(sender.retained(fixture.store(), &a, 0, 9).await, []);
    assert_eq!(numbers(sender.retained(fixture.store(), &b, 0, 9).await), [2, 3, 4]);
}

/// If a producer publishes a message again, the store recognises the message by its id, or by the number that the
/// producer gave to the message. A message with the same id or number but other content is a conflict.
pub async fn repeated_message_of_a_producer_is_recognized(fixture: &mut impl Fixture) {
    use AssignItemReply::{AfterConflict, Conflict, Known, New};
    let store = fixture.store();
    let [a, b] = keys(store);
    let producer = Sender::producer(store);
    let items = [message(&a, "1"), message(&a, "2"), message(&a, "1")];
    assert_eq!(producer.assign(store, 0, &items).await, [New(1), New(2), Known(1)]);
    fixture.reopen().await;
    let store = fixture.store();
    let items = [message(&a, "2"), message(&a, "3"), message(&b, "1")];
    assert_eq!(producer.assign(store, 0, &items).await, [Known(2), New(3), New(1)]);
    let other = event(&a, "other", None, &format!("{a}/2"), false);
    assert_eq!(producer.assign(store, 0, &[other]).await, [Conflict(2)]);

    let numbered = |data, sequence| event(&a, data, Some(sequence), "own", false);
    let items =
        [numbered("7", 7), message(&a, "8"), numbered("7", 7), numbered("x", 7), message(&b, "2")];
    let expected = [New(7), New(8), Known(7), Conflict(7), AfterConflict];
    assert_eq!(producer.assign(store, 0, &items).await, expected);
    assert_eq!(producer.assign(store, 0, &[numbered("x", 3)]).await, [Conflict(3)]);
    // A message that follows a conflict in the same group gets no number.
    assert_eq!(producer.retained(store, &b, 2, 9).await, []);
    assert_eq!(
        producer.assign(store, 0, &[numbered("7", 7), numbered("5", 5)]).await,
        [Known(7), New(5)]
    );
    assert_eq!(producer.assign(store, 0, &[message(&a, "9")]).await, [New(9)]);

    // After this time, the store has forgotten the ids of the messages, but not the last number of each key.
    fixture.advance_clock(RETENTION_MS * 2).await;
    for data in ["2", "3", "4"] {
        producer.assign(fixture.store(), 0, &[message(&b, data)]).await;
    }
    assert_eq!(producer.assign(fixture.store(), 0, &[message(&a, "1")]).await, [New(10)]);
}

/// A producer may publish JSON again in another form. Earlier versions of Ordain compared JSON by its bytes. Ordain
/// still compares all other data by its bytes.
pub async fn json_of_a_producer_is_compared_as_json(fixture: &mut impl Fixture) {
    use AssignItemReply::{Conflict, Known, New, UnprovenRepeat};
    const COMPACT_JSON: &str = r#"{"a":[1,"x"],"b":2}"#;
    const LOOSE_JSON: &str = r#"{ "b": 2, "a": [1, "\u0078"] }"#;
    const OTHER_JSON: &str = r#"{"a":["x",1],"b":2}"#;
    let store = fixture.store();
    let [a, b] = keys(store);
    let producer = Sender { readers: vec!["cases".into()], ..Sender::producer(store) };
    let json = |key: &str, data: &str| event(key, data, None, "json", false);
    let numbered = |data: &str| event(&a, data, Some(7), "own", false);
    assert_eq!(
        producer.assign(store, 0, &[json(&a, COMPACT_JSON), numbered(LOOSE_JSON)]).await,
        [New(1), New(7)]
    );

    fixture.reopen().await;
    let store = fixture.store();
    let items = [json(&a, LOOSE_JSON), json(&a, COMPACT_JSON), numbered(COMPACT_JSON)];
    assert_eq!(producer.assign(store, 0, &items).await, [Known(1), Known(1), Known(7)]);
    assert_eq!(producer.assign(store, 0, &[json(&a, OTHER_JSON)]).await, [Conflict(1)]);
    assert_eq!(producer.assign(store, 0, &[numbered(OTHER_JSON)]).await, [Conflict(7)]);
    // The store has lost the number 1 of key `b`. The event with this number is settled.
    let mut owner = Owner::claim(store, "cases", 0).await;
    let mut record = key_record(2);
    record.digests.push(json(&b, COMPACT_JSON).repeat_digest(), 4);
    owner.write(store, record_write(&b, WriteCondition::Absent, record)).await;
    let restoring = Sender { reuses_lost_numbers: true, ..producer.clone() };
    assert_eq!(restoring.assign(store, 0, &[json(&b, OTHER_JSON)]).await, [UnprovenRepeat(1)]);
    assert_eq!(restoring.assign(store, 0, &[json(&b, LOOSE_JSON)]).await, [New(1)]);
    // Data that is not JSON is compared by its bytes. The content type does not count.
    let text = |data: &str| {
        let parts = EventParts { key: &b, id: "text", kind: "test", ..EventParts::default() };
        let source = "/ordain/first";
        let data = data.as_bytes();
        Arc::new(Event::new(&EventParts { source, content_type: "text/plain", data, ..parts }))
    };
    assert_eq!(producer.assign(store, 0, &[text("x y"), text("x y")]).await, [New(2), Known(2)]);
    assert_eq!(producer.assign(store, 0, &[text("x  y")]).await, [Conflict(2)]);
    let same = event(&b, "x y", None, "text", false);
    assert_eq!(producer.assign(store, 0, &[same]).await, [Known(2)]);
}

/// The source and the id together identify a producer's message. An id that was stored without a source stands for the
/// id from any source.
pub async fn source_and_id_identify_a_message(fixture: &mut impl Fixture) {
    use AssignItemReply::{Conflict, Known, New};
    let store = fixture.store();
    let [a, _] = keys(store);
    let producer = Sender::producer(store);
    let from = |source: &str, id: &str, data: &str| {
        let key = &*a;
        let data = data.as_bytes();
        let parts = EventParts { key, id, source, kind: "test", data, ..EventParts::default() };
        Arc::new(Event::new(&parts))
    };
    let items = [from("/a", "1", "x"), from("/b", "1", "x"), from("/c", "1", "other")];
    assert_eq!(producer.assign(store, 0, &items).await, [New(1), New(2), New(3)]);
    assert_eq!(producer.assign(store, 0, &[from("", "2", "y")]).await, [New(4)]);
    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(producer.assign(store, 0, &items).await, [Known(1), Known(2), Known(3)]);
    assert_eq!(producer.assign(store, 0, &[from("/b", "1", "other")]).await, [Conflict(2)]);
    assert_eq!(producer.assign(store, 0, &[from("/a", "2", "y")]).await, [Known(4)]);
    assert_eq!(producer.assign(store, 0, &[from("", "1", "z")]).await, [New(5)]);
}

/// A producer may number its messages itself, without the store. The store gives none of these numbers to a message of
/// another producer. The store finds such numbers in the key records of the streams that read the destination.
pub async fn number_of_another_producer_is_not_given_again(fixture: &mut impl Fixture) {
    use AssignItemReply::{AfterConflict, KeyEnded, Known, New, NumberedElsewhere};
    let store = fixture.store();
    let [a, b] = keys(store);
    let producer = Sender { readers: vec!["cases".into()], ..Sender::producer(store) };
    let mut owner = Owner::claim(store, "cases", 0).await;
    assert_eq!(producer.assign(store, 0, &[message(&a, "1")]).await, [New(1)]);
    owner.write(store, first_write(&a)).await;
    assert_eq!(producer.assign(store, 0, &[message(&a, "2")]).await, [New(2)]);

    // Another producer has given the numbers 2 to 4 to its events itself, without the store. Its event with the number
    // 2 arrived before the event of this producer.
    for next in 2..=4 {
        owner.write(store, next_write(&a, next)).await;
    }
    let items = [message(&a, "1"), message(&a, "2"), message(&a, "3"), message(&a, "1")];
    let expected = [Known(1), Known(2), NumberedElsewhere(5), AfterConflict];
    assert_eq!(producer.assign(store, 0, &items).await, expected);
    fixture.reopen().await;
    let store = fixture.store();
    let mut owner = Owner::claim(store, "cases", 0).await;
    assert_eq!(producer.assign(store, 0, &[message(&a, "3")]).await, [NumberedElsewhere(5)]);
    assert_eq!(producer.retained(store, &a, 3, 9).await, []);
    // A producer may give its message the number 5 itself. The store then continues with the number 6.
    let own = event(&a, "3", Some(5), "own", false);
    assert_eq!(producer.assign(store, 0, &[own, message(&a, "4")]).await, [New(5), New(6)]);
    // If a call names no readers, the store reads no key records, and gives the next number.
    let other = Sender { readers: Vec::new(), ..Sender::producer(store) };
    assert_eq!(other.assign(store, 0, &[message(&a, "5")]).await, [New(7)]);

    // Events 2 and 4 of key `b` wait in the store for events 1 and 3.
    let spill: Vec<_> = [2, 4].map(|sequence| (sequence, owner::event(&b, sequence, ""))).into();
    let mut record = key_record(1);
    for (sequence, _) in &spill {
        record.spilled.add(*sequence);
    }
    let write = record_write(&b, WriteCondition::Absent, record);
    owner.write(store, KeyWrite { spill, due_in: Some(1_000), ..write }).await;
    assert_eq!(producer.assign(store, 0, &[message(&b, "1")]).await, [NumberedElsewhere(5)]);

    // As long as the record of an ended key shows numbers that the store has not given, the store gives the key no
    // number. When the record has expired, the key starts again.
    let mut tombstone = key_record(9);
    tombstone.status = KeyStatus::Completed;
    let write = record_write(&a, WriteCondition::Next(5), tombstone);
    owner.write(store, KeyWrite { expire_in: Some(10_000), ..write }).await;
    assert_eq!(producer.assign(store, 0, &[message(&a, "6")]).await, [KeyEnded]);
    fixture.advance_clock(20_000).await;
    assert_eq!(producer.assign(fixture.store(), 0, &[message(&a, "6")]).await, [New(1)]);
}

/// The record of a key contains the range of the dead letters that wait for earlier events (`far-ahead`, `overflow`).
/// The numbers of these letters come from another producer, so the numbers below them may belong to that producer too.
/// The store gives the key no number. If the call publishes lost events again, the store ignores the letters: it may
/// have given their numbers itself, and it cannot compare an event with a letter.
pub async fn number_below_a_waiting_dead_letter_is_not_given(fixture: &mut impl Fixture) {
    use AssignItemReply::{New, NumberedElsewhere};
    let store = fixture.store();
    let [a, b] = keys(store);
    let producer = Sender { readers: vec!["cases".into()], ..Sender::producer(store) };
    let restoring = Sender { reuses_lost_numbers: true, ..producer.clone() };
    let mut owner = Owner::claim(store, "cases", 0).await;
    assert_eq!(producer.assign(store, 0, &[message(&a, "1")]).await, [New(1)]);
    // The record of key `a` has all parts that a record can have before and after the range.
    let answers = SourceAnswers {
        source: "http://archive:8080".into(),
        requests: u32::MAX,
        found: 1,
        failed: 2,
        error: Some("503 Service Unavailable".into()),
    };
    let answers = vec![SourceAnswers { error: None, ..answers.clone() }, answers];
    let build = Build { version: "orders@1".into(), digest: FileDigest([0xa5; 32]) };
    let full = KeyRecord {
        ahead: Some(Box::new(AheadRange { first: 20, last: 300 })),
        rollout: Some(Arc::new(Rollout { number: 1, build })),
        failure: Some(Box::new(FailureInfo {
            cause: Cause::Gap,
            error: "the event is missing".repeat(10),
            since: 12,
            version: Some("orders@1".into()),
        })),
        digests: digests_of(&a, &["1"]),
        skipped: [(5, 9), (400, 500)].into_iter().collect(),
        gaps: [GapEntry::new(2, 19, 5), GapEntry { answers, ..GapEntry::new(2, 19, 5) }]
            .into_iter()
            .collect(),
        ..key_record(2)
    };
    owner.write(store, record_write(&a, WriteCondition::Absent, full.clone())).await;
    let far = KeyRecord {
        ahead: Some(Box::new(AheadRange { first: 7, last: SEQUENCE_END - 1 })),
        ..key_record(1)
    };
    owner.write(store, record_write(&b, WriteCondition::Absent, far)).await;

    fixture.reopen().await;
    let store = fixture.store();
    let mut owner = Owner::claim(store, "cases", 0).await;
    assert_eq!(producer.assign(store, 0, &[message(&a, "2")]).await, [NumberedElsewhere(301)]);
    let replies = producer.assign(store, 0, &[message(&b, "1")]).await;
    assert!(matches!(&replies[..], [NumberedElsewhere(next)] if *next >= 1 << 63), "{replies:?}");
    assert_eq!(producer.retained(store, &a, 2, 301).await, []);
    assert_eq!(restoring.assign(store, 0, &[message(&a, "2")]).await, [New(2)]);
    // The record names the highest spilled event and the highest dead letter. The higher of the two numbers counts.
    let spill = vec![(350, owner::event(&a, 350, ""))];
    let mut record = full;
    record.spilled.add(350);
    let write = record_write(&a, WriteCondition::Next(2), record);
    owner.write(store, KeyWrite { spill, due_in: Some(1_000), ..write }).await;
    assert_eq!(producer.assign(store, 0, &[message(&a, "3")]).await, [NumberedElsewhere(351)]);
    // The producer of the letters may give its events the numbers in and after the range.
    let own = |sequence| event(&a, "own", Some(sequence), "own", false);
    let items = [own(3), own(350), message(&a, "4")];
    assert_eq!(producer.assign(store, 0, &items).await, [New(3), New(350), New(351)]);
}

/// A store that went back in time has lost numbers that it gave, but the reader has settled the events with these
/// numbers. The store cannot distinguish these numbers from the numbers of another producer, so it refuses to number an
/// event. If the call publishes lost events again, the store gives the number of a settled event to the same event, but
/// not to another event. If the record of the key no longer has the digest of the settled event, the store does not
/// give this number.
pub async fn lost_numbers_are_given_again_to_the_same_events(fixture: &mut impl Fixture) {
    use AssignItemReply::{AfterConflict, Known, New, NumberedElsewhere, UnprovenRepeat};
    let store = fixture.store();
    let [a, b] = keys(store);
    let producer = Sender { readers: vec!["cases".into()], ..Sender::producer(store) };
    let restoring = Sender { reuses_lost_numbers: true, ..producer.clone() };
    let mut owner = Owner::claim(store, "cases", 0).await;
    assert_eq!(producer.assign(store, 0, &[message(&a, "1")]).await, [New(1)]);
    // The store has lost the numbers 2 and 3 of key `a`, and the numbers 1 and 2 of key `b`. The record of key `b` no
    // longer has the digest of event 1.
    for (key, digests, next) in [(&a, ["2", "3"].as_slice(), 4), (&b, &["2"], 3)] {
        let mut record = key_record(next);
        record.digests = digests_of(key, digests);
        owner.write(store, record_write(key, WriteCondition::Absent, record)).await;
    }
    let items = [message(&a, "1"), message(&a, "2"), message(&a, "3")];
    let expected = [Known(1), NumberedElsewhere(4), AfterConflict];
    assert_eq!(producer.assign(store, 0, &items).await, expected);

    fixture.reopen().await;
    let store = fixture.store();
    let others = [message(&a, "3"), message(&a, "2")];
    assert_eq!(restoring.assign(store, 0, &others).await, [UnprovenRepeat(2), AfterConflict]);
    for data in ["1", "2"] {
        assert_eq!(restoring.assign(store, 0, &[message(&b, data)]).await, [UnprovenRepeat(1)]);
    }
    assert_eq!(restoring.assign(store, 0, &items).await, [Known(1), New(2), New(3)]);
    // The store has all numbers of key `a` again, so it numbers new events as before the loss.
    let items = [message(&a, "3"), message(&a, "4")];
    assert_eq!(producer.assign(store, 0, &items).await, [Known(3), New(4)]);
    // A second reader has another event with the next number.
    let mut owner = Owner::claim(store, "others", 0).await;
    let mut record = key_record(6);
    record.digests = digests_of(&a, &["5"]);
    owner.write(store, record_write(&a, WriteCondition::Absent, record)).await;
    let readers = vec!["cases".into(), "others".into()];
    let both = Sender { readers, ..restoring.clone() };
    assert_eq!(both.assign(store, 0, &[message(&a, "6")]).await, [UnprovenRepeat(5)]);
    assert_eq!(both.assign(store, 0, &[message(&a, "5")]).await, [New(5)]);
}

/// If a call publishes lost events again, the store also compares events that wait in the store for earlier events. The
/// store gives no number to an event that the reader lacks. For an ended key, the store writes nothing, so that the key
/// does not start again.
pub async fn lost_numbers_of_waiting_events_and_ended_keys(fixture: &mut impl Fixture) {
    use AssignItemReply::{KeyEnded, New, Settled, UnprovenRepeat};
    let store = fixture.store();
    let [a, b] = keys(store);
    let producer = Sender { readers: vec!["cases".into()], ..Sender::producer(store) };
    let restoring = Sender { reuses_lost_numbers: true, ..producer.clone() };
    let mut owner = Owner::claim(store, "cases", 0).await;
    // Events 1 and 3 of key `a` wait in the store.
    let spill: Vec<_> =
        [1, 3].map(|sequence| (sequence, owner::event(&a, sequence, &sequence.to_string()))).into();
    let mut record = key_record(1);
    for (sequence, _) in &spill {
        record.spilled.add(*sequence);
    }
    let write = record_write(&a, WriteCondition::Absent, record);
    owner.write(store, KeyWrite { spill, due_in: Some(1_000), ..write }).await;
    // Key `b` has ended with event 3.
    let mut tombstone = key_record(4);
    tombstone.status = KeyStatus::Completed;
    tombstone.digests = digests_of(&b, &["1", "2", "3"]);
    let write = record_write(&b, WriteCondition::Absent, tombstone);
    owner.write(store, KeyWrite { expire_in: Some(COMPLETED_TTL_MS), ..write }).await;

    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(restoring.assign(store, 0, &[message(&a, "3")]).await, [UnprovenRepeat(1)]);
    let items = [message(&a, "1"), message(&a, "2")];
    assert_eq!(restoring.assign(store, 0, &items).await, [New(1), UnprovenRepeat(2)]);
    let items = [message(&b, "1"), message(&b, "2"), last_message(&b, "3"), message(&b, "4")];
    let expected = [Settled(1), Settled(2), Settled(3), KeyEnded];
    assert_eq!(restoring.assign(store, 0, &items).await, expected);
    assert_eq!(producer.assign(store, 0, &[message(&b, "1")]).await, [KeyEnded]);
    assert_eq!(producer.retained(store, &b, 0, 9).await, []);
    fixture.advance_clock(COMPLETED_TTL_MS + 1_000).await;
    assert_eq!(producer.assign(fixture.store(), 0, &[message(&b, "4")]).await, [New(1)]);
}

/// A producer's event becomes store-numbered when the store gives it a number. If a reader has recorded the digest of a
/// store-numbered event, the store gives the lost number only to an event with the same source and id.
pub async fn equal_event_with_another_id_gets_no_lost_number(fixture: &mut impl Fixture) {
    use AssignItemReply::{New, UnprovenRepeat};
    let store = fixture.store();
    let [a, b] = keys(store);
    let producer = Sender { readers: vec!["cases".into()], ..Sender::producer(store) };
    let restoring = Sender { reuses_lost_numbers: true, ..producer.clone() };
    let own = event(&a, "2", Some(2), "own", false);
    assert_eq!(producer.assign(store, 0, &[message(&a, "1"), own]).await, [New(1), New(2)]);
    let kept = store.retained_messages(&producer.destination, &a, &[1..=2], 1 << 20).await;
    let kept = kept.expect("a read").events;
    let marks: Vec<bool> = kept.iter().map(|(_, event)| event.is_store_numbered()).collect();
    assert_eq!(marks, [true, false]);

    // The store has lost the number 3 of key `a` and the number 1 of key `b`. The event of key `a` is settled, and the
    // event of key `b` waits in the store for another event.
    let mut owner = Owner::claim(store, "cases", 0).await;
    let marked = |key: &str, data: &str| message(key, data).numbered_by_store();
    let mut record = key_record(4);
    record.digests.push(marked(&a, "3").repeat_digest(), 4);
    owner.write(store, record_write(&a, WriteCondition::Absent, record)).await;
    let mut record = key_record(1);
    record.spilled.add(1);
    let write = record_write(&b, WriteCondition::Absent, record);
    let spill = vec![(1, Arc::new(marked(&b, "1")))];
    owner.write(store, KeyWrite { spill, due_in: Some(1_000), ..write }).await;
    for (key, data, number) in [(&a, "3", 3), (&b, "1", 1)] {
        let other = event(key, data, None, "another id", false);
        assert_eq!(restoring.assign(store, 0, &[other]).await, [UnprovenRepeat(number)]);
        assert_eq!(restoring.assign(store, 0, &[message(key, data)]).await, [New(number)]);
    }
}

/// A producer that writes a lost event again may name the number that the event had. The store then gives the event
/// this number or no number.
pub async fn lost_event_of_a_producer_gets_its_earlier_number_or_none(fixture: &mut impl Fixture) {
    use AssignItemReply::{AfterConflict, Known, New, OtherNumber};
    let store = fixture.store();
    let [a, b] = keys(store);
    let producer = Sender::producer(store);
    let assign_lost = async |key: &str, events: &[(&str, u64)]| {
        let items: Vec<_> = events.iter().map(|(data, _)| message(key, data)).collect();
        let mut chunk = chunk(0, 0, &items);
        for (item, (_, number)) in chunk.items.iter_mut().zip(events) {
            item.number = *number;
        }
        results(producer.send(store, vec![chunk]).await)
    };
    assert_eq!(
        producer.assign(store, 0, &[message(&a, "1"), message(&a, "2")]).await,
        [New(1), New(2)]
    );
    assert_eq!(assign_lost(&a, &[("4", 4), ("3", 3)]).await, [OtherNumber(3), AfterConflict]);
    assert_eq!(assign_lost(&a, &[("2", 2), ("3", 3)]).await, [Known(2), New(3)]);
    assert_eq!(assign_lost(&a, &[("other", 3)]).await, [OtherNumber(4)]);
    assert_eq!(producer.retained(store, &a, 4, 9).await, []);
    assert_eq!(assign_lost(&a, &[("4", 4)]).await, [New(4)]);
    assert_eq!(assign_lost(&b, &[("1", 1), ("2", 0)]).await, [New(1), New(2)]);
}

/// The store lost the numbers of the last events of a key, but still has the numbers of earlier events. When a producer
/// publishes one of the lost events again, the store writes no event. From then on, the numbers of the key expire
/// together with the record of the ended key.
pub async fn numbers_of_an_ended_key_expire_with_its_record(fixture: &mut impl Fixture) {
    use AssignItemReply::{KeyEnded, New, Settled};
    let store = fixture.store();
    let [a, b] = keys(store);
    let producer = Sender { readers: vec!["cases".into()], ..Sender::producer(store) };
    let restoring = Sender { reuses_lost_numbers: true, ..producer.clone() };
    let mut owner = Owner::claim(store, "cases", 0).await;
    for key in [&a, &b] {
        let items = [message(key, "1"), message(key, "2")];
        assert_eq!(producer.assign(store, 0, &items).await, [New(1), New(2)]);
        let mut tombstone = key_record(5);
        tombstone.status = KeyStatus::Completed;
        tombstone.digests = digests_of(key, &["1", "2", "3", "4"]);
        let write = record_write(key, WriteCondition::Absent, tombstone);
        owner.write(store, KeyWrite { expire_in: Some(COMPLETED_TTL_MS / 2), ..write }).await;
    }
    let items = [message(&a, "3"), last_message(&a, "4")];
    assert_eq!(restoring.assign(store, 0, &items).await, [Settled(3), Settled(4)]);
    assert_eq!(producer.assign(store, 0, &[message(&b, "5")]).await, [KeyEnded]);
    fixture.reopen().await;
    assert_eq!(producer.assign(fixture.store(), 0, &[message(&a, "5")]).await, [KeyEnded]);
    fixture.advance_clock(COMPLETED_TTL_MS / 2 + 1_000).await;
    for key in [&a, &b] {
        assert_eq!(producer.assign(fixture.store(), 0, &[message(key, "6")]).await, [New(1)]);
    }
}

/// Returns the digests of messages of a key with these data.
fn digests_of(key: &str, data: &[&str]) -> EventDigests {
    data.iter().map(|data| EventDigests::short(message(key, data).content())).collect()
}

/// The last event of a key is committed some time after it was published. The store therefore forgets the numbers of
/// the key before the record of the ended key expires. Until the record expires, the store answers messages of the key
/// with `KeyEnded`.
pub async fn ended_key_gets_no_number_until_its_record_expires(fixture: &mut impl Fixture) {
    use AssignItemReply::{AfterConflict, KeyEnded, New};
    let store = fixture.store();
    let [a, b] = keys(store);
    let producer = Sender { readers: vec!["cases".into()], ..Sender::producer(store) };
    let mut owner = Owner::claim(store, "cases", 0).await;
    assert_eq!(producer.assign(store, 0, &[last_message(&a, "1")]).await, [New(1)]);
    fixture.advance_clock(COMPLETED_TTL_MS / 2).await;
    let store = fixture.store();
    let mut tombstone = key_record(2);
    tombstone.status = KeyStatus::Completed;
    let write = record_write(&a, WriteCondition::Absent, tombstone);
    owner.write(store, KeyWrite { expire_in: Some(COMPLETED_TTL_MS), ..write }).await;
    fixture.advance_clock(COMPLETED_TTL_MS * 3 / 4).await;
    let store = fixture.store();
    let items = [message(&b, "1"), message(&a, "2"), message(&a, "3")];
    assert_eq!(producer.assign(store, 0, &items).await, [New(1), KeyEnded, AfterConflict]);
    fixture.advance_clock(COMPLETED_TTL_MS / 2).await;
    assert_eq!(producer.assign(fixture.store(), 0, &[message(&a, "2")]).await, [New(1)]);
}

/// The store puts numbered messages for a stream into a queue. A read returns the messages in order, until the owner of
/// the partition removes them.
pub async fn messages_wait_in_order_until_removed(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let [a, b] = keys(store);
    let sender = Sender::stream(store, Some(NUMBERING), 4);
    let partition = Partition { stream: "next".into(), number: 0 };
    let shard = sender.shard;
    let read = async |store: &dyn Store, after, limit, bytes| {
        let all = store.read_queue(&partition, shard, QueuePosition::default(), 100, 1 << 20).await;
        let all = all.expect("a read").entries;
        let after = all
            .iter()
            .map(|row| row.0)
            .find(|position| position.number == after)
            .unwrap_or_default();
        let read = store.read_queue(&partition, shard, after, limit, bytes).await.expect("a read");
        let row = |(position, queued): (QueuePosition, QueueEntry)| {
            let event = queued.expect("an event");
            (position.number, event.sequence(), data(&event))
        };
        read.entries.into_iter().map(row).collect::<Vec<_>>()
    };
    let position_of = async |store: &dyn Store, number| {
        let all = store.read_queue(&partition, shard, QueuePosition::default(), 100, 1 << 20).await;
        let all = all.expect("a read").entries;
        all.iter()
            .map(|row| row.0)
            .find(|position| position.number == number)
            .expect("the message waits")
    };
    let row = |number, sequence, data: &str| (number, Some(sequence), data.to_owned());
    assert_eq!(read(store, 0, 10, 1 << 20).await, []);
    sender.assign(store, 1, &[message(&a, "1"), message(&b, "1")]).await;
    sender.assign(store, 2, &[message(&a, "2")]).await;
    sender.assign(store, 1, &[message(&a, "1"), message(&b, "1")]).await;
    let all = [row(1, 1, "1"), row(2, 1, "1"), row(3, 2, "2")];
    assert_eq!(read(store, 0, 10, 1 << 20).await, all);
    assert_eq!(read(store, 1, 1, 1 << 20).await, all[1..2]);
    assert_eq!(read(store, 1, 10, 1).await, all[1..2]);
    assert_eq!(store.queue_length(&partition).await.expect("a number"), 3);
    assert_eq!(store.streams().await.expect("streams"), [Arc::from("next")]);
    assert_eq!(sender.retained(store, &a, 0, 9).await.len(), 2);

    // Only the owner of the partition may remove the messages.
    let owner = Owner::claim(store, "next", 0).await;
    let other = Claim { random: owner.claim.random ^ 1, ..owner.claim };
    let second = position_of(store, 2).await;
    store.dequeue(&partition, other, shard, 0, second).await.expect("an answer");
    assert_eq!(read(store, 0, 10, 1 << 20).await.len(), 3);
    store.dequeue(&partition, owner.claim, shard, 0, second).await.expect("an answer");
    assert_eq!(read(store, 0, 10, 1 << 20).await, all[2..]);
    store.dequeue(&partition, owner.claim, shard, 0, second).await.expect("an answer");
    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(read(store, 0, 10, 1 << 20).await, all[2..]);

    // The store accepts the messages of one call either all or not at all. This call fills the queue to its limit, and
    // the store refuses the next call.
    let many = [message(&b, "2"), message(&b, "3"), message(&b, "4")];
    sender.assign(store, 3, &many).await;
    assert_eq!(sender.send_chunk(store, 4, &[message(&b, "5")]).await, AssignReply::Full);
    let last = position_of(store, 6).await;
    store.dequeue(&partition, owner.claim, shard, 0, last).await.expect("an answer");
    assert_eq!(store.queue_length(&partition).await.expect("a number"), 0);
    assert_eq!(store.streams().await.expect("streams"), [] as [Arc<str>; 0]);
    sender.assign(store, 4, &[message(&b, "5")]).await;
    assert_eq!(read(store, 0, 10, 1 << 20).await, [row(7, 5, "5")]);
}

/// If the store does not number the messages of a destination, it only puts each message into the queue of the
/// message's partition.
pub async fn messages_without_numbers_are_queued(fixture: &mut impl Fixture) {
    use AssignItemReply::{Known, New};
    let store = fixture.store();
    let [a, b] = keys(store);
    let sender = Sender::stream(store, None, 100);
    let mut chunks = vec![chunk(1, 0, &[message(&a, "1"), message(&b, "1"), message(&a, "2")])];
    chunks[0].items[1].partition = 5;
    assert_eq!(results(sender.send(store, chunks.clone()).await), [New(0); 3]);
    assert_eq!(results(sender.send(store, chunks).await), [Known(0); 3]);
    for (number, expected) in [(0, vec!["1", "2"]), (5, vec!["1"])] {
        let partition = Partition { stream: "next".into(), number };
        let start = QueuePosition::default();
        let read = store.read_queue(&partition, sender.shard, start, 10, 1 << 20).await;
        let read = read.expect("a read").entries;
        let events: Vec<Event> = read.into_iter().map(|row| row.1.expect("an event")).collect();
        assert!(events.iter().all(|event| event.sequence().is_none()));
        assert_eq!(events.iter().map(data).collect::<Vec<_>>(), expected);
    }
    assert_eq!(sender.retained(store, &a, 0, 9).await, []);
    // A message that already has a number keeps this number.
    let producer = Sender { origin: None, ..sender };
    let numbered = event(&b, "2", Some(7), "own", false);
    assert_eq!(producer.assign(store, 0, &[numbered]).await, [New(7)]);
    let partition = Partition { stream: "next".into(), number: 0 };
    let start = QueuePosition::default();
    let read = store.read_queue(&partition, producer.shard, start, 10, 1 << 20).await;
    let read = read.expect("a read").entries;
    let numbers = read.into_iter().skip(2).map(|row| row.1.expect("an event").sequence());
    assert_eq!(numbers.collect::<Vec<_>>(), [Some(7)]);
}
