//! Generates settings and inputs. Events and workers' results are arbitrary. Key records and spilled events contain
//! only numbers that an owner could have written.

use std::sync::Arc;

use bytes::Bytes;
use ordain_core::{
    AcceptedId, AheadRange, AppliedCommit, AttemptToken, BackoffBounds, Build, Cause, CommitReply,
    DeadLetter, Event, EventParts, ExhaustedPolicy, ExistingSpill, FailedAttempt, FailureInfo,
    FailureKind, FileDigest, GapEnd, GapEntry, GapSettings, HandlerOutcome, IdStretch, Input, Key,
    KeyRecord, KeySnapshot, KeyStatus, LetterContent, LetterId, LimitValues, Message, MessageParts,
    OrderingMode, OverflowPolicy, RetrySettings, Rollout, SequencerSettings, SpillExtent,
    StateUpdate, TurnResult, WriteRefusal,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// A step of a test case: an input, which may be the answer to an open request.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(crate) input: Input,
    /// The index of the open request that the input answers; `None` if the input keeps its generated token.
    pub(crate) answers: Option<prop::sample::Index>,
    /// The time in ms before the input.
    pub(crate) wait: u64,
    /// True if the driver takes all effects after the input.
    pub(crate) drains: bool,
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![Just("a".to_owned()), Just("b".to_owned()), Just(String::new()), ".{0,6}"]
}

fn key() -> impl Strategy<Value = Key> {
    text().prop_map(Key::from)
}

fn sequence() -> impl Strategy<Value = u64> {
    prop_oneof![16 => 0..12u64, 2 => 100_000..100_010u64, 1 => Just(u64::MAX), 1 => Just(u64::MAX - 1)]
}

fn event() -> impl Strategy<Value = Arc<Event>> {
    (text(), proptest::option::of(sequence()), text(), text(), any::<bool>()).prop_map(
        |(key, sequence, id, data, end)| {
            let key = key.as_str();
            let id = id.as_str();
            let data = data.as_bytes();
            Arc::new(Event::new(&EventParts { key, sequence, id, data, end, ..Default::default() }))
        },
    )
}

fn found() -> impl Strategy<Value = Vec<(u64, Arc<Event>)>> {
    vec((sequence(), event()), 0..4)
}

/// Generates spilled events with sequences that an owner could have written.
fn spilled() -> impl Strategy<Value = Vec<(u64, Arc<Event>)>> {
    vec((0..12u64, event()), 0..4)
}

/// Generates a token that belongs to no request: its serial is at least 2^40, but the sequencer counts serials from 0.
fn token() -> impl Strategy<Value = AttemptToken> {
    (0..5u32, (1 << 40)..(1u64 << 41)).prop_map(|(lane, serial)| AttemptToken { lane, serial })
}

fn version() -> impl Strategy<Value = Arc<Rollout>> {
    (1..4u64).prop_map(rollout)
}

fn rollout(number: u64) -> Arc<Rollout> {
    let version = format!("h@{}.0.0", 1 + number % 2).into();
    Arc::new(Rollout { number, build: Build { version, digest: FileDigest([0; 32]) } })
}

fn change() -> impl Strategy<Value = StateUpdate> {
    prop_oneof![
        Just(StateUpdate::Keep),
        Just(StateUpdate::Delete),
        vec(any::<u8>(), 0..20).prop_map(|bytes| StateUpdate::Put(Bytes::from(bytes))),
    ]
}

fn status() -> impl Strategy<Value = KeyStatus> {
    prop::sample::select(vec![
        KeyStatus::Active,
        KeyStatus::Waiting,
        KeyStatus::Retrying,
        KeyStatus::Parked,
        KeyStatus::Completed,
    ])
}

/// Generates a key record with numbers that an owner could have written: every record in the store is within the
/// limits.
fn key_record() -> impl Strategy<Value = KeyRecord> {
    let number = || 0..12u64;
    let counts = (number(), any::<u64>(), 0..3u32, status(), 0..9u32, 0..9u32);
    let spilled = (0..9u64, 0..3u64, 0..3u64);
    let rest = (
        proptest::option::of(prop::sample::select(Cause::ALL.to_vec())),
        vec(any::<u32>(), 0..5),
        vec((number(), number()), 0..3),
        number(),
    );
    (counts, spilled, rest).prop_map(|(counts, spilled, (cause, digests, holes, ids_from))| {
        let (next, incarnation, partition, status, attempts, rounds) = counts;
        let (count, beyond, sparse) = spilled;
        let first = next + beyond;
        let last = next + beyond + count.saturating_sub(1) + sparse;
        let spilled = SpillExtent { count, first, last };
        let failure = cause.map(|cause| {
            Box::new(FailureInfo {
                cause,
                error: "nonsense".into(),
                since: incarnation,
                version: None,
            })
        });
        let gap = |at: u64| GapEntry {
            end: GapEnd::ALL[((next + at) % 7) as usize],
            ..GapEntry::new(next + at, next + 2 * at, 5)
        };
        KeyRecord {
            incarnation,
            status,
            attempts,
            rounds,
            rollout: (next % 4 > 0).then(|| rollout(next % 4)),
            spilled: if count == 0 { SpillExtent::default() } else { spilled },
            failure,
            digests: digests.into_iter().collect(),
            skipped: holes.into_iter().collect(),
            ids_from,
            ahead: (next % 5 == 0).then(|| {
                Box::new(AheadRange { first: next / 2, last: next.saturating_add(count) })
            }),
            gaps: (0..next % 3).map(gap).collect(),
            id_times: (0..next % 4)
                .map(|at| IdStretch { from: at * 7, since: incarnation / (at + 1) })
                .collect(),
            ..KeyRecord::new(next, partition)
        }
    })
}

fn loaded() -> impl Strategy<Value = Result<Option<Box<KeySnapshot>>, String>> {
    let ids = vec((sequence(), any::<u64>(), any::<u32>()), 0..4).prop_map(|ids| {
        ids.into_iter()
            .map(|(sequence, id, content)| AcceptedId { sequence, id, content, source: 0 })
            .collect()
    });
    let option = || proptest::option::of(any::<u64>());
    let times = (any::<u64>(), option(), option());
    let some =
        (key_record(), ids, times).prop_map(|(key_record, ids, (now, due_in, expire_in))| {
            let state = Some(Bytes::from_static(b"state"));
            Ok(Some(Box::new(KeySnapshot {
                record: key_record,
                state,
                ids,
                now,
                due_in,
                expire_in,
                moved_from: None,
            })))
        });
    prop_oneof![2 => Just(Ok(None)), 3 => some, 1 => text().prop_map(Err)]
}

fn handler_outcome() -> impl Strategy<Value = HandlerOutcome> {
    prop_oneof![
        (0..3usize, any::<bool>()).prop_map(|(count, complete)| {
            let message = Message::new(&MessageParts { sink: "out", ..Default::default() });
            HandlerOutcome::Effect { messages: vec![message; count], complete }
        }),
        text().prop_map(HandlerOutcome::Rejected),
    ]
}

fn turn_done() -> impl Strategy<Value = Input> {
    let kinds = [FailureKind::Retry, FailureKind::Timeout, FailureKind::Trap, FailureKind::Limit];
    let failure = (prop::sample::select(kinds.to_vec()), proptest::option::of(any::<u64>()))
        .prop_map(|(kind, after_ms)| FailedAttempt {
            kind,
            limit: None,
            message: "nonsense".into(),
            after_ms,
        });
    (token(), version(), vec(handler_outcome(), 0..5), change(), proptest::option::of(failure))
        .prop_map(|(token, version, outcomes, state, failure)| {
            Input::TurnDone(TurnResult { token, rollout: version, outcomes, state, failure })
        })
}

fn reply() -> impl Strategy<Value = CommitReply> {
    let refusal = prop_oneof![
        proptest::option::of(sequence()).prop_map(WriteRefusal::Next),
        sequence().prop_map(WriteRefusal::Partition),
        Just(WriteRefusal::Version),
        text().prop_map(WriteRefusal::Corrupt),
    ];
    let present = (0..3usize, sequence(), any::<bool>())
        .prop_map(|(write, sequence, same)| ExistingSpill { write, sequence, same });
    let known = vec(0..3usize, 0..3);
    let applied = (any::<u64>(), vec((0..3usize, refusal), 0..3), vec(present, 0..3), known)
        .prop_map(|(time, refused, present, known)| AppliedCommit {
            time,
            refused,
            existing_spills: present,
            existing_letters: known,
        });
    prop_oneof![
        20 => applied.prop_map(CommitReply::Applied),
        4 => Just(CommitReply::Unknown),
        1 => Just(CommitReply::Fenced),
        1 => (text(), proptest::option::of(sequence()))
            .prop_map(|(found, last)| CommitReply::RolledBack { found, last }),
    ]
}

fn input() -> impl Strategy<Value = Input> {
    prop_oneof![
        // The number is a placeholder: `Driver` numbers the deliveries.
        20 => event().prop_map(|event| Input::Arrived { delivery: 0, event }),
        1 => text().prop_map(|text| Input::Unreadable { delivery: 0, letter: letter(&text) }),
        1 => Just(Input::SourceReset),
        1 => Just(Input::SourceEnded),
        1 => Just(Input::StoreMayHaveRolledBack),
        8 => (token(), loaded()).prop_map(|(token, loaded)| Input::Loaded { token, loaded }),
        10 => turn_done(),
        10 => (0..3u32, 0..9u64, reply())
            .prop_map(|(shard, number, reply)| Input::Committed { shard, number, reply }),
        5 => (token(), spilled(), any::<bool>())
            .prop_map(|(token, events, end)| Input::SpillRead { token, read: Ok((events, end)) }),
        1 => (token(), text()).prop_map(|(token, why)| Input::SpillRead { token, read: Err(why) }),
        1 => any::<bool>().prop_map(Input::SourceUnavailable),
        5 => (token(), found(), prop_oneof![Just(u64::MAX), 0..9u64], any::<bool>())
            .prop_map(|(token, found, until, again)| {
                let failed = again.then(|| "again".into());
                Input::Replayed { token, found, until, failed }
            }),
        3 => (token(), vec(early_letter(), 0..4), prop_oneof![Just(u64::MAX), 0..12u64])
            .prop_map(|(token, letters, until)| Input::EarlyLettersRead { token, letters, until }),
        3 => (vec((any::<u64>(), key()), 0..4), proptest::option::of(any::<u64>()))
            .prop_map(|(entries, next_in)| Input::DueRead { entries, next_in }),
        1 => (0..3u32, 0..9u64, 0..9usize, 0..999usize).prop_map(|(shard, through, messages, bytes)| {
            Input::OutboxBacklog { shard, through, messages, bytes }
        }),
        3 => (0..3u32, 0..9u64)
            .prop_map(|(shard, through)| Input::Published { shard, through }),
        1 => proptest::option::of(version()).prop_map(Input::VersionChanged),
        1 => Just(Input::Drain),
    ]
}

fn letter(text: &str) -> Box<DeadLetter> {
    Box::new(DeadLetter {
        id: LetterId { key: Key::from(""), sequence: 0, tag: 1 },
        cause: Cause::Unreadable,
        error: "nonsense".into(),
        origin: None,
        version: None,
        content: LetterContent::Raw(Bytes::copy_from_slice(text.as_bytes())),
    })
}

/// Generates a dead letter of an event that waits for earlier events.
fn early_letter() -> impl Strategy<Value = DeadLetter> {
    let causes = vec![Cause::FarAhead, Cause::Overflow, Cause::Corrupt];
    (key(), sequence(), event(), prop::sample::select(causes)).prop_map(
        |(key, sequence, event, cause)| DeadLetter {
            id: LetterId { key, sequence, tag: event.content() | 1 },
            cause,
            error: "nonsense".into(),
            origin: None,
            version: None,
            content: LetterContent::Event(event),
        },
    )
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    let answers = proptest::option::weighted(0.8, any::<prop::sample::Index>());
    let wait = prop_oneof![5 => Just(0), 4 => 0..500u64, 1 => 0..1_000_000u64];
    (input(), answers, wait, any::<bool>()).prop_map(|(input, answers, wait, drains)| Step {
        input,
        answers,
        wait,
        drains,
    })
}

pub(crate) fn settings() -> impl Strategy<Value = SequencerSettings> {
    let orderings = prop::sample::select(vec![OrderingMode::Sequenced, OrderingMode::Fifo]);
    let overflows = prop::sample::select(vec![OverflowPolicy::Pause, OverflowPolicy::DeadLetter]);
    let ends = prop::sample::select(vec![
        ExhaustedPolicy::Park,
        ExhaustedPolicy::Skip,
        ExhaustedPolicy::Wait,
    ]);
    let limits = (1..6usize, 1..6usize, 1..6usize, 1..6u64, 1..5usize);
    // The last number is the first sequence of each key, or 2 if keys may begin anywhere.
    (orderings, overflows, ends, limits, 0..3u64).prop_map(|(ordering, overflow, end, l, first)| {
        let (max_lanes, run_ahead, batch_events, spill_limit, quantum) = l;
        let backoff = BackoffBounds { min: 10, max: 200 };
        SequencerSettings {
            ordering,
            first: if ordering == OrderingMode::Fifo { 1 } else { first % 2 },
            begins_anywhere: ordering == OrderingMode::Sequenced && first == 2,
            partition: 0,
            shards: 2,
            max_lanes,
            memory_budget: 10_000,
            run_ahead,
            max_turns: 2,
            batch_events,
            batch_bytes: 1_000,
            prefetch: 10,
            quantum,
            max_loads: 2,
            max_outbox: 10,
            commit_history_bytes: 20_000,
            forward_letters: first == 0,
            lane_buffer: 3,
            spill_after: 100,
            spill_limit,
            overflow,
            gap: GapSettings {
                timeout: 50,
                attempts: 2,
                backoff,
                sources: vec!["store".into(), "remote".into()],
                max_width: 8,
                on_exhausted: end,
                tail: Some(300),
            },
            retry: RetrySettings {
                attempts: 2,
                backoff,
                on_exhausted: if end == ExhaustedPolicy::Wait {
                    ExhaustedPolicy::Park
                } else {
                    end
                },
                on_new_version: true,
                limits: LimitValues::default(),
            },
            id_window: 20,
            id_ttl: 1_000,
            id_floor: 4,
            types: None,
            digests: 4,
            due_poll: 5_000,
            complete_ttl: 1_000,
            key_ttl: Some(10_000),
            rollout: Some(rollout(2)),
            seed: 1,
        }
    })
}
