//! Tests of producers that publish events again after the store has lost the numbers of these events.

use std::sync::Arc;

use ordain_core::{KeyRecord, WriteCondition};
use ordain_store::AssignItemReply;

use super::super::{Fixture, Owner, key_record, owner, record_write};
use super::reader::{ReaderRig, digests_of, end_write, spill_write};
use super::sender::{COMPLETED_TTL_MS, Sender, event, keys, last_message, message};

/// A store that went back in time has lost numbers that it gave, but the reader has settled the events with these
/// numbers. The store cannot distinguish these numbers from the numbers of another producer, so it refuses to number an
/// event. If the call publishes lost events again, the store gives the number of a settled event to the same event, but
/// not to another event. If the record of the key no longer has the digest of the settled event, the store does not
/// give this number.
pub async fn lost_numbers_are_given_again_to_the_same_events(fixture: &mut impl Fixture) {
    use AssignItemReply::{AfterConflict, Known, New, NumberedElsewhere, UnprovenRepeat};
    let store = fixture.store();
    let ReaderRig { keys: [a, b], producer, restoring, mut owner } = ReaderRig::new(store).await;
    assert_eq!(producer.assign(store, 0, &[message(&a, "1")]).await, [New(1)]);
    // The store has lost the numbers 2 and 3 of key `a`, and the numbers 1 and 2 of key `b`. The record of key `b` no
    // longer has the digest of event 1.
    for (key, digests, next) in [(&a, ["2", "3"].as_slice(), 4), (&b, &["2"], 3)] {
        let record = KeyRecord { digests: digests_of(key, digests), ..key_record(next) };
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
    let record = KeyRecord { digests: digests_of(&a, &["5"]), ..key_record(6) };
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
    let ReaderRig { keys: [a, b], producer, restoring, mut owner } = ReaderRig::new(store).await;
    // Events 1 and 3 of key `a` wait in the store.
    let spill: Vec<_> =
        [1, 3].map(|sequence| (sequence, owner::event(&a, sequence, &sequence.to_string()))).into();
    owner.write(store, spill_write(&a, WriteCondition::Absent, key_record(1), spill)).await;
    // Key `b` has ended with event 3.
    let write = end_write(&b, WriteCondition::Absent, 4, &["1", "2", "3"], COMPLETED_TTL_MS);
    owner.write(store, write).await;

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
    let producer = Sender::producer_with_reader(store);
    let restoring = producer.restoring();
    let own = event(&a, "2", Some(2), "own", false);
    assert_eq!(producer.assign(store, 0, &[message(&a, "1"), own]).await, [New(1), New(2)]);
    let kept = producer.read_retained(store, &a, &[1..=2], 1 << 20).await.events;
    let marks: Vec<bool> = kept.iter().map(|(_, event)| event.is_store_numbered()).collect();
    assert_eq!(marks, [true, false]);

    // The store has lost the number 3 of key `a` and the number 1 of key `b`. The event of key `a` is settled, and the
    // event of key `b` waits in the store for another event.
    let mut owner = Owner::claim(store, "cases", 0).await;
    let marked = |key: &str, data: &str| message(key, data).numbered_by_store();
    let mut record = key_record(4);
    record.digests.push(marked(&a, "3").repeat_digest(), 4);
    owner.write(store, record_write(&a, WriteCondition::Absent, record)).await;
    let spill = vec![(1, Arc::new(marked(&b, "1")))];
    owner.write(store, spill_write(&b, WriteCondition::Absent, key_record(1), spill)).await;
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
        let lost = events.iter().map(|(data, number)| (message(key, data), *number));
        producer.assign_lost(store, 0, &lost.collect::<Vec<_>>()).await
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
