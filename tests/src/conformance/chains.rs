//! Numbered messages, messages that the store retains for replay, and queues.

mod by_seed;
mod giver;

use std::sync::Arc;

use ordain_core::{Event, QueuePosition};
use ordain_store::{
    AssignGroupReply, AssignItemReply, AssignReply, Claim, Destination, DestinationRules,
    NumberingSettings, OriginOutbox, OutboxChunk, OutboxPosition, Partition, QueueEntry, Store,
};

use super::{Fixture, Owner};
use giver::{COMPLETE, NUMBERS, RETAIN, done, event, keys, last, refused};
pub(super) use giver::{Giver, data, message, part};

pub use by_seed::{a_model_says_the_same, numbers_hold_through_crashes};

/// The store numbers the messages of each key and destination separately, from the configured first number on. The
/// store retains numbered messages in the form in which their receiver will see them.
pub async fn messages_are_numbered_in_order(fixture: &mut impl Fixture) {
    use AssignItemReply::New;
    let store = fixture.store();
    let [a, b] = keys(store);
    let giver = Giver::exchange(store, 1);
    let parts = vec![
        part(1, 0, &[message(&a, "1"), message(&b, "1"), message(&a, "2")]),
        part(1, 1, &[message(&a, "3")]),
        part(4, 0, &[message(&b, "2")]),
    ];
    assert_eq!(done(giver.send(store, parts).await), [New(1), New(1), New(2), New(3), New(2)]);
    let zero = NumberingSettings { first: 0, ..NUMBERS };
    let rules = DestinationRules { numbering: Some(zero), queue_limit: None };
    let other = Destination::Exchange("other".into());
    let other = Giver { to: other, rules, ..Giver::exchange(store, 1) };
    assert_eq!(other.done(store, 1, &[message(&a, "x"), message(&a, "y")]).await, [New(0), New(1)]);

    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(giver.done(store, 5, &[message(&a, "4")]).await, [New(4)]);
    let expected = [(2, "2".to_owned()), (3, "3".to_owned())];
    assert_eq!(giver.kept(store, &a, 2, 3).await, expected);
    assert_eq!(giver.kept(store, &b, 0, 9).await.len(), 2);
    let kept =
        store.retained_messages(&giver.to, &a, &[1..=1, 3..=9], 1 << 20).await.expect("a read");
    assert_eq!(kept.len(), 3);
    let kept = &kept[1];
    let third = message(&a, "3");
    assert_eq!((kept.id(), kept.kind(), kept.source()), (third.id(), "test", "/ordain/first"));
    assert_eq!((kept.key(), kept.content()), (&*a, third.content()));
    assert_eq!(kept.headers().collect::<Vec<_>>(), [("a", "b")]);
    let one = store.retained_messages(&giver.to, &a, &[1..=4], 1).await.expect("a read");
    assert_eq!(one.len(), 1);
}

/// A message keeps its number as long as an outbox may hold the message, even if another owner assigns the message
/// again.
pub async fn a_message_has_one_number(fixture: &mut impl Fixture) {
    use AssignItemReply::{Known, New};
    let store = fixture.store();
    let [a, _] = keys(store);
    let first = Giver::exchange(store, 1);
    let two = [message(&a, "1"), message(&a, "2")];
    assert_eq!(first.done(store, 1, &two).await, [New(1), New(2)]);
    assert_eq!(first.done(store, 2, &[message(&a, "3")]).await, [New(3)]);
    assert_eq!(first.done(store, 1, &two).await, [Known(1), Known(2)]);
    fixture.reopen().await;
    let store = fixture.store();

    // A new owner assigns the same messages again, divided into calls in another way.
    let second = Giver::exchange(store, 2);
    assert_eq!(second.done(store, 1, &two).await, [Known(1), Known(2)]);
    let second =
        second.with(|origin| origin.last_confirmed = Some(OutboxPosition { commit: 1, chunk: 0 }));
    let parts =
        vec![part(1, 0, &two), part(2, 0, &[message(&a, "3")]), part(3, 0, &[message(&a, "4")])];
    assert_eq!(done(second.send(store, parts).await), [Known(1), Known(2), Known(3), New(4)]);
    // An owner does not assign a message again after the message is recorded as published. Only a late call can contain
    // such a message.
    let second = second.with(|origin| origin.published_commit = 3);
    for commit in 4..=19 {
        let next = message(&a, &(commit + 1).to_string());
        assert_eq!(second.done(store, commit, &[next]).await, [New(commit + 1)]);
    }
    assert_eq!(second.give(store, 2, &[message(&a, "3")]).await, refused(AssignGroupReply::Fenced));
    assert_eq!(second.done(store, 4, &[message(&a, "5")]).await, [Known(5)]);
    // The store fences the previous owner.
    assert_eq!(first.give(store, 20, &[message(&a, "6")]).await, refused(AssignGroupReply::Fenced));
    assert_eq!(first.give(store, 4, &[message(&a, "5")]).await, refused(AssignGroupReply::Fenced));
    assert_eq!(second.kept(store, &a, 0, 99).await.len(), 20);
}

/// Two different messages can have the same outbox position: if they come from two origins, or if the store went back
/// in time between them. The store does not confuse these messages.
pub async fn a_place_may_have_other_messages(fixture: &mut impl Fixture) {
    use AssignItemReply::{Known, New};
    let store = fixture.store();
    let [a, _] = keys(store);
    let first = Giver::exchange(store, 1);
    assert_eq!(first.done(store, 1, &[message(&a, "1")]).await, [New(1)]);
    let other = Giver::exchange(store, 1).with(|origin| origin.shard = 1);
    assert_eq!(other.done(store, 1, &[message(&a, "2")]).await, [New(2)]);
    let other = Giver::exchange(store, 1).with(|origin| origin.partition.number = 0);
    assert_eq!(other.done(store, 1, &[message(&a, "3")]).await, [New(3)]);

    let second = Giver::exchange(store, 2);
    assert_eq!(second.done(store, 1, &[message(&a, "4")]).await, [New(4)]);
    assert_eq!(second.done(store, 1, &[message(&a, "4")]).await, [Known(4)]);

    // The owner names an outbox position that the store does not have: the store has lost messages that it had
    // confirmed.
    let went =
        second.with(|origin| origin.last_confirmed = Some(OutboxPosition { commit: 1, chunk: 1 }));
    let last = OutboxPosition { commit: 1, chunk: 0 };
    let less = || refused(AssignGroupReply::RolledBack(Some(last)));
    assert_eq!(went.give(store, 2, &[message(&a, "5")]).await, less());
    assert_eq!(went.send(store, Vec::new()).await, less());
    let right =
        went.with(|origin| origin.last_confirmed = Some(OutboxPosition { commit: 1, chunk: 0 }));
    assert!(done(right.send(store, Vec::new()).await).is_empty());
    assert_eq!(right.done(store, 2, &[message(&a, "5")]).await, [New(5)]);
    let never = Giver::exchange(store, 3)
        .with(|origin| origin.last_confirmed = Some(OutboxPosition::default()));
    assert_eq!(
        never.give(store, 3, &[message(&a, "6")]).await,
        refused(AssignGroupReply::RolledBack(None))
    );

    // One call has assigned the messages of two commits, and only the second commit is lost.
    let of_two = |origin: &mut OriginOutbox| origin.partition.number = 1;
    let parts = || vec![part(1, 0, &[message(&a, "7")]), part(2, 0, &[message(&a, "8")])];
    let earlier = Giver::exchange(store, 1).with(of_two);
    assert_eq!(done(earlier.send(store, parts()).await), [New(6), New(7)]);
    let later = Giver::exchange(store, 2).with(of_two).with(|origin| origin.claimed_commit = 1);
    assert_eq!(done(later.send(store, parts()).await), [Known(6), New(8)]);
    assert_eq!(done(later.send(store, parts()).await), [Known(6), Known(8)]);
}

/// If an owner assigns a lost message again, the message gets its earlier number, unless another message has that
/// number now. The owner may assign lost messages in any order.
pub async fn what_is_given_again_keeps_its_number(fixture: &mut impl Fixture) {
    use AssignItemReply::New;
    let store = fixture.store();
    let [a, b] = keys(store);
    let giver = Giver::exchange(store, 1);
    let again = async |commit, data: &str, number| {
        let mut part = part(commit, 0, &[message(&a, data)]);
        part.items[0].number = number;
        done(giver.send(store, vec![part]).await)
    };
    assert_eq!(again(1, "third", 3).await, [New(3)]);
    assert_eq!(again(2, "first", 1).await, [New(1)]);
    assert_eq!(again(3, "other", 3).await, [New(4)]);
    assert_eq!(again(4, "second", 2).await, [New(2)]);
    assert_eq!(giver.done(store, 5, &[message(&a, "new")]).await, [New(5)]);
    // A message never gets a lower number than an earlier message of the same key and call.
    assert_eq!(giver.done(store, 6, &[message(&b, "taken")]).await, [New(1)]);
    let mut late = part(7, 0, &[message(&b, "fifth")]);
    late.items[0].number = 5;
    assert_eq!(done(giver.send(store, vec![late]).await), [New(5)]);
    let mut lost = part(8, 0, &[message(&b, "first"), message(&b, "second")]);
    (lost.items[0].number, lost.items[1].number) = (1, 2);
    assert_eq!(done(giver.send(store, vec![lost]).await), [New(6), New(7)]);
    let kept = ["first", "second", "third", "other", "new"].map(str::to_owned);
    assert_eq!(giver.kept(store, &a, 0, 9).await, (1..).zip(kept).collect::<Vec<_>>());
}

/// The store identifies a message by its commit and its id, even if a repeated call contains other messages of the
/// commit. This happens if the configuration of the sinks changes while the outbox is not empty.
pub async fn a_commit_may_be_given_in_other_parts(fixture: &mut impl Fixture) {
    use AssignItemReply::{Known, New};
    let store = fixture.store();
    let [a, b] = keys(store);
    let first = Giver::exchange(store, 1);
    first.done(store, 7, &[message(&a, "1"), message(&b, "1")]).await;
    let second = Giver::exchange(store, 2);
    let items = [message(&a, "0"), message(&a, "1"), message(&a, "2")];
    assert_eq!(second.done(store, 7, &items).await, [New(2), Known(1), New(3)]);
    assert_eq!(second.done(store, 7, &[message(&b, "1")]).await, [Known(1)]);
    assert_eq!(second.done(store, 7, &items).await, [Known(2), Known(1), Known(3)]);

    // Assign the messages of many commits. First, one call for each commit. Then, calls with several commits, and with
    // one more message in each commit. Each of these calls is repeated once.
    let of_shard = |epoch| Giver::exchange(store, epoch).with(|origin| origin.shard = 1);
    let old = |commit: u64| message(&b, &format!("old {commit}"));
    let new = |commit: u64| message(&b, &format!("new {commit}"));
    for commit in 1..=30 {
        assert_eq!(of_shard(1).done(store, commit, &[old(commit)]).await, [New(commit + 1)]);
    }
    for commits in [1..=10, 11..=20, 21..=30_u64] {
        let parts: Vec<OutboxChunk> =
            commits.clone().map(|commit| part(commit, 0, &[old(commit), new(commit)])).collect();
        let given = done(of_shard(2).send(store, parts.clone()).await);
        let right = commits.flat_map(|commit| [Known(commit + 1), New(commit + 31)]);
        assert_eq!(given, right.collect::<Vec<_>>());
        // Repeat the call, as after a lost reply.
        let again = done(of_shard(2).send(store, parts).await);
        assert!(again.iter().all(|assigned| matches!(assigned, Known(_))), "{again:?}");
    }
    for commits in [1..=7, 8..=25, 26..=30_u64] {
        let parts =
            commits.clone().map(|commit| part(commit, 0, &[new(commit), old(commit)])).collect();
        let right = commits.flat_map(|commit| [Known(commit + 31), Known(commit + 1)]);
        assert_eq!(done(of_shard(3).send(store, parts).await), right.collect::<Vec<_>>());
    }
}

/// The store finds repeated messages among many others, and forgets messages that the outbox has lost, because later
/// commits reuse the numbers of the lost commits.
pub async fn an_outbox_may_have_lost_commits(fixture: &mut impl Fixture) {
    use AssignItemReply::{Known, New};
    let store = fixture.store();
    let [a, _] = keys(store);
    let first = Giver::exchange(store, 1);
    for commit in 1..=40 {
        first.done(store, commit, &[message(&a, &commit.to_string())]).await;
    }
    // The outbox has lost the commits after `claimed_commit`. The first call of a new owner makes the store forget
    // their messages, and contains another message of commit 6.
    let other = Giver::exchange(store, 1).with(|origin| origin.shard = 1);
    for commit in 1..=10 {
        other.done(store, commit, &[message(&a, &format!("b {commit}"))]).await;
    }
    let after =
        Giver::exchange(store, 2).with(|origin| (origin.shard, origin.claimed_commit) = (1, 5));
    assert_eq!(after.done(store, 6, &[message(&a, "b new")]).await, [New(51)]);
    assert_eq!(after.done(store, 6, &[message(&a, "b new")]).await, [Known(51)]);
    assert_eq!(after.done(store, 5, &[message(&a, "b 5")]).await, [Known(45)]);

    let second = Giver::exchange(store, 2).with(|origin| origin.claimed_commit = 30);
    for commit in [29, 3, 30, 1] {
        let done = second.done(store, commit, &[message(&a, &commit.to_string())]).await;
        assert_eq!(done, [Known(commit)]);
    }
    let others: Vec<OutboxChunk> =
        (31..=35).map(|at| part(at, 0, &[message(&a, &format!("other {at}"))])).collect();
    let given = done(second.send(store, others.clone()).await);
    assert_eq!(given, (52..=56).map(New).collect::<Vec<_>>());
    let third = Giver::exchange(store, 3).with(|origin| origin.claimed_commit = 35);
    let known = done(third.send(store, others).await);
    assert_eq!(known, (52..=56).map(Known).collect::<Vec<_>>());
    // The store forgets messages that are recorded as published, and refuses a late call that assigns one of them
    // again.
    let third = third.with(|origin| origin.published_commit = 35);
    for commit in 36..=60 {
        third.done(store, commit, &[message(&a, &commit.to_string())]).await;
    }
    let late = part(20, 0, &[message(&a, "20")]);
    assert_eq!(third.send(store, vec![late]).await, refused(AssignGroupReply::Fenced));

    // The messages of commits 5 and 6 are assigned first, and those of commit 3 in a later call. Then commits 5 and 6
    // are lost. The store must forget their messages, and keep the message of commit 3, although it came last.
    let mixed = |epoch| Giver::exchange(store, epoch).with(|origin| origin.shard = 2);
    for commit in [5, 6] {
        let given = mixed(1).done(store, commit, &[message(&a, &format!("c {commit}"))]).await;
        assert!(matches!(given[..], [New(_)]), "{given:?}");
    }
    let older = mixed(2).done(store, 3, &[message(&a, "c 3")]).await;
    let [New(older)] = older[..] else { panic!("{older:?}") };
    let after = mixed(3).with(|origin| origin.claimed_commit = 4);
    let again = after.done(store, 6, &[message(&a, "c 6")]).await;
    assert!(matches!(again[..], [New(_)]), "commit 6 is lost: {again:?}");
    let again = mixed(4).done(store, 5, &[message(&a, "c 5")]).await;
    assert!(matches!(again[..], [New(_)]), "commit 5 is lost: {again:?}");
    assert_eq!(mixed(4).done(store, 3, &[message(&a, "c 3")]).await, [Known(older)]);
}

/// Several owners assign in one call, and each gets its own reply.
pub async fn owners_give_together(fixture: &mut impl Fixture) {
    use AssignItemReply::{Known, New};
    let store = fixture.store();
    let [a, b] = keys(store);
    let first = Giver::exchange(store, 2);
    let of_shard = |shard| Giver::exchange(store, 2).with(|origin| origin.shard = shard);
    let second = of_shard(1);
    let third = of_shard(2);
    first.done(store, 4, &[message(&a, "1")]).await;
    third.done(store, 1, &[message(&b, "1")]).await;
    let stale = Giver::exchange(store, 1);
    let went = of_shard(3)
        .with(|origin| origin.last_confirmed = Some(OutboxPosition { commit: 9, chunk: 0 }));
    let producer = Giver::producer(store);
    let lots = vec![
        second.lot(vec![part(1, 0, &[message(&a, "2"), message(&b, "2")])]),
        stale.lot(vec![part(5, 0, &[message(&a, "stale")])]),
        third.lot(vec![part(1, 0, &[message(&b, "1")]), part(2, 0, &[message(&a, "3")])]),
        went.lot(vec![part(10, 0, &[message(&a, "lost")])]),
        // A second group of the same outbox: the store refuses it, and the owner must send it again in another call.
        second.lot(vec![part(2, 0, &[message(&a, "twice")])]),
        producer.lot(vec![part(0, 0, &[message(&a, "4"), message(&a, "4")])]),
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
    assert_eq!(first.send_lots(store, lots.clone()).await, expected);
    let numbered = ["1", "2", "3", "4"].map(str::to_owned);
    let right: Vec<(u64, String)> = (1..).zip(numbered).collect();
    assert_eq!(first.kept(store, &a, 0, 9).await, right);
    assert_eq!(second.done(store, 2, &[message(&a, "5")]).await, [New(5)]);
}

/// After a key has ended, its messages are numbered on for a while. Later messages start again at 1.
pub async fn an_ended_count_is_forgotten(fixture: &mut impl Fixture) {
    use AssignItemReply::New;
    let store = fixture.store();
    let [a, b] = keys(store);
    let giver = Giver::exchange(store, 1);
    let items = [message(&a, "1"), last(&a, "2"), message(&b, "1")];
    assert_eq!(giver.done(store, 1, &items).await, [New(1), New(2), New(1)]);
    fixture.pass(COMPLETE / 2).await;
    // The store numbers a message even after the end of its key, because only the receiver decides whether the message
    // is too late.
    assert_eq!(giver.done(fixture.store(), 2, &[last(&a, "3")]).await, [New(3)]);
    fixture.pass(COMPLETE * 3 / 4).await;
    assert_eq!(giver.done(fixture.store(), 3, &[message(&a, "4")]).await, [New(4)]);
    fixture.pass(COMPLETE).await;
    let items = [message(&a, "new"), message(&b, "2")];
    assert_eq!(giver.done(fixture.store(), 4, &items).await, [New(1), New(2)]);
    // The key has started again. The store must keep its new messages when it removes the expired data of the old
    // incarnation.
    assert_eq!(giver.kept(fixture.store(), &a, 0, 9).await, [(1, "new".to_owned())]);
    for commit in 20..26 {
        giver.done(fixture.store(), commit, &[message(&b, &commit.to_string())]).await;
    }
    assert_eq!(giver.kept(fixture.store(), &a, 0, 9).await, [(1, "new".to_owned())]);
    fixture.pass(2 * COMPLETE).await;
    for commit in 30..35 {
        giver.done(fixture.store(), commit, &[message(&b, &commit.to_string())]).await;
    }
    assert_eq!(giver.done(fixture.store(), 40, &[message(&a, "newer")]).await, [New(2)]);
}

/// The store keeps a limited number of messages per key, for a limited time.
pub async fn messages_are_kept_for_a_while(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let [a, b] = keys(store);
    let numbers = NumberingSettings { retain_events: 3, ..NUMBERS };
    let rules = DestinationRules { numbering: Some(numbers), queue_limit: None };
    let giver = Giver { rules, ..Giver::exchange(store, 1) };
    for commit in 1..=5 {
        giver.done(store, commit, &[message(&a, &commit.to_string())]).await;
    }
    giver.done(store, 6, &[message(&b, "1")]).await;
    let numbers =
        |kept: Vec<(u64, String)>| kept.into_iter().map(|message| message.0).collect::<Vec<_>>();
    assert_eq!(numbers(giver.kept(store, &a, 0, 9).await), [3, 4, 5]);
    fixture.pass(RETAIN * 2).await;
    for commit in 7..=9 {
        let commit_data = commit.to_string();
        giver.done(fixture.store(), commit, &[message(&b, &commit_data)]).await;
    }
    assert_eq!(giver.kept(fixture.store(), &a, 0, 9).await, []);
    assert_eq!(numbers(giver.kept(fixture.store(), &b, 0, 9).await), [2, 3, 4]);
}

/// If a producer publishes a message again, the store recognises the message by its id, or by the number that the
/// producer gave to it.
pub async fn a_producer_is_known_by_ids(fixture: &mut impl Fixture) {
    use AssignItemReply::{AfterConflict, Conflict, Known, New};
    let store = fixture.store();
    let [a, b] = keys(store);
    let producer = Giver::producer(store);
    let items = [message(&a, "1"), message(&a, "2"), message(&a, "1")];
    assert_eq!(producer.done(store, 0, &items).await, [New(1), New(2), Known(1)]);
    fixture.reopen().await;
    let store = fixture.store();
    let items = [message(&a, "2"), message(&a, "3"), message(&b, "1")];
    assert_eq!(producer.done(store, 0, &items).await, [Known(2), New(3), New(1)]);
    let other = event(&a, "other", None, &format!("{a}/2"), false);
    assert_eq!(producer.done(store, 0, &[other]).await, [Conflict(2)]);

    let own = |data, sequence| event(&a, data, Some(sequence), "own", false);
    let items = [own("7", 7), message(&a, "8"), own("7", 7), own("x", 7), message(&b, "2")];
    let expected = [New(7), New(8), Known(7), Conflict(7), AfterConflict];
    assert_eq!(producer.done(store, 0, &items).await, expected);
    assert_eq!(producer.done(store, 0, &[own("x", 3)]).await, [Conflict(3)]);
    // A message that follows a conflict in the same call gets no number.
    assert_eq!(producer.kept(store, &b, 2, 9).await, []);
    assert_eq!(producer.done(store, 0, &[own("7", 7), own("5", 5)]).await, [Known(7), New(5)]);
    assert_eq!(producer.done(store, 0, &[message(&a, "9")]).await, [New(9)]);

    // After this time, the store has forgotten the ids of the messages, but not the last number of each key.
    fixture.pass(RETAIN * 2).await;
    for data in ["2", "3", "4"] {
        producer.done(fixture.store(), 0, &[message(&b, data)]).await;
    }
    assert_eq!(producer.done(fixture.store(), 0, &[message(&a, "1")]).await, [New(10)]);
}

/// Messages that wait for a stream arrive in order, until the owner of their partition removes them.
pub async fn messages_wait_for_their_stream(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let [a, b] = keys(store);
    let giver = Giver::stream(store, Some(NUMBERS), 4);
    let partition = Partition { stream: "next".into(), number: 0 };
    let shard = giver.shard;
    let read = async |store: &dyn Store, after, limit, bytes| {
        let all = store.read_queue(&partition, shard, QueuePosition::default(), 100, 1 << 20).await;
        let all = all.expect("a read").entries;
        let after =
            all.iter().map(|row| row.0).find(|place| place.number == after).unwrap_or_default();
        let read = store.read_queue(&partition, shard, after, limit, bytes).await.expect("a read");
        let row = |(place, queued): (QueuePosition, QueueEntry)| {
            let event = queued.expect("an event");
            (place.number, event.sequence(), data(&event))
        };
        read.entries.into_iter().map(row).collect::<Vec<_>>()
    };
    let place = async |store: &dyn Store, number| {
        let all = store.read_queue(&partition, shard, QueuePosition::default(), 100, 1 << 20).await;
        let all = all.expect("a read").entries;
        all.iter().map(|row| row.0).find(|place| place.number == number).expect("the message waits")
    };
    let row = |number, sequence, data: &str| (number, Some(sequence), data.to_owned());
    assert_eq!(read(store, 0, 10, 1 << 20).await, []);
    giver.done(store, 1, &[message(&a, "1"), message(&b, "1")]).await;
    giver.done(store, 2, &[message(&a, "2")]).await;
    giver.done(store, 1, &[message(&a, "1"), message(&b, "1")]).await;
    let all = [row(1, 1, "1"), row(2, 1, "1"), row(3, 2, "2")];
    assert_eq!(read(store, 0, 10, 1 << 20).await, all);
    assert_eq!(read(store, 1, 1, 1 << 20).await, all[1..2]);
    assert_eq!(read(store, 1, 10, 1).await, all[1..2]);
    assert_eq!(store.queue_length(&partition).await.expect("a number"), 3);
    assert_eq!(store.streams().await.expect("streams"), [Arc::from("next")]);
    assert_eq!(giver.kept(store, &a, 0, 9).await.len(), 2);

    // Only the owner of the partition may remove the messages.
    let owner = Owner::claim(store, "next", 0).await;
    let other = Claim { random: owner.claim.random ^ 1, ..owner.claim };
    let second = place(store, 2).await;
    store.dequeue(&partition, other, shard, 0, second).await.expect("an answer");
    assert_eq!(read(store, 0, 10, 1 << 20).await.len(), 3);
    store.dequeue(&partition, owner.claim, shard, 0, second).await.expect("done");
    assert_eq!(read(store, 0, 10, 1 << 20).await, all[2..]);
    store.dequeue(&partition, owner.claim, shard, 0, second).await.expect("done");
    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(read(store, 0, 10, 1 << 20).await, all[2..]);

    // The store accepts the messages of one call either all or not at all. This call fills the queue to its limit, and
    // the store refuses the next call.
    let many = [message(&b, "2"), message(&b, "3"), message(&b, "4")];
    giver.done(store, 3, &many).await;
    assert_eq!(giver.give(store, 4, &[message(&b, "5")]).await, AssignReply::Full);
    let last = place(store, 6).await;
    store.dequeue(&partition, owner.claim, shard, 0, last).await.expect("done");
    assert_eq!(store.queue_length(&partition).await.expect("a number"), 0);
    assert_eq!(store.streams().await.expect("streams"), [] as [Arc<str>; 0]);
    giver.done(store, 4, &[message(&b, "5")]).await;
    assert_eq!(read(store, 0, 10, 1 << 20).await, [row(7, 5, "5")]);
}

/// If a destination has no numbers, the store only puts each message into the queue of its partition.
pub async fn messages_may_wait_without_numbers(fixture: &mut impl Fixture) {
    use AssignItemReply::{Known, New};
    let store = fixture.store();
    let [a, b] = keys(store);
    let giver = Giver::stream(store, None, 100);
    let mut parts = vec![part(1, 0, &[message(&a, "1"), message(&b, "1"), message(&a, "2")])];
    parts[0].items[1].partition = 5;
    assert_eq!(done(giver.send(store, parts.clone()).await), [New(0); 3]);
    assert_eq!(done(giver.send(store, parts).await), [Known(0); 3]);
    for (number, expected) in [(0, vec!["1", "2"]), (5, vec!["1"])] {
        let partition = Partition { stream: "next".into(), number };
        let start = QueuePosition::default();
        let read = store.read_queue(&partition, giver.shard, start, 10, 1 << 20).await;
        let read = read.expect("a read").entries;
        let events: Vec<Event> = read.into_iter().map(|row| row.1.expect("an event")).collect();
        assert!(events.iter().all(|event| event.sequence().is_none()));
        assert_eq!(events.iter().map(data).collect::<Vec<_>>(), expected);
    }
    assert_eq!(giver.kept(store, &a, 0, 9).await, []);
    // A message that already has a number keeps this number.
    let producer = Giver { origin: None, ..giver };
    let own = event(&b, "2", Some(7), "own", false);
    assert_eq!(producer.done(store, 0, &[own]).await, [New(7)]);
    let partition = Partition { stream: "next".into(), number: 0 };
    let start = QueuePosition::default();
    let read = store.read_queue(&partition, producer.shard, start, 10, 1 << 20).await;
    let read = read.expect("a read").entries;
    let numbers = read.into_iter().skip(2).map(|row| row.1.expect("an event").sequence());
    assert_eq!(numbers.collect::<Vec<_>>(), [Some(7)]);
}
