//! A store that goes back in time under an owner who still has in memory what it lost.

mod rig;

use std::collections::VecDeque;
use std::sync::Arc;

use ordain_core::{
    Cause, DeadLetter, GapSettings, Input, LetterContent, LetterId, Overflow, Settings, Stop,
    shard_of,
};

use rig::{Rig, settings};

#[test]
fn what_the_store_lost_is_committed_again_from_memory() {
    let mut rig = Rig::new(1 << 20);
    for sequence in 1..=5 {
        rig.deliver(sequence);
    }
    let first = Arc::clone(&rig.sent[0]);
    assert_eq!(rig.numbers(), [1, 2, 3, 4, 5]);
    // All of it: also the commit that made the job.
    rig.stored.clear();
    rig.deliver(6);
    // What was in flight may rest on what was read meanwhile: it is void, and comes once more.
    assert_eq!(rig.numbers(), [1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!((rig.next(), rig.acked, &rig.stopped), (Some(7), 6, &None));
    assert_eq!(rig.sequencer.stats().rewound, 5);
    let again = &rig.stored[0].0.writes[0];
    assert_eq!(first.writes[0].job.incarnation, 0, "the store filled it in");
    assert_eq!(again.job.incarnation, 1_001, "as it was, or messages would get other ids");
    assert_eq!((again.expect, again.job.next), (first.writes[0].expect, 2));
}

#[test]
fn lost_answers_and_another_step_back_are_survived_on_the_way() {
    let mut rig = Rig::new(1 << 20);
    for sequence in 1..=5 {
        rig.deliver(sequence);
    }
    rig.stored.truncate(2);
    rig.silent = 1;
    rig.deliver(6);
    rig.deliver(7);
    assert_eq!(rig.numbers()[5..], [6, 6, 3, 4, 5, 6, 7, 8]);
    assert_eq!((rig.next(), rig.acked, rig.stopped), (Some(8), 7, None));
}

#[test]
fn what_memory_does_not_have_ends_ownership() {
    let mut rig = Rig::new(2_000);
    for sequence in 1..=20 {
        rig.deliver(sequence);
    }
    rig.stored.truncate(2);
    rig.deliver(21);
    let Some(Stop::Rewound { shard: 0, detail }) = rig.stopped else { panic!("{:?}", rig.stopped) };
    assert!(detail.contains("commits 3 to 20 are lost"), "{detail}");
    assert_eq!((rig.stored.len(), rig.acked), (2, 20), "nothing more is written");
}

#[test]
fn a_shard_may_keep_what_the_others_do_not_need() {
    let mut rig = Rig::with(Settings { shards: 4, ..settings(8_000) });
    for sequence in 1..=8 {
        rig.deliver(sequence);
    }
    rig.stored.truncate(2);
    rig.deliver(9);
    assert_eq!((rig.next(), rig.acked, rig.stopped), (Some(10), 9, None));
    assert_eq!(rig.sequencer.stats().rewound, 6);
}

#[test]
fn what_does_not_apply_as_it_did_ends_ownership() {
    let mut rig = Rig::new(1 << 20);
    for sequence in 1..=5 {
        rig.deliver(sequence);
    }
    rig.stored.truncate(3);
    rig.refuses = true;
    rig.deliver(6);
    let Some(Stop::Rewound { detail, .. }) = rig.stopped else { panic!("{:?}", rig.stopped) };
    assert!(detail.contains("commit 4 cannot be made again"), "{detail}");
}

#[test]
fn what_is_being_made_again_is_kept_although_others_need_the_room() {
    let other = (0..100).map(|it| format!("b{it}")).find(|it| shard_of(it, 2) != shard_of("a", 2));
    let other = other.expect("a key of the other shard");
    let mut tried = 0;
    // Somewhere among these the three commits have room, and one more has not.
    for keep_bytes in (500..5_000).step_by(20) {
        let mut rig = Rig::with(Settings { shards: 2, ..settings(keep_bytes) });
        (1..=3).for_each(|sequence| rig.deliver(sequence));
        rig.stored.clear();
        rig.commits = Some(VecDeque::new());
        rig.tell(Input::StoreMayHaveGoneBack);
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
        assert!(rig.stopped.is_some(), "commit 1 is lost, and nothing says so: {keep_bytes}");
    }
    assert!(tried > 10, "{tried}");
}

/// Commit 2 has a letter, and its first sending is on its way for long; the second finds that the
/// store has lost commit 1. That is made again.
fn rig_with_a_late_letter() -> Rig {
    let mut rig = Rig::with(Settings { forward_letters: true, ..settings(1 << 20) });
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
    rig.tell(Input::Unreadable { delivery: rig.delivered, letter: Box::new(letter) });
    rig.silent = 1;
    rig.answer_commit();
    rig.stored.clear();
    rig.answer_commit();
    rig.answer_commit();
    assert_eq!(rig.numbers(), [1, 2, 2, 1, 2]);
    assert_eq!((rig.sent[4].letters.len(), rig.acked), (0, 1), "it is void");
    rig
}

#[test]
fn a_letter_of_a_late_commit_that_was_applied_is_published() {
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
fn a_letter_of_a_void_commit_is_in_the_next() {
    let mut rig = rig_with_a_late_letter();
    rig.answer_commit();
    assert_eq!((rig.sent[5].number, rig.sent[5].letters.len(), rig.acked), (3, 1, 1));
    rig.answer_commit();
    assert_eq!((&rig.published[..], rig.acked), (&["the letter".to_owned()][..], 2));
}

/// Event 3 is spilled and acknowledged by commit 2.
fn rig_with_a_spilled_event(still: bool) -> Rig {
    let settings = settings(1 << 20);
    let gap = GapSettings { timeout: 1_500, attempts: 1_000, ..settings.gap };
    let mut rig = Rig::with(Settings { spill_after: 10, gap, ..settings });
    rig.still = still;
    rig.deliver(1);
    rig.deliver(3);
    assert_eq!((rig.numbers(), rig.acked), (vec![1, 2], 2));
    rig
}

#[test]
fn what_was_read_before_it_was_noticed_does_not_count() {
    let mut rig = rig_with_a_spilled_event(false);
    rig.stored.truncate(1);
    // A round of the gap loads the job again, which has nothing spilled now.
    rig.wait();
    rig.deliver(2);
    assert_eq!(rig.stopped, None);
    assert_eq!((rig.next(), rig.acked), (Some(4), 3), "event 3 was acknowledged");
}

#[test]
fn what_is_lost_is_noticed_although_nothing_comes() {
    let mut rig = Rig::new(1 << 20);
    for sequence in 1..=5 {
        rig.deliver(sequence);
    }
    rig.tell(Input::StoreMayHaveGoneBack);
    assert_eq!(rig.numbers()[5..], [6]);
    assert_eq!((rig.stored.len(), rig.sequencer.stats().rewound), (6, 0), "it has all");
    rig.stored.truncate(2);
    rig.silent = 1;
    rig.tell(Input::StoreMayHaveGoneBack);
    assert_eq!(rig.numbers()[6..], [7, 7, 3, 4, 5, 6, 7]);
    assert_eq!((rig.stored.len(), rig.sequencer.stats().rewound), (7, 4));
    rig.deliver(6);
    assert_eq!((rig.next(), rig.acked, rig.stopped), (Some(7), 6, None));
}

#[test]
fn the_loss_of_the_newest_alone_is_noticed() {
    for still in [false, true] {
        let mut rig = rig_with_a_spilled_event(still);
        rig.stored.truncate(1);
        rig.wait();
        rig.tell(Input::StoreMayHaveGoneBack);
        assert_eq!(rig.numbers(), [1, 2, 3, 2, 3]);
        assert_eq!(rig.sequencer.stats().rewound, u64::from(!still));
        rig.deliver(2);
        assert_eq!((rig.next(), rig.acked, rig.stopped), (Some(4), 3, None));
    }
}

#[test]
fn an_empty_commit_asks_and_where_nothing_is_kept_it_ends() {
    for keep_bytes in [0, 10] {
        for lost in [0, 1] {
            let mut rig = Rig::new(keep_bytes);
            rig.deliver(1);
            rig.stored.truncate(1 - lost);
            rig.tell(Input::StoreMayHaveGoneBack);
            assert_eq!(rig.sent.last().map(|it| (it.number, it.writes.len())), Some((2, 0)));
            assert_eq!(rig.stopped.is_some(), lost == 1, "commit 1 is not kept");
            if lost == 0 {
                assert!(!rig.sequencer.in_doubt());
                rig.deliver(2);
                assert_eq!((rig.next(), rig.acked, rig.stopped), (Some(3), 2, None));
            }
        }
    }
}

#[test]
fn it_is_in_doubt_until_each_shard_has_answered() {
    let mut rig = Rig::new(0);
    rig.deliver(1);
    rig.unheard = true;
    rig.tell(Input::StoreMayHaveGoneBack);
    assert!(rig.sequencer.in_doubt(), "nothing of the question was answered");
    rig.unheard = false;
    (0..10).for_each(|_| rig.wait());
    assert!(!rig.sequencer.in_doubt());
}

#[test]
fn a_spilled_event_that_is_read_before_its_commit_is_answered_may_still_be_lost() {
    let mut rig = rig_with_a_spilled_event(false);
    rig.reads = Some(Vec::new());
    rig.deliver(2);
    assert_eq!((rig.numbers(), rig.acked), (vec![1, 2, 3], 3));
    assert_eq!(rig.reads.as_ref().map(Vec::len), Some(1), "event 3 is being read");
    rig.unheard = true;
    rig.deliver(4);
    assert_eq!(rig.stored[3].0.writes[0].spill[0].0, 4);
    rig.answer_reads();
    assert_eq!(rig.acked, 3, "the store has event 4, but nobody knows for how long");
    rig.stored.truncate(2);
    rig.unheard = false;
    // A batch without an answer is sent more and more rarely.
    (0..10).for_each(|_| rig.wait());
    assert_eq!((rig.next(), rig.acked, rig.stopped), (Some(5), 4, None));
}

#[test]
fn a_letter_that_rests_on_old_reads_is_decided_about_once_more() {
    let settings = settings(1 << 20);
    let gap = GapSettings { max_width: 2, ..settings.gap };
    let mut rig = Rig::with(Settings { max_lanes: 1, gap, ..settings });
    for sequence in 1..=5 {
        rig.deliver(sequence);
    }
    rig.stored.truncate(1);
    // Another key takes the place of this one, which is loaded as it was long ago.
    rig.tell(Input::Look("b".into()));
    rig.deliver(7);
    let letter = &rig.sent[5].letters[0];
    assert_eq!((letter.id.sequence, letter.cause), (7, Cause::FarAhead));
    rig.deliver(6);
    assert!(rig.stored.iter().all(|(batch, _)| batch.letters.is_empty()), "it is not too far");
    assert_eq!((rig.next(), rig.acked, rig.stopped), (Some(8), 7, None));
}

/// Memory is always full, so that the lane gives up its state after each commit. What a record counts
/// too much of, while repeats of spilled events are compared, is taken back all the same.
#[test]
fn repeats_of_spilled_events_do_not_stay_counted() {
    let settings = settings(0);
    let gap = GapSettings { timeout: 1_000_000_000, ..settings.gap };
    let mut rig = Rig::with(Settings {
        memory_budget: 1,
        lane_buffer: 1,
        quantum: 1,
        spill_after: 1,
        spill_limit: 6,
        overflow: Overflow::DeadLetter,
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
        rig.tell(Input::DueRead { entries: Vec::new(), next_in: None });
        let (job, spilled) = rig.record().expect("a job");
        assert_eq!((job.spilled.count, spilled.len()), (2, 2), "before event {}", job.next);
    }
    rig.deliver(35);
    assert!(rig.sent.iter().all(|batch| batch.letters.is_empty()), "two events are no overflow");
}
