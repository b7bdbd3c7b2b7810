//! Fuzz targets for the bytes that stores return. After a crash, a disk error or a write of another program, these
//! bytes may be arbitrary.

use bytes::Bytes;
use ordain_core::{Event, Message};

use ordain_store::codec::{
    KeyCounter, KeyRecordView, OriginRecord, decode_accepted_id, decode_applied, decode_assigned,
    decode_fence, decode_letter, decode_outbox, decode_queued, decode_retained, decode_spilled,
    encode_accepted_id, encode_assigned, encode_fence, encode_key_record, encode_letter,
    encode_retained, letter_time, put_letter_place, split_letter_place, take_over,
};

/// Decodes the bytes as an event and as a message in the core's packed form. If the bytes are valid, encodes the value,
/// decodes the result, and checks that the value is the same.
pub fn packed(bytes: &[u8]) {
    let bytes = Bytes::copy_from_slice(bytes);
    if let Ok(event) = Event::decode(bytes.clone()) {
        check_event_round_trip(&event);
    }
    if let Ok(message) = Message::decode(bytes) {
        let mut out = Vec::new();
        message.encode(&mut out);
        assert_eq!(out.len(), message.encoded_len());
        let again = Message::decode(out.into()).expect("the encoded value can be decoded");
        assert!(again == message, "the message differs");
    }
}

/// Checks that an event stays the same when it is encoded and decoded again.
pub(super) fn check_event_round_trip(event: &Event) {
    let mut out = Vec::new();
    event.encode(&mut out);
    assert_eq!(out.len(), event.encoded_len());
    let again = Event::decode(out.into()).expect("the encoded value can be decoded");
    assert!(again == *event && again.content() == event.content(), "the event differs");
}

/// Decodes a record of a store. The first byte selects the kind of record.
pub fn record(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    let bytes = Bytes::copy_from_slice(bytes);
    match kind % 10 {
        0 => key_record(&bytes),
        1 => letter(&bytes),
        2 => drop(decode_outbox(1, &bytes)),
        3 => fence(&bytes),
        4 => {
            if let Ok(counter) = KeyCounter::decode(&bytes) {
                assert_eq!(counter.encode(), bytes[..]);
            }
        }
        5 => {
            if let Ok(origin) = OriginRecord::decode(&bytes) {
                assert_eq!(origin.encode(), bytes);
            }
        }
        6 => {
            if let Ok(parts) = decode_assigned(&bytes) {
                assert_eq!(encode_assigned(&parts), bytes);
            }
        }
        7 => {
            if let Ok(event) = decode_retained(&bytes) {
                encode_retained(&event, event.sequence(), true);
                check_event_round_trip(&event);
            }
            drop(decode_queued(bytes.clone()));
            drop(decode_spilled("k", 1, bytes));
        }
        8 => {
            if let Ok(id) = decode_accepted_id(7, &bytes) {
                let mut out = Vec::new();
                encode_accepted_id(&id, &mut out);
                assert_eq!(out, bytes);
            }
            if let Some(id) = split_letter_place(&bytes) {
                let mut out = Vec::new();
                put_letter_place(&id, &mut out);
                assert_eq!(split_letter_place(&out), Some(id));
            }
        }
        _ => {
            drop(ordain_store_redis::record::RedisRecord::parse(&bytes));
            embedded_record(&bytes);
        }
    }
}

fn key_record(bytes: &[u8]) {
    let Ok(view) = KeyRecordView::parse(bytes) else { return };
    let written = |view: &KeyRecordView<'_>| {
        let mut out = Vec::new();
        encode_key_record(&view.to_key_record(), 1, &mut out);
        out
    };
    // The first write sets the unset times of a record. It writes the time of gaps and ids into one separate field. The
    // second write moves this time into the gaps and ids. The third write must not change the record.
    let out = written(&view);
    let again = KeyRecordView::parse(&out).expect("the encoded value can be decoded");
    let set = written(&again);
    let last = KeyRecordView::parse(&set).expect("the encoded value can be decoded");
    assert_eq!(written(&last), set, "the third write changed the key record");
    let mut taken = out.clone();
    take_over(&mut taken, &again, 3);
    let taken =
        KeyRecordView::parse(&taken).expect("the key record after a take-over can be decoded");
    assert_eq!((taken.partition, taken.next), (3, view.next));
}

/// Checks that a record of the embedded store can be decoded after a change of its partition.
fn embedded_record(bytes: &[u8]) {
    use ordain_store_embedded::record::EmbeddedRecord;
    let Ok(record) = EmbeddedRecord::parse(bytes) else { return };
    let taken = record.with_partition(3);
    let taken = EmbeddedRecord::parse(&taken).expect("the changed record can be decoded");
    assert_eq!((taken.key_record.partition, taken.key_record.next), (3, record.key_record.next));
}

fn letter(bytes: &Bytes) {
    let _ = letter_time(bytes);
    let Ok(stored) = decode_letter(bytes) else { return };
    let mut out = Vec::new();
    encode_letter(&stored.letter, stored.at, &mut out);
    let again = decode_letter(&out.into()).expect("the encoded value can be decoded");
    assert_eq!((again.letter, again.at), (stored.letter, stored.at));
}

fn fence(bytes: &[u8]) {
    drop(decode_applied(bytes));
    let Ok(fence) = decode_fence(bytes) else { return };
    let mut out = Vec::new();
    encode_fence(&fence, &mut out);
    let again = decode_fence(&out).expect("the encoded value can be decoded");
    assert_eq!(again.applied, fence.applied);
    assert_eq!((again.claim, again.number), (fence.claim, fence.number));
}
