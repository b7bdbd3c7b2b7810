//! Tests of messages that wait in the queue of a stream.

use std::sync::Arc;

use ordain_core::{Event, QueuePosition};
use ordain_store::{AssignItemReply, AssignReply, Claim, Partition, QueueEntry, Store};

use super::super::{Fixture, Owner};
use super::sender::{NUMBERING, Sender, chunk, data, event, keys, message, results};

/// Returns the messages in the shard of the sender, with their queue positions.
async fn waiting_messages(
    store: &dyn Store,
    sender: &Sender,
    partition: &Partition,
) -> Vec<(QueuePosition, Event)> {
    let start = QueuePosition::default();
    let read = store.read_queue(partition, sender.shard, start, 100, 1 << 20).await;
    let entries = read.expect("a read").entries.into_iter();
    entries.map(|(position, queued)| (position, queued.expect("an event"))).collect()
}

/// The store puts numbered messages for a stream into a queue. A read returns the messages in order, until the owner of
/// the partition removes them.
pub async fn messages_wait_in_order_until_removed(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let [a, b] = keys(store);
    let sender = Sender::stream(store, Some(NUMBERING), 4);
    let partition = Partition { stream: "next".into(), number: 0 };
    let shard = sender.shard;
    let position_of = async |store: &dyn Store, number| {
        let all = waiting_messages(store, &sender, &partition).await;
        all.iter().map(|row| row.0).find(|position| position.number == number)
    };
    let read = async |store: &dyn Store, after, limit, bytes| {
        let after = position_of(store, after).await.unwrap_or_default();
        let read = store.read_queue(&partition, shard, after, limit, bytes).await.expect("a read");
        let row = |(position, queued): (QueuePosition, QueueEntry)| {
            let event = queued.expect("an event");
            (position.number, event.sequence(), data(&event))
        };
        read.entries.into_iter().map(row).collect::<Vec<_>>()
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
    let second = position_of(store, 2).await.expect("the message waits");
    store.dequeue(&partition, other, shard, 0, second).await.expect("an answer");
    assert_eq!(read(store, 0, 10, 1 << 20).await.len(), 3);
    store.dequeue(&partition, owner.claim, shard, 0, second).await.expect("an answer");
    assert_eq!(read(store, 0, 10, 1 << 20).await, all[2..]);
    store.dequeue(&partition, owner.claim, shard, 0, second).await.expect("an answer");
    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(read(store, 0, 10, 1 << 20).await, all[2..]);

    // The store accepts either all messages of a call or none of them. This call fills the queue to its limit, and the
    // store refuses the next call.
    let many = [message(&b, "2"), message(&b, "3"), message(&b, "4")];
    sender.assign(store, 3, &many).await;
    assert_eq!(sender.send_chunk(store, 4, &[message(&b, "5")]).await, AssignReply::Full);
    let last = position_of(store, 6).await.expect("the message waits");
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
        let read = waiting_messages(store, &sender, &partition).await;
        assert!(read.iter().all(|(_, event)| event.sequence().is_none()));
        assert_eq!(read.iter().map(|(_, event)| data(event)).collect::<Vec<_>>(), expected);
    }
    assert_eq!(sender.retained(store, &a, 0, 9).await, []);
    // A message that already has a number keeps this number.
    let producer = Sender { origin: None, ..sender };
    let numbered = event(&b, "2", Some(7), "own", false);
    assert_eq!(producer.assign(store, 0, &[numbered]).await, [New(7)]);
    let partition = Partition { stream: "next".into(), number: 0 };
    let read = waiting_messages(store, &producer, &partition).await;
    let numbers = read.iter().skip(2).map(|(_, event)| event.sequence());
    assert_eq!(numbers.collect::<Vec<_>>(), [Some(7)]);
}
