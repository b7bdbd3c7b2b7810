//! Tests of the numbers that new messages get.

use ordain_store::{
    AssignGroupReply, AssignItemReply, AssignReply, Destination, DestinationRules,
    NumberingSettings,
};

use super::super::Fixture;
use super::sender::{NUMBERING, Sender, chunk, keys, message, numbered_from_one, results};

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
    let retained = sender.read_retained(store, &a, &[1..=1, 3..=9], 1 << 20).await;
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
    let found = sender.read_retained(store, &a, &wide, 1 << 20).await;
    let sequences: Vec<u64> = found.events.iter().map(|(sequence, _)| *sequence).collect();
    assert_eq!((sequences, found.until), (vec![1, 2, 4], u64::MAX));
    // The size limit admits only the first message.
    for (wanted, until) in [
        (vec![1..=4], 2),
        (vec![1..=1, 3..=9], 3),
        (vec![4..=9], u64::MAX),
        (vec![2..=2, 4..=wide_end], 4),
    ] {
        let one = sender.read_retained(store, &a, &wanted, 1).await;
        assert_eq!((one.events.len(), one.until), (1, until), "{wanted:?}");
    }
}

/// One call has groups of several owners and of a producer. The store returns a separate reply for each group, and a
/// refused group does not affect the others.
pub async fn each_group_of_a_call_has_its_own_reply(fixture: &mut impl Fixture) {
    use AssignItemReply::{Known, New};
    let store = fixture.store();
    let [a, b] = keys(store);
    let first = Sender::exchange(store, 2);
    let of_shard = |shard| Sender::exchange(store, 2).of_shard(shard);
    let second = of_shard(1);
    let third = of_shard(2);
    first.assign(store, 4, &[message(&a, "1")]).await;
    third.assign(store, 1, &[message(&b, "1")]).await;
    let stale = Sender::exchange(store, 1);
    let ahead = of_shard(3).confirmed(9, 0);
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
    assert_eq!(first.retained(store, &a, 0, 9).await, numbered_from_one(&["1", "2", "3", "4"]));
    assert_eq!(second.assign(store, 2, &[message(&a, "5")]).await, [New(5)]);
}
