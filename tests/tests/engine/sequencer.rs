//! Tests of the sequencer with times that are too long, and gaps that are too wide, for the simulation.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use anyhow::{Context, Result};
use ordain_core::{
    AheadRange, AppliedCommit, Batch, Cause, CommitReply, DeadLetter, Effect, Event, EventParts,
    GapEnd, Input, KeyRecord, KeySnapshot, KeyStatus, LetterId, Sequencer, SpillExtent,
    StateUpdate, TurnResult, WriteCondition,
};

use super::sequencer_support::{effect_without_messages, event_parts, settings, version};

/// A sequencer, and the answers of its store and its replay source. The store keeps no record before the first call of
/// [`Rig::remember`], which stores a record. Later commits replace this record.
struct Rig {
    sequencer: Sequencer,
    delivery: u64,
    snapshot: Option<Box<KeySnapshot>>,
    batches: Vec<Arc<Batch>>,
    acked: u64,
    loads: usize,
    /// The replay requests: the time of each request, and the requested ranges of sequences.
    requests: Vec<(u64, Vec<RangeInclusive<u64>>)>,
    /// The sequences of the events that the replay source has. `page` is the maximum number of events in one answer.
    kept: BTreeSet<u64>,
    page: usize,
    /// `true` if only the second replay source, a server, has these events.
    is_kept_by_server: bool,
    /// The dead letters in the store.
    letters: BTreeMap<LetterId, DeadLetter>,
    /// The sequences of the spilled events in the store.
    spilled: BTreeSet<u64>,
    /// The number of requests from now on for which the replay source is too busy to search.
    busy: usize,
    /// The entries that the next read of the due index returns.
    due: Vec<(u64, ordain_core::Key)>,
}

impl Rig {
    fn new(stream: &str) -> Result<Self> {
        Ok(Self {
            sequencer: Sequencer::new(settings(stream)?, &[0], 0),
            delivery: 0,
            snapshot: None,
            batches: Vec::new(),
            acked: 0,
            loads: 0,
            requests: Vec::new(),
            kept: BTreeSet::new(),
            page: usize::MAX,
            is_kept_by_server: false,
            letters: BTreeMap::new(),
            spilled: BTreeSet::new(),
            busy: 0,
            due: Vec::new(),
        })
    }

    fn deliver(&mut self, now: u64, sequence: u64) {
        self.delivery += 1;
        let input = Input::Arrived { delivery: self.delivery, event: event(sequence) };
        self.sequencer.handle(now, input);
        self.perform(now);
    }

    fn input(&mut self, now: u64, input: Input) {
        self.sequencer.handle(now, input);
        self.perform(now);
    }

    fn perform(&mut self, now: u64) {
        while let Some(effect) = self.sequencer.poll_effect() {
            let answer = match effect {
                Effect::Run(turn) => Input::TurnDone(TurnResult {
                    token: turn.token,
                    rollout: version(),
                    outcomes: turn.events.iter().map(|_| effect_without_messages()).collect(),
                    state: StateUpdate::Keep,
                    failure: None,
                }),
                Effect::Commit(batch) => {
                    let shard = batch.shard;
                    let number = batch.number;
                    if let (Some(stored), Some(write)) = (&mut self.snapshot, batch.writes.first())
                    {
                        stored.record = KeyRecord { incarnation: 1, ..write.record.clone() };
                    }
                    for write in &batch.writes {
                        write.removed_letters.iter().for_each(|id| drop(self.letters.remove(id)));
                    }
                    let written = batch.writes.iter().flat_map(|write| &write.letters);
                    let put = written.chain(&batch.letters).cloned();
                    self.letters.extend(put.map(|letter| (letter.id.clone(), letter)));
                    self.batches.push(batch);
                    let reply =
                        CommitReply::Applied(AppliedCommit { time: 1, ..AppliedCommit::default() });
                    Input::Committed { shard, number, reply }
                }
                Effect::Load { token, .. } => {
                    self.loads += 1;
                    Input::Loaded { token, loaded: Ok(self.snapshot.clone()) }
                }
                Effect::Replay { token, source, missing, .. } => {
                    let kept = missing.iter().flat_map(|range| self.kept.range(range.clone()));
                    let kept = kept.filter(|_| !self.is_kept_by_server || source == 1);
                    let mut found: Vec<_> =
                        kept.map(|sequence| (*sequence, event(*sequence))).collect();
                    let mut until = u64::MAX;
                    if self.busy > 0 {
                        self.busy -= 1;
                        until = missing.first().map_or(0, |range| *range.start());
                    }
                    if found.len() > self.page {
                        found.truncate(self.page);
                        until = found[self.page - 1].0 + 1;
                    }
                    self.requests.push((now, missing));
                    Input::Replayed { token, found, until, failed: None }
                }
                Effect::ReadEarlyLetters { token, sequences, .. } => {
                    let letters = self.letters.values();
                    let early = letters.filter(|letter| {
                        letter.cause.waits_for_earlier() && sequences.contains(&letter.id.sequence)
                    });
                    let letters = early.cloned().collect();
                    let until = sequences.end() + 1;
                    Input::EarlyLettersRead { token, letters, until }
                }
                Effect::ReadSpill { token, from, .. } => {
                    let spilled = self.spilled.range(from..);
                    let events = spilled.map(|sequence| (*sequence, event(*sequence))).collect();
                    Input::SpillRead { token, read: Ok((events, true)) }
                }
                Effect::ReadDue { .. } => {
                    Input::DueRead { entries: std::mem::take(&mut self.due), next_in: None }
                }
                Effect::Ack { through } => {
                    self.acked = through;
                    continue;
                }
                effect => panic!("these tests do not cause {effect:?}"),
            };
            self.sequencer.handle(now, answer);
        }
    }

    /// Puts the last committed record into the store, so that later loads return it.
    fn remember(&mut self) -> Result<()> {
        let batch = self.batches.last().context("a commit")?;
        let mut record = batch.writes[0].record.clone();
        record.incarnation = 1;
        self.snapshot = Some(Box::new(KeySnapshot {
            record,
            state: None,
            ids: Vec::new(),
            now: 1,
            due_in: None,
            expire_in: None,
            moved_from: None,
        }));
        Ok(())
    }

    /// Advances the time to `to`, and handles each timeout up to this time.
    fn pass(&mut self, from: u64, to: u64) {
        let mut now = from;
        while let Some(at) = self.sequencer.poll_timeout().filter(|at| *at <= to) {
            now = at.max(now);
            self.sequencer.handle_timeout(now);
            self.perform(now);
            if at == now && self.sequencer.poll_timeout() == Some(at) {
                break;
            }
        }
    }
}

fn event(sequence: u64) -> Arc<Event> {
    Arc::new(Event::new(&EventParts { sequence: Some(sequence), ..event_parts() }))
}

#[test]
fn key_in_memory_is_forgotten_when_the_store_forgets_it() -> Result<()> {
    let mut rig = Rig::new("key_ttl = \"1m\"")?;
    rig.deliver(0, 1);
    rig.deliver(0, 2);
    assert_eq!((rig.acked, rig.sequencer.stats().settled), (2, 2));
    // Delivers event 1 again twice: while the store still has the key record, and after the record has expired.
    rig.deliver(59_000, 1);
    assert_eq!((rig.acked, rig.sequencer.stats().duplicates), (3, 1));
    rig.deliver(61_000, 1);
    assert_eq!((rig.acked, rig.sequencer.stats().settled), (4, 3));
    assert!(rig.loads > 0, "the key was not loaded again");
    Ok(())
}

/// Two producers number events of the same key. The dead letter of the second producer's event must name the first
/// producer.
#[test]
fn conflict_names_the_source_of_the_other_event() -> Result<()> {
    let mut rig = Rig::new("gap = { timeout = \"1h\" }")?;
    let from = |source: &str| {
        let sequence = Some(2);
        let data = source.as_bytes();
        Arc::new(Event::new(&EventParts { source, sequence, data, ..event_parts() }))
    };
    rig.input(0, Input::Arrived { delivery: 1, event: from("/shop") });
    rig.input(0, Input::Arrived { delivery: 2, event: from("/web") });
    let letters: Vec<_> = rig.batches.iter().flat_map(|batch| &batch.letters).collect();
    let [letter] = letters[..] else { panic!("{letters:?}") };
    assert_eq!(letter.cause, Cause::Conflict);
    assert!(letter.error.ends_with("event 2 of the key, from the source \"/shop\""), "{letter:?}");
    Ok(())
}

/// An event arrives again in another form of JSON, both while the stream holds the first copy, and after the first copy
/// is settled.
#[test]
fn other_form_of_json_is_a_repeat() -> Result<()> {
    let mut rig = Rig::new("gap = { timeout = \"1h\" }")?;
    let mut delivery = 0;
    let mut deliver = |rig: &mut Rig, sequence: u64, data: &str| {
        delivery += 1;
        let sequence = Some(sequence);
        let data = data.as_bytes();
        let content_type = "application/json";
        let parts = EventParts { sequence, data, content_type, ..event_parts() };
        let event = Arc::new(Event::new(&parts));
        rig.input(0, Input::Arrived { delivery, event });
    };
    let loose = "{ \"b\": 2,\n \"a\": [1, \"\\u0078\"] }";
    deliver(&mut rig, 2, r#"{"a":[1,"x"],"b":2}"#);
    deliver(&mut rig, 2, loose);
    deliver(&mut rig, 1, "{}");
    assert_eq!((rig.acked, rig.sequencer.stats().settled), (3, 2));
    deliver(&mut rig, 2, loose);
    assert_eq!((rig.acked, rig.sequencer.stats().settled), (4, 2));
    assert!(rig.batches.iter().all(|batch| batch.letters.is_empty()), "{:?}", rig.batches);
    deliver(&mut rig, 2, r#"{"a":["x",1],"b":2}"#);
    let letters: Vec<_> = rig.batches.iter().flat_map(|batch| &batch.letters).collect();
    assert!(letters.len() == 1 && letters[0].cause == Cause::Conflict, "{letters:?}");
    Ok(())
}

/// A read of the due index returns one key more than the sequencer has free lanes, as if another key had taken a lane
/// in the meantime. The sequencer must read the due index again soon and load the remaining key, and must not wait for
/// the next regular read.
#[test]
fn due_key_without_a_lane_is_read_again_soon() -> Result<()> {
    let lanes = 2;
    let mut rig = Rig::new(&format!("[runtime]\nmax_active_keys = {lanes}"))?;
    let due = |number: usize| (1, ordain_core::Key::from(format!("k{number}").as_str()));
    rig.due = (0..=lanes).map(due).collect();
    rig.pass(0, 0);
    assert_eq!(rig.loads, lanes, "each lane has a due key");
    rig.due = vec![due(lanes)];
    rig.pass(0, 2_000);
    assert_eq!(rig.loads, lanes + 1);
    Ok(())
}

#[test]
fn next_event_of_a_silent_key_is_requested() -> Result<()> {
    let mut rig = Rig::new("gap = { tail = \"1s\" }")?;
    rig.deliver(0, 1);
    assert_eq!(
        rig.batches[0].writes[0].due_in,
        Some(1_000),
        "the store must have the time of the next request, because the lane may leave memory"
    );
    assert_eq!(rig.sequencer.poll_timeout(), Some(1_000));
    rig.sequencer.handle_timeout(1_000);
    let is_requested = std::iter::from_fn(|| rig.sequencer.poll_effect())
        .any(|effect| matches!(effect, Effect::Replay { missing, .. } if missing == [2..=2]));
    assert!(is_requested);
    Ok(())
}

/// Returns the first and the last sequence of each dead letter `gap` in the commits.
fn skipped(rig: &Rig) -> Vec<(u64, u64)> {
    let writes = rig.batches.iter().flat_map(|batch| &batch.writes);
    let letters = writes.flat_map(|write| &write.letters);
    let gaps = letters.filter(|letter| letter.cause == Cause::Gap);
    gaps.map(|letter| (letter.id.sequence, letter.last_sequence().unwrap_or(letter.id.sequence)))
        .collect()
}

const WIDE_GAP_SETTINGS: &str = "gap = { timeout = \"1s\", attempts = 2, backoff = \"1s..1s\", \
                    max_width = 1000000000, on_exhausted = \"skip\" }\nspill_after = \"10m\"\n";

/// The producer jumps by 20 million numbers. After the replay rounds of one gap, the key skips these numbers in one
/// commit, with one dead letter.
#[test]
fn wide_gap_is_skipped_in_one_step() -> Result<()> {
    let mut rig = Rig::new(WIDE_GAP_SETTINGS)?;
    rig.deliver(0, 1);
    rig.remember()?;
    let commits = rig.batches.len();
    rig.deliver(0, 20_000_001);
    rig.pass(0, 4_000);
    assert_eq!(skipped(&rig), [(2, 20_000_000)]);
    assert_eq!(rig.requests.len(), 2, "{:?}", rig.requests);
    assert_eq!((rig.sequencer.stats().settled, rig.acked), (2, 2));
    assert!(rig.batches.len() - commits <= 5, "{} commits", rig.batches.len() - commits);
    let write = &rig.batches.last().context("a commit")?.writes[0];
    assert_eq!(write.record.next, 20_000_002);
    assert_eq!(write.record.skipped.ranges(), [(2, 20_000_000)]);
    Ok(())
}

/// Events of a skipped range arrive late: first an event in the middle of the range, then the first event of the range.
/// Each late event gets its own dead letter, a repeat of the event causes no commit, and the letter of the range stays.
#[test]
fn late_original_of_a_skipped_range_gets_its_own_letter() -> Result<()> {
    let mut rig = Rig::new(WIDE_GAP_SETTINGS)?;
    rig.deliver(0, 1);
    rig.remember()?;
    rig.deliver(0, 20_000_001);
    rig.pass(0, 4_000);
    for (late, ranges) in
        [(500, vec![(2, 499), (501, 20_000_000)]), (2, vec![(3, 499), (501, 20_000_000)])]
    {
        let commits = rig.batches.len();
        rig.deliver(5_000, late);
        let write = &rig.batches[commits].writes[0];
        let [letter] = &write.letters[..] else { panic!("{:?}", write.letters) };
        assert_eq!((letter.cause, letter.id.sequence), (Cause::Late, late));
        let range = LetterId::of_skipped(&"a".into(), 2, 20_000_000);
        assert!(!write.removed_letters.contains(&range), "the letter of the range must stay");
        assert_eq!(write.record.skipped.ranges(), ranges);
        // A repeat of the late event causes no commit.
        let commits = rig.batches.len();
        rig.deliver(5_000, late);
        assert_eq!(rig.batches.len(), commits);
    }
    assert_eq!((rig.sequencer.stats().settled, rig.acked), (2, 6));
    Ok(())
}

/// If the skip covers a single number, the letter of the late original replaces the letter of the skip.
#[test]
fn late_original_replaces_the_letter_of_a_single_skip() -> Result<()> {
    let mut rig = Rig::new(WIDE_GAP_SETTINGS)?;
    rig.deliver(0, 1);
    rig.remember()?;
    rig.deliver(0, 3);
    rig.pass(0, 4_000);
    assert_eq!(skipped(&rig), [(2, 2)]);
    let commits = rig.batches.len();
    rig.deliver(5_000, 2);
    let write = &rig.batches[commits].writes[0];
    assert_eq!(write.removed_letters, [LetterId::of_skipped(&"a".into(), 2, 2)]);
    assert!(write.record.skipped.ranges().is_empty());
    Ok(())
}

#[test]
fn gaps_that_open_together_are_skipped_together() -> Result<()> {
    let gap = "gap = { timeout = \"1s\", attempts = 3, backoff = \"1s..1s\", on_exhausted = \"skip\" }\n\
               spill_after = \"10m\"\n";
    let mut rig = Rig::new(gap)?;
    rig.deliver(0, 1);
    rig.remember()?;
    for sequence in (3..=199).step_by(2) {
        rig.deliver(0, sequence);
    }
    rig.pass(0, 20_000);
    assert_eq!(rig.requests.len(), 3, "three rounds for all gaps together: {:?}", rig.requests);
    assert!(rig.requests.iter().all(|(_, missing)| missing.len() == 99));
    let gaps: Vec<_> = (2..=198).step_by(2).map(|sequence| (sequence, sequence)).collect();
    assert_eq!(skipped(&rig), gaps);
    assert_eq!((rig.sequencer.stats().settled, rig.acked), (100, 100));
    Ok(())
}

#[test]
fn late_arrivals_cause_no_extra_replay_round() -> Result<()> {
    let gap =
        "gap = { timeout = \"1s\", attempts = 3, backoff = \"2s..2s\" }\nspill_after = \"10m\"\n";
    let mut rig = Rig::new(gap)?;
    rig.deliver(0, 1);
    rig.remember()?;
    rig.deliver(0, 50);
    rig.pass(0, 1_000);
    assert_eq!(rig.requests, [(1_000, vec![2..=49])]);
    for sequence in 2..=40 {
        rig.deliver(1_000 + sequence, sequence);
    }
    assert_eq!(rig.requests.len(), 1, "{:?}", rig.requests);
    rig.pass(1_041, 3_100);
    assert_eq!(
        rig.requests[1..],
        [(3_040, vec![41..=49])],
        "the second round must follow one backoff after the first answer"
    );
    // Until all events of the gap have arrived, the gap history lists arrived and missing sequences in separate
    // entries.
    let listed = |rig: &Rig| -> Result<Vec<_>> {
        let record = &rig.batches.last().context("a commit")?.writes[0].record;
        Ok(record.gaps.iter().map(|gap| (gap.first, gap.last, gap.rounds, gap.end)).collect())
    };
    let arrived = (2, 40, 1, GapEnd::Arrived);
    let open = (41, 49, 2, GapEnd::Open);
    assert_eq!(listed(&rig)?, [arrived, open]);
    for sequence in 41..=49 {
        rig.deliver(3_100 + sequence, sequence);
    }
    assert_eq!(listed(&rig)?, [(2, 49, 2, GapEnd::Arrived)]);
    Ok(())
}

const SKIPPING: &str = "gap = { timeout = \"1s\", attempts = 2, backoff = \"1s..1s\", \
                        on_exhausted = \"skip\" }\nspill_after = \"10m\"\n";

/// A request to a replay server contains a limited number of sequences of a gap. The sequencer must not skip the later
/// sequences of the gap before it has requested them. The server has the last missing events.
#[test]
fn wide_gap_is_skipped_only_as_far_as_requested() -> Result<()> {
    let servers = "replay = [\"store\", \"http://127.0.0.1:1/{key}/{sequence}\"], timeout";
    let mut rig = Rig::new(&SKIPPING.replace("timeout", servers))?;
    rig.is_kept_by_server = true;
    rig.kept = (5_000..=5_009).collect();
    rig.deliver(0, 1);
    rig.remember()?;
    rig.deliver(0, 5_010);
    rig.pass(0, 60_000);
    assert_eq!(skipped(&rig), [(2, 4_097), (4_098, 4_999)]);
    assert_eq!((rig.sequencer.stats().settled, rig.acked), (12, 2));
    Ok(())
}

/// An answer of a replay source has a limited size. After a full answer, the source may have more events with later
/// sequences, so the sequencer must not skip these sequences.
#[test]
fn events_cut_from_a_full_answer_are_not_skipped() -> Result<()> {
    let mut rig = Rig::new(SKIPPING)?;
    rig.kept = (4..=40).collect();
    rig.page = 10;
    for sequence in [1, 3, 41] {
        rig.deliver(0, sequence);
        rig.remember()?;
    }
    rig.pass(0, 60_000);
    assert_eq!(skipped(&rig), [(2, 2)]);
    assert_eq!((rig.sequencer.stats().settled, rig.acked), (40, 3));
    Ok(())
}

/// Replay found an event that cannot have an early dead letter. The commit must then remove only one dead letter of
/// this event.
#[test]
fn replayed_event_removes_no_letters_that_cannot_exist() -> Result<()> {
    let mut rig = Rig::new("gap = { timeout = \"1s\" }\nspill_after = \"10m\"\n")?;
    rig.kept = [2].into();
    for sequence in [1, 3] {
        rig.deliver(0, sequence);
        rig.remember()?;
    }
    rig.pass(0, 5_000);
    assert_eq!(rig.sequencer.stats().settled, 3);
    let writes = rig.batches.iter().flat_map(|batch| &batch.writes);
    let removed: Vec<_> = writes.flat_map(|write| &write.removed_letters).collect();
    assert!(removed.len() == 1 && removed[0].sequence == 2, "{removed:?}");
    Ok(())
}

const ANYWHERE_SETTINGS: &str =
    "first = \"any\"\ngap = { timeout = \"1h\" }\nspill_after = \"10m\"\n";

/// The first event of a key has the sequence 500. The key begins with this event, without a gap. A lower sequence that
/// arrives later becomes a dead letter, and its repeat has no result. Later events need their order as usual.
#[test]
fn key_begins_at_the_first_event_that_arrives() -> Result<()> {
    let mut rig = Rig::new(ANYWHERE_SETTINGS)?;
    rig.deliver(0, 500);
    let write = &rig.batches[0].writes[0];
    assert_eq!((write.condition, write.record.next), (WriteCondition::Absent, 501));
    assert_eq!(write.record.skipped.ranges(), [(0, 499)]);
    assert!(write.letters.is_empty(), "the skipped sequences need no letter");
    rig.remember()?;
    let commits = rig.batches.len();
    rig.deliver(1, 499);
    let write = &rig.batches[commits].writes[0];
    let [letter] = &write.letters[..] else { panic!("{:?}", write.letters) };
    assert_eq!((letter.cause, letter.id.sequence), (Cause::Late, 499));
    assert!(letter.error.contains("begun at a later sequence"), "{letter:?}");
    assert_eq!(write.record.skipped.ranges(), [(0, 498)]);
    let commits = rig.batches.len();
    rig.deliver(2, 499);
    assert_eq!((rig.batches.len(), rig.sequencer.stats().duplicates), (commits, 1));
    for (sequence, settled) in [(503, 1), (501, 2), (502, 4)] {
        rig.deliver(3, sequence);
        assert_eq!(rig.sequencer.stats().settled, settled, "after event {sequence}");
    }
    assert!(rig.requests.is_empty(), "{:?}", rig.requests);
    assert_eq!(rig.acked, 6);
    Ok(())
}

/// If a lower sequence arrives before the key has executed an event, the key begins at this lower sequence.
#[test]
fn lower_sequence_becomes_the_beginning_before_the_first_execution() -> Result<()> {
    let mut rig = Rig::new(ANYWHERE_SETTINGS)?;
    for sequence in [5, 3, 7, 4] {
        rig.delivery += 1;
        let input = Input::Arrived { delivery: rig.delivery, event: event(sequence) };
        rig.sequencer.handle(0, input);
    }
    rig.perform(0);
    assert_eq!(rig.sequencer.stats().settled, 3);
    let writes = rig.batches.iter().flat_map(|batch| &batch.writes);
    assert!(writes.clone().all(|write| write.letters.is_empty()));
    let record = &writes.last().context("a write")?.record;
    assert_eq!((record.next, record.skipped.ranges()), (6, &[(0, 2)][..]));
    Ok(())
}

/// If a held event is more than `gap.max_width` beyond a lower sequence, the key must not begin at the lower sequence.
#[test]
fn sequence_far_below_a_held_event_does_not_become_the_beginning() -> Result<()> {
    let high = (1 << 51) - 1;
    for (sequences, next, causes) in [
        ([high, 1], high + 1, vec![Cause::Late]),
        ([high, high - 10_001], high + 1, vec![Cause::Late]),
        ([high, high - 10_000], high - 9_999, vec![]),
    ] {
        let mut rig = Rig::new(ANYWHERE_SETTINGS)?;
        for sequence in sequences {
            rig.delivery += 1;
            let input = Input::Arrived { delivery: rig.delivery, event: event(sequence) };
            rig.sequencer.handle(0, input);
        }
        rig.perform(0);
        let writes = rig.batches.iter().flat_map(|batch| &batch.writes);
        let letters = writes.clone().flat_map(|write| &write.letters);
        assert_eq!(letters.map(|letter| letter.cause).collect::<Vec<_>>(), causes);
        assert_eq!(writes.last().context("a write")?.record.next, next);
        assert!(rig.batches.iter().all(|batch| batch.letters.is_empty()), "{:?}", rig.batches);
    }
    Ok(())
}

/// An early event does not let a key begin, because the source may first deliver an event with a lower sequence.
#[test]
fn early_event_does_not_begin_a_key() -> Result<()> {
    let mut rig = Rig::new(ANYWHERE_SETTINGS)?;
    rig.input(0, Input::ArrivedEarly(event(9)));
    assert!(rig.batches.is_empty());
    rig.deliver(0, 7);
    let record = &rig.batches[0].writes[0].record;
    assert_eq!((record.next, record.skipped.ranges()), (8, &[(0, 6)][..]));
    Ok(())
}

/// With `first = "any"`, a key must not begin at a sequence at which a store can no longer count exactly.
#[test]
fn key_does_not_begin_at_a_sequence_beyond_the_limit() -> Result<()> {
    let mut rig = Rig::new(ANYWHERE_SETTINGS)?;
    rig.deliver(0, 1 << 51);
    let [letter] = &rig.batches[0].letters[..] else { panic!("{:?}", rig.batches) };
    assert_eq!(letter.cause, Cause::NoSequence);
    assert!(letter.error.contains("from 0 to 2251799813685247"), "{letter:?}");
    rig.deliver(0, (1 << 51) - 1);
    assert_eq!((rig.sequencer.stats().settled, rig.acked), (1, 2));
    Ok(())
}

/// The missing events arrive after the timeout of their gap, in each possible order. The gap history must then contain
/// all their sequences in one entry.
#[test]
fn gap_history_lists_an_arrived_gap_as_one_entry() -> Result<()> {
    let gap = "gap = { timeout = \"1s\", attempts = 1, on_exhausted = \"wait\" }\nspill_after = \"10m\"\n";
    for order in [[2, 3, 4], [3, 2, 4], [4, 3, 2], [2, 4, 3], [3, 4, 2], [4, 2, 3]] {
        let mut rig = Rig::new(gap)?;
        rig.deliver(0, 1);
        rig.remember()?;
        rig.deliver(0, 5);
        rig.pass(0, 2_000);
        for (at, sequence) in (2_000..).zip(order) {
            rig.deliver(at, sequence);
        }
        let record = &rig.batches.last().context("a commit")?.writes[0].record;
        let listed: Vec<_> = record.gaps.iter().map(|gap| (gap.first, gap.last, gap.end)).collect();
        assert_eq!(listed, [(2, 4, GapEnd::Arrived)], "{order:?}");
    }
    Ok(())
}

/// While the stream's source is unavailable, the sequencer must skip nothing, because the source may still deliver the
/// missing events.
#[test]
fn nothing_is_skipped_while_the_source_is_unavailable() -> Result<()> {
    let mut rig = Rig::new(SKIPPING)?;
    rig.deliver(0, 1);
    rig.remember()?;
    rig.input(0, Input::SourceUnavailable(true));
    rig.input(0, Input::ArrivedEarly(event(4)));
    rig.pass(0, 60_000);
    assert_eq!(rig.requests.len(), 2, "`gap.attempts` still limits the rounds: {:?}", rig.requests);
    rig.input(60_000, Input::SourceUnavailable(false));
    for sequence in 2..=3 {
        rig.deliver(60_500, sequence);
    }
    assert_eq!((rig.sequencer.stats().settled, rig.acked), (4, 3));
    // If an event is still missing when the source is available again, the gap clock starts again.
    rig.input(61_000, Input::SourceUnavailable(true));
    rig.input(61_000, Input::ArrivedEarly(event(6)));
    rig.pass(61_000, 70_000);
    rig.input(70_000, Input::SourceUnavailable(false));
    rig.pass(70_000, 70_900);
    assert_eq!(rig.sequencer.stats().settled, 4);
    rig.pass(70_900, 72_000);
    assert_eq!(rig.sequencer.stats().settled, 5);
    Ok(())
}

/// If the replay source is too busy to search, the round must not count towards `gap.attempts`.
#[test]
fn round_with_a_busy_source_does_not_count() -> Result<()> {
    let mut rig = Rig::new(SKIPPING)?;
    rig.busy = 10;
    rig.deliver(0, 1);
    rig.remember()?;
    rig.deliver(0, 3);
    rig.pass(0, 60_000);
    assert_eq!((rig.requests.len(), rig.sequencer.stats().settled), (12, 2));
    let writes = rig.batches.iter().flat_map(|batch| &batch.writes);
    assert_eq!(writes.map(|write| write.letters.len()).sum::<usize>(), 1);
    Ok(())
}

/// A round with a busy replay source must also not count if the missing event has the sequence 0.
#[test]
fn round_with_a_busy_source_does_not_count_for_event_zero() -> Result<()> {
    let mut rig = Rig::new(&format!("first = 0\n{SKIPPING}"))?;
    rig.busy = 10;
    rig.deliver(0, 1);
    rig.pass(0, 1_500);
    rig.remember()?;
    rig.pass(1_500, 60_000);
    assert_eq!((rig.requests.len(), rig.sequencer.stats().settled), (12, 1));
    Ok(())
}

/// The due index lists a key whose lane waits for no timeout. The sequencer must then load the key again, because a
/// previous owner may have written the entry of the index.
#[test]
fn due_key_without_a_pending_timeout_is_loaded_again() -> Result<()> {
    let mut rig = Rig::new("gap = { timeout = \"10m\" }\nspill_after = \"10m\"")?;
    rig.deliver(0, 1);
    assert_eq!(rig.acked, 1);
    let loads = rig.loads;
    rig.remember()?;
    rig.due = vec![(5, "a".into())];
    rig.pass(0, 10_000);
    assert_eq!(rig.loads, loads + 1);
    // A lane that waits for a missing event handles the timeout itself, so the sequencer must not load the key.
    rig.deliver(20_000, 3);
    rig.due = vec![(5, "a".into())];
    let loads = rig.loads;
    rig.pass(20_000, 40_000);
    assert_eq!((rig.loads, rig.due.len()), (loads, 0));
    Ok(())
}

#[test]
fn event_between_spilled_events_is_accepted() -> Result<()> {
    let mut rig = Rig::new("overflow = \"dead-letter\"\ngap = { timeout = \"1h\" }")?;
    for sequence in [1, 3, 5] {
        rig.deliver(0, sequence);
    }
    rig.pass(0, 60_000);
    assert_eq!(rig.acked, 3, "events 3 and 5 are spilled");
    rig.deliver(60_000, 4);
    let batch = rig.batches.last().context("a commit")?;
    assert!(batch.letters.is_empty(), "the key is below its limit: {:?}", batch.letters);
    assert_eq!((batch.writes[0].spill[0].0, rig.acked), (4, 4));
    Ok(())
}

/// If the record of a `fifo` key leaves no free number, the sequencer must treat the record as damaged, because no key
/// can have used all numbers.
#[test]
fn fifo_key_without_free_numbers_is_damaged() -> Result<()> {
    for (next, last) in [(2, u64::MAX - 2), (u64::MAX - 1, 0), (u64::MAX, 0)] {
        let mut rig = Rig::new("ordering = \"fifo\"\nid_window = 5024")?;
        let mut record = KeyRecord::new(next, 0);
        record.incarnation = 1;
        record.ids_from = 1;
        if last > 0 {
            record.spilled.add(last);
        }
        rig.snapshot = Some(Box::new(KeySnapshot {
            record,
            state: None,
            ids: Vec::new(),
            now: 1,
            due_in: Some(0),
            expire_in: None,
            moved_from: None,
        }));
        rig.deliver(0, 1);
        rig.deliver(0, 2);
        let letters: Vec<_> = rig.batches.iter().flat_map(|batch| &batch.letters).collect();
        let causes: Vec<_> = letters.iter().map(|letter| letter.cause).collect();
        assert_eq!((rig.acked, causes), (2, vec![Cause::Corrupt; 2]), "{next} {last}");
        assert!(letters[0].error.contains("the record is damaged"), "{}", letters[0].error);
    }
    Ok(())
}

/// A setting of the stream: an event is too far ahead if its sequence exceeds the first missing sequence by more than
/// ten.
const NARROW_GAP_SETTING: &str = "gap = { timeout = \"1h\", max_width = 10 }";

/// Returns the causes of the dead letters in the store, each with the sequence of its event.
fn causes(rig: &Rig) -> Vec<(u64, Cause)> {
    rig.letters.values().map(|letter| (letter.id.sequence, letter.cause)).collect()
}

impl Rig {
    /// Delivers an event with these parts at the time 0.
    fn deliver_parts(&mut self, parts: &EventParts<'_>) {
        self.delivery += 1;
        let event = Arc::new(Event::new(parts));
        self.input(0, Input::Arrived { delivery: self.delivery, event });
    }

    fn last_record(&self) -> Result<&KeyRecord> {
        let writes = self.batches.iter().flat_map(|batch| &batch.writes);
        Ok(&writes.last().context("a write")?.record)
    }
}

/// Three events arrive too far ahead. Later, two other events with the sequences of these events take effect: one with
/// other content, and one with the same content under another id. The third event takes effect itself.
#[test]
fn letter_whose_sequence_is_taken_becomes_a_conflict() -> Result<()> {
    let mut rig = Rig::new(NARROW_GAP_SETTING)?;
    rig.deliver(0, 1);
    let parts = |sequence: u64, data: &'static [u8], id: &'static str| EventParts {
        sequence: Some(sequence),
        data,
        id,
        ..event_parts()
    };
    rig.deliver_parts(&parts(28, b"", "1"));
    rig.deliver_parts(&parts(29, b"", "another"));
    rig.deliver_parts(&parts(30, b"other", "1"));
    let far = [28, 29, 30].map(|sequence| (sequence, Cause::FarAhead));
    assert_eq!(causes(&rig), far);
    (2..=25).for_each(|sequence| rig.deliver(0, sequence));
    (28..=30).for_each(|sequence| rig.deliver(0, sequence));
    (26..=27).for_each(|sequence| rig.deliver(0, sequence));
    assert_eq!(rig.sequencer.stats().settled, 30);
    assert_eq!(causes(&rig), [(30, Cause::Conflict)]);
    let conflict = rig.letters.values().next().context("a letter")?;
    assert!(conflict.error.ends_with("other content: event 30 of the key"), "{conflict:?}");
    assert_eq!(rig.last_record()?.ahead, None);
    assert!(rig.sequencer.quiescent(), "nothing is left to do");
    Ok(())
}

/// The sequencer cannot compare the event of a letter with the settled event, because neither the record nor the memory
/// has the digest any more. The letter must not disappear.
#[test]
fn letter_without_a_digest_becomes_a_conflict() -> Result<()> {
    let stream = format!("{NARROW_GAP_SETTING}\ndigests = 0");
    let mut rig = Rig::new(&stream)?;
    rig.deliver(0, 1);
    rig.deliver_parts(&EventParts { sequence: Some(30), data: b"other", ..event_parts() });
    (2..=20).for_each(|sequence| rig.deliver(0, sequence));
    // Another owner settles the sequences up to 31, and ends before it reads the letter.
    rig.remember()?;
    let snapshot = rig.snapshot.as_mut().context("a record")?;
    snapshot.record.next = 32;
    assert!(snapshot.record.ahead.is_some());
    let next = Rig::new(&stream)?;
    let mut next = Rig { letters: rig.letters, snapshot: rig.snapshot, ..next };
    next.deliver(0, 32);
    assert_eq!(causes(&next), [(30, Cause::Conflict)]);
    let conflict = next.letters.values().next().context("a letter")?;
    assert!(conflict.error.contains("its digest is no longer stored"), "{conflict:?}");
    assert_eq!(next.last_record()?.ahead, None);
    Ok(())
}

/// The key ends before it reaches an event that arrived too far ahead.
#[test]
fn letter_beyond_the_end_of_its_key_gets_the_cause_after_end() -> Result<()> {
    let mut rig = Rig::new(NARROW_GAP_SETTING)?;
    rig.deliver(0, 1);
    rig.deliver(0, 30);
    (2..=4).for_each(|sequence| rig.deliver(0, sequence));
    rig.deliver_parts(&EventParts { sequence: Some(5), end: true, ..event_parts() });
    assert_eq!(causes(&rig), [(30, Cause::AfterEnd)]);
    let record = rig.last_record()?;
    assert_eq!((record.status, &record.ahead), (KeyStatus::Completed, &None));
    let writes = rig.batches.iter().flat_map(|batch| &batch.writes);
    let last = writes.last().context("a write")?;
    assert!(last.expire_in.is_some(), "the record of an ended key must expire: {last:?}");
    Ok(())
}

/// Returns a rig whose store has the record of a key that has passed event 30. The previous owner of the key ended
/// before it decided about the dead letters of event 30. `next` is the next sequence of the key.
fn rig_with_a_passed_range(stream: &str, next: u64) -> Result<Rig> {
    let mut rig = Rig::new(stream)?;
    rig.deliver(0, 1);
    rig.remember()?;
    let record = &mut rig.snapshot.as_mut().context("a record")?.record;
    record.next = next;
    record.ahead = Some(Box::new(AheadRange { first: 30, last: 30 }));
    Ok(Rig { snapshot: rig.snapshot, ..Rig::new(stream)? })
}

/// A key has no gap when its record is loaded. When it gets a gap later, the clock of this gap must run for the whole
/// `gap.timeout`.
#[test]
fn gap_after_a_load_waits_for_its_whole_timeout() -> Result<()> {
    let stream = "gap = { timeout = \"10s\", attempts = 1, max_width = 10, on_exhausted = \"skip\" }\n\
                  spill_after = \"10m\"\n";
    // The event that causes the load shows the gap, or a later event shows it. The key may also have spilled events
    // that it can execute immediately.
    for (next, spilled, delivered) in
        [(33, 0, &[34][..]), (32, 0, &[32, 34][..]), (31, 2, &[34][..])]
    {
        let mut rig = rig_with_a_passed_range(stream, next)?;
        rig.spilled = (next..next + spilled).collect();
        if spilled > 0 {
            let record = &mut rig.snapshot.as_mut().context("a record")?.record;
            record.spilled = SpillExtent { count: spilled, first: next, last: next + spilled - 1 };
        }
        for sequence in delivered {
            rig.deliver(60_000, *sequence);
        }
        rig.pass(60_000, 69_000);
        let label = format!("next {next}, {spilled} spilled");
        assert!(rig.requests.is_empty(), "{label}: {:?}", rig.requests);
        rig.pass(69_000, 71_000);
        assert_eq!(rig.requests, [(70_000, vec![33..=33])], "{label}");
    }
    Ok(())
}

/// The owner of a key ended before it decided about the dead letters that the key had passed. The next owner decides
/// about them, and must then request the next event of the silent key (`gap.tail`).
#[test]
fn next_event_is_requested_after_the_decision_about_passed_letters() -> Result<()> {
    let mut rig = rig_with_a_passed_range("gap = { tail = \"1s\", max_width = 10 }", 32)?;
    rig.snapshot.as_mut().context("a record")?.due_in = Some(0);
    rig.due = vec![(0, "a".into())];
    rig.pass(0, 0);
    assert_eq!(rig.last_record()?.ahead, None);
    let writes = rig.batches.iter().flat_map(|batch| &batch.writes);
    assert_eq!(writes.last().context("a write")?.due_in, Some(1_000));
    rig.pass(0, 1_000);
    assert_eq!(rig.requests, [(1_000, vec![32..=32])]);
    Ok(())
}

/// An event with a wrong sequence becomes a dead letter `far-ahead`, and the letter expires. The next round of the gap
/// finds no letter, so the range in the key record and the gap must end. The key must then execute its next event, and
/// the next gap must get all its rounds.
#[test]
fn range_without_letters_ends_with_its_gap() -> Result<()> {
    let wrong = 1_000_000_000_000;
    let mut rig = Rig::new(
        "gap = { timeout = \"1s\", attempts = 2, backoff = \"1s..1s\", max_width = 10 }\n\
         spill_after = \"10m\"\n",
    )?;
    rig.deliver(0, 1);
    rig.remember()?;
    rig.kept = [wrong].into();
    rig.deliver(0, wrong);
    assert_eq!(causes(&rig), [(wrong, Cause::FarAhead)]);
    rig.pass(0, 1_500);
    assert_eq!(rig.last_record()?.ahead, Some(Box::new(AheadRange { first: wrong, last: wrong })));
    rig.letters.clear();
    rig.kept.clear();
    rig.pass(1_500, 2_500);
    let record = rig.last_record()?;
    assert_eq!((&record.ahead, record.rounds, record.status), (&None, 0, KeyStatus::Active));
    assert_eq!((record.gaps.iter().len(), rig.requests.len()), (0, 2));
    rig.pass(2_500, 60_000);
    assert_eq!(rig.last_record()?.status, KeyStatus::Active);
    rig.deliver(60_000, 2);
    rig.deliver(60_000, 4);
    assert_eq!(rig.sequencer.stats().settled, 2);
    rig.pass(60_000, 70_000);
    assert_eq!(rig.requests[2..], [(61_000, vec![3..=3]), (62_000, vec![3..=3])]);
    Ok(())
}

/// An early dead letter that the sequencer is about to write must keep its range, although a search of the store does
/// not find the letter yet.
#[test]
fn range_of_an_arriving_letter_stays() -> Result<()> {
    let mut rig = Rig::new("gap = { timeout = \"1s\", max_width = 10 }\nspill_after = \"10m\"\n")?;
    rig.deliver(0, 1);
    rig.remember()?;
    rig.deliver(0, 30);
    // A round begins. Event 20, which is also too far ahead, arrives before the answer to the search of this round.
    rig.sequencer.handle_timeout(1_000);
    let mut searches = Vec::new();
    while let Some(effect) = rig.sequencer.poll_effect() {
        match effect {
            Effect::Load { token, .. } => {
                let loaded = Ok(rig.snapshot.clone());
                rig.sequencer.handle(1_000, Input::Loaded { token, loaded });
            }
            Effect::Replay { token, missing, .. } => searches.push((token, missing)),
            _ => {}
        }
    }
    let [(token, missing)] = &searches[..] else { panic!("{searches:?}") };
    assert_eq!(*missing, [2..=30]);
    rig.deliver(1_000, 20);
    let answer =
        Input::Replayed { token: *token, found: Vec::new(), until: u64::MAX, failed: None };
    rig.input(1_000, answer);
    assert_eq!(rig.last_record()?.ahead, Some(Box::new(AheadRange { first: 20, last: 30 })));
    Ok(())
}

/// The key has a letter with a wrong sequence, and an earlier letter with a right sequence. When the key has passed the
/// right sequence, the range must begin with the wrong sequence. Otherwise the sequencer would search the store after
/// each event.
#[test]
fn range_begins_with_the_next_letter() -> Result<()> {
    let wrong = 1_000_000_000_000;
    let mut rig = Rig::new(NARROW_GAP_SETTING)?;
    rig.deliver(0, 1);
    rig.deliver(0, 28);
    rig.deliver(0, wrong);
    rig.kept = [28, wrong].into();
    (2..=27).for_each(|sequence| rig.deliver(0, sequence));
    assert_eq!(rig.sequencer.stats().settled, 28);
    assert_eq!(causes(&rig), [(wrong, Cause::FarAhead)]);
    let searches = rig.requests.len();
    assert!(searches > 0);
    (29..=40).for_each(|sequence| rig.deliver(0, sequence));
    assert_eq!((rig.sequencer.stats().settled, rig.requests.len()), (40, searches));
    assert_eq!(rig.last_record()?.ahead, Some(Box::new(AheadRange { first: wrong, last: wrong })));
    Ok(())
}

/// An event has a letter `far-ahead` and a letter `overflow`. When another event settles the sequence of this event,
/// the two letters must become one dead letter `conflict`. The statistics must count one conflict.
#[test]
fn event_with_two_early_letters_becomes_one_conflict() -> Result<()> {
    let mut rig = Rig::new(NARROW_GAP_SETTING)?;
    rig.deliver(0, 1);
    rig.deliver_parts(&EventParts { sequence: Some(28), data: b"other", ..event_parts() });
    let far = rig.letters.values().next().context("a letter")?.clone();
    let id = LetterId { tag: far.id.tag ^ 2, ..far.id.clone() };
    rig.letters.insert(id.clone(), DeadLetter { id, cause: Cause::Overflow, ..far });
    (2..=25).for_each(|sequence| rig.deliver(0, sequence));
    rig.deliver(0, 28);
    (26..=27).for_each(|sequence| rig.deliver(0, sequence));
    assert_eq!(causes(&rig), [(28, Cause::Conflict)]);
    assert_eq!(rig.sequencer.stats().dead[Cause::Conflict as usize], 1);
    Ok(())
}
