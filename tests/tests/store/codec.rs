//! Tests of the binary encoding of stored records. Each decoded record must equal the encoded record, and no bytes may
//! make a decoder panic.

use std::sync::Arc;

use bytes::Bytes;
use ordain_core::{
    AcceptedId, AheadRange, AppliedCommit, Build, Cause, DeadLetter, EmittedMessage, Event,
    EventParts, ExistingSpill, FailureInfo, FileDigest, GapEnd, GapEntry, IdStretch, IdTimes,
    KeyRecord, KeyStatus, LetterContent, LetterId, Message, MessageParts, Rollout, SEQUENCE_END,
    SourceAnswers, SpillExtent, WriteRefusal,
};
use ordain_store::codec::{
    AssignedChunk, FenceRecord, KeyCounter, KeyRecordView, OUTBOX_TIME_FORMAT, OriginRecord,
    RecordDecodeError, decode_accepted_id, decode_assigned, decode_fence, decode_letter,
    decode_outbox, decode_queued, decode_retained, encode_accepted_id, encode_assigned,
    encode_fence, encode_key_record, encode_letter, encode_outbox_letters, encode_outbox_write,
    encode_retained, letter_time, take_over,
};
use ordain_store::{Claim, OutboxPosition, StoredLetter};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

fn cause() -> impl Strategy<Value = Cause> {
    (0..Cause::ALL.len()).prop_map(|index| Cause::ALL[index])
}

fn status() -> impl Strategy<Value = KeyStatus> {
    prop_oneof![
        Just(KeyStatus::Active),
        Just(KeyStatus::Waiting),
        Just(KeyStatus::Retrying),
        Just(KeyStatus::Parked),
        Just(KeyStatus::Completed),
    ]
}

prop_compose! {
    fn failure_info()(cause in cause(), error in ".{0,40}", since in any::<u64>()) -> Box<FailureInfo> {
        Box::new(FailureInfo { cause, error, since, version: None })
    }
}

prop_compose! {
    fn answers()(
        source in ".{0,10}",
        (requests, found, failed) in any::<(u32, u32, u32)>(),
        error in option::of(".{0,10}"),
    ) -> SourceAnswers {
        SourceAnswers { source: source.into(), requests, found, failed, error: error.map(Into::into) }
    }
}

prop_compose! {
    fn gap()(
        (a, b, waited) in any::<(u64, u64, u64)>(),
        (since, until) in (0..3_u64, 1..3_u64),
        rounds in any::<u32>(),
        answers in vec(answers(), 0..3),
        end in 0..GapEnd::ALL.len(),
    ) -> GapEntry {
        let end = GapEnd::ALL[end];
        let first = a.min(b);
        let last = a.max(b);
        let known_since = 0;
        GapEntry { first, last, since, waited, known_since, rounds, answers, end, until }
    }
}

prop_compose! {
    fn key_record()(
        (next, incarnation, partition, takeovers, ids_from) in any::<(u64, u64, u32, u32, u64)>(),
        (attempts, rounds, park_count) in any::<(u32, u32, u32)>(),
        (count, first, last) in (any::<u64>(), 0..SEQUENCE_END, 0..SEQUENCE_END),
        status in status(),
        version in option::of((".{0,20}", 1..Rollout::NUMBER_END, any::<[u8; 32]>())),
        failure in option::of(failure_info()),
        digests in vec(any::<u32>(), 0..70),
        holes in vec(any::<(u64, u64)>(), 0..5),
        gaps in vec(gap(), 0..4),
        ahead in option::of((0..SEQUENCE_END, 0..SEQUENCE_END)),
        ids in vec(any::<(u64, u64)>(), 0..=IdTimes::STRETCHES_LIMIT),
        is_newest_unset in any::<bool>(),
    ) -> KeyRecord {
        // A time of 0 stands for the time of the commit. Only the newest time may be 0.
        let mut ids: Vec<_> = ids.into_iter().map(|(from, since)| (from, since.max(1))).collect();
        if let Some(newest) = ids.last_mut().filter(|_| is_newest_unset) {
            newest.1 = 0;
        }
        let holes = holes.into_iter().map(|(a, b)| (a.min(b), a.max(b)));
        KeyRecord {
            next, incarnation, partition, takeovers, status, attempts, rounds, park_count,
            spilled: SpillExtent { count, first: first.min(last), last: first.max(last) },
            rollout: version.map(|(version, number, digest)| {
                let build = Build { version: version.into(), digest: FileDigest(digest) };
                Arc::new(Rollout { number, build })
            }),
            failure,
            digests: digests.into_iter().collect(),
            skipped: holes.collect(),
            ids_from,
            id_times: ids.into_iter().map(|(from, since)| IdStretch { from, since }).collect(),
            gaps: gaps.into_iter().collect(),
            ahead: ahead.map(|(one, other)| {
                Box::new(AheadRange { first: one.min(other), last: one.max(other) })
            }),
        }
    }
}

prop_compose! {
    fn letter()(
        key in ".{0,10}",
        (sequence, tag) in any::<(u64, u64)>(),
        cause in cause(),
        error in ".{0,20}",
        origin in option::of(".{0,10}"),
        version in option::of(".{0,10}"),
        kind in 0..3,
        data in vec(any::<u8>(), 0..30),
    ) -> DeadLetter {
        let content = match kind {
            0 => LetterContent::Nothing,
            1 => LetterContent::Raw(data.into()),
            _ => LetterContent::Event(Arc::new(Event::new(&EventParts {
                key: &key, sequence: Some(sequence), data: &data, ..EventParts::default()
            }))),
        };
        let id = LetterId { key: key.into(), sequence, tag };
        DeadLetter { id, cause, error, origin, version: version.map(Into::into), content }
    }
}

prop_compose! {
    fn emitted()(
        (sequence, index, event_digest, delay_ms, end) in any::<(u64, u32, u64, Option<u64>, bool)>(),
        sink in ".{0,5}",
        key in option::of(".{0,5}"),
        data in vec(any::<u8>(), 0..20),
    ) -> EmittedMessage {
        let parts =
            MessageParts { sink: &sink, key: key.as_deref(), data: &data, delay_ms, end, ..MessageParts::default() };
        EmittedMessage { sequence, index, event_digest, message: Message::new(&parts) }
    }
}

fn refusal() -> impl Strategy<Value = WriteRefusal> {
    prop_oneof![
        any::<Option<u64>>().prop_map(WriteRefusal::Next),
        any::<u64>().prop_map(WriteRefusal::Partition),
        Just(WriteRefusal::Version),
        ".{0,20}".prop_map(WriteRefusal::Corrupt),
    ]
}

prop_compose! {
    fn fence()(
        (epoch, random, number, time) in any::<(u64, u64, u64, u64)>(),
        refused in vec((0..512_usize, refusal()), 0..5),
        present in vec((0..512_usize, any::<u64>(), any::<bool>()), 0..5),
        existing_letters in vec(0..512_usize, 0..5),
    ) -> FenceRecord {
        let present = present.into_iter().map(|(write, sequence, same)| ExistingSpill { write, sequence, same });
        let applied = AppliedCommit { time, refused, existing_spills: present.collect(), existing_letters };
        FenceRecord { claim: Claim { epoch, random }, number, applied }
    }
}

#[test]
fn impossible_bounds_of_spilled_events_are_rejected() {
    let parse = |count, first, last| {
        let spilled = SpillExtent { count, first, last };
        let mut record = Vec::new();
        encode_key_record(&KeyRecord { spilled, ..KeyRecord::new(1, 0) }, 1, &mut record);
        KeyRecordView::parse(&record).map(|view| view.spilled == spilled)
    };
    let error = RecordDecodeError::Part { record: "key record", part: "bounds of spilled" };
    for (first, last) in [(7, 6), (SEQUENCE_END, SEQUENCE_END), (1, SEQUENCE_END)] {
        assert_eq!(parse(1, first, last), Err(error.clone()), "{first} to {last}");
        assert_eq!(parse(0, first, last), Ok(true), "without spilled events");
    }
    for (count, first, last) in [(1, 6, 6), (2, 1, SEQUENCE_END - 1), (9, 5, 6)] {
        assert_eq!(parse(count, first, last), Ok(true), "{count} in {first} to {last}");
    }
}

/// Decodes the bytes as each kind of record, one after the other. No decoder may panic, and the text of each error must
/// begin with `the`.
fn decode_all(bytes: &[u8]) {
    let bytes = Bytes::copy_from_slice(bytes);
    if let Ok(view) = KeyRecordView::parse(&bytes) {
        view.to_key_record();
    }
    let errors = [
        KeyRecordView::parse(&bytes).err(),
        decode_letter(&bytes).err(),
        decode_outbox(1, &bytes).err(),
        decode_fence(&bytes).err(),
        decode_accepted_id(1, &bytes).err(),
        KeyCounter::decode(&bytes).err(),
        OriginRecord::decode(&bytes).err(),
        decode_assigned(&bytes).err(),
    ];
    for error in errors.into_iter().flatten() {
        assert!(error.to_string().starts_with("the "), "{error}");
    }
    letter_time(&bytes);
    let _ = (decode_retained(&bytes), decode_queued(bytes));
}

fn position() -> impl Strategy<Value = OutboxPosition> {
    any::<(u64, u32)>().prop_map(|(commit, chunk)| OutboxPosition { commit, chunk })
}

prop_compose! {
    fn origin()(
        epoch in any::<u64>(),
        (last, highest) in (position(), position()),
        (a, b, is_unordered) in any::<(u64, u64, bool)>(),
    ) -> OriginRecord {
        OriginRecord { epoch, last, highest, first: a.min(b), next: a.max(b), is_unordered }
    }
}

prop_compose! {
    fn assigned_chunk()(
        position in position(),
        messages in vec(any::<(u64, u64)>(), 0..20),
    ) -> AssignedChunk {
        AssignedChunk { position, messages }
    }
}

fn retained() -> impl Strategy<Value = (Event, Option<u64>)> {
    (".{0,10}", ".{0,10}", vec(any::<u8>(), 0..30), option::of(0..SEQUENCE_END)).prop_map(
        |(key, id, data, sequence)| {
            let parts = EventParts {
                key: &key,
                id: &id,
                kind: "test",
                data: &data,
                ..EventParts::default()
            };
            (Event::new(&parts), sequence)
        },
    )
}

/// Encodes an event as the store keeps it for replay: its expiry time, and then the event.
fn retained_record(event: &Event, sequence: Option<u64>) -> Vec<u8> {
    [&7_u64.to_le_bytes()[..], &encode_retained(event, sequence, false)].concat()
}

fn records() -> impl Strategy<Value = Vec<u8>> {
    let assignments = (origin(), vec(assigned_chunk(), 0..4), retained());
    (0..8, key_record(), letter(), fence(), vec(emitted(), 0..4), assignments).prop_map(
        |(kind, record, letter, fence, messages, (origin, assigned, (event, sequence)))| {
            let mut out = Vec::new();
            match kind {
                0 => encode_key_record(&record, 1, &mut out),
                1 => encode_letter(&letter, 1, &mut out),
                2 => encode_fence(&fence, &mut out),
                3 => encode_accepted_id(
                    &AcceptedId { sequence: 1, id: 2, content: 3, source: 0 },
                    &mut out,
                ),
                4 => out = origin.encode(),
                5 => out = encode_assigned(&assigned),
                6 => out = retained_record(&event, sequence),
                _ => {
                    encode_outbox_write("key", 1, &messages, &mut out);
                    encode_outbox_letters([letter].iter(), 1, &mut out);
                }
            }
            out
        },
    )
}

proptest! {
    #[test]
    fn key_records_round_trip(record in key_record(), now in 1..u64::MAX, partition in any::<u32>()) {
        let mut bytes = Vec::new();
        encode_key_record(&record, now, &mut bytes);
        let mut expected = record;
        expected.fill_times(now);
        let before = bytes.clone();
        let view = KeyRecordView::parse(&before).expect("a key record");
        prop_assert_eq!((view.next, view.partition), (expected.next, expected.partition));
        prop_assert_eq!(view.to_key_record(), expected.clone());
        take_over(&mut bytes, &view, partition);
        expected.partition = partition;
        expected.takeovers = expected.takeovers.wrapping_add(1);
        prop_assert_eq!(KeyRecordView::parse(&bytes).expect("a key record").to_key_record(), expected);
    }

    #[test]
    fn letters_round_trip(letter in letter(), at in any::<u64>()) {
        let mut bytes = Vec::new();
        encode_letter(&letter, at, &mut bytes);
        prop_assert_eq!(letter_time(&bytes), Some(at));
        prop_assert_eq!(decode_letter(&bytes.into()), Ok(StoredLetter { letter, at }));
    }

    #[test]
    fn outboxes_round_trip(
        writes in vec((".{0,5}", 0..3_u64, vec(emitted(), 0..4)), 0..4),
        letters in vec(letter(), 0..4),
        time in option::of(1..u64::MAX),
    ) {
        let mut bytes = Vec::new();
        if let Some(time) = time {
            bytes.push(OUTBOX_TIME_FORMAT);
            bytes.extend_from_slice(&time.to_le_bytes());
        }
        let mut expected = Vec::new();
        for (key, incarnation, messages) in writes {
            encode_outbox_write(&key, incarnation, &messages, &mut bytes);
            let incarnation = if incarnation == 0 { time.unwrap_or(0) } else { incarnation };
            expected.extend(messages.into_iter().map(|message| (key.clone(), incarnation, message)));
        }
        encode_outbox_letters(letters.iter(), 9, &mut bytes);
        let entry = decode_outbox(7, &bytes.into());
        let is_empty = expected.is_empty() && letters.is_empty();
        if is_empty || expected.iter().any(|(_, incarnation, _)| *incarnation == 0) {
            prop_assert!(entry.is_err());
            return Ok(());
        }
        let entry = entry.expect("an outbox entry");
        prop_assert_eq!(entry.number, 7);
        prop_assert_eq!(entry.letters, letters);
        let found: Vec<_> = entry
            .messages
            .into_iter()
            .map(|message| (message.key.to_string(), message.incarnation, message.emitted))
            .collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn fences_round_trip(fence in fence()) {
        let mut bytes = Vec::new();
        encode_fence(&fence, &mut bytes);
        prop_assert_eq!(decode_fence(&bytes), Ok(fence));
    }

    #[test]
    fn accepted_ids_round_trip((sequence, id, content) in any::<(u64, u64, u32)>()) {
        let accepted = AcceptedId { sequence, id, content, source: 0 };
        let mut bytes = Vec::new();
        encode_accepted_id(&accepted, &mut bytes);
        prop_assert_eq!(decode_accepted_id(sequence, &bytes), Ok(accepted));
    }

    #[test]
    fn counters_origins_and_assigned_chunks_round_trip(
        (next, end) in any::<(u64, u64)>(),
        origin in origin(),
        assigned in vec(assigned_chunk(), 0..5),
    ) {
        let count = KeyCounter { next, end };
        prop_assert_eq!(KeyCounter::decode(&count.encode()), Ok(count));
        prop_assert_eq!(OriginRecord::decode(&origin.encode()), Ok(origin));
        prop_assert_eq!(decode_assigned(&encode_assigned(&assigned)), Ok(assigned));
    }

    #[test]
    fn retained_messages_round_trip((event, sequence) in retained()) {
        let found = decode_retained(&retained_record(&event, sequence).into()).expect("a valid message");
        prop_assert_eq!((found.key(), found.id(), found.data()), (event.key(), event.id(), event.data()));
        prop_assert_eq!((found.sequence(), found.content()), (sequence, event.content()));
    }

    #[test]
    fn arbitrary_bytes_cause_no_panic(bytes in vec(any::<u8>(), 0..200), format in 0..4_u8) {
        decode_all(&bytes);
        decode_all(&[&[format][..], &bytes].concat());
    }

    #[test]
    fn damaged_records_cause_no_panic(
        record in records(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in option::of(any::<prop::sample::Index>()),
    ) {
        let mut record = record;
        for (index, byte) in damage {
            if !record.is_empty() {
                let index = index.index(record.len());
                record[index] = byte;
            }
        }
        if let Some(cut) = cut {
            record.truncate(cut.index(record.len() + 1));
        }
        decode_all(&record);
    }
}
