//! Tests of a store that loses its newest commits, while the sequencer of the owner may still have them in memory.

mod rig;

use std::collections::VecDeque;
use std::sync::Arc;

use ordain_core::{
    Cause, DeadLetter, Event, EventParts, GapSettings, Input, LetterContent, LetterId,
    OverflowPolicy, SequencerSettings, StopReason, shard_of,
};

use rig::{Rig, settings};

#[test]
fn lost_commits_are_repeated_from_memory() {
    let mut rig = Rig::new(1 << 20);
    for sequence in 1..=5 {
        rig.deliver(sequence);
    }
    let first = Arc::clone(&rig.sent[0]);
    assert_eq!(rig.numbers(), [1, 2, 3, 4, 5]);
    // The store loses every commit, including the one that created the record.
    rig.stored.clear();
    rig.deliver(6);
    // Commit 6 was in flight, and may depend on records that the owner read after the loss. So the sequencer sends an
    // empty commit 6, and commits the event in commit 7.
    assert_eq!(rig.numbers(), [1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!((rig.next(), rig.acked, &rig.stopped), (Some(7), 6, &None));
    assert_eq!(rig.sequencer.stats().recommitted, 5);
    let again = &rig.stored[0].0.writes[0];
    assert_eq!(first.writes[0].record.incarnation, 0, "the store assigns the incarnation");
    assert_eq!(
        again.record.incarnation, 1_001,
        "the incarnation must not change, or messages would get other ids"
    );
    assert_eq!((again.condition, again.record.next), (first.writes[0].condition, 2));
}

#[test]
fn recovery_completes_although_a_commit_gets_no_answer() {
    let mut rig = Rig::new(1 << 20);
    for sequence in 1..=5 {
        rig.deliver(sequence);
    }
    rig.stored.truncate(2);
    rig.ignored_commits = 1;
    rig.deliver(6);
    rig.deliver(7);
    assert_eq!(rig.numbers()[5..], [6, 6, 3, 4, 5, 6, 7, 8]);
    assert_eq!((rig.next(), rig.acked, rig.stopped), (Some(8), 7, None));
}

#[test]
fn loss_of_commits_that_left_memory_ends_ownership() {
    let mut rig = Rig::new(2_000);
    for sequence in 1..=20 {
        rig.deliver(sequence);
    }
    rig.stored.truncate(2);
    rig.deliver(21);
    let Some(StopReason::RolledBack { shard: 0, last, stored, since, detail }) = rig.stopped else {
        panic!("{:?}", rig.stopped)
    };
    assert!(detail.contains("commits 3 to 20 are lost"), "{detail}");
    // The sequencer reports the time of commit 1, although this commit is no longer in memory.
    assert_eq!((last, stored, since), (20, Some(2), Some(rig.stored[0].1.time)));
    assert_eq!((rig.stored.len(), rig.acked), (2, 20), "the store must get no further commits");
}

#[test]
fn shard_can_use_commit_memory_that_other_shards_do_not_need() {
    let mut rig = Rig::with(SequencerSettings { shards: 4, ..settings(8_000) });
    for sequence in 1..=8 {
        rig.deliver(sequence);
    }
    rig.stored.truncate(2);
    rig.deliver(9);
    assert_eq!((rig.next(), rig.acked, rig.stopped), (Some(10), 9, None));
    assert_eq!(rig.sequencer.stats().recommitted, 6);
}

#[test]
fn commit_refused_during_recovery_ends_ownership() {
    let mut rig = Rig::new(1 << 20);
    for sequence in 1..=5 {
        rig.deliver(sequence);
    }
    rig.stored.truncate(3);
    rig.refuses = true;
    rig.deliver(6);
    let Some(StopReason::RolledBack { last, stored, detail, .. }) = rig.stopped else {
        panic!("{:?}", rig.stopped)
    };
    assert!(detail.contains("commit 4 cannot be repeated"), "{detail}");
    assert_eq!((last, stored), (5, Some(3)));
}

#[test]
fn commits_in_recovery_stay_in_memory() {
    let other = (0..100)
        .map(|number| format!("b{number}"))
        .find(|key| shard_of(key, 2) != shard_of("a", 2));
    let other = other.expect("one of 100 keys is in the other shard");
    let mut tried = 0;
    // With some of these sizes, the commit history has room for exactly the three commits.
    for keep_bytes in (500..5_000).step_by(20) {
        let mut rig = Rig::with(SequencerSettings { shards: 2, ..settings(keep_bytes) });
        (1..=3).for_each(|sequence| rig.deliver(sequence));
        rig.stored.clear();
        rig.commits = Some(VecDeque::new());
        rig.handle(Input::StoreMayHaveRolledBack);
        assert_eq!(rig.numbers(), [1, 2, 3, 4]);
        rig.answer_commit();
        if rig.stopped.is_some() {
            continue;
        }
        tried += 1;
        assert_eq!(rig.numbers(), [1, 2, 3, 4, 1]);
        (1..=2).for_each(|sequence| rig.deliver_to(&other, sequence));
        assert_eq!(rig.acked, 5);
        rig.refuses = true;
        rig.answer_commit();
        assert!(rig.stopped.is_some(), "commit 1 is lost without a report: {keep_bytes}");
    }
    assert!(tried > 10, "{tried}");
}

/// Returns a rig in which commit 2 contains a dead letter. The first request for commit 2 gets no answer. By the answer
/// to the second request, the sequencer detects that the store has lost commit 1. The sequencer repeats commit 1, and
/// makes commit 2 void: it sends commit 2 again without the dead letter.
fn rig_with_a_late_letter() -> Rig {
    let mut rig = Rig::with(SequencerSettings { forward_letters: true, ..settings(1 << 20) });
    rig.deliver(1);
    rig.commits = Some(VecDeque::new());
    rig.delivered += 1;
    let letter = DeadLetter {
        id: LetterId { key: "".into(), sequence: 0, tag: 2 },
        cause: Cause::Unreadable,
        error: "the letter".to_owned(),
        origin: None,
        version: None,
        content: LetterContent::Nothing,
    };
    rig.handle(Input::Unreadable { delivery: rig.delivered, letter: Box::new(letter) });
    rig.ignored_commits = 1;
    rig.answer_commit();
    rig.stored.clear();
    rig.answer_commit();
    rig.answer_commit();
    assert_eq!(rig.numbers(), [1, 2, 2, 1, 2]);
    assert_eq!((rig.sent[4].letters.len(), rig.acked), (0, 1), "commit 2 is void");
    rig
}

#[test]
fn letter_of_a_commit_that_the_store_applied_late_is_published() {
    let mut rig = rig_with_a_late_letter();
    rig.commit(Arc::clone(&rig.sent[1]));
    rig.answer_commit();
    while rig.commits.as_ref().is_some_and(|commits| !commits.is_empty()) {
        rig.answer_commit();
    }
    assert_eq!((&rig.published[..], rig.acked), (&["the letter".to_owned()][..], 2));
    assert_eq!(rig.stopped, None);
}

#[test]
fn letter_of_a_void_commit_is_sent_in_the_next_commit() {
    let mut rig = rig_with_a_late_letter();
    rig.answer_commit();
    assert_eq!((rig.sent[5].number, rig.sent[5].letters.len(), rig.acked), (3, 1, 1));
    rig.answer_commit();
    assert_eq!((&rig.published[..], rig.acked), (&["the letter".to_owned()][..], 2));
}

/// Returns a rig in which commit 2 has spilled event 3, and the sequencer has acknowledged this event. If
/// `is_clock_stopped` is true, the clock of the store does not advance.
fn rig_with_a_spilled_event(is_clock_stopped: bool) -> Rig {
    let settings = settings(1 << 20);
    let gap = GapSettings { timeout: 1_500, attempts: 1_000, ..settings.gap };
    let mut rig = Rig::with(SequencerSettings { spill_after: 10, gap, ..settings });
    rig.is_clock_stopped = is_clock_stopped;
    rig.deliver(1);
    rig.deliver(3);
    assert_eq!((rig.numbers(), rig.acked), (vec![1, 2], 2));
    rig
}

#[test]
fn records_read_before_the_loss_was_noticed_are_discarded() {
    let mut rig = rig_with_a_spilled_event(false);
    rig.stored.truncate(1);
    // A replay round for the gap loads the record again. After the loss, the record has no spilled events.
    rig.wait();
    rig.deliver(2);
    assert_eq!(rig.stopped, None);
    assert_eq!(
        (rig.next(), rig.acked),
        (Some(4), 3),
        "event 3 must not be lost, because it was acknowledged"
    );
}

#[test]
fn loss_is_noticed_without_new_events() {
    let mut rig = Rig::new(1 << 20);
    for sequence in 1..=5 {
        rig.deliver(sequence);
    }
    rig.handle(Input::StoreMayHaveRolledBack);
    assert_eq!(rig.numbers()[5..], [6]);
    assert_eq!(
        (rig.stored.len(), rig.sequencer.stats().recommitted),
        (6, 0),
        "the store has every commit"
    );
    rig.stored.truncate(2);
    rig.ignored_commits = 1;
    rig.handle(Input::StoreMayHaveRolledBack);
    assert_eq!(rig.numbers()[6..], [7, 7, 3, 4, 5, 6, 7]);
    assert_eq!((rig.stored.len(), rig.sequencer.stats().recommitted), (7, 4));
    rig.deliver(6);
    assert_eq!((rig.next(), rig.acked, rig.stopped), (Some(7), 6, None));
}

#[test]
fn loss_of_the_newest_commit_is_noticed() {
    for is_clock_stopped in [false, true] {
        let mut rig = rig_with_a_spilled_event(is_clock_stopped);
        rig.stored.truncate(1);
        rig.wait();
        rig.handle(Input::StoreMayHaveRolledBack);
        assert_eq!(rig.numbers(), [1, 2, 3, 2, 3]);
        assert_eq!(rig.sequencer.stats().recommitted, u64::from(!is_clock_stopped));
        rig.deliver(2);
        assert_eq!((rig.next(), rig.acked, rig.stopped), (Some(4), 3, None));
    }
}

#[test]
fn empty_commit_finds_a_loss_that_ends_ownership() {
    for keep_bytes in [0, 10] {
        for lost in [0, 1] {
            let mut rig = Rig::new(keep_bytes);
            rig.deliver(1);
            rig.stored.truncate(1 - lost);
            rig.handle(Input::StoreMayHaveRolledBack);
            assert_eq!(
                rig.sent.last().map(|batch| (batch.number, batch.writes.len())),
                Some((2, 0))
            );
            assert_eq!(
                rig.stopped.is_some(),
                lost == 1,
                "only a loss ends ownership, because the sequencer has not kept commit 1"
            );
            if lost == 0 {
                assert!(!rig.sequencer.in_doubt());
                rig.deliver(2);
                assert_eq!((rig.next(), rig.acked, rig.stopped), (Some(3), 2, None));
            }
        }
    }
}

#[test]
fn store_is_in_doubt_until_each_shard_has_answered() {
    let mut rig = Rig::new(0);
    rig.deliver(1);
    rig.loses_replies = true;
    rig.handle(Input::StoreMayHaveRolledBack);
    assert!(rig.sequencer.in_doubt(), "no shard has answered");
    rig.loses_replies = false;
    (0..10).for_each(|_| rig.wait());
    assert!(!rig.sequencer.in_doubt());
}

#[test]
fn spilled_event_is_not_acknowledged_before_its_commit() {
    let mut rig = rig_with_a_spilled_event(false);
    rig.reads = Some(Vec::new());
    rig.deliver(2);
    assert_eq!((rig.numbers(), rig.acked), (vec![1, 2, 3], 3));
    assert_eq!(rig.reads.as_ref().map(Vec::len), Some(1), "event 3 is being read");
    rig.loses_replies = true;
    rig.deliver(4);
    assert_eq!(rig.stored[3].0.writes[0].spill[0].0, 4);
    rig.answer_reads();
    assert_eq!(rig.acked, 3, "the store has event 4, but has not confirmed it");
    rig.stored.truncate(2);
    rig.loses_replies = false;
    // Waits several times, because the delay increases with each attempt to send an unanswered batch.
    (0..10).for_each(|_| rig.wait());
    assert_eq!((rig.next(), rig.acked, rig.stopped), (Some(5), 4, None));
}

#[test]
fn event_too_far_ahead_only_by_a_lost_record_takes_effect() {
    let settings = settings(1 << 20);
    let gap = GapSettings { max_width: 2, ..settings.gap };
    let mut rig = Rig::with(SequencerSettings { max_lanes: 1, gap, ..settings });
    for sequence in 1..=5 {
        rig.deliver(sequence);
    }
    rig.stored.truncate(1);
    // Key `b` displaces key `a` from memory. For event 7, the sequencer then loads the old record of `a`. By this
    // record, event 7 is too far ahead. Before the sequencer writes the dead letter, it writes the sequence of the
    // event to the record.
    rig.handle(Input::Reload("b".into()));
    rig.deliver(7);
    assert_eq!(rig.sent[5].writes[0].record.ahead.as_deref().map(|ahead| ahead.last), Some(7));
    rig.deliver(6);
    assert!(rig.stored.iter().all(|(batch, _)| batch.letters.is_empty()));
    let record = rig.record().map(|(record, _)| record).expect("a record");
    assert_eq!(record.ahead, None, "event 7 is within the limit");
    assert_eq!((rig.next(), rig.acked, rig.stopped), (Some(8), 7, None));
}

/// Memory is always full, so the lane evicts its state after each commit. When a spilled event arrives again, the
/// record at first counts the repeat as another spilled event. After the store has compared the repeat with the spilled
/// event, the record must count the event once.
#[test]
fn repeated_spilled_event_is_counted_once() {
    let settings = settings(0);
    let gap = GapSettings { timeout: 1_000_000_000, ..settings.gap };
    let mut rig = Rig::with(SequencerSettings {
        memory_budget: 1,
        lane_buffer: 1,
        quantum: 1,
        spill_after: 1,
        spill_limit: 6,
        overflow: OverflowPolicy::DeadLetter,
        gap,
        ..settings
    });
    rig.with_state = true;
    for sequence in [1, 30, 40] {
        rig.deliver(sequence);
    }
    for sequence in 2..=6 {
        rig.arrive(sequence);
        rig.arrive(30);
        rig.wait();
        rig.handle(Input::DueRead { entries: Vec::new(), next_in: None });
        let (record, spilled) = rig.record().expect("a key record");
        assert_eq!((record.spilled.count, spilled.len()), (2, 2), "before event {}", record.next);
    }
    rig.deliver(35);
    assert!(
        rig.sent.iter().all(|batch| batch.letters.is_empty()),
        "two spilled events are below the limit"
    );
}

/// Returns an event with the given sequence, but with other content than the event that [`Rig::deliver`] delivers.
fn other_event(sequence: u64) -> Arc<Event> {
    Arc::new(Event::new(&EventParts {
        key: "a",
        sequence: Some(sequence),
        data: b"other",
        ..EventParts::default()
    }))
}

/// The store loses commits, and another event gets the sequence of a lost event. The key record no longer has the
/// digest of the lost event. The other event must become a dead letter, even if this event arrives before the sequencer
/// notices the loss, and even if replies are lost during the recovery. A repeat of a lost event must count as a
/// duplicate.
#[test]
fn other_event_with_a_lost_sequence_is_a_conflict() {
    for (ignored_commits, loses_replies) in [(0, false), (2, false), (0, true)] {
        let mut rig = Rig::with(SequencerSettings { digests: 2, ..settings(1 << 20) });
        for sequence in 1..=8 {
            rig.deliver(sequence);
        }
        rig.stored.truncate(3);
        rig.ignored_commits = ignored_commits;
        rig.loses_replies = loses_replies;
        for event in [other_event(4), other_event(6)] {
            rig.delivered += 1;
            rig.handle(Input::Arrived { delivery: rig.delivered, event });
            rig.loses_replies = false;
        }
        rig.deliver(5);
        rig.deliver(9);
        let letters = rig.stored.iter().flat_map(|(batch, _)| &batch.letters);
        let causes: Vec<_> = letters.map(|letter| (letter.id.sequence, letter.cause)).collect();
        assert_eq!(
            causes,
            [(4, Cause::Conflict), (6, Cause::Conflict)],
            "{ignored_commits} {loses_replies}"
        );
        assert_eq!((rig.next(), rig.acked, &rig.stopped), (Some(10), 12, &None));
        assert_eq!(rig.sequencer.stats().duplicates, 1);
    }
}

/// The sequencer no longer has the digest of a settled event. If another event with the same sequence is
/// store-numbered, the sequencer must count and report this event. The store may have given this event the number of a
/// lost event. An event that is not store-numbered, or that the sequencer can compare, must not count.
#[test]
fn store_numbered_event_without_a_comparison_is_reported() {
    const UNVERIFIED: u64 = 40;
    const REPORTED: usize = 32;
    let mut rig = Rig::with(SequencerSettings { digests: 2, ..settings(0) });
    for sequence in 1..=8 {
        rig.deliver(sequence);
    }
    let mut deliver = |sequence, is_store_numbered| {
        let event = Event::clone(&other_event(sequence)).with_store_numbered(is_store_numbered);
        rig.delivered += 1;
        rig.handle(Input::Arrived { delivery: rig.delivered, event: Arc::new(event) });
        let stats = rig.sequencer.stats();
        (stats.duplicates, stats.unverified_duplicates)
    };
    assert_eq!(deliver(4, false), (1, 0));
    // The record still has the digest of event 8, so the other event 8 becomes a dead letter.
    assert_eq!(deliver(8, true), (1, 0));
    assert_eq!(deliver(4, true), (2, 1));
    for repeat in 1..UNVERIFIED {
        assert_eq!(deliver(5, true), (2 + repeat, 1 + repeat));
    }
    let reported = rig.sequencer.take_unverified_duplicates();
    let sequences: Vec<_> = reported.iter().filter_map(|event| event.sequence()).collect();
    assert_eq!((sequences.len(), &sequences[..2]), (REPORTED, &[4, 5][..]));
    assert!(rig.sequencer.take_unverified_duplicates().is_empty());
    rig.deliver(8);
    assert_eq!(rig.sequencer.stats().unverified_duplicates, UNVERIFIED);
    let letters = rig.stored.iter().flat_map(|(batch, _)| &batch.letters);
    let causes: Vec<_> = letters.map(|letter| (letter.id.sequence, letter.cause)).collect();
    assert_eq!(causes, [(8, Cause::Conflict)]);
}
