//! Tests of the time for which the store retains messages and remembers the numbers of ended keys.

use ordain_core::WriteCondition;
use ordain_store::{AssignItemReply, DestinationRules, NumberingSettings};

use super::super::Fixture;
use super::reader::{ReaderRig, end_write};
use super::sender::{
    COMPLETED_TTL_MS, NUMBERING, RETENTION_MS, Sender, keys, last_message, message,
};

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

/// The store lost the numbers of the last events of a key, but still has the numbers of earlier events. When a producer
/// publishes one of the lost events again, the store writes no event. From then on, the numbers of the key expire
/// together with the record of the ended key.
pub async fn numbers_of_an_ended_key_expire_with_its_record(fixture: &mut impl Fixture) {
    use AssignItemReply::{KeyEnded, New, Settled};
    let store = fixture.store();
    let ReaderRig { keys: [a, b], producer, restoring, mut owner } = ReaderRig::new(store).await;
    for key in [&a, &b] {
        let items = [message(key, "1"), message(key, "2")];
        assert_eq!(producer.assign(store, 0, &items).await, [New(1), New(2)]);
        let settled = ["1", "2", "3", "4"];
        let write = end_write(key, WriteCondition::Absent, 5, &settled, COMPLETED_TTL_MS / 2);
        owner.write(store, write).await;
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

/// The last event of a key is committed some time after it was published. The store therefore forgets the numbers of
/// the key before the record of the ended key expires. Until the record expires, the store answers messages of the key
/// with `KeyEnded`.
pub async fn ended_key_gets_no_number_until_its_record_expires(fixture: &mut impl Fixture) {
    use AssignItemReply::{AfterConflict, KeyEnded, New};
    let store = fixture.store();
    let ReaderRig { keys: [a, b], producer, mut owner, .. } = ReaderRig::new(store).await;
    assert_eq!(producer.assign(store, 0, &[last_message(&a, "1")]).await, [New(1)]);
    fixture.advance_clock(COMPLETED_TTL_MS / 2).await;
    let store = fixture.store();
    owner.write(store, end_write(&a, WriteCondition::Absent, 2, &[], COMPLETED_TTL_MS)).await;
    fixture.advance_clock(COMPLETED_TTL_MS * 3 / 4).await;
    let store = fixture.store();
    let items = [message(&b, "1"), message(&a, "2"), message(&a, "3")];
    assert_eq!(producer.assign(store, 0, &items).await, [New(1), KeyEnded, AfterConflict]);
    fixture.advance_clock(COMPLETED_TTL_MS / 2).await;
    assert_eq!(producer.assign(fixture.store(), 0, &[message(&a, "2")]).await, [New(1)]);
}
