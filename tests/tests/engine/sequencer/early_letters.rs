//! Tests of events that arrive too far ahead, and of the dead letters of these events.

use anyhow::{Context, Result};
use ordain_core::{AheadRange, Cause, DeadLetter, Effect, EventParts, Input, KeyStatus, LetterId};

use super::super::sequencer_support::event_parts;
use super::rig::Rig;

/// A setting of the stream: an event is too far ahead if its sequence exceeds the first missing sequence by more than
/// ten.
const NARROW_GAP_SETTING: &str = "gap = { timeout = \"1h\", max_width = 10 }";

fn causes(rig: &Rig) -> Vec<(u64, Cause)> {
    rig.letters.values().map(|letter| (letter.id.sequence, letter.cause)).collect()
}

/// Three events arrive too far ahead. Two other events with their sequences take effect: one with other content, and
/// one with the same content under another id. The third event takes effect itself.
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
    let record = rig.stored_record()?;
    record.next = 32;
    assert!(record.ahead.is_some());
    let next = Rig::new(&stream)?;
    let mut next = Rig { letters: rig.letters, snapshot: rig.snapshot, ..next };
    next.deliver(0, 32);
    assert_eq!(causes(&next), [(30, Cause::Conflict)]);
    let conflict = next.letters.values().next().context("a letter")?;
    assert!(conflict.error.contains("its digest is no longer stored"), "{conflict:?}");
    assert_eq!(next.last_record()?.ahead, None);
    Ok(())
}

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
    let last = rig.last_write()?;
    assert!(last.expire_in.is_some(), "the record of an ended key must expire: {last:?}");
    Ok(())
}

/// An event with a wrong sequence becomes a dead letter `far-ahead`, and the letter expires. The next round of the gap
/// finds no letter, so the range in the key record and the gap must end. The key must then execute its next event, and
/// the next gap must get all its rounds.
#[test]
fn range_without_letters_ends_with_its_gap() -> Result<()> {
    let wrong = 1_000_000_000_000;
    let mut rig = Rig::begun(
        "gap = { timeout = \"1s\", attempts = 2, backoff = \"1s..1s\", max_width = 10 }\n\
         spill_after = \"10m\"\n",
    )?;
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
    let mut rig =
        Rig::begun("gap = { timeout = \"1s\", max_width = 10 }\nspill_after = \"10m\"\n")?;
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
