//! Tests of `first = "any"`: a key begins at the sequence of the first event that arrives.

use anyhow::Result;
use ordain_core::{Cause, Input, WriteCondition};

use super::rig::{Rig, event};

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

#[test]
fn lower_sequence_becomes_the_beginning_before_the_first_execution() -> Result<()> {
    let mut rig = Rig::new(ANYWHERE_SETTINGS)?;
    for sequence in [5, 3, 7, 4] {
        rig.arrive(0, event(sequence));
    }
    rig.perform(0);
    assert_eq!(rig.sequencer.stats().settled, 3);
    assert!(rig.writes().all(|write| write.letters.is_empty()));
    let record = rig.last_record()?;
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
            rig.arrive(0, event(sequence));
        }
        rig.perform(0);
        let letters = rig.writes().flat_map(|write| &write.letters);
        assert_eq!(letters.map(|letter| letter.cause).collect::<Vec<_>>(), causes);
        assert_eq!(rig.last_record()?.next, next);
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
