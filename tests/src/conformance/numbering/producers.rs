//! Tests of messages of producers: which of them are repeats, and which numbers they get beside the numbers of other
//! producers.

use std::sync::Arc;

use ordain_core::{
    AheadRange, Build, Cause, Event, EventParts, FailureInfo, FileDigest, GapEntry, KeyRecord,
    Rollout, SEQUENCE_END, SourceAnswers, WriteCondition,
};
use ordain_store::AssignItemReply;

use super::super::{Fixture, Owner, first_write, key_record, next_write, owner, record_write};
use super::reader::{ReaderRig, digests_of, end_write, spill_write};
use super::sender::{RETENTION_MS, Sender, event, keys, message};

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
    let producer = Sender::producer_with_reader(store);
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
    let restoring = producer.restoring();
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
    let ReaderRig { keys: [a, b], producer, mut owner, .. } = ReaderRig::new(store).await;
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
    owner.write(store, spill_write(&b, WriteCondition::Absent, key_record(1), spill)).await;
    assert_eq!(producer.assign(store, 0, &[message(&b, "1")]).await, [NumberedElsewhere(5)]);

    // As long as the record of an ended key shows numbers that the store has not given, the store gives the key no
    // number. When the record has expired, the key starts again.
    owner.write(store, end_write(&a, WriteCondition::Next(5), 9, &[], 10_000)).await;
    assert_eq!(producer.assign(store, 0, &[message(&a, "6")]).await, [KeyEnded]);
    fixture.advance_clock(20_000).await;
    assert_eq!(producer.assign(fixture.store(), 0, &[message(&a, "6")]).await, [New(1)]);
}

/// The record of a key contains the range of the dead letters that wait for earlier events (`far-ahead`, `overflow`).
/// The numbers of these letters come from another producer, so the numbers below them may belong to that producer too.
/// The store therefore gives the key no number, with one exception: a call that publishes lost events again. For such a
/// call, the store ignores the letters. Their numbers may be numbers that the store gave before the loss, and the store
/// cannot check this, because it cannot compare an event with a letter.
pub async fn number_below_a_waiting_dead_letter_is_not_given(fixture: &mut impl Fixture) {
    use AssignItemReply::{New, NumberedElsewhere};
    let store = fixture.store();
    let ReaderRig { keys: [a, b], producer, restoring, mut owner } = ReaderRig::new(store).await;
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
    owner.write(store, spill_write(&a, WriteCondition::Next(2), full, spill)).await;
    assert_eq!(producer.assign(store, 0, &[message(&a, "3")]).await, [NumberedElsewhere(351)]);
    // The producer of the letters may give its events the numbers in and after the range.
    let own = |sequence| event(&a, "own", Some(sequence), "own", false);
    let items = [own(3), own(350), message(&a, "4")];
    assert_eq!(producer.assign(store, 0, &items).await, [New(3), New(350), New(351)]);
}
